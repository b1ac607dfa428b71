//! Asking an HTTP server: one request, one bounded answer, connections kept for the next.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderMap};
use hyper::{Method, Request, StatusCode};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use crate::authenticator::Failure;
use crate::tls;

const MAX_ANSWER_BYTES: usize = 4 << 20;
const IDLE_CONNECTIONS: usize = 32;
const IDLE_FOR: Duration = Duration::from_secs(60);

#[derive(Clone)]
pub(crate) struct HttpClient {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

pub(crate) struct HttpAnswer {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
}

impl HttpClient {
    /// `ca`: PEM file of the authorities trusted instead of those of the system.
    pub(crate) fn new(url: &str, ca: Option<&Path>) -> Result<Self, String> {
        // A plain URL needs no authorities, and a system without them is fine with it.
        let config = match url.starts_with("https:") {
            true => tls::client_config(ca)?,
            false => outbound::tls::trusting_nobody().map_err(tls::told)?,
        };
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        let connector = hyper_rustls::HttpsConnectorBuilder::new()
            .with_tls_config(Arc::unwrap_or_clone(config))
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_FOR)
            .pool_max_idle_per_host(IDLE_CONNECTIONS)
            .build(connector);
        Ok(Self { client })
    }

    /// Asks; redirections are not followed. `json` is the body, if there is one.
    pub(crate) async fn ask(
        &self,
        method: Method,
        url: &str,
        headers: &HeaderMap,
        json: Option<Vec<u8>>,
    ) -> Result<HttpAnswer, Failure> {
        let mut request = Request::builder().method(method).uri(url);
        if let Some(all) = request.headers_mut() {
            all.extend(headers.clone());
            if json.is_some() && !all.contains_key(CONTENT_TYPE) {
                let kind = hyper::header::HeaderValue::from_static("application/json");
                all.insert(CONTENT_TYPE, kind);
            }
        }
        let body = Full::new(Bytes::from(json.unwrap_or_default()));
        // Neither the URL nor the error's text is told: there may be a password in the URL.
        let request = request
            .body(body)
            .map_err(|_| Failure::new("the request cannot be made: is the URL one?"))?;
        let answer = self.client.request(request).await;
        let answer = answer.map_err(|error| {
            let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
            Failure(format!("{error}{}", cause.unwrap_or_default()))
        })?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_ANSWER_BYTES).collect();
        let body = body
            .await
            .map_err(|error| Failure(format!("the answer broke off: {error}")))?;
        Ok(HttpAnswer {
            status,
            body: body.to_bytes(),
        })
    }
}
