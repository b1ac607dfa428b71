//! A drain: a node that is to be stopped accepts no new connections. It disconnects its clients, some at a time, so
//! that they connect to other nodes. Sessions stay; connections that other nodes pass on to them are accepted, and are
//! not closed.

use std::sync::atomic::Ordering::Relaxed;

use mqtt::ReasonCode;

use super::connect::connect_rejection;
use super::connection::{CloseReason, Connection, ConnectionPhase};
use super::inspection::{ScanStep, ShardScan};
use super::shard::Shard;
use super::tables::{ConnectionIx, TableIx as _};

/// Connections examined in one turn.
const CONNECTIONS_PER_STEP: usize = 4096;
/// Connections closed in one turn.
const CLOSES_PER_STEP: usize = 256;

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
}

fn is_tunnel_exit(connection: &Connection) -> bool {
    let extra = connection.extra.as_ref();
    extra.is_some_and(|extra| extra.is_tunnel_exit)
}

/// Closes connections for a drain, some in each turn, and counts them.
pub(crate) struct DrainScan {
    most: usize,
    next: usize,
    count: usize,
}

impl DrainScan {
    /// Closes at most `most` connections.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            next: 0,
            count: 0,
        }
    }
}

impl ShardScan for DrainScan {
    type ScanResult = usize;

    fn step(mut self, shard: &mut Shard) -> ScanStep<Self> {
        // The drain may have been cancelled.
        let most = match shard.is_draining() {
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
            let Some(connection) = connections.get(at) else {
                continue;
            };
            // One that has not sent CONNECT yet is rejected when it does.
            let is_open = matches!(
                connection.phase,
                ConnectionPhase::Connected | ConnectionPhase::Tunnelled
            );
            if is_open && !is_tunnel_exit(connection) {
                to_close.push(at);
            }
        }
        for at in to_close {
            self.count += 1;
            shard.close_for_shutdown(at);
        }
        shard.close_pending_connections();
        match self.next < shard.delivery.connections.end_position() && self.count < self.most {
            true if most > 0 => ScanStep::Continue(self),
            _ => ScanStep::Done(self.count),
        }
    }
}
