//! Connector kind `nats`: NATS and JetStream, with its own protocol implementation. The usual client reconnects by itself and sends
//! buffered messages before lost ones are retried, which breaks the order, and cannot report what a server has read.

mod connection;
mod nkey;
mod protocol;
mod sink;
mod source;

use std::path::PathBuf;
use std::sync::Arc;

use rustls::ClientConfig;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::connector::{
    BatchDefaults, BoxFuture, Connector, ConnectorContext, ConnectorError, ConnectorKind,
    OpenConnectorResult, SinkWriter, SourceReader, schema_of,
};
use crate::secret::Secret;
use crate::settings::{SettingsError, host_and_port, parse_settings};
use crate::tls::TlsSettings;
use connection::NatsConnection;
use nkey::NKey;

pub(super) const KIND: ConnectorKind = ConnectorKind {
    name: "nats",
    title: "NATS and JetStream",
    batch: BatchDefaults::DEFAULT,
    connector_schema: schema_of::<NatsSettings>,
    sink_schema: schema_of::<sink::NatsSinkSettings>,
    source_schema: Some(schema_of::<source::NatsSourceSettings>),
    open,
};

const DEFAULT_PORT: u16 = 4222;
const MAX_SERVERS: usize = 64;

/// Settings of the connection to a NATS cluster.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NatsSettings {
    /// Servers of one cluster, as `HOST` or `HOST:PORT`; the first that answers is used.
    #[schemars(length(min = 1, max = 64))]
    servers: Vec<String>,
    user: Option<String>,
    password: Option<Secret>,
    /// File that contains the password.
    password_file: Option<PathBuf>,
    token: Option<Secret>,
    /// File that contains the token.
    token_file: Option<PathBuf>,
    /// Seed of an NKey, `SU...`.
    nkey_seed: Option<Secret>,
    /// File that contains the seed.
    nkey_seed_file: Option<PathBuf>,
    /// File with a user's JWT and seed, as written by `nsc` (`.creds`).
    credentials_file: Option<PathBuf>,
    tls: Option<TlsSettings>,
}

/// Credentials sent to a server.
struct NatsCredentials {
    name: String,
    user: Option<String>,
    password: Option<Secret>,
    token: Option<Secret>,
    jwt: Option<Secret>,
    nkey: Option<NKey>,
    tls: Option<Arc<ClientConfig>>,
}

/// The servers of a cluster, and the connection to one of them that all sinks share.
struct NatsConnector {
    servers: Vec<(String, u16)>,
    login: NatsCredentials,
    connection: tokio::sync::Mutex<Option<Arc<NatsConnection>>>,
}

fn open(fields: Map<String, Value>, context: &ConnectorContext) -> OpenConnectorResult {
    let settings: NatsSettings = parse_settings(fields)?;
    if settings.servers.is_empty() || settings.servers.len() > MAX_SERVERS {
        let detail = format!("expected 1 to {MAX_SERVERS} servers");
        return Err(SettingsError::new("servers", detail));
    }
    let servers = settings.servers.iter().enumerate().map(|(at, server)| {
        let server = server.strip_prefix("nats://").unwrap_or(server);
        host_and_port(&format!("servers[{at}]"), server, DEFAULT_PORT)
    });
    let servers = servers.collect::<Result<_, _>>()?;
    Ok(Arc::new(NatsConnector {
        servers,
        login: read_credential_settings(settings, context)?,
        connection: tokio::sync::Mutex::default(),
    }))
}

fn read_credential_settings(
    settings: NatsSettings,
    context: &ConnectorContext,
) -> Result<NatsCredentials, SettingsError> {
    let NatsSettings {
        password, token, ..
    } = &settings;
    let password = Secret::from_setting(
        "password",
        password.as_ref(),
        settings.password_file.as_ref(),
    )?;
    let token = Secret::from_setting("token", token.as_ref(), settings.token_file.as_ref())?;
    let seed = Secret::from_setting(
        "nkey_seed",
        settings.nkey_seed.as_ref(),
        settings.nkey_seed_file.as_ref(),
    )?;
    if password.is_some() && settings.user.is_none() {
        return Err(SettingsError::new(
            "user",
            "missing; required with a password",
        ));
    }
    let mut nkey = match seed {
        None => None,
        Some(seed) => {
            let key = NKey::from_seed(seed.reveal());
            Some(key.map_err(|error| SettingsError::new("nkey_seed", error))?)
        }
    };
    let mut jwt = None;
    if let Some(path) = &settings.credentials_file {
        let wrong = |why: String| {
            let detail = format!("{}: {why}", path.display());
            SettingsError::new("credentials_file", detail)
        };
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        let (token, seed) = nkey::read_credentials(&text)
            .ok_or_else(|| wrong("expected a JWT and a seed, as nsc writes them".into()))?;
        nkey = Some(NKey::from_seed(&seed).map_err(wrong)?);
        jwt = Some(Secret::from(token.as_str()));
    }
    let tls = match &settings.tls {
        Some(tls) => Some(tls.client_config("tls")?),
        None => None,
    };
    Ok(NatsCredentials {
        name: format!("tidegate {}", context.name),
        user: settings.user,
        password,
        token,
        jwt,
        nkey,
        tls,
    })
}

impl NatsConnector {
    /// The shared connection, opened if needed.
    async fn connection(&self) -> Result<Arc<NatsConnection>, ConnectorError> {
        let mut slot = self.connection.lock().await;
        if let Some(session) = slot.as_ref().filter(|session| !session.is_closed()) {
            return Ok(session.clone());
        }
        let session = Arc::new(self.connect().await?);
        *slot = Some(session.clone());
        Ok(session)
    }

    async fn connect(&self) -> Result<NatsConnection, ConnectorError> {
        let mut why = Vec::new();
        for (host, port) in &self.servers {
            match NatsConnection::open(&self.login, host, *port).await {
                Ok(session) => return Ok(session),
                Err(failure) => why.push(failure.message),
            }
        }
        Err(ConnectorError::transient(why.join("; ")))
    }
}

impl Connector for NatsConnector {
    fn writer(
        self: Arc<Self>,
        settings: Map<String, Value>,
    ) -> Result<Arc<dyn SinkWriter>, SettingsError> {
        Ok(Arc::new(sink::NatsSinkWriter::new(
            self,
            parse_settings(settings)?,
        )?))
    }

    fn test(&self) -> BoxFuture<'_, Result<String, ConnectorError>> {
        Box::pin(async {
            let info = self.connect().await?.info.clone();
            let jetstream = if info.jetstream { "with" } else { "without" };
            Ok(format!("NATS {} {jetstream} JetStream", info.version))
        })
    }

    fn reader(
        self: Arc<Self>,
        settings: Map<String, Value>,
    ) -> Result<Arc<dyn SourceReader>, SettingsError> {
        Ok(Arc::new(source::NatsSource::new(
            self,
            parse_settings(settings)?,
        )?))
    }
}
