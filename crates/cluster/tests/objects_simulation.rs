//! Several nodes that share configuration objects, on one thread with simulated servers: watches are interrupted, answers are
//! lost, nodes are restarted, disks fail, deletions are forgotten, and the servers lose everything. Whatever happens, all nodes
//! have the same objects afterwards, nothing that was deleted comes back, and nothing disappears that was not deleted.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Mutex;

use bytes::Bytes;
use cluster::{
    ClusterError, ExpectedRevision, LocalObject, LocalObjects, LocalObjectsError, NodeName,
    ObjectChange, ObjectEntry, ObjectName, ObjectReplica, PutError, ReplicaEvent, ReplicaPhase,
    ReplicaRecord, ReplicaRequest,
};
use serde_json::{Value, json};

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

    fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// The disk of a node.
#[derive(Default)]
struct Disk {
    objects: Mutex<BTreeMap<ObjectName, LocalObject>>,
    record: Mutex<Option<ReplicaRecord>>,
    failures: Mutex<u64>,
}

impl Disk {
    fn check(&self) -> Result<(), LocalObjectsError> {
        let mut failures = self.failures.lock().unwrap();
        if *failures == 0 {
            return Ok(());
        }
        *failures -= 1;
        Err(LocalObjectsError("the disk is full".to_owned()))
    }

    fn create(&self, name: &ObjectName, value: Value) {
        let object = LocalObject {
            name: name.clone(),
            value,
            version: 1,
            created_ms: 1,
            updated_ms: 1,
        };
        self.objects.lock().unwrap().insert(name.clone(), object);
    }

    fn version(&self, name: &ObjectName) -> Option<u64> {
        Some(self.objects.lock().unwrap().get(name)?.version)
    }

    fn values(&self) -> BTreeMap<ObjectName, (u64, Value)> {
        let objects = self.objects.lock().unwrap();
        let pair = |object: &LocalObject| (object.version, object.value.clone());
        objects
            .values()
            .map(|object| (object.name.clone(), pair(object)))
            .collect()
    }
}

impl LocalObjects for Disk {
    fn list(&self) -> Result<Vec<(ObjectName, u64)>, LocalObjectsError> {
        self.check()?;
        let objects = self.objects.lock().unwrap();
        let listed = objects.values();
        Ok(listed
            .map(|object| (object.name.clone(), object.version))
            .collect())
    }

    fn get(&self, name: &ObjectName) -> Result<Option<LocalObject>, LocalObjectsError> {
        self.check()?;
        Ok(self.objects.lock().unwrap().get(name).cloned())
    }

    fn apply(&self, object: &LocalObject) -> Result<(), LocalObjectsError> {
        self.check()?;
        let mut objects = self.objects.lock().unwrap();
        objects.insert(object.name.clone(), object.clone());
        Ok(())
    }

    fn remove(&self, name: &ObjectName) -> Result<(), LocalObjectsError> {
        self.check()?;
        self.objects.lock().unwrap().remove(name);
        Ok(())
    }

    fn record(&self) -> Result<Option<ReplicaRecord>, LocalObjectsError> {
        self.check()?;
        Ok(self.record.lock().unwrap().clone())
    }

    fn set_record(&self, record: &ReplicaRecord) -> Result<(), LocalObjectsError> {
        self.check()?;
        *self.record.lock().unwrap() = Some(record.clone());
        Ok(())
    }
}

/// The servers: keys with their values, and markers of deletions.
#[derive(Default)]
struct Servers {
    entries: BTreeMap<String, ObjectEntry>,
    markers: BTreeMap<String, u64>,
    revision: u64,
}

impl Servers {
    fn put(
        &mut self,
        key: &str,
        value: Bytes,
        expected: ExpectedRevision,
    ) -> Result<u64, PutError> {
        self.check(key, expected)?;
        self.revision += 1;
        let revision = self.revision;
        self.markers.remove(key);
        self.entries
            .insert(key.to_owned(), ObjectEntry { value, revision });
        Ok(revision)
    }

    fn delete(&mut self, key: &str, expected: ExpectedRevision) -> Result<u64, PutError> {
        self.check(key, expected)?;
        self.revision += 1;
        self.entries.remove(key);
        self.markers.insert(key.to_owned(), self.revision);
        Ok(self.revision)
    }

    fn check(&self, key: &str, expected: ExpectedRevision) -> Result<(), PutError> {
        let current = self.entries.get(key).map(|entry| entry.revision);
        let is_expected = match expected {
            ExpectedRevision::Any => true,
            ExpectedRevision::Absent => current.is_none(),
            ExpectedRevision::Revision(revision) => current == Some(revision),
        };
        is_expected.then_some(()).ok_or(PutError::Conflict)
    }
}

/// What [`Servers`] report to one node.
#[derive(Default)]
struct Watch {
    /// Nothing while it is interrupted.
    changes: Option<VecDeque<ObjectChange>>,
    reported: BTreeMap<String, u64>,
}

impl Watch {
    fn begin(&mut self, servers: &Servers) {
        let mut listed: Vec<(u64, ObjectChange)> = Vec::new();
        for (key, entry) in &servers.entries {
            let put = ObjectChange::Put {
                key: key.clone(),
                entry: entry.clone(),
            };
            listed.push((entry.revision, put));
        }
        for (key, &revision) in &servers.markers {
            let deleted = ObjectChange::Deleted {
                key: key.clone(),
                revision,
            };
            listed.push((revision, deleted));
        }
        listed.sort_by_key(|(revision, _)| *revision);
        let mut changes: VecDeque<ObjectChange> =
            listed.into_iter().map(|(_, change)| change).collect();
        let is_known =
            |key: &String| servers.entries.contains_key(key) || servers.markers.contains_key(key);
        let lost = self.reported.keys().filter(|key| !is_known(key));
        changes.extend(lost.map(|key| ObjectChange::Lost { key: key.clone() }));
        changes.push_back(ObjectChange::Complete);
        self.changes = Some(changes);
    }

    /// The next change, without those that were reported before. The node may fail to handle it.
    fn next(&mut self) -> Option<ObjectChange> {
        let changes = self.changes.as_mut()?;
        while let Some(change) = changes.pop_front() {
            let is_new = match &change {
                ObjectChange::Put { key, entry } => self
                    .reported
                    .insert(key.clone(), entry.revision)
                    .is_none_or(|before| before <= entry.revision),
                ObjectChange::Deleted { key, .. } | ObjectChange::Lost { key } => {
                    self.reported.remove(key).is_some()
                }
                ObjectChange::Complete => true,
            };
            if is_new {
                return Some(change);
            }
        }
        None
    }
}

struct Node {
    name: NodeName,
    disk: Disk,
    replica: ObjectReplica,
    watch: Watch,
    /// A change that could not be stored.
    repeated: Option<ObjectChange>,
    request: Option<ReplicaRequest>,
    answer: Option<Result<u64, PutError>>,
    is_separated: bool,
    has_been_synchronized: bool,
    conflicts: BTreeSet<ObjectName>,
}

struct Simulation {
    random: Random,
    seed: u64,
    now_ms: u64,
    servers: Servers,
    nodes: Vec<Node>,
    next_value: u64,
    /// What people have stored and deleted.
    expected: BTreeMap<String, Bytes>,
    deleted: BTreeSet<String>,
}

fn new_replica(name: &NodeName, random: &mut Random, now_ms: u64) -> ObjectReplica {
    let mut ids = Random(random.next() | 1);
    ObjectReplica::new(name.clone(), move || ids.next().to_string(), now_ms)
}

fn unreachable() -> PutError {
    PutError::Cluster(ClusterError::Unreachable("no answer".to_owned()))
}

fn name(id: &str) -> ObjectName {
    ObjectName::new("rule", id)
}

/// As in the cluster.
fn key(name: &ObjectName) -> String {
    format!("config.{}.{}", name.kind, name.id)
}

impl Simulation {
    fn new(seed: u64, nodes: u64) -> Self {
        let mut simulation = Self {
            random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            seed,
            now_ms: 1000,
            servers: Servers {
                revision: 1_700_000_000_000,
                ..Servers::default()
            },
            nodes: Vec::new(),
            next_value: 0,
            expected: BTreeMap::new(),
            deleted: BTreeSet::new(),
        };
        for number in 0..nodes {
            simulation.add_node(number);
        }
        simulation
    }

    /// Each node has objects of its own, and others of which all nodes have different ones or the same.
    fn add_node(&mut self, number: u64) {
        let disk = Disk::default();
        for own in 0..3 {
            disk.create(&name(&format!("own-{number}-{own}")), json!({"of": number}));
        }
        disk.create(&name("different"), json!({"of": number}));
        disk.create(&name("zdifferent"), json!({"of": number}));
        disk.create(&name("same"), json!({"of": "all"}));
        let node_name = NodeName::new(&format!("node-{number}")).expect("valid");
        self.nodes.push(Node {
            replica: new_replica(&node_name, &mut self.random, self.now_ms),
            name: node_name,
            disk,
            watch: Watch::default(),
            repeated: None,
            request: None,
            answer: None,
            is_separated: false,
            has_been_synchronized: false,
            conflicts: BTreeSet::new(),
        });
    }

    fn restart(&mut self, at: usize) {
        let replica = new_replica(&self.nodes[at].name, &mut self.random, self.now_ms);
        let node = &mut self.nodes[at];
        node.replica = replica;
        node.watch = Watch::default();
        (node.repeated, node.request, node.answer) = (None, None, None);
    }

    fn report(&mut self, change: &ObjectChange) {
        for node in &mut self.nodes {
            if let Some(changes) = &mut node.watch.changes {
                changes.push_back(change.clone());
            }
        }
    }

    fn put(
        &mut self,
        key: &str,
        value: Bytes,
        expected: ExpectedRevision,
    ) -> Result<u64, PutError> {
        let revision = self.servers.put(key, value.clone(), expected)?;
        let entry = ObjectEntry { value, revision };
        let key = key.to_owned();
        self.report(&ObjectChange::Put { key, entry });
        Ok(revision)
    }

    fn step(&mut self, fault_percent: u64) {
        self.now_ms += self.random.below(50);
        let at = self.random.below(self.nodes.len() as u64) as usize;
        match self.random.below(10) {
            0..=4 => self.deliver(at, fault_percent),
            5..=7 => self.run_requests(at, fault_percent),
            8 => self.change_something(at),
            _ => {
                let node = &mut self.nodes[at];
                if node.watch.changes.is_none() && !node.is_separated {
                    node.watch.begin(&self.servers);
                }
            }
        }
        self.handle_events(at);
    }

    fn deliver(&mut self, at: usize, fault_percent: u64) {
        let fails = self.random.percent(fault_percent);
        let count = 1 + self.random.below(5);
        let now_ms = self.now_ms;
        let node = &mut self.nodes[at];
        for _ in 0..count {
            let next = node.repeated.take().or_else(|| node.watch.next());
            let Some(change) = next else { return };
            if fails {
                *node.disk.failures.lock().unwrap() = 1;
            }
            let handled = node.replica.handle_change(&change, &node.disk, now_ms);
            if handled.is_err() {
                node.repeated = Some(change);
            }
            *node.disk.failures.lock().unwrap() = 0;
        }
    }

    fn run_requests(&mut self, at: usize, fault_percent: u64) {
        let is_lost = self.random.percent(fault_percent);
        let is_carried_out = !is_lost || self.random.percent(50);
        let now_ms = self.now_ms;
        let node = &mut self.nodes[at];
        if let Some(answer) = node.answer.take() {
            node.replica.handle_answer(answer, now_ms);
        } else if let Some(request) = node.request.take() {
            let is_carried_out = is_carried_out && !node.is_separated;
            let is_answered = !is_lost && !node.is_separated;
            self.carry_out(at, &request, is_carried_out, is_answered);
        } else if let Ok(Some(request)) = node.replica.poll_request(&node.disk, now_ms) {
            node.request = Some(request);
        }
    }

    fn carry_out(
        &mut self,
        at: usize,
        request: &ReplicaRequest,
        is_carried_out: bool,
        is_answered: bool,
    ) {
        let mut outcome = Err(unreachable());
        if is_carried_out {
            let key = &request.key;
            outcome = self.put(key, request.value.clone(), request.expected);
            if outcome.is_ok() && key != "config" {
                let may_return = !self.nodes[at].has_been_synchronized;
                assert!(
                    may_return || !self.deleted.contains(key),
                    "seed {}: {key} was deleted and comes back",
                    self.seed
                );
                self.expected.insert(key.clone(), request.value.clone());
                self.deleted.remove(key);
            }
        }
        let node = &mut self.nodes[at];
        node.answer = Some(if is_answered {
            outcome
        } else {
            Err(unreachable())
        });
    }

    /// As [`cluster::ReplicatedObjects`] does it.
    fn change_something(&mut self, at: usize) {
        let node = &self.nodes[at];
        if node.replica.phase() != ReplicaPhase::Synchronized || node.is_separated {
            return;
        }
        let names = ["different", "same", "own-0-1", "own-1-0", "new-1", "new-2"];
        let name = name(names[self.random.below(names.len() as u64) as usize]);
        let key = key(&name);
        let version = node.disk.version(&name);
        if self.random.percent(30) {
            let Some(version) = version else { return };
            let deleted = self
                .servers
                .delete(&key, ExpectedRevision::Revision(version));
            if let Ok(revision) = deleted {
                self.expected.remove(&key);
                self.deleted.insert(key.clone());
                self.report(&ObjectChange::Deleted { key, revision });
            }
            return;
        }
        self.next_value += 1;
        let value = json!({"created_ms": 1, "updated_ms": 2, "value": self.next_value});
        let value = Bytes::from(value.to_string());
        let expected = version.map_or(ExpectedRevision::Absent, ExpectedRevision::Revision);
        if self.put(&key, value.clone(), expected).is_ok() {
            self.deleted.remove(&key);
            self.expected.insert(key, value);
        }
    }

    fn handle_events(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        while let Some(event) = node.replica.poll_event() {
            match event {
                ReplicaEvent::Synchronized => node.has_been_synchronized = true,
                ReplicaEvent::Conflict { name } => drop(node.conflicts.insert(name)),
                ReplicaEvent::AllLost => {}
                event => panic!("seed {}: {event:?}", self.seed),
            }
        }
    }

    fn inject_fault(&mut self) {
        let at = self.random.below(self.nodes.len() as u64) as usize;
        match self.random.below(5) {
            0 => self.nodes[at].watch.changes = None,
            1 => self.restart(at),
            2 => {
                self.nodes[at].is_separated = true;
                self.nodes[at].watch.changes = None;
            }
            3 => self
                .nodes
                .iter_mut()
                .for_each(|node| node.is_separated = false),
            _ => self.servers.markers.clear(),
        }
    }

    fn lose_everything(&mut self) {
        self.servers.entries.clear();
        self.servers.markers.clear();
        self.servers.revision += 1_000_000;
        for node in &mut self.nodes {
            node.watch.changes = None;
        }
    }

    fn converge(&mut self) {
        for node in &mut self.nodes {
            node.is_separated = false;
        }
        for step in 0.. {
            assert!(step < 200_000, "seed {}: no convergence", self.seed);
            let at = step % self.nodes.len();
            self.now_ms += 5;
            if self.nodes[at].watch.changes.is_none() {
                self.nodes[at].watch.begin(&self.servers);
            }
            self.deliver(at, 0);
            self.run_requests(at, 0);
            self.handle_events(at);
            let is_done = self.nodes.iter().all(|node| {
                let changes = node.watch.changes.as_ref();
                node.replica.phase() == ReplicaPhase::Synchronized
                    && changes.is_some_and(VecDeque::is_empty)
                    && node.repeated.is_none()
                    && node.request.is_none()
            });
            if is_done {
                break;
            }
        }
        let first = self.nodes[0].disk.values();
        for node in &self.nodes {
            assert_eq!(
                node.disk.values(),
                first,
                "seed {}: {}",
                self.seed,
                node.name
            );
        }
        let revisions: BTreeMap<String, u64> = self
            .servers
            .entries
            .iter()
            .filter(|(key, _)| *key != "config")
            .map(|(key, entry)| (key.clone(), entry.revision))
            .collect();
        let stored: BTreeMap<String, u64> = first
            .iter()
            .map(|(name, (version, _))| (key(name), *version))
            .collect();
        assert_eq!(stored, revisions, "seed {}", self.seed);
    }

    fn check_nothing_is_missing(&self) {
        let stored = self.nodes[0].disk.values();
        for number in 0..self.nodes.len() {
            for own in 0..3 {
                let name = name(&format!("own-{number}-{own}"));
                assert!(
                    stored.contains_key(&name) || self.deleted.contains(&key(&name)),
                    "seed {}: {name} of a node that has joined is missing",
                    self.seed
                );
            }
        }
        let stored: BTreeMap<String, Bytes> = self
            .servers
            .entries
            .iter()
            .filter(|(key, _)| *key != "config")
            .map(|(key, entry)| (key.clone(), entry.value.clone()))
            .collect();
        assert_eq!(stored, self.expected, "seed {}", self.seed);
    }
}

fn run(seed: u64, nodes: u64) {
    let mut simulation = Simulation::new(seed, nodes);
    for round in 0..40 {
        let fault_percent = simulation.random.below(30);
        for _ in 0..simulation.random.below(300) {
            simulation.step(fault_percent);
        }
        simulation.inject_fault();
        if round == 20 {
            // One that joins a cluster in use.
            simulation.add_node(nodes);
        }
    }
    simulation.converge();
    simulation.check_nothing_is_missing();
}

#[test]
fn nodes_converge_through_faults_and_nothing_is_lost_or_comes_back() {
    for seed in 1..=300 {
        run(seed, 1 + seed % 4);
    }
}

#[test]
fn nodes_store_their_objects_again_when_the_servers_have_lost_all() {
    for seed in 1..=200 {
        let mut simulation = Simulation::new(seed, 3);
        simulation.converge();
        let before = simulation.nodes[0].disk.values();
        for _ in 0..2 {
            // People change nothing meanwhile, and some nodes notice the loss later than others.
            simulation.lose_everything();
            let fault_percent = simulation.random.below(30);
            for _ in 0..simulation.random.below(2000) {
                simulation.now_ms += 5;
                let at = simulation.random.below(3) as usize;
                if simulation.nodes[at].watch.changes.is_none() && simulation.random.percent(5) {
                    let servers = &simulation.servers;
                    simulation.nodes[at].watch.begin(servers);
                }
                simulation.deliver(at, fault_percent);
                simulation.run_requests(at, fault_percent);
                if simulation.random.percent(1) {
                    simulation.restart(at);
                }
                simulation.handle_events(at);
            }
        }
        simulation.converge();
        let after = simulation.nodes[0].disk.values();
        let values = |objects: &BTreeMap<ObjectName, (u64, Value)>| -> Vec<(ObjectName, Value)> {
            objects
                .iter()
                .map(|(name, (_, value))| (name.clone(), value.clone()))
                .collect()
        };
        assert_eq!(values(&before), values(&after), "seed {seed}");
    }
}

#[test]
fn the_cluster_wins_against_a_node_that_joins_and_the_difference_is_reported() {
    let mut simulation = Simulation::new(1, 1);
    simulation.converge();
    simulation.add_node(1);
    simulation.converge();
    let node = &simulation.nodes[1];
    let expected = [name("different"), name("zdifferent")];
    assert_eq!(node.conflicts, BTreeSet::from(expected));
    let objects = node.disk.values();
    assert_eq!(objects[&name("different")].1, json!({"of": 0}));
    assert_eq!(objects.len(), 3 + 3 + 3);
    assert!(simulation.nodes[0].conflicts.is_empty());
}

#[test]
fn the_objects_of_one_node_win_when_all_start_at_once() {
    for seed in 1..=100 {
        let mut simulation = Simulation::new(seed, 4);
        for _ in 0..3000 {
            simulation.now_ms += 1;
            let at = simulation.random.below(4) as usize;
            if simulation.nodes[at].watch.changes.is_none() {
                simulation.nodes[at].watch.begin(&simulation.servers);
            }
            simulation.deliver(at, 20);
            simulation.run_requests(at, 20);
            simulation.handle_events(at);
        }
        simulation.converge();
        let objects = simulation.nodes[0].disk.values();
        let [first, last] = ["different", "zdifferent"].map(|id| &objects[&name(id)].1);
        assert_eq!(first, last, "seed {seed}");
    }
}

#[test]
fn another_node_takes_over_when_the_first_one_ends_before_it_has_stored_its_objects() {
    let mut simulation = Simulation::new(1, 2);
    let run = |simulation: &mut Simulation, at: usize| {
        simulation.now_ms += 100;
        if simulation.nodes[at].watch.changes.is_none() {
            simulation.nodes[at].watch.begin(&simulation.servers);
        }
        simulation.deliver(at, 0);
        simulation.run_requests(at, 0);
        simulation.handle_events(at);
    };
    while !simulation.expected.contains_key(&key(&name("different"))) {
        run(&mut simulation, 0);
    }
    // Two minutes.
    for _ in 0..1200 {
        run(&mut simulation, 1);
    }
    assert_eq!(
        simulation.nodes[1].replica.phase(),
        ReplicaPhase::Synchronized
    );
    simulation.converge();
    simulation.check_nothing_is_missing();
}

#[test]
fn a_deletion_is_carried_out_by_a_node_that_was_away_for_longer_than_it_is_remembered() {
    let mut simulation = Simulation::new(1, 2);
    simulation.converge();
    for is_restarted in [false, true] {
        let id = if is_restarted { "own-0-1" } else { "own-0-0" };
        simulation.nodes[1].watch.changes = None;
        let key = key(&name(id));
        let revision = simulation
            .servers
            .delete(&key, ExpectedRevision::Any)
            .unwrap();
        simulation.report(&ObjectChange::Deleted { key, revision });
        simulation.servers.markers.clear();
        if is_restarted {
            simulation.restart(1);
        }
        simulation.converge();
        assert_eq!(simulation.nodes[1].disk.version(&name(id)), None);
    }
}

#[test]
fn an_object_that_is_too_large_for_the_cluster_stays_on_its_node() {
    let mut simulation = Simulation::new(1, 2);
    let large = name("large");
    let value = Value::from("x".repeat(cluster::MAX_OBJECT_BYTES));
    simulation.nodes[1].disk.create(&large, value);
    let mut reported = 0;
    for restart in 0..3 {
        for step in 0..4000 {
            let at = step % 2;
            simulation.now_ms += 5;
            if simulation.nodes[at].watch.changes.is_none() {
                simulation.nodes[at].watch.begin(&simulation.servers);
            }
            simulation.deliver(at, 0);
            simulation.run_requests(at, 0);
            while let Some(event) = simulation.nodes[at].replica.poll_event() {
                if let ReplicaEvent::NotStored { name, reason } = event {
                    assert_eq!((at, &name), (1, &large));
                    assert!(reason.contains("at most 1000000"), "{reason}");
                    reported += 1;
                }
            }
        }
        let node = &simulation.nodes[1];
        assert_eq!(node.replica.phase(), ReplicaPhase::Synchronized);
        assert!(node.replica.local_only().contains(&large));
        assert!(node.disk.version(&large).is_some(), "restart {restart}");
        assert_eq!(simulation.nodes[0].disk.version(&large), None);
        simulation.restart(1);
    }
    assert_eq!(reported, 3);
}

/// More seeds, on demand: `cargo test --release -p tidegate-cluster -- --ignored`.
#[test]
#[ignore = "takes minutes"]
fn many_seeds_converge() {
    for seed in 1..=20_000 {
        run(seed, 1 + seed % 6);
    }
}
