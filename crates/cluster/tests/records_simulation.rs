//! Several nodes on one thread that change records, with a simulated network and clocks: messages are lost, nodes are
//! separated, started again, and disagree about the time. Whatever happens, all nodes have the same records in the end:
//! those with the latest versions.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use cluster::{
    DEVICE_RECORDS_KIND, PeerNodeId, Record, RecordChanges, RecordDigests, RecordSync,
    RecordVersion, SharedRecords, SharedRecordsError, record_bucket,
};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

type Content = Option<Vec<u8>>;

/// The records of a node, as in files.
#[derive(Default)]
struct MemoryRecords {
    node: u64,
    state: Mutex<MemoryState>,
    /// Whether the disk is full.
    is_failed: AtomicBool,
}

#[derive(Default)]
struct MemoryState {
    records: BTreeMap<String, (RecordVersion, Content)>,
    buckets: BTreeMap<u16, Vec<String>>,
    digests: RecordDigests,
    context: Vec<u8>,
}

impl MemoryState {
    fn set(&mut self, id: &str, version: RecordVersion, content: Content) {
        if let Some((known, Some(_))) = self.records.get(id) {
            self.digests.toggle(id, *known);
        } else if !self.records.contains_key(id) {
            let bucket = self.buckets.entry(record_bucket(id)).or_default();
            bucket.push(id.to_owned());
        }
        if content.is_some() {
            self.digests.toggle(id, version);
        }
        self.records.insert(id.to_owned(), (version, content));
    }

    /// What exists, by id.
    fn existing(&self) -> BTreeMap<String, (RecordVersion, Content)> {
        let records = self.records.iter();
        let existing = records.filter(|(_, (_, content))| content.is_some());
        existing
            .map(|(id, record)| (id.clone(), record.clone()))
            .collect()
    }
}

impl MemoryRecords {
    fn state(&self) -> MutexGuard<'_, MemoryState> {
        self.state.lock().expect("no other thread has panicked")
    }

    fn check(&self) -> Result<(), SharedRecordsError> {
        match self.is_failed.load(Relaxed) {
            true => Err("the disk is full".into()),
            false => Ok(()),
        }
    }

    /// A change of this node.
    fn change(&self, id: &str, content: Content, now_ms: u64) -> RecordVersion {
        let mut state = self.state();
        let before = state.records.get(id).map(|(version, _)| *version);
        let version = RecordVersion::next(before, now_ms, self.node);
        state.set(id, version, content);
        version
    }

    /// Forgets removed records.
    fn expire_removals(&self) {
        let mut state = self.state();
        state.records.retain(|_, (_, content)| content.is_some());
        let MemoryState {
            records, buckets, ..
        } = &mut *state;
        buckets
            .values_mut()
            .for_each(|ids| ids.retain(|id| records.contains_key(id)));
    }
}

impl SharedRecords for MemoryRecords {
    fn context(&self) -> Vec<u8> {
        self.state().context.clone()
    }

    fn merge_context(&self, context: &[u8]) -> Result<(), SharedRecordsError> {
        self.check()?;
        let mut state = self.state();
        for byte in context {
            if !state.context.contains(byte) {
                state.context.push(*byte);
            }
        }
        Ok(())
    }

    fn root(&self) -> u64 {
        self.state().digests.root()
    }

    fn digests(&self) -> RecordDigests {
        self.state().digests.clone()
    }

    fn versions(
        &self,
        bucket: u16,
        each: &mut dyn FnMut(&str, RecordVersion),
    ) -> Result<(), SharedRecordsError> {
        let state = self.state();
        for id in state.buckets.get(&bucket).into_iter().flatten() {
            each(id, state.records[id].0);
        }
        Ok(())
    }

    fn version(&self, id: &str) -> Result<Option<RecordVersion>, SharedRecordsError> {
        Ok(self.state().records.get(id).map(|(version, _)| *version))
    }

    fn read(&self, id: &str) -> Result<Option<Record>, SharedRecordsError> {
        let state = self.state();
        let record = state.records.get(id);
        Ok(record.map(|(version, content)| Record {
            id: id.to_owned(),
            version: *version,
            content: content.clone(),
        }))
    }

    fn apply(&self, records: Vec<Record>) -> Result<(), SharedRecordsError> {
        self.check()?;
        let mut state = self.state();
        for record in records {
            let known = state.records.get(&record.id);
            if known.is_none_or(|(version, _)| *version < record.version) {
                state.set(&record.id, record.version, record.content);
            }
        }
        Ok(())
    }
}

struct SimulatedNode {
    records: Arc<MemoryRecords>,
    changes: RecordChanges,
    sync: RecordSync,
    /// Difference of its wall clock.
    skew_ms: i64,
    due_ms: u64,
}

/// A message on its way.
struct Delivery {
    from: usize,
    to: usize,
    channel: u64,
    message: Bytes,
}

struct Simulation {
    now_ms: u64,
    random: Random,
    nodes: Vec<SimulatedNode>,
    /// Channels of pairs of nodes; `None`: they are separated.
    channels: BTreeMap<(usize, usize), Option<u64>>,
    last_channel: u64,
    deliveries: BTreeMap<(u64, u64), Delivery>,
    last_delivery: u64,
    earliest: BTreeMap<(usize, usize), u64>,
    loss_percent: u64,
    /// Bytes on their way from one node to another.
    in_flight: BTreeMap<(usize, usize), usize>,
    most_in_flight: usize,
    sent_bytes: u64,
}

fn pair(a: usize, b: usize) -> (usize, usize) {
    (a.min(b), a.max(b))
}

fn peer(node: usize, channel: u64) -> PeerNodeId {
    PeerNodeId::new(node as u8, channel)
}

impl Simulation {
    fn new(seed: u64, count: usize) -> Self {
        let mut simulation = Self {
            now_ms: 1_000_000_000,
            random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            nodes: Vec::new(),
            channels: BTreeMap::new(),
            last_channel: 0,
            deliveries: BTreeMap::new(),
            last_delivery: 0,
            earliest: BTreeMap::new(),
            loss_percent: 0,
            in_flight: BTreeMap::new(),
            most_in_flight: 0,
            sent_bytes: 0,
        };
        for node in 0..count {
            let records = Arc::new(MemoryRecords {
                node: node as u64 + 1,
                ..MemoryRecords::default()
            });
            records.state().context.push(node as u8);
            let changes = RecordChanges::default();
            simulation.nodes.push(SimulatedNode {
                sync: RecordSync::new(DEVICE_RECORDS_KIND, records.clone(), changes.clone()),
                records,
                changes,
                skew_ms: 0,
                due_ms: 0,
            });
        }
        simulation.connect_all();
        simulation
    }

    fn pairs(&self) -> Vec<(usize, usize)> {
        let count = self.nodes.len();
        (0..count)
            .flat_map(|a| (a + 1..count).map(move |b| (a, b)))
            .collect()
    }

    fn connect_all(&mut self) {
        for (a, b) in self.pairs() {
            self.connect(a, b);
        }
    }

    fn connect(&mut self, a: usize, b: usize) {
        if self.channels.get(&pair(a, b)).copied().flatten().is_some() {
            return;
        }
        self.last_channel += 1;
        let channel = self.last_channel;
        self.channels.insert(pair(a, b), Some(channel));
        for (node, other) in [(a, b), (b, a)] {
            let now_ms = self.now_ms;
            self.nodes[node].sync.peer_up(peer(other, channel), now_ms);
            self.nodes[node].due_ms = 0;
        }
    }

    fn separate(&mut self, a: usize, b: usize) {
        let channel = self.channels.insert(pair(a, b), None).flatten();
        let Some(channel) = channel else { return };
        for (node, other) in [(a, b), (b, a)] {
            self.nodes[node].sync.peer_down(peer(other, channel));
            self.in_flight.remove(&(node, other));
        }
        self.deliveries
            .retain(|_, delivery| delivery.channel != channel);
    }

    fn isolate(&mut self, node: usize) {
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            self.separate(node, other);
        }
    }

    /// The node loses everything that is not in its files.
    fn restart(&mut self, node: usize) {
        self.isolate(node);
        let restarted = &mut self.nodes[node];
        restarted.changes = RecordChanges::default();
        restarted.sync = RecordSync::new(
            DEVICE_RECORDS_KIND,
            restarted.records.clone(),
            restarted.changes.clone(),
        );
        restarted.due_ms = 0;
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            self.connect(node, other);
        }
    }

    fn change(&mut self, node: usize, id: &str, content: Content) -> RecordVersion {
        let changed = &mut self.nodes[node];
        let now_ms = self.now_ms.saturating_add_signed(changed.skew_ms);
        let version = changed.records.change(id, content, now_ms);
        changed.changes.add([id]);
        changed.due_ms = 0;
        version
    }

    fn run(&mut self, duration_ms: u64) {
        let end = self.now_ms + duration_ms;
        while self.now_ms < end {
            self.step();
        }
    }

    fn step(&mut self) {
        self.now_ms += 1;
        while let Some(entry) = self.deliveries.first_entry()
            && entry.key().0 <= self.now_ms
        {
            let Delivery {
                from,
                to,
                channel,
                message,
            } = entry.remove();
            *self.in_flight.entry((from, to)).or_default() -= message.len();
            let node = &mut self.nodes[to];
            node.sync.handle(peer(from, channel), &message, self.now_ms);
            node.due_ms = 0;
        }
        for from in 0..self.nodes.len() {
            let node = &mut self.nodes[from];
            if node.due_ms > self.now_ms {
                continue;
            }
            node.due_ms = node.sync.poll(self.now_ms);
            let mut messages = Vec::new();
            while let Some(message) = node.sync.poll_message() {
                messages.push(message);
            }
            for (to, message) in messages {
                self.send(from, to, message);
            }
        }
    }

    fn send(&mut self, from: usize, to: PeerNodeId, message: Bytes) {
        self.sent_bytes += message.len() as u64;
        let (channel, to) = (to.channel(), to.index());
        if self.channels.get(&pair(from, to)) != Some(&Some(channel))
            || self.random.below(100) < self.loss_percent
        {
            return;
        }
        let in_flight = self.in_flight.entry((from, to)).or_default();
        *in_flight += message.len();
        self.most_in_flight = self.most_in_flight.max(*in_flight);
        let earliest = self.earliest.entry((from, to)).or_default();
        *earliest = (self.now_ms + 1 + self.random.below(20)).max(*earliest);
        self.last_delivery += 1;
        let at = (*earliest, self.last_delivery);
        let delivery = Delivery {
            from,
            to,
            channel,
            message,
        };
        self.deliveries.insert(at, delivery);
    }

    fn existing(&self, node: usize) -> BTreeMap<String, (RecordVersion, Content)> {
        self.nodes[node].records.state().existing()
    }

    fn assert_same(&self, why: &str) {
        let first = self.existing(0);
        for node in 1..self.nodes.len() {
            assert_eq!(self.existing(node), first, "{why}: node {node}");
        }
    }
}

fn content(text: &str) -> Content {
    Some(text.as_bytes().to_vec())
}

#[test]
fn a_change_is_at_all_nodes_at_once() {
    let mut simulation = Simulation::new(1, 3);
    simulation.run(1000);
    simulation.change(0, "a", content("1"));
    assert!(
        !simulation.nodes[0]
            .changes
            .wait_until_confirmed(Duration::ZERO)
    );
    simulation.run(100);
    assert!(
        simulation.nodes[0]
            .changes
            .wait_until_confirmed(Duration::ZERO)
    );
    simulation.assert_same("created");
    assert_eq!(simulation.existing(2).len(), 1);
    // The clock of a node that is an hour behind changes nothing about the order of changes.
    simulation.nodes[1].skew_ms = -3_600_000;
    simulation.change(1, "a", content("2"));
    simulation.run(100);
    simulation.assert_same("changed");
    assert_eq!(simulation.existing(0)["a"].1, content("2"));
    simulation.change(2, "a", None);
    simulation.run(100);
    simulation.assert_same("removed");
    assert!(simulation.existing(0).is_empty());
    simulation.change(1, "a", content("3"));
    simulation.run(100);
    simulation.assert_same("created again");
    assert_eq!(simulation.existing(0)["a"].1, content("3"));
    // What others need to use the records has arrived with them.
    let mut context = simulation.nodes[2].records.context();
    context.sort_unstable();
    assert_eq!(context, [0, 1, 2]);
}

#[test]
fn nodes_converge_to_the_latest_versions() {
    for seed in 1..=30 {
        let mut simulation = Simulation::new(seed, 3 + (seed % 3) as usize);
        let mut latest: BTreeMap<String, (RecordVersion, Content)> = BTreeMap::new();
        for _ in 0..200 {
            let node = simulation.random.below(simulation.nodes.len() as u64) as usize;
            let other = simulation.random.below(simulation.nodes.len() as u64) as usize;
            match simulation.random.below(20) {
                0 if node != other => simulation.separate(node, other),
                1 => simulation.isolate(node),
                2 => simulation.restart(node),
                3 => simulation.connect_all(),
                4 => {
                    let skew_ms = simulation.random.below(7_200_000) as i64 - 3_600_000;
                    simulation.nodes[node].skew_ms = skew_ms;
                }
                5 => simulation.loss_percent = simulation.random.below(40),
                6 => {
                    let records = &simulation.nodes[node].records;
                    records.is_failed.fetch_not(Relaxed);
                }
                _ => {
                    let id = format!("device-{}", simulation.random.below(40));
                    let value = match simulation.random.below(4) {
                        0 => None,
                        _ => content(&simulation.random.next().to_string()),
                    };
                    let version = simulation.change(node, &id, value.clone());
                    if latest.get(&id).is_none_or(|(known, _)| *known < version) {
                        latest.insert(id, (version, value));
                    }
                }
            }
            let duration_ms = simulation.random.below(3000);
            simulation.run(duration_ms);
        }
        simulation.loss_percent = 0;
        for node in &simulation.nodes {
            node.records.is_failed.store(false, Relaxed);
        }
        simulation.connect_all();
        simulation.run(90_000);
        latest.retain(|_, (_, content)| content.is_some());
        for node in 0..simulation.nodes.len() {
            assert_eq!(
                simulation.existing(node),
                latest,
                "seed {seed}, node {node}"
            );
        }
    }
}

#[test]
fn a_node_that_two_others_cannot_reach_directly_passes_changes_on() {
    let mut simulation = Simulation::new(2, 3);
    simulation.run(1000);
    simulation.separate(0, 2);
    simulation.change(0, "a", content("1"));
    // By the next comparison.
    simulation.run(20_000);
    assert_eq!(simulation.existing(2)["a"].1, content("1"));
}

#[test]
fn a_node_that_was_away_fetches_only_what_has_changed() {
    let mut simulation = Simulation::new(3, 3);
    for id in 0..20_000 {
        simulation.change(0, &format!("device-{id}"), content("0123456789"));
    }
    simulation.run(30_000);
    simulation.assert_same("created");
    simulation.isolate(2);
    for id in 0..50 {
        simulation.change(1, &format!("device-{id}"), content("changed"));
        simulation.change(0, &format!("device-{}", 100 + id), None);
    }
    simulation.run(3_600_000);
    let before = simulation.sent_bytes;
    simulation.connect_all();
    simulation.run(4000);
    simulation.assert_same("after an hour");
    // Digests in both directions, and about a hundred buckets.
    let bytes = simulation.sent_bytes - before;
    assert!(bytes < 1_200_000, "{bytes} bytes");
}

#[test]
fn what_is_on_its_way_to_a_node_is_bounded() {
    let mut simulation = Simulation::new(4, 3);
    simulation.run(1000);
    // More than is remembered.
    for id in 0..150_000 {
        simulation.change(
            0,
            &format!("device-{id}"),
            content("0123456789012345678901234567890123456789"),
        );
    }
    simulation.run(60_000);
    simulation.assert_same("imported");
    assert_eq!(simulation.existing(1).len(), 150_000);
    let most = simulation.most_in_flight;
    assert!(most < 1 << 20, "{most} bytes");
}

#[test]
fn forgotten_removals_do_not_bring_records_back_or_differ_forever() {
    let mut simulation = Simulation::new(5, 3);
    simulation.run(1000);
    simulation.change(0, "a", content("1"));
    simulation.run(100);
    simulation.change(1, "a", None);
    simulation.run(100);
    // Nodes forget at different times.
    simulation.nodes[2].records.expire_removals();
    simulation.change(0, "b", content("1"));
    simulation.run(20_000);
    simulation.assert_same("one has forgotten");
    assert_eq!(simulation.existing(0).len(), 1);
    let roots = simulation.nodes.iter().map(|node| node.records.root());
    let roots: std::collections::BTreeSet<u64> = roots.collect();
    assert_eq!(roots.len(), 1);
}

#[test]
fn nobody_waits_for_a_node_that_does_not_answer() {
    let mut simulation = Simulation::new(6, 2);
    simulation.run(1000);
    simulation.nodes[1].records.is_failed.store(true, Relaxed);
    simulation.change(0, "a", content("1"));
    simulation.run(1000);
    let changes = simulation.nodes[0].changes.clone();
    assert!(!changes.wait_until_confirmed(Duration::ZERO));
    simulation.run(5000);
    assert!(changes.wait_until_confirmed(Duration::ZERO));
    simulation.nodes[1].records.is_failed.store(false, Relaxed);
    simulation.run(10_000);
    simulation.assert_same("it answers again");
    simulation.change(0, "b", content("1"));
    assert!(!changes.wait_until_confirmed(Duration::ZERO));
    simulation.run(100);
    assert!(changes.wait_until_confirmed(Duration::ZERO));
}
