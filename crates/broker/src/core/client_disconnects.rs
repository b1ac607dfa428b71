//! Disconnecting clients, some in each turn, so that they connect to other nodes of the cluster. Sessions stay. Connections
//! that other nodes pass on to a session here are not closed: their clients are not at this node.

use std::sync::atomic::Ordering::Relaxed;

use hooks::PeerAddress;
use mqtt::ReasonCode;

use super::connect::connect_rejection;
use super::connection::{CloseReason, Connection, ConnectionPhase};
use super::inspection::{ScanStep, ShardScan};
use super::shard::Shard;
use super::tables::{ConnectionIx, NO_SESSION, TableIx as _};

/// Connections examined in one turn.
const CONNECTIONS_PER_STEP: usize = 4096;
/// Connections closed in one turn.
const CLOSES_PER_STEP: usize = 256;
/// The reason of a connection that is closed because the node has more than others.
pub(crate) const REBALANCING: &str = "rebalancing";

/// Why clients are disconnected, which decides about the clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DisconnectCause {
    /// The node is to be stopped: all clients, while it is drained.
    Drain,
    /// The node has more connections than others: the clients that another node can serve as well.
    ///
    /// Clients with a durable session at this node stay, because other nodes would pass them back to it. So do those on this
    /// machine, which know no other node: connections in memory and by Unix sockets.
    Rebalance,
}

impl Shard {
    pub(super) fn is_draining(&self) -> bool {
        self.node.is_draining.load(Relaxed)
    }

    /// Rejects a client during a drain, unless another node passes its connection on.
    pub(super) fn check_drain(&self, at: ConnectionIx) -> Result<(), CloseReason> {
        if !self.is_draining() || is_tunnel_exit(&self.delivery.connections[at]) {
            return Ok(());
        }
        let code = match self.node.server_reference {
            Some(_) => ReasonCode::USE_ANOTHER_SERVER,
            None => ReasonCode::SERVER_UNAVAILABLE,
        };
        Err(connect_rejection(
            code,
            "the server is being drained, connect to another one",
        ))
    }

    fn is_disconnected(&self, connection: &Connection, cause: DisconnectCause) -> bool {
        // One that has not sent CONNECT yet is rejected when it does, or is at this node because its client has chosen it.
        let is_open = matches!(
            connection.phase,
            ConnectionPhase::Connected | ConnectionPhase::Tunnelled
        );
        if !is_open || is_tunnel_exit(connection) {
            return false;
        }
        match cause {
            DisconnectCause::Drain => true,
            DisconnectCause::Rebalance => {
                matches!(connection.peer, PeerAddress::Tcp(_))
                    && !self.has_durable_session(connection)
            }
        }
    }

    /// Whether the session of the connection is at this node and outlives it.
    fn has_durable_session(&self, connection: &Connection) -> bool {
        connection.phase == ConnectionPhase::Connected
            && connection.session != NO_SESSION
            && self.delivery.sessions[connection.session].expiry_s > 0
    }

    fn disconnect(&mut self, at: ConnectionIx, cause: DisconnectCause) {
        match cause {
            DisconnectCause::Drain => self.close_for_shutdown(at),
            DisconnectCause::Rebalance => {
                // Without a server reference, the client chooses one that it knows (section 4.11).
                let why = CloseReason::new(ReasonCode::USE_ANOTHER_SERVER, REBALANCING);
                self.close(
                    at,
                    why.with_detail("this server has more clients than others"),
                );
            }
        }
    }
}

fn is_tunnel_exit(connection: &Connection) -> bool {
    let extra = connection.extra.as_ref();
    extra.is_some_and(|extra| extra.is_tunnel_exit)
}

/// Closes connections, some in each turn.
pub(crate) struct DisconnectScan {
    cause: DisconnectCause,
    most: usize,
    next: usize,
    count: usize,
}

/// What a [`DisconnectScan`] has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DisconnectedClients {
    pub(crate) count: usize,
    /// Where the next scan continues; `None`: the last connection was examined.
    pub(crate) next: Option<usize>,
}

impl DisconnectScan {
    /// Closes at most `most` connections, from the position `from` on.
    pub(crate) fn new(cause: DisconnectCause, most: usize, from: usize) -> Self {
        Self {
            cause,
            most,
            next: from,
            count: 0,
        }
    }
}

impl ShardScan for DisconnectScan {
    type ScanResult = DisconnectedClients;

    fn step(mut self, shard: &mut Shard) -> ScanStep<Self> {
        // The drain may have been cancelled, or begun and taken the place of the rebalancing.
        let is_wanted = shard.is_draining() == (self.cause == DisconnectCause::Drain);
        let most = match is_wanted {
            true => self.most - self.count,
            false => 0,
        };
        let connections = &shard.delivery.connections;
        let end = connections.end_position();
        let mut to_close = Vec::new();
        let mut examined = 0;
        while examined < CONNECTIONS_PER_STEP
            && to_close.len() < CLOSES_PER_STEP.min(most)
            && self.next < end
        {
            examined += 1;
            let at = ConnectionIx::from_position(self.next);
            self.next += 1;
            let connection = connections.get(at);
            if connection.is_some_and(|connection| shard.is_disconnected(connection, self.cause)) {
                to_close.push(at);
            }
        }
        for at in to_close {
            self.count += 1;
            shard.disconnect(at, self.cause);
        }
        shard.close_pending_connections();
        let has_more = self.next < shard.delivery.connections.end_position();
        match has_more && self.count < self.most {
            true if most > 0 => ScanStep::Continue(self),
            _ => ScanStep::Done(DisconnectedClients {
                count: self.count,
                next: has_more.then_some(self.next),
            }),
        }
    }
}

/// Counts the connections that a [`DisconnectScan`] would close.
pub(crate) struct DisconnectableCount {
    cause: DisconnectCause,
    next: usize,
    count: usize,
}

impl DisconnectableCount {
    pub(crate) fn new(cause: DisconnectCause) -> Self {
        Self {
            cause,
            next: 0,
            count: 0,
        }
    }
}

impl ShardScan for DisconnectableCount {
    type ScanResult = usize;

    fn step(mut self, shard: &mut Shard) -> ScanStep<Self> {
        let connections = &shard.delivery.connections;
        let end = (self.next + CONNECTIONS_PER_STEP).min(connections.end_position());
        let examined = (self.next..end).filter_map(|position| {
            let at = ConnectionIx::from_position(position);
            connections.get(at)
        });
        let counted = examined.filter(|connection| shard.is_disconnected(connection, self.cause));
        self.count += counted.count();
        self.next = end;
        match end < connections.end_position() {
            true => ScanStep::Continue(self),
            false => ScanStep::Done(self.count),
        }
    }
}
