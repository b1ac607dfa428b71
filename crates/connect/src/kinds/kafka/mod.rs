//! Kafka, and what speaks its protocol. It is spoken here: the usual clients mend broken connections by themselves, cannot say
//! which rows of a batch failed, and know nothing of rows that the machine tries again.

mod cluster;
mod compression;
mod fetch;
mod flight;
mod group;
mod partition;
mod producer;
mod record;
mod sasl;
mod session;
mod sink;
mod source;
mod wire;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use rustls::ClientConfig;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::connector::{
    BatchDefaults, Connector, Context, Doing, Failure, Kind, Opened, Reader, Writer, schema_of,
};
use crate::secret::Secret;
use crate::settings::{Invalid, check_range, host_and_port, read};
use crate::tls::Tls;
use cluster::Cluster;
use sasl::{Mechanism, Sasl};

pub(super) const KIND: Kind = Kind {
    name: "kafka",
    title: "Kafka",
    batch: BatchDefaults::USUAL,
    connector_schema: schema_of::<Settings>,
    sink_schema: schema_of::<sink::Settings>,
    source_schema: Some(schema_of::<source::Settings>),
    open,
};

const USUAL_PORT: u16 = 9092;
const MAX_SERVERS: usize = 64;
/// What brokers allow in names of clients and groups.
const MAX_NAME_BYTES: usize = 249;

/// Where the cluster is, and who we are.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// Brokers to ask for the others, as `HOST` or `HOST:PORT`; the first that answers is asked.
    #[schemars(length(min = 1, max = 64))]
    servers: Vec<String>,
    /// What brokers call us in logs and quotas.
    #[serde(default = "tidegate")]
    #[schemars(length(min = 1, max = 249))]
    client_id: String,
    /// How we log in. Left out: we do not.
    sasl: Option<Mechanism>,
    username: Option<String>,
    password: Option<Secret>,
    /// File with the password.
    password_file: Option<PathBuf>,
    tls: Option<Tls>,
    /// A broker that does not answer for so long is left.
    #[serde(default = "ten_seconds_ms")]
    #[schemars(range(min = 100, max = 600_000))]
    request_timeout_ms: u64,
    /// What is known of topics is asked for anew after so long; earlier if a partition's leader has changed.
    #[serde(default = "five_minutes_s")]
    #[schemars(range(min = 1, max = 86_400))]
    metadata_max_age_s: u64,
    /// Connections to each broker, which sinks share.
    #[serde(default = "four")]
    #[schemars(range(min = 1, max = 64))]
    pool_size: usize,
}

fn tidegate() -> String {
    "tidegate".into()
}

fn ten_seconds_ms() -> u64 {
    10_000
}

fn five_minutes_s() -> u64 {
    300
}

fn four() -> usize {
    4
}

/// How connections are made and used.
struct Login {
    client_id: String,
    sasl: Option<Sasl>,
    tls: Option<Arc<ClientConfig>>,
    request_timeout: Duration,
    metadata_max_age: Duration,
}

/// A cluster, with the connections that all sinks share.
struct Kafka {
    servers: Vec<(String, u16)>,
    login: Arc<Login>,
    cluster: Arc<Cluster>,
    pool_size: usize,
    sinks: AtomicUsize,
}

fn open(fields: Map<String, Value>, _: &Context) -> Opened {
    let settings: Settings = read(fields)?;
    if settings.servers.is_empty() || settings.servers.len() > MAX_SERVERS {
        let detail = format!("expected 1 to {MAX_SERVERS} servers");
        return Err(Invalid::new("servers", detail));
    }
    let servers = settings.servers.iter().enumerate();
    let servers = servers
        .map(|(at, server)| host_and_port(&format!("servers[{at}]"), server, USUAL_PORT))
        .collect::<Result<Vec<_>, _>>()?;
    check_range("pool_size", settings.pool_size, 1..=64)?;
    let pool_size = settings.pool_size;
    let login = Arc::new(login(settings)?);
    Ok(Arc::new(Kafka {
        cluster: Arc::new(Cluster::new(servers.clone(), login.clone())),
        servers,
        login,
        pool_size,
        sinks: AtomicUsize::new(0),
    }))
}

fn login(settings: Settings) -> Result<Login, Invalid> {
    if !(1..=MAX_NAME_BYTES).contains(&settings.client_id.len()) {
        let detail = format!("expected 1 to {MAX_NAME_BYTES} bytes");
        return Err(Invalid::new("client_id", detail));
    }
    let timeout_ms = settings.request_timeout_ms;
    check_range("request_timeout_ms", timeout_ms, 100..=600_000)?;
    let age_s = settings.metadata_max_age_s;
    check_range("metadata_max_age_s", age_s, 1..=86_400)?;
    let tls = match &settings.tls {
        Some(tls) => Some(tls.client_config("tls")?),
        None => None,
    };
    let password = Secret::of_setting(
        "password",
        settings.password.as_ref(),
        settings.password_file.as_ref(),
    )?;
    let missing = |field: &str| Invalid::new(field, "missing; there is sasl");
    let sasl = match (settings.sasl, settings.username, password) {
        (Some(mechanism), username, password) => Some(Sasl {
            mechanism,
            username: username.ok_or_else(|| missing("username"))?,
            password: password.ok_or_else(|| missing("password"))?,
        }),
        (None, None, None) => None,
        (None, ..) => {
            let detail = "missing; there is a username or a password";
            return Err(Invalid::new("sasl", detail));
        }
    };
    Ok(Login {
        client_id: settings.client_id,
        sasl,
        tls,
        request_timeout: Duration::from_millis(timeout_ms),
        metadata_max_age: Duration::from_secs(age_s),
    })
}

impl Kafka {
    /// Which of the connections to each broker the next sink uses.
    fn next_slot(&self) -> usize {
        self.sinks.fetch_add(1, Relaxed) % self.pool_size
    }

    /// Connections of one's own.
    fn apart(&self) -> Cluster {
        Cluster::new(self.servers.clone(), self.login.clone())
    }
}

impl Connector for Kafka {
    fn writer(self: Arc<Self>, settings: Map<String, Value>) -> Result<Arc<dyn Writer>, Invalid> {
        Ok(Arc::new(sink::Sink::new(self, read(settings)?)?))
    }

    fn test(&self) -> Doing<'_, Result<String, Failure>> {
        Box::pin(async { self.apart().describe().await })
    }

    fn reader(self: Arc<Self>, settings: Map<String, Value>) -> Result<Arc<dyn Reader>, Invalid> {
        Ok(Arc::new(source::Source::new(self, read(settings)?)?))
    }
}
