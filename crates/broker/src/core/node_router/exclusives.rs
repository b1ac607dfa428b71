//! Exclusive subscriptions: what the router does for the directory of them.

use super::NodeRouter;
use crate::core::exclusive_directory::NodesKnowledge;
use crate::core::node_messages;
use crate::core::peer_node_ix::group_by_peer;

impl NodeRouter {
    /// Applies what the session directory knows of the nodes to claims of exclusive subscriptions.
    pub(super) fn update_exclusives(&mut self) {
        self.exclusives.update(NodesKnowledge {
            is_settled: self.sessions.is_settled(),
            is_withholding: self.sessions.is_withholding(),
        });
    }

    /// These come before the messages about sessions: a node that has registered its sessions has registered its exclusive
    /// subscriptions.
    pub(super) fn send_exclusive_messages(&mut self) {
        for (shard, message) in self.exclusives.to_shards.drain(..) {
            self.queues.send(shard, message);
        }
        let messages = std::mem::take(&mut self.exclusives.to_peers);
        let outgoing = &mut self.outgoing;
        for (peer, of_peer) in group_by_peer(messages) {
            node_messages::encode_exclusives(&of_peer, |message| outgoing.push((peer, message)));
        }
    }
}
