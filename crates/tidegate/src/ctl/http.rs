//! A small HTTP client: one connection per request, JSON bodies, and the node's error texts.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{HeaderMap, Method, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use outbound::url_encoding::url_encode;
use rustls::pki_types::ServerName;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::error::CtlError;
use super::target::{ApiCredentials, NodeTarget};
use crate::client;

/// Time-out for connecting, and for the start of a response.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of a response that is read as a whole.
const MAX_RESPONSE_BYTES: usize = 1 << 30;

pub(super) struct ApiClient {
    target: NodeTarget,
    authorization: Option<String>,
}

/// An object with its version.
pub(super) struct VersionedObject {
    pub(super) value: Value,
    pub(super) etag: Option<String>,
}

impl ApiClient {
    pub(super) fn new(target: NodeTarget) -> Self {
        let authorization = match &target.proof {
            ApiCredentials::Token(token) => Some(format!("Bearer {token}")),
            ApiCredentials::ApiKey(pair) => Some(format!("Basic {}", STANDARD.encode(pair))),
            ApiCredentials::Nothing | ApiCredentials::Login { .. } => None,
        };
        Self {
            target,
            authorization,
        }
    }

    /// Obtains a token if the credentials are a name and a password.
    pub(super) async fn log_in(&mut self) -> Result<(), CtlError> {
        if let ApiCredentials::Login { username, password } = &self.target.proof {
            let body = json!({"username": username, "password": password});
            let login = self.post("/api/v1/login", &body).await?;
            let token = login["token"].as_str().unwrap_or_default();
            self.authorization = Some(format!("Bearer {token}"));
        }
        Ok(())
    }

    /// The password of the operator that logged in.
    pub(super) fn login_password(&self) -> Option<&str> {
        match &self.target.proof {
            ApiCredentials::Login { password, .. } => Some(password),
            _ => None,
        }
    }

    pub(super) async fn get(&self, path: &str) -> Result<Value, CtlError> {
        Ok(self.get_versioned(path).await?.value)
    }

    pub(super) async fn get_versioned(&self, path: &str) -> Result<VersionedObject, CtlError> {
        let response = self.send(Method::GET, path, None, &[]).await?;
        let etag = response.headers().get(header::ETAG);
        let etag = etag.and_then(|etag| etag.to_str().ok()).map(str::to_owned);
        Ok(VersionedObject {
            value: self.read_json(response).await?,
            etag,
        })
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> Result<Value, CtlError> {
        let body = ("application/json", Bytes::from(body.to_string()));
        let response = self.send(Method::POST, path, Some(body), &[]).await?;
        self.read_json(response).await
    }

    /// Sends a POST and reads an answer of a known type. JSON that the type keeps as text keeps its order of fields.
    pub(super) async fn post_typed<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &Value,
    ) -> Result<T, CtlError> {
        let body = ("application/json", Bytes::from(body.to_string()));
        let response = self.send(Method::POST, path, Some(body), &[]).await?;
        let body = self.read_body(response.into_body()).await?;
        serde_json::from_slice(&body)
            .map_err(|error| self.protocol_error(format!("the response has another form: {error}")))
    }

    /// Sends a POST without a body.
    pub(super) async fn post_empty(&self, path: &str) -> Result<Value, CtlError> {
        let response = self.send(Method::POST, path, None, &[]).await?;
        self.read_json(response).await
    }

    pub(super) async fn post_file(
        &self,
        path: &str,
        media_type: &'static str,
        file: Vec<u8>,
    ) -> Result<Value, CtlError> {
        let body = (media_type, Bytes::from(file));
        let response = self.send(Method::POST, path, Some(body), &[]).await?;
        self.read_json(response).await
    }

    /// Reads a piece of an export, and the cursor of the next one.
    pub(super) async fn get_export_page(
        &self,
        path: &str,
        accept: &str,
    ) -> Result<(Bytes, Option<u64>), CtlError> {
        let fields = [(header::ACCEPT, accept)];
        let response = self.send(Method::GET, path, None, &fields).await?;
        let next = response.headers().get("tidegate-next");
        let next = next.and_then(|next| next.to_str().ok()?.parse().ok());
        Ok((self.read_body(response.into_body()).await?, next))
    }

    /// Sends a PUT; with `etag` it succeeds only if the object still has that version.
    pub(super) async fn put(
        &self,
        path: &str,
        body: &Value,
        etag: Option<&str>,
    ) -> Result<Value, CtlError> {
        let fields: Vec<_> = etag
            .map(|etag| (header::IF_MATCH, etag))
            .into_iter()
            .collect();
        let body = ("application/json", Bytes::from(body.to_string()));
        let response = self.send(Method::PUT, path, Some(body), &fields).await?;
        self.read_json(response).await
    }

    pub(super) async fn delete(&self, path: &str) -> Result<Value, CtlError> {
        let response = self.send(Method::DELETE, path, None, &[]).await?;
        self.read_json(response).await
    }

    /// Reads up to `limit` rows of a list (0: all), and whether there are more. Names nodes of a cluster whose rows are
    /// missing on standard error.
    pub(super) async fn rows(
        &self,
        path: &str,
        limit: usize,
    ) -> Result<(Vec<Value>, bool), CtlError> {
        let mut rows = Vec::new();
        let mut after = String::new();
        let mut has_named_nodes = false;
        loop {
            let separator = if path.contains('?') { '&' } else { '?' };
            let page_size = match limit {
                0 => 1000,
                limit => (limit - rows.len()).min(1000),
            };
            let paging = format!("{separator}limit={page_size}{after}");
            let mut page = self.get(&format!("{path}{paging}")).await?;
            if let Value::Array(more) = page["data"].take() {
                rows.extend(more);
            }
            if !has_named_nodes {
                has_named_nodes = name_missing_nodes(&page);
            }
            let Some(next) = page["next"].as_str() else {
                return Ok((rows, false));
            };
            if limit != 0 && rows.len() >= limit {
                return Ok((rows, true));
            }
            after = format!("&after={next}");
        }
    }

    /// Opens a response whose body is read as a stream.
    pub(super) async fn stream(&self, path: &str) -> Result<Incoming, CtlError> {
        let response = self.send(Method::GET, path, None, &[]).await?;
        Ok(response.into_body())
    }

    /// Sends a request whose response is in its header.
    pub(super) async fn send_for_fields(
        &self,
        method: Method,
        path: &str,
        body: Option<(&'static str, Bytes)>,
        fields: &[(header::HeaderName, &str)],
    ) -> Result<HeaderMap, CtlError> {
        let response = self.send(method, path, body, fields).await?;
        Ok(response.into_parts().0.headers)
    }

    /// The address of a path on the node, for other programs.
    pub(super) fn url_of(&self, path: &str) -> String {
        format!("{}{path}", self.target)
    }

    pub(super) fn unreachable_error(&self, reason: impl ToString) -> CtlError {
        CtlError::Unreachable {
            url: self.target.to_string(),
            reason: reason.to_string(),
        }
    }

    fn protocol_error(&self, reason: impl ToString) -> CtlError {
        CtlError::UnexpectedResponse {
            url: self.target.to_string(),
            reason: reason.to_string(),
        }
    }

    async fn read_json(&self, response: Response<Incoming>) -> Result<Value, CtlError> {
        let body = self.read_body(response.into_body()).await?;
        if body.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&body).map_err(|_| self.protocol_error("the response is not JSON"))
    }

    pub(super) async fn read_body(&self, body: Incoming) -> Result<Bytes, CtlError> {
        let limited = http_body_util::Limited::new(body, MAX_RESPONSE_BYTES);
        let collected = limited.collect().await;
        Ok(collected
            .map_err(|error| self.unreachable_error(error))?
            .to_bytes())
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<(&'static str, Bytes)>,
        fields: &[(header::HeaderName, &str)],
    ) -> Result<Response<Incoming>, CtlError> {
        let NodeTarget {
            host, port, prefix, ..
        } = &self.target;
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{prefix}{path}"))
            .header(header::HOST, format!("{host}:{port}"))
            .header(
                header::USER_AGENT,
                concat!("tidegate-ctl/", env!("CARGO_PKG_VERSION")),
            );
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        for (name, value) in fields {
            request = request.header(name, *value);
        }
        let body = match body {
            Some((media_type, body)) => {
                request = request.header(header::CONTENT_TYPE, media_type);
                Full::new(body)
            }
            None => Full::default(),
        };
        let request = request.body(body).map_err(|error| {
            CtlError::Usage(format!("the request cannot be sent over HTTP: {error}"))
        })?;
        let answer = timeout(TIMEOUT, self.exchange(request)).await;
        let response = answer.map_err(|_| self.unreachable_error("no response within 30 s"))??;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        Err(self.rejected_error(status, response).await)
    }

    async fn rejected_error(&self, status: StatusCode, response: Response<Incoming>) -> CtlError {
        let body = self
            .read_body(response.into_body())
            .await
            .unwrap_or_default();
        let problem: Value = serde_json::from_slice(&body).unwrap_or_default();
        let Some(detail) = problem["detail"].as_str() else {
            return self.protocol_error(format!("status {status}"));
        };
        let hint = match (status, &self.target.proof) {
            (StatusCode::UNAUTHORIZED, ApiCredentials::Nothing) => {
                "\nGive --login NAME, --key-file FILE or --token-file FILE; or --data-dir DIR for a node of this machine."
            }
            _ => "",
        };
        CtlError::Rejected {
            status: status.as_u16(),
            detail: format!("{detail}{hint}"),
        }
    }

    /// Sends a request, and reads the answer as text.
    pub(super) async fn request_text(
        &self,
        method: Method,
        path: &str,
        body: Option<(&'static str, Bytes)>,
        fields: &[(header::HeaderName, &str)],
    ) -> Result<(u16, String), CtlError> {
        let response = self.send(method, path, body, fields).await?;
        let status = response.status().as_u16();
        let body = self.read_body(response.into_body()).await?;
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }

    async fn exchange(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, CtlError> {
        if let Some(socket) = &self.target.socket {
            let stream = UnixStream::connect(socket).await;
            let stream = stream.map_err(|error| self.unreachable_error(error))?;
            return self.send_over(stream, request).await;
        }
        let host = self
            .target
            .host
            .trim_start_matches('[')
            .trim_end_matches(']');
        let stream = TcpStream::connect((host, self.target.port)).await;
        let stream = stream.map_err(|error| match error.kind() {
            std::io::ErrorKind::ConnectionRefused => {
                self.unreachable_error(format!("{error}; does a node run there?"))
            }
            _ => self.unreachable_error(error),
        })?;
        if !self.target.is_tls {
            return self.send_over(stream, request).await;
        }
        let config = client::tls_for_https(self.target.cafile.as_deref())
            .map_err(|error| CtlError::Usage(error.to_string()))?;
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| CtlError::Usage(format!("{host} is not a valid name of a certificate")))?;
        let stream = TlsConnector::from(Arc::clone(&config))
            .connect(name, stream)
            .await;
        let stream = stream.map_err(|error| {
            let reason = client::describe_connection_error(&error);
            self.unreachable_error(format!("{reason}{}", client::https_hint(&error)))
        })?;
        self.send_over(stream, request).await
    }

    async fn send_over<S>(
        &self,
        stream: S,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, CtlError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|error| self.unreachable_error(error))?;
        // Its errors also appear in the request or the body.
        tokio::spawn(connection);
        let response = sender.send_request(request).await;
        response.map_err(|error| {
            if error.is_parse() && !self.target.is_tls {
                self.unreachable_error(format!("{error}; check that the port serves HTTPS"))
            } else if error.is_incomplete_message() {
                self.unreachable_error(format!("{error}; check that the port serves HTTP"))
            } else {
                self.unreachable_error(error)
            }
        })
    }
}

/// A path with the parameters that have a value.
pub(super) fn with_query(path: &str, parameters: &[(&str, Option<String>)]) -> String {
    let given = parameters.iter().filter_map(|(name, value)| {
        let value = value.as_deref()?;
        Some(format!("{name}={}", url_encode(value)))
    });
    let given: Vec<_> = given.collect();
    match given.is_empty() {
        true => path.to_owned(),
        false => format!("{path}?{}", given.join("&")),
    }
}

/// Says which nodes of a cluster did not answer, whose rows are missing in a list. Returns whether there are any.
pub(super) fn name_missing_nodes(page: &Value) -> bool {
    let missing = page["missing_nodes"].as_array().into_iter().flatten();
    let missing: Vec<_> = missing.filter_map(Value::as_str).collect();
    if !missing.is_empty() {
        eprintln!(
            "Rows are missing, because nodes of the cluster did not answer: {}.",
            missing.join(", ")
        );
    }
    !missing.is_empty()
}
