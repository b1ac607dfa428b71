//! The inbox of a shard's thread: messages from other shards, connections that move to it, queries of the control
//! plane. It is locked once per batch, not per message.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use hooks::{CertificateNames, PeerAddress};
use store::QueuePage;
use tokio::sync::{Notify, oneshot};

use super::byte_stream::ByteStream;
use super::layers::TransportLayers;
use super::listener::ListenerSocket;
use super::reserved_connection::ReservedConnection;
use super::store_reader::PendingStoreRead;
use crate::core::connection::AddressSource;
use crate::core::handover::ConnectionHandover;
use crate::core::shard::Shard;
use crate::core::shard_messages::ShardMessage;

/// A connection that is being moved to another shard: its state, its bytes, and the layers between.
pub(crate) struct StreamHandover {
    pub(crate) connection: ConnectionHandover,
    pub(crate) stream: ByteStream,
    pub(crate) layers: Option<Box<TransportLayers>>,
}

/// A connection that has been accepted outside a shard.
pub(crate) struct AcceptedConnection {
    pub(crate) reserved: ReservedConnection,
    pub(crate) stream: ByteStream,
    pub(crate) peer: PeerAddress,
    /// Set if the address of the peer may change.
    pub(crate) address_source: Option<AddressSource>,
    pub(crate) local: Option<SocketAddr>,
    pub(crate) certificate: Option<CertificateNames>,
    /// Whether it comes from another node of the cluster.
    pub(crate) is_tunnel_exit: bool,
}

/// Notifies the shards of the store's progress.
pub(crate) struct StoreOwner {
    pub(crate) inboxes: std::sync::Arc<[ShardInbox]>,
    /// For the control plane.
    pub(crate) pending_store_read: std::sync::Arc<PendingStoreRead>,
}

impl store::StoreObserver for StoreOwner {
    fn on_logged(&self, shard: u16, batch: u64) {
        self.inboxes[usize::from(shard)].push(InboxItem::TurnLogged(batch));
    }

    fn on_written(&self, shard: u16, batch: u64) {
        self.inboxes[usize::from(shard)].push(InboxItem::TurnWritten(batch));
    }

    fn on_fetched(&self, shard: u16, page: QueuePage) {
        match self.inboxes.get(usize::from(shard)) {
            Some(inbox) => inbox.push(InboxItem::Page(page)),
            None => self.pending_store_read.complete(page),
        }
    }
}

pub(crate) enum InboxItem {
    ShardMessages {
        from: u16,
        messages: Vec<ShardMessage>,
        bytes: usize,
    },
    Handover(Box<StreamHandover>),
    Accepted(Box<AcceptedConnection>),
    /// A call to execute on the shard; it delivers its answer itself.
    Query(Box<dyn FnOnce(&mut Shard) + Send>),
    /// A socket to accept connections from.
    StartListening(Box<ListenerSocket>),
    /// Stop accepting from a listener; answered when its socket is closed.
    StopListening {
        listener: u16,
        answer: oneshot::Sender<()>,
    },
    /// The store has logged everything up to this turn of the shard.
    TurnLogged(u64),
    /// The log has everything up to this turn of the shard, and the standby of the node perhaps not.
    TurnWritten(u64),
    /// The data of hooks for this turn of the shard is durable.
    TurnSettled(u64),
    /// A page of a session's stored messages.
    Page(QueuePage),
    /// Stop accepting, send DISCONNECT to every client.
    Stop,
}

impl InboxEntry for InboxItem {
    fn size_bytes(&self) -> usize {
        match self {
            InboxItem::ShardMessages { bytes, .. } => *bytes,
            _ => 0,
        }
    }
}

/// What an inbox holds.
pub(crate) trait InboxEntry {
    /// Bytes that it counts for in [`Inbox::queued_bytes`].
    fn size_bytes(&self) -> usize;
}

pub(crate) type ShardInbox = Inbox<InboxItem>;

/// Items that other threads have put in for one thread.
pub(crate) struct Inbox<T> {
    items: Mutex<VecDeque<T>>,
    bytes: AtomicUsize,
    notify: Notify,
    /// When the thread last completed a turn.
    last_turn_ms: AtomicU64,
}

impl<T: InboxEntry> Inbox<T> {
    pub(crate) fn new(now_ms: u64) -> Self {
        Self {
            items: Mutex::default(),
            bytes: AtomicUsize::new(0),
            notify: Notify::new(),
            last_turn_ms: AtomicU64::new(now_ms),
        }
    }

    pub(crate) fn last_turn_ms(&self) -> u64 {
        self.last_turn_ms.load(Relaxed)
    }

    pub(crate) fn record_turn(&self, now_ms: u64) {
        self.last_turn_ms.store(now_ms, Relaxed);
    }

    /// Bytes of messages that wait here.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    pub(crate) fn push(&self, item: T) {
        let bytes = item.size_bytes();
        if bytes > 0 {
            self.bytes.fetch_add(bytes, Relaxed);
        }
        let was_empty = {
            let mut items = self.items.lock().unwrap_or_else(PoisonError::into_inner);
            items.push_back(item);
            items.len() == 1
        };
        if was_empty {
            self.notify.notify_one();
        }
    }

    pub(crate) async fn wait(&self) {
        self.notify.notified().await;
    }

    pub(crate) fn take_all(&self) -> VecDeque<T> {
        let items = std::mem::take(&mut *self.items.lock().unwrap_or_else(PoisonError::into_inner));
        let taken_bytes: usize = items.iter().map(T::size_bytes).sum();
        if taken_bytes > 0 {
            self.bytes.fetch_sub(taken_bytes, Relaxed);
        }
        items
    }
}
