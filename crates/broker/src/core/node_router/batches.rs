//! Messages of shards to other nodes, and of other nodes to shards.

use hooks::MessageView;
use mqtt::QoS;

use super::{BatchRecipients, NodeRouter};
use crate::config::MAX_PEER_NODES;
use crate::core::cross_shard_batch::{CrossShardBatch, GroupMemberTarget, NodeTraffic};
use crate::core::node_batches::ReceivedBatches;
use crate::core::node_messages;
use crate::core::peer_node_ix::PeerNodeIx;
use crate::core::remote_interest::RemoteInterest;
use crate::core::retained_versions::bucket_of;
use crate::core::shard_messages::ShardMessageQueues;
use crate::core::shared_subscription::RemoteMembers;
use crate::core::subscription_tree::SubscriptionTree;

/// Application messages of one message to another node.
const BATCH_BYTES: usize = 192 << 10;

/// Nodes whose received batches are remembered. More than can be known at once, since a node that was given up may return
/// and send batches again.
pub(super) const MAX_REMEMBERED_NODES: usize = 2 * MAX_PEER_NODES;

/// The place of a member that says that the receiver has got the message back. A group has fewer members.
const RETURNED: u32 = u32::MAX;

impl NodeRouter {
    pub(super) fn send_unlogged_batches(&mut self, index: PeerNodeIx, slot: u8) {
        let Some(node) = &self.nodes[usize::from(slot)] else {
            return;
        };
        let stream = node_messages::encode_stream(node.sent.stream());
        self.outgoing.push((index, stream));
        for message in node.sent.unlogged() {
            let again = node_messages::encode_batch_again(message, self.now_ms);
            self.outgoing.push((index, again));
        }
    }

    /// Sends a message to nodes that want it. `published_at`: it was published at this node, which has failed. Its own
    /// sessions have got it, and all others get it, also those of this node.
    pub(super) fn send_to_nodes(
        &mut self,
        message: NodeTraffic<'_>,
        mut nodes: u64,
        published_at: Option<&str>,
        touched: &mut BatchRecipients,
    ) {
        while nodes != 0 {
            let slot = nodes.trailing_zeros() as u8;
            nodes &= nodes - 1;
            let node = self.nodes[usize::from(slot)].as_ref();
            if published_at.is_some_and(|failed| node.is_some_and(|node| *node.name == *failed)) {
                continue;
            }
            self.push_to_node(slot, message, None, touched);
        }
        if let Some(failed) = published_at {
            self.push_to_wanting_shards(message.view.topic, touched, |queues, shard| {
                queues.push_published_at(shard, message, failed);
            });
        }
    }

    /// Calls `push` for each shard of this node that wants a topic.
    fn push_to_wanting_shards(
        &mut self,
        topic: &str,
        touched: &mut BatchRecipients,
        push: impl Fn(&mut ShardMessageQueues, u16),
    ) {
        let mut shards = self.local.match_topic(topic).0.remote_shards;
        touched.shards |= shards;
        while shards != 0 {
            let shard = shards.trailing_zeros() as u16;
            shards &= shards - 1;
            push(&mut self.queues, shard);
        }
    }

    /// Sends a message to the n-th of the members that other nodes have, or to one of this node if they have left. Members of
    /// a node whose sessions another one has adopted get it if there are no others.
    pub(super) fn send_to_member(
        &mut self,
        message: NodeTraffic<'_>,
        member: &GroupMemberTarget<'_>,
        touched: &mut BatchRecipients,
    ) {
        if !self.push_to_remote_member(message, member, touched) {
            self.counts.dropped_no_member += 1;
        }
    }

    /// As [`send_to_member`](Self::send_to_member); returns false if this node knows no member.
    fn push_to_remote_member(
        &mut self,
        message: NodeTraffic<'_>,
        member: &GroupMemberTarget<'_>,
        touched: &mut BatchRecipients,
    ) -> bool {
        let place = choose_place(&self.remote, member, |slot| !self.is_abandoning(slot));
        if place.is_none() && self.push_to_local_member(message, member, touched) {
            return true;
        }
        let place = place.or_else(|| choose_place(&self.remote, member, |_| true));
        let Some((slot, nth)) = place else {
            return false;
        };
        let target = GroupMemberTarget { nth, ..*member };
        self.push_to_node(slot as u8, message, Some(target), touched);
        true
    }

    /// Returns a message for a member to its sender, once: that may know members at nodes that this one has not reached since it
    /// started. The sender has the message confirmed without waiting for that, because both nodes may return messages to each other.
    fn return_to_sender(
        &mut self,
        slot: u8,
        message: NodeTraffic<'_>,
        member: &GroupMemberTarget<'_>,
    ) {
        if member.nth == RETURNED {
            self.counts.dropped_no_member += 1;
            return;
        }
        let target = GroupMemberTarget {
            nth: RETURNED,
            ..*member
        };
        let mut not_awaited = BatchRecipients::default();
        self.push_to_node(slot, message, Some(target), &mut not_awaited);
    }

    /// Sends a retained message to all nodes that can be reached; the others compare theirs when they return.
    pub(super) fn copy_to_nodes(&mut self, view: &MessageView<'_>, touched: &mut BatchRecipients) {
        for slot in 0..self.nodes.len() as u8 {
            let node = self.nodes[usize::from(slot)].as_mut();
            let Some(node) = node.filter(|node| node.peer.is_some()) else {
                continue;
            };
            node.batch.push_retained_copy(view);
            if view.qos != QoS::AtMostOnce {
                node.confirm = true;
                touched.nodes |= 1 << slot;
            }
            if node.batch.size() >= BATCH_BYTES {
                self.send_batch(slot);
            }
        }
    }

    pub(super) fn push_to_node(
        &mut self,
        slot: u8,
        message: NodeTraffic<'_>,
        member: Option<GroupMemberTarget<'_>>,
        touched: &mut BatchRecipients,
    ) {
        let NodeTraffic { view, id } = message;
        let Some(node) = &mut self.nodes[usize::from(slot)] else {
            return;
        };
        let is_behind = |peer: PeerNodeIx| self.peers_behind & peer.bit() != 0;
        if view.qos == QoS::AtMostOnce && node.peer.is_none_or(is_behind) {
            self.counts.dropped_behind += 1;
            return;
        }
        node.batch.push(view, member, None, id);
        if view.qos != QoS::AtMostOnce {
            node.confirm = true;
            touched.nodes |= 1 << slot;
        }
        self.counts.messages_sent += 1;
        if node.batch.size() >= BATCH_BYTES {
            self.send_batch(slot);
        }
    }

    /// Sends a message to a node for the sessions that it has adopted from another one.
    pub(super) fn push_for_adopted(
        &mut self,
        slot: u8,
        message: NodeTraffic<'_>,
        adopted_from: &str,
        touched: &mut BatchRecipients,
    ) {
        let Some(node) = &mut self.nodes[usize::from(slot)] else {
            return;
        };
        node.batch.push_for_adopted(message, adopted_from);
        node.confirm = true;
        touched.nodes |= 1 << slot;
        self.counts.messages_sent += 1;
        if node.batch.size() >= BATCH_BYTES {
            self.send_batch(slot);
        }
    }

    /// Passes a message to the sessions that this node has adopted from another one.
    pub(super) fn push_to_adopted_here(
        &mut self,
        message: NodeTraffic<'_>,
        adopted_from: &str,
        touched: &mut BatchRecipients,
    ) {
        self.push_to_wanting_shards(message.view.topic, touched, |queues, shard| {
            queues.push_for_adopted(shard, message, adopted_from);
        });
    }

    /// Returns the bytes that the message occupies.
    pub(super) fn push_retained_copy(&mut self, slot: u8, view: &MessageView<'_>) -> usize {
        let Some(node) = &mut self.nodes[usize::from(slot)] else {
            return 0;
        };
        let before = node.batch.size();
        node.batch.push_retained_copy(view);
        let size = node.batch.size();
        if size >= BATCH_BYTES {
            self.send_batch(slot);
        }
        size - before
    }

    /// Completes the batch for a node. It waits for the node if that cannot be reached.
    pub(super) fn send_batch(&mut self, slot: u8) {
        let Some(node) = &mut self.nodes[usize::from(slot)] else {
            return;
        };
        if node.batch.count == 0 {
            return;
        }
        let confirm = std::mem::take(&mut node.confirm);
        let number = node.sent.last() + u64::from(confirm);
        let message = node_messages::encode_batch(number, confirm, self.now_ms, &mut node.batch);
        if confirm {
            node.sent.push(message.clone());
        }
        if let Some(peer) = node.peer {
            self.outgoing.push((peer, message));
        }
    }

    /// The batches of a node that follow belong to a stream.
    pub(super) fn begin_stream(&mut self, from: PeerNodeIx, slot: u8, stream: u64) {
        let Some(node) = &self.nodes[usize::from(slot)] else {
            return;
        };
        if self.received.len() >= MAX_REMEMBERED_NODES && !self.received.contains_key(&node.name) {
            let is_known = |name: &str| self.nodes.iter().flatten().any(|node| *node.name == *name);
            let unknown = self.received.keys().find(|name| !is_known(name)).cloned();
            if let Some(unknown) = unknown {
                self.received.remove(&unknown);
            }
        }
        let received = self.received.entry(node.name.clone()).or_default();
        if let Some(logged) = received.begin(stream) {
            // The confirmation may have been lost.
            self.outgoing
                .push((from, node_messages::encode_logged(logged)));
        }
    }

    /// Passes the messages of another node to shards.
    pub(super) fn handle_batch(
        &mut self,
        slot: u8,
        number: u64,
        confirm: bool,
        batch: &CrossShardBatch,
    ) {
        let Some(node) = &self.nodes[usize::from(slot)] else {
            return;
        };
        let is_new = |received: &mut ReceivedBatches| received.receive(number);
        if confirm && !self.received.get_mut(&node.name).is_none_or(is_new) {
            return;
        }
        let mut touched = BatchRecipients::default();
        let mut wanting_shards = 0;
        for crossing in batch.iter() {
            let message = crossing.traffic();
            let view = &crossing.view;
            self.counts.messages_received += 1;
            if let Some(node) = crossing.adopted_from {
                self.push_to_adopted_here(message, node, &mut touched);
                // A third node may have adopted the sessions of this one in the middle of the adoption, and has some of them. What has been
                // passed on once is not passed on again: each of two nodes may have adopted sessions of the other one.
                let sender = self.nodes[usize::from(slot)].as_ref();
                if sender.is_some_and(|sender| *sender.name != *node) {
                    self.push_to_adopter(message, &mut touched);
                }
                continue;
            }
            match &crossing.member {
                _ if crossing.is_retained_copy => {
                    // One shard for each topic, so that the log has the versions of a topic in their order.
                    let shard = (bucket_of(view.topic) % usize::from(self.shards)) as u16;
                    self.queues.push_retained_copy(shard, view);
                    if view.qos != QoS::AtMostOnce {
                        touched.shards |= 1 << shard;
                    }
                }
                None => {
                    if !crossing.is_repetition {
                        wanting_shards = self.local.match_topic(view.topic).0.remote_shards;
                    }
                    self.pass_to_adopter(slot, message, &mut touched);
                    let passed = self.push_to_shards(wanting_shards, message);
                    if view.qos != QoS::AtMostOnce {
                        touched.shards |= passed;
                    }
                }
                Some(member) => {
                    // The members of this node may have left meanwhile.
                    if !self.push_to_local_member(message, member, &mut touched)
                        && !self.push_to_remote_member(message, member, &mut touched)
                    {
                        self.return_to_sender(slot, message, member);
                    }
                }
            }
        }
        if !confirm {
            return;
        }
        let requirement = self.require(touched);
        let node = self.nodes[usize::from(slot)].as_ref();
        if let Some(received) = node.and_then(|node| self.received.get_mut(&node.name)) {
            received.confirm_when(number, requirement);
        }
    }

    /// Passes a message to shards; returns those that got it.
    fn push_to_shards(&mut self, shards: u64, message: NodeTraffic<'_>) -> u64 {
        let NodeTraffic { view, id } = message;
        let mut rest = shards;
        if view.qos == QoS::AtMostOnce && rest & self.shards_behind != 0 {
            rest &= !self.shards_behind;
            self.counts.dropped_behind += 1;
        }
        let passed = rest;
        while rest != 0 {
            let shard = rest.trailing_zeros() as u16;
            rest &= rest - 1;
            self.queues.push_message(shard, view, None, None, id);
        }
        passed
    }

    /// Passes a message to the n-th of the members that this node has; returns false if there is none.
    fn push_to_local_member(
        &mut self,
        message: NodeTraffic<'_>,
        member: &GroupMemberTarget<'_>,
        touched: &mut BatchRecipients,
    ) -> bool {
        let Some((shard, nth)) = choose_place(&self.local, member, |_| true) else {
            return false;
        };
        let target = GroupMemberTarget { nth, ..*member };
        let NodeTraffic { view, id } = message;
        self.queues
            .push_message(shard, view, Some(target), None, id);
        if view.qos != QoS::AtMostOnce {
            touched.shards |= 1 << shard;
        }
        true
    }
}

/// The place (a shard or a node) of the n-th member of a group, and which of its members it is. Only the places that
/// `counts` accepts count, and only online members as long as there is one.
fn choose_place<R: RemoteInterest>(
    tree: &SubscriptionTree<R>,
    member: &GroupMemberTarget<'_>,
    counts: impl Fn(u16) -> bool,
) -> Option<(u16, u32)> {
    let filter = tree.find(member.filter)?;
    let group = tree.group(tree.find_group(filter, member.group)?);
    let places = || group.remote().iter().filter(|place| counts(place.shard));
    let only_online = places().any(|place| place.online > 0);
    let count = |place: &RemoteMembers| match only_online {
        true => place.online,
        false => place.total,
    };
    let all: u32 = places().map(count).sum();
    let mut nth = member.nth.checked_rem(all)?;
    places().find_map(|place| {
        if nth < count(place) {
            return Some((place.shard, nth));
        }
        nth -= count(place);
        None
    })
}
