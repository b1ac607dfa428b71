//! An HTTP client for authenticators: JSON responses, and errors without the URL, which may contain a
//! password.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Method, StatusCode};
use outbound::http::{HttpClientLimits, HttpError, OutboundHttpClient};

use crate::authenticator::AuthBackendError;
use crate::tls;

const HTTP_LIMITS: HttpClientLimits = HttpClientLimits {
    max_response_bytes: 4 << 20,
    max_idle_connections: 32,
    idle_timeout: Duration::from_secs(60),
    connect_timeout: Duration::from_secs(10),
};

#[derive(Clone)]
pub(crate) struct HttpClient {
    client: OutboundHttpClient,
}

pub(crate) struct AuthHttpResponse {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
}

impl HttpClient {
    /// `ca`: PEM file of certificate authorities to trust instead of those of the system.
    pub(crate) fn new(url: &str, ca: Option<&Path>) -> Result<Self, String> {
        // A plain URL needs no certificate authorities and must work on a system without any.
        let config = match url.starts_with("https:") {
            true => tls::client_config(ca)?,
            false => {
                outbound::tls::client_config_without_roots().map_err(tls::error_with_setting)?
            }
        };
        let client = OutboundHttpClient::new(Arc::unwrap_or_clone(config), &HTTP_LIMITS);
        Ok(Self { client })
    }

    /// Sends a request. Redirects are not followed. `json` is the request body, if any.
    pub(crate) async fn send(
        &self,
        method: Method,
        url: &str,
        headers: &HeaderMap,
        json: Option<Vec<u8>>,
    ) -> Result<AuthHttpResponse, AuthBackendError> {
        let mut headers = headers.clone();
        if json.is_some() && !headers.contains_key(CONTENT_TYPE) {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        let body = Bytes::from(json.unwrap_or_default());
        let answer = self.client.request(method, url, headers, body).await;
        let answer = answer.map_err(|error| match error {
            HttpError::InvalidRequest(_) => {
                AuthBackendError::new("the request cannot be built: invalid URL?")
            }
            other => AuthBackendError(other.to_string()),
        })?;
        let status = StatusCode::from_u16(answer.status);
        Ok(AuthHttpResponse {
            status: status
                .map_err(|_| AuthBackendError::new("the response has an invalid HTTP status"))?,
            body: answer.body,
        })
    }
}
