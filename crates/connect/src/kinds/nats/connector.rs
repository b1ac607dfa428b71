//! The cluster of a connector, and the connection that its sinks share.

use std::sync::Arc;

use super::connection::NatsConnection;
use super::credentials::{NatsCredentials, NatsSettings};
use crate::connector::ConnectorError;
use crate::settings::{SettingsError, host_and_port};

const DEFAULT_PORT: u16 = 4222;
const MAX_SERVERS: usize = 64;

/// The servers of a cluster, and the connection to one of them that all sinks share.
pub(super) struct NatsConnector {
    servers: Vec<(String, u16)>,
    login: NatsCredentials,
    connection: tokio::sync::Mutex<Option<Arc<NatsConnection>>>,
}

impl NatsConnector {
    /// `name` is that of the connector.
    pub(super) fn new(settings: NatsSettings, name: &str) -> Result<Self, SettingsError> {
        if settings.servers.is_empty() || settings.servers.len() > MAX_SERVERS {
            let detail = format!("expected 1 to {MAX_SERVERS} servers");
            return Err(SettingsError::new("servers", detail));
        }
        let servers = settings.servers.iter().enumerate().map(|(at, server)| {
            let server = server.strip_prefix("nats://").unwrap_or(server);
            host_and_port(&format!("servers[{at}]"), server, DEFAULT_PORT)
        });
        let servers = servers.collect::<Result<_, _>>()?;
        Ok(Self {
            servers,
            login: NatsCredentials::read(settings, name)?,
            connection: tokio::sync::Mutex::default(),
        })
    }

    /// The shared connection, opened if needed.
    pub(super) async fn connection(&self) -> Result<Arc<NatsConnection>, ConnectorError> {
        let mut slot = self.connection.lock().await;
        if let Some(session) = slot.as_ref().filter(|session| !session.is_closed()) {
            return Ok(session.clone());
        }
        let session = Arc::new(self.connect().await?);
        *slot = Some(session.clone());
        Ok(session)
    }

    pub(super) async fn connect(&self) -> Result<NatsConnection, ConnectorError> {
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
