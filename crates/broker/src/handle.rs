//! How the control plane talks to a running broker: questions go to the shards as messages and are answered between
//! two turns; counters are read without asking anybody.

mod listeners;
pub(crate) mod queues;
mod retained;
mod steer;

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

use crate::core::inspect::{OldestQueued, SessionRows, Step, TopicRows, Walk, client_info};
use crate::core::shard::{Node, Shard};
use crate::info::{
    ClientInfo, ListenerInfo, MetricFamily, MetricKind, MetricSample, MetricValue, Query,
    SubscriptionInfo, TopicInfo,
};
use crate::metrics;
use crate::net::inbox::{Inbox, Parcel};
use crate::net::listener::Entrance;
use crate::net::shard_thread::Clock;
use crate::net::tls::{ListenerTls, log_reload};
use queues::{Looker, Looks};

/// A shard that has not answered within this time counts as stalled.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
const CERTIFICATES_LOOKED_AT_EVERY: Duration = Duration::from_secs(2);

#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
}

struct Shared {
    node: Arc<Node>,
    inboxes: Arc<[Inbox]>,
    listeners: Vec<ListenerInfo>,
    /// In the order of the listeners.
    entrances: Vec<Arc<Entrance>>,
    /// Held while one is started or stopped.
    changing_listeners: tokio::sync::Mutex<()>,
    tls: Mutex<Vec<Arc<ListenerTls>>>,
    /// With a store.
    looker: Option<Looker>,
    looks: Arc<Looks>,
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
        entrances: Vec<Arc<Entrance>>,
        looker: Option<Looker>,
        clock: Clock,
    ) -> Self {
        let shared = Shared {
            node,
            inboxes,
            listeners,
            tls: Mutex::default(),
            entrances,
            changing_listeners: tokio::sync::Mutex::default(),
            looker,
            looks: Arc::default(),
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

    pub(crate) fn looks(&self) -> Arc<Looks> {
        self.shared.looks.clone()
    }

    pub(crate) fn tls_of_listeners(&self) -> impl Iterator<Item = Arc<ListenerTls>> {
        let entrances = self.shared.entrances.iter();
        entrances.filter_map(|entrance| entrance.tls.clone())
    }

    /// All that is looked after.
    fn tls(&self) -> Vec<Arc<ListenerTls>> {
        let tls = self.shared.tls.lock();
        tls.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the files of a listener's TLS again when they change, and with [`Handle::reload_certificates`], until the broker
    /// stops.
    pub fn look_after(&self, tls: Arc<ListenerTls>) -> io::Result<()> {
        let mut all = self
            .shared
            .tls
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        all.push(tls);
        if all.len() > 1 {
            return Ok(());
        }
        // On a thread of its own, since files may be slow.
        let handle = self.clone();
        let watch = move || {
            while !handle.is_stopping() {
                std::thread::sleep(CERTIFICATES_LOOKED_AT_EVERY);
                for tls in handle.tls().iter().filter(|tls| tls.has_changed()) {
                    log_reload(tls.reload());
                }
            }
        };
        let thread = std::thread::Builder::new().name("certificates".into());
        thread.spawn(watch).map(drop)
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

    /// Reads the certificates of all listeners again.
    pub fn reload_certificates(&self) {
        for tls in self.tls() {
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

    /// Asks one shard a question that takes several of its turns.
    async fn walk<W: Walk>(&self, shard: u16, mut walk: W) -> Option<W::Answer> {
        loop {
            match self.ask(shard, move |shard| walk.step(shard)).await? {
                Step::More(further) => walk = further,
                Step::Done(answer) => return Some(answer),
            }
        }
    }

    /// The answers of all shards, one after the other; of one that does not answer there is none.
    async fn walk_all<W: Walk>(&self, walk: impl Fn() -> W) -> Vec<W::Answer> {
        let mut answers = Vec::new();
        for shard in 0..self.shared.inboxes.len() as u16 {
            answers.extend(self.walk(shard, walk()).await);
        }
        answers
    }

    /// Sessions with and without a connection, sorted by client id.
    pub async fn clients(&self, query: Query) -> Vec<ClientInfo> {
        let walk = || SessionRows::<ClientInfo>::new(query.clone());
        let mut all = self.walk_all(walk).await.concat();
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
        let walk = || SessionRows::<SubscriptionInfo>::new(query.clone());
        let mut all = self.walk_all(walk).await.concat();
        all.sort_by(|a, b| (&a.client_id, &a.topic_filter).cmp(&(&b.client_id, &b.topic_filter)));
        all.truncate(query.limit);
        all
    }

    /// Filters somebody subscribes to, sorted; `after` is a filter here.
    pub async fn topics(&self, query: Query) -> Vec<TopicInfo> {
        let mut merged: BTreeMap<String, TopicInfo> = BTreeMap::new();
        let answers = self.walk_all(|| TopicRows::new(query.clone())).await;
        for topic in answers.into_iter().flatten() {
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
        let oldest_ms = self.walk_all(OldestQueued::default).await;
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
