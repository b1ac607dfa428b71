//! What the control plane asks a shard about its sessions and filters.
//!
//! A question that has to look at all of them is a [`Walk`]: it goes in pieces, with turns of the shard between them, and keeps
//! no more than the rows that were asked for. What comes or goes while it walks may be in the answer or not.

use std::collections::BinaryHeap;
use std::sync::Arc;

use super::connection::Connection;
use super::session::Session;
use super::shard::Shard;
use super::sublist::{FilterId, GroupId, NO_GROUP};
use super::tree::filed_under;
use crate::info::{ClientInfo, Query, SubscriptionInfo, TopicInfo};

/// Entries looked at in one turn: well below a millisecond.
const PIECE_ENTRIES: usize = 4096;
/// Sessions told of in one turn.
const PIECE_SESSIONS: usize = 256;

/// A question that is answered over several turns of a shard.
pub(crate) trait Walk: Send + Sized + 'static {
    type Answer: Send;

    fn step(self, shard: &mut Shard) -> Step<Self>;
}

pub(crate) enum Step<W: Walk> {
    More(W),
    Done(W::Answer),
}

/// The smallest `limit` of those offered.
struct Smallest<T> {
    limit: usize,
    heap: BinaryHeap<T>,
}

impl<T: Ord> Smallest<T> {
    fn new(limit: usize) -> Self {
        Self {
            limit,
            heap: BinaryHeap::new(),
        }
    }

    /// Whether one with this key would be kept; asked before it is made.
    fn takes(&self, is_smaller_than: impl FnOnce(&T) -> bool) -> bool {
        self.heap.len() < self.limit || self.heap.peek().is_some_and(is_smaller_than)
    }

    fn offer(&mut self, one: T) {
        self.heap.push(one);
        if self.heap.len() > self.limit {
            self.heap.pop();
        }
    }

    fn into_sorted(self) -> Vec<T> {
        self.heap.into_sorted_vec()
    }
}

/// The filters a query wants, as this shard numbers them.
enum Filters {
    All,
    /// Sorted.
    These(Vec<(FilterId, GroupId)>),
}

impl Filters {
    fn of(shard: &mut Shard, query: &Query) -> Self {
        if let Some(written) = &query.topic_filter {
            let found = exact_filter(shard, written).filter(|&(filter, _)| {
                let text = &shard.tree.filter(filter).text;
                let topic = query.matches_topic.as_deref();
                topic.is_none_or(|topic| mqtt::filter_matches(text, topic))
            });
            return Self::These(found.into_iter().collect());
        }
        let Some(topic) = &query.matches_topic else {
            return Self::All;
        };
        let mut found = Vec::new();
        for filter in shard.tree.matching_filters(topic) {
            let entry = shard.tree.filter(filter);
            found.push((filter, NO_GROUP));
            found.extend(entry.groups.iter().map(|&group| (filter, group)));
        }
        found.sort_unstable();
        Self::These(found)
    }

    fn contains(&self, subscription: (FilterId, GroupId)) -> bool {
        match self {
            Filters::All => true,
            Filters::These(these) => these.binary_search(&subscription).is_ok(),
        }
    }
}

fn exact_filter(shard: &Shard, written: &str) -> Option<(FilterId, GroupId)> {
    let kind = mqtt::parse_filter(written, &shard.topic_limits()).ok()?;
    let (text, group) = filed_under(&kind);
    let filter = shard.tree.find(text)?;
    match group {
        Some(name) => Some((filter, shard.tree.find_group(filter, name)?)),
        None => Some((filter, NO_GROUP)),
    }
}

fn wants_client(query: &Query, session: &Session) -> bool {
    let id = &*session.client_id;
    query.client_id.as_deref().is_none_or(|wanted| wanted == id)
        && query.after.as_deref().is_none_or(|after| id > after)
        && query
            .client_id_contains
            .as_deref()
            .is_none_or(|part| id.contains(part))
        && query
            .username
            .as_deref()
            .is_none_or(|name| session.username.as_deref() == Some(name))
        && query
            .connected
            .is_none_or(|connected| session.connection.is_some() == connected)
}

/// Rows of which a session has some or none.
pub(crate) trait OfSession: Send + Sized + 'static {
    /// Whether the session has any; the second says how many entries were looked at.
    fn any(session: &Session, has: impl Fn((FilterId, GroupId)) -> bool) -> (bool, usize);
    fn tell(
        shard: &Shard,
        at: u32,
        has: impl Fn((FilterId, GroupId)) -> bool,
        rows: &mut Vec<Self>,
    );
}

impl OfSession for ClientInfo {
    fn any(_: &Session, _: impl Fn((FilterId, GroupId)) -> bool) -> (bool, usize) {
        (true, 1)
    }

    fn tell(shard: &Shard, at: u32, _: impl Fn((FilterId, GroupId)) -> bool, rows: &mut Vec<Self>) {
        rows.push(client_info(shard, at));
    }
}

impl OfSession for SubscriptionInfo {
    fn any(session: &Session, has: impl Fn((FilterId, GroupId)) -> bool) -> (bool, usize) {
        let found = session.subscriptions.iter().position(|&s| has(s));
        let looked_at = found.unwrap_or(session.subscriptions.len());
        (found.is_some(), 1 + looked_at)
    }

    fn tell(
        shard: &Shard,
        at: u32,
        has: impl Fn((FilterId, GroupId)) -> bool,
        rows: &mut Vec<Self>,
    ) {
        let before = rows.len();
        let session = &shard.delivery.sessions[at as usize];
        let wanted = session.subscriptions.iter().filter(|&&s| has(s));
        rows.extend(
            wanted.filter_map(|&(filter, group)| subscription_info(shard, at, filter, group)),
        );
        rows[before..].sort_unstable_by(|a, b| a.topic_filter.cmp(&b.topic_filter));
    }
}

/// The first `limit` rows by client id, so that a page of a million sessions does not copy them all.
pub(crate) struct SessionRows<R> {
    query: Query,
    next: usize,
    found: Smallest<Arc<str>>,
    /// Once all were looked at.
    chosen: Option<std::vec::IntoIter<Arc<str>>>,
    /// Whether no session beyond those chosen has rows.
    chose_all: bool,
    told_of: Option<Arc<str>>,
    rows: Vec<R>,
}

impl<R: OfSession> SessionRows<R> {
    pub(crate) fn new(query: Query) -> Self {
        Self {
            next: 0,
            found: Smallest::new(query.limit),
            chosen: None,
            chose_all: false,
            told_of: None,
            rows: Vec::new(),
            query,
        }
    }

    fn choose(&mut self, shard: &Shard, filters: &Filters) {
        let ids: Vec<_> = if let Some(client_id) = &self.query.client_id {
            let known = shard.by_client_id.get_key_value(&**client_id);
            self.chose_all = true;
            known.map(|(id, _)| id.clone()).into_iter().collect()
        } else if self.look(shard, filters) {
            let limit = self.query.limit;
            let ids = std::mem::replace(&mut self.found, Smallest::new(limit)).into_sorted();
            self.chose_all = ids.len() < limit;
            ids
        } else {
            return;
        };
        self.chosen = Some(ids.into_iter());
    }

    /// True once all sessions were looked at.
    fn look(&mut self, shard: &Shard, filters: &Filters) -> bool {
        let sessions = &shard.delivery.sessions;
        let mut looked_at = 0;
        while looked_at < PIECE_ENTRIES && self.next < sessions.capacity() {
            let session = sessions.get(self.next);
            self.next += 1;
            looked_at += 1;
            let Some(session) = session else {
                continue;
            };
            let id = &session.client_id;
            if self.found.takes(|largest| id < largest) && wants_client(&self.query, session) {
                let (has_any, more) = R::any(session, |s| filters.contains(s));
                looked_at += more;
                if has_any {
                    self.found.offer(id.clone());
                }
            }
        }
        self.next >= sessions.capacity()
    }
}

impl<R: OfSession> Walk for SessionRows<R> {
    type Answer = Vec<R>;

    fn step(mut self, shard: &mut Shard) -> Step<Self> {
        let filters = Filters::of(shard, &self.query);
        if self.query.limit == 0 {
            return Step::Done(self.rows);
        }
        let Some(mut chosen) = self.chosen.take() else {
            self.choose(shard, &filters);
            return Step::More(self);
        };
        for id in chosen.by_ref().take(PIECE_SESSIONS) {
            // It may have gone, or changed, since it was looked at.
            if let Some(&at) = shard.by_client_id.get(&*id)
                && wants_client(&self.query, &shard.delivery.sessions[at as usize])
            {
                R::tell(shard, at, |s| filters.contains(s), &mut self.rows);
            }
            self.told_of = Some(id);
            if self.rows.len() >= self.query.limit {
                self.rows.truncate(self.query.limit);
                return Step::Done(self.rows);
            }
        }
        if !chosen.as_slice().is_empty() {
            self.chosen = Some(chosen);
            return Step::More(self);
        }
        if self.chose_all {
            return Step::Done(self.rows);
        }
        // Some of those chosen have gone: a page that is not full would say that there are no more.
        self.query.after = self.told_of.as_deref().map(str::to_owned);
        self.next = 0;
        Step::More(self)
    }
}

pub(crate) fn client_info(shard: &Shard, at: u32) -> ClientInfo {
    let session = &shard.delivery.sessions[at as usize];
    let connection: Option<&Connection> = session
        .connection
        .map(|c| &shard.delivery.connections[c as usize]);
    let outbound = session.outbound.as_deref();
    let now_ms = shard.now_ms();
    let device = session.permissions.as_ref().and_then(|held| held.device());
    ClientInfo {
        device: device.map(|device| device.id.to_owned()),
        product: device.map(|device| device.product.to_owned()),
        client_id: session.client_id.to_string(),
        username: session.username.as_deref().map(str::to_owned),
        connected: connection.is_some(),
        protocol_version: session.version.as_str(),
        listener: connection.map(|c| {
            shard.node.listeners[usize::from(c.listener)]
                .config
                .name
                .clone()
        }),
        peer_address: connection.map(|c| c.peer.to_string()),
        shard: shard.id,
        clean_start: session.clean_start,
        keep_alive_s: connection.map_or(0, |c| c.keep_alive_s),
        connected_at_ms: connection.map(|_| session.connected_ms),
        disconnected_at_ms: connection.is_none().then_some(session.disconnected_ms),
        session_created_at_ms: session.created_ms,
        session_expiry_s: session.expiry_s,
        subscriptions: session.subscriptions.len(),
        inflight: outbound.map_or(0, |o| o.inflight()),
        queued_messages: outbound.map_or(0, |o| o.size().messages),
        queued_bytes: outbound.map_or(0, |o| o.size().bytes),
        queue_age_ms: outbound
            .and_then(|o| o.oldest_queued_ms())
            .map_or(0, |since_ms| now_ms.saturating_sub(since_ms)),
        outbox_bytes: connection.map_or(0, |c| c.outbox.len()),
        messages_received: session.received,
        messages_sent: session.sent,
        messages_dropped: session.dropped,
    }
}

fn subscription_info(
    shard: &Shard,
    at: u32,
    filter: FilterId,
    group: GroupId,
) -> Option<SubscriptionInfo> {
    let subscriber = if group == NO_GROUP {
        shard.tree.filter(filter).subscribers.get(at)
    } else {
        shard.tree.group(group).member(at)
    }?;
    let options = subscriber.options;
    let session = &shard.delivery.sessions[at as usize];
    Some(SubscriptionInfo {
        client_id: session.client_id.to_string(),
        topic_filter: shard.written_filter(filter, group),
        qos: options.qos as u8,
        no_local: options.no_local,
        retain_as_published: options.retain_as_published,
        retain_handling: options.retain_handling,
        subscription_identifier: (subscriber.identifier != 0).then_some(subscriber.identifier),
        shard: shard.id,
    })
}

/// The first `limit` filters by text that somebody on the shard subscribes to.
pub(crate) struct TopicRows {
    query: Query,
    next: usize,
    found: Smallest<(String, usize)>,
}

impl TopicRows {
    pub(crate) fn new(query: Query) -> Self {
        Self {
            next: 0,
            found: Smallest::new(query.limit),
            query,
        }
    }

    fn offer(&mut self, shard: &Shard, filter: FilterId, group: GroupId) {
        let subscribers = if group == NO_GROUP {
            shard.tree.filter(filter).subscribers.len()
        } else {
            shard.tree.group(group).local_len()
        };
        let after = self.query.after.as_deref();
        let is_wanted = |written: &str, found: &Smallest<(String, usize)>| {
            after.is_none_or(|after| written > after)
                && found.takes(|(largest, _)| written < largest.as_str())
        };
        if subscribers == 0 {
            return;
        }
        // What needs no text of its own is not given one in vain.
        if group == NO_GROUP && !is_wanted(&shard.tree.filter(filter).text, &self.found) {
            return;
        }
        let written = shard.written_filter(filter, group);
        if is_wanted(&written, &self.found) {
            self.found.offer((written, subscribers));
        }
    }

    fn done(self, shard: &Shard) -> Step<Self> {
        let row = |(topic_filter, subscribers)| TopicInfo {
            topic_filter,
            subscribers,
            shards: vec![shard.id],
        };
        Step::Done(self.found.into_sorted().into_iter().map(row).collect())
    }
}

impl Walk for TopicRows {
    type Answer = Vec<TopicInfo>;

    fn step(mut self, shard: &mut Shard) -> Step<Self> {
        if let Filters::These(these) = Filters::of(shard, &self.query) {
            for (filter, group) in these {
                self.offer(shard, filter, group);
            }
            return self.done(shard);
        }
        let mut looked_at = 0;
        let filters = &shard.tree.filters;
        while looked_at < PIECE_ENTRIES && self.next < filters.capacity() {
            looked_at += 1;
            if let Some(filter) = filters.get(self.next) {
                let at = self.next as FilterId;
                self.offer(shard, at, NO_GROUP);
                for &group in &filter.groups {
                    self.offer(shard, at, group);
                    looked_at += 1;
                }
            }
            self.next += 1;
        }
        if self.next < filters.capacity() {
            return Step::More(self);
        }
        self.done(shard)
    }
}

/// How long the oldest message has waited in a session queue of the shard.
#[derive(Default)]
pub(crate) struct OldestQueued {
    next: usize,
    oldest_ms: u64,
}

impl Walk for OldestQueued {
    type Answer = u64;

    fn step(mut self, shard: &mut Shard) -> Step<Self> {
        if shard.metrics().get(crate::metrics::Metric::QueuedMessages) == 0 {
            return Step::Done(0);
        }
        let sessions = &shard.delivery.sessions;
        let end = sessions.capacity().min(self.next + PIECE_ENTRIES);
        let now_ms = shard.now_ms();
        for session in (self.next..end).filter_map(|at| sessions.get(at)) {
            let outbound = session.outbound.as_deref();
            if let Some(since_ms) = outbound.and_then(|outbound| outbound.oldest_queued_ms()) {
                self.oldest_ms = self.oldest_ms.max(now_ms.saturating_sub(since_ms));
            }
        }
        self.next = end;
        if end < sessions.capacity() {
            return Step::More(self);
        }
        Step::Done(self.oldest_ms)
    }
}
