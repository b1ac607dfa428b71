//! Routing from a topic to its receivers: subscribers of this shard, other shards, and one member of each group.
//!
//! It orchestrates: the tree finds the receivers, `Delivery` and `ShardMessageQueues` take the message.

use super::cross_shard_batch::{CrossShardBatch, GroupMemberTarget, MessageId};
use super::delivery::{Delivery, with_publisher};
use super::dispatch::Dispatch;
use super::match_set::{FilterEntry, LocalTargets, MatchSet};
use super::records;
use super::session::SessionMessage;
use super::session_filter::SessionFilter;
use super::shard::Shard;
use super::shard_link::CrossShardRecord;
use super::shard_messages::ShardMessageQueues;
use super::shared_subscription::{MemberChoice, MemberSelection};
use super::tables::{FilterId, GroupId, NO_GROUP, SessionIx, Table};
use crate::metrics::Metric;
use hooks::{DropReason, Interest, MessageOrigin, MessageView};
use mqtt::QoS;
use store::StateKind;

/// Delivers to every session of this shard with a matching non-shared subscription.
#[inline]
pub(super) fn deliver_locally(
    delivery: &mut Delivery,
    set: &MatchSet,
    filters: &Table<FilterId, FilterEntry>,
    dispatch: &mut Dispatch<'_>,
) {
    match &set.local_targets {
        LocalTargets::None => {}
        LocalTargets::SingleFilter(filter) => {
            for subscriber in filters[*filter].subscribers.iter() {
                delivery.deliver(dispatch, subscriber, &[], NO_GROUP);
            }
        }
        LocalTargets::Merged(targets) => {
            for target in targets {
                let more = target.more_identifiers.as_deref().unwrap_or(&[]);
                delivery.deliver(dispatch, &target.subscriber, more, NO_GROUP);
            }
        }
    }
}

/// Adds one reference per shard whose bit is set to the batch of this turn for that shard.
fn forward_to_shards(
    links: &mut ShardMessageQueues,
    delivery: &mut Delivery,
    mut shards: u64,
    dispatch: &mut Dispatch<'_>,
) {
    // The publisher is needed only where the message is stored or reported to hooks.
    let publisher_points = Interest::DELIVER | Interest::ACK | Interest::DROP;
    let named = match dispatch.view.qos {
        QoS::AtMostOnce if !delivery.interest.intersects(publisher_points) => *dispatch.view,
        _ => with_publisher(&delivery.sessions, dispatch.origin, dispatch.view),
    };
    let mut id = None;
    while shards != 0 {
        // The node router comes first: the message has its identity from the link to the other nodes.
        let shard = 63 - shards.leading_zeros() as u16;
        shards &= !(1 << shard);
        let journal = delivery.journal.as_mut();
        let record = journal.map_or(CrossShardRecord::None, |journal| {
            journal.record_cross_shard(shard, &named, dispatch, None)
        });
        delivery.metrics.inc(Metric::CrossShardOut);
        match record {
            // The link forwards it when it is in the log.
            CrossShardRecord::ForNodes(of_link) => id = Some(of_link),
            CrossShardRecord::InLink(seq) => links.push_message(shard, &named, None, Some(seq), id),
            CrossShardRecord::None => links.push_message(shard, &named, None, None, None),
        }
    }
    dispatch.id = id;
}

impl Shard {
    /// Whether the message must not reach any subscriber twice, even after a crash: its publisher repeats it then. Messages
    /// derived from it are sent like it, so that they are not lost; they may be published again.
    #[inline]
    pub(super) fn is_exactly_once(
        &self,
        view: &MessageView<'_>,
        origin: Option<SessionIx>,
    ) -> bool {
        match origin {
            Some(at) => {
                (view.qos == QoS::ExactlyOnce || self.publication_number.is_some())
                    && self.delivery.sessions[at].store_number != 0
            }
            None => self.is_publishing_exactly_once,
        }
    }

    /// Routes a message; returns false if it has no subscriber.
    #[inline]
    pub(crate) fn route(&mut self, view: &MessageView<'_>, origin: Option<SessionIx>) -> bool {
        let is_exactly_once = self.is_exactly_once(view, origin);
        let (set, filters) = self.tree.match_topic(view.topic);
        if set.is_empty() {
            return false;
        }
        let mut dispatch = Dispatch::new(view, origin);
        dispatch.is_exactly_once = is_exactly_once;
        let many = set.has_many_targets(filters);
        if many {
            dispatch = dispatch.for_many_sessions(&mut self.packet_buffer);
        }
        deliver_locally(&mut self.delivery, set, filters, &mut dispatch);
        if set.remote_shards != 0 {
            forward_to_shards(
                &mut self.shard_queues,
                &mut self.delivery,
                set.remote_shards,
                &mut dispatch,
            );
        }
        if !set.groups.is_empty() {
            let groups = set.groups.clone();
            for group in groups {
                self.deliver_to_group(group, &mut dispatch);
            }
        }
        if let Some(id) = dispatch.id {
            self.note_during_adoptions(id);
        }
        if many {
            self.packet_buffer = dispatch.into_scratch();
        }
        true
    }

    /// Delivers to those sessions of this shard with a matching non-shared subscription that `filter` accepts.
    pub(super) fn deliver_to_some(&mut self, filter: SessionFilter, dispatch: &mut Dispatch<'_>) {
        let (set, filters) = self.tree.match_topic(dispatch.view.topic);
        self.delivery.session_filter = Some(filter);
        deliver_locally(&mut self.delivery, set, filters, dispatch);
        self.delivery.session_filter = None;
    }

    pub(super) fn deliver_to_group(&mut self, group_id: GroupId, dispatch: &mut Dispatch<'_>) {
        let random = self.random();
        let named = with_publisher(&self.delivery.sessions, dispatch.origin, dispatch.view);
        let selection = MemberSelection {
            strategy: self.limits.shared_subscription_strategy,
            this_shard: self.id,
            from_client_id: named.from_client_id,
            topic: named.topic,
            random,
        };
        match self.tree.group_mut(group_id).choose_member(&selection) {
            Some(MemberChoice::Local(session)) => {
                self.deliver_to_member(group_id, session, dispatch)
            }
            Some(MemberChoice::Remote { shard, nth }) => {
                let group = self.tree.group(group_id);
                let filter = &*self.tree.filter(group.filter).text;
                let member = GroupMemberTarget {
                    filter,
                    group: &group.name,
                    nth,
                };
                let journal = self.delivery.journal.as_mut();
                let record = journal.map_or(CrossShardRecord::None, |journal| {
                    journal.record_cross_shard(shard, &named, dispatch, Some(member))
                });
                let link_seq = match record {
                    CrossShardRecord::InLink(seq) => Some(seq),
                    _ => None,
                };
                // The link forwards what is for other nodes when it is in the log.
                if !matches!(record, CrossShardRecord::ForNodes(_)) {
                    self.shard_queues
                        .push_message(shard, &named, Some(member), link_seq, None);
                }
                self.delivery.metrics.inc(Metric::CrossShardOut);
            }
            None => self.record_no_members(dispatch),
        }
    }

    fn deliver_to_member(
        &mut self,
        group: GroupId,
        session: SessionIx,
        dispatch: &mut Dispatch<'_>,
    ) {
        if let Some(&member) = self.tree.group(group).member(session) {
            self.delivery.deliver(dispatch, &member, &[], group);
        }
    }

    /// Delivers messages from another shard to the subscribers of this one.
    pub(crate) fn deliver_batch(&mut self, from: u16, batch: &CrossShardBatch) {
        let is_from_nodes = self.node_router == Some(from);
        for crossing in batch.iter() {
            let view = &crossing.view;
            if crossing.is_retained_copy {
                self.store_retained_copy(view);
                continue;
            }
            let of_nodes = crossing.id.filter(|_| is_from_nodes);
            let mut dispatch = Dispatch::new(view, None);
            dispatch.is_exactly_once = crossing.link_seq.is_some() || of_nodes.is_some();
            if let Some(node) = crossing.adopted_from {
                self.deliver_to_adopted(node, crossing.id, &mut dispatch);
                continue;
            }
            if let Some(id) = of_nodes
                && self.received.contains(id)
            {
                if crossing.member.is_none() {
                    self.deliver_to_adopted_without(id, crossing.published_at, &mut dispatch);
                }
                continue;
            }
            match (crossing.member, crossing.published_at) {
                (None, None) if let Some(filter) = self.filter_during_adoptions(crossing.id) => {
                    self.deliver_to_some(filter, &mut dispatch);
                }
                (None, None) => {
                    let (set, filters) = self.tree.match_topic(view.topic);
                    let many = set.has_many_targets(filters);
                    if many {
                        dispatch = dispatch.for_many_sessions(&mut self.packet_buffer);
                    }
                    deliver_locally(&mut self.delivery, set, filters, &mut dispatch);
                }
                (None, Some(node)) => {
                    self.deliver_to_others(node, crossing.id, &mut dispatch);
                }
                (Some(member), _) => self.deliver_to_member_target(&member, &mut dispatch),
            }
            if let Some(id) = crossing.id {
                self.note_during_adoptions(id);
            }
            if let Some(id) = of_nodes {
                // The sessions that got it from the failed node may be those of this one after a start.
                let is_durable = dispatch.is_journaled || crossing.published_at.is_some();
                self.record_received(id, is_durable);
            }
            if dispatch.has_many_sessions {
                self.packet_buffer = dispatch.into_scratch();
            }
            if let Some(seq) = crossing.link_seq
                && let Some(journal) = &mut self.delivery.journal
            {
                journal.complete_link_entry(from, seq);
            }
        }
        self.close_pending_connections();
    }

    /// A message of another node was delivered.
    fn record_received(&mut self, id: MessageId, is_durable: bool) {
        let is_durable = is_durable && self.delivery.journal.is_some();
        self.received.insert(id, is_durable, self.delivery.now_ms);
        let delivered = &self.delivered_during_successions;
        if let Some(&below) = delivered.get(&(id.origin, id.seq)) {
            self.received.mark(id, below);
        }
    }

    /// Writes the numbers of the messages of other nodes that were delivered to durable sessions in this turn.
    pub(super) fn persist_received(&mut self) {
        if !self.received.has_changes() {
            return;
        }
        let place = (self.shards, self.id);
        if let Some(journal) = &mut self.delivery.journal {
            self.received.take_changes(|origin, part, record| {
                let key = records::received_key(place, origin, part);
                match record {
                    Some(record) => journal.put(StateKind::Received, &key, record),
                    None => journal.delete(StateKind::Received, &key),
                }
            });
        }
    }

    fn deliver_to_member_target(
        &mut self,
        member: &GroupMemberTarget<'_>,
        dispatch: &mut Dispatch<'_>,
    ) {
        let strategy = self.limits.shared_subscription_strategy;
        let group = self
            .tree
            .find(member.filter)
            .and_then(|filter| self.tree.find_group(filter, member.group));
        let Some(group) = group else {
            return self.record_no_members(dispatch);
        };
        match self
            .tree
            .group_mut(group)
            .choose_local_member(member.nth, strategy)
        {
            Some(session) => self.deliver_to_member(group, session, dispatch),
            // Local members left while the message was on its way: a member on any other shard may receive it.
            None => self.deliver_to_group(group, dispatch),
        }
    }

    fn record_no_members(&mut self, dispatch: &Dispatch<'_>) {
        let origin = MessageOrigin::default();
        let why = DropReason::NoSubscribers;
        self.delivery
            .dropped_from(dispatch.origin, None, dispatch.view, &origin, why);
    }

    /// Redistributes messages of a departed member to other members of their groups. The caller ensures that there are
    /// other members.
    pub(crate) fn redistribute(&mut self, session_messages: Vec<SessionMessage>) {
        for session_message in session_messages {
            let mut view = session_message.message.view();
            view.qos = session_message.qos;
            if session_message.message.is_expired(self.now_ms()) {
                self.delivery.record_drop(None, &view, DropReason::Expired);
                continue;
            }
            let mut dispatch = Dispatch::new(&view, None);
            // One batch adds it to the new member and removes it from the old one, so that a crash cannot duplicate it.
            dispatch.is_exactly_once = view.qos != QoS::AtMostOnce;
            self.deliver_to_group(session_message.group, &mut dispatch);
        }
    }
}
