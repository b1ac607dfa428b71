//! The entries of tunnels: connections that this node has accepted, and whose session is on another one.

use mqtt::ReasonCode;

use super::connect::connect_rejection;
use super::connection::{CloseReason, ConnectionPhase};
use super::shard::{ConnectionAction, Shard};
use super::shard_messages::ShardMessage;
use super::tables::ConnectionIx;
use super::tunnel::{TUNNEL_WINDOW, TunnelEntry, TunnelRequest};

impl Shard {
    /// Lets the node with the client's session handle the connection. False if that is not possible. The client was
    /// authenticated in a way that the other node cannot repeat, or the connection comes from another node itself.
    pub(super) fn open_tunnel(&mut self, at: ConnectionIx, node: &str) -> bool {
        let Some(router) = self.node_router else {
            return false;
        };
        let connection = &mut self.delivery.connections[at];
        let peer = connection.current_peer();
        let Some(extra) = &mut connection.extra else {
            return false;
        };
        let is_exchange = (extra.grant.as_ref()).is_some_and(|grant| grant.method.is_some());
        if is_exchange || extra.is_tunnel_exit {
            return false;
        }
        self.tunnels.last_number += 1;
        let number = u64::from(self.id) << 48 | self.tunnels.last_number;
        let listener = self.node.listeners[usize::from(connection.listener)].config();
        let request = TunnelRequest {
            node: node.into(),
            listener: listener.name.as_str().into(),
            peer,
            certificate: extra.certificate.as_deref().cloned(),
            connect: extra.connect.clone().into(),
        };
        extra.tunnel = Some(Box::new(TunnelEntry {
            number,
            node: node.into(),
            unconfirmed_input: 0,
            unconfirmed_output: 0,
            is_answered: false,
        }));
        connection.phase = ConnectionPhase::Tunnelled;
        self.tunnels.entries.insert(number, (at, connection.serial));
        let message = ShardMessage::OpenTunnel {
            tunnel: number,
            request: Box::new(request),
        };
        self.shard_queues.send(router, message);
        let waiting = std::mem::take(&mut self.delivery.connections[at].partial_packets);
        self.send_tunnel_input(at, waiting);
        true
    }

    /// Handles input of a connection whose session is on another node.
    pub(super) fn receive_tunnelled(&mut self, at: ConnectionIx, data: &[u8]) -> ConnectionAction {
        self.send_tunnel_input(at, data.to_vec());
        self.resume_tunnelled(at)
    }

    pub(super) fn resume_tunnelled(&self, at: ConnectionIx) -> ConnectionAction {
        match self.delivery.connections[at].is_held {
            true => ConnectionAction::AwaitResume,
            false => ConnectionAction::Continue,
        }
    }

    fn send_tunnel_input(&mut self, at: ConnectionIx, bytes: Vec<u8>) {
        let connection = &mut self.delivery.connections[at];
        let extra = connection.extra.as_mut();
        let tunnel = extra.and_then(|extra| extra.tunnel.as_mut());
        let (Some(router), Some(tunnel)) = (self.node_router, tunnel) else {
            return;
        };
        if bytes.is_empty() {
            return;
        }
        tunnel.unconfirmed_input += bytes.len();
        // It is read again when the exit has confirmed enough.
        connection.is_held = tunnel.unconfirmed_input >= TUNNEL_WINDOW;
        let message = ShardMessage::TunnelData {
            tunnel: tunnel.number,
            bytes: bytes.into(),
        };
        self.shard_queues.send(router, message);
    }

    fn tunnel_connection(&self, tunnel: u64) -> Option<ConnectionIx> {
        let &(at, serial) = self.tunnels.entries.get(&tunnel)?;
        let connection = self.delivery.connections.get(at)?;
        let is_open = connection.phase == ConnectionPhase::Tunnelled && connection.serial == serial;
        is_open.then_some(at)
    }

    /// The exit has sent bytes for the client.
    pub(super) fn handle_tunnel_output(&mut self, tunnel: u64, bytes: &[u8]) {
        let Some(at) = self.tunnel_connection(tunnel) else {
            return;
        };
        self.delivery.write(at, |out| out.extend_from_slice(bytes));
        let extra = self.delivery.connections[at].extra();
        if let Some(tunnel) = &mut extra.tunnel {
            tunnel.is_answered = true;
            if tunnel.unconfirmed_output == 0 {
                self.tunnels.unconfirmed.push(at);
            }
            tunnel.unconfirmed_output += bytes.len();
        }
    }

    /// Confirms output that was written. Called after writing.
    pub(crate) fn confirm_tunnel_output(&mut self) {
        let Some(router) = self.node_router else {
            return;
        };
        let queues = &mut self.shard_queues;
        let connections = &mut self.delivery.connections;
        self.tunnels.unconfirmed.retain(|&at| {
            let Some(connection) = connections.get_mut(at) else {
                return false;
            };
            if connection.outbox.len() >= TUNNEL_WINDOW / 2 {
                return true;
            }
            let extra = connection.extra.as_mut();
            if let Some(tunnel) = extra.and_then(|extra| extra.tunnel.as_mut()) {
                let bytes = std::mem::take(&mut tunnel.unconfirmed_output) as u32;
                let tunnel = tunnel.number;
                queues.send(router, ShardMessage::TunnelCredit { tunnel, bytes });
            }
            false
        });
    }

    /// The exit has processed input.
    pub(super) fn handle_tunnel_credit(&mut self, tunnel: u64, bytes: u32) {
        let Some(at) = self.tunnel_connection(tunnel) else {
            return;
        };
        let connection = &mut self.delivery.connections[at];
        if let Some(tunnel) = &mut connection
            .extra
            .as_mut()
            .and_then(|extra| extra.tunnel.as_mut())
        {
            tunnel.unconfirmed_input = tunnel.unconfirmed_input.saturating_sub(bytes as usize);
            if connection.is_held && tunnel.unconfirmed_input < TUNNEL_WINDOW {
                connection.is_held = false;
                self.to_wake.push(at);
            }
        }
    }

    /// The exit has ended the connection, or cannot be reached any more.
    pub(super) fn handle_tunnel_closed(&mut self, tunnel: u64) {
        let Some(at) = self.tunnel_connection(tunnel) else {
            return;
        };
        self.tunnels.entries.remove(&tunnel);
        let extra = self.delivery.connections[at].extra();
        let unanswered = extra.tunnel.take().filter(|tunnel| !tunnel.is_answered);
        match unanswered {
            Some(tunnel) => {
                let raw = std::mem::take(&mut extra.connect);
                let detail = format!("the node {} with the session does not answer", tunnel.node);
                let why = connect_rejection(ReasonCode::SERVER_UNAVAILABLE, detail);
                self.reject_connect(at, why, &raw);
            }
            None => self.close(at, CloseReason::without_code("closed_by_other_node")),
        }
    }

    /// The connection of the client has ended.
    pub(super) fn close_tunnel(&mut self, at: ConnectionIx) {
        let extra = self.delivery.connections[at].extra();
        if let Some(tunnel) = extra.tunnel.take()
            && self.tunnels.entries.remove(&tunnel.number).is_some()
            && let Some(router) = self.node_router
        {
            let tunnel = tunnel.number;
            self.shard_queues
                .send(router, ShardMessage::TunnelClosed { tunnel });
        }
    }
}
