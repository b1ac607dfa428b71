//! Sessions in the store and back: records of sessions and subscriptions, what a start makes of them, and the end of a
//! shard's turn, when what it wrote leaves for the log.

use mqtt::{FilterKind, SubscriptionOptions};
use std::sync::Arc;

use store::{Batch, Page, QueueSummary, Space};

use super::connection::Phase;
use super::deliver::{Delivery, Dispatch};
use super::directory::{Claim, Directory};
use super::estate::Estate;
use super::journal::{Journal, Link, TurnEnd};
use super::message::{Message, MessageView};
use super::route::deliver_locally;
use super::session::{Outbound, Parcel, QueueSize, Session, Will};
use super::shard::Shard;
use super::stored::{self, SessionRecord};
use super::sublist::{FilterId, GroupId, Subscriber};
use super::timers::Timer;
use super::tree::filed_under;
use crate::metrics::Metric;

/// A session as the store has it.
pub(crate) struct StoredSession {
    pub(crate) client_id: Box<str>,
    /// A [`SessionRecord`].
    pub(crate) record: Box<[u8]>,
    pub(crate) subscriptions: Vec<(Box<str>, SubscriptionOptions, u32)>,
    pub(crate) queue: Option<QueueSummary>,
}

/// A message published to `$delayed/...`, as the store has it.
pub(crate) struct StoredDelayed {
    pub(crate) due_ms: u64,
    pub(crate) number: u64,
    pub(crate) message: Message,
}

impl Delivery {
    /// Whether nothing new can be stored now.
    #[inline]
    pub(crate) fn refuses(&self) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.refuses)
    }

    /// Like `hold`, for an answer to what an earlier turn wrote.
    pub(crate) fn hold_for_all(&mut self, at: u32) {
        if let Some(journal) = &mut self.journal
            && (journal.is_touched() || journal.complete() + 1 < journal.turn())
            && self.connections[at as usize].outbox.hold(journal.turn())
        {
            journal.hold(at);
        }
    }
}

impl Shard {
    /// Writes down what of a session is to outlive the node; or that nothing is any more.
    pub(crate) fn record_session(&mut self, at: u32) {
        if self.delivery.journal.is_none() {
            return;
        }
        let session = &self.delivery.sessions[at as usize];
        if session.number == 0 && session.expiry_s > 0 {
            self.make_durable(at);
        }
        let session = &mut self.delivery.sessions[at as usize];
        let Some(journal) = &mut self.delivery.journal else {
            return;
        };
        let is_kept = session.number != 0 || session.will.is_some();
        let before = session.recorded_as.take();
        if let Some(before) = before
            && (!is_kept || before != session.number)
        {
            let key = stored::session_key(&session.client_id, before);
            journal.delete(Space::Sessions, &key);
        }
        if !is_kept {
            return;
        }
        session.recorded_as = Some(session.number);
        let body = session
            .will
            .as_ref()
            .map(|will| stored::message_bytes(&will.message.view()));
        let record = SessionRecord {
            number: session.number,
            version: session.version,
            connected: session.connection.is_some(),
            clean_start: session.clean_start,
            bridge: session.bridge,
            expiry_s: session.expiry_s,
            created_ms: session.created_ms,
            disconnected_ms: session.disconnected_ms,
            username: session.username.as_deref(),
            will: session
                .will
                .as_ref()
                .map(|will| (will.delay_s, body.as_deref().unwrap_or_default())),
        };
        let mut bytes = Vec::with_capacity(64);
        record.write(&mut bytes);
        let key = stored::session_key(&session.client_id, session.number);
        journal.put(Space::Sessions, &key, &bytes);
    }

    /// A session is to outlive the node from now on: with its subscriptions, and what it has to deliver.
    fn make_durable(&mut self, at: u32) {
        let Some(journal) = &mut self.delivery.journal else {
            return;
        };
        let number = journal.number_for(at);
        let session = &mut self.delivery.sessions[at as usize];
        session.number = number;
        let mut seq = session.last_seq;
        if let Some(outbound) = &mut session.outbound {
            outbound.adopt(|packet_id, parcel| {
                seq += 1;
                journal.message(&parcel.message.view());
                let identifiers = parcel.identifiers.as_deref().unwrap_or(&[]);
                let (qos, retain) = (parcel.qos, parcel.retain);
                journal.entry((number, seq), packet_id, qos, retain, identifiers);
                seq
            });
        }
        session.last_seq = seq;
        for packet_id in session.incoming_qos2.iter().flat_map(|set| set.iter()) {
            journal.received(number, packet_id);
        }
        for (filter, group) in session.subscriptions.clone() {
            let written = self.written_filter(filter, group);
            let entry = self.tree.filter(filter);
            let subscriber = match group == super::sublist::NO_GROUP {
                true => entry.subscribers.get(at).copied(),
                false => self.tree.group(group).member(at).copied(),
            };
            if let Some(subscriber) = subscriber {
                self.record_subscription(subscriber, &written);
            }
        }
    }

    /// The session has ended. What is stored for it ends with it, unless it is left to others.
    pub(crate) fn forget_session(&mut self, at: u32, estate: Option<Estate>) {
        let session = &mut self.delivery.sessions[at as usize];
        let Some(journal) = &mut self.delivery.journal else {
            return;
        };
        if let Some(number) = session.recorded_as.take() {
            let key = stored::session_key(&session.client_id, number);
            journal.delete(Space::Sessions, &key);
        }
        match estate {
            Some(estate) => self.settle(estate),
            None if session.number != 0 => journal.end(session.number),
            None => {}
        }
    }

    pub(super) fn record_subscription(&mut self, subscriber: Subscriber, written: &str) {
        let number = self.delivery.sessions[subscriber.session as usize].number;
        if number != 0
            && let Some(journal) = &mut self.delivery.journal
        {
            let (mut key, mut value) = (Vec::new(), Vec::new());
            stored::subscription_key(number, written, &mut key);
            stored::put_subscription(subscriber.options, subscriber.identifier, &mut value);
            journal.put(Space::Subscriptions, &key, &value);
        }
    }

    pub(super) fn forget_subscription(&mut self, at: u32, filter: FilterId, group: GroupId) {
        let number = self.delivery.sessions[at as usize].number;
        if number == 0 || self.delivery.journal.is_none() {
            return;
        }
        let written = self.written_filter(filter, group);
        if let Some(journal) = &mut self.delivery.journal {
            let mut key = Vec::new();
            stored::subscription_key(number, &written, &mut key);
            journal.delete(Space::Subscriptions, &key);
        }
    }

    /// From now on what is to outlive the node is written down.
    pub(crate) fn keep_journal(&mut self, first_number: u64, links: &[(Link, u64)]) {
        let mut journal = Journal::new(self.id, self.shards, first_number);
        for &(link, last_seq) in links {
            journal.continue_link(link, last_seq);
        }
        self.delivery.journal = Some(Box::new(journal));
    }

    /// Brings a session back as it was when the node stopped, or died.
    pub(crate) fn restore(&mut self, stored: &StoredSession) {
        let Some(record) = SessionRecord::read(&stored.record) else {
            tracing::error!(
                client_id = &*stored.client_id,
                "the record of a session could not be read; it is left out"
            );
            return;
        };
        let Claim::Mine(id) = self.node.directory.claim(&stored.client_id, self.id) else {
            return;
        };
        if !Directory::take_place(&self.node.directory.sessions, self.limits.max_sessions) {
            self.node.directory.release(&stored.client_id, self.id);
            tracing::error!(
                client_id = &*stored.client_id,
                "a session was left out: the node holds as many sessions as it may"
            );
            return;
        }
        let at = self.insert_restored(id, &record, stored.queue.as_ref());
        for (written, options, identifier) in &stored.subscriptions {
            self.restore_subscription(at, written, *options, *identifier);
        }
        self.set_group_presence(at, false);
        self.schedule_restored(at, &record);
    }

    fn insert_restored(
        &mut self,
        id: Arc<str>,
        record: &SessionRecord<'_>,
        queue: Option<&QueueSummary>,
    ) -> u32 {
        let now_ms = self.now_ms();
        let mut session = Session::new(id.clone(), now_ms);
        session.number = record.number;
        session.recorded_as = Some(record.number);
        session.version = record.version;
        session.clean_start = record.clean_start;
        session.bridge = record.bridge;
        session.expiry_s = record.expiry_s;
        session.created_ms = record.created_ms;
        session.username = record.username.map(Into::into);
        // A crash has cut the connection now; who was away has been since then.
        session.disconnected_ms = match record.connected {
            true => now_ms,
            false => record.disconnected_ms,
        };
        session.will = record.will.and_then(|(delay_s, body)| {
            let message = stored::read_message(body)?;
            Some(Box::new(Will { message, delay_s }))
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
                let bytes = queue.bytes as usize + messages * size_of::<Parcel>();
                let outbound = Outbound::restored(queue.first_seq, messages, bytes, now_ms);
                self.delivery
                    .count_queue(QueueSize::default(), outbound.size());
                session.outbound = Some(Box::new(outbound));
            }
        }
        let number = session.number;
        let at = self.delivery.sessions.insert(session) as u32;
        self.by_client_id.insert(id, at);
        self.metrics().inc(Metric::Sessions);
        if let Some(journal) = &mut self.delivery.journal
            && number != 0
        {
            journal.know(number, at);
        }
        at
    }

    fn restore_subscription(
        &mut self,
        at: u32,
        written: &str,
        options: SubscriptionOptions,
        identifier: u32,
    ) {
        // The limits may be others than when it was made.
        let Ok(kind) = mqtt::parse_filter(written, &self.topic_limits()) else {
            tracing::warn!(
                filter = written,
                "a stored subscription is beyond today's limits; it is left out"
            );
            return;
        };
        if let FilterKind::Exclusive { topic } = kind {
            let client_id = self.delivery.sessions[at as usize].client_id.clone();
            self.node.directory.claim_exclusive(topic, &client_id);
        }
        let (text, group) = filed_under(&kind);
        let subscriber = Subscriber {
            session: at,
            identifier,
            options,
        };
        self.file(text, group, subscriber);
    }

    fn schedule_restored(&mut self, at: u32, record: &SessionRecord<'_>) {
        let now_ms = self.now_ms();
        let session = &self.delivery.sessions[at as usize];
        let away_since_ms = session.disconnected_ms;
        if let Some(will) = &session.will {
            let due_ms = away_since_ms + u64::from(will.delay_s) * 1000;
            let timer = self.timers.add(due_ms.max(now_ms), Timer::Will(at));
            self.delivery.sessions[at as usize].will_timer = Some(timer);
        }
        if record.expiry_s != u32::MAX {
            let due_ms = away_since_ms + u64::from(record.expiry_s) * 1000;
            let timer = self
                .timers
                .add(due_ms.max(now_ms), Timer::SessionExpiry(at));
            self.delivery.sessions[at as usize].expiry_timer = Some(timer);
        }
        if record.connected {
            self.record_session(at);
        }
    }

    /// A message published to `$delayed/...` before the node stopped.
    pub(crate) fn restore_delayed(&mut self, delayed: StoredDelayed) {
        let limits = self.limits.clone();
        let bytes = delayed.message.size() as u64;
        if !self.node.directory.take_delayed(bytes, &limits) {
            tracing::error!("a delayed message was left out: there are as many as there may be");
            return;
        }
        self.metrics().inc(Metric::DelayedMessages);
        let timer = Timer::Delayed {
            message: Box::new(delayed.message),
            bytes,
            number: delayed.number,
        };
        self.timers.add(delayed.due_ms, timer);
    }

    /// What the store knows and nobody wants any more: queues of sessions without a record, and these keys.
    pub(crate) fn discard_stored(&mut self, sessions: &[u64], keys: &[(Space, Box<[u8]>)]) {
        let Some(journal) = &mut self.delivery.journal else {
            return;
        };
        for &number in sessions {
            journal.end(number);
        }
        for (space, key) in keys {
            journal.delete(*space, key);
        }
    }

    /// Closes the turn. What it wrote is to be handed to the store before anything of this shard is written to a
    /// socket or said to another.
    pub(crate) fn end_turn(&mut self, spare: impl FnOnce() -> Batch) -> Option<TurnEnd> {
        let journal = self.delivery.journal.as_mut()?;
        let end = journal.end_turn(spare);
        let (turn, mut to_confirm) = (end.turn, end.to_confirm);
        self.links.hold(end.linked, turn);
        while to_confirm != 0 {
            let shard = to_confirm.trailing_zeros() as u16;
            to_confirm &= to_confirm - 1;
            self.links.say(shard, super::cross::Said::Turn { turn });
        }
        self.let_go();
        Some(end)
    }

    /// The store has everything up to a turn.
    pub(crate) fn logged(&mut self, turn: u64) {
        if let Some(journal) = &mut self.delivery.journal {
            journal.logged(turn);
        }
        self.links.logged(turn);
        self.let_go();
    }

    /// What hooks have made of a turn is safe.
    pub(crate) fn settled(&mut self, turn: u64) {
        if let Some(journal) = &mut self.delivery.journal {
            journal.settled(turn);
        }
        self.let_go();
    }

    /// Lets go what waited for turns that are complete, and confirms what other shards wait for.
    pub(crate) fn let_go(&mut self) {
        while let Some(journal) = &mut self.delivery.journal
            && let Some((turn, connections)) = journal.let_go()
        {
            for at in connections {
                let Some(connection) = self.delivery.connections.get_mut(at as usize) else {
                    continue;
                };
                connection.outbox.let_go(turn);
                if connection.phase == Phase::Closing {
                    self.to_wake.push(at);
                }
                self.delivery.touch(at);
            }
        }
        if let Some(journal) = &mut self.delivery.journal {
            journal.delete_complete();
        }
        while let Some(journal) = &mut self.delivery.journal
            && let Some((shard, turn)) = journal.confirmation()
        {
            self.links.say(shard, super::cross::Said::Logged { turn });
        }
        self.give_answers();
    }

    /// Whether what is in a link is for this shard to deliver. When the node has as many shards as it had, that is as it
    /// was; else every shard looks for the sessions that were on the other one.
    pub(crate) fn follows(&self, link: Link) -> bool {
        link.shards != self.shards || link.to == self.id
    }

    /// Delivers what was on its way between two shards when the node died, to those who were to get it.
    pub(crate) fn deliver_linked(&mut self, link: Link, page: &Page) {
        for entry in &page.entries {
            let message = stored::read_message(&entry.body);
            let member = stored::read_member(&entry.attributes);
            if let (Some(message), Some(member)) = (message, member) {
                self.deliver_stored_crossing(link, &message.view(), member);
            } else {
                tracing::error!("a message between two shards could not be read; it is lost");
            }
            if link.shards == self.shards
                && let Some(journal) = &mut self.delivery.journal
            {
                journal.unlink(link.from, entry.seq);
            }
        }
        self.close_doomed();
    }

    fn deliver_stored_crossing(
        &mut self,
        link: Link,
        view: &MessageView<'_>,
        member: Option<(&str, &str)>,
    ) {
        let mut dispatch = Dispatch::new(*view, None);
        dispatch.exactly_once = true;
        let Some((filter, group)) = member else {
            let (set, filters) = self.tree.matches(view.topic);
            if link.shards == self.shards {
                return deliver_locally(&mut self.delivery, set, filters, &mut dispatch);
            }
            self.delivery.only = Some((u64::from(link.shards), u64::from(link.to)));
            deliver_locally(&mut self.delivery, set, filters, &mut dispatch);
            self.delivery.only = None;
            return;
        };
        // One shard chooses the member.
        if link.shards == self.shards || self.id == 0 {
            let group = self
                .tree
                .find(filter)
                .and_then(|filter| self.tree.find_group(filter, group));
            if let Some(group) = group {
                self.deliver_to_group(group, &mut dispatch);
            }
        }
    }

    /// Nothing of a link is wanted any more.
    pub(crate) fn end_link(&mut self, link: Link) {
        if let Some(journal) = &mut self.delivery.journal {
            journal.end(link.number());
        }
    }

    /// A piece of a session's stored messages.
    pub(crate) fn take_page(&mut self, page: Page) {
        if Link::of(page.session).is_some() {
            self.link_pages.push(page);
            return;
        }
        self.inherit(&page);
        let session = page.session;
        self.delivery.take_page(page);
        self.release_loaded(session);
        self.close_doomed();
    }

    /// A client that came back has got what there was to be sent again: what it sent meanwhile has its turn.
    fn release_loaded(&mut self, number: u64) {
        let journal = self.delivery.journal.as_ref();
        let session = journal.and_then(|journal| journal.session(number));
        let session = session.and_then(|at| self.delivery.sessions.get(at as usize));
        let Some(at) = session.and_then(|session| session.connection) else {
            return;
        };
        let is_awaiting_suback = self.awaited.iter().any(|awaited| awaited.is_of(at));
        let connection = &mut self.delivery.connections[at as usize];
        if connection.held && !is_awaiting_suback {
            connection.held = false;
            self.to_wake.push(at);
        }
    }

    /// Whether the turn has to be closed.
    pub(crate) fn has_turn(&self) -> bool {
        let journal = self.delivery.journal.as_ref();
        journal.is_some_and(|journal| journal.has_work())
    }
}
