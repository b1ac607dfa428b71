//! A source, ready to be asked.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use outbound::http::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue,
};
use outbound::http::{Bounds, Client, HttpMethod, Uri};
use outbound::tls::{self, Identity, Part};
use serde_json::Value;

use super::definition::{Definition, Hidden, InvalidSource, Server, Tls};
use super::ipmi::Ipmi;
use super::polling::Polling;
use super::prometheus::Prometheus;
use super::{Failure, MAX_VALUES, Readings};

const MAX_ANSWER_BYTES: usize = 16 << 20;
const IDLE_FOR: Duration = Duration::from_secs(120);

pub(super) struct Source {
    pub(super) definition: Definition,
    asked: Asked,
}

enum Asked {
    Prometheus(Prometheus),
    Http(Polling),
    Ipmi(Ipmi),
}

impl Source {
    /// Reads a source, and the files it names.
    pub(super) fn read(value: &Value) -> Result<Self, InvalidSource> {
        let definition = Definition::read(value)?;
        let asked = match (&definition.prometheus, &definition.http, &definition.ipmi) {
            (Some(prometheus), _, _) => Asked::Prometheus(Prometheus::new(prometheus)?),
            (None, Some(http), _) => Asked::Http(Polling::new(http)?),
            (None, None, Some(ipmi)) => Asked::Ipmi(Ipmi::new(ipmi)?),
            (None, None, None) => {
                let detail = "expected one of prometheus, http and ipmi";
                return Err(InvalidSource::new("", detail));
            }
        };
        Ok(Self { definition, asked })
    }

    pub(super) fn interval(&self) -> Duration {
        Duration::from_secs(u64::from(self.definition.interval_s))
    }

    /// Asks once. The ids of devices are those of the node.
    pub(super) async fn ask(&self) -> Result<Readings, Failure> {
        let timeout = Duration::from_millis(u64::from(self.definition.timeout_ms));
        let asking = async {
            match &self.asked {
                Asked::Prometheus(prometheus) => prometheus.ask().await,
                Asked::Http(polling) => polling.ask().await,
                Asked::Ipmi(ipmi) => ipmi.ask().await,
            }
        };
        let asked = tokio::time::timeout(timeout, asking).await;
        let mut readings = asked
            .map_err(|_| Failure::new(format!("no answer within {} ms", timeout.as_millis())))??;
        let values = readings.values();
        if values > MAX_VALUES {
            return Err(Failure::new(format!(
                "it told {values} values; at most {MAX_VALUES} are taken at once, ask for fewer"
            )));
        }
        for row in &mut readings.rows {
            if let Some(id) = self.definition.devices.get(&row.device) {
                row.device.clone_from(id);
            }
        }
        Ok(readings)
    }
}

/// An HTTP server with its credentials.
pub(super) struct Web {
    client: Client,
    url: String,
    headers: HeaderMap,
}

impl Web {
    /// `place`: the path of the settings, for errors.
    pub(super) fn new(place: &str, server: &Server) -> Result<Self, InvalidSource> {
        let wrong =
            |field: &str, detail: String| InvalidSource::new(format!("{place}.{field}"), detail);
        let uri = server.url.parse::<Uri>().ok();
        let is_url = uri.is_some_and(|uri| {
            matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some()
        });
        if !is_url || server.url.contains('@') {
            // Not shown: there may be a password in it.
            let detail = "expected http://HOST:PORT/PATH or https://HOST/PATH, without a user";
            return Err(wrong("url", detail.to_owned()));
        }
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        for (name, value) in &server.headers {
            let field = format!("headers.{name}");
            let name = HeaderName::try_from(name.as_str())
                .map_err(|_| wrong(&field, "expected the name of a header".to_owned()))?;
            headers.insert(
                name,
                hidden(value.reveal()).map_err(|why| wrong(&field, why))?,
            );
        }
        let password = secret(
            place,
            "password",
            server.password.as_ref(),
            server.password_file.as_ref(),
        )?;
        let token = secret(
            place,
            "token",
            server.token.as_ref(),
            server.token_file.as_ref(),
        )?;
        let authorization = match (&server.username, password, token) {
            (None, None, None) => None,
            (None, None, Some(token)) => Some(("token", format!("Bearer {token}"))),
            (username, password, None) => {
                let (username, password) = (username.as_deref(), password.unwrap_or_default());
                let both = format!("{}:{password}", username.unwrap_or_default());
                Some(("password", format!("Basic {}", STANDARD.encode(both))))
            }
            (_, _, Some(_)) => {
                let detail = "give either a token or a user name and a password";
                return Err(wrong("token", detail.to_owned()));
            }
        };
        if let Some((field, value)) = authorization {
            headers.insert(
                AUTHORIZATION,
                hidden(&value).map_err(|why| wrong(field, why))?,
            );
        }
        let is_secure = server.url.starts_with("https:");
        let config = client_config(&format!("{place}.tls"), server.tls.as_ref(), is_secure)?;
        let bounds = Bounds {
            max_answer_bytes: MAX_ANSWER_BYTES,
            idle_connections: 4,
            idle_for: IDLE_FOR,
            ..Bounds::default()
        };
        Ok(Self {
            client: Client::new(config, &bounds),
            url: server.url.clone(),
            headers,
        })
    }

    /// Without a slash at the end.
    pub(super) fn base(&self) -> &str {
        self.url.trim_end_matches('/')
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// The answer, of whatever status, and the JSON in it if there is some.
    pub(super) async fn ask(
        &self,
        method: HttpMethod,
        url: &str,
        content_type: &'static str,
        body: Vec<u8>,
    ) -> Result<(outbound::http::Answer, Option<Value>), Failure> {
        let mut headers = self.headers.clone();
        if !body.is_empty() && !headers.contains_key(CONTENT_TYPE) {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        }
        let answer = self.client.ask(method, url, headers, body.into()).await;
        let answer = answer.map_err(|error| Failure::new(error.to_string()))?;
        let json = serde_json::from_slice(&answer.body).ok();
        Ok((answer, json))
    }
}

fn hidden(value: &str) -> Result<HeaderValue, String> {
    let value = HeaderValue::from_str(value);
    let mut value = value.map_err(|_| "it has signs that cannot be sent".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

/// A secret that is given, or in a file.
pub(super) fn secret(
    place: &str,
    field: &str,
    given: Option<&Hidden>,
    file: Option<&PathBuf>,
) -> Result<Option<String>, InvalidSource> {
    let of_file = |detail: String| InvalidSource::new(format!("{place}.{field}_file"), detail);
    match (given, file) {
        (Some(_), Some(_)) => Err(of_file(format!("give either {field} or {field}_file"))),
        (Some(given), None) => Ok(Some(given.reveal().to_owned())),
        (None, None) => Ok(None),
        (None, Some(path)) => {
            let text = std::fs::read_to_string(path);
            let text = text
                .map_err(|error| of_file(format!("{} cannot be read: {error}", path.display())))?;
            Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned()))
        }
    }
}

fn client_config(
    place: &str,
    tls: Option<&Tls>,
    is_secure: bool,
) -> Result<rustls::ClientConfig, InvalidSource> {
    let usual = Tls::default();
    let wanted = match (tls, is_secure) {
        (Some(tls), _) => Some(tls),
        (None, true) => Some(&usual),
        (None, false) => None,
    };
    let made = match wanted {
        None => tls::trusting_nobody(),
        Some(tls) => {
            let identity = match (&tls.certificate, &tls.key) {
                (None, None) => None,
                (Some(certificate), Some(key)) => Some(Identity { certificate, key }),
                (Some(_), None) => {
                    return Err(InvalidSource::new(format!("{place}.key"), "missing"));
                }
                (None, Some(_)) => {
                    return Err(InvalidSource::new(
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
            Part::Whole => place.to_owned(),
            Part::Authorities => format!("{place}.ca"),
            Part::Certificate => format!("{place}.certificate"),
            Part::Key => format!("{place}.key"),
        };
        InvalidSource::new(field, error.detail)
    })?;
    Ok(Arc::unwrap_or_clone(config))
}
