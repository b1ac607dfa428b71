//! An HTTP connection of one device: kept open between requests, and opened again when the server has closed it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Method, Request, header};
use hyper_util::rt::TokioIo;
use tokio::task::AbortHandle;

use super::server_target::{ServerTarget, describe};

/// Devices have little memory: a longer response ends the connection.
const MAX_RESPONSE_BYTES: usize = 128 * 1024;

/// A complete response.
#[derive(Debug)]
pub(super) struct HttpResponse {
    pub(super) status: u16,
    pub(super) body: Bytes,
    /// Seconds after which the server asks to repeat the request.
    pub(super) retry_after_s: Option<u64>,
}

impl HttpResponse {
    pub(super) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

#[derive(Debug)]
pub(super) struct HttpConnection {
    target: Arc<ServerTarget>,
    /// Where the first connection comes from.
    source: Option<SocketAddr>,
    open: Option<OpenConnection>,
}

#[derive(Debug)]
struct OpenConnection {
    sender: SendRequest<Full<Bytes>>,
    task: AbortHandle,
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl HttpConnection {
    pub(super) fn new(target: Arc<ServerTarget>, source: Option<SocketAddr>) -> Self {
        Self {
            target,
            source,
            open: None,
        }
    }

    /// Sends a request. If the server has closed the connection since the last one, another is opened.
    ///
    /// # Errors
    /// A description of why there is no complete response.
    pub(super) async fn request(
        &mut self,
        method: &Method,
        path: &str,
        body: &Bytes,
        timeout: Duration,
    ) -> Result<HttpResponse, String> {
        let exchange = async {
            if self.open.is_some()
                && let Ok(response) = self.exchange(method, path, body).await
            {
                return Ok(response);
            }
            self.open = None;
            self.exchange(method, path, body).await
        };
        match tokio::time::timeout(timeout, exchange).await {
            Ok(Ok(response)) => Ok(response),
            failed => {
                self.open = None;
                failed.unwrap_or_else(|_| Err("timed out".to_owned()))
            }
        }
    }

    async fn exchange(
        &mut self,
        method: &Method,
        path: &str,
        body: &Bytes,
    ) -> Result<HttpResponse, String> {
        let open = match &mut self.open {
            Some(open) => open,
            None => {
                let stream = self.target.connect(self.source.take()).await;
                let stream = stream.map_err(|error| describe(&error))?;
                let (sender, connection) = handshake(TokioIo::new(stream))
                    .await
                    .map_err(|error| error.to_string())?;
                // Its errors are also those of the request.
                let task = tokio::spawn(async move { drop(connection.await) }).abort_handle();
                self.open.insert(OpenConnection { sender, task })
            }
        };
        let ready = open.sender.ready().await;
        ready.map_err(|_| "closed by the server".to_owned())?;
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.target.path))
            .header(header::HOST, &self.target.authority);
        if !body.is_empty() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let request = request.body(Full::new(body.clone()));
        let request = request.map_err(|error| format!("invalid request: {error}"))?;
        let response = open.sender.send_request(request).await;
        let response = response.map_err(|error| error.to_string())?;
        let status = response.status().as_u16();
        let retry_after_s = response
            .headers()
            .get(header::RETRY_AFTER)
            .and_then(|value| value.to_str().ok()?.parse().ok());
        let body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES).collect();
        let body = body
            .await
            .map_err(|error| format!("incomplete response: {error}"))?;
        Ok(HttpResponse {
            status,
            body: body.to_bytes(),
            retry_after_s,
        })
    }
}
