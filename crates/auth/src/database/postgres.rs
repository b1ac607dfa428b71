//! PostgreSQL. Queries are pipelined on a connection, so a few connections serve many clients.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bytes::BytesMut;
use outbound::postgres::{self, PostgresServer};
use tokio::sync::Mutex;
use tokio_postgres::types::{Format, FromSql, IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, Config};

use super::statement::{ParameterStyle, ParameterizedStatement};
use super::user_database::{DatabaseRow, DatabaseSettings, UserDatabase};
use crate::authenticator::{AnswerFuture, AuthBackendError, LoginRequest};
use crate::tls;

const DEFAULT_PORT: u16 = 5432;

pub(super) struct PostgresUserDatabase {
    server: PostgresServer,
    statement: ParameterizedStatement,
    slots: Vec<Mutex<Option<Arc<PreparedConnection>>>>,
    next: AtomicUsize,
}

/// A connection with the prepared statement.
struct PreparedConnection {
    client: Client,
    statement: tokio_postgres::Statement,
}

impl PostgresUserDatabase {
    pub(super) fn new(settings: &DatabaseSettings) -> Result<Self, String> {
        let statement = ParameterizedStatement::parse(&settings.query, ParameterStyle::Numbered)
            .map_err(|error| format!("query: {error}"))?;
        let (host, port) = settings.host_and_port(DEFAULT_PORT)?;
        let mut config = Config::new();
        if let Some(username) = &settings.username {
            config.user(username);
        }
        if let Some(password) = &settings.password {
            config.password(password.reveal());
        }
        if let Some(database) = &settings.database {
            config.dbname(database);
        }
        let tls = match settings.tls {
            false => None,
            true => Some(tls::client_config(settings.tls_ca.as_deref())?),
        };
        Ok(Self {
            server: PostgresServer::new(config, host, port, tls),
            statement,
            slots: (0..settings.pool_size).map(|_| Mutex::default()).collect(),
            next: AtomicUsize::new(0),
        })
    }

    async fn connect(&self) -> Result<PreparedConnection, PostgresQueryError> {
        let (client, _) = self.server.connect().await?;
        let statement = client.prepare(&self.statement.sql).await?;
        Ok(PreparedConnection { client, statement })
    }

    /// A connection that is not known to be closed.
    async fn prepared_connection(&self) -> Result<Arc<PreparedConnection>, PostgresQueryError> {
        let at = self.next.fetch_add(1, Relaxed) % self.slots.len();
        let mut slot = self.slots[at].lock().await;
        match &*slot {
            Some(ready) if !ready.client.is_closed() => Ok(ready.clone()),
            _ => {
                let ready = Arc::new(self.connect().await?);
                *slot = Some(ready.clone());
                Ok(ready)
            }
        }
    }

    async fn query(&self, request: &LoginRequest) -> Result<Vec<DatabaseRow>, PostgresQueryError> {
        let parameters: Vec<TextParameter> = self
            .statement
            .parameters(request)
            .into_iter()
            .map(TextParameter)
            .collect();
        let parameters: Vec<&(dyn ToSql + Sync)> = parameters
            .iter()
            .map(|parameter| parameter as &(dyn ToSql + Sync))
            .collect();
        let ready = self.prepared_connection().await?;
        let rows = ready.client.query(&ready.statement, &parameters).await;
        let rows = rows.map_err(|error| PostgresQueryError {
            is_closed: ready.client.is_closed(),
            ..error.into()
        })?;
        Ok(rows.iter().map(convert_row).collect())
    }
}

/// A failed query, and whether the connection had been closed.
struct PostgresQueryError {
    error: String,
    is_closed: bool,
}

impl From<postgres::PostgresError> for PostgresQueryError {
    fn from(error: postgres::PostgresError) -> Self {
        Self {
            error: error.to_string(),
            is_closed: false,
        }
    }
}

impl From<tokio_postgres::Error> for PostgresQueryError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self {
            error: postgres::error_message(&error),
            is_closed: false,
        }
    }
}

impl From<PostgresQueryError> for AuthBackendError {
    fn from(error: PostgresQueryError) -> Self {
        AuthBackendError(error.error)
    }
}

fn convert_row(row: &tokio_postgres::Row) -> DatabaseRow {
    let columns = row.columns().iter().enumerate();
    columns
        .map(|(at, column)| {
            let value: Option<TextColumn> = row.try_get(at).unwrap_or(None);
            (column.name().to_lowercase(), value.map(|text| text.0))
        })
        .collect()
}

/// A parameter sent as text; the server converts it to the required type.
#[derive(Debug)]
struct TextParameter(Option<String>);

impl ToSql for TextParameter {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        match &self.0 {
            None => Ok(IsNull::Yes),
            Some(text) => {
                out.extend_from_slice(text.as_bytes());
                Ok(IsNull::No)
            }
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        Format::Text
    }

    to_sql_checked!();
}

/// A column value as text, for the types used for users and rules.
struct TextColumn(String);

impl<'a> FromSql<'a> for TextColumn {
    fn from_sql(kind: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(match *kind {
            Type::BOOL => bool::from_sql(kind, raw)?.to_string(),
            Type::INT2 => i16::from_sql(kind, raw)?.to_string(),
            Type::INT4 => i32::from_sql(kind, raw)?.to_string(),
            Type::INT8 => i64::from_sql(kind, raw)?.to_string(),
            // Text, name and enumeration types.
            _ => std::str::from_utf8(raw)?.to_owned(),
        }))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

impl UserDatabase for PostgresUserDatabase {
    fn query_rows<'a>(
        &'a self,
        request: &'a LoginRequest,
    ) -> AnswerFuture<'a, Result<Vec<DatabaseRow>, AuthBackendError>> {
        Box::pin(async move {
            match self.query(request).await {
                // The server may have been restarted: retry once.
                Err(error) if error.is_closed => Ok(self.query(request).await?),
                answer => Ok(answer?),
            }
        })
    }
}
