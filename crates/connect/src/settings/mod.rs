//! Parsing of connector and sink settings (JSON), with errors that name the field.

mod sink;

pub use sink::{
    BatchSettings, DeadLetterSettings, DeliveryOrder, DiskQueueSettings, DiskQueueSync, OnFull,
    QueueSettings, RetrySettings, SinkSettings,
};

use schemars::JsonSchema;
use secret::SecretError;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// An error in a configuration object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{detail}", if field.is_empty() { String::new() } else { format!("{field}: ") })]
pub struct SettingsError {
    /// Path of the field, as `batch.max_rows`; empty for the whole object.
    pub field: String,
    pub detail: String,
}

impl SettingsError {
    pub fn new(field: &str, detail: impl Into<String>) -> Self {
        Self {
            field: field.to_owned(),
            detail: detail.into(),
        }
    }
}

impl From<SecretError> for SettingsError {
    fn from(error: SecretError) -> Self {
        Self {
            field: error.field,
            detail: error.detail,
        }
    }
}

/// Parses settings.
pub fn parse_settings<T: DeserializeOwned + JsonSchema>(
    fields: Map<String, Value>,
) -> Result<T, SettingsError> {
    definition::read_definition(Value::Object(fields))
        .map_err(|error| SettingsError::new(&error.field, rules::with_suggestion(&error.detail)))
}

/// Rejects `format = "parquet"` in programs that were built without Parquet.
pub(crate) fn check_parquet_is_built_in(
    settings: &Map<String, Value>,
) -> Result<(), SettingsError> {
    if cfg!(feature = "parquet")
        || settings.get("format").and_then(Value::as_str) != Some("parquet")
    {
        return Ok(());
    }
    let detail = "this program was built without Parquet; build it with the default features, or use a released one";
    Err(SettingsError::new("format", detail))
}

/// Checks that a number is within a range.
pub fn check_range<T: PartialOrd + std::fmt::Display + Copy>(
    field: &str,
    value: T,
    range: std::ops::RangeInclusive<T>,
) -> Result<(), SettingsError> {
    match range.contains(&value) {
        true => Ok(()),
        false => {
            let (from, to) = (range.start(), range.end());
            let detail = format!("expected {from} to {to}, found {value}");
            Err(SettingsError::new(field, detail))
        }
    }
}

/// Parses `HOST`, `HOST:PORT` or `[ADDRESS]:PORT`.
pub fn host_and_port(
    field: &str,
    server: &str,
    usual_port: u16,
) -> Result<(String, u16), SettingsError> {
    let wrong = || SettingsError::new(field, format!("expected HOST:PORT, found {server:?}"));
    if let Ok(address) = server.parse::<std::net::SocketAddr>() {
        return Ok((address.ip().to_string(), address.port()));
    }
    let (host, port) = match server.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') => (host, port.parse().map_err(|_| wrong())?),
        _ => (server, usual_port),
    };
    let is_host = !host.is_empty() && !host.contains(['/', '@', ' ']);
    is_host.then(|| (host.to_owned(), port)).ok_or_else(wrong)
}
