//! Connections of clients whose session is on another node.

use super::NodeRouter;
use crate::core::node_messages;
use crate::core::peer_node_ix::PeerNodeIx;
use crate::core::shard_messages::ShardMessage;
use crate::core::tunnel::{TunnelMessage, TunnelRequest};

impl NodeRouter {
    pub(super) fn open_tunnel(&mut self, shard: u16, tunnel: u64, request: Box<TunnelRequest>) {
        match self.sessions.peer_with_name(&request.node) {
            Some(peer) => {
                self.tunnel_entries.insert(tunnel, (shard, peer));
                self.send_from_entry(tunnel, &TunnelMessage::Open(request));
            }
            None => {
                let closed = ShardMessage::TunnelClosed { tunnel };
                self.queues.send(shard, closed);
            }
        }
    }

    pub(super) fn send_from_entry(&mut self, tunnel: u64, message: &TunnelMessage) {
        if let Some(&(_, peer)) = self.tunnel_entries.get(&tunnel) {
            let message = node_messages::encode_tunnel(tunnel, message);
            self.outgoing.push((peer, message));
        }
    }

    pub(super) fn handle_tunnel_message(
        &mut self,
        from: PeerNodeIx,
        tunnel: u64,
        message: TunnelMessage,
    ) {
        let message = match message {
            TunnelMessage::Output(bytes) => ShardMessage::TunnelData { tunnel, bytes },
            TunnelMessage::InputCredit(bytes) => ShardMessage::TunnelCredit { tunnel, bytes },
            TunnelMessage::ExitClosed => ShardMessage::TunnelClosed { tunnel },
            of_entry => {
                self.to_tunnel_exits.push((from, tunnel, of_entry));
                return;
            }
        };
        let entry = self.tunnel_entries.get(&tunnel).copied();
        let Some((shard, _)) = entry.filter(|&(_, peer)| peer == from) else {
            return;
        };
        if matches!(message, ShardMessage::TunnelClosed { .. }) {
            self.tunnel_entries.remove(&tunnel);
        }
        self.queues.send(shard, message);
    }
}
