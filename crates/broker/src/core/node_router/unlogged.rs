//! What a node has not confirmed goes to others when it is given up, or when another one has adopted its sessions.

use super::{BatchRecipients, NodeRouter};
use crate::core::cross_shard_batch::CrossShardBatch;
use crate::core::interest_snapshot::InterestSnapshot;
use crate::core::node_batches::SentBatches;
use crate::core::node_messages;
use crate::core::peer_node::RemoteNode;
use crate::core::succession::Successor;

impl NodeRouter {
    /// Forgets what a node wants. Nothing waits for it any more, and messages for one member of a group go to others.
    pub(super) fn give_up(&mut self, slot: u8) {
        self.give_up_to(slot, None);
    }

    /// As [`give_up`](Self::give_up); all messages above QoS 0 go to the node that has adopted the sessions.
    pub(super) fn give_up_to(&mut self, slot: u8, successor: Option<Successor>) {
        let Some(node) = self.nodes[usize::from(slot)].take() else {
            return;
        };
        self.remove_interest(slot, &InterestSnapshot::default());
        self.pass_on_unlogged(slot, *node, successor);
    }

    /// Sends what a node that can be reached has not confirmed to the node that has adopted its sessions; `None`: only what is
    /// for members of groups, to other members.
    pub(super) fn redirect_unlogged(&mut self, slot: u8, successor: Option<Successor>) {
        let Some(node) = &mut self.nodes[usize::from(slot)] else {
            return;
        };
        let stream = self.next_stream;
        self.next_stream = self.next_stream.wrapping_add(1).max(1);
        let fresh = RemoteNode {
            name: node.name.clone(),
            peer: node.peer,
            lost_ms: node.lost_ms,
            kept_ms: node.kept_ms,
            batch: CrossShardBatch::default(),
            confirm: false,
            // A confirmation of the earlier stream that is still on its way confirms nothing of this one.
            sent: SentBatches::continuing(stream, node.sent.last()),
            returned_after: None,
        };
        let peer = node.peer;
        let before = std::mem::replace(&mut **node, fresh);
        if let Some(peer) = peer {
            let stream = node_messages::encode_stream(stream);
            self.outgoing.push((peer, stream));
        }
        self.pass_on_unlogged(slot, before, successor);
    }

    /// Finds other receivers for the messages that a node has not confirmed. What waited for the node waits for them.
    fn pass_on_unlogged(&mut self, slot: u8, mut node: RemoteNode, successor: Option<Successor>) {
        let mut touched = BatchRecipients::default();
        let open = std::mem::take(&mut node.batch);
        let first = node.sent.first_unlogged();
        let unlogged = node
            .sent
            .unlogged()
            .map(|message| node_messages::decode_own_batch(message));
        let batches = unlogged.chain([Some(open)]);
        for (number, batch) in (first..).zip(batches) {
            let Some(batch) = batch else { continue };
            // The node has got it in its present slot.
            let is_received = matches!(successor, Some(Successor::Returned(_)))
                && (node.returned_after).is_some_and(|last| number > last);
            for crossing in batch.iter() {
                match (&crossing.member, successor) {
                    // It was sent to the former slot only.
                    (None, Some(Successor::Returned(slot)))
                        if let Some(node) = crossing.adopted_from =>
                    {
                        self.push_for_adopted(slot, crossing.traffic(), node, &mut touched);
                    }
                    (None, Some(_)) if is_received => {}
                    (Some(member), _) => {
                        self.send_to_member(crossing.traffic(), member, &mut touched);
                    }
                    // All nodes that could be reached have got it.
                    (None, Some(_)) if crossing.is_retained_copy => {}
                    (None, Some(successor)) => {
                        let message = crossing.traffic();
                        self.send_to_adopted(successor, &node.name, message, &mut touched);
                    }
                    (None, None) => {}
                }
            }
        }
        let requirement = self.require(touched);
        for waiting in self.requirements() {
            waiting.replace_node(slot, &requirement);
        }
        for of_shard in &mut self.touched {
            if of_shard.nodes & 1 << slot != 0 {
                of_shard.nodes = of_shard.nodes & !(1 << slot) | touched.nodes;
                of_shard.shards |= touched.shards;
            }
        }
    }

    /// Bytes of messages for a node that it has not logged; the largest number of all nodes.
    pub(crate) fn unlogged_bytes(&self) -> usize {
        let nodes = self.nodes.iter().flatten();
        nodes
            .map(|node| node.sent.unlogged_bytes())
            .max()
            .unwrap_or(0)
    }
}
