//! Simulates a node of several shards on one thread, with its own clock. Messages between shards wait in queues, and
//! the test, or a seeded random order, decides which is processed next. Every interleaving of threads can thus be
//! played and repeated.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::mpsc::{Receiver, Sender, channel};

use hooks::{Authentication, NoHooks, PeerAddress};
use mqtt::{
    Connect, Direction, Packet, Properties, PropertiesBuf, Property, Publish, QoS, SubscribeBuf,
    SubscriptionOptions, Version,
};

use store::{
    Fsync, QueueFetch, QueuePage, QueueSummary, Store, StoreBatch, StoreConfig, StoreObserver,
};
use tempfile::TempDir;

use crate::config::{BindAddress, BrokerLimits, ListenerConfig};
use crate::core::adoption::{AbandonScan, AdoptedSession, AdoptionBegin};
use crate::core::connection::ConnectionPhase;
use crate::core::directory::NodeDirectory;
use crate::core::inspection::{ScanStep, ShardScan as _};
use crate::core::node::{NodeListener, NodeState};
use crate::core::node_link::{RestoredEntry, first_seqs};
use crate::core::node_router::NodeRouter;
use crate::core::records::{self, SessionRecord};
use crate::core::recovery::{RecoveredCopy, read_copy, recover_from_store};
use crate::core::retained_store::RetainedStore;
use crate::core::session_recovery::RecoveredSession;
use crate::core::shard::{ConnectionAction, Shard};
use crate::core::shard_messages::ShardMessage;
use crate::core::tables::ConnectionIx;
use crate::metrics::ShardMetrics;
use hooks::relay::RelayService;
use scram::DecoyCredentials;

/// Time for which a node that cannot be reached is kept.
pub(super) const AWAY_TIMEOUT_MS: u64 = 3000;

pub(super) struct Sim {
    pub(super) shards: Vec<Shard>,
    /// Messages waiting from one shard to another, `[from][to]`.
    in_transit: Vec<Vec<VecDeque<ShardMessage>>>,
    /// Turns whose batch is not in the log yet, if the shards keep a journal.
    pub(super) unlogged: Vec<VecDeque<u64>>,
    pub(super) now_ms: u64,
    /// Connects the shards with other nodes; it has the number behind the last shard.
    pub(super) router: Option<NodeRouter>,
    /// The store, if it is more than a journal; see [`Sim::open`].
    store: Option<SimStore>,
    random: u64,
}

/// A client's end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SimConnection {
    pub(super) shard: usize,
    pub(super) at: ConnectionIx,
}

/// A message as received by a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ReceivedMessage {
    pub(super) topic: String,
    pub(super) payload: Vec<u8>,
    pub(super) qos: QoS,
    pub(super) packet_id: u16,
    pub(super) dup: bool,
    pub(super) retain: bool,
}

/// The store of a node. What is logged is written to it.
struct SimStore {
    store: Store,
    dir: TempDir,
    /// The last frame that its log had when the node started.
    opened_lsn: u64,
    /// Batches of the shards that are not in the log yet.
    unwritten: Vec<VecDeque<StoreBatch>>,
    pages: Receiver<QueuePage>,
    /// Turns wait for a copy of the log after they were written.
    is_holding: bool,
    held: VecDeque<HeldTurn>,
}

/// A turn that is in the log of the node, and not in the copy at its standby.
struct HeldTurn {
    shard: usize,
    turn: u64,
    /// The last frame of the log that has something of it.
    lsn: u64,
}

struct SimObserver(Mutex<Sender<QueuePage>>);

impl StoreObserver for SimObserver {
    fn on_logged(&self, _shard: u16, _batch: u64) {}

    fn on_fetched(&self, _shard: u16, page: QueuePage) {
        let pages = self.0.lock().unwrap();
        // The node may have been killed meanwhile.
        drop(pages.send(page));
    }
}

impl SimStore {
    fn start(store: Store, dir: TempDir, shards: usize) -> Self {
        let (sender, pages) = channel();
        let opened_lsn = store.logged_lsn();
        store
            .start(Arc::new(SimObserver(Mutex::new(sender))))
            .unwrap();
        Self {
            store,
            dir,
            opened_lsn,
            unwritten: (0..shards).map(|_| VecDeque::new()).collect(),
            pages,
            is_holding: false,
            held: VecDeque::new(),
        }
    }

    fn write_up_to(&mut self, shard: usize, turn: u64) {
        while let Some(batch) = self.unwritten[shard].pop_front_if(|batch| batch.number <= turn) {
            self.store.submit(shard as u16, batch);
            // Each batch has a frame of its own, so that a seed always has the same frames. What other shards write because of it
            // has to come later in the log.
            while self.store.pending_bytes() > 0 {
                std::thread::yield_now();
            }
        }
    }

    /// What is read has been written before.
    fn fetch(&mut self, shard: usize, fetch: QueueFetch) -> QueuePage {
        self.write_up_to(shard, u64::MAX);
        self.store.fetch(shard as u16, fetch);
        self.pages.recv().unwrap()
    }
}

pub(super) fn open_store(dir: &TempDir) -> Store {
    let config = StoreConfig {
        fsync: Fsync::Never,
        min_free_bytes: 0,
        // A simulation has many stores.
        segment_bytes: 1 << 20,
        ..StoreConfig::default()
    };
    Store::open(dir.path(), config).unwrap().0
}

/// State shared by the shards of a node.
pub(super) fn node(
    shards: usize,
    limits: BrokerLimits,
    relay: Option<Arc<dyn RelayService>>,
    is_clustered: bool,
) -> Arc<NodeState> {
    let bind = BindAddress::Tcp(([127, 0, 0, 1], 1883).into());
    let mqtt = ListenerConfig::new("mqtt", bind.clone());
    let mut link = ListenerConfig::new("link", bind);
    link.link = true;
    Arc::new(NodeState {
        max_connections: AtomicU32::new(limits.max_connections),
        limits: Arc::new(limits),
        listeners: [mqtt, link]
            .map(|config| NodeListener::new(config, true))
            .into(),
        users: hashbrown::HashMap::default(),
        decoy: DecoyCredentials::new(b"test", 4096),
        directory: NodeDirectory::default(),
        retained: Arc::new(match is_clustered {
            true => RetainedStore::in_cluster(),
            false => RetainedStore::default(),
        }),
        server_reference: None,
        is_draining: AtomicBool::new(false),
        are_sessions_held: AtomicBool::new(false),
        has_successions: AtomicBool::new(false),
        metrics: (0..shards)
            .map(|_| Arc::new(ShardMetrics::default()))
            .collect(),
        started_ms: 0,
        is_clustered,
        events: crate::events::EventStream::new(),
        relay,
    })
}

/// A durable session of another node, without queued messages, with a subscription of QoS 2.
fn adopted_session(client_id: &str, filter: &str) -> AdoptedSession {
    let record = SessionRecord {
        number: 3,
        version: Version::V5,
        connected: true,
        clean_start: false,
        bridge: false,
        provisional: false,
        expiry_s: 3600,
        created_ms: 1,
        disconnected_ms: 0,
        username: None,
        adoption: None,
        accepted_numbers: None,
        will: None,
    };
    let mut bytes = Vec::new();
    record.write(&mut bytes);
    AdoptedSession {
        client_id: client_id.into(),
        record: bytes.into(),
        subscriptions: vec![(filter.into(), SubscriptionOptions::new(QoS::ExactlyOnce), 0)],
        queue: QueueSummary::default(),
    }
}

impl Sim {
    pub(super) fn new(shards: usize, limits: BrokerLimits, seed: u64) -> Self {
        Self::with_node(shards, seed, node(shards, limits, None, false))
    }

    /// A node with relay endpoints.
    pub(super) fn with_relay(shards: usize, seed: u64, relay: Arc<dyn RelayService>) -> Self {
        Self::with_node(
            shards,
            seed,
            node(shards, BrokerLimits::default(), Some(relay), false),
        )
    }

    /// A node of a cluster. `keeps_journals`: its shards write a journal.
    pub(super) fn in_cluster(name: &str, shards: usize, seed: u64, keeps_journals: bool) -> Self {
        let node = node(shards, BrokerLimits::default(), None, true);
        let mut sim = Self::with_node(shards, seed, node.clone());
        sim.router = Some(NodeRouter::new(
            name,
            shards as u16,
            keeps_journals,
            &node,
            AWAY_TIMEOUT_MS,
        ));
        if keeps_journals {
            sim.keep_journals();
        }
        sim
    }

    /// A node of a cluster that starts with what is stored in a directory. It forwards what was on the way to other nodes when
    /// [`forward_restored`](Self::forward_restored) is called.
    pub(super) fn open(
        name: &str,
        shards: usize,
        (seed, now_ms): (u64, u64),
        dir: TempDir,
    ) -> Self {
        Self::open_with(name, shards, (seed, now_ms), dir, AWAY_TIMEOUT_MS)
    }

    /// As [`open`](Self::open), with the time for which the node keeps another one that cannot be reached.
    pub(super) fn open_with(
        name: &str,
        shards: usize,
        (seed, now_ms): (u64, u64),
        dir: TempDir,
        away_timeout_ms: u64,
    ) -> Self {
        let node = node(shards, BrokerLimits::default(), None, true);
        let mut sim = Self::with_node(shards, seed, node.clone());
        sim.pass(now_ms.saturating_sub(sim.now_ms));
        sim.router = Some(NodeRouter::new(
            name,
            shards as u16,
            true,
            &node,
            away_timeout_ms,
        ));
        let store = open_store(&dir);
        let recovered = recover_from_store(&store, &node, shards, sim.now_ms).unwrap();
        let first_number = recovered.first_number;
        for (shard, recovered) in sim.shards.iter_mut().zip(&recovered.shards) {
            shard.start_journal(first_number, &recovered.links);
            shard.restore_received(&recovered.received);
            for session in &recovered.sessions {
                shard.restore_session(session);
            }
        }
        sim.finish_restore();
        for (shard, recovered) in sim.shards.iter_mut().zip(recovered.shards) {
            for delayed in recovered.delayed {
                shard.restore_delayed(delayed);
            }
            shard.discard_orphaned_records(&recovered.orphans, &recovered.obsolete_keys);
            for &(link, _) in &recovered.links {
                if shard.is_responsible_for(link) {
                    let mut entries = Vec::new();
                    let session = link.store_number();
                    store
                        .read_queue(session, &mut |entry| entries.push(entry))
                        .unwrap();
                    let page = QueuePage {
                        session,
                        entries,
                        is_last: true,
                    };
                    shard.deliver_linked(link, &page);
                }
            }
        }
        sim.store = Some(SimStore::start(store, dir, shards));
        sim.collect();
        sim
    }

    /// The payloads of the messages that [`forward_restored`](Self::forward_restored) forwards.
    pub(super) fn restored_payloads(&self) -> Vec<String> {
        let restored = self
            .shards
            .iter()
            .flat_map(|shard| &shard.restored_for_nodes);
        let payloads = restored.map(|entry| entry.message.view().payload);
        payloads
            .map(|payload| String::from_utf8_lossy(payload).into_owned())
            .collect()
    }

    pub(super) fn forward_restored(&mut self) {
        for shard in &mut self.shards {
            shard.forward_restored();
        }
        self.collect();
    }

    /// The node is killed; what is not in its log is lost. Returns its store.
    pub(super) fn kill(&mut self) -> TempDir {
        let store = self.store.take().expect("the node has a store");
        for unlogged in &mut self.unlogged {
            unlogged.clear();
        }
        store.store.close();
        store.dir
    }

    /// Adopts everything of the node `from`, whose store this is, except sessions that it has already.
    pub(super) fn adopt_all(&mut self, from: &str, dir: &TempDir) {
        let copy = open_store(dir);
        let RecoveredCopy {
            shard: recovered,
            mut received,
        } = read_copy(&copy).unwrap();
        let mut for_nodes = Vec::new();
        for (link, _) in &recovered.links {
            if link.leads_to_nodes() {
                let queue = link.store_number();
                let mut read = |entry| for_nodes.push(RestoredEntry::read(queue, &entry).unwrap());
                copy.read_queue(queue, &mut read).unwrap();
            }
        }
        received.add_for_nodes(&for_nodes);
        let received = Arc::new(received);
        for shard in &mut self.shards {
            shard.expect_adopted_messages(from, received.clone());
        }
        for session in recovered.sessions {
            let number = SessionRecord::read(&session.record).unwrap().number;
            let session = AdoptedSession {
                client_id: session.client_id,
                record: session.record,
                subscriptions: session.subscriptions,
                queue: session.queue.unwrap_or_default(),
            };
            let mut entries = Vec::new();
            copy.read_queue(number, &mut |entry| entries.push(entry))
                .unwrap();
            let mut shard = self.random(self.shards.len());
            let begun = loop {
                match self.shards[shard].begin_adoption(from, &session) {
                    AdoptionBegin::OtherShard(other) => shard = usize::from(other),
                    begun => break begun,
                }
            };
            let AdoptionBegin::Begun { number } = begun else {
                continue;
            };
            self.shards[shard].write_adopted_messages(number, &entries);
            assert!(self.shards[shard].finish_adoption(from, number, session, self.now_ms));
            self.collect();
        }
        for (link, _) in recovered.links {
            if link.leads_to_nodes() {
                continue;
            }
            let mut entries = Vec::new();
            copy.read_queue(link.store_number(), &mut |entry| entries.push(entry))
                .unwrap();
            for shard in &mut self.shards {
                for entry in &entries {
                    let message = records::read_message(&entry.body).unwrap();
                    let member = records::read_member_target(&entry.attributes).unwrap();
                    let of_shard = (link.shards, link.to);
                    shard.deliver_adopted_link(from, of_shard, &message.view(), member);
                }
            }
        }
        let first_seqs = first_seqs(&for_nodes);
        self.shards[0].adopt_node_entries(from, &for_nodes, &first_seqs);
        for (number, delayed) in recovered.delayed.into_iter().enumerate() {
            let shard = number % self.shards.len();
            self.shards[shard].adopt_delayed(delayed);
        }
        self.collect();
    }

    /// Ends the sessions that the node withholds: another one has adopted them.
    pub(super) fn abandon_all(&mut self) {
        for shard in &mut self.shards {
            let mut scan = AbandonScan::default();
            while let ScanStep::Continue(next) = scan.step(shard) {
                scan = next;
            }
        }
    }

    /// Restores a durable session as after a start.
    pub(super) fn restore_session(&mut self, client_id: &str) {
        self.restore_session_after(client_id, false);
    }

    /// `was_killed`: the client was connected when the node ended.
    pub(super) fn restore_session_after(&mut self, client_id: &str, was_killed: bool) {
        let record = SessionRecord {
            number: 1,
            version: Version::V5,
            connected: was_killed,
            clean_start: false,
            bridge: false,
            provisional: false,
            expiry_s: 3600,
            created_ms: 1,
            disconnected_ms: self.now_ms,
            username: None,
            adoption: None,
            accepted_numbers: None,
            will: None,
        };
        let mut bytes = Vec::new();
        record.write(&mut bytes);
        self.shards[0].restore_session(&RecoveredSession {
            client_id: client_id.into(),
            record: bytes.into(),
            subscriptions: Vec::new(),
            queue: None,
        });
        self.collect();
    }

    /// Whether a session of the node `from` would be adopted.
    pub(super) fn is_adoptable(&mut self, shard: usize, from: &str, client_id: &str) -> bool {
        let session = adopted_session(client_id, "filter");
        let begun = self.shards[shard].begin_adoption(from, &session);
        begun != AdoptionBegin::Skipped
    }

    /// Adopts a durable session without queued messages, with a subscription of QoS 2, from the node `from`.
    pub(super) fn adopt_session(
        &mut self,
        shard: usize,
        from: &str,
        client_id: &str,
        filter: &str,
    ) {
        let session = adopted_session(client_id, filter);
        let shard = match self.shards[shard].begin_adoption(from, &session) {
            AdoptionBegin::OtherShard(other) => usize::from(other),
            _ => shard,
        };
        let begun = self.shards[shard].begin_adoption(from, &session);
        let AdoptionBegin::Begun { number } = begun else {
            panic!("the session is not adopted: {begun:?}");
        };
        assert!(self.shards[shard].finish_adoption(from, number, session, self.now_ms));
        self.collect();
    }

    /// The stored sessions of the node have been read.
    pub(super) fn finish_restore(&mut self) {
        for shard in &mut self.shards {
            shard.announce_restored();
        }
        self.collect();
        self.settle();
    }

    fn with_node(shards: usize, seed: u64, node: Arc<NodeState>) -> Self {
        let parties = shards + usize::from(node.is_clustered);
        let now_ms = 1_000_000;
        let shard = |id| {
            let check = Box::new(|_, _| Authentication::allow());
            Shard::new(
                id as u16,
                shards as u16,
                node.clone(),
                Box::new(NoHooks),
                check,
                now_ms,
            )
        };
        Self {
            shards: (0..shards).map(shard).collect(),
            in_transit: (0..parties)
                .map(|_| (0..parties).map(|_| VecDeque::new()).collect())
                .collect(),
            unlogged: (0..shards).map(|_| VecDeque::new()).collect(),
            now_ms,
            router: None,
            store: None,
            random: seed | 1,
        }
    }

    pub(super) fn random(&mut self, below: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 33) as usize % below
    }

    pub(super) fn pass(&mut self, ms: u64) {
        self.now_ms += ms;
        for shard in &mut self.shards {
            shard.set_now(self.now_ms, self.now_ms * 1000);
            let due = shard.tick();
            shard.check_connections(due);
        }
        self.collect();
    }

    /// Time passes for a node that has not read all of its store: nothing becomes due.
    pub(super) fn pass_without_timers(&mut self, ms: u64) {
        self.now_ms += ms;
        for shard in &mut self.shards {
            shard.set_now(self.now_ms, self.now_ms * 1000);
        }
        self.collect();
    }

    /// Moves the shards' outgoing messages into the queues, one by one.
    pub(super) fn collect(&mut self) {
        for from in 0..self.shards.len() {
            let end = self.shards[from].end_turn(StoreBatch::default);
            let (batch, fetches) = end.map_or((None, Vec::new()), |end| (end.batch, end.fetches));
            self.unlogged[from].extend(batch.as_ref().map(|batch| batch.number));
            if let Some(store) = &mut self.store {
                store.unwritten[from].extend(batch);
                for fetch in fetches {
                    let page = store.fetch(from, fetch);
                    self.shards[from].handle_fetched_page(page);
                }
            }
            for to in 0..self.in_transit.len() {
                let messages = self.shards[from].shard_queues.take_ready(to as u16);
                self.in_transit[from][to].extend(messages);
            }
            self.shards[from].confirm_tunnel_output();
            for at in std::mem::take(&mut self.shards[from].to_wake) {
                if self.shards[from].delivery.connections.contains(at) {
                    self.shards[from].resume(at);
                }
            }
        }
        if let Some(router) = &mut self.router {
            router.set_now(self.now_ms);
            router.end_turn();
            for to in 0..self.shards.len() {
                let messages = router.queues.take_ready(to as u16);
                self.in_transit[self.shards.len()][to].extend(messages);
            }
        }
    }

    /// Calls the router, and ends its turn.
    pub(super) fn with_router(&mut self, call: impl FnOnce(&mut NodeRouter)) {
        let router = self.router.as_mut().expect("the node is in a cluster");
        router.set_now(self.now_ms);
        call(router);
        self.collect();
    }

    /// Lets one shard process one waiting message, chosen at random; false if none waits.
    pub(super) fn step(&mut self) -> bool {
        let parties = self.in_transit.len();
        let waiting: Vec<(usize, usize)> = (0..parties)
            .flat_map(|from| (0..parties).map(move |to| (from, to)))
            .filter(|&(from, to)| !self.in_transit[from][to].is_empty())
            .collect();
        if waiting.is_empty() {
            return false;
        }
        let (from, to) = waiting[self.random(waiting.len())];
        let messages = self.in_transit[from][to].pop_front().into_iter().collect();
        match self.shards.get_mut(to) {
            Some(shard) => shard.handle_shard_messages(from as u16, messages),
            None => {
                let router = self
                    .router
                    .as_mut()
                    .expect("only a router is behind the shards");
                router.set_now(self.now_ms);
                router.handle_shard_messages(from as u16, messages);
            }
        }
        self.collect();
        true
    }

    /// The shards write a journal from now on.
    pub(super) fn keep_journals(&mut self) {
        for shard in &mut self.shards {
            shard.start_journal(64, &[]);
        }
    }

    /// The current turn of a shard.
    pub(super) fn turn(&self, shard: usize) -> u64 {
        let journal = self.shards[shard].delivery.journal.as_ref();
        journal.expect("the shards keep journals").turn()
    }

    /// Logs the oldest batch of a shard; false if none is pending.
    pub(super) fn log_one(&mut self, shard: usize) -> bool {
        let Some(turn) = self.unlogged[shard].pop_front() else {
            return false;
        };
        let mut is_held = false;
        if let Some(store) = &mut self.store {
            store.write_up_to(shard, turn);
            is_held = store.is_holding;
            if is_held {
                let lsn = store.store.logged_lsn();
                store.held.push_back(HeldTurn { shard, turn, lsn });
            }
        }
        match is_held {
            true => self.shards[shard].handle_turn_written(turn),
            false => self.shards[shard].handle_turn_logged(turn),
        }
        self.collect();
        true
    }

    /// The store of the node, which it reads and writes.
    pub(super) fn store(&self) -> &Store {
        &self.store.as_ref().expect("the node has a store").store
    }

    /// The last frame that the log of the node had when it started.
    pub(super) fn opened_lsn(&self) -> u64 {
        self.store
            .as_ref()
            .expect("the node has a store")
            .opened_lsn
    }

    /// Turns that are logged from now on wait for [`confirm_replicated`](Self::confirm_replicated).
    pub(super) fn hold_turns(&mut self) {
        self.store
            .as_mut()
            .expect("the node has a store")
            .is_holding = true;
    }

    /// The copy has everything up to a frame of the log.
    pub(super) fn confirm_replicated(&mut self, lsn: u64) {
        let store = self.store.as_mut().expect("the node has a store");
        let mut confirmed = Vec::new();
        while let Some(held) = store.held.pop_front_if(|held| held.lsn <= lsn) {
            confirmed.push(held);
        }
        for held in confirmed {
            self.shards[held.shard].handle_turn_logged(held.turn);
            self.collect();
        }
    }

    /// Turns wait no longer.
    pub(super) fn release_turns(&mut self) {
        self.store
            .as_mut()
            .expect("the node has a store")
            .is_holding = false;
        self.confirm_replicated(u64::MAX);
    }

    /// The log has all batches of a shard, and the standby has none of them.
    pub(super) fn write_all(&mut self, shard: usize) {
        let turn = self.unlogged[shard].back().copied().expect("a batch");
        self.shards[shard].handle_turn_written(turn);
        self.collect();
    }

    pub(super) fn settle(&mut self) {
        while self.step() {}
    }

    pub(super) fn send(&mut self, conn: &mut SimConnection, packet: &[u8]) -> ConnectionAction {
        let shard = &mut self.shards[conn.shard];
        shard.set_now(self.now_ms, self.now_ms * 1000);
        let mut flow = shard.receive(conn.at, &mut packet.to_vec());
        while let ConnectionAction::HandOver(to) = flow {
            let moving = self.shards[conn.shard].hand_over(conn.at);
            self.shards[usize::from(to)].set_now(self.now_ms, self.now_ms * 1000);
            let (at, next) = self.shards[usize::from(to)].accept_handover(moving);
            *conn = SimConnection {
                shard: usize::from(to),
                at,
            };
            flow = next;
        }
        self.collect();
        flow
    }

    pub(super) fn connect(&mut self, shard: usize, client_id: &str, clean: bool) -> SimConnection {
        self.connect_with((0, shard), client_id, clean, PropertiesBuf::new())
    }

    /// As [`connect`](Self::connect), to a listener and a shard, with further properties.
    pub(super) fn connect_with(
        &mut self,
        (listener, shard): (u16, usize),
        client_id: &str,
        clean: bool,
        mut properties: PropertiesBuf,
    ) -> SimConnection {
        properties.push(Property::SessionExpiryInterval(if clean {
            0
        } else {
            3600
        }));
        let connect = Connect {
            version: Version::V5,
            clean_start: clean,
            keep_alive_s: 0,
            client_id,
            username: None,
            password: None,
            will: None,
            properties: properties.as_properties(),
            is_bridge: false,
        };
        let at = self.shards[shard].open_connection(listener, PeerAddress::Unix);
        let mut conn = SimConnection { shard, at };
        let mut bytes = Vec::new();
        connect.encode(&mut bytes);
        self.send(&mut conn, &bytes);
        conn
    }

    pub(super) fn subscribe(&mut self, conn: &mut SimConnection, filter: &str, qos: QoS) {
        let mut subscribe = SubscribeBuf::new(1);
        subscribe.push(filter, SubscriptionOptions::new(qos));
        let mut bytes = Vec::new();
        subscribe.encode(Properties::EMPTY, Version::V5, &mut bytes);
        self.send(conn, &bytes);
    }

    pub(super) fn publish(
        &mut self,
        conn: &mut SimConnection,
        topic: &str,
        payload: &[u8],
        qos: QoS,
        packet_id: u16,
    ) {
        let publish = Publish {
            dup: false,
            qos,
            retain: false,
            topic,
            packet_id,
            properties: Properties::EMPTY,
            payload,
        };
        let mut bytes = Vec::new();
        publish.encode(Version::V5, &mut bytes);
        self.send(conn, &bytes);
    }

    /// Accepts a connection that another node passes on.
    pub(super) fn accept_tunnel(
        &mut self,
        shard: usize,
        peer: PeerAddress,
        connect: &[u8],
    ) -> SimConnection {
        let at = self.shards[shard].open_connection(0, peer);
        self.shards[shard].mark_tunnel_exit(at);
        let mut connection = SimConnection { shard, at };
        self.send(&mut connection, connect);
        connection
    }

    pub(super) fn is_closing(&self, conn: SimConnection) -> bool {
        let connections = &self.shards[conn.shard].delivery.connections;
        connections[conn.at].phase == ConnectionPhase::Closing
    }

    pub(super) fn has_session(&self, client_id: &str) -> bool {
        self.shards
            .iter()
            .any(|shard| shard.by_client_id.contains_key(client_id))
    }

    /// Ends the session of a client; false if there is none.
    pub(super) fn terminate(&mut self, client_id: &str) -> bool {
        let ended = (self.shards.iter_mut()).any(|shard| shard.terminate_client(client_id));
        self.collect();
        ended
    }

    pub(super) fn drop_connection(&mut self, conn: SimConnection) {
        let shard = &mut self.shards[conn.shard];
        shard.connection_lost(conn.at, "test");
        shard.remove_connection(conn.at);
        self.collect();
    }

    /// The bytes in a connection's outbox.
    pub(super) fn peek_bytes(&self, conn: SimConnection) -> Vec<u8> {
        let outbox = &self.shards[conn.shard].delivery.connections[conn.at].outbox;
        let mut slices = [std::io::IoSlice::new(&[]); 16];
        let filled = outbox.fill_slices(&mut slices);
        slices[..filled]
            .iter()
            .flat_map(|slice| slice.to_vec())
            .collect()
    }

    /// Takes all bytes from a connection's outbox.
    pub(super) fn take_bytes(&mut self, conn: SimConnection) -> Vec<u8> {
        let mut bytes = Vec::new();
        let delivery = &mut self.shards[conn.shard].delivery;
        loop {
            let outbox = &delivery.connections[conn.at].outbox;
            let mut slices = [std::io::IoSlice::new(&[]); 16];
            let filled = outbox.fill_slices(&mut slices);
            let before = bytes.len();
            for slice in &slices[..filled] {
                bytes.extend_from_slice(slice);
            }
            let taken = bytes.len() - before;
            if taken == 0 {
                return bytes;
            }
            delivery.record_written(conn.at, taken);
        }
    }

    /// Takes the messages sent on a connection; acknowledges them if `ack`.
    pub(super) fn take(&mut self, conn: &mut SimConnection, ack: bool) -> Vec<ReceivedMessage> {
        let mut got = Vec::new();
        loop {
            let bytes = self.take_bytes(*conn);
            if bytes.is_empty() {
                return got;
            }
            let mut rest = &bytes[..];
            let mut answers = Vec::new();
            while let Some(frame) = mqtt::split_frame(rest, u32::MAX).unwrap() {
                rest = &rest[frame.len..];
                let packet = Packet::decode(frame, Version::V5, Direction::FromServer).unwrap();
                answer(&packet, &mut answers);
                if let Packet::Publish(publish) = packet {
                    got.push(ReceivedMessage {
                        topic: publish.topic.to_owned(),
                        payload: publish.payload.to_owned(),
                        qos: publish.qos,
                        packet_id: publish.packet_id,
                        dup: publish.dup,
                        retain: publish.retain,
                    });
                }
            }
            assert!(rest.is_empty());
            if !ack {
                return got;
            }
            self.send(conn, &answers);
        }
    }

    /// Whether the connection's next bytes contain a packet of a type.
    pub(super) fn has(&mut self, conn: SimConnection, kind: mqtt::PacketType) -> bool {
        let bytes = self.take_bytes(conn);
        let mut rest = &bytes[..];
        while let Some(frame) = mqtt::split_frame(rest, u32::MAX).unwrap() {
            rest = &rest[frame.len..];
            if frame.first_byte >> 4 == kind as u8 {
                return true;
            }
        }
        false
    }
}

fn answer(packet: &Packet<'_>, out: &mut Vec<u8>) {
    use mqtt::{Ack, ReasonCode};
    let ack = |packet_id| Ack {
        packet_id,
        reason: ReasonCode::SUCCESS,
        properties: Properties::EMPTY,
    };
    match packet {
        Packet::Publish(publish) => match publish.qos {
            QoS::AtMostOnce => {}
            QoS::AtLeastOnce => Packet::PubAck(ack(publish.packet_id)).encode(Version::V5, out),
            QoS::ExactlyOnce => Packet::PubRec(ack(publish.packet_id)).encode(Version::V5, out),
        },
        Packet::PubRel(rel) => Packet::PubComp(ack(rel.packet_id)).encode(Version::V5, out),
        _ => {}
    }
}
