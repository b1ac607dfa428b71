//! How a pull source is written.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::secrets;

/// Pull sources of one node.
pub const MAX_SOURCES: usize = 1000;
pub(super) const MAX_QUERIES: usize = 256;
pub(super) const MAX_HOSTS: usize = 1000;
const MAX_NAMES: usize = 10_000;
const MAX_TEXT_CHARS: usize = 16_384;

/// A system that is asked on a schedule for values of devices. It has one of `prometheus`, `http` and `ipmi`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PullSourceDefinition {
    #[schemars(length(max = 1000))]
    pub description: String,
    /// A disabled source is not asked.
    pub enabled: bool,
    /// From one question to the next.
    #[schemars(range(min = 1, max = 86400))]
    pub interval_s: u32,
    /// How long all answers of one time may take.
    #[schemars(range(min = 100, max = 600_000))]
    pub timeout_ms: u32,
    /// Ids of devices by what the system calls them; what is not in here is an id itself.
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

/// A text that is never shown.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct HiddenText(String);

impl HiddenText {
    pub(super) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for HiddenText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Where an HTTP server is and how it knows who asks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PullHttpServer {
    /// `http://HOST:PORT/PATH` or `https://...`, without a user.
    #[schemars(length(min = 1, max = 2048))]
    pub url: String,
    /// Sent with each request. Not shown again.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub headers: BTreeMap<String, HiddenText>,
    /// For basic authentication.
    #[serde(default)]
    pub username: Option<String>,
    /// Not shown again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<HiddenText>,
    /// File that holds the password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_file: Option<PathBuf>,
    /// Sent as `Authorization: Bearer TOKEN`. Not shown again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<HiddenText>,
    /// File that holds the token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    #[serde(default)]
    pub tls: Option<PullTlsSettings>,
}

/// Whom to trust, and who we are.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PullTlsSettings {
    /// PEM file of the authorities to trust instead of those of the system.
    pub ca: Option<PathBuf>,
    /// PEM file of our certificate, and those above it.
    pub certificate: Option<PathBuf>,
    /// PEM file of its key.
    pub key: Option<PathBuf>,
}

/// Prometheus, or what speaks its API: instant queries, whose series are mapped to devices and keys by their labels.
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
    /// PromQL.
    #[schemars(length(min = 1, max = 16384))]
    pub query: String,
    /// The key of the value; `${LABEL}` stands for the value of a label of the series.
    #[schemars(length(min = 1, max = 256))]
    pub key: String,
    /// What the system calls the device, with labels: `${instance}`.
    #[serde(default = "instance")]
    #[schemars(length(min = 1, max = 256))]
    pub device: String,
}

fn instance() -> String {
    "${instance}".to_owned()
}

/// An HTTP server that answers with JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HttpPollSettings {
    pub server: PullHttpServer,
    #[serde(default)]
    pub method: HttpPollMethod,
    /// Sent with each request.
    #[serde(default)]
    #[schemars(length(max = 16384))]
    pub body: String,
    /// The path of a list (or an object) in the answer whose items are a reading each; left out: the answer is one reading.
    #[serde(default)]
    #[schemars(length(max = 16384))]
    pub items: Option<String>,
    /// What the system calls the device; `${PATH}` stands for what the item has there, `${#}` for its name or number in the list.
    #[schemars(length(min = 1, max = 256))]
    pub device: String,
    /// The path of the time in the item: milliseconds, seconds or text; left out: now.
    #[serde(default)]
    #[schemars(length(max = 16384))]
    pub ts: Option<String>,
    /// Paths in the item by key; left out: each member of the item that is a number, a boolean or a text.
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

/// Sensors of servers over IPMI, by the program `ipmitool` of the node's machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IpmiSettings {
    /// Each host is asked by itself.
    #[schemars(length(min = 1, max = 1000))]
    pub hosts: Vec<IpmiHost>,
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub username: Option<String>,
    /// Not shown again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<HiddenText>,
    /// File that holds the password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_file: Option<PathBuf>,
    #[serde(default)]
    pub interface: IpmiInterface,
    /// Keys of sensors by their names; left out: all sensors, each with its name in small letters and `_` for what is no letter or
    /// digit.
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
    /// The id of the device.
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

/// What of a written source is not as it has to be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {detail}")]
pub struct PullSourceError {
    /// Its path, such as `prometheus.queries[0].key`; empty: the source as a whole.
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

impl PullSourceDefinition {
    /// Reads a source. What needs its files is looked at when it is made ready.
    pub(super) fn read(value: &Value) -> Result<Self, PullSourceError> {
        let read: Result<Self, _> = serde_path_to_error::deserialize(value);
        let definition = read.map_err(|error| {
            let path = error.path().to_string();
            let field = if path == "." { String::new() } else { path };
            PullSourceError::new(field, error.into_inner().to_string())
        })?;
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

    /// `prometheus`, `http` or `ipmi`.
    #[must_use]
    pub fn type_name(&self) -> &'static str {
        match (&self.prometheus, &self.http) {
            (Some(_), _) => "prometheus",
            (None, Some(_)) => "http",
            (None, None) => "ipmi",
        }
    }

    /// A schema of what is written and one of what is shown, from that of the whole.
    #[must_use]
    pub fn schemas(whole: Value) -> (Value, Value) {
        let mut shown = whole.clone();
        secrets::hide_secrets(&mut shown);
        (whole, shown)
    }
}
