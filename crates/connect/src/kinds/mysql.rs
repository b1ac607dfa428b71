//! Connector kind `mysql`: MySQL and MariaDB, prepared inserts of many rows.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mysql_async::prelude::Queryable as _;
use mysql_async::{
    Conn, DriverError, Error, OptsBuilder, Params, PoolConstraints, PoolOpts, SslOpts, Value,
};
use outbound::mysql::MySqlPool;
use schemars::JsonSchema;
use secret::Secret;
use serde::Deserialize;
use serde_json::Map;

use crate::batch::SinkBatch;
use crate::connector::{
    BatchDefaults, BoxFuture, Connector, ConnectorContext, ConnectorError, ConnectorKind,
    OpenConnectorResult, SinkWriter, WriteOutcome, schema_of,
};
use crate::row;
use crate::settings::{SettingsError, check_range, host_and_port, parse_settings};
use crate::template::{SqlDialect, SqlStatement};
use crate::tls::TlsSettings;

pub(super) const KIND: ConnectorKind = ConnectorKind {
    name: "mysql",
    title: "MySQL and MariaDB",
    page: "connectors.md#mysql-and-mariadb-mysql",
    batch: BatchDefaults::DEFAULT,
    connector_schema: schema_of::<MySqlSettings>,
    sink_schema: schema_of::<MySqlSinkSettings>,
    source_schema: None,
    open,
};

const DEFAULT_PORT: u16 = 3306;
const IDLE_FOR: Duration = Duration::from_secs(60);
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// Maximum number of prepared statements per connection.
const MAX_PREPARED_STATEMENTS: usize = 128;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct MySqlSettings {
    /// `HOST:PORT`
    server: String,
    database: String,
    username: Option<String>,
    password: Option<Secret>,
    /// File that contains the password.
    password_file: Option<PathBuf>,
    tls: Option<TlsSettings>,
    /// Maximum number of connections.
    #[serde(default = "default_pool_size")]
    #[schemars(range(min = 1, max = 256))]
    pool_size: usize,
}

fn default_pool_size() -> usize {
    8
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct MySqlSinkSettings {
    /// Statement for each row, as `INSERT INTO t (id, v) VALUES (${clientid}, ${payload.v}) ON DUPLICATE KEY UPDATE v =
    /// VALUES(v)`. Values are bound parameters, never a part of the text. Inserts of many rows become one statement.
    sql: String,
}

struct MySqlConnector {
    pool: Arc<MySqlPool>,
}

fn open(fields: Map<String, serde_json::Value>, _: &ConnectorContext) -> OpenConnectorResult {
    let settings: MySqlSettings = parse_settings(fields)?;
    check_range("pool_size", settings.pool_size, 1..=256)?;
    let password = Secret::from_setting(
        "password",
        settings.password.as_ref(),
        settings.password_file.as_ref(),
    )?;
    let (host, port) = host_and_port("server", &settings.server, DEFAULT_PORT)?;
    let constraints = PoolConstraints::new(0, settings.pool_size)
        .ok_or_else(|| SettingsError::new("pool_size", "expected at least 1"))?;
    let pool = PoolOpts::new()
        .with_constraints(constraints)
        .with_inactive_connection_ttl(IDLE_FOR)
        // A reset would cost a round trip per batch and discard prepared statements; sinks leave no session state behind.
        .with_reset_connection(false);
    let mut options = OptsBuilder::default()
        .user(settings.username)
        .pass(password.map(|password| password.reveal().to_owned()))
        .db_name(Some(settings.database))
        .pool_opts(pool)
        .stmt_cache_size(MAX_PREPARED_STATEMENTS)
        // A socket might belong to another server than the one named.
        .prefer_socket(false)
        .tcp_keepalive(Some(KEEP_ALIVE));
    if let Some(tls) = &settings.tls {
        options = options.ssl_opts(tls_options(tls)?);
    }
    Ok(Arc::new(MySqlConnector {
        pool: Arc::new(MySqlPool::new(options, host, port)),
    }))
}

fn tls_options(tls: &TlsSettings) -> Result<SslOpts, SettingsError> {
    // Also validates the files.
    tls.client_config("tls")?;
    let mut options = SslOpts::default();
    if let Some(ca) = &tls.ca {
        options = options
            .with_root_certs(vec![ca.clone().into()])
            .with_disable_built_in_roots(true);
    }
    if let (Some(certificate), Some(key)) = (&tls.certificate, &tls.key) {
        let identity =
            mysql_async::ClientIdentity::new(certificate.clone().into(), key.clone().into());
        options = options.with_client_identity(Some(identity));
    }
    Ok(options)
}

impl Connector for MySqlConnector {
    fn writer(
        self: Arc<Self>,
        settings: Map<String, serde_json::Value>,
    ) -> Result<Arc<dyn SinkWriter>, SettingsError> {
        let settings: MySqlSinkSettings = parse_settings(settings)?;
        let sql = SqlStatement::parse("sql", &settings.sql, SqlDialect::MySql)?;
        Ok(Arc::new(MySqlWriter {
            pool: self.pool.clone(),
            sql,
            statements: Mutex::default(),
        }))
    }

    fn test(&self) -> BoxFuture<'_, Result<String, ConnectorError>> {
        Box::pin(async move {
            let mut connection = self.pool.get_conn().await.map_err(failure)?;
            let version: Option<String> = connection
                .query_first("SELECT VERSION()")
                .await
                .map_err(failure)?;
            let version = version.unwrap_or_default();
            let name = match version.contains("MariaDB") {
                true => "MariaDB",
                false => "MySQL",
            };
            let number = version.split('-').next().unwrap_or_default();
            Ok(format!("{name} {number}"))
        })
    }
}

struct MySqlWriter {
    pool: Arc<MySqlPool>,
    sql: SqlStatement,
    /// Statement texts by number of rows: 1, 2, 4, ..., and the size of a full batch.
    statements: Mutex<HashMap<usize, Arc<str>>>,
}

impl MySqlWriter {
    fn statement(&self, rows: usize) -> Arc<str> {
        let mut statements = self
            .statements
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        statements
            .entry(rows)
            .or_insert_with(|| self.sql.statement(rows).into())
            .clone()
    }

    /// Sizes of the statements for a batch. Each size is a separate prepared statement, so there are few: a full batch,
    /// which occurs under load, and powers of two.
    fn sizes(&self, rows: usize) -> Vec<usize> {
        let max = self.sql.max_rows();
        if max == 1 {
            return vec![1; rows];
        }
        let known = self
            .statements
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // A recurring size is worth its own statement, as long as there are not too many of them.
        let is_worth_it =
            rows <= max && (known.len() < MAX_PREPARED_STATEMENTS / 4 || known.contains_key(&rows));
        if is_worth_it && rows >= 64 {
            return vec![rows];
        }
        let mut sizes = Vec::new();
        let mut left = rows;
        while left > 0 {
            let size = (1 << left.ilog2()).min(max);
            sizes.push(size);
            left -= size;
        }
        sizes
    }

    fn parameters(&self, batch: &SinkBatch, rows: std::ops::Range<usize>) -> Params {
        let count = self.sql.parameters().len();
        if count == 0 {
            return Params::Empty;
        }
        let mut values = Vec::with_capacity(rows.len() * count);
        for at in rows {
            self.sql
                .bind(batch.row(at), |_, value| values.push(value_of(value)));
        }
        Params::Positional(values)
    }

    async fn write_all(&self, batch: &SinkBatch) -> Result<(), Error> {
        let mut connection = self.pool.get_conn().await?;
        let result = self.run(&mut connection, batch).await;
        if result.is_err() {
            // The connection may be within a transaction or in an undefined state.
            drop(connection.disconnect().await);
        }
        result
    }

    async fn run(&self, connection: &mut Conn, batch: &SinkBatch) -> Result<(), Error> {
        let sizes = self.sizes(batch.len());
        // The system stores either the whole batch or nothing.
        let is_transaction = sizes.len() > 1;
        if is_transaction {
            connection.query_drop("START TRANSACTION").await?;
        }
        let mut first = 0;
        for size in sizes {
            let statement = self.statement(size);
            let parameters = self.parameters(batch, first..first + size);
            connection.exec_drop(&*statement, parameters).await?;
            first += size;
        }
        if is_transaction {
            connection.query_drop("COMMIT").await?;
        }
        Ok(())
    }
}

impl SinkWriter for MySqlWriter {
    fn check(&self) -> Option<BoxFuture<'_, Result<String, ConnectorError>>> {
        Some(Box::pin(async move {
            let mut connection = self.pool.get_conn().await.map_err(failure)?;
            let prepared = connection.prep(&*self.statement(1)).await;
            prepared.map_err(failure)?;
            Ok("the statement is valid".into())
        }))
    }

    fn write<'a>(&'a self, batch: &'a SinkBatch) -> BoxFuture<'a, WriteOutcome> {
        Box::pin(async move {
            let result = self.write_all(batch).await;
            result.map_err(failure).into()
        })
    }
}

fn value_of(value: row::SinkValue<'_>) -> Value {
    match value {
        row::SinkValue::Null => Value::NULL,
        row::SinkValue::Bool(value) => Value::Int(value.into()),
        row::SinkValue::Int(value) => Value::Int(value),
        row::SinkValue::Float(value) if value.is_finite() => Value::Double(value),
        row::SinkValue::Float(_) => Value::NULL,
        other => {
            let mut text = Vec::new();
            other.write_text(&mut text);
            Value::Bytes(text)
        }
    }
}

/// Server errors that concern values of rows, in addition to those identified by SQLSTATE.
const ROW_ERROR_CODES: [u16; 8] = [
    1153, // packet larger than the server accepts: half of it may fit
    1265, // data truncated
    1366, // no value of the column's type
    1526, // no partition for the value
    3140, // no JSON
    3819, // a check constraint
    4025, // a check constraint, in MariaDB
    4078, // an illegal type for the operation
];

/// Server errors that concern the statement or a missing object.
const STATEMENT_ERROR_CODES: [u16; 9] = [
    1054, // no such column
    1064, // a syntax error
    1065, // an empty statement
    1109, // no such table within the statement
    1136, // another number of values than of columns
    1146, // no such table
    1149, // a syntax error, in older servers
    1305, // no such procedure
    1318, // another number of arguments than the procedure takes
];

fn failure(error: Error) -> ConnectorError {
    let is_of_rows = match &error {
        Error::Server(error) => {
            let class = error.state.get(..2).unwrap_or_default();
            // 21: the number of values does not match; 22: data; 23: constraints; 45: raised by a trigger.
            let is_about_values = matches!(class, "22" | "23" | "45");
            is_about_values || ROW_ERROR_CODES.contains(&error.code)
        }
        Error::Driver(DriverError::PacketTooLarge) => true,
        _ => false,
    };
    let is_permanent =
        matches!(&error, Error::Server(error) if STATEMENT_ERROR_CODES.contains(&error.code));
    match (is_of_rows, is_permanent) {
        (true, _) => ConnectorError::bad_rows(error),
        (_, true) => ConnectorError::permanent(error),
        _ => ConnectorError::transient(error),
    }
}
