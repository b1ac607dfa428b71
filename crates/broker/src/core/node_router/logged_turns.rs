//! Turns of shards and batches of nodes, confirmed when all logs have what they caused.

use super::{BatchRecipients, NodeRouter, WaitingTurn};
use crate::core::node_batches::{LogRequirement, ReceivedBatches};
use crate::core::node_messages;
use crate::core::peer_node::RemoteNode;
use crate::core::peer_node_ix::PeerNodeIx;
use crate::core::shard_messages::ShardMessage;
use crate::core::tables::TableIx as _;

impl NodeRouter {
    /// What has to be logged before the messages that were sent to `touched` count as logged.
    pub(super) fn require(&mut self, touched: BatchRecipients) -> LogRequirement {
        let mut requirement = LogRequirement::default();
        let mut nodes = touched.nodes;
        while nodes != 0 {
            let slot = nodes.trailing_zeros() as u8;
            nodes &= nodes - 1;
            if let Some(node) = &self.nodes[usize::from(slot)] {
                // Only batches with messages above QoS 0 are confirmed.
                let number = node.sent.last() + u64::from(node.confirm);
                requirement.batches.push((slot, number));
            }
        }
        if self.is_durable && touched.shards != 0 {
            self.turn += 1;
            let turn = self.turn;
            let mut shards = touched.shards;
            while shards != 0 {
                let shard = shards.trailing_zeros() as u16;
                shards &= shards - 1;
                self.queues.send(shard, ShardMessage::TurnMarker { turn });
            }
            requirement.turns.push((touched.shards, turn));
        }
        requirement
    }

    /// A shard has closed a turn: it is confirmed when all that got messages of it have logged them.
    pub(super) fn record_turn_marker(&mut self, shard: u16, turn: u64) {
        let touched = std::mem::take(&mut self.touched[usize::from(shard)]);
        let requirement = self.require(touched);
        self.waiting_turns[usize::from(shard)].push_back(WaitingTurn { turn, requirement });
    }

    /// What turns of the shards, and batches of other nodes, wait for.
    pub(super) fn requirements(&mut self) -> impl Iterator<Item = &mut LogRequirement> {
        let turns = self.waiting_turns.iter_mut().flatten();
        let turns = turns.map(|waiting| &mut waiting.requirement);
        let batches = self.received.values_mut();
        turns.chain(batches.flat_map(ReceivedBatches::requirements))
    }

    pub(super) fn confirm_turns(&mut self) {
        for (shard, waiting) in self.waiting_turns.iter_mut().enumerate() {
            let mut complete = None;
            while let Some(waiting) = waiting.pop_front_if(|waiting| {
                is_met(&waiting.requirement, &self.nodes, &self.logged_turns)
            }) {
                complete = Some(waiting.turn);
            }
            if let Some(turn) = complete {
                let message = ShardMessage::TurnLogged { turn };
                self.queues.send(shard as u16, message);
            }
        }
    }

    /// Confirms the announcements of nodes that all shards have applied, and batches that shards have logged.
    pub(super) fn confirm_to_peers(&mut self) {
        for (position, peer) in self.peers.iter_mut().enumerate() {
            let Some(peer) = peer else { continue };
            let to = PeerNodeIx::from_position(position);
            let mut applied = None;
            while let Some((sequence, _)) = peer
                .unconfirmed
                .pop_front_if(|&mut (_, own)| self.queues.is_applied_by_all(own))
            {
                applied = Some(sequence);
            }
            if let Some(sequence) = applied {
                let message = node_messages::encode_applied(sequence);
                self.outgoing.push((to, message));
            }
            let node = self.nodes[usize::from(peer.slot)].as_ref();
            let received = node.and_then(|node| self.received.get_mut(&node.name));
            if let Some(received) = received.filter(|_| peer.has_named_stream)
                && let Some(number) = received
                    .poll_logged(|requirement| is_met(requirement, &self.nodes, &self.logged_turns))
            {
                let message = node_messages::encode_logged(number);
                self.outgoing.push((to, message));
            }
        }
    }
}

/// Whether all logs have what a requirement names. Nobody waits for a node that was given up.
fn is_met(
    requirement: &LogRequirement,
    nodes: &[Option<Box<RemoteNode>>],
    logged_turns: &[u64],
) -> bool {
    let is_logged = |&(slot, number): &(u8, u64)| {
        let node = nodes[usize::from(slot)].as_ref();
        node.is_none_or(|node| node.sent.is_logged(number))
    };
    let is_turn_logged = |&(shards, turn): &(u64, u64)| {
        let mut logged = logged_turns.iter().enumerate();
        logged.all(|(shard, &logged)| shards & 1 << shard == 0 || logged >= turn)
    };
    requirement.batches.iter().all(is_logged) && requirement.turns.iter().all(is_turn_logged)
}
