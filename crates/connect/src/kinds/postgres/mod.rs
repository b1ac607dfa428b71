//! Connector kind `postgres`: PostgreSQL and derivatives such as TimescaleDB. An insert of a batch has one array per parameter,
//! independent of the number of rows.

mod errors;
mod parameters;
mod pool;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use futures_util::future::try_join_all;
use schemars::JsonSchema;
use secret::Secret;
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio_postgres::types::{Kind as TypeKind, ToSql, Type};
use tokio_postgres::{Config, Statement};

use crate::batch::SinkBatch;
use crate::connector::{
    BatchDefaults, BoxFuture, Connector, ConnectorContext, ConnectorError, ConnectorKind,
    OpenConnectorResult, SinkWriter, WriteOutcome, schema_of,
};
use crate::row;
use crate::settings::{SettingsError, check_range, host_and_port, parse_settings};
use crate::template::{SqlDialect, SqlStatement};
use crate::tls::TlsSettings;
use errors::failure;
use outbound::postgres::PostgresServer;
use parameters::{ArrayBuilder, TextParameter};
use pool::{ConnectionPool, PooledConnection, PreparedStatements};

pub(super) const KIND: ConnectorKind = ConnectorKind {
    name: "postgres",
    title: "PostgreSQL and TimescaleDB",
    page: "connectors.md#postgresql-and-timescaledb-postgres",
    batch: BatchDefaults::DEFAULT,
    connector_schema: schema_of::<PostgresSettings>,
    sink_schema: schema_of::<PostgresSinkSettings>,
    source_schema: None,
    open,
};

const DEFAULT_PORT: u16 = 5432;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PostgresSettings {
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
    #[serde(default = "default_connect_timeout_ms")]
    #[schemars(range(min = 10, max = 600_000))]
    connect_timeout_ms: u64,
}

fn default_pool_size() -> usize {
    8
}

fn default_connect_timeout_ms() -> u64 {
    5000
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PostgresSinkSettings {
    /// Statement for each row, as `INSERT INTO t (id, v) VALUES (${clientid}, ${payload.v}) ON CONFLICT (id) DO UPDATE SET
    /// v = EXCLUDED.v`. Values are bound parameters, never a part of the text. Inserts of many rows become one statement.
    sql: String,
}

struct PostgresConnector {
    pool: ConnectionPool,
}

fn open(fields: Map<String, Value>, _: &ConnectorContext) -> OpenConnectorResult {
    let settings: PostgresSettings = parse_settings(fields)?;
    check_range("pool_size", settings.pool_size, 1..=256)?;
    let password = Secret::from_setting(
        "password",
        settings.password.as_ref(),
        settings.password_file.as_ref(),
    )?;
    let (host, port) = host_and_port("server", &settings.server, DEFAULT_PORT)?;
    let mut config = Config::new();
    config.dbname(&settings.database);
    if let Some(username) = &settings.username {
        config.user(username);
    }
    if let Some(password) = &password {
        config.password(password.reveal());
    }
    let tls = settings.tls.as_ref();
    let tls = tls.map(|tls| tls.client_config("tls")).transpose()?;
    let within = Duration::from_millis(settings.connect_timeout_ms);
    Ok(Arc::new(PostgresConnector {
        pool: ConnectionPool::new(
            PostgresServer::new(config, host, port, tls),
            settings.pool_size,
            within,
        ),
    }))
}

impl Connector for PostgresConnector {
    fn writer(
        self: Arc<Self>,
        settings: Map<String, Value>,
    ) -> Result<Arc<dyn SinkWriter>, SettingsError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let settings: PostgresSinkSettings = parse_settings(settings)?;
        Ok(Arc::new(PostgresWriter {
            sql: SqlStatement::parse("sql", &settings.sql, SqlDialect::Postgres)?,
            postgres: self,
            key: NEXT.fetch_add(1, Relaxed),
        }))
    }

    fn test(&self) -> BoxFuture<'_, Result<String, ConnectorError>> {
        Box::pin(async move {
            let connection = self.pool.acquire().await?;
            let row = connection
                .client
                .query_one("SHOW server_version", &[])
                .await
                .map_err(failure)?;
            let version: &str = row.try_get(0).map_err(failure)?;
            let number = version.split(' ').next().unwrap_or_default().to_owned();
            self.pool.release(connection);
            Ok(format!("PostgreSQL {number}"))
        })
    }
}

struct PostgresWriter {
    postgres: Arc<PostgresConnector>,
    sql: SqlStatement,
    /// Key of this writer's statements among those a connection has prepared.
    key: u64,
}

impl PostgresWriter {
    async fn prepare_statements(
        &self,
        connection: &mut PooledConnection,
    ) -> Result<PreparedStatements, tokio_postgres::Error> {
        if let Some(prepared) = connection.prepared.get(&self.key) {
            return Ok(prepared.clone());
        }
        let single = connection.client.prepare(&self.sql.statement(1)).await?;
        let types: Option<Vec<String>> = single.params().iter().map(type_name).collect();
        let arrays = match types.and_then(|types| self.sql.unnest_insert(&types)) {
            Some(statement) => Some(connection.client.prepare(&statement).await?),
            None => None,
        };
        let prepared = PreparedStatements { single, arrays };
        connection.prepared.insert(self.key, prepared.clone());
        Ok(prepared)
    }

    async fn write_rows(
        &self,
        connection: &mut PooledConnection,
        batch: &SinkBatch,
    ) -> Result<(), tokio_postgres::Error> {
        let prepared = self.prepare_statements(connection).await?;
        let Some(statement) = prepared.arrays.filter(|_| batch.len() > 1) else {
            return self
                .write_row_by_row(connection, &prepared.single, batch)
                .await;
        };
        let written = self.write_as_arrays(connection, &statement, batch).await;
        match written {
            // ON CONFLICT DO UPDATE cannot affect a row twice in one statement.
            Err(error) if error.code().is_some_and(|code| code.code() == "21000") => {
                self.write_row_by_row(connection, &prepared.single, batch)
                    .await
            }
            written => written,
        }
    }

    async fn write_as_arrays(
        &self,
        connection: &PooledConnection,
        statement: &Statement,
        batch: &SinkBatch,
    ) -> Result<(), tokio_postgres::Error> {
        let mut arrays: Vec<ArrayBuilder> = (self.sql.parameters().iter())
            .map(|_| ArrayBuilder::new(batch.len()))
            .collect();
        for row in batch.rows() {
            self.sql.bind(row, |at, value| arrays[at].push(value));
        }
        let arrays: Vec<TextParameter> = arrays.into_iter().map(ArrayBuilder::finish).collect();
        let parameters = arrays.iter().map(|array| array as &(dyn ToSql + Sync));
        let parameters: Vec<_> = parameters.collect();
        connection.client.execute(statement, &parameters).await?;
        Ok(())
    }

    /// Runs a statement per row, pipelined in one transaction.
    async fn write_row_by_row(
        &self,
        connection: &PooledConnection,
        statement: &Statement,
        batch: &SinkBatch,
    ) -> Result<(), tokio_postgres::Error> {
        let client = &connection.client;
        let is_transaction = batch.len() > 1;
        if is_transaction {
            client.batch_execute("BEGIN").await?;
        }
        let runs = batch.rows().map(|row| async move {
            let mut values = Vec::with_capacity(self.sql.parameters().len());
            self.sql.bind(row, |_, value| {
                values.push(TextParameter::from_value(value))
            });
            let parameters = values.iter().map(|value| value as &(dyn ToSql + Sync));
            let parameters: Vec<_> = parameters.collect();
            client.execute(statement, &parameters).await
        });
        let result = try_join_all(runs).await.map(drop);
        if is_transaction {
            let end = if result.is_ok() { "COMMIT" } else { "ROLLBACK" };
            client.batch_execute(end).await?;
        }
        result
    }
}

impl SinkWriter for PostgresWriter {
    fn check(&self) -> Option<BoxFuture<'_, Result<String, ConnectorError>>> {
        Some(Box::pin(async move {
            let pool = &self.postgres.pool;
            let mut connection = pool.acquire().await?;
            self.prepare_statements(&mut connection)
                .await
                .map_err(failure)?;
            pool.release(connection);
            Ok("the statement is valid".into())
        }))
    }

    fn write<'a>(&'a self, batch: &'a SinkBatch) -> BoxFuture<'a, WriteOutcome> {
        Box::pin(async move {
            let pool = &self.postgres.pool;
            let mut connection = match pool.acquire().await {
                Ok(connection) => connection,
                Err(failure) => return WriteOutcome::Failed(failure),
            };
            let result = self
                .write_rows(&mut connection, batch)
                .await
                .map_err(failure);
            let is_usable = match &result {
                Ok(()) => true,
                // After other errors prepare again: a table may have been altered.
                Err(failure) => failure.retryable == crate::connector::Retryable::BadRows,
            };
            if is_usable {
                pool.release(connection);
            }
            result.into()
        })
    }
}

/// The type name for a cast; `None` if arrays of it do not unnest to one element per row.
fn type_name(kind: &Type) -> Option<String> {
    if matches!(kind.kind(), TypeKind::Array(_) | TypeKind::Pseudo) {
        return None;
    }
    let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
    Some(format!("{}.{}", quoted(kind.schema()), quoted(kind.name())))
}

/// Binds row values as parameters of one statement.
impl TextParameter {
    fn from_value(value: row::SinkValue<'_>) -> Self {
        parameters::text_parameter(value)
    }
}
