//! How the control plane talks to a running broker: questions go to the shards as messages and are answered between
//! two turns; counters are read without asking anybody.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::oneshot;

use crate::core::connection::Connection;
use crate::core::session::Session;
use crate::core::shard::{Node, Shard};
use crate::core::sublist::NO_GROUP;
use crate::info::{
    ClientInfo, ListenerInfo, MetricFamily, MetricKind, MetricSample, MetricValue, Query,
    SubscriptionInfo, TopicInfo,
};
use crate::metrics;
use crate::net::inbox::{Inbox, Parcel};
use crate::net::shard_thread::Clock;
use crate::net::tls::{ListenerTls, log_reload};

/// A shard that has not answered within this time counts as stalled.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
}

struct Shared {
    node: Arc<Node>,
    inboxes: Arc<[Inbox]>,
    listeners: Vec<ListenerInfo>,
    tls: Vec<Arc<ListenerTls>>,
    life: Life,
    clock: Clock,
}

/// Where a node is in its life.
#[derive(Default)]
struct Life {
    ready: AtomicBool,
    stopping: AtomicBool,
}

impl Life {
    fn is_ready(&self) -> bool {
        self.ready.load(Relaxed) && !self.stopping.load(Relaxed)
    }
}

/// Why a node does not take clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotReady {
    Starting,
    Stopping,
    /// A shard has not had its turn for seconds.
    Stalled,
}

impl Handle {
    pub(crate) fn new(
        node: Arc<Node>,
        inboxes: Arc<[Inbox]>,
        listeners: Vec<ListenerInfo>,
        tls: Vec<Arc<ListenerTls>>,
        clock: Clock,
    ) -> Self {
        let shared = Shared {
            node,
            inboxes,
            listeners,
            tls,
            life: Life::default(),
            clock,
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    pub(crate) fn set_ready(&self) {
        self.shared.life.ready.store(true, Relaxed);
    }

    pub(crate) fn set_stopping(&self) {
        self.shared.life.stopping.store(true, Relaxed);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.shared.life.stopping.load(Relaxed)
    }

    pub(crate) fn inboxes(&self) -> &[Inbox] {
        &self.shared.inboxes
    }

    pub(crate) fn tls_listeners(&self) -> &[Arc<ListenerTls>] {
        &self.shared.tls
    }

    /// Listeners are open, shards run, no stop is under way.
    pub fn is_ready(&self) -> bool {
        self.shared.life.is_ready()
    }

    pub fn not_ready(&self) -> Option<NotReady> {
        if self.is_stopping() {
            return Some(NotReady::Stopping);
        }
        if !self.is_ready() {
            return Some(NotReady::Starting);
        }
        let latest_ms = self
            .shared
            .clock
            .now_ms()
            .saturating_sub(ANSWER_WITHIN.as_millis() as u64);
        let stalled = self
            .shared
            .inboxes
            .iter()
            .any(|inbox| inbox.ticked_ms() < latest_ms);
        stalled.then_some(NotReady::Stalled)
    }

    /// Number of shards.
    pub fn shards(&self) -> usize {
        self.shared.inboxes.len()
    }

    pub fn listeners(&self) -> Vec<ListenerInfo> {
        let mut listeners = self.shared.listeners.clone();
        for (info, state) in listeners.iter_mut().zip(&self.shared.node.listeners) {
            info.connections = state.connections.load(Relaxed);
        }
        listeners
    }

    /// Reads the certificates of all listeners again.
    pub fn reload_certificates(&self) {
        for tls in &self.shared.tls {
            log_reload(tls.reload());
        }
    }

    /// Asks one shard; `None` if it is gone or does not answer in time.
    async fn ask<T: Send + 'static>(
        &self,
        shard: u16,
        question: impl FnOnce(&mut Shard) -> T + Send + 'static,
    ) -> Option<T> {
        let (answer, answered) = oneshot::channel();
        self.shared.inboxes[usize::from(shard)].push(Parcel::Ask(Box::new(move |shard| {
            // Nobody may be waiting any more.
            let _ = answer.send(question(shard));
        })));
        tokio::time::timeout(ANSWER_WITHIN, answered)
            .await
            .ok()?
            .ok()
    }

    /// Asks all shards and puts their answers behind each other.
    async fn ask_all<T: Send + 'static>(
        &self,
        question: impl Fn(&mut Shard) -> Vec<T> + Clone + Send + 'static,
    ) -> Vec<T> {
        let mut all = Vec::new();
        for shard in 0..self.shared.inboxes.len() as u16 {
            all.extend(self.ask(shard, question.clone()).await.unwrap_or_default());
        }
        all
    }

    /// Sessions with and without a connection, sorted by client id.
    pub async fn clients(&self, query: Query) -> Vec<ClientInfo> {
        let asked = query.clone();
        let mut all = self.ask_all(move |shard| clients(shard, &asked)).await;
        all.sort_by(|a, b| a.client_id.cmp(&b.client_id));
        all.truncate(query.limit);
        all
    }

    pub async fn client(&self, client_id: &str) -> Option<ClientInfo> {
        let shard = self.shared.node.directory.holder(client_id)?;
        let client_id = client_id.to_owned();
        let find = move |shard: &mut Shard| {
            let &session = shard.by_client_id.get(&*client_id)?;
            Some(client_info(shard, session))
        };
        self.ask(shard, find).await.flatten()
    }

    /// Sorted by client id, then topic filter.
    pub async fn subscriptions(&self, query: Query) -> Vec<SubscriptionInfo> {
        let asked = query.clone();
        let mut all = self
            .ask_all(move |shard| subscriptions(shard, &asked))
            .await;
        all.sort_by(|a, b| (&a.client_id, &a.topic_filter).cmp(&(&b.client_id, &b.topic_filter)));
        all.truncate(query.limit);
        all
    }

    /// Filters somebody subscribes to, sorted; `after` is a filter here.
    pub async fn topics(&self, query: Query) -> Vec<TopicInfo> {
        let asked = query.clone();
        let mut merged: BTreeMap<String, TopicInfo> = BTreeMap::new();
        for topic in self.ask_all(move |shard| topics(shard, &asked)).await {
            match merged.get_mut(&topic.topic_filter) {
                Some(known) => {
                    known.subscribers += topic.subscribers;
                    known.shards.extend(topic.shards);
                }
                None => {
                    merged.insert(topic.topic_filter.clone(), topic);
                }
            }
        }
        merged.into_values().take(query.limit).collect()
    }

    /// Ends a client's connection and its session; false if there is no such client.
    pub async fn kick(&self, client_id: &str) -> bool {
        let Some(shard) = self.shared.node.directory.holder(client_id) else {
            return false;
        };
        let client_id = client_id.to_owned();
        self.ask(shard, move |shard| shard.kick(&client_id))
            .await
            .unwrap_or(false)
    }

    /// Ends a session that has no connection; false if there is none, or it has one.
    pub async fn discard_session(&self, client_id: &str) -> bool {
        let Some(shard) = self.shared.node.directory.holder(client_id) else {
            return false;
        };
        let client_id = client_id.to_owned();
        let discard = move |shard: &mut Shard| {
            let session = shard.by_client_id.get(&*client_id).copied();
            let away = session.is_some_and(|session| {
                shard.delivery.sessions[session as usize]
                    .connection
                    .is_none()
            });
            away && shard.kick(&client_id)
        };
        self.ask(shard, discard).await.unwrap_or(false)
    }

    /// Counters of all shards, what is retained, and the age of the oldest queued message.
    pub async fn metrics(&self) -> Vec<MetricFamily> {
        let mut families = metrics::families(&self.shared.node.metrics);
        let retained = self.shared.node.retained.size();
        let oldest_ms = self.ask_all(|shard| vec![oldest_queued_ms(shard)]).await;
        let oldest_s = oldest_ms.into_iter().max().unwrap_or(0) as f64 / 1000.0;
        let gauge = |name, help, value| MetricFamily {
            name,
            help,
            kind: MetricKind::Gauge,
            samples: vec![MetricSample {
                labels: Vec::new(),
                value: MetricValue::Number(value),
            }],
        };
        families.push(gauge(
            "retained_messages",
            "Retained messages.",
            retained.count as f64,
        ));
        families.push(gauge(
            "retained_bytes",
            "Bytes of retained messages.",
            retained.bytes as f64,
        ));
        families.push(gauge(
            "session_queue_oldest_seconds",
            "Age of the oldest message that waits in a session queue.",
            oldest_s,
        ));
        families
    }
}

fn oldest_queued_ms(shard: &Shard) -> u64 {
    let now_ms = shard.now_ms();
    let queues = shard
        .delivery
        .sessions
        .iter()
        .filter_map(|(_, session)| session.outbound.as_ref());
    let ages = queues.filter_map(|outbound| outbound.oldest_queued_ms());
    ages.map(|since_ms| now_ms.saturating_sub(since_ms))
        .max()
        .unwrap_or(0)
}

fn wants_client(query: &Query, session: &Session) -> bool {
    let id = &*session.client_id;
    query.client_id.as_deref().is_none_or(|wanted| wanted == id)
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

/// The first `limit` rows by client id, so that a page of a million clients does not copy them all.
fn clients(shard: &Shard, query: &Query) -> Vec<ClientInfo> {
    let mut wanted: Vec<u32> = (shard.delivery.sessions.iter())
        .filter(|(_, session)| wants_client(query, session))
        .filter(|(_, session)| {
            query
                .after
                .as_deref()
                .is_none_or(|after| &*session.client_id > after)
        })
        .map(|(at, _)| at as u32)
        .collect();
    let id = |&at: &u32| shard.delivery.sessions[at as usize].client_id.clone();
    if wanted.len() > query.limit {
        wanted.select_nth_unstable_by_key(query.limit, id);
        wanted.truncate(query.limit);
    }
    wanted
        .into_iter()
        .map(|at| client_info(shard, at))
        .collect()
}

fn client_info(shard: &Shard, at: u32) -> ClientInfo {
    let session = &shard.delivery.sessions[at as usize];
    let connection: Option<&Connection> = session
        .connection
        .map(|c| &shard.delivery.connections[c as usize]);
    let outbound = session.outbound.as_deref();
    let now_ms = shard.now_ms();
    ClientInfo {
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
        queued_messages: outbound.map_or(0, |o| o.queue_len()),
        queued_bytes: outbound.map_or(0, |o| o.queued_bytes()),
        queue_age_ms: outbound
            .and_then(|o| o.oldest_queued_ms())
            .map_or(0, |since_ms| now_ms.saturating_sub(since_ms)),
        outbox_bytes: connection.map_or(0, |c| c.outbox.len()),
        messages_received: session.received,
        messages_sent: session.sent,
        messages_dropped: session.dropped,
    }
}

fn wants_filter(query: &Query, written: &str, text: &str) -> bool {
    query
        .topic_filter
        .as_deref()
        .is_none_or(|wanted| wanted == written)
        && query
            .matches_topic
            .as_deref()
            .is_none_or(|topic| mqtt::filter_matches(text, topic))
}

fn subscriptions(shard: &Shard, query: &Query) -> Vec<SubscriptionInfo> {
    let mut rows = Vec::new();
    for (at, session) in &shard.delivery.sessions {
        let past = query
            .after
            .as_deref()
            .is_none_or(|after| &*session.client_id > after);
        if !past || !wants_client(query, session) {
            continue;
        }
        for &(filter, group) in &session.subscriptions {
            let entry = shard.tree.filter(filter);
            let written = shard.written_filter(filter, group);
            if !wants_filter(query, &written, &entry.text) {
                continue;
            }
            let subscriber = if group == NO_GROUP {
                entry.subscribers.get(at as u32)
            } else {
                shard.tree.group(group).member(at as u32)
            };
            let Some(subscriber) = subscriber else {
                continue;
            };
            rows.push(SubscriptionInfo {
                client_id: session.client_id.to_string(),
                topic_filter: written,
                qos: subscriber.options.qos as u8,
                no_local: subscriber.options.no_local,
                retain_as_published: subscriber.options.retain_as_published,
                retain_handling: subscriber.options.retain_handling,
                subscription_identifier: (subscriber.identifier != 0)
                    .then_some(subscriber.identifier),
                shard: shard.id,
            });
        }
    }
    rows
}

fn topics(shard: &Shard, query: &Query) -> Vec<TopicInfo> {
    let mut rows = Vec::new();
    for (at, filter) in &shard.tree.filters {
        let groups = filter
            .groups
            .iter()
            .map(|&group| (group, shard.tree.group(group).local_len()));
        let plain = std::iter::once((NO_GROUP, filter.subscribers.len()));
        for (group, subscribers) in plain.chain(groups) {
            let written = shard.written_filter(at as u32, group);
            let past = query.after.as_deref().is_none_or(|after| *written > *after);
            if subscribers > 0 && past && wants_filter(query, &written, &filter.text) {
                rows.push(TopicInfo {
                    topic_filter: written,
                    subscribers,
                    shards: vec![shard.id],
                });
            }
        }
    }
    rows
}
