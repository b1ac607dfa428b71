//! A listener for clients in the process of the node. Their connections are pipes in memory, which need no open files.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use hooks::PeerAddress;
use memory_pipe::PipeEnd;

use super::byte_stream::ByteStream;
use super::inbox::{AcceptedConnection, InboxItem, ShardInbox};
use super::listener::ListenerContext;
use super::reserved_connection::ReservedConnection;
use crate::core::node::NodeState;
use crate::metrics::Metric;

/// Bytes in flight in each direction of a connection.
const PIPE_BYTES: u32 = 64 << 10;

/// A listener whose clients connect by [`MemoryListener::connect`]. It counts, limits and authenticates them like others.
pub struct MemoryListener {
    context: Arc<ListenerContext>,
    node: Arc<NodeState>,
    inboxes: Arc<[ShardInbox]>,
    next_shard: AtomicUsize,
}

impl MemoryListener {
    pub(crate) fn new(
        context: Arc<ListenerContext>,
        node: Arc<NodeState>,
        inboxes: Arc<[ShardInbox]>,
    ) -> Arc<Self> {
        Arc::new(Self {
            context,
            node,
            inboxes,
            next_shard: AtomicUsize::new(0),
        })
    }

    pub fn name(&self) -> &str {
        &self.context.config.name
    }

    /// Opens a connection, and returns the end of the client.
    ///
    /// # Errors
    /// `ConnectionRefused` if the listener is stopped, or a limit of connections or of their rate is reached.
    pub fn connect(&self) -> io::Result<PipeEnd> {
        let refused = |reason: &str| {
            let message = format!("the listener {} {reason}", self.name());
            Err(io::Error::new(io::ErrorKind::ConnectionRefused, message))
        };
        let state = &self.node.listeners[usize::from(self.context.index)];
        if !state.is_running.load(Relaxed) {
            return refused("is stopped");
        }
        if self.context.rate_delay().is_some() {
            return refused("accepts no more connections now: max_new_connections_per_s");
        }
        let Some(reserved) = ReservedConnection::reserve(&self.node, &self.context) else {
            // Only the shard may change its metrics.
            self.inboxes[0].push(InboxItem::Query(Box::new(|shard| {
                shard.metrics().inc(Metric::ConnectionsRejectedLimit);
            })));
            return refused("accepts no more connections: max_connections");
        };
        self.context.count_accepted();
        let (of_client, of_shard) = memory_pipe::pipe(PIPE_BYTES);
        let next = self.next_shard.fetch_add(1, Relaxed) % self.inboxes.len();
        self.inboxes[next].push(InboxItem::Accepted(Box::new(AcceptedConnection {
            reserved,
            stream: ByteStream::Pipe(of_shard),
            peer: PeerAddress::Memory,
            address_source: None,
            local: None,
            certificate: None,
            is_tunnel_exit: false,
        })));
        Ok(of_client)
    }
}
