//! The places of connections in the limits of their listener and of the node.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::listener::ListenerContext;
use crate::core::directory::NodeDirectory;
use crate::core::node::NodeState;

/// The place of a new connection in the limits of its listener and of the node, which is given back when it is dropped.
pub(crate) struct ReservedConnection {
    /// `None`: it has been left to the connection.
    node: Option<Arc<NodeState>>,
    listener: u16,
}

impl ReservedConnection {
    /// `None`: a limit is reached.
    pub(crate) fn reserve(node: &Arc<NodeState>, context: &ListenerContext) -> Option<Self> {
        Self::reserve_at(node, context.index, context.config.max_connections)
    }

    /// Reserves a place at the listener with this index and limit.
    pub(crate) fn reserve_at(
        node: &Arc<NodeState>,
        listener: u16,
        max_connections: u32,
    ) -> Option<Self> {
        let connections = &node.listeners[usize::from(listener)].connections;
        let limit = u64::from(max_connections);
        let take = |n: u64| (n < limit).then_some(n + 1);
        connections.fetch_update(Relaxed, Relaxed, take).ok()?;
        let max_connections = node.max_connections.load(Relaxed);
        if !NodeDirectory::reserve_slot(&node.directory.connections, max_connections) {
            connections.fetch_sub(1, Relaxed);
            return None;
        }
        Some(Self {
            node: Some(node.clone()),
            listener,
        })
    }

    /// Leaves the place to the connection, which gives it back when it ends. Returns the index of the listener.
    pub(crate) fn keep(mut self) -> u16 {
        self.node = None;
        self.listener
    }
}

impl Drop for ReservedConnection {
    fn drop(&mut self) {
        if let Some(node) = &self.node {
            release_connection_slots(node, self.listener);
        }
    }
}

/// Gives back the places of a connection that has ended.
pub(super) fn release_connection_slots(node: &NodeState, listener: u16) {
    NodeDirectory::release_slot(&node.directory.connections);
    let connections = &node.listeners[usize::from(listener)].connections;
    connections.fetch_sub(1, Relaxed);
}
