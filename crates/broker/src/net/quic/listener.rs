//! A QUIC listener: accepts and rejects connections.

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quinn::crypto::rustls::QuicServerConfig;
use quinn::{Endpoint, EndpointConfig, Incoming, ServerConfig, TransportConfig, VarInt};
use tokio::task::AbortHandle;

use super::bridge::{self, HandshakeError};
use super::shared::QuicShared;
use crate::core::node::NodeState;
use crate::metrics::Metric;
use crate::net::inbox::{InboxItem, ShardInbox};
use crate::net::listener::ListenerSocket;
use crate::net::reserved_connection::ReservedConnection;
use crate::net::tls::ListenerTls;

/// The ALPN protocol of MQTT.
const ALPN: &[u8] = b"mqtt";
/// While more handshakes than this are unfinished, a client must first prove that it receives at its address (Retry,
/// RFC 9000 section 8.1.2), so that forged addresses leave no state.
const HANDSHAKES_BEFORE_RETRY: usize = 64;
/// Bytes of a client that are received and not yet read, before it has logged in.
const WINDOW_BEFORE_LOGIN: u32 = 64 << 10;
const STREAM_WINDOW: u32 = 256 << 10;
/// Bytes sent to a client and not yet acknowledged by it.
const SEND_WINDOW: u64 = 512 << 10;
/// Datagrams of one handshake that wait to be accepted, in bytes.
const INCOMING_BUFFER_BYTES: u64 = 16 << 10;
const ALL_INCOMING_BUFFER_BYTES: u64 = 16 << 20;
/// Silence after which a connection is lost. The keep-alive of MQTT, which is at most 18 hours, decides earlier.
const IDLE_TIMEOUT: Duration = Duration::from_secs(27 * 3600);
/// How often rejected connections are added to the metrics.
const COUNT_INTERVAL: Duration = Duration::from_millis(500);

/// A QUIC listener. Its socket stays open while the node runs, since connections remain when the listener is stopped.
pub(crate) struct QuicListener {
    shared: Arc<QuicShared>,
    endpoint: Endpoint,
    threads: tokio::runtime::Handle,
    tls: Arc<ListenerTls>,
    /// The TLS configuration that the QUIC configuration was made of.
    config: Mutex<(Arc<rustls::ServerConfig>, Arc<ServerConfig>)>,
    accepting: Mutex<Vec<AbortHandle>>,
    /// Connections whose handshake, or whose first stream, is incomplete.
    unfinished: AtomicUsize,
    rejected: RejectedCounts,
}

/// Rejected connections that the metrics do not contain yet.
#[derive(Default)]
struct RejectedCounts {
    limit: AtomicU64,
    handshake: AtomicU64,
    timeout: AtomicU64,
    retries: AtomicU64,
}

impl QuicListener {
    /// A listener on this UDP socket, which accepts nothing until it is started.
    pub(crate) fn new(
        ListenerSocket { context, socket }: ListenerSocket,
        threads: tokio::runtime::Handle,
        node: Arc<NodeState>,
        inboxes: Arc<[ShardInbox]>,
    ) -> io::Result<Arc<Self>> {
        let no_certificate = || io::Error::other("it has no certificate");
        let tls = context.tls.clone().ok_or_else(no_certificate)?;
        let backlog = context.config.backlog as usize;
        let source = tls.server_config();
        let config = server_config(&source, backlog)?;
        let local = socket.local_addr()?.as_socket();
        let local = local.ok_or(io::ErrorKind::AddrNotAvailable)?;
        let endpoint = {
            let _entered = threads.enter();
            let runtime = Arc::new(quinn::TokioRuntime);
            Endpoint::new(EndpointConfig::default(), None, socket.into(), runtime)?
        };
        Ok(Arc::new(Self {
            shared: Arc::new(QuicShared::new(context, node, inboxes, local)),
            endpoint,
            threads,
            tls,
            config: Mutex::new((source, config)),
            accepting: Mutex::default(),
            unfinished: AtomicUsize::new(0),
            rejected: RejectedCounts::default(),
        }))
    }

    /// Its place in the configuration.
    pub(crate) fn index(&self) -> usize {
        usize::from(self.shared.context.index)
    }

    /// Accepts connections.
    pub(crate) fn start(self: &Arc<Self>) {
        self.endpoint
            .set_server_config(Some(ServerConfig::clone(&self.current_config())));
        let accept = self.threads.spawn(self.clone().accept_connections());
        let count = self.threads.spawn(self.clone().count_rejected());
        *self.lock_accepting() = vec![accept.abort_handle(), count.abort_handle()];
    }

    /// Rejects new connections. Those that exist stay.
    pub(crate) fn stop(&self) {
        self.endpoint.set_server_config(None);
        for task in self.lock_accepting().drain(..) {
            task.abort();
        }
    }

    /// Waits until all connections have ended and the clients know.
    pub(crate) async fn wait_until_idle(&self) {
        self.endpoint.wait_idle().await;
    }

    fn lock_accepting(&self) -> MutexGuard<'_, Vec<AbortHandle>> {
        self.accepting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The configuration for a new connection, with the current certificate.
    fn current_config(&self) -> Arc<ServerConfig> {
        let source = self.tls.server_config();
        let mut current = self.config.lock().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&current.0, &source) {
            match server_config(&source, self.shared.context.config.backlog as usize) {
                Ok(config) => *current = (source, config),
                Err(error) => {
                    let listener = &self.shared.context.config.name;
                    tracing::error!(%listener, %error, "QUIC cannot use the new certificate and continues with the previous one");
                    current.0 = source;
                }
            }
        }
        current.1.clone()
    }

    async fn accept_connections(self: Arc<Self>) {
        while let Some(incoming) = self.endpoint.accept().await {
            let unfinished = self.unfinished.load(Relaxed);
            let wait = self.shared.context.rate_delay();
            if !incoming.remote_address_validated()
                && (unfinished >= HANDSHAKES_BEFORE_RETRY || wait.is_some())
            {
                self.rejected.retries.fetch_add(1, Relaxed);
                // It fails only for a validated address.
                let _ = incoming.retry();
                continue;
            }
            if let Some(wait) = wait {
                tokio::time::sleep(wait).await;
            }
            self.admit(incoming, unfinished);
        }
    }

    fn admit(self: &Arc<Self>, incoming: Incoming, unfinished: usize) {
        let reserved = match unfinished < self.shared.context.config.backlog as usize {
            true => ReservedConnection::reserve(&self.shared.node, &self.shared.context),
            false => None,
        };
        let Some(reserved) = reserved else {
            self.rejected.limit.fetch_add(1, Relaxed);
            incoming.refuse();
            return;
        };
        self.shared.context.count_accepted();
        let unfinished = UnfinishedHandshake::new(self.clone());
        let config = self.current_config();
        let listener = self.clone();
        self.threads.spawn(async move {
            let accepted = bridge::accept(&listener.shared, incoming, config).await;
            drop(unfinished);
            let rejected = &listener.rejected;
            match accepted {
                Ok(accepted) => accepted.serve(listener.shared.clone(), reserved).await,
                Err(HandshakeError::Failed) => drop(rejected.handshake.fetch_add(1, Relaxed)),
                Err(HandshakeError::TimedOut) => drop(rejected.timeout.fetch_add(1, Relaxed)),
            }
        });
    }

    /// Adds rejected connections to the metrics of a shard, which only the shard may change.
    async fn count_rejected(self: Arc<Self>) {
        let mut interval = tokio::time::interval(COUNT_INTERVAL);
        loop {
            interval.tick().await;
            let counts = [
                (Metric::ConnectionsRejectedLimit, &self.rejected.limit),
                (
                    Metric::ConnectionsRejectedHandshake,
                    &self.rejected.handshake,
                ),
                (Metric::ConnectionsRejectedTimeout, &self.rejected.timeout),
                (Metric::QuicRetries, &self.rejected.retries),
            ];
            let counts = counts.map(|(metric, count)| (metric, count.swap(0, Relaxed)));
            if counts.iter().any(|(_, count)| *count > 0) {
                self.shared.inboxes[0].push(InboxItem::Query(Box::new(move |shard| {
                    for (metric, count) in counts {
                        shard.metrics().add(metric, count);
                    }
                })));
            }
        }
    }
}

/// Counts a connection as unfinished for as long as it exists.
struct UnfinishedHandshake(Arc<QuicListener>);

impl UnfinishedHandshake {
    fn new(listener: Arc<QuicListener>) -> Self {
        listener.unfinished.fetch_add(1, Relaxed);
        Self(listener)
    }
}

impl Drop for UnfinishedHandshake {
    fn drop(&mut self) {
        self.0.unfinished.fetch_sub(1, Relaxed);
    }
}

/// `backlog`: connections that wait to be accepted.
fn server_config(tls: &rustls::ServerConfig, backlog: usize) -> io::Result<Arc<ServerConfig>> {
    let mut tls = tls.clone();
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let tls = QuicServerConfig::try_from(tls).map_err(io::Error::other)?;
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(1))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW))
        .receive_window(VarInt::from_u32(WINDOW_BEFORE_LOGIN))
        .send_window(SEND_WINDOW)
        .datagram_receive_buffer_size(None)
        .max_idle_timeout(IDLE_TIMEOUT.try_into().ok());
    let mut config = ServerConfig::with_crypto(Arc::new(tls));
    config
        .transport_config(Arc::new(transport))
        .max_incoming(backlog)
        .incoming_buffer_size(INCOMING_BUFFER_BYTES)
        .incoming_buffer_size_total(ALL_INCOMING_BUFFER_BYTES);
    Ok(Arc::new(config))
}
