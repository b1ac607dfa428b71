//! Queries of the control plane about the sessions and filters of a shard.
//!
//! A query over all of them is a [`ShardScan`]. It works in steps, with turns of the shard between them, and keeps only
//! the rows requested. The result may or may not include objects added or removed during the scan.

use std::borrow::Cow;
use std::collections::BinaryHeap;
use std::sync::Arc;

use super::connection::Connection;
use super::session::Session;
use super::shard::Shard;
use super::subscription_tree::filter_and_group;
use super::tables::{FilterId, GroupId, NO_GROUP, SessionIx, TableIx};
use crate::info::{ClientInfo, ListQuery, SubscriptionInfo, TopicInfo};

/// Entries examined in one turn: well below a millisecond.
const ENTRIES_PER_STEP: usize = 4096;
/// Sessions listed in one turn.
const SESSIONS_PER_STEP: usize = 256;

/// A query that is answered over several turns of a shard.
pub(crate) trait ShardScan: Send + Sized + 'static {
    type ScanResult: Send;

    fn step(self, shard: &mut Shard) -> ScanStep<Self>;
}

pub(crate) enum ScanStep<W: ShardScan> {
    Continue(W),
    Done(W::ScanResult),
}

/// The smallest `limit` of the values offered.
struct SmallestN<T> {
    limit: usize,
    heap: BinaryHeap<T>,
}

impl<T: Ord> SmallestN<T> {
    fn new(limit: usize) -> Self {
        Self {
            limit,
            heap: BinaryHeap::new(),
        }
    }

    /// Whether a value with this key would be kept; checked before the value is created.
    fn would_accept(&self, is_smaller_than: impl FnOnce(&T) -> bool) -> bool {
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

/// The filters selected by a query, as this shard numbers them.
enum FilterSelection {
    All,
    /// Sorted.
    Selected(Vec<(FilterId, GroupId)>),
}

impl FilterSelection {
    fn for_query(shard: &mut Shard, query: &ListQuery) -> Self {
        if let Some(written) = &query.topic_filter {
            let found = find_exact_filter(shard, written).filter(|&(filter, _)| {
                let text = &shard.tree.filter(filter).text;
                let topic = query.matches_topic.as_deref();
                topic.is_none_or(|topic| mqtt::filter_matches(text, topic))
            });
            return Self::Selected(found.into_iter().collect());
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
        Self::Selected(found)
    }

    fn contains(&self, subscription: (FilterId, GroupId)) -> bool {
        match self {
            FilterSelection::All => true,
            FilterSelection::Selected(these) => these.binary_search(&subscription).is_ok(),
        }
    }
}

fn find_exact_filter(shard: &Shard, written: &str) -> Option<(FilterId, GroupId)> {
    let kind = mqtt::parse_filter(written, &shard.topic_limits()).ok()?;
    let (text, group) = filter_and_group(&kind);
    let filter = shard.tree.find(text)?;
    match group {
        Some(name) => Some((filter, shard.tree.find_group(filter, name)?)),
        None => Some((filter, NO_GROUP)),
    }
}

fn matches_client(query: &ListQuery, session: &Session) -> bool {
    let id = &*session.client_id;
    // Relay connections are listed with their endpoint.
    !session.is_relay
        && query.client_id.as_deref().is_none_or(|wanted| wanted == id)
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

/// A row type of which each session has zero or more rows.
pub(crate) trait SessionRow: Send + Sized + 'static {
    /// Whether the session has any rows, and the number of entries examined.
    fn count_in(session: &Session, has: impl Fn((FilterId, GroupId)) -> bool) -> (bool, usize);
    fn append_rows(
        shard: &Shard,
        at: SessionIx,
        has: impl Fn((FilterId, GroupId)) -> bool,
        rows: &mut Vec<Self>,
    );
}

impl SessionRow for ClientInfo {
    fn count_in(_: &Session, _: impl Fn((FilterId, GroupId)) -> bool) -> (bool, usize) {
        (true, 1)
    }

    fn append_rows(
        shard: &Shard,
        at: SessionIx,
        _: impl Fn((FilterId, GroupId)) -> bool,
        rows: &mut Vec<Self>,
    ) {
        rows.push(client_info(shard, at));
    }
}

impl SessionRow for SubscriptionInfo {
    fn count_in(session: &Session, has: impl Fn((FilterId, GroupId)) -> bool) -> (bool, usize) {
        let found = session.subscriptions.iter().position(|&s| has(s));
        let looked_at = found.unwrap_or(session.subscriptions.len());
        (found.is_some(), 1 + looked_at)
    }

    fn append_rows(
        shard: &Shard,
        at: SessionIx,
        has: impl Fn((FilterId, GroupId)) -> bool,
        rows: &mut Vec<Self>,
    ) {
        let before = rows.len();
        let session = &shard.delivery.sessions[at];
        let wanted = session.subscriptions.iter().filter(|&&s| has(s));
        rows.extend(
            wanted.filter_map(|&(filter, group)| subscription_info(shard, at, filter, group)),
        );
        rows[before..].sort_unstable_by(|a, b| a.topic_filter.cmp(&b.topic_filter));
    }
}

/// The first `limit` rows by client id; a page of a million sessions does not copy all of them.
pub(crate) struct SessionRowScan<R> {
    query: ListQuery,
    next: usize,
    found: SmallestN<Arc<str>>,
    /// Set once all sessions have been examined.
    selected: Option<std::vec::IntoIter<Arc<str>>>,
    /// Whether no session beyond those selected has rows.
    selected_all: bool,
    last_listed: Option<Arc<str>>,
    rows: Vec<R>,
}

impl<R: SessionRow> SessionRowScan<R> {
    pub(crate) fn new(query: ListQuery) -> Self {
        Self {
            next: 0,
            found: SmallestN::new(query.limit),
            selected: None,
            selected_all: false,
            last_listed: None,
            rows: Vec::new(),
            query,
        }
    }

    fn select_sessions(&mut self, shard: &Shard, filters: &FilterSelection) {
        let ids: Vec<_> = if let Some(client_id) = &self.query.client_id {
            let known = shard.by_client_id.get_key_value(&**client_id);
            self.selected_all = true;
            known.map(|(id, _)| id.clone()).into_iter().collect()
        } else if self.scan_sessions(shard, filters) {
            let limit = self.query.limit;
            let ids = std::mem::replace(&mut self.found, SmallestN::new(limit)).into_sorted();
            self.selected_all = ids.len() < limit;
            ids
        } else {
            return;
        };
        self.selected = Some(ids.into_iter());
    }

    /// Returns true once all sessions have been examined.
    fn scan_sessions(&mut self, shard: &Shard, filters: &FilterSelection) -> bool {
        let sessions = &shard.delivery.sessions;
        let mut looked_at = 0;
        while looked_at < ENTRIES_PER_STEP && self.next < sessions.end_position() {
            let session = sessions.get(SessionIx::from_position(self.next));
            self.next += 1;
            looked_at += 1;
            let Some(session) = session else {
                continue;
            };
            let id = &session.client_id;
            if self.found.would_accept(|largest| id < largest)
                && matches_client(&self.query, session)
            {
                let (has_any, more) = R::count_in(session, |s| filters.contains(s));
                looked_at += more;
                if has_any {
                    self.found.offer(id.clone());
                }
            }
        }
        self.next >= sessions.end_position()
    }
}

impl<R: SessionRow> ShardScan for SessionRowScan<R> {
    type ScanResult = Vec<R>;

    fn step(mut self, shard: &mut Shard) -> ScanStep<Self> {
        let filters = FilterSelection::for_query(shard, &self.query);
        if self.query.limit == 0 {
            return ScanStep::Done(self.rows);
        }
        let Some(mut chosen) = self.selected.take() else {
            self.select_sessions(shard, &filters);
            return ScanStep::Continue(self);
        };
        for id in chosen.by_ref().take(SESSIONS_PER_STEP) {
            // The session may have ended or changed since it was examined.
            if let Some(&at) = shard.by_client_id.get(&*id)
                && matches_client(&self.query, &shard.delivery.sessions[at])
            {
                R::append_rows(shard, at, |s| filters.contains(s), &mut self.rows);
            }
            self.last_listed = Some(id);
            if self.rows.len() >= self.query.limit {
                self.rows.truncate(self.query.limit);
                return ScanStep::Done(self.rows);
            }
        }
        if !chosen.as_slice().is_empty() {
            self.selected = Some(chosen);
            return ScanStep::Continue(self);
        }
        if self.selected_all {
            return ScanStep::Done(self.rows);
        }
        // Some of the selected sessions have ended: a page that is not full would wrongly signal the end of the list.
        self.query.after = self.last_listed.as_deref().map(str::to_owned);
        self.next = 0;
        ScanStep::Continue(self)
    }
}

pub(crate) fn client_info(shard: &Shard, at: SessionIx) -> ClientInfo {
    let session = &shard.delivery.sessions[at];
    let connection: Option<&Connection> =
        session.connection.map(|c| &shard.delivery.connections[c]);
    let outbound = session.outbound.as_deref();
    let now_ms = shard.now_ms();
    let device = session.permissions.as_ref().and_then(|held| held.device());
    ClientInfo {
        device: device.map(|device| device.id.to_owned()),
        product: device.map(|device| device.product.to_owned()),
        client_id: session.client_id.to_string(),
        node: None,
        username: session.username.as_deref().map(str::to_owned),
        connected: connection.is_some(),
        protocol_version: session.version.as_str().into(),
        listener: connection.map(|c| {
            shard.node.listeners[usize::from(c.listener)]
                .config()
                .name
                .clone()
        }),
        peer_address: connection.map(|c| c.current_peer().to_string()),
        shard: shard.id,
        clean_start: session.is_clean_start,
        keep_alive_s: connection.map_or(0, |c| c.keep_alive_s),
        connected_at_ms: connection.map(|_| session.connected_ms),
        disconnected_at_ms: connection.is_none().then_some(session.disconnected_ms),
        disconnect_reason: session.disconnect_reason.map(Cow::Borrowed),
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
        messages_received: session.messages_received,
        messages_sent: session.messages_sent,
        messages_dropped: session.messages_dropped,
    }
}

fn subscription_info(
    shard: &Shard,
    at: SessionIx,
    filter: FilterId,
    group: GroupId,
) -> Option<SubscriptionInfo> {
    let subscriber = if group == NO_GROUP {
        shard.tree.filter(filter).subscribers.get(at)
    } else {
        shard.tree.group(group).member(at)
    }?;
    let options = subscriber.options;
    let session = &shard.delivery.sessions[at];
    Some(SubscriptionInfo {
        client_id: session.client_id.to_string(),
        node: None,
        topic_filter: shard.filter_as_written(filter, group),
        qos: options.qos as u8,
        no_local: options.no_local,
        retain_as_published: options.retain_as_published,
        retain_handling: options.retain_handling,
        subscription_identifier: (subscriber.identifier != 0).then_some(subscriber.identifier),
        shard: shard.id,
    })
}

/// The first `limit` filters by text that have a subscriber on the shard.
pub(crate) struct TopicScan {
    query: ListQuery,
    next: usize,
    found: SmallestN<(String, usize)>,
}

impl TopicScan {
    pub(crate) fn new(query: ListQuery) -> Self {
        Self {
            next: 0,
            found: SmallestN::new(query.limit),
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
        let is_wanted = |written: &str, found: &SmallestN<(String, usize)>| {
            after.is_none_or(|after| written > after)
                && found.would_accept(|(largest, _)| written < largest.as_str())
        };
        if subscribers == 0 {
            return;
        }
        // Avoids an allocation for rows that need no text of their own.
        if group == NO_GROUP && !is_wanted(&shard.tree.filter(filter).text, &self.found) {
            return;
        }
        let written = shard.filter_as_written(filter, group);
        if is_wanted(&written, &self.found) {
            self.found.offer((written, subscribers));
        }
    }

    fn finish(self, shard: &Shard) -> ScanStep<Self> {
        let row = |(topic_filter, subscribers)| TopicInfo {
            topic_filter,
            subscribers,
            shards: vec![shard.id],
        };
        ScanStep::Done(self.found.into_sorted().into_iter().map(row).collect())
    }
}

impl ShardScan for TopicScan {
    type ScanResult = Vec<TopicInfo>;

    fn step(mut self, shard: &mut Shard) -> ScanStep<Self> {
        if let FilterSelection::Selected(these) = FilterSelection::for_query(shard, &self.query) {
            for (filter, group) in these {
                self.offer(shard, filter, group);
            }
            return self.finish(shard);
        }
        let mut looked_at = 0;
        let filters = &shard.tree.filters;
        while looked_at < ENTRIES_PER_STEP && self.next < filters.end_position() {
            looked_at += 1;
            let at = FilterId::from_position(self.next);
            if let Some(filter) = filters.get(at) {
                self.offer(shard, at, NO_GROUP);
                for &group in &filter.groups {
                    self.offer(shard, at, group);
                    looked_at += 1;
                }
            }
            self.next += 1;
        }
        if self.next < filters.end_position() {
            return ScanStep::Continue(self);
        }
        self.finish(shard)
    }
}

/// How long the oldest message has waited in a session queue of the shard.
#[derive(Default)]
pub(crate) struct OldestQueuedScan {
    next: usize,
    oldest_ms: u64,
}

impl ShardScan for OldestQueuedScan {
    type ScanResult = u64;

    fn step(mut self, shard: &mut Shard) -> ScanStep<Self> {
        if shard.metrics().get(crate::metrics::Metric::QueuedMessages) == 0 {
            return ScanStep::Done(0);
        }
        let sessions = &shard.delivery.sessions;
        let end = sessions.end_position().min(self.next + ENTRIES_PER_STEP);
        let now_ms = shard.now_ms();
        let positions = (self.next..end).map(SessionIx::from_position);
        for session in positions.filter_map(|at| sessions.get(at)) {
            let outbound = session.outbound.as_deref();
            if let Some(since_ms) = outbound.and_then(|outbound| outbound.oldest_queued_ms()) {
                self.oldest_ms = self.oldest_ms.max(now_ms.saturating_sub(since_ms));
            }
        }
        self.next = end;
        if end < sessions.end_position() {
            return ScanStep::Continue(self);
        }
        ScanStep::Done(self.oldest_ms)
    }
}
