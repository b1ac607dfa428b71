//! A listener whose connections another part of the program accepts and translates to MQTT.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use hooks::{CertificateNames, PeerAddress};
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use socket2::Socket;
use tokio::net::UnixStream;
use tokio::sync::{OwnedMutexGuard, watch};
use tokio::time::timeout;

use super::inbox::{AcceptedConnection, InboxItem, ShardInbox};
use super::listener::{ListenerContext, ListenerSocket};
use super::reserved_connection::ReservedConnection;
use super::socket_pair::open_socket_pair;
use super::tls;
use crate::core::node::NodeState;
use crate::metrics::Metric;

/// A listener whose connections another part of the program accepts. For a shard, each is a connection of MQTT.
pub struct GatewayListener {
    context: Arc<ListenerContext>,
    node: Arc<NodeState>,
    inboxes: Arc<[ShardInbox]>,
    local: Option<SocketAddr>,
    /// `None`: the listener is stopped.
    socket: watch::Sender<Option<Arc<Socket>>>,
    /// Locked while connections are accepted.
    accepting: Arc<tokio::sync::Mutex<()>>,
    next_shard: AtomicUsize,
}

/// The socket of a listener while its connections are accepted. It is closed with this value, and its copies.
pub struct GatewaySocket {
    socket: Arc<Socket>,
    _accepting: OwnedMutexGuard<()>,
}

/// A connection that counts for the limits of its listener and of the node.
pub struct GatewayConnection {
    listener: Arc<GatewayListener>,
    reserved: ReservedConnection,
}

impl GatewayListener {
    pub(crate) fn new(
        ListenerSocket { context, socket }: ListenerSocket,
        node: Arc<NodeState>,
        inboxes: Arc<[ShardInbox]>,
    ) -> Arc<Self> {
        let local = socket
            .local_addr()
            .ok()
            .and_then(|address| address.as_socket());
        Arc::new(Self {
            context,
            node,
            inboxes,
            local,
            socket: watch::Sender::new(Some(Arc::new(socket))),
            accepting: Arc::default(),
            next_shard: AtomicUsize::new(0),
        })
    }

    /// Its place in the configuration.
    pub(crate) fn index(&self) -> usize {
        usize::from(self.context.index)
    }

    pub fn name(&self) -> &str {
        &self.context.config.name
    }

    /// Time limit from accepting a connection to a client that has logged in.
    pub fn connect_timeout(&self) -> Duration {
        Duration::from_secs(self.context.config.connect_timeout_s.into())
    }

    /// The TLS configuration of new connections; `None`: they are not encrypted.
    pub fn tls(&self) -> Option<Arc<ServerConfig>> {
        Some(self.context.tls.as_ref()?.server_config())
    }

    /// Opens the listener with a socket.
    pub(crate) fn start(&self, socket: Socket) {
        self.socket.send_replace(Some(Arc::new(socket)));
    }

    /// Closes the socket. Returns when nothing is accepted any more, or after the time; `false`: it still is.
    pub(crate) async fn stop(&self, limit: Duration) -> bool {
        self.close();
        timeout(limit, self.accepting.lock()).await.is_ok()
    }

    /// Closes the socket without waiting.
    pub(crate) fn close(&self) {
        self.socket.send_replace(None);
    }

    /// Waits until the listener runs, and returns its socket.
    pub async fn wait_for_socket(&self) -> GatewaySocket {
        let mut changes = self.socket.subscribe();
        loop {
            let accepting = self.accepting.clone().lock_owned().await;
            let socket = changes.borrow_and_update().clone();
            if let Some(socket) = socket {
                return GatewaySocket {
                    socket,
                    _accepting: accepting,
                };
            }
            drop(accepting);
            // The sender is dropped after the listener.
            let _ = changes.changed().await;
        }
    }

    /// Waits until the listener is stopped. It may be cancelled.
    pub async fn wait_until_stopped(&self) {
        // The sender is dropped after the listener.
        let _ = self.socket.subscribe().wait_for(Option::is_none).await;
    }

    /// Waits until the rate of new connections permits the next one, and counts it.
    pub async fn wait_for_rate(&self) {
        while let Some(wait) = self.context.rate_delay() {
            tokio::time::sleep(wait).await;
        }
        self.context.count_accepted();
    }

    /// Reserves the place of a connection; `None`: a limit is reached.
    pub fn admit(self: &Arc<Self>) -> Option<GatewayConnection> {
        let reserved = ReservedConnection::reserve(&self.node, &self.context);
        if reserved.is_none() {
            // Only the shard may change its metrics.
            self.inboxes[0].push(InboxItem::Query(Box::new(|shard| {
                shard.metrics().inc(Metric::ConnectionsRejectedLimit);
            })));
        }
        Some(GatewayConnection {
            listener: self.clone(),
            reserved: reserved?,
        })
    }
}

impl GatewaySocket {
    /// A copy of the descriptor.
    ///
    /// # Errors
    /// If too many files are open.
    pub fn try_clone(&self) -> io::Result<Socket> {
        self.socket.try_clone()
    }
}

impl GatewayConnection {
    /// Gives a shard a connection on which the client logs in with CONNECT; returns the other end. It must be called
    /// within a tokio runtime.
    ///
    /// # Errors
    /// If too many files are open.
    pub fn attach(
        self,
        peer: PeerAddress,
        certificate: Option<&CertificateDer<'_>>,
    ) -> io::Result<UnixStream> {
        let Self { listener, reserved } = self;
        let (own, of_shard) = open_socket_pair()?;
        let certificate: Option<CertificateNames> = certificate.and_then(tls::certificate_names);
        let next = listener.next_shard.fetch_add(1, Relaxed) % listener.inboxes.len();
        listener.inboxes[next].push(InboxItem::Accepted(Box::new(AcceptedConnection {
            reserved,
            stream: of_shard,
            peer,
            address_source: None,
            local: match peer {
                PeerAddress::Tcp(_) => listener.local,
                PeerAddress::Unix | PeerAddress::Memory => None,
            },
            certificate,
            is_tunnel_exit: false,
        })));
        Ok(own)
    }
}
