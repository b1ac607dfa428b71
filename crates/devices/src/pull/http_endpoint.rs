//! An HTTP server that is polled: its client, credentials and headers.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use outbound::http::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue,
};
use outbound::http::{HttpClientLimits, HttpMethod, OutboundHttpClient, Uri};
use outbound::tls::{self, ClientIdentity, TlsConfigPart};
use secret::Secret;
use serde_json::Value;

use super::definition::{PullHttpServer, PullSourceError, PullTlsSettings};
use super::readings::PullError;

const MAX_ANSWER_BYTES: usize = 16 << 20;
const IDLE_FOR: Duration = Duration::from_secs(120);

/// An HTTP server with its credentials.
pub(super) struct HttpEndpoint {
    client: OutboundHttpClient,
    url: String,
    headers: HeaderMap,
}

impl HttpEndpoint {
    /// `place`: the path of the settings for errors.
    pub(super) fn new(place: &str, server: &PullHttpServer) -> Result<Self, PullSourceError> {
        let wrong =
            |field: &str, detail: String| PullSourceError::new(format!("{place}.{field}"), detail);
        let uri = server.url.parse::<Uri>().ok();
        let is_url = uri.is_some_and(|uri| {
            matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some()
        });
        if !is_url || server.url.contains('@') {
            // Not shown, because it may contain a password.
            let detail = "expected http://HOST:PORT/PATH or https://HOST/PATH, without a user";
            return Err(wrong("url", detail.to_owned()));
        }
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        for (name, value) in &server.headers {
            let field = format!("headers.{name}");
            let name = HeaderName::try_from(name.as_str())
                .map_err(|_| wrong(&field, "expected a header name".to_owned()))?;
            headers.insert(
                name,
                secret_header(value.reveal()).map_err(|why| wrong(&field, why))?,
            );
        }
        let secret = |field, given: &Option<Secret>, file: &Option<PathBuf>| {
            let read = Secret::from_setting(field, given.as_ref(), file.as_ref());
            read.map_err(|error| PullSourceError::of_secret(place, error))
        };
        let password = secret("password", &server.password, &server.password_file)?;
        let token = secret("token", &server.token, &server.token_file)?;
        let authorization = match (&server.username, password, token) {
            (None, None, None) => None,
            (None, None, Some(token)) => Some(("token", format!("Bearer {}", token.reveal()))),
            (username, password, None) => {
                let (username, password) = (username.as_deref(), password.unwrap_or_default());
                let both = format!("{}:{}", username.unwrap_or_default(), password.reveal());
                Some(("password", format!("Basic {}", STANDARD.encode(both))))
            }
            (_, _, Some(_)) => {
                let detail = "set either a token or a user name and a password";
                return Err(wrong("token", detail.to_owned()));
            }
        };
        if let Some((field, value)) = authorization {
            headers.insert(
                AUTHORIZATION,
                secret_header(&value).map_err(|why| wrong(field, why))?,
            );
        }
        let is_secure = server.url.starts_with("https:");
        let config = client_config(&format!("{place}.tls"), server.tls.as_ref(), is_secure)?;
        let bounds = HttpClientLimits {
            max_response_bytes: MAX_ANSWER_BYTES,
            max_idle_connections: 4,
            idle_timeout: IDLE_FOR,
            ..HttpClientLimits::default()
        };
        Ok(Self {
            client: OutboundHttpClient::new(config, &bounds),
            url: server.url.clone(),
            headers,
        })
    }

    /// The URL without a slash at the end.
    pub(super) fn base(&self) -> &str {
        self.url.trim_end_matches('/')
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Returns the response of any status, and its JSON body if there is one.
    pub(super) async fn request(
        &self,
        method: HttpMethod,
        url: &str,
        content_type: &'static str,
        body: Vec<u8>,
    ) -> Result<(outbound::http::HttpResponse, Option<Value>), PullError> {
        let mut headers = self.headers.clone();
        if !body.is_empty() && !headers.contains_key(CONTENT_TYPE) {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        }
        let answer = self.client.request(method, url, headers, body).await;
        let answer = answer.map_err(|error| PullError::new(error.to_string()))?;
        let json = serde_json::from_slice(&answer.body).ok();
        Ok((answer, json))
    }
}

fn secret_header(value: &str) -> Result<HeaderValue, String> {
    let value = HeaderValue::from_str(value);
    let mut value =
        value.map_err(|_| "expected characters that are allowed in an HTTP header".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

fn client_config(
    place: &str,
    tls: Option<&PullTlsSettings>,
    is_secure: bool,
) -> Result<rustls::ClientConfig, PullSourceError> {
    let usual = PullTlsSettings::default();
    let wanted = match (tls, is_secure) {
        (Some(tls), _) => Some(tls),
        (None, true) => Some(&usual),
        (None, false) => None,
    };
    let made = match wanted {
        None => tls::client_config_without_roots(),
        Some(tls) => {
            let identity = match (&tls.certificate, &tls.key) {
                (None, None) => None,
                (Some(certificate), Some(key)) => Some(ClientIdentity { certificate, key }),
                (Some(_), None) => {
                    return Err(PullSourceError::new(format!("{place}.key"), "missing"));
                }
                (None, Some(_)) => {
                    return Err(PullSourceError::new(
                        format!("{place}.certificate"),
                        "missing",
                    ));
                }
            };
            tls::client_config(tls.ca.as_deref(), identity)
        }
    };
    let config = made.map_err(|error| {
        let field = match error.part {
            TlsConfigPart::General => place.to_owned(),
            TlsConfigPart::Authorities => format!("{place}.ca"),
            TlsConfigPart::Certificate => format!("{place}.certificate"),
            TlsConfigPart::Key => format!("{place}.key"),
        };
        PullSourceError::new(field, error.detail)
    })?;
    Ok(Arc::unwrap_or_clone(config))
}
