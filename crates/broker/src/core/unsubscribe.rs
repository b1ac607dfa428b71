//! UNSUBSCRIBE, and other ends of subscriptions.

use hooks::{Authorization, ClientAction, Interest, PacketFacts};
use mqtt::{Packet, Properties, ReasonCode, UnsubAck, Unsubscribe};

use super::connection::CloseReason;
use super::session::QueueFilter;
use super::shard::Shard;
use super::subscribe::subscription_bytes;
use super::subscription_tree::{EXCLUSIVE_GROUP, QUEUE_GROUP, filter_and_group};
use super::tables::{ConnectionIx, FilterId, GroupId, NO_GROUP, SessionIx};
use crate::metrics::Metric;

impl Shard {
    pub(crate) fn handle_unsubscribe(
        &mut self,
        at: ConnectionIx,
        unsubscribe: &Unsubscribe<'_>,
    ) -> Result<(), CloseReason> {
        let session = self.session_of_connection(at);
        let packet = PacketFacts {
            packet_id: unsubscribe.packet_id,
            properties: unsubscribe.properties,
        };
        let mut codes = Vec::with_capacity(unsubscribe.filters.len());
        for filter in unsubscribe.filters.iter() {
            let code = self.unsubscribe_one(session, filter, packet);
            codes.push(code.0);
        }
        let unsuback = UnsubAck {
            packet_id: unsubscribe.packet_id,
            properties: Properties::EMPTY,
            codes: &codes,
        };
        let version = self.delivery.connections[at].version;
        self.delivery.hold_outbox(at);
        self.delivery
            .write(at, |out| Packet::UnsubAck(unsuback).encode(version, out));
        Ok(())
    }

    pub(super) fn unsubscribe_one(
        &mut self,
        session: SessionIx,
        as_written: &str,
        packet: PacketFacts<'_>,
    ) -> ReasonCode {
        let Ok(kind) = mqtt::parse_filter(as_written, &self.topic_limits()) else {
            return ReasonCode::TOPIC_FILTER_INVALID;
        };
        let (text, group) = filter_and_group(&kind);
        let Some(filter) = self.tree.find(text) else {
            return ReasonCode::NO_SUBSCRIPTION_EXISTED;
        };
        let group = match group {
            None => NO_GROUP,
            Some(name) => match self.tree.find_group(filter, name) {
                Some(group) => group,
                None => return ReasonCode::NO_SUBSCRIPTION_EXISTED,
            },
        };
        let subscriptions = &mut self.delivery.sessions[session].subscriptions;
        let Ok(place) = subscriptions.binary_search(&(filter, group)) else {
            return ReasonCode::NO_SUBSCRIPTION_EXISTED;
        };
        subscriptions.remove(place);
        let options = self.options_of(session, filter, group).unwrap_or_default();
        self.remove_subscription(session, filter, group);
        if self.delivery.interest.contains(Interest::UNSUBSCRIBE) {
            self.call_hook(session, |hooks, client| {
                hooks.unsubscribed(client, as_written, options, packet);
            });
        }
        ReasonCode::SUCCESS
    }

    /// Removes a subscription from the tree; the caller updates the session's own list.
    pub(crate) fn remove_subscription(
        &mut self,
        session: SessionIx,
        filter: FilterId,
        group: GroupId,
    ) {
        let name = (group != NO_GROUP).then(|| &*self.tree.group(group).name);
        let bytes = subscription_bytes(&self.tree.filter(filter).text, name);
        if let Some(session) = self.delivery.sessions.get_mut(session) {
            session.subscription_bytes -= bytes;
        }
        self.metrics().sub(Metric::Subscriptions, 1);
        self.metrics().sub(Metric::SubscriptionBytes, bytes);
        self.delete_stored_subscription(session, filter, group);
        if group == NO_GROUP {
            self.tree.unsubscribe(filter, session);
            if self.tree.filter(filter).subscribers.is_empty() {
                self.announce_filter(filter, false);
                self.tree.remove_if_unused(filter);
            }
        } else {
            let entry = self.tree.group_mut(group);
            entry.leave(session);
            if *entry.name == *EXCLUSIVE_GROUP {
                let topic = self.tree.filter(self.tree.group(group).filter).text.clone();
                let client_id = self.delivery.sessions[session].client_id.clone();
                self.release_exclusive(&topic, &client_id);
            }
            self.redistribute_group_queue(session, group);
            self.announce_members(group);
            self.tree.remove_group_if_unused(group);
        }
    }

    fn options_of(
        &self,
        session: SessionIx,
        filter: FilterId,
        group: GroupId,
    ) -> Option<mqtt::SubscriptionOptions> {
        let subscriber = match group == NO_GROUP {
            true => self.tree.filter(filter).subscribers.get(session),
            false => self.tree.group(group).member(session),
        };
        subscriber.map(|subscriber| subscriber.options)
    }

    fn redistribute_group_queue(&mut self, session: SessionIx, group: GroupId) {
        let has_others = !self.tree.group(group).is_empty();
        let outbound = &mut self.delivery.sessions[session].outbound;
        let Some(outbound) = outbound else { return };
        let before = outbound.size();
        let taken = outbound.leave_group(group, has_others);
        let after = outbound.size();
        self.delivery.update_queue_counters(before, after);
        for session_message in &taken {
            self.delivery.mark_stored_done(session, session_message.seq);
        }
        self.redistribute(taken);
    }

    /// Called when a client resumes its session. Subscriptions that are no longer allowed end, and messages queued for
    /// them are not delivered.
    pub(crate) fn recheck_subscriptions(&mut self, session_at: SessionIx) {
        if !self.needs_authorization(session_at) {
            return;
        }
        let mut denied = Vec::new();
        let mut allowed = Vec::new();
        for (filter, group) in self.delivery.sessions[session_at].subscriptions.clone() {
            let written = self.filter_as_written(filter, group);
            let Some(options) = self.options_of(session_at, filter, group) else {
                continue;
            };
            let action = ClientAction::Subscribe {
                filter: &written,
                options,
            };
            match self.authorize(session_at, &action) {
                Authorization::Allow => allowed.push(self.tree.filter(filter).text.clone()),
                Authorization::Deny | Authorization::Disconnect => denied.push(written),
            }
        }
        if denied.is_empty() {
            return;
        }
        let session = &mut self.delivery.sessions[session_at];
        tracing::info!(
            client_id = &*session.client_id,
            subscriptions = denied.len(),
            "session resumed; subscriptions that are no longer allowed were removed"
        );
        let up_to_seq = session.last_seq;
        if let Some(outbound) = &mut session.outbound {
            outbound.set_queue_filter(QueueFilter {
                filters: allowed,
                up_to_seq,
                up_to_ms: self.delivery.now_ms,
            });
        }
        for written in denied {
            self.unsubscribe_one(session_at, &written, PacketFacts::NONE);
        }
    }

    /// A subscription as its client wrote it.
    pub(crate) fn filter_as_written(&self, filter: FilterId, group: GroupId) -> String {
        let text = &self.tree.filter(filter).text;
        if group == NO_GROUP {
            return text.to_string();
        }
        match &*self.tree.group(group).name {
            QUEUE_GROUP => format!("$queue/{text}"),
            EXCLUSIVE_GROUP => format!("$exclusive/{text}"),
            name => format!("$share/{name}/{text}"),
        }
    }
}
