//! The JSON definition of a pull source.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use secret::{Secret, SecretError};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Maximum number of pull sources of a node.
pub const MAX_SOURCES: usize = 1000;
pub(super) const MAX_QUERIES: usize = 256;
pub(super) const MAX_HOSTS: usize = 1000;
const MAX_NAMES: usize = 10_000;
const MAX_TEXT_CHARS: usize = 16_384;

/// A system that is polled on a schedule for values of devices. Exactly one of `prometheus`, `http` and `ipmi` must
/// be set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PullSourceDefinition {
    #[schemars(length(max = 1000))]
    pub description: String,
    /// Whether the source is polled.
    pub enabled: bool,
    /// Interval between two polls in seconds.
    #[schemars(range(min = 1, max = 86400))]
    pub interval_s: u32,
    /// Maximum duration of one poll in milliseconds.
    #[schemars(range(min = 100, max = 600_000))]
    pub timeout_ms: u32,
    /// Device ids by the names that the system uses; a name without an entry is used as the id.
    #[schemars(extend("maxProperties" = 10_000))]
    pub devices: BTreeMap<String, String>,
    pub prometheus: Option<PrometheusSettings>,
    pub http: Option<HttpPollSettings>,
    pub ipmi: Option<IpmiSettings>,
}

impl Default for PullSourceDefinition {
    fn default() -> Self {
        Self {
            description: String::new(),
            enabled: true,
            interval_s: 60,
            timeout_ms: 10_000,
            devices: BTreeMap::new(),
            prometheus: None,
            http: None,
            ipmi: None,
        }
    }
}

/// An HTTP server and the credentials for it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PullHttpServer {
    /// URL `http://HOST:PORT/PATH` or `https://...`, without a user.
    #[schemars(length(min = 1, max = 2048))]
    pub url: String,
    /// Headers sent with each request. Their values are shown as `***`.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        serialize_with = "secret::stored::by_name"
    )]
    #[schemars(extend("maxProperties" = 64))]
    pub headers: BTreeMap<String, Secret>,
    /// User name for basic authentication.
    #[serde(default)]
    pub username: Option<String>,
    /// Password. Shown as `***`.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "secret::stored::optional"
    )]
    pub password: Option<Secret>,
    /// Path of a file that contains the password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_file: Option<PathBuf>,
    /// Token, sent as `Authorization: Bearer TOKEN`. Shown as `***`.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "secret::stored::optional"
    )]
    pub token: Option<Secret>,
    /// Path of a file that contains the token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    #[serde(default)]
    pub tls: Option<PullTlsSettings>,
}

/// Trusted authorities and the client certificate.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PullTlsSettings {
    /// Path of a PEM file with the trusted authorities; default: those of the system.
    pub ca: Option<PathBuf>,
    /// Path of a PEM file with the client certificate chain.
    pub certificate: Option<PathBuf>,
    /// Path of a PEM file with the private key.
    pub key: Option<PathBuf>,
}

/// Prometheus or a server with the same API: instant queries, whose series are mapped to devices and keys by labels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PrometheusSettings {
    pub server: PullHttpServer,
    #[schemars(length(min = 1, max = 256))]
    pub queries: Vec<PrometheusQuery>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PrometheusQuery {
    /// PromQL query.
    #[schemars(length(min = 1, max = 16384))]
    pub query: String,
    /// Key of the value; `${LABEL}` stands for a label of the series.
    #[schemars(length(min = 1, max = 256))]
    pub key: String,
    /// Name of the device with labels, such as `${instance}`.
    #[serde(default = "default_device")]
    #[schemars(length(min = 1, max = 256))]
    pub device: String,
}

fn default_device() -> String {
    "${instance}".to_owned()
}

/// An HTTP server that returns JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HttpPollSettings {
    pub server: PullHttpServer,
    #[serde(default)]
    pub method: HttpPollMethod,
    /// Body sent with each request.
    #[serde(default)]
    #[schemars(length(max = 16384))]
    pub body: String,
    /// Path of a list or object in the response, each item of which is a reading; default: the response is one
    /// reading.
    #[serde(default)]
    #[schemars(length(max = 16384))]
    pub items: Option<String>,
    /// Name of the device; `${PATH}` stands for a value in the item, `${#}` for its name or index in the list.
    #[schemars(length(min = 1, max = 256))]
    pub device: String,
    /// Path of the timestamp in the item: milliseconds, seconds or text; default: now.
    #[serde(default)]
    #[schemars(length(max = 16384))]
    pub ts: Option<String>,
    /// Paths in the item by key; default: all members of the item that are numbers, booleans or texts.
    #[serde(default)]
    #[schemars(extend("maxProperties" = 1000))]
    pub values: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum HttpPollMethod {
    #[default]
    Get,
    Post,
}

/// IPMI sensors of servers, read with the program `ipmitool` on the machine of the node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IpmiSettings {
    /// Hosts, each of which is polled separately.
    #[schemars(length(min = 1, max = 1000))]
    pub hosts: Vec<IpmiHost>,
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub username: Option<String>,
    /// Password. Shown as `***`.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "secret::stored::optional"
    )]
    pub password: Option<Secret>,
    /// Path of a file that contains the password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_file: Option<PathBuf>,
    #[serde(default)]
    pub interface: IpmiInterface,
    /// Keys by sensor name; default: all sensors, each with its name in lower case and `_` for other characters.
    #[serde(default)]
    #[schemars(extend("maxProperties" = 1000))]
    pub sensors: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IpmiHost {
    /// Name or address of the management controller.
    #[schemars(length(min = 1, max = 255))]
    pub address: String,
    /// Id of the device.
    #[schemars(length(min = 1, max = 256))]
    pub device: String,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum IpmiInterface {
    /// IPMI 2.0.
    #[default]
    Lanplus,
    /// IPMI 1.5.
    Lan,
}

/// An invalid field of a pull source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {detail}")]
pub struct PullSourceError {
    /// Path of the field, such as `prometheus.queries[0].key`; empty: the source as a whole.
    pub field: String,
    pub detail: String,
}

impl PullSourceError {
    pub(super) fn new(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            detail: detail.into(),
        }
    }
}

impl PullSourceError {
    /// The error of a secret of the object at `place`.
    pub(super) fn of_secret(place: &str, error: SecretError) -> Self {
        Self::new(format!("{place}.{}", error.field), error.detail)
    }
}

impl PullSourceDefinition {
    /// Parses and validates a source, except for the files that it refers to.
    pub(super) fn read(value: &Value) -> Result<Self, PullSourceError> {
        let read: Result<Self, _> = definition::read_definition(value);
        let definition = read.map_err(|error| PullSourceError::new(error.field, error.detail))?;
        definition.check_bounds()?;
        Ok(definition)
    }

    fn check_bounds(&self) -> Result<(), PullSourceError> {
        let wrong = |field: &str, detail: String| Err(PullSourceError::new(field, detail));
        if !(1..=86_400).contains(&self.interval_s) {
            return wrong("interval_s", "expected 1 to 86400".to_owned());
        }
        if !(100..=600_000).contains(&self.timeout_ms) {
            return wrong("timeout_ms", "expected 100 to 600000".to_owned());
        }
        let mut counts = vec![("devices", self.devices.len(), 0, MAX_NAMES)];
        let mut texts = vec![("description", &self.description[..], 0, 1000)];
        let servers = [
            (
                "prometheus.server.headers",
                self.prometheus.as_ref().map(|it| &it.server),
            ),
            (
                "http.server.headers",
                self.http.as_ref().map(|it| &it.server),
            ),
        ];
        for (field, server) in servers {
            counts.push((
                field,
                server.map_or(0, |server| server.headers.len()),
                0,
                64,
            ));
        }
        if let Some(prometheus) = &self.prometheus {
            counts.push((
                "prometheus.queries",
                prometheus.queries.len(),
                1,
                MAX_QUERIES,
            ));
            texts.push(("prometheus.server.url", &prometheus.server.url, 1, 2048));
            for query in &prometheus.queries {
                texts.push(("prometheus.queries", &query.query, 1, MAX_TEXT_CHARS));
                texts.push(("prometheus.queries", &query.key, 1, 256));
                texts.push(("prometheus.queries", &query.device, 1, 256));
            }
        }
        if let Some(http) = &self.http {
            counts.push(("http.values", http.values.len(), 0, 1000));
            texts.push(("http.server.url", &http.server.url, 1, 2048));
            texts.push(("http.body", &http.body, 0, MAX_TEXT_CHARS));
            texts.push(("http.device", &http.device, 1, 256));
            for path in http
                .items
                .iter()
                .chain(&http.ts)
                .chain(http.values.values())
            {
                texts.push(("http.values", path, 0, MAX_TEXT_CHARS));
            }
        }
        if let Some(ipmi) = &self.ipmi {
            counts.push(("ipmi.hosts", ipmi.hosts.len(), 1, MAX_HOSTS));
            counts.push(("ipmi.sensors", ipmi.sensors.len(), 0, 1000));
            texts.push((
                "ipmi.username",
                ipmi.username.as_deref().unwrap_or(""),
                0,
                64,
            ));
            for host in &ipmi.hosts {
                texts.push(("ipmi.hosts", &host.address, 1, 255));
                texts.push(("ipmi.hosts", &host.device, 1, 256));
            }
        }
        for (field, count, least, most) in counts {
            if !(least..=most).contains(&count) {
                return wrong(field, format!("expected {least} to {most}, found {count}"));
            }
        }
        for (field, text, least, most) in texts {
            let count = text.chars().count();
            if !(least..=most).contains(&count) {
                let detail = format!("expected {least} to {most} characters, found {count}");
                return wrong(field, detail);
            }
        }
        let kinds = [
            self.prometheus.is_some(),
            self.http.is_some(),
            self.ipmi.is_some(),
        ];
        match kinds.iter().filter(|is_there| **is_there).count() {
            1 => Ok(()),
            _ => wrong("", "expected one of prometheus, http and ipmi".to_owned()),
        }
    }

    /// The type: `prometheus`, `http` or `ipmi`.
    #[must_use]
    pub fn type_name(&self) -> &'static str {
        match (&self.prometheus, &self.http) {
            (Some(_), _) => "prometheus",
            (None, Some(_)) => "http",
            (None, None) => "ipmi",
        }
    }
}
