//! The cluster of a connector, and the connections that its sinks share.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use kafka::{KafkaCluster, KafkaConnectionOptions, KafkaError, SaslCredentials, SaslMechanism};
use schemars::JsonSchema;
use secret::Secret;
use serde::Deserialize;

use crate::connector::ConnectorError;
use crate::settings::{SettingsError, check_range, host_and_port};
use crate::tls::TlsSettings;

const DEFAULT_PORT: u16 = 9092;
const MAX_SERVERS: usize = 64;
/// Brokers' limit on client and group names.
pub(super) const MAX_NAME_BYTES: usize = 249;

/// Settings of the connection to a cluster.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct KafkaSettings {
    /// Bootstrap brokers, as `HOST` or `HOST:PORT`; the first that answers is used.
    #[schemars(length(min = 1, max = 64))]
    servers: Vec<String>,
    /// Client id in logs and quotas of the brokers.
    #[serde(default = "default_client_id")]
    #[schemars(length(min = 1, max = 249))]
    client_id: String,
    /// SASL mechanism. Default: no login.
    sasl_mechanism: Option<SaslMechanism>,
    username: Option<String>,
    password: Option<Secret>,
    /// File that contains the password.
    password_file: Option<PathBuf>,
    tls: Option<TlsSettings>,
    /// Time-out of requests in milliseconds.
    #[serde(default = "default_request_timeout_ms")]
    #[schemars(range(min = 100, max = 600_000))]
    request_timeout_ms: u64,
    /// Maximum age of cached metadata in seconds; it is refreshed earlier if a partition's leader changes.
    #[serde(default = "default_metadata_max_age_s")]
    #[schemars(range(min = 1, max = 86_400))]
    metadata_max_age_s: u64,
    /// Connections to each broker, shared by sinks.
    #[serde(default = "default_pool_size")]
    #[schemars(range(min = 1, max = 64))]
    pool_size: usize,
}

fn default_client_id() -> String {
    "tidegate".into()
}

fn default_request_timeout_ms() -> u64 {
    10_000
}

fn default_metadata_max_age_s() -> u64 {
    300
}

fn default_pool_size() -> usize {
    4
}

/// A cluster, and the connections that all sinks share.
pub(super) struct KafkaConnector {
    servers: Vec<(String, u16)>,
    login: Arc<KafkaConnectionOptions>,
    pub(super) cluster: Arc<KafkaCluster>,
    pool_size: usize,
    sinks: AtomicUsize,
}

impl KafkaConnector {
    pub(super) fn new(settings: KafkaSettings) -> Result<Self, SettingsError> {
        if settings.servers.is_empty() || settings.servers.len() > MAX_SERVERS {
            let detail = format!("expected 1 to {MAX_SERVERS} servers");
            return Err(SettingsError::new("servers", detail));
        }
        let servers = settings.servers.iter().enumerate();
        let servers = servers
            .map(|(at, server)| host_and_port(&format!("servers[{at}]"), server, DEFAULT_PORT))
            .collect::<Result<Vec<_>, _>>()?;
        check_range("pool_size", settings.pool_size, 1..=64)?;
        let pool_size = settings.pool_size;
        let login = Arc::new(connection_options(settings)?);
        Ok(Self {
            cluster: Arc::new(KafkaCluster::new(servers.clone(), login.clone())),
            servers,
            login,
            pool_size,
            sinks: AtomicUsize::new(0),
        })
    }

    /// The connection slot for the next sink.
    pub(super) fn next_slot(&self) -> usize {
        self.sinks.fetch_add(1, Relaxed) % self.pool_size
    }

    /// A cluster object with separate connections.
    pub(super) fn separate_cluster(&self) -> KafkaCluster {
        KafkaCluster::new(self.servers.clone(), self.login.clone())
    }
}

fn connection_options(settings: KafkaSettings) -> Result<KafkaConnectionOptions, SettingsError> {
    if !(1..=MAX_NAME_BYTES).contains(&settings.client_id.len()) {
        let detail = format!("expected 1 to {MAX_NAME_BYTES} bytes");
        return Err(SettingsError::new("client_id", detail));
    }
    let timeout_ms = settings.request_timeout_ms;
    check_range("request_timeout_ms", timeout_ms, 100..=600_000)?;
    let age_s = settings.metadata_max_age_s;
    check_range("metadata_max_age_s", age_s, 1..=86_400)?;
    let tls = match &settings.tls {
        Some(tls) => Some(tls.client_config("tls")?),
        None => None,
    };
    let password = Secret::from_setting(
        "password",
        settings.password.as_ref(),
        settings.password_file.as_ref(),
    )?;
    let missing = |field: &str| SettingsError::new(field, "missing; required with sasl_mechanism");
    let sasl = match (settings.sasl_mechanism, settings.username, password) {
        (Some(mechanism), username, password) => Some(SaslCredentials {
            mechanism,
            username: username.ok_or_else(|| missing("username"))?,
            password: password
                .ok_or_else(|| missing("password"))?
                .reveal()
                .to_owned(),
        }),
        (None, None, None) => None,
        (None, ..) => {
            let detail = "missing; required with a username or a password";
            return Err(SettingsError::new("sasl_mechanism", detail));
        }
    };
    Ok(KafkaConnectionOptions {
        client_id: settings.client_id,
        sasl,
        tls,
        request_timeout: Duration::from_millis(timeout_ms),
        metadata_max_age: Duration::from_secs(age_s),
    })
}

impl From<KafkaError> for ConnectorError {
    fn from(error: KafkaError) -> Self {
        match error {
            KafkaError::Transient(message) => Self::transient(message),
            KafkaError::BadMessage(message) => Self::bad_rows(message),
        }
    }
}
