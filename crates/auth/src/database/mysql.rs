//! MySQL and MariaDB.

use std::time::Duration;

use mysql_async::prelude::Queryable as _;
use mysql_async::{OptsBuilder, Params, PoolConstraints, PoolOpts, SslOpts, Value};
use outbound::mysql::MySqlPool;

use super::statement::{ParameterStyle, ParameterizedStatement};
use super::user_database::{DatabaseRow, DatabaseSettings, UserDatabase};
use crate::authenticator::{AnswerFuture, AuthBackendError, LoginRequest};
use crate::tls;

const DEFAULT_PORT: u16 = 3306;
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
const KEEP_ALIVE: Duration = Duration::from_secs(30);

pub(super) struct MySqlUserDatabase {
    pool: MySqlPool,
    statement: ParameterizedStatement,
}

impl MySqlUserDatabase {
    pub(super) fn new(settings: &DatabaseSettings) -> Result<Self, String> {
        let statement = ParameterizedStatement::parse(&settings.query, ParameterStyle::Question)
            .map_err(|error| format!("query: {error}"))?;
        let (host, port) = settings.host_and_port(DEFAULT_PORT)?;
        let constraints =
            PoolConstraints::new(0, settings.pool_size).ok_or("pool_size: expected at least 1")?;
        let pool = PoolOpts::new()
            .with_constraints(constraints)
            .with_inactive_connection_ttl(IDLE_TIMEOUT);
        let mut options = OptsBuilder::default()
            .user(settings.username.clone())
            .pass(settings.password())
            .db_name(settings.database.clone())
            .pool_opts(pool)
            // A Unix socket could lead to a different server than the configured one.
            .prefer_socket(false)
            .tcp_keepalive(Some(KEEP_ALIVE));
        if settings.tls {
            let trusted = match &settings.tls_ca {
                Some(file) => vec![file.clone().into()],
                None => outbound::tls::load_system_authorities()
                    .map_err(tls::error_with_setting)?
                    .iter()
                    .map(|authority| authority.to_vec().into())
                    .collect(),
            };
            // Do not trust the authorities built into the library.
            let tls = SslOpts::default()
                .with_root_certs(trusted)
                .with_disable_built_in_roots(true);
            options = options.ssl_opts(tls);
        }
        Ok(Self {
            pool: MySqlPool::new(options, host, port),
            statement,
        })
    }

    async fn query(&self, request: &LoginRequest) -> Result<Vec<DatabaseRow>, mysql_async::Error> {
        let parameters = self.statement.parameters(request).into_iter();
        let parameters: Vec<Value> = parameters
            .map(|value| value.map_or(Value::NULL, |text| Value::Bytes(text.into_bytes())))
            .collect();
        let parameters = match parameters.is_empty() {
            true => Params::Empty,
            false => Params::Positional(parameters),
        };
        let mut connection = self.pool.get_conn().await?;
        let rows: Vec<mysql_async::Row> = connection
            .exec(self.statement.sql.as_str(), parameters)
            .await?;
        Ok(rows.into_iter().map(convert_row).collect())
    }
}

fn convert_row(row: mysql_async::Row) -> DatabaseRow {
    let columns = row.columns();
    let names = columns
        .iter()
        .map(|column| column.name_str().to_lowercase());
    names
        .zip(row.unwrap().into_iter().map(value_to_text))
        .collect()
}

fn value_to_text(value: Value) -> Option<String> {
    match value {
        Value::Bytes(bytes) => match <[u8; 1]>::try_from(bytes.as_slice()) {
            // BIT(1)
            Ok([bit @ (0 | 1)]) => Some(bit.to_string()),
            _ => String::from_utf8(bytes).ok(),
        },
        Value::Int(number) => Some(number.to_string()),
        Value::UInt(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        Value::Double(number) => Some(number.to_string()),
        Value::NULL | Value::Date(..) | Value::Time(..) => None,
    }
}

impl UserDatabase for MySqlUserDatabase {
    fn query_rows<'a>(
        &'a self,
        request: &'a LoginRequest,
    ) -> AnswerFuture<'a, Result<Vec<DatabaseRow>, AuthBackendError>> {
        Box::pin(async move {
            let first = self.query(request).await;
            let answer = match first {
                // The server may have closed an idle connection: retry once.
                Err(mysql_async::Error::Io(_)) => self.query(request).await,
                answer => answer,
            };
            answer.map_err(AuthBackendError::new)
        })
    }
}
