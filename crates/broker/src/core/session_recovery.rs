//! Restores sessions, delayed messages and received numbers from the store: at the start of a node, and when it adopts the
//! sessions of another one.

use mqtt::{SubscriptionFilter, SubscriptionOptions};
use std::sync::Arc;

use store::{QueueSummary, StateKind};

use super::directory::{NodeDirectory, SessionClaim};
use super::journal::ShardJournal;
use super::message::Message;
use super::records::{self, SessionRecord};
use super::session::{
    AcceptedNumbers, OutboundMessages, QueueSize, Session, SessionMessage, SessionWill,
};
use super::shard::Shard;
use super::shard_link::ShardLink;
use super::subscriber_list::Subscriber;
use super::subscription_tree::filter_and_group;
use super::tables::SessionIx;
use super::timers::Timer;
use crate::metrics::Metric;

/// A session as stored.
pub(crate) struct RecoveredSession {
    pub(crate) client_id: Box<str>,
    /// A [`SessionRecord`].
    pub(crate) record: Box<[u8]>,
    pub(crate) subscriptions: Vec<(Box<str>, SubscriptionOptions, u32)>,
    pub(crate) queue: Option<QueueSummary>,
}

/// A message published to `$delayed/...`, as stored.
pub(crate) struct RecoveredDelayedMessage {
    pub(crate) due_ms: u64,
    pub(crate) number: u64,
    pub(crate) message: Message,
}

/// A record of messages that were received from other nodes: origin, part, and the record.
pub(crate) type ReceivedRecord = (u64, u64, Box<[u8]>);

impl Shard {
    /// Starts writing durable state to the journal.
    pub(crate) fn start_journal(&mut self, first_number: u64, links: &[(ShardLink, u64)]) {
        let mut journal = ShardJournal::new(self.id, self.shards, self.node_router, first_number);
        for &(link, last_seq) in links {
            journal.resume_link(link, last_seq);
        }
        self.delivery.journal = Some(Box::new(journal));
    }

    /// Restores a session as it was when the node stopped or died, or as it was adopted from another node.
    pub(crate) fn restore_session(&mut self, stored: &RecoveredSession) {
        let Some(record) = SessionRecord::read(&stored.record) else {
            tracing::error!(
                client_id = &*stored.client_id,
                "session record could not be decoded; session skipped"
            );
            return;
        };
        let SessionClaim::ThisShard(id) = self.node.directory.claim(&stored.client_id, self.id)
        else {
            return;
        };
        if !NodeDirectory::reserve_slot(&self.node.directory.sessions, self.limits.max_sessions) {
            self.node.directory.release(&stored.client_id, self.id);
            tracing::error!(
                client_id = &*stored.client_id,
                "limits.max_sessions reached; stored session skipped"
            );
            return;
        }
        let at = self.insert_restored(id, &record, stored.queue.as_ref());
        // Not since its client has left: a node may notice that long after the client has begun another session elsewhere.
        let began_ms = record.created_ms;
        // The failed node may register it as well, or still count as its holder.
        let adopted_from = record.adoption.map(|adoption| adoption.from);
        let since_ms = match record.adoption {
            // It gives way to an earlier session of its client for some time after it began, wherever it is then. The clock of the other
            // node may be ahead.
            Some(adoption) if record.provisional => began_ms.min(adoption.since_ms),
            Some(adoption) => adoption.since_ms,
            None => began_ms,
        };
        self.announce_session(
            &stored.client_id,
            since_ms,
            record.provisional,
            adopted_from,
        );
        for (written, options, identifier) in &stored.subscriptions {
            self.restore_subscription(at, written, *options, *identifier);
        }
        self.set_group_presence(at, false);
        self.schedule_session_timers(at, &record);
    }

    fn insert_restored(
        &mut self,
        id: Arc<str>,
        record: &SessionRecord<'_>,
        queue: Option<&QueueSummary>,
    ) -> SessionIx {
        let now_ms = self.now_ms();
        let mut session = Session::new(id.clone(), now_ms);
        session.store_number = record.number;
        session.record_number = Some(record.number);
        session.version = record.version;
        session.is_clean_start = record.clean_start;
        session.is_bridge = record.bridge;
        session.is_provisional = record.provisional;
        session.expiry_s = record.expiry_s;
        session.created_ms = record.created_ms;
        session.username = record.username.map(Into::into);
        // A crash has closed the connection now; a session without a connection has been offline since the recorded
        // time.
        session.disconnected_ms = match record.connected {
            true => now_ms,
            false => record.disconnected_ms,
        };
        session.adoption = record.adoption.map(Box::new);
        let numbers = record.accepted_numbers.and_then(AcceptedNumbers::read);
        session.accepted_numbers = numbers.map(Box::new);
        session.will = record.will.and_then(|(delay_s, body)| {
            let message = records::read_message(body)?;
            Some(Box::new(SessionWill { message, delay_s }))
        });
        if let Some(queue) = queue {
            session.last_seq = queue.last_seq;
            if !queue.received.is_empty() {
                let incoming = session.incoming_qos2.get_or_insert_default();
                for &packet_id in &queue.received {
                    incoming.restore(packet_id);
                }
            }
            if queue.messages > 0 {
                let messages = queue.messages as usize;
                let bytes = queue.bytes as usize + messages * size_of::<SessionMessage>();
                let outbound = OutboundMessages::restored(queue.first_seq, messages, bytes, now_ms);
                self.delivery
                    .update_queue_counters(QueueSize::default(), outbound.size());
                session.outbound = Some(Box::new(outbound));
            }
        }
        let number = session.store_number;
        let at = self.delivery.sessions.insert(session);
        self.by_client_id.insert(id, at);
        self.metrics().inc(Metric::Sessions);
        if let Some(journal) = &mut self.delivery.journal
            && number != 0
        {
            journal.bind_session(number, at);
        }
        at
    }

    fn restore_subscription(
        &mut self,
        at: SessionIx,
        written: &str,
        options: SubscriptionOptions,
        identifier: u32,
    ) {
        // The limits may have changed since the subscription was made.
        let Ok(kind) = mqtt::parse_filter(written, &self.topic_limits()) else {
            tracing::warn!(
                filter = written,
                "stored subscription exceeds the current limits; subscription skipped"
            );
            return;
        };
        if let SubscriptionFilter::Exclusive { topic } = kind {
            self.restore_exclusive(at, topic);
        }
        let (text, group) = filter_and_group(&kind);
        let subscriber = Subscriber {
            session: at,
            identifier,
            options,
        };
        self.insert_subscription(text, group, subscriber);
    }

    fn schedule_session_timers(&mut self, at: SessionIx, record: &SessionRecord<'_>) {
        let now_ms = self.now_ms();
        let session = &mut self.delivery.sessions[at];
        let away_since_ms = session.disconnected_ms;
        let due_ms = |delay_s: u32| now_ms.max(away_since_ms + u64::from(delay_s) * 1000);
        let expiry_at_ms = (record.expiry_s != u32::MAX).then(|| due_ms(record.expiry_s));
        let will_at_ms = session.will.as_ref().map(|will| due_ms(will.delay_s));
        self.timers
            .start_session(at, &mut session.timers, expiry_at_ms, will_at_ms);
        if record.connected {
            self.persist_session(at);
        }
    }

    /// Restores a message published to `$delayed/...` before the node stopped, or at a node whose sessions are adopted.
    pub(crate) fn restore_delayed(&mut self, delayed: RecoveredDelayedMessage) {
        let bytes = delayed.message.size() as u64;
        // It is acknowledged, so that it counts for the limits and is kept also if they are exceeded.
        self.node.directory.add_delayed(bytes);
        self.metrics().inc(Metric::DelayedMessages);
        let timer = Timer::DelayedMessage {
            message: Box::new(delayed.message),
            bytes,
            number: delayed.number,
        };
        self.timers.schedule(delayed.due_ms, timer);
    }

    /// Deletes records in the store that are no longer used: queues of sessions without a record, and these keys.
    pub(crate) fn discard_orphaned_records(
        &mut self,
        sessions: &[u64],
        keys: &[(StateKind, Box<[u8]>)],
    ) {
        let Some(journal) = &mut self.delivery.journal else {
            return;
        };
        for &number in sessions {
            journal.end_session(number);
        }
        for (space, key) in keys {
            journal.delete(*space, key);
        }
    }

    /// Takes over records of messages that were received from other nodes.
    pub(crate) fn restore_received(&mut self, records: &[ReceivedRecord]) {
        let unreadable = records
            .iter()
            .filter(|(origin, part, record)| !self.received.restore(*origin, *part, record))
            .count();
        self.restore_delivered_during_successions();
        if unreadable > 0 {
            tracing::error!(
                count = unreadable,
                "stored numbers of messages of other nodes could not be decoded; these messages may arrive twice"
            );
        }
    }
}
