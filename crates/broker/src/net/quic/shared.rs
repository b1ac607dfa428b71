//! What a QUIC listener and its connections share.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::core::node::NodeState;
use crate::net::inbox::ShardInbox;
use crate::net::listener::ListenerContext;

/// Bytes of a client that are received and not yet read, after it has logged in.
pub(super) const WINDOW: u32 = 512 << 10;
/// Streams that a client may open: the control stream and 16 data streams. quinn announces the room that closed streams
/// leave in steps of an eighth, hence the others.
pub(super) const MAX_STREAMS: u32 = 1 + 16 + 3;

/// What a QUIC listener and its connections share.
pub(super) struct QuicShared {
    pub(super) context: Arc<ListenerContext>,
    pub(super) node: Arc<NodeState>,
    pub(super) inboxes: Arc<[ShardInbox]>,
    /// Address of the UDP socket.
    pub(super) local: SocketAddr,
    next_shard: AtomicUsize,
    /// Bytes of incomplete packets of all data streams.
    pub(super) partial_bytes: AtomicU64,
}

impl QuicShared {
    pub(super) fn new(
        context: Arc<ListenerContext>,
        node: Arc<NodeState>,
        inboxes: Arc<[ShardInbox]>,
        local: SocketAddr,
    ) -> Self {
        Self {
            context,
            node,
            inboxes,
            local,
            next_shard: AtomicUsize::new(0),
            partial_bytes: AtomicU64::new(0),
        }
    }

    /// Limit of `partial_bytes`: what the shards together may keep of incomplete packets of the listener.
    pub(super) fn max_partial_bytes(&self) -> u64 {
        let of_shard = match self.context.config.max_partial_packet_bytes_per_shard {
            0 => self.node.limits.max_partial_packet_bytes_per_shard / 2,
            own => own,
        };
        let of_shards = of_shard.saturating_mul(self.inboxes.len() as u64);
        of_shards.min(self.node.limits.max_partial_packet_bytes)
    }

    /// The shard of the next connection.
    pub(super) fn next_inbox(&self) -> &ShardInbox {
        let next = self.next_shard.fetch_add(1, Relaxed);
        &self.inboxes[next % self.inboxes.len()]
    }
}
