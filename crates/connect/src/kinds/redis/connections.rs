//! Connections to Redis servers: one to each server shared by all sinks, and one for each received stream.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use outbound::redis::{RedisOptions, RedisServer};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisConnectionInfo, RedisError, TlsCertificates, Value as Answer};

use crate::settings::SettingsError;
use crate::tls::TlsSettings;

/// Maximum number of connections; the largest clusters have a thousand servers.
const MAX_CONNECTIONS: usize = 2000;

/// Host and port.
pub(super) type ServerAddress = (String, u16);

/// The connections shared by all sinks.
pub(super) struct SharedConnections {
    options: RedisOptions,
    servers: Mutex<HashMap<ServerAddress, Arc<RedisServer>>>,
}

pub(super) fn certificates(tls: &TlsSettings) -> Result<TlsCertificates, SettingsError> {
    // Also validates the files.
    tls.client_config("tls")?;
    let file = |field: &str, path: &Path| {
        std::fs::read(path).map_err(|error| {
            let detail = format!("{}: {error}", path.display());
            SettingsError::new(field, detail)
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
    Ok(TlsCertificates {
        client_tls,
        root_cert: root_cert.transpose()?,
    })
}

impl SharedConnections {
    pub(super) fn new(
        login: RedisConnectionInfo,
        tls: Option<TlsCertificates>,
        connect_timeout: Duration,
    ) -> Self {
        Self {
            options: RedisOptions {
                login,
                tls,
                connect_timeout,
                // The machine limits the duration of a batch.
                response_timeout: None,
            },
            servers: Mutex::default(),
        }
    }

    pub(super) fn has_tls(&self) -> bool {
        self.options.tls.is_some()
    }

    pub(super) fn connect_timeout(&self) -> Duration {
        self.options.connect_timeout
    }

    /// A new, unshared connection, for callers that block on it.
    pub(super) async fn connect(
        &self,
        address: &ServerAddress,
    ) -> Result<MultiplexedConnection, RedisError> {
        self.server(address)?.connect().await
    }

    fn server(&self, address: &ServerAddress) -> Result<Arc<RedisServer>, RedisError> {
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(server) = servers.get(address) {
            return Ok(server.clone());
        }
        if servers.len() >= MAX_CONNECTIONS {
            servers.clear();
        }
        let (host, port) = address.clone();
        let server = Arc::new(RedisServer::new(host, port, &self.options)?);
        servers.insert(address.clone(), server.clone());
        Ok(server)
    }

    /// Runs commands in order. An error is an error of the connection, which is then discarded.
    pub(super) async fn run(
        &self,
        to: &ServerAddress,
        pipeline: &Pipeline,
    ) -> Result<Vec<Answer>, RedisError> {
        let server = self.server(to)?;
        let (number, mut connection) = server.shared_connection().await?;
        let count = pipeline.len();
        let error = match connection.send_packed_commands(pipeline, 0, count).await {
            Ok(answers) if answers.len() == count => return Ok(answers),
            Ok(_) => (redis::ErrorKind::Parse, "an answer is missing").into(),
            Err(error) => error,
        };
        server.discard(number).await;
        Err(error)
    }

    /// Runs one command; an error reply of the server is also returned as an error.
    pub(super) async fn request(
        &self,
        to: &ServerAddress,
        command: &Cmd,
    ) -> Result<Answer, RedisError> {
        let mut pipeline = Pipeline::with_capacity(1);
        pipeline.add_command(command.clone());
        let mut answers = self.run(to, &pipeline).await?;
        answers.pop().unwrap_or(Answer::Nil).extract_error()
    }

    /// Closes connections to servers that are no longer in use.
    pub(super) fn retain_servers(&self, wanted: &[ServerAddress]) {
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        servers.retain(|address, _| wanted.contains(address));
    }
}
