//! Other nodes become reachable, and cannot be reached any more.

use std::collections::VecDeque;

use super::NodeRouter;
use crate::core::cross_shard_batch::CrossShardBatch;
use crate::core::node_batches::SentBatches;
use crate::core::node_messages;
use crate::core::peer_loss::PeerLoss;
use crate::core::peer_node::{PeerNode, RemoteNode};
use crate::core::peer_node_ix::PeerNodeIx;
use crate::core::shard_messages::ShardMessage;
use crate::core::tables::TableIx as _;

/// Time for which a node that has left the cluster is kept: its standby may adopt its sessions.
const LEFT_TIMEOUT_MS: u64 = 1000;

impl NodeRouter {
    /// A node has become reachable, and speaks this version of the messages between nodes: sends it everything that this node
    /// wants, the sessions and exclusive subscriptions that concern it, and the messages that it has not logged.
    pub(crate) fn add_peer(&mut self, index: PeerNodeIx, name: &str, protocol: u32) {
        // What was announced before belongs to the others only.
        self.send_announcements();
        let Some((slot, is_returning)) = self.reserve_slot(index, name) else {
            tracing::error!("there are more other nodes than a node can know; this is a bug");
            return;
        };
        self.peers[index.position()] = Some(Box::new(PeerNode {
            slot,
            unconfirmed: VecDeque::new(),
            is_complete: false,
            snapshot: is_returning.then(Box::default),
            rejects: false,
            retained_transfer: None,
            has_named_stream: false,
            applied: 0,
            announcements: Vec::new(),
            announced: self.sequence,
            awaits_completion: false,
            forgets_with: u64::MAX,
        }));
        if self.rejecting_shards != 0 {
            let state = node_messages::encode_store_state(true);
            self.outgoing.push((index, state));
        }
        self.send_unlogged_batches(index, slot);
        self.send_all_announcements(index);
        if let Some(digests) = self.retained.digests() {
            let digests = node_messages::encode_retained_digests(&digests);
            self.outgoing.push((index, digests));
        }
        self.report_successions(index);
        self.await_notice(name);
        self.sessions.add_peer(index, name, self.now_ms);
        self.exclusives.add_peer(index, name, protocol);
    }

    /// The slot of a node, and whether the node had it already. A node that cannot be reached gives way if all are used.
    fn reserve_slot(&mut self, peer: PeerNodeIx, name: &str) -> Option<(u8, bool)> {
        let nodes = || self.nodes.iter().enumerate();
        // What waits for a node whose sessions are being adopted is for its standby. If many nodes return at once, there are not two
        // slots for each: it is sent to the node, which confirms nothing as long as its sessions may be adopted, and to the standby
        // when that has adopted them.
        let is_succeeded =
            self.successions.contains_key(name) && self.nodes.iter().any(Option::is_none);
        let is_named =
            |node: &RemoteNode| *node.name == *name && !(is_succeeded && node.peer.is_none());
        let known = nodes().find(|(_, node)| node.as_deref().is_some_and(is_named));
        if let Some((slot, _)) = known {
            if let Some(node) = &mut self.nodes[slot] {
                node.peer = Some(peer);
            }
            return Some((slot as u8, true));
        }
        let lost_ms = |node: &Option<Box<RemoteNode>>| match node {
            None => Some(0),
            Some(node) => node.peer.is_none().then_some(node.lost_ms),
        };
        let free = nodes().filter_map(|(slot, node)| Some((lost_ms(node)?, slot)));
        let (_, slot) = free.min()?;
        self.give_up(slot as u8);
        self.nodes[slot] = Some(Box::new(RemoteNode {
            name: name.into(),
            peer: Some(peer),
            lost_ms: 0,
            kept_ms: 0,
            batch: CrossShardBatch::default(),
            confirm: false,
            sent: SentBatches::new(self.next_stream),
            returned_after: None,
        }));
        self.next_stream = self.next_stream.wrapping_add(1).max(1);
        Some((slot as u8, false))
    }

    /// A node cannot be reached any more.
    pub(crate) fn remove_peer(&mut self, index: PeerNodeIx, loss: PeerLoss) {
        self.remove_successor(index);
        let slot = self.peers[index.position()].as_ref().map(|peer| peer.slot);
        let node = slot.and_then(|slot| self.nodes[usize::from(slot)].as_ref());
        let name = node.map(|node| node.name.clone());
        let has_standby = name.as_deref().is_some_and(|name| self.has_standby(name));
        if let Some(name) = name.as_ref()
            && self.standby_for.contains(name)
        {
            // Before the others register their sessions anew, so that clients wait for those of the node.
            self.begin_succession(name);
        }
        self.sessions.remove_peer(index, loss, self.now_ms);
        self.exclusives.remove_peer(index);
        self.to_tunnel_exits.retain(|&(from, ..)| from != index);
        self.early_batches.retain(|early| early.from != index);
        let queues = &mut self.queues;
        self.tunnel_entries.retain(|&tunnel, &mut (shard, peer)| {
            if peer == index {
                queues.send(shard, ShardMessage::TunnelClosed { tunnel });
            }
            peer != index
        });
        self.outgoing.retain(|&(to, _)| to != index);
        let Some(peer) = self.peers[index.position()].take() else {
            return;
        };
        if let Some(node) = &mut self.nodes[usize::from(peer.slot)] {
            node.peer = None;
            node.lost_ms = self.now_ms;
            node.kept_ms = match loss {
                PeerLoss::Left if !has_standby => 0,
                PeerLoss::Left => LEFT_TIMEOUT_MS.min(self.away_timeout_ms),
                PeerLoss::Silent | PeerLoss::Reconnecting => self.away_timeout_ms,
            };
        }
        let kept_ms = self.nodes[usize::from(peer.slot)]
            .as_ref()
            .map_or(0, |node| node.kept_ms);
        let has_successor = (self.nodes[usize::from(peer.slot)].as_ref())
            .is_some_and(|node| self.successions.contains_key(&node.name));
        match kept_ms == 0 && !has_successor {
            true => self.give_up(peer.slot),
            false => self.set_members_offline(peer.slot),
        }
        self.announce_store_states();
        self.confirm_announcements();
        self.confirm_turns();
    }
}
