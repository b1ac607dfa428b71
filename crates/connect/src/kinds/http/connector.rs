//! The HTTP server of a connector, and requests to it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body_util::{BodyExt as _, Limited};
use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use outbound::http::{HttpClientLimits, HttpsClient, https_client};
use outbound::request_body::RequestBody;
use schemars::JsonSchema;
use secret::Secret;
use serde::Deserialize;

use super::base_url::BaseUrl;
use crate::connector::ConnectorError;
use crate::settings::SettingsError;
use crate::tls::TlsSettings;

const MAX_ANSWER_BYTES: usize = 64 << 10;
const IDLE_CONNECTIONS: usize = 64;
const IDLE_FOR: Duration = Duration::from_secs(60);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct HttpSettings {
    /// `http://HOST:PORT/PATH` or `https://...`. Not needed for sources only.
    url: Option<String>,
    /// Headers of every request; they may contain secrets and are not shown.
    #[serde(default)]
    headers: BTreeMap<String, Secret>,
    /// User name for basic authentication.
    username: Option<String>,
    password: Option<Secret>,
    /// File that contains the password.
    password_file: Option<PathBuf>,
    tls: Option<TlsSettings>,
    #[serde(default = "default_connect_timeout_ms")]
    #[schemars(range(min = 10, max = 600_000))]
    connect_timeout_ms: u64,
}

fn default_connect_timeout_ms() -> u64 {
    5000
}

pub(super) struct HttpConnector {
    client: HttpsClient,
    pub(super) target: Option<BaseUrl>,
    pub(super) headers: HeaderMap,
}

impl HttpConnector {
    pub(super) fn new(settings: HttpSettings) -> Result<Self, SettingsError> {
        let target = settings.url.as_deref().map(BaseUrl::parse).transpose()?;
        let mut headers = HeaderMap::new();
        for (name, secret) in &settings.headers {
            let (name, mut value) = parse_header("headers", name, secret.reveal())?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        let password = Secret::from_setting(
            "password",
            settings.password.as_ref(),
            settings.password_file.as_ref(),
        )?;
        if settings.username.is_some() || password.is_some() {
            let username = settings.username.unwrap_or_default();
            let password = password.as_ref().map_or("", Secret::reveal);
            let token = STANDARD.encode(format!("{username}:{password}"));
            let mut value = HeaderValue::try_from(format!("Basic {token}"))
                .map_err(|error| SettingsError::new("password", error.to_string()))?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        let is_secure = target.as_ref().is_some_and(BaseUrl::is_secure);
        let config = TlsSettings::http_client_config(settings.tls.as_ref(), is_secure, "tls")?;
        let bounds = HttpClientLimits {
            max_response_bytes: MAX_ANSWER_BYTES,
            max_idle_connections: IDLE_CONNECTIONS,
            idle_timeout: IDLE_FOR,
            connect_timeout: Duration::from_millis(settings.connect_timeout_ms),
        };
        let client = https_client(config, &bounds);
        Ok(Self {
            client,
            target,
            headers,
        })
    }

    pub(super) async fn request(
        &self,
        request: hyper::http::request::Builder,
        body: impl Into<RequestBody>,
    ) -> Result<(StatusCode, ErrorResponse), ConnectorError> {
        let request = request.body(body.into()).map_err(|error| {
            ConnectorError::bad_rows(format!("the request cannot be made: {error}"))
        })?;
        let answer = self.client.request(request).await;
        let answer = answer.map_err(|error| {
            let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
            ConnectorError::transient(format!("{error}{}", cause.unwrap_or_default()))
        })?;
        let status = answer.status();
        let retry_after = answer.headers().get(RETRY_AFTER);
        let retry_after = retry_after.and_then(|value| value.to_str().ok()?.parse().ok());
        // Read to its end for reuse of the connection; a larger body closes the connection.
        let text = Limited::new(answer.into_body(), MAX_ANSWER_BYTES).collect();
        let text = text.await.map(|body| body.to_bytes()).unwrap_or_default();
        Ok((
            status,
            ErrorResponse {
                retry_after: retry_after.map(Duration::from_secs),
                text,
            },
        ))
    }
}

pub(super) struct ErrorResponse {
    pub(super) retry_after: Option<Duration>,
    pub(super) text: Bytes,
}

pub(super) fn parse_header(
    field: &str,
    name: &str,
    value: &str,
) -> Result<(HeaderName, HeaderValue), SettingsError> {
    let field = format!("{field}.{name}");
    let name = HeaderName::try_from(name)
        .map_err(|_| SettingsError::new(&field, "expected the name of a header"))?;
    let value = HeaderValue::try_from(value)
        .map_err(|_| SettingsError::new(&field, "a header cannot have this value"))?;
    Ok((name, value))
}
