//! Redis and what speaks its protocol: a pipeline per batch.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, IntoConnectionInfo as _, Pipeline,
    RedisConnectionInfo, RedisError, ServerError, Value as Answer,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::sync::Mutex;

use crate::batch::Batch;
use crate::connector::{
    BatchDefaults, Connector, Context, Doing, Failure, Kind, Opened, Writer, Written, schema_of,
};
use crate::secret::Secret;
use crate::settings::{Invalid, host_and_port, read};
use crate::template::Commands;
use crate::tls::Tls;

pub(super) const KIND: Kind = Kind {
    name: "redis",
    title: "Redis",
    batch: BatchDefaults::USUAL,
    connector_schema: schema_of::<Settings>,
    sink_schema: schema_of::<SinkSettings>,
    source_schema: None,
    open,
};

const USUAL_PORT: u16 = 6379;
/// Commands that change the connection all sinks share, or never answer.
const REFUSED: [&str; 18] = [
    "AUTH",
    "BLPOP",
    "BRPOP",
    "BLMOVE",
    "BZPOPMIN",
    "BZPOPMAX",
    "CLIENT",
    "DISCARD",
    "EXEC",
    "HELLO",
    "MONITOR",
    "MULTI",
    "PSUBSCRIBE",
    "QUIT",
    "RESET",
    "SELECT",
    "SUBSCRIBE",
    "WATCH",
];

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// `HOST:PORT`
    server: String,
    username: Option<String>,
    password: Option<Secret>,
    /// File that holds the password.
    password_file: Option<std::path::PathBuf>,
    /// The number of a database.
    #[serde(default)]
    #[schemars(range(min = 0))]
    database: i64,
    tls: Option<Tls>,
    #[serde(default = "five_s")]
    #[schemars(range(min = 10, max = 600_000))]
    connect_timeout_ms: u64,
}

fn five_s() -> u64 {
    5000
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SinkSettings {
    /// A command for each row, as `HSET device:${clientid} t ${payload.t}`; several are joined by `&&`. A word stays one
    /// word, whatever is filled in; quotes hold words together.
    command: String,
    /// Runs the commands of a row as a transaction.
    #[serde(default)]
    transaction: bool,
}

struct Redis {
    client: Client,
    connect_timeout: Duration,
    connection: Mutex<Option<(u64, MultiplexedConnection)>>,
}

fn open(fields: Map<String, Value>, _: &Context) -> Opened {
    let settings: Settings = read(fields)?;
    let password = Secret::of_setting(
        "password",
        settings.password.as_ref(),
        settings.password_file.as_ref(),
    )?;
    let (host, port) = host_and_port("server", &settings.server, USUAL_PORT)?;
    let address = match &settings.tls {
        None => ConnectionAddr::Tcp(host, port),
        Some(_) => ConnectionAddr::TcpTls {
            host,
            port,
            insecure: false,
            tls_params: None,
        },
    };
    let mut login = RedisConnectionInfo::default().set_db(settings.database);
    if let Some(username) = &settings.username {
        login = login.set_username(username);
    }
    if let Some(password) = &password {
        login = login.set_password(password.reveal());
    }
    let wrong = |error: RedisError| Invalid::new("server", error.to_string());
    let info = address
        .into_connection_info()
        .map_err(wrong)?
        .set_redis_settings(login);
    let client = match &settings.tls {
        None => Client::open(info),
        Some(tls) => Client::build_with_tls(info, certificates(tls)?),
    };
    Ok(Arc::new(Redis {
        client: client.map_err(wrong)?,
        connect_timeout: Duration::from_millis(settings.connect_timeout_ms),
        connection: Mutex::default(),
    }))
}

fn certificates(tls: &Tls) -> Result<redis::TlsCertificates, Invalid> {
    // Also says what is wrong with the files.
    tls.client_config("tls")?;
    let file = |field: &str, path: &std::path::Path| {
        std::fs::read(path).map_err(|error| {
            let detail = format!("{}: {error}", path.display());
            Invalid::new(field, detail)
        })
    };
    let root_cert = tls.ca.as_ref().map(|path| file("tls.ca", path));
    let client_tls = match (&tls.certificate, &tls.key) {
        (Some(certificate), Some(key)) => Some(redis::ClientTlsConfig {
            client_cert: file("tls.certificate", certificate)?,
            client_key: file("tls.key", key)?,
        }),
        _ => None,
    };
    Ok(redis::TlsCertificates {
        client_tls,
        root_cert: root_cert.transpose()?,
    })
}

impl Redis {
    /// The connection all share, and its number.
    async fn connection(&self) -> Result<(u64, MultiplexedConnection), RedisError> {
        let mut slot = self.connection.lock().await;
        if let Some(connection) = &*slot {
            return Ok(connection.clone());
        }
        // How long a batch may take is the machine's business.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect_timeout))
            .set_response_timeout(None);
        let made = self
            .client
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        static NUMBER: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        *slot = Some((number, made.clone()));
        Ok((number, made))
    }

    /// This connection is of no use any more.
    async fn forget(&self, number: u64) {
        let mut slot = self.connection.lock().await;
        slot.take_if(|(of, _)| *of == number);
    }
}

impl Connector for Redis {
    fn writer(self: Arc<Self>, settings: Map<String, Value>) -> Result<Arc<dyn Writer>, Invalid> {
        let settings: SinkSettings = read(settings)?;
        let commands = Commands::parse("command", &settings.command)?;
        for name in commands.names() {
            if REFUSED.iter().any(|other| name.eq_ignore_ascii_case(other)) {
                let detail = format!("{name} is not possible in a sink");
                return Err(Invalid::new("command", detail));
            }
        }
        Ok(Arc::new(RedisWriter {
            redis: self,
            commands,
            is_transaction: settings.transaction,
        }))
    }

    fn test(&self) -> Doing<'_, Result<String, Failure>> {
        Box::pin(async move {
            let (number, mut connection) = self.connection().await.map_err(failure)?;
            let mut info = Cmd::new();
            info.arg("INFO").arg("server");
            let answer = redis::from_redis_value::<String>(
                match connection.send_packed_command(&info).await {
                    Ok(answer) => answer,
                    Err(error) => {
                        self.forget(number).await;
                        return Err(failure(error));
                    }
                },
            );
            let text = answer.unwrap_or_default();
            let version = text
                .lines()
                .find_map(|line| line.strip_prefix("redis_version:"));
            Ok(format!(
                "Redis {}",
                version.unwrap_or("of an unknown version")
            ))
        })
    }
}

struct RedisWriter {
    redis: Arc<Redis>,
    commands: Commands,
    is_transaction: bool,
}

impl RedisWriter {
    /// Answers to one row.
    fn per_row(&self) -> usize {
        match self.is_transaction {
            true => self.commands.len() + 2,
            false => self.commands.len(),
        }
    }

    fn pipeline(&self, batch: &Batch) -> Pipeline {
        let mut pipeline = Pipeline::with_capacity(batch.len() * self.per_row());
        for row in batch.rows() {
            if self.is_transaction {
                pipeline.cmd("MULTI");
            }
            for words in self.commands.fill(row) {
                let mut command = Cmd::new();
                for word in words {
                    command.arg(word);
                }
                pipeline.add_command(command);
            }
            if self.is_transaction {
                pipeline.cmd("EXEC");
            }
        }
        pipeline
    }
}

impl Writer for RedisWriter {
    fn write<'a>(&'a self, batch: &'a Batch) -> Doing<'a, Written> {
        Box::pin(async move {
            let pipeline = self.pipeline(batch);
            let count = batch.len() * self.per_row();
            let (number, mut connection) = match self.redis.connection().await {
                Ok(connection) => connection,
                Err(error) => return Written::Failed(failure(error)),
            };
            let answers = match connection.send_packed_commands(&pipeline, 0, count).await {
                Ok(answers) if answers.len() == count => answers,
                Ok(_) => {
                    self.redis.forget(number).await;
                    return Written::Failed(Failure::passing("an answer is missing"));
                }
                Err(error) => {
                    self.redis.forget(number).await;
                    return Written::Failed(failure(error));
                }
            };
            let mut failures = Vec::new();
            for (at, answers) in answers.chunks(self.per_row()).enumerate() {
                if let Some(error) = answers.iter().find_map(error_in) {
                    failures.push((at, failure_of(error)));
                }
            }
            let is_passing =
                |(_, failure): &(usize, Failure)| failure.lasting == crate::Lasting::Passing;
            match failures.first() {
                None => Written::All,
                // A server that loads its data, or has no memory left, says so to each.
                Some((_, first))
                    if failures.len() == batch.len() && failures.iter().all(is_passing) =>
                {
                    Written::Failed(first.clone())
                }
                Some(_) => Written::Except(failures),
            }
        })
    }
}

fn error_in(answer: &Answer) -> Option<&ServerError> {
    match answer {
        Answer::ServerError(error) => Some(error),
        // Of EXEC.
        Answer::Array(answers) => answers.iter().find_map(error_in),
        _ => None,
    }
}

fn failure_of(error: &ServerError) -> Failure {
    let message = match error.details() {
        Some(details) => format!("{} {details}", error.code()),
        None => error.code().to_owned(),
    };
    match is_passing(error.code()) {
        true => Failure::passing(message),
        false => Failure::of_rows(message),
    }
}

fn is_passing(code: &str) -> bool {
    [
        "BUSY",
        "CLUSTERDOWN",
        "LOADING",
        "MASTERDOWN",
        "MISCONF",
        "NOAUTH",
        "NOPERM",
        "NOREPLICAS",
        "OOM",
        "READONLY",
        "TRYAGAIN",
        "UNBLOCKED",
        "WRONGPASS",
    ]
    .contains(&code)
}

/// Of a connection: all of these can pass.
fn failure(error: RedisError) -> Failure {
    Failure::passing(error)
}
