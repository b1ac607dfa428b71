//! HTTP client for a list of equivalent servers: bounded responses, persistent connections, rotation after errors.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::Method;
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use outbound::http::{HttpClientLimits, OutboundHttpClient};
use outbound::request_body::RequestBody;
pub(crate) use outbound::url_encoding::url_encode;
use secret::Secret;

use crate::connector::ConnectorError;
use crate::settings::SettingsError;
use crate::tls::TlsSettings;

const MAX_SERVERS: usize = 64;

/// Equivalent servers reached by HTTP.
pub(crate) struct HttpServers {
    client: OutboundHttpClient,
    /// Base URLs without a final slash.
    bases: Vec<String>,
    /// Index of the server for the next request.
    next_server: AtomicUsize,
    /// Sent with each request.
    headers: HeaderMap,
}

/// A response, with its failures in the terms of sinks.
pub(crate) struct ServerResponse(outbound::http::HttpResponse);

impl std::ops::Deref for ServerResponse {
    type Target = outbound::http::HttpResponse;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl HttpServers {
    /// `field` is the name of the setting with the addresses, for errors. All addresses must use the same scheme.
    pub(crate) fn new(
        field: &str,
        urls: &[String],
        tls: Option<&TlsSettings>,
    ) -> Result<Self, SettingsError> {
        if urls.is_empty() || urls.len() > MAX_SERVERS {
            let detail = format!("expected 1 to {MAX_SERVERS} addresses");
            return Err(SettingsError::new(field, detail));
        }
        let bases = urls.iter().map(|url| {
            let rest = url
                .strip_prefix("http://")
                .or_else(|| url.strip_prefix("https://"));
            let host = rest.and_then(|rest| rest.split('/').next());
            let is_url = host.is_some_and(|host| !host.is_empty() && !host.contains('@'))
                && !url.contains(['?', '#', ' ', '$'])
                && url.parse::<hyper::Uri>().is_ok();
            match is_url {
                true => Ok(url.trim_end_matches('/').to_owned()),
                false => {
                    // Not shown, because it may contain a password.
                    let detail = "expected http://HOST:PORT or https://HOST:PORT, without a user";
                    Err(SettingsError::new(field, detail))
                }
            }
        });
        let bases = bases.collect::<Result<Vec<_>, _>>()?;
        let is_secure = bases.iter().any(|base| base.starts_with("https:"));
        let config = TlsSettings::http_client_config(tls, is_secure, field)?;
        let client = OutboundHttpClient::new(config, &HttpClientLimits::default());
        Ok(Self {
            client,
            bases,
            next_server: AtomicUsize::new(0),
            headers: HeaderMap::new(),
        })
    }

    /// Sends a header with each request; `field` is the setting its value is from.
    pub(crate) fn with_header(
        mut self,
        name: HeaderName,
        value: &str,
        field: &str,
    ) -> Result<Self, SettingsError> {
        let mut value = HeaderValue::from_str(value)
            .map_err(|_| SettingsError::new(field, "it contains characters that cannot be sent"))?;
        value.set_sensitive(true);
        self.headers.insert(name, value);
        Ok(self)
    }

    /// Sends a user name and a password with each request.
    pub(crate) fn with_basic_auth(
        self,
        user: &str,
        password: &Secret,
    ) -> Result<Self, SettingsError> {
        let both = STANDARD.encode(format!("{user}:{}", password.reveal()));
        self.with_header(AUTHORIZATION, &format!("Basic {both}"), "username")
    }

    /// The address for the next request.
    pub(crate) fn base(&self) -> &str {
        &self.bases[self.next_server.load(Relaxed) % self.bases.len()]
    }

    /// Sends a request to one server without following redirects. After an error, the next request uses the next server.
    pub(crate) async fn request(
        &self,
        method: Method,
        path: &str,
        headers: &[(HeaderName, HeaderValue)],
        body: impl Into<RequestBody>,
    ) -> Result<ServerResponse, ConnectorError> {
        let base = self.base();
        let answer = self
            .request_at(base, method, path, headers, body.into())
            .await;
        if answer.as_ref().map_or(true, |answer| answer.status >= 500) && self.bases.len() > 1 {
            self.next_server.fetch_add(1, Relaxed);
        }
        answer.map_err(|why| ConnectorError::transient(format!("{base}: {why}")))
    }

    async fn request_at(
        &self,
        base: &str,
        method: Method,
        path: &str,
        headers: &[(HeaderName, HeaderValue)],
        body: RequestBody,
    ) -> Result<ServerResponse, String> {
        let mut all = self.headers.clone();
        all.extend(headers.iter().cloned());
        let url = format!("{base}{path}");
        let answer = self.client.request(method, &url, all, body).await;
        answer
            .map(ServerResponse)
            .map_err(|error| error.to_string())
    }
}

impl ServerResponse {
    /// The response as a transient error.
    pub(crate) fn transient_error(&self) -> ConnectorError {
        let failure = ConnectorError::transient(self.describe());
        match self.retry_after() {
            Some(pause) => failure.with_retry_after(pause),
            None => failure,
        }
    }

    /// The response as an error caused by the content of rows.
    pub(crate) fn bad_rows_error(&self) -> ConnectorError {
        ConnectorError::bad_rows(self.describe())
    }

    fn retry_after(&self) -> Option<Duration> {
        let text = self.headers.get(RETRY_AFTER)?.to_str().ok()?;
        // At most a day; the date format is not supported.
        let seconds = text.trim().parse::<u64>().ok()?.min(86_400);
        Some(Duration::from_secs(seconds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_checked_without_being_shown() {
        let error = |url: &str| {
            HttpServers::new("urls", &[url.to_owned()], None)
                .err()
                .unwrap()
        };
        for url in [
            "",
            "ftp://h",
            "http://",
            "http://u:secret@h",
            "http://h?x",
            "h:9200",
        ] {
            let error = error(url);
            assert_eq!(error.field, "urls", "{url}");
            assert!(!error.detail.contains("secret"));
        }
        assert!(HttpServers::new("urls", &["http://h:1/".into()], None).is_ok());
        assert!(HttpServers::new("urls", &[], None).is_err());
    }
}
