//! Connections to Redis servers that respect the target policy.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::AsyncDNSResolver;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, IntoConnectionInfo as _, RedisConnectionInfo,
    RedisFuture, RedisResult, TlsCertificates,
};
use tokio::sync::Mutex;

/// Settings of the connections to a server.
#[derive(Clone)]
pub struct RedisOptions {
    pub login: RedisConnectionInfo,
    /// `None`: without TLS. Without a root certificate, the authorities of the system are trusted.
    pub tls: Option<TlsCertificates>,
    pub connect_timeout: Duration,
    /// Limit of the time until a reply; `None`: the caller limits it.
    pub response_timeout: Option<Duration>,
}

/// A server, and the connection to it that its callers share. The name is resolved for each connection, under the target
/// policy.
pub struct RedisServer {
    client: Client,
    connect_timeout: Duration,
    response_timeout: Option<Duration>,
    shared: Mutex<Option<NumberedConnection>>,
    /// Number of the next shared connection.
    next_no: AtomicU64,
}

/// A shared connection with its number, which identifies it for [`RedisServer::discard`].
pub type NumberedConnection = (u64, MultiplexedConnection);

impl RedisServer {
    /// Does not connect yet.
    ///
    /// # Errors
    /// If the certificates are invalid.
    pub fn new(host: String, port: u16, options: &RedisOptions) -> RedisResult<Self> {
        let address = match options.tls {
            None => ConnectionAddr::Tcp(host, port),
            Some(_) => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: false,
                tls_params: None,
            },
        };
        let info = address
            .into_connection_info()?
            .set_redis_settings(options.login.clone());
        let client = match &options.tls {
            None => Client::open(info)?,
            Some(certificates) => Client::build_with_tls(info, certificates.clone())?,
        };
        Ok(Self {
            client,
            connect_timeout: options.connect_timeout,
            response_timeout: options.response_timeout,
            shared: Mutex::default(),
            next_no: AtomicU64::new(0),
        })
    }

    /// A new connection that is not shared, for callers that block on it.
    ///
    /// # Errors
    /// If the server is unreachable, denied by the target policy, or rejects the login.
    pub async fn connect(&self) -> RedisResult<MultiplexedConnection> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect_timeout))
            .set_response_timeout(self.response_timeout)
            .set_dns_resolver(PolicyResolver);
        self.client
            .get_multiplexed_async_connection_with_config(&config)
            .await
    }

    /// The shared connection; a new one if there is none. Callers that arrive meanwhile wait for it.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub async fn shared_connection(&self) -> RedisResult<NumberedConnection> {
        let mut shared = self.shared.lock().await;
        if let Some(connection) = &*shared {
            return Ok(connection.clone());
        }
        let made = (self.next_no.fetch_add(1, Relaxed), self.connect().await?);
        *shared = Some(made.clone());
        Ok(made)
    }

    /// Discards the shared connection with this number, which failed. A later one stays.
    pub async fn discard(&self, no: u64) {
        self.shared.lock().await.take_if(|(of, _)| *of == no);
    }
}

/// Lets the target policy select among the addresses of a server.
struct PolicyResolver;

impl AsyncDNSResolver for PolicyResolver {
    fn resolve<'a, 'b: 'a>(
        &'a self,
        host: &'b str,
        port: u16,
    ) -> RedisFuture<'a, Box<dyn Iterator<Item = SocketAddr> + Send + 'a>> {
        Box::pin(async move {
            let found = crate::target_policy::resolve(host, port).await?;
            Ok(Box::new(found.into_iter()) as Box<dyn Iterator<Item = SocketAddr> + Send>)
        })
    }
}
