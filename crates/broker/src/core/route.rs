//! From a topic to those who want it: subscribers of this shard, other shards, one member of each group.

use super::cross::{Batch, ForMember, Links};
use super::deliver::{Delivery, Dispatch, with_publisher};
use super::message::MessageView;
use super::session::Parcel;
use super::shard::Shard;
use super::shared::{Choice, Draw};
use super::sublist::{GroupId, NO_GROUP};
use super::tree::{Filter, Locals, MatchSet};
use crate::hooks::{DropReason, Interest};
use crate::metrics::Metric;
use mqtt::QoS;
use slab::Slab;

/// To every session of this shard whose plain subscriptions match.
#[inline]
pub(super) fn deliver_locally(
    delivery: &mut Delivery,
    set: &MatchSet,
    filters: &Slab<Filter>,
    dispatch: &mut Dispatch<'_>,
) {
    match &set.locals {
        Locals::None => {}
        Locals::One(filter) => {
            for subscriber in filters[*filter as usize].subscribers.iter() {
                delivery.deliver(dispatch, subscriber, &[], NO_GROUP);
            }
        }
        Locals::Merged(targets) => {
            for target in targets {
                let more = target.more_ids.as_deref().unwrap_or(&[]);
                delivery.deliver(dispatch, &target.subscriber, more, NO_GROUP);
            }
        }
    }
}

/// Each shard whose bit is set gets one reference in its batch of this turn.
fn send_to_shards(
    links: &mut Links,
    delivery: &mut Delivery,
    mut shards: u64,
    dispatch: &mut Dispatch<'_>,
) {
    // Who published it is needed only where it is kept, or told to somebody.
    let told = Interest::DELIVER | Interest::ACK | Interest::DROP;
    let named = match dispatch.view.qos {
        QoS::AtMostOnce if !delivery.interest.intersects(told) => dispatch.view,
        _ => with_publisher(&delivery.sessions, dispatch.origin, &dispatch.view),
    };
    while shards != 0 {
        let shard = shards.trailing_zeros() as u16;
        shards &= shards - 1;
        let journal = delivery.journal.as_mut();
        let link_seq = journal.and_then(|journal| journal.cross(shard, &named, dispatch, None));
        links.push(shard, &named, None, link_seq);
        delivery.metrics.inc(Metric::CrossShardOut);
    }
}

impl Shard {
    /// Sends a message on its way; false if nobody wants it.
    #[inline]
    pub(crate) fn route(&mut self, view: &MessageView<'_>, origin: Option<u32>) -> bool {
        let (set, filters) = self.tree.matches(view.topic);
        if set.is_empty() {
            return false;
        }
        let mut dispatch = Dispatch::new(*view, origin);
        dispatch.exactly_once = view.qos == QoS::ExactlyOnce
            && origin.is_some_and(|at| self.delivery.sessions[at as usize].number != 0);
        let many = set.is_many(filters);
        if many {
            dispatch = dispatch.for_many(&mut self.packet);
        }
        deliver_locally(&mut self.delivery, set, filters, &mut dispatch);
        if set.remote != 0 {
            send_to_shards(
                &mut self.links,
                &mut self.delivery,
                set.remote,
                &mut dispatch,
            );
        }
        if !set.groups.is_empty() {
            let groups = set.groups.clone();
            for group in groups {
                self.deliver_to_group(group, &mut dispatch);
            }
        }
        if many {
            self.packet = dispatch.into_scratch();
        }
        true
    }

    pub(super) fn deliver_to_group(&mut self, group_id: GroupId, dispatch: &mut Dispatch<'_>) {
        let random = self.random();
        let named = with_publisher(&self.delivery.sessions, dispatch.origin, &dispatch.view);
        let draw = Draw {
            strategy: self.limits.shared_strategy,
            this_shard: self.id,
            from_client_id: named.from_client_id,
            topic: named.topic,
            random,
        };
        match self.tree.group_mut(group_id).choose(&draw) {
            Some(Choice::Local(session)) => self.deliver_to_member(group_id, session, dispatch),
            Some(Choice::Remote { shard, nth }) => {
                let group = self.tree.group(group_id);
                let filter = &*self.tree.filter(group.filter).text;
                let member = ForMember {
                    filter,
                    group: &group.name,
                    nth,
                };
                let of_group = Some((filter, &*group.name));
                let journal = self.delivery.journal.as_mut();
                let link_seq =
                    journal.and_then(|journal| journal.cross(shard, &named, dispatch, of_group));
                self.links.push(shard, &named, Some(member), link_seq);
                self.delivery.metrics.inc(Metric::CrossShardOut);
            }
            None => self.nobody_left(dispatch),
        }
    }

    fn deliver_to_member(&mut self, group: GroupId, session: u32, dispatch: &mut Dispatch<'_>) {
        if let Some(&member) = self.tree.group(group).member(session) {
            self.delivery.deliver(dispatch, &member, &[], group);
        }
    }

    /// Messages from another shard, for the subscribers of this one.
    pub(crate) fn deliver_batch(&mut self, from: u16, batch: &Batch) {
        for crossing in batch.iter() {
            let view = crossing.view;
            let mut dispatch = Dispatch::new(view, None);
            dispatch.exactly_once = crossing.link_seq.is_some();
            match crossing.member {
                None => {
                    let (set, filters) = self.tree.matches(view.topic);
                    let many = set.is_many(filters);
                    if many {
                        dispatch = dispatch.for_many(&mut self.packet);
                    }
                    deliver_locally(&mut self.delivery, set, filters, &mut dispatch);
                    if many {
                        self.packet = dispatch.into_scratch();
                    }
                }
                Some(member) => self.deliver_for_member(&member, &mut dispatch),
            }
            if let Some(seq) = crossing.link_seq
                && let Some(journal) = &mut self.delivery.journal
            {
                journal.unlink(from, seq);
            }
        }
        self.close_doomed();
    }

    fn deliver_for_member(&mut self, member: &ForMember<'_>, dispatch: &mut Dispatch<'_>) {
        let strategy = self.limits.shared_strategy;
        let group = self
            .tree
            .find(member.filter)
            .and_then(|filter| self.tree.find_group(filter, member.group));
        let Some(group) = group else {
            return self.nobody_left(dispatch);
        };
        match self.tree.group_mut(group).choose_here(member.nth, strategy) {
            Some(session) => self.deliver_to_member(group, session, dispatch),
            // Our members have left while the message was on its way: any other shard's will do.
            None => self.deliver_to_group(group, dispatch),
        }
    }

    fn nobody_left(&mut self, dispatch: &Dispatch<'_>) {
        self.delivery
            .dropped(None, &dispatch.view, DropReason::NoSubscribers);
    }

    /// Hands messages of a member that went away to other members of their groups. The caller has made sure that
    /// there are others.
    pub(crate) fn hand_on(&mut self, parcels: Vec<Parcel>) {
        for parcel in parcels {
            let mut view = parcel.message.view();
            view.qos = parcel.qos;
            if parcel.message.is_expired(self.now_ms()) {
                self.delivery.dropped(None, &view, DropReason::Expired);
                continue;
            }
            let mut dispatch = Dispatch::new(view, None);
            // It is the other member's in the batch in which it is no more this one's, whenever the node dies.
            dispatch.exactly_once = view.qos != QoS::AtMostOnce;
            self.deliver_to_group(parcel.group, &mut dispatch);
        }
    }
}
