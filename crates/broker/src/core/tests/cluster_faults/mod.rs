//! Whole nodes with clients, standbys and any faults, in an order chosen by a seed.
//!
//! Each run has a phase with faults and one in which everything is well again. Then [`violations`](FaultSim::violations) says what
//! does not hold. The section "Simulation" in `docs/internals/cluster.md` says what is simulated and what is not.

mod checks;
mod clients;
mod faults;
mod network;
mod standbys;

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::Ordering::Relaxed;

use tempfile::TempDir;

use self::checks::Published;
use self::clients::{Client, Role};
use self::standbys::{CopyReceiver, CopySender, NodeFiles, PeerChange, StandbyRecords};
use super::cluster_sim::{ClusterSim, name};
use super::sim::Sim;
use crate::core::hash_state::set_seed;

/// Time for which messages wait for a node that cannot be reached. Longer than anything is away for in a run, because
/// messages are lost for the sessions of a node that is given up.
const AWAY_TIMEOUT_MS: u64 = 60_000;
/// Longest time that a node waits for the others at its start.
const START_TIMEOUT_MS: u64 = 10_000;
/// Time for everything to be well again.
const MAX_RECOVERY_MS: u64 = 120_000;
/// Clients of which one publishes, comes or goes in each step of a run.
const CLIENTS_PER_ACTION: usize = 12;
/// Steps that are shown when something does not hold.
const TRACE_STEPS: usize = 150;
/// Steps in which a cluster without changes from outside comes to rest.
const MAX_SETTLE_STEPS: usize = 2_000_000;

/// A node, running or not.
struct SimulatedNode {
    /// The number of this run of the node; 0: it does not run.
    run: u64,
    /// Its store while it does not run.
    dir: Option<TempDir>,
    files: NodeFiles,
    start_at_ms: Option<u64>,
    started_ms: u64,
    has_restarted: bool,
    /// It has adopted sessions in this run.
    has_adopted: bool,
    /// It knows the filters of the other nodes, and accepts clients.
    is_ready: bool,
    is_listening: bool,
    is_draining: bool,
    has_forwarded: bool,
    /// It can reach the NATS servers, which have the records of the standbys.
    has_servers: bool,
    frozen_until_ms: Option<u64>,
    slow_log_until_ms: u64,
    sender: Option<CopySender>,
    receiver: CopyReceiver,
    peer_changes: Vec<PeerChange>,
}

/// A time in which two nodes do not reach each other.
struct Cut {
    pair: (usize, usize),
    until_ms: u64,
}

struct FaultSim {
    cluster: ClusterSim,
    nodes: Vec<SimulatedNode>,
    clients: Vec<Client>,
    published: Vec<Published>,
    /// The connection to each other node, as each node sees it.
    channels: Vec<Vec<Option<u64>>>,
    /// When each node has last heard of each other one.
    heard_ms: Vec<Vec<u64>>,
    /// Connections that a node is about to have, because the other one has them already: node, other one, number.
    pending_channels: Vec<(usize, usize, u64)>,
    cuts: Vec<Cut>,
    /// Until then, some nodes do not reach the NATS servers.
    isolated_until_ms: u64,
    records: StandbyRecords,
    /// Faults happen.
    is_faulty: bool,
    now_ms: u64,
    last_number: u64,
    /// Messages that were lost for a session or a group whose node that of the publisher did not know, or that have arrived twice for a
    /// known reason.
    excused: usize,
    trace: VecDeque<String>,
    seed: u64,
}

/// What a run is made of.
#[derive(Debug, Clone, Copy)]
struct RunPlan {
    nodes: usize,
    clients: usize,
    /// Time with faults.
    faulty_ms: u64,
}

impl FaultSim {
    fn new(plan: RunPlan, seed: u64) -> Self {
        let mut cluster = ClusterSim::separated(plan.nodes, seed * 7919, |n| {
            let dir = TempDir::new().unwrap();
            let seed = (seed * 31 + n as u64, 1_000_000);
            Sim::open_with(&name(n), 2, seed, dir, AWAY_TIMEOUT_MS)
        });
        // The first numbers of close seeds are similar.
        for _ in 0..8 {
            cluster.random(2);
        }
        let node = |n: usize| SimulatedNode {
            run: n as u64 + 1,
            dir: None,
            files: NodeFiles::default(),
            start_at_ms: None,
            started_ms: 0,
            has_restarted: false,
            has_adopted: false,
            is_ready: false,
            is_listening: false,
            is_draining: false,
            has_forwarded: false,
            has_servers: true,
            frozen_until_ms: None,
            slow_log_until_ms: 0,
            sender: None,
            receiver: CopyReceiver::default(),
            peer_changes: Vec::new(),
        };
        let clients = (0..plan.clients).map(|n| {
            let role = [
                Role::Subscriber,
                Role::Publisher,
                Role::Subscriber,
                Role::Publisher,
                Role::Transient,
                Role::Member,
            ][n % 6];
            Client::new(n / 2, role, plan.nodes)
        });
        let mut sim = Self {
            nodes: (0..plan.nodes).map(node).collect(),
            clients: clients.collect(),
            published: Vec::new(),
            channels: vec![vec![None; plan.nodes]; plan.nodes],
            heard_ms: vec![vec![0; plan.nodes]; plan.nodes],
            pending_channels: Vec::new(),
            cuts: Vec::new(),
            isolated_until_ms: 0,
            records: StandbyRecords::new(plan.nodes),
            is_faulty: false,
            now_ms: 0,
            last_number: 1000,
            excused: 0,
            trace: VecDeque::new(),
            cluster,
            seed,
        };
        for node in 0..plan.nodes {
            sim.start_standbys(node);
        }
        sim
    }

    fn random(&mut self, below: usize) -> usize {
        self.cluster.random(below)
    }

    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    fn note(&mut self, step: String) {
        if self.trace.len() == TRACE_STEPS {
            self.trace.pop_front();
        }
        if std::env::var_os("TIDEGATE_TEST_TRACE").is_some() {
            println!("{:7} {step}", self.now_ms);
        }
        self.trace.push_back(format!("{:7} {step}", self.now_ms));
    }

    fn runs(&self, node: usize) -> bool {
        self.nodes[node].run != 0
    }

    /// Whether a node runs and is scheduled.
    fn acts(&self, node: usize) -> bool {
        self.runs(node) && self.nodes[node].frozen_until_ms.is_none()
    }

    /// Some messages between shards and nodes are handled, and some of the logs copied.
    fn run_some(&mut self, steps: usize) {
        for _ in 0..steps {
            match self.random(8) {
                0 => {
                    let node = self.random(self.nodes.len());
                    if self.acts(node) {
                        self.copy_log(node);
                    }
                }
                1 => {
                    let node = self.random(self.nodes.len());
                    if self.acts(node) {
                        self.confirm_copy(node);
                    }
                }
                2 if self.random(4) == 0 => {
                    self.run_clients();
                }
                _ => {
                    self.cluster.step();
                }
            }
        }
    }

    /// Everything is handled that can be without time passing.
    fn settle(&mut self) {
        let mut steps = 0;
        loop {
            let mut has_acted = false;
            while self.cluster.step() {
                has_acted = true;
                steps += 1;
                assert!(
                    steps < MAX_SETTLE_STEPS,
                    "seed {}: the nodes do not come to rest",
                    self.seed
                );
            }
            for node in 0..self.nodes.len() {
                while self.acts(node) && (self.copy_log(node) || self.confirm_copy(node)) {
                    has_acted = true;
                }
            }
            has_acted |= self.run_clients();
            if !has_acted {
                return;
            }
        }
    }

    /// Time passes on all nodes.
    fn pass(&mut self, ms: u64) {
        self.now_ms += ms;
        self.end_faults();
        self.step_network();
        self.update_unaware();
        for node in 0..self.nodes.len() {
            if !self.acts(node) {
                continue;
            }
            let sim = &mut self.cluster.nodes[node];
            match self.nodes[node].is_listening {
                true => sim.pass(ms),
                false => sim.pass_without_timers(ms),
            }
            sim.with_router(|router| {
                router.tick();
            });
            self.open_node(node);
            self.handle_peer_changes(node);
            self.step_sender(node);
            self.step_receiver(node);
        }
    }

    /// A node that has started accepts clients when it knows the filters of the others, or after some time.
    fn open_node(&mut self, node: usize) {
        let knows_members = (0..self.nodes.len()).all(|other| {
            other == node || self.channels[node][other].is_some() || !self.reaches(node, other)
        });
        let router = self.cluster.nodes[node].router.as_ref();
        let is_complete = router.is_some_and(|router| router.is_complete());
        let is_late = self.now_ms >= self.nodes[node].started_ms + START_TIMEOUT_MS;
        let state = &mut self.nodes[node];
        state.is_ready |= knows_members && is_complete;
        if !state.is_listening && (state.is_ready || is_late) {
            state.is_listening = true;
            self.note(format!("node {node} accepts clients"));
        }
        let shared = self.cluster.nodes[node].shards[0].node.clone();
        let state = &mut self.nodes[node];
        if state.is_listening
            && !state.has_forwarded
            && state.is_ready
            && !shared.are_sessions_held.load(Relaxed)
            && !shared.has_successions.load(Relaxed)
        {
            state.has_forwarded = true;
            let restored = self.cluster.nodes[node].restored_payloads();
            self.record_restored(node, &restored);
            self.cluster.nodes[node].forward_restored();
        }
    }

    /// Whether nothing is left to do.
    fn is_well(&self) -> bool {
        let nodes = self.nodes.len();
        (0..nodes).all(|node| {
            let state = &self.nodes[node];
            self.acts(node)
                && state.is_listening
                && state.has_forwarded
                && (state.sender.as_ref()).is_some_and(CopySender::is_current)
                && state.receiver.is_idle()
                && (0..nodes).all(|other| other == node || self.channels[node][other].is_some())
        }) && self.clients.iter().all(Client::is_settled)
    }

    fn run(plan: RunPlan, seed: u64) -> Self {
        set_seed(seed);
        let mut sim = Self::new(plan, seed);
        sim.recover();
        sim.is_faulty = true;
        let end_ms = sim.now_ms + plan.faulty_ms;
        while sim.now_ms < end_ms {
            sim.cause_fault();
            for _ in 0..plan.clients.div_ceil(CLIENTS_PER_ACTION) {
                sim.act_as_clients();
            }
            let steps = sim.random(60);
            sim.run_some(steps);
            if sim.random(2) == 0 {
                let ms = 10 + sim.random(300) as u64;
                sim.pass(ms);
            }
            if sim.random(3) == 0 {
                sim.settle();
            }
        }
        sim.is_faulty = false;
        sim.heal();
        sim.recover();
        // What was passed on late.
        for _ in 0..10 {
            sim.pass(500);
            sim.settle();
        }
        sim
    }

    /// Waits until everything is well.
    fn recover(&mut self) {
        let until_ms = self.now_ms + MAX_RECOVERY_MS;
        while self.now_ms < until_ms {
            self.pass(200);
            self.settle();
            if self.is_well() {
                return;
            }
        }
        let mut states = Vec::new();
        for (node, state) in self.nodes.iter().enumerate() {
            let phase = state.sender.as_ref().map(CopySender::phase_name);
            let channels = &self.channels[node];
            states.push(format!(
                "node {node}: listening {}, forwarded {}, {phase:?}, receiver idle {}, channels {channels:?}",
                state.is_listening,
                state.has_forwarded,
                state.receiver.is_idle()
            ));
        }
        states.extend(self.clients.iter().map(Client::progress));
        self.fail(&["it does not recover".to_owned()], &states);
    }

    fn fail(&self, violations: &[String], states: &[String]) -> ! {
        let trace: Vec<&str> = self.trace.iter().map(String::as_str).collect();
        panic!(
            "seed {}:\n{}\n{}\nthe last steps:\n{}",
            self.seed,
            violations.join("\n"),
            states.join("\n"),
            trace.join("\n")
        );
    }
}

/// The seeds of a test: `TIDEGATE_TEST_SEEDS=1000` is their number, `TIDEGATE_TEST_FIRST_SEED=7` the first one.
fn seeds(count: u64) -> std::ops::Range<u64> {
    let number = |name: &str| {
        let value = std::env::var(name).ok();
        value.map(|value| value.parse::<u64>().expect("a number"))
    };
    let first = number("TIDEGATE_TEST_FIRST_SEED").unwrap_or(1);
    first..first + number("TIDEGATE_TEST_SEEDS").unwrap_or(count)
}

fn check(plan: impl Fn(u64) -> RunPlan, seeds: std::ops::Range<u64>) {
    let mut failed = BTreeSet::new();
    let (mut messages, mut excused, mut foreign) = (0, 0, 0);
    let keeps_going = std::env::var_os("TIDEGATE_TEST_KEEP_GOING").is_some();
    for seed in seeds {
        let run = std::panic::AssertUnwindSafe(|| {
            let mut sim = FaultSim::run(plan(seed), seed);
            let violations = sim.violations();
            if !violations.is_empty() {
                sim.fail(&violations, &[]);
            }
            sim
        });
        match std::panic::catch_unwind(run) {
            Ok(sim) => {
                messages += sim.published.len();
                excused += sim.excused;
                foreign += sim
                    .clients
                    .iter()
                    .map(|client| client.foreign_sessions)
                    .sum::<u32>();
            }
            Err(_) if keeps_going => {
                failed.insert(seed);
            }
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
    println!("{messages} messages, {excused} excused, {foreign} new sessions during separations");
    assert!(failed.is_empty(), "seeds {failed:?} failed");
}

#[test]
fn nothing_is_lost_whatever_fails() {
    let plan = |seed| RunPlan {
        nodes: 3 + seed as usize % 3,
        clients: 12,
        faulty_ms: 20_000,
    };
    check(plan, seeds(10));
}

/// `TIDEGATE_TEST_SEEDS=10 cargo test -p tidegate-broker --lib cluster_faults -- --ignored`
#[test]
#[ignore = "takes minutes"]
fn nothing_is_lost_in_a_cluster_of_fifty_nodes() {
    let plan = |_| RunPlan {
        nodes: 50,
        clients: 60,
        faulty_ms: 20_000,
    };
    check(plan, seeds(1));
}
