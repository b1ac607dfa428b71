//! Connector kind `clickhouse`: ClickHouse over HTTP, one INSERT of JSON lines per batch.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use hyper::Method;
use hyper::header::HeaderName;
use schemars::JsonSchema;
use secret::Secret;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::batch::SinkBatch;
use crate::connector::{
    BatchDefaults, BoxFuture, Connector, ConnectorContext, ConnectorError, ConnectorKind,
    OpenConnectorResult, SinkWriter, WriteOutcome, schema_of,
};
use crate::http_servers::{HttpServers, ServerResponse, url_encode};
use crate::row::SinkRowWriter;
use crate::settings::{SettingsError, parse_settings};
use crate::template::Template;
use crate::tls::TlsSettings;

pub(super) const KIND: ConnectorKind = ConnectorKind {
    name: "clickhouse",
    title: "ClickHouse",
    page: "connectors/clickhouse.md",
    // ClickHouse works best with few large inserts.
    batch: BatchDefaults {
        max_rows: 10_000,
        max_bytes: 8 << 20,
        max_wait_ms: 500,
    },
    connector_schema: schema_of::<ClickHouseSettings>,
    sink_schema: schema_of::<ClickHouseSinkSettings>,
    source_schema: None,
    open,
};

/// ClickHouse error codes that concern rows; other errors are transient.
const ROW_ERROR_CODES: [u32; 22] = [
    6, 25, 26, 27, 33, 38, 41, 53, 69, 70, 72, 117, 130, 131, 190, 321, 349, 376, 407, 469, 675,
    691,
];

/// Error codes that concern the statement: an unknown column, identifier, function, table, syntax or database.
const STATEMENT_ERROR_CODES: [u32; 6] = [16, 46, 47, 60, 62, 81];

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ClickHouseSettings {
    /// Base URLs, as `http://HOST:8123`. After an error the next one is used.
    #[schemars(length(min = 1, max = 64))]
    urls: Vec<String>,
    username: Option<String>,
    password: Option<Secret>,
    /// File that contains the password.
    password_file: Option<PathBuf>,
    database: Option<String>,
    tls: Option<TlsSettings>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ClickHouseSinkSettings {
    #[schemars(length(min = 1, max = 256))]
    table: String,
    /// Columns and their values, with placeholders; a single placeholder keeps its type. Default: the fields of the
    /// row are the columns.
    columns: Option<BTreeMap<String, String>>,
    /// Additional ClickHouse settings of the insert, such as `async_insert = "1"`.
    #[serde(default)]
    settings: BTreeMap<String, String>,
}

struct ClickHouseConnector {
    web: HttpServers,
    database: Option<String>,
}

fn open(fields: Map<String, Value>, _: &ConnectorContext) -> OpenConnectorResult {
    let settings: ClickHouseSettings = parse_settings(fields)?;
    let password = Secret::from_setting(
        "password",
        settings.password.as_ref(),
        settings.password_file.as_ref(),
    )?;
    let mut web = HttpServers::new("urls", &settings.urls, settings.tls.as_ref())?;
    if let Some(user) = &settings.username {
        let name = HeaderName::from_static("x-clickhouse-user");
        web = web.with_header(name, user, "username")?;
    }
    if let Some(password) = &password {
        let name = HeaderName::from_static("x-clickhouse-key");
        web = web.with_header(name, password.reveal(), "password")?;
    }
    Ok(Arc::new(ClickHouseConnector {
        web,
        database: settings.database,
    }))
}

/// Quotes an identifier.
fn quote_identifier(name: &str) -> String {
    format!("`{}`", name.replace('\\', "\\\\").replace('`', "\\`"))
}

impl Connector for ClickHouseConnector {
    fn writer(
        self: Arc<Self>,
        settings: Map<String, Value>,
    ) -> Result<Arc<dyn SinkWriter>, SettingsError> {
        let settings: ClickHouseSinkSettings = parse_settings(settings)?;
        if settings.table.is_empty() {
            return Err(SettingsError::new("table", "expected the name of one"));
        }
        let columns = match &settings.columns {
            None => None,
            Some(columns) if columns.is_empty() => {
                return Err(SettingsError::new("columns", "expected at least one"));
            }
            Some(columns) => {
                let columns = columns.iter().map(|(name, text)| {
                    let field = format!("columns.{name}");
                    Ok((name.clone(), Template::parse(&field, text)?))
                });
                Some(columns.collect::<Result<Vec<_>, SettingsError>>()?)
            }
        };
        // `database.table` contains both names.
        let table: Vec<_> = settings
            .table
            .splitn(2, '.')
            .map(quote_identifier)
            .collect();
        let names = columns.as_ref().map(|columns: &Vec<(String, _)>| {
            let names: Vec<_> = columns
                .iter()
                .map(|(name, _)| quote_identifier(name))
                .collect();
            format!(" ({})", names.join(", "))
        });
        let statement = format!(
            "INSERT INTO {}{} FORMAT JSONEachRow",
            table.join("."),
            names.unwrap_or_default()
        );
        let mut path = format!("/?query={}", url_encode(&statement));
        if let Some(database) = &self.database {
            path.push_str(&format!("&database={}", url_encode(database)));
        }
        let usual = [
            ("date_time_input_format", "best_effort"),
            ("input_format_skip_unknown_fields", "1"),
        ];
        let usual = usual.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let mut all = BTreeMap::from(usual);
        all.extend(settings.settings);
        if all.get("async_insert").is_some_and(|value| value != "0")
            && all
                .get("wait_for_async_insert")
                .is_some_and(|value| value == "0")
        {
            let detail = "it must not be 0: rows would be lost with the server";
            return Err(SettingsError::new("settings.wait_for_async_insert", detail));
        }
        for (name, value) in &all {
            path.push_str(&format!("&{}={}", url_encode(name), url_encode(value)));
        }
        Ok(Arc::new(ClickHouseWriter {
            system: self,
            path,
            columns,
        }))
    }

    fn test(&self) -> BoxFuture<'_, Result<String, ConnectorError>> {
        Box::pin(async {
            let mut path = format!("/?query={}", url_encode("SELECT version()"));
            if let Some(database) = &self.database {
                path.push_str(&format!("&database={}", url_encode(database)));
            }
            let answer = self
                .web
                .request(Method::GET, &path, &[], Bytes::new())
                .await?;
            match answer.is_success() {
                true => {
                    let version = String::from_utf8_lossy(&answer.body);
                    Ok(format!("ClickHouse {}", version.trim()))
                }
                false => Err(answer.transient_error()),
            }
        })
    }
}

struct ClickHouseWriter {
    system: Arc<ClickHouseConnector>,
    path: String,
    columns: Option<Vec<(String, Template)>>,
}

impl ClickHouseWriter {
    fn body(&self, batch: &SinkBatch) -> Vec<u8> {
        let mut body = Vec::with_capacity(batch.byte_len() * 2);
        let mut packed = Vec::new();
        let mut scratch = Vec::new();
        for row in batch.rows() {
            match &self.columns {
                None => row.write_json(&mut body),
                Some(columns) => {
                    packed.clear();
                    let mut out = SinkRowWriter::new(&mut packed);
                    for (name, template) in columns {
                        out.value(name, template.value(row, &mut scratch));
                    }
                    crate::row::SinkRow::from_bytes(&packed).write_json(&mut body);
                }
            }
            body.push(b'\n');
        }
        body
    }

    async fn insert(&self, batch: &SinkBatch) -> Result<(), ConnectorError> {
        // A retry of the same rows has the same token, by which a deduplicating table recognises it.
        let last = batch.len().saturating_sub(1);
        let path = match batch.is_empty() {
            true => return Ok(()),
            false => format!(
                "{}&insert_deduplication_token={}-{}-{}",
                self.path,
                batch.id(0),
                batch.id(last).number,
                batch.len()
            ),
        };
        let body = Bytes::from(self.body(batch));
        let web = &self.system.web;
        let answer = web.request(Method::POST, &path, &[], body).await?;
        match answer.is_success() && error_code(&answer).is_none() {
            true => Ok(()),
            false if error_code(&answer).is_some_and(|code| ROW_ERROR_CODES.contains(&code)) => {
                Err(answer.bad_rows_error())
            }
            false
                if error_code(&answer)
                    .is_some_and(|code| STATEMENT_ERROR_CODES.contains(&code)) =>
            {
                Err(ConnectorError::permanent(answer.transient_error()))
            }
            false => Err(answer.transient_error()),
        }
    }
}

/// The error code: from a header, or from a text that begins `Code: 27. DB::Exception`.
fn error_code(answer: &ServerResponse) -> Option<u32> {
    let header = answer.headers.get("x-clickhouse-exception-code");
    if let Some(code) = header.and_then(|value| value.to_str().ok()?.parse().ok()) {
        return Some(code);
    }
    let text = std::str::from_utf8(&answer.body).ok()?;
    let rest = text.strip_prefix("Code: ")?;
    rest.split('.').next()?.parse().ok()
}

impl SinkWriter for ClickHouseWriter {
    /// An insert of no rows is checked like any other.
    fn check(&self) -> Option<BoxFuture<'_, Result<String, ConnectorError>>> {
        Some(Box::pin(async move {
            let web = &self.system.web;
            let asking = web.request(Method::POST, &self.path, &[], Bytes::new());
            let answer = asking.await?;
            match (answer.is_success(), error_code(&answer)) {
                (true, None) => Ok("table and columns exist".into()),
                (_, Some(code)) if STATEMENT_ERROR_CODES.contains(&code) => {
                    Err(ConnectorError::permanent(answer.transient_error()))
                }
                _ => Err(answer.transient_error()),
            }
        }))
    }

    fn write<'a>(&'a self, batch: &'a SinkBatch) -> BoxFuture<'a, WriteOutcome> {
        Box::pin(async move { self.insert(batch).await.into() })
    }
}
