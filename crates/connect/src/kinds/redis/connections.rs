//! Connections to Redis servers: one to each server shared by all sinks, and one for each received stream.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::AsyncDNSResolver;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, IntoConnectionInfo as _, Pipeline,
    RedisConnectionInfo, RedisError, RedisFuture, TlsCertificates, Value as Answer,
};

use super::ServerAddress;
use crate::settings::SettingsError;
use crate::tls::TlsSettings;

/// Maximum number of connections; the largest clusters have a thousand servers.
const MAX_CONNECTIONS: usize = 2000;

type ConnectionSlot = Arc<tokio::sync::Mutex<Option<(u64, MultiplexedConnection)>>>;

/// The connections shared by all sinks.
pub(super) struct SharedConnections {
    login: RedisConnectionInfo,
    tls: Option<TlsCertificates>,
    connect_timeout: Duration,
    open: Mutex<HashMap<ServerAddress, ConnectionSlot>>,
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
            login,
            tls,
            connect_timeout,
            open: Mutex::default(),
        }
    }

    pub(super) fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    pub(super) fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    /// A new, unshared connection, for callers that block on it.
    pub(super) async fn connect(
        &self,
        address: &ServerAddress,
    ) -> Result<MultiplexedConnection, RedisError> {
        let (host, port) = address.clone();
        let place = match &self.tls {
            None => ConnectionAddr::Tcp(host, port),
            Some(_) => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: false,
                tls_params: None,
            },
        };
        let info = place
            .into_connection_info()?
            .set_redis_settings(self.login.clone());
        let client = match &self.tls {
            None => Client::open(info)?,
            Some(tls) => Client::build_with_tls(info, tls.clone())?,
        };
        // The machine limits the duration of a batch.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect_timeout))
            .set_response_timeout(None)
            .set_dns_resolver(PolicyResolver);
        client
            .get_multiplexed_async_connection_with_config(&config)
            .await
    }

    fn connection_slot(&self, address: &ServerAddress) -> ConnectionSlot {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.len() >= MAX_CONNECTIONS && !open.contains_key(address) {
            open.clear();
        }
        open.entry(address.clone()).or_default().clone()
    }

    /// The shared connection, and its number.
    async fn shared_connection(
        &self,
        line: &ConnectionSlot,
        to: &ServerAddress,
    ) -> Result<NumberedConnection, RedisError> {
        let mut slot = line.lock().await;
        if let Some(connection) = &*slot {
            return Ok(connection.clone());
        }
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let made = (NUMBER.fetch_add(1, Relaxed), self.connect(to).await?);
        *slot = Some(made.clone());
        Ok(made)
    }

    /// Runs commands in order. An error is an error of the connection, which is then discarded.
    pub(super) async fn run(
        &self,
        to: &ServerAddress,
        pipeline: &Pipeline,
    ) -> Result<Vec<Answer>, RedisError> {
        let line = self.connection_slot(to);
        let (number, mut connection) = self.shared_connection(&line, to).await?;
        let count = pipeline.len();
        let error = match connection.send_packed_commands(pipeline, 0, count).await {
            Ok(answers) if answers.len() == count => return Ok(answers),
            Ok(_) => (redis::ErrorKind::Parse, "an answer is missing").into(),
            Err(error) => error,
        };
        line.lock().await.take_if(|(of, _)| *of == number);
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
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|address, _| wanted.contains(address));
    }
}

/// Lets the policy of targets select among the addresses of a server.
struct PolicyResolver;

impl AsyncDNSResolver for PolicyResolver {
    fn resolve<'a, 'b: 'a>(
        &'a self,
        host: &'b str,
        port: u16,
    ) -> RedisFuture<'a, Box<dyn Iterator<Item = SocketAddr> + Send + 'a>> {
        Box::pin(async move {
            let found = outbound::target_policy::resolve(host, port).await?;
            Ok(Box::new(found.into_iter()) as Box<dyn Iterator<Item = SocketAddr> + Send>)
        })
    }
}

type NumberedConnection = (u64, MultiplexedConnection);
