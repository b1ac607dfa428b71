//! Connector kind `influxdb`: InfluxDB 1, 2, 3 and compatible databases, one write request per batch.

mod line_protocol;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use hyper::Method;
use hyper::header::AUTHORIZATION;
use schemars::JsonSchema;
use secret::Secret;
use serde::Deserialize;
use serde_json::{Map, Value as Json};

use crate::batch::SinkBatch;
use crate::connector::{
    BatchDefaults, BoxFuture, Connector, ConnectorContext, ConnectorError, ConnectorKind,
    OpenConnectorResult, SinkWriter, WriteOutcome, schema_of,
};
use crate::http_servers::{HttpServers, ServerResponse, url_encode};
use crate::row::{SinkRow, SinkValue};
use crate::settings::{SettingsError, parse_settings};
use crate::template::Template;
use crate::tls::TlsSettings;
use line_protocol::FieldType;

pub(super) const KIND: ConnectorKind = ConnectorKind {
    name: "influxdb",
    title: "InfluxDB",
    page: "connectors/influxdb.md",
    batch: BatchDefaults {
        max_rows: 5000,
        max_bytes: 4 << 20,
        max_wait_ms: 100,
    },
    connector_schema: schema_of::<InfluxSettings>,
    sink_schema: schema_of::<InfluxSinkSettings>,
    source_schema: None,
    open,
};

#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct InfluxSettings {
    /// Base URLs, as `http://HOST:8086`. After an error the next one is used.
    #[schemars(length(min = 1, max = 64))]
    urls: Vec<String>,
    /// Major version of InfluxDB: 1, 2 or 3.
    #[schemars(range(min = 1, max = 3))]
    influxdb_version: u8,
    /// Database (versions 1 and 3).
    database: Option<String>,
    /// Retention policy (version 1).
    retention_policy: Option<String>,
    /// Organization (version 2).
    organization: Option<String>,
    /// Bucket (version 2).
    bucket: Option<String>,
    /// User name (version 1).
    username: Option<String>,
    password: Option<Secret>,
    /// File that contains the password.
    password_file: Option<PathBuf>,
    /// API token (versions 2 and 3).
    token: Option<Secret>,
    /// File that contains the token.
    token_file: Option<PathBuf>,
    tls: Option<TlsSettings>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct InfluxSinkSettings {
    /// Measurement, with placeholders.
    #[schemars(length(min = 1, max = 1000))]
    measurement: String,
    /// Tags; values with placeholders.
    #[serde(default)]
    tags: BTreeMap<String, String>,
    /// Fields; values with placeholders. Default: all fields of the row except arrays, objects and `timestamp`.
    fields: Option<BTreeMap<String, FieldSetting>>,
    /// Timestamp, a placeholder. A row without one gets the time of the server.
    #[serde(default = "default_timestamp")]
    timestamp: String,
    /// Unit of the timestamp.
    #[serde(default)]
    precision: Precision,
}

fn default_timestamp() -> String {
    "${timestamp}".into()
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
enum FieldSetting {
    /// With the type of the value.
    Plain(String),
    Typed(TypedField),
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TypedField {
    value: String,
    #[serde(rename = "type")]
    wanted: FieldType,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Precision {
    Ns,
    Us,
    #[default]
    Ms,
    S,
}

struct InfluxConnector {
    web: HttpServers,
    settings: InfluxSettings,
}

fn open(fields: Map<String, Json>, _: &ConnectorContext) -> OpenConnectorResult {
    let settings: InfluxSettings = parse_settings(fields)?;
    let password = Secret::from_setting(
        "password",
        settings.password.as_ref(),
        settings.password_file.as_ref(),
    )?;
    let token = Secret::from_setting(
        "token",
        settings.token.as_ref(),
        settings.token_file.as_ref(),
    )?;
    let needed = |field: &str, given: &Option<String>| match given {
        Some(_) => Ok(()),
        None => {
            let detail = format!("missing; version {} needs it", settings.influxdb_version);
            Err(SettingsError::new(field, detail))
        }
    };
    match settings.influxdb_version {
        1 | 3 => needed("database", &settings.database)?,
        2 => {
            needed("organization", &settings.organization)?;
            needed("bucket", &settings.bucket)?;
        }
        other => {
            let detail = format!("expected 1, 2 or 3, found {other}");
            return Err(SettingsError::new("influxdb_version", detail));
        }
    }
    let mut web = HttpServers::new("urls", &settings.urls, settings.tls.as_ref())?;
    match (&token, &settings.username) {
        (Some(token), None) => {
            let scheme = if settings.influxdb_version == 3 {
                "Bearer"
            } else {
                "Token"
            };
            let value = format!("{scheme} {}", token.reveal());
            web = web.with_header(AUTHORIZATION, &value, "token")?;
        }
        (None, Some(user)) => {
            web = web.with_basic_auth(user, &password.unwrap_or_default())?;
        }
        (None, None) => {}
        (Some(_), Some(_)) => {
            return Err(SettingsError::new(
                "username",
                "expected a user or a token, not both",
            ));
        }
    }
    Ok(Arc::new(InfluxConnector { web, settings }))
}

impl InfluxConnector {
    /// Path of the write endpoint.
    fn path(&self, precision: Precision) -> String {
        let version = self.settings.influxdb_version;
        let text = |text: &Option<String>| url_encode(text.as_deref().unwrap_or_default());
        let unit = match (version, precision) {
            (1, Precision::Us) => "u",
            (1 | 2, Precision::Ms) => "ms",
            (1 | 2, Precision::S) => "s",
            (1 | 2, Precision::Ns) => "ns",
            (2, Precision::Us) => "us",
            (_, Precision::Ns) => "nanosecond",
            (_, Precision::Us) => "microsecond",
            (_, Precision::Ms) => "millisecond",
            (_, Precision::S) => "second",
        };
        let database = text(&self.settings.database);
        match version {
            1 => {
                let policy = self.settings.retention_policy.as_ref();
                let policy = policy.map(|name| format!("&rp={}", url_encode(name)));
                let policy = policy.unwrap_or_default();
                format!("/write?db={database}{policy}&precision={unit}")
            }
            2 => {
                let organization = text(&self.settings.organization);
                let bucket = text(&self.settings.bucket);
                format!("/api/v2/write?org={organization}&bucket={bucket}&precision={unit}")
            }
            // All or nothing: the faulty row is then found by halving.
            _ => {
                format!("/api/v3/write_lp?db={database}&precision={unit}&accept_partial=false")
            }
        }
    }
}

impl Connector for InfluxConnector {
    fn writer(
        self: Arc<Self>,
        settings: Map<String, Json>,
    ) -> Result<Arc<dyn SinkWriter>, SettingsError> {
        let settings: InfluxSinkSettings = parse_settings(settings)?;
        let tags = settings.tags.iter().map(|(name, text)| {
            let field = format!("tags.{name}");
            Ok((name.clone(), Template::parse(&field, text)?))
        });
        let tags = tags.collect::<Result<Vec<_>, SettingsError>>()?;
        let fields = match &settings.fields {
            None => None,
            Some(fields) if fields.is_empty() => {
                return Err(SettingsError::new("fields", "expected at least one"));
            }
            Some(fields) => {
                let fields = fields.iter().map(|(name, setting)| {
                    let field = format!("fields.{name}");
                    let (text, wanted) = match setting {
                        FieldSetting::Plain(text) => (text, None),
                        FieldSetting::Typed(typed) => (&typed.value, Some(typed.wanted)),
                    };
                    Ok((name.clone(), Template::parse(&field, text)?, wanted))
                });
                Some(fields.collect::<Result<Vec<_>, SettingsError>>()?)
            }
        };
        Ok(Arc::new(InfluxWriter {
            measurement: Template::parse("measurement", &settings.measurement)?,
            tags,
            fields,
            timestamp: Template::parse("timestamp", &settings.timestamp)?,
            path: self.path(settings.precision),
            influx: self,
        }))
    }

    fn test(&self) -> BoxFuture<'_, Result<String, ConnectorError>> {
        Box::pin(async {
            let ping = self
                .web
                .request(Method::GET, "/ping", &[], Bytes::new())
                .await?;
            let version = |name: &str| Some(ping.headers.get(name)?.to_str().ok()?.to_owned());
            let version = version("x-influxdb-version").unwrap_or_default();
            // An empty write checks the permission: servers detect the empty body last, or accept it.
            let path = self.path(Precision::Ms);
            let answer = self
                .web
                .request(Method::POST, &path, &[], Bytes::new())
                .await?;
            match answer.status {
                200..300 | 400 => Ok(format!("InfluxDB {version}").trim_end().to_owned()),
                _ => Err(answer.transient_error()),
            }
        })
    }
}

type FieldTemplates = Vec<(String, Template, Option<FieldType>)>;

struct InfluxWriter {
    influx: Arc<InfluxConnector>,
    measurement: Template,
    tags: Vec<(String, Template)>,
    fields: Option<FieldTemplates>,
    timestamp: Template,
    path: String,
}

impl InfluxWriter {
    /// Appends the line of a row.
    fn put_line(&self, row: SinkRow<'_>, out: &mut Vec<u8>) -> Result<(), ConnectorError> {
        let start = out.len();
        let measurement = self.measurement.render_name("measurement", row)?;
        // A line that begins with # is a comment.
        if measurement.is_empty() || measurement.starts_with('#') {
            let what = format!("measurement: {measurement:?} is empty or begins with #");
            return Err(ConnectorError::bad_rows(what));
        }
        line_protocol::put_measurement(out, &measurement);
        let (mut scratch, mut text) = (Vec::new(), Vec::new());
        for (name, template) in &self.tags {
            text.clear();
            // A null tag is left out.
            template.value(row, &mut scratch).write_text(&mut text);
            line_protocol::put_tag(out, name, &String::from_utf8_lossy(&text));
        }
        let mut is_first = true;
        match &self.fields {
            Some(fields) => {
                for (name, template, wanted) in fields {
                    let value = template.value(row, &mut scratch);
                    is_first &= !line_protocol::put_field(out, name, value, *wanted, is_first);
                }
            }
            None => {
                for (name, value) in row.fields() {
                    let is_nested = matches!(
                        value,
                        SinkValue::Json(_) | SinkValue::Array(_) | SinkValue::Map(_)
                    );
                    if !is_nested && name != "timestamp" {
                        is_first &= !line_protocol::put_field(out, name, value, None, is_first);
                    }
                }
            }
        }
        if is_first {
            out.truncate(start);
            return Err(ConnectorError::bad_rows("the row has none of the fields"));
        }
        text.clear();
        // Without a timestamp, the server assigns one.
        let timestamp = self.timestamp.value(row, &mut scratch);
        timestamp.write_text(&mut text);
        let timestamp = String::from_utf8_lossy(&text);
        match (timestamp.trim(), timestamp.trim().parse::<i64>()) {
            ("", _) => {}
            (_, Ok(number)) => out.extend_from_slice(format!(" {number}").as_bytes()),
            (text, Err(_)) => {
                let what = format!("the timestamp {text:?} is not an integer");
                out.truncate(start);
                return Err(ConnectorError::bad_rows(what));
            }
        }
        out.push(b'\n');
        Ok(())
    }

    async fn write_lines(&self, batch: &SinkBatch) -> Result<WriteOutcome, ConnectorError> {
        let mut body = Vec::with_capacity(batch.byte_len());
        let mut failures = Vec::new();
        for (place, row) in batch.rows().enumerate() {
            if let Err(failure) = self.put_line(row, &mut body) {
                failures.push((place, failure));
            }
        }
        if !body.is_empty() {
            let web = &self.influx.web;
            let answer = web.request(Method::POST, &self.path, &[], body).await?;
            if !answer.is_success() {
                return Err(rejection_error(&answer));
            }
        }
        Ok(WriteOutcome::all_except(batch.len(), failures))
    }
}

/// Writing a point twice stores it once, so a partially stored batch can be split into halves.
fn rejection_error(answer: &ServerResponse) -> ConnectorError {
    match answer.status {
        400 | 413 | 422 => answer.bad_rows_error(),
        _ => answer.transient_error(),
    }
}

impl SinkWriter for InfluxWriter {
    fn write<'a>(&'a self, batch: &'a SinkBatch) -> BoxFuture<'a, WriteOutcome> {
        Box::pin(async move {
            let lines = self.write_lines(batch).await;
            lines.unwrap_or_else(WriteOutcome::Failed)
        })
    }
}
