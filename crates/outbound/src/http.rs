//! An HTTP client: one request, one bounded response, with connection reuse. Redirects are not followed.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Limited};
use hyper::header::HeaderMap;
use hyper::{Method, Request};
use hyper_rustls::HttpsConnector;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ClientConfig;
use tokio::net::TcpStream;

use crate::request_body::RequestBody;
use crate::target_policy;

pub use hyper::header;
pub use hyper::{Method as HttpMethod, Uri};

/// Limits of a client.
#[derive(Debug, Clone, Copy)]
pub struct HttpClientLimits {
    pub max_response_bytes: usize,
    /// Idle connections kept per server, and how long.
    pub max_idle_connections: usize,
    pub idle_timeout: Duration,
    pub connect_timeout: Duration,
}

impl Default for HttpClientLimits {
    fn default() -> Self {
        Self {
            max_response_bytes: 64 << 20,
            max_idle_connections: 32,
            idle_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(10),
        }
    }
}

/// The HTTP client of hyper, with connections that respect the target policy.
pub type HttpsClient =
    hyper_util::client::legacy::Client<HttpsConnector<PolicyConnector>, RequestBody>;

/// Connects to the host of a URL if the target policy allows its address.
#[derive(Debug, Clone)]
pub struct PolicyConnector {
    connect_timeout: Duration,
}

impl tower_service::Service<Uri> for PolicyConnector {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<TcpStream>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, url: Uri) -> Self::Future {
        let within = self.connect_timeout;
        Box::pin(async move {
            let wrong = || io::Error::new(io::ErrorKind::InvalidInput, "the URL has no host");
            let host = url.host().ok_or_else(wrong)?;
            let usual_port = if url.scheme_str() == Some("https") {
                443
            } else {
                80
            };
            let port = url.port_u16().unwrap_or(usual_port);
            let connecting = target_policy::connect(host, port);
            let stream = tokio::time::timeout(within, connecting).await??;
            stream.set_nodelay(true)?;
            Ok(TokioIo::new(stream))
        })
    }
}

/// Creates a client of hyper. `tls` is used for `https:` URLs.
#[must_use]
pub fn https_client(tls: ClientConfig, bounds: &HttpClientLimits) -> HttpsClient {
    let connector = hyper_rustls::HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_or_http()
        .enable_http1()
        .wrap_connector(PolicyConnector {
            connect_timeout: bounds.connect_timeout,
        });
    hyper_util::client::legacy::Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(bounds.idle_timeout)
        .pool_max_idle_per_host(bounds.max_idle_connections)
        .build(connector)
}

/// An HTTP client. Clones share their connections.
#[derive(Debug, Clone)]
pub struct OutboundHttpClient {
    client: HttpsClient,
    max_response_bytes: usize,
}

#[derive(Debug, Clone)]
pub struct HttpResponse {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// Why there is no response. No variant contains the URL, which may include a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HttpError {
    #[error("the request cannot be made: {0}")]
    InvalidRequest(String),
    #[error("{0}")]
    NoResponse(String),
    #[error("the response is incomplete: {0}")]
    IncompleteResponse(String),
}

impl OutboundHttpClient {
    /// `tls` is used for `https:` URLs.
    #[must_use]
    pub fn new(tls: ClientConfig, bounds: &HttpClientLimits) -> Self {
        let client = https_client(tls, bounds);
        Self {
            client,
            max_response_bytes: bounds.max_response_bytes,
        }
    }

    /// Sends a request. A response with any status counts as success.
    ///
    /// # Errors
    /// If there is no complete response.
    pub async fn request(
        &self,
        method: Method,
        url: &str,
        headers: HeaderMap,
        body: impl Into<RequestBody>,
    ) -> Result<HttpResponse, HttpError> {
        let mut request = Request::builder().method(method).uri(url);
        if let Some(all) = request.headers_mut() {
            *all = headers;
        }
        let request = request.body(body.into());
        let request = request.map_err(|error| HttpError::InvalidRequest(error.to_string()))?;
        let answer = self.client.request(request).await;
        let answer = answer.map_err(|error| HttpError::NoResponse(error_chain_text(&error)))?;
        let status = answer.status().as_u16();
        let headers = answer.headers().clone();
        let body = Limited::new(answer.into_body(), self.max_response_bytes).collect();
        let body = body.await;
        let body = body.map_err(|error| HttpError::IncompleteResponse(error.to_string()))?;
        Ok(HttpResponse {
            status,
            headers,
            body: body.to_bytes(),
        })
    }
}

impl HttpResponse {
    #[must_use]
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The status and the beginning of the body, for messages to operators.
    #[must_use]
    pub fn describe(&self) -> String {
        const MAX_DESCRIPTION_BYTES: usize = 400;
        let shown = &self.body[..self.body.len().min(MAX_DESCRIPTION_BYTES)];
        let text = String::from_utf8_lossy(shown);
        match text.trim() {
            "" => format!("status {}", self.status),
            text => format!("status {}: {text}", self.status),
        }
    }
}

fn error_chain_text(error: &dyn std::error::Error) -> String {
    let mut what = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        what = format!("{what}: {error}");
        cause = error.source();
    }
    what
}
