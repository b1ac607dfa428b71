//! Sessions that this node adopts from the copy of another node's store, and those that it abandons because another node
//! has adopted them.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use hashbrown::HashMap;
use mqtt::{ReasonCode, SubscriptionOptions};
use store::{QueueEntry, QueueSummary, StateKind};

use super::connection::CloseReason;
use super::cross_shard_batch::MessageId;
use super::directory::SessionClaim;
use super::dispatch::Dispatch;
use super::inspection::{ScanStep, ShardScan};
use super::node_link::{FirstSeqs, RestoredEntry};
use super::origin_node::{OriginNode, SessionAdoption};
use super::received_numbers::CopiedNumbers;
use super::records::{self, NodeEntryTarget, SessionRecord};
use super::session_directory::PROVISIONAL_TIMEOUT_MS;
use super::session_filter::{AdoptedNumber, ExcludedSessions, SessionFilter, ShardOfNode};
use super::session_recovery::{RecoveredDelayedMessage, RecoveredSession};
use super::shard::Shard;
use super::tables::{SessionIx, TableIx as _};
use crate::metrics::Metric;
use hooks::MessageView;

/// Sessions abandoned in one turn.
const SESSIONS_PER_STEP: usize = 256;
/// Messages that are remembered because they were delivered during an adoption; later ones may arrive twice.
const MAX_DELIVERED: usize = 1 << 18;

/// A session of another node, without its queue.
pub(crate) struct AdoptedSession {
    pub(crate) client_id: Box<str>,
    /// A [`SessionRecord`], with the number that the session had at the other node.
    pub(crate) record: Box<[u8]>,
    pub(crate) subscriptions: Vec<(Box<str>, SubscriptionOptions, u32)>,
    pub(crate) queue: QueueSummary,
}

/// What became of the begin of an adoption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AdoptionBegin {
    /// The number of the session in the store of this node; 0: it has no queue.
    Begun { number: u64 },
    /// This node has a session of the client, or the record of the session cannot be read.
    Skipped,
    /// A client with this id waits for its session at another shard, which has to adopt it.
    OtherShard(u16),
}

impl Shard {
    /// Messages for the sessions that are adopted from a node may arrive from now on. `received`: the messages that it had.
    pub(crate) fn expect_adopted_messages(&mut self, from: &str, received: Arc<CopiedNumbers>) {
        let adopted = self.adopted.entry(from.into()).or_default();
        adopted.received = received;
        // The node may have been adopted before. The sessions of this adoption have got nothing yet.
        adopted.passed_on.clear();
        for (&id, &below) in &self.delivered_during_successions {
            adopted.note_delivered(id, below);
        }
    }

    /// A message that goes to several nodes was delivered to all subscribers here.
    #[inline]
    pub(super) fn note_during_adoptions(&mut self, id: MessageId) {
        let has_successions = self.node.has_successions.load(Relaxed);
        if !has_successions && !self.delivered_during_successions.is_empty() {
            self.delivered_during_successions = HashMap::default();
            self.received.forget_marks();
        }
        let Some(journal) = &self.delivery.journal else {
            return;
        };
        let (id, below) = ((id.origin, id.seq), journal.next_number());
        // A node that has started again may have adopted some of the sessions before, and has not begun to adopt the rest.
        if has_successions && self.delivered_during_successions.len() < MAX_DELIVERED {
            let known = self.delivered_during_successions.entry(id);
            known.or_insert(below);
        }
        for adopted in self.adopted.values_mut() {
            if adopted.delivered.len() < MAX_DELIVERED {
                adopted.note_delivered(id, below);
            }
        }
    }

    /// Takes over from the store which messages were delivered while sessions were being adopted.
    pub(super) fn restore_delivered_during_successions(&mut self) {
        let marks = self.received.marks().take(MAX_DELIVERED);
        self.delivered_during_successions = marks.collect();
    }

    /// Begins to adopt a session.
    pub(crate) fn begin_adoption(&mut self, from: &str, session: &AdoptedSession) -> AdoptionBegin {
        let record = SessionRecord::read(&session.record);
        match self.node.directory.shard_of(&session.client_id) {
            Some(shard) if shard != self.id => return AdoptionBegin::OtherShard(shard),
            _ => {}
        }
        let created_ms = record.as_ref().map(|record| record.created_ms);
        self.end_provisional_session(&session.client_id, created_ms);
        if let Some(&known) = self.by_client_id.get(&*session.client_id) {
            let number = self.delivery.sessions[known].store_number;
            if let Some(record) = record.filter(|_| number != 0) {
                // It may have been adopted before this node was started again.
                let adopted = self.adopted.entry(from.into()).or_default();
                adopted.insert(number, AdoptedNumber::of(&record));
            }
            return AdoptionBegin::Skipped;
        }
        let (Some(record), Some(journal)) = (record, &mut self.delivery.journal) else {
            tracing::error!(
                client_id = &*session.client_id,
                "session record of another node could not be decoded; session skipped"
            );
            return AdoptionBegin::Skipped;
        };
        let number = match record.number {
            0 => 0,
            _ => journal.next_unique_number(),
        };
        AdoptionBegin::Begun { number }
    }

    /// Ends a session that the client got because its earlier one was not known: that one, created at this time, is adopted now.
    fn end_provisional_session(&mut self, client_id: &str, created_ms: Option<u64>) {
        let Some(&at) = self.by_client_id.get(client_id) else {
            return;
        };
        let session = &self.delivery.sessions[at];
        if Some(session.created_ms) == created_ms {
            // It is that session, adopted before the adoption was interrupted. It may have got and sent messages since.
            return;
        }
        let until_ms = session.created_ms + PROVISIONAL_TIMEOUT_MS;
        if session.is_provisional && self.delivery.now_ms < until_ms {
            let why = CloseReason::new(ReasonCode::SESSION_TAKEN_OVER, "taken_over");
            self.terminate_session(at, why);
        }
    }

    /// Writes messages of the queue of a session, in order.
    pub(crate) fn write_adopted_messages(&mut self, number: u64, entries: &[QueueEntry]) {
        if let Some(journal) = &mut self.delivery.journal
            && number != 0
        {
            for entry in entries {
                journal.copy_entry(number, entry);
            }
        }
    }

    /// Adopts a session whose messages are written. It counts as begun at `since_ms`: after the session of the other node, if
    /// that returns, and before those that clients have begun since. False if the client has got another session here meanwhile, or
    /// there is no room for one. The messages are deleted then.
    pub(crate) fn finish_adoption(
        &mut self,
        from: &str,
        number: u64,
        session: AdoptedSession,
        since_ms: u64,
    ) -> bool {
        let is_adopted = self.insert_adopted(from, number, session, since_ms);
        if !is_adopted
            && number != 0
            && let Some(journal) = &mut self.delivery.journal
        {
            journal.end_session(number);
        }
        is_adopted
    }

    fn insert_adopted(
        &mut self,
        from: &str,
        number: u64,
        session: AdoptedSession,
        since_ms: u64,
    ) -> bool {
        let Some(record) = SessionRecord::read(&session.record) else {
            return false;
        };
        let former = AdoptedNumber::of(&record);
        // A node that is started again has to say, too, from where it has the session. A node from which the failed one had adopted it
        // does not matter any more.
        let record = SessionRecord {
            number,
            adoption: Some(SessionAdoption {
                from: OriginNode::node(from),
                since_ms,
            }),
            ..record
        };
        let mut bytes = Vec::with_capacity(session.record.len() + 16);
        record.write(&mut bytes);
        let claim = self.node.directory.claim(&session.client_id, self.id);
        if !matches!(claim, SessionClaim::ThisShard(_))
            || self.by_client_id.contains_key(&*session.client_id)
        {
            return false;
        }
        if self.node.directory.sessions.load(Relaxed) >= self.limits.max_sessions {
            if !self.pending_claims.contains_key(&*session.client_id) {
                self.node.directory.release(&session.client_id, self.id);
            }
            tracing::error!(
                client_id = &*session.client_id,
                node = from,
                "limits.max_sessions reached; session of another node skipped"
            );
            return false;
        }
        let Some(journal) = &mut self.delivery.journal else {
            return false;
        };
        for &packet_id in &session.queue.received {
            journal.restore_packet_id(number, packet_id);
        }
        let key = records::session_key(&session.client_id, number);
        journal.put(StateKind::Sessions, &key, &bytes);
        if number != 0 {
            for (filter, options, identifier) in &session.subscriptions {
                journal.put_subscription(number, filter, *options, *identifier);
            }
            let adopted = self.adopted.entry(from.into()).or_default();
            adopted.insert(number, former);
        }
        self.restore_session(&RecoveredSession {
            client_id: session.client_id,
            record: bytes.into(),
            subscriptions: session.subscriptions,
            queue: (number != 0).then_some(session.queue),
        });
        true
    }

    /// Adopts a message published to `$delayed/...` at another node.
    pub(crate) fn adopt_delayed(&mut self, delayed: RecoveredDelayedMessage) {
        let Some(journal) = &mut self.delivery.journal else {
            return;
        };
        // Its subscribers may have got it from the other node.
        let routed = delayed.number & records::DELAYED_ROUTED;
        let number = journal.next_unique_number() | routed;
        let key = records::delayed_key(delayed.due_ms, number);
        let body = records::message_bytes(&delayed.message.view());
        journal.put(StateKind::Delayed, &key, &body);
        self.restore_delayed(RecoveredDelayedMessage { number, ..delayed });
    }

    /// Takes over messages that were on their way from the node to others, and had been acknowledged perhaps.
    pub(crate) fn adopt_node_entries(
        &mut self,
        from: &str,
        entries: &[RestoredEntry],
        first_seqs: &FirstSeqs,
    ) {
        for restored in entries {
            if restored.entry().target == NodeEntryTarget::RetainedCopy {
                self.store_retained_copy(&restored.message.view());
            }
        }
        if let Some(journal) = &mut self.delivery.journal {
            journal.adopt_node_entries(from, entries, first_seqs);
        }
    }

    /// Delivers a message to the sessions that were adopted from a node and have not got it, and to no others.
    pub(crate) fn deliver_to_adopted(
        &mut self,
        from: &str,
        id: Option<MessageId>,
        dispatch: &mut Dispatch<'_>,
    ) {
        self.deliver_to_adopted_of_shard(from, None, id, dispatch);
    }

    /// Delivers a message that this shard has delivered before to those adopted sessions that have not got it. Their node
    /// had failed before it stored the message, and the node that had it for them has failed, too, and sends it to all.
    pub(super) fn deliver_to_adopted_without(
        &mut self,
        id: MessageId,
        published_at: Option<&str>,
        dispatch: &mut Dispatch<'_>,
    ) {
        let without = self.adopted.iter().filter(|(node, adopted)| {
            !adopted.passed_on.contains(&(id.origin, id.seq)) && published_at != Some(&***node)
        });
        let nodes: Vec<Box<str>> = without.map(|(node, _)| node.clone()).collect();
        for node in nodes {
            self.deliver_to_adopted(&node, Some(id), dispatch);
        }
    }

    /// Delivers a message that was published at a node to all sessions except those that were adopted from it.
    pub(super) fn deliver_to_others(
        &mut self,
        node: &str,
        id: Option<MessageId>,
        dispatch: &mut Dispatch<'_>,
    ) {
        let mut excluded = id.map_or(Vec::new(), |id| self.adopted_with(id));
        if let Some(adopted) = self.adopted.get(node) {
            excluded.push(ExcludedSessions {
                numbers: adopted.numbers.clone(),
                receivers: None,
            });
        }
        self.deliver_to_some(SessionFilter::NotAdopted(excluded), dispatch);
    }

    /// A condition for the sessions that get a message; `None`: all. Adopted sessions may have got it already.
    pub(super) fn filter_during_adoptions(&self, id: Option<MessageId>) -> Option<SessionFilter> {
        if self.adopted.is_empty() {
            return None;
        }
        let excluded = self.adopted_with(id?);
        (!excluded.is_empty()).then_some(SessionFilter::NotAdopted(excluded))
    }

    /// The adopted sessions that have got a message: as adopted ones, or at the node that had them.
    fn adopted_with(&self, id: MessageId) -> Vec<ExcludedSessions> {
        let adopted = self.adopted.values();
        let with = adopted.filter_map(|adopted| {
            let receivers = match adopted.passed_on.contains(&(id.origin, id.seq)) {
                true => None,
                false => Some(adopted.received.receivers_of(id)),
            };
            let has_any = (receivers.as_ref()).is_none_or(|receivers| !receivers.is_empty());
            has_any.then(|| ExcludedSessions {
                numbers: adopted.numbers.clone(),
                receivers,
            })
        });
        with.collect()
    }

    /// Delivers a message that was between two shards of a node to the sessions that were adopted from the second one.
    pub(crate) fn deliver_adopted_link(
        &mut self,
        from: &str,
        (shards, to): (u16, u16),
        view: &MessageView<'_>,
        member: Option<(&str, &str)>,
    ) {
        let mut dispatch = Dispatch::new(view, None);
        dispatch.is_exactly_once = true;
        match member {
            None => self.deliver_to_adopted_of_shard(
                from,
                Some((u64::from(shards), u64::from(to))),
                None,
                &mut dispatch,
            ),
            // Exactly one shard chooses the member.
            Some((filter, group)) if self.id == 0 => {
                let group =
                    (self.tree.find(filter)).and_then(|filter| self.tree.find_group(filter, group));
                if let Some(group) = group {
                    self.deliver_to_group(group, &mut dispatch);
                }
            }
            Some(_) => {}
        }
        self.close_pending_connections();
    }

    fn deliver_to_adopted_of_shard(
        &mut self,
        from: &str,
        of_shard: Option<ShardOfNode>,
        id: Option<MessageId>,
        dispatch: &mut Dispatch<'_>,
    ) {
        let filter = match self.adopted.get_mut(from) {
            Some(adopted) => {
                if let Some(id) = id
                    && adopted.passed_on.len() < MAX_DELIVERED
                    && !adopted.passed_on.insert((id.origin, id.seq))
                {
                    // Two nodes have passed it on.
                    return;
                }
                let delivered = id.and_then(|id| adopted.delivered.get(&(id.origin, id.seq)));
                let excluded = id.map(|id| adopted.received.receivers_of(id));
                SessionFilter::Adopted {
                    numbers: adopted.numbers.clone(),
                    of_shard,
                    excluded: excluded.unwrap_or_default(),
                    excluded_below: delivered.copied().unwrap_or(0),
                }
            }
            // This node was started again since: it is better that some get the message twice.
            None => SessionFilter::Durable,
        };
        self.deliver_to_some(filter, dispatch);
    }

    /// Forgets which sessions were adopted from a node: no message is addressed to them any more.
    pub(crate) fn forget_adoption(&mut self, from: &str) {
        self.adopted.remove(from);
    }

    /// Forgets all delayed messages, because another node has adopted them.
    pub(crate) fn abandon_delayed(&mut self) {
        for (due_ms, bytes, number) in self.timers.take_delayed() {
            self.node.directory.release_delayed(bytes);
            self.metrics().sub(Metric::DelayedMessages, 1);
            if number != 0
                && let Some(journal) = &mut self.delivery.journal
            {
                let key = records::delayed_key(due_ms, number);
                journal.delete(StateKind::Delayed, &key);
            }
        }
    }

    /// Closes all connections with answers that wait for a log, without these answers.
    pub(crate) fn close_held_connections(&mut self) {
        let Some(journal) = &mut self.delivery.journal else {
            return;
        };
        let held = journal.take_held_connections();
        self.close_without_answers(
            held,
            "another node has adopted the sessions of this one; what was not acknowledged is not stored",
        );
    }
}

/// Ends all durable sessions, some in each turn, because another node has adopted them. Their wills are not published
/// here. Counts them.
#[derive(Default)]
pub(crate) struct AbandonScan {
    next: usize,
    count: u64,
}

impl ShardScan for AbandonScan {
    type ScanResult = u64;

    fn step(mut self, shard: &mut Shard) -> ScanStep<Self> {
        if self.next == 0 {
            shard.close_held_connections();
            shard.abandon_delayed();
            shard.abandon_for_nodes();
        }
        let end = shard.delivery.sessions.end_position();
        let mut to_end = Vec::new();
        let mut examined = 0;
        while examined < SESSIONS_PER_STEP && self.next < end {
            examined += 1;
            let at = SessionIx::from_position(self.next);
            self.next += 1;
            let Some(session) = shard.delivery.sessions.get_mut(at) else {
                continue;
            };
            // Sessions without a number have only a will, which the other node has published.
            if session.store_number != 0 || session.connection.is_none() {
                session.will = None;
                to_end.push(at);
            }
        }
        shard.is_abandoning_sessions = true;
        for at in to_end {
            self.count += 1;
            let why = CloseReason::new(ReasonCode::SESSION_TAKEN_OVER, "taken_over");
            shard.terminate_session(at, why);
        }
        shard.is_abandoning_sessions = false;
        match self.next < end {
            true => ScanStep::Continue(self),
            false => ScanStep::Done(self.count),
        }
    }
}
