//! Moves a connection to the shard of its session.

use std::net::SocketAddr;

use hooks::PeerAddress;

use super::connect::decode_connect;
use super::connection::{CloseReason, ConnectionExtra, ConnectionPhase};
use super::directory::NodeDirectory;
use super::shard::{ConnectionAction, Shard};
use super::tables::ConnectionIx;

/// A connection that is being moved to the shard of its session.
pub(crate) struct ConnectionHandover {
    listener: u16,
    peer: PeerAddress,
    local: Option<SocketAddr>,
    opened_ms: u64,
    partial: Vec<u8>,
    extra: Box<ConnectionExtra>,
}

impl Shard {
    /// Removes a connection that is moving to the shard of its session from this shard.
    pub(crate) fn hand_over(&mut self, at: ConnectionIx) -> ConnectionHandover {
        let connection = &mut self.delivery.connections[at];
        let moving = ConnectionHandover {
            listener: connection.listener,
            peer: connection.peer,
            local: connection.local_address,
            opened_ms: connection.deadlines.last_seen_ms(),
            partial: std::mem::take(&mut connection.partial_packets),
            extra: connection.extra.take().unwrap_or_default(),
        };
        if connection.phase == ConnectionPhase::Closing {
            // At the other shard it is a new one.
            NodeDirectory::release_slot(&self.node.directory.closing_connections);
        }
        connection.phase = ConnectionPhase::Closing;
        self.remove_connection(at);
        moving
    }

    /// Adds a connection that comes from another shard.
    pub(crate) fn accept_handover(
        &mut self,
        moving: ConnectionHandover,
    ) -> (ConnectionIx, ConnectionAction) {
        let at = self.open_connection(moving.listener, moving.peer);
        let connection = &mut self.delivery.connections[at];
        connection.local_address = moving.local;
        connection.deadlines.set_opened(moving.opened_ms);
        connection.partial_packets = moving.partial;
        let raw = moving.extra.connect.clone();
        connection.extra = Some(moving.extra);
        let Some(connect) = decode_connect(&raw) else {
            self.close(at, CloseReason::without_code("protocol_error"));
            return (at, ConnectionAction::Close);
        };
        self.apply_response_limits(at, connect.version, connect.properties);
        let result = self
            .check_connect(&connect)
            .and_then(|()| self.establish_session(at));
        let flow = match result {
            Ok(ConnectionAction::Continue) => self.resume(at),
            Ok(flow) => flow,
            Err(closing) => {
                self.reject_connect(at, closing, &raw);
                ConnectionAction::Close
            }
        };
        self.close_pending_connections();
        (at, flow)
    }
}
