//! Several nodes on one thread with a simulated network and clock: frames are lost, delayed and repeated, nodes are
//! separated, stopped and started again. Whatever happens, the messages of a channel arrive once, in order and without
//! gaps, and everything converges when the network works again.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use cluster::{
    ChannelLimits, ClusterMembership, Member, MemberChange, MembershipConfig, MembershipEvent,
    NodeName, PeerNodeId,
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

/// What a node knows of one peer.
#[derive(Default)]
struct PeerHistory {
    /// The number that the sender gave to this channel, and of the last message received in it.
    last: Option<(u64, u64)>,
    sent: u64,
    /// Differs for each time that the peer became reachable.
    number: u64,
}

struct SimulatedNode {
    membership: ClusterMembership,
    peers: BTreeMap<PeerNodeId, (NodeName, PeerHistory)>,
    next_conversation: u64,
    received: u64,
    renewed_ms: u64,
}

struct Simulation {
    now_ms: u64,
    random: Random,
    nodes: BTreeMap<NodeName, SimulatedNode>,
    /// Frames on their way by the time of arrival.
    frames: BTreeMap<(u64, u64), (NodeName, NodeName, Bytes)>,
    next_frame: u64,
    /// Earliest arrival of the next frame of a pair, since frames of a pair keep their order.
    earliest: BTreeMap<(NodeName, NodeName), u64>,
    /// Nodes that are separated from all others.
    separated: Vec<NodeName>,
    loss_percent: u64,
    changes: VecDeque<(u64, MemberChange)>,
}

fn name(n: u64) -> NodeName {
    NodeName::new(&format!("node-{n}")).expect("valid")
}

impl Simulation {
    fn new(seed: u64, nodes: u64) -> Self {
        let mut simulation = Self {
            now_ms: 1_000_000,
            random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            nodes: BTreeMap::new(),
            frames: BTreeMap::new(),
            next_frame: 0,
            earliest: BTreeMap::new(),
            separated: Vec::new(),
            loss_percent: 0,
            changes: VecDeque::new(),
        };
        for n in 0..nodes {
            simulation.start(name(n));
        }
        simulation
    }

    fn start(&mut self, node: NodeName) {
        let mut random = Random(self.random.next() | 1);
        let member = Member {
            started_ms: self.now_ms,
            ..Member::new(node.clone(), self.random.next(), "1", 1..=1)
        };
        let config = MembershipConfig {
            lease_ms: 5000,
            channel: ChannelLimits {
                max_frame_bytes: 256,
                window_bytes: 2000,
                max_queued_bytes: 1 << 20,
                max_message_bytes: 1 << 20,
                keep_alive_ms: 1000,
            },
        };
        let membership = ClusterMembership::new(member, config, move || random.next());
        self.nodes.insert(
            node,
            SimulatedNode {
                membership,
                peers: BTreeMap::new(),
                next_conversation: 1,
                received: 0,
                renewed_ms: 0,
            },
        );
    }

    fn is_separated(&self, a: &NodeName, b: &NodeName) -> bool {
        self.separated.contains(a) != self.separated.contains(b)
    }

    /// One millisecond.
    fn step(&mut self) {
        self.now_ms += 1;
        let names: Vec<NodeName> = self.nodes.keys().cloned().collect();
        while self
            .changes
            .front()
            .is_some_and(|(at, _)| *at <= self.now_ms)
        {
            let Some((_, change)) = self.changes.pop_front() else {
                break;
            };
            for to in &names {
                let MemberChange::Renewed(member) = &change else {
                    continue;
                };
                if !self.is_separated(&member.node, to)
                    && let Some(node) = self.nodes.get_mut(to)
                {
                    node.membership.handle_change(change.clone(), self.now_ms);
                }
            }
        }
        while let Some(entry) = self.frames.first_entry()
            && entry.key().0 <= self.now_ms
        {
            let (from, to, frame) = entry.remove();
            if !self.is_separated(&from, &to)
                && let Some(node) = self.nodes.get_mut(&to)
            {
                node.membership.handle_frame(&frame, self.now_ms);
            }
        }
        for name in &names {
            self.run(name);
        }
    }

    fn run(&mut self, name: &NodeName) {
        let now_ms = self.now_ms;
        let Some(node) = self.nodes.get_mut(name) else {
            return;
        };
        if now_ms - node.renewed_ms >= 1000 {
            node.renewed_ms = now_ms;
            let change = MemberChange::Renewed(node.membership.local().clone());
            self.changes.push_back((now_ms + 5, change));
        }
        node.membership.tick(now_ms);
        node.handle_events();
        // Each node sends numbered messages of different sizes to everyone it can reach.
        if self.random.below(10) == 0 {
            let peers: Vec<PeerNodeId> = node.peers.keys().copied().collect();
            for peer in peers {
                if node.membership.queued_bytes(peer) < 5000 {
                    let size = self.random.below(700) as usize;
                    node.send(peer, size, now_ms);
                }
            }
        }
        let mut frames = Vec::new();
        while let Some(frame) = node.membership.poll_frame(now_ms) {
            frames.push(frame);
        }
        for (to, frame) in frames {
            if self.random.below(100) < self.loss_percent {
                continue;
            }
            let pair = (name.clone(), to.clone());
            let arrival = (now_ms + 1 + self.random.below(20))
                .max(self.earliest.get(&pair).copied().unwrap_or(0));
            self.earliest.insert(pair, arrival);
            let copies = 1 + u64::from(self.random.below(100) < self.loss_percent);
            for _ in 0..copies {
                self.next_frame += 1;
                let key = (arrival, self.next_frame);
                self.frames
                    .insert(key, (name.clone(), to.clone(), frame.clone()));
            }
        }
    }
}

impl SimulatedNode {
    fn send(&mut self, peer: PeerNodeId, size: usize, now_ms: u64) {
        let Some((_, history)) = self.peers.get_mut(&peer) else {
            return;
        };
        history.sent += 1;
        let mut message = Vec::new();
        message.extend_from_slice(&history.number.to_le_bytes());
        message.extend_from_slice(&history.sent.to_le_bytes());
        message.extend((0..size).map(|at| at as u8));
        self.membership.send(peer, message.into(), now_ms);
    }

    fn handle_events(&mut self) {
        while let Some(event) = self.membership.poll_event() {
            match event {
                MembershipEvent::Up { peer, node, .. } => {
                    let history = PeerHistory {
                        number: self.next_conversation,
                        ..PeerHistory::default()
                    };
                    self.next_conversation += 1;
                    assert!(self.peers.insert(peer, (node, history)).is_none());
                }
                MembershipEvent::Down { peer, .. } => {
                    assert!(self.peers.remove(&peer).is_some());
                }
                MembershipEvent::Message { peer, message } => self.receive(peer, &message),
                other => panic!("{other:?}"),
            }
        }
    }

    fn receive(&mut self, peer: PeerNodeId, message: &[u8]) {
        let number =
            |at: usize| u64::from_le_bytes(message[at..at + 8].try_into().expect("eight bytes"));
        let (theirs, count) = (number(0), number(8));
        let body_is_right = (message[16..].iter().enumerate()).all(|(at, &byte)| byte == at as u8);
        assert!(body_is_right, "a message was put together wrongly");
        let (_, history) = self.peers.get_mut(&peer).expect("messages follow Up");
        match history.last {
            // A channel begins with the first message that the sender numbered for it, and never mixes two.
            None => assert_eq!(count, 1),
            Some((history, last)) => assert_eq!((theirs, count), (history, last + 1)),
        }
        history.last = Some((theirs, count));
        self.received += 1;
    }
}

/// Runs `nodes` nodes through faults chosen by `seed`, and checks that they converge afterwards.
fn run_with_faults(seed: u64, nodes: u64, faults: u64) {
    let mut simulation = Simulation::new(seed, nodes);
    for _ in 0..faults {
        let victim = name(simulation.random.below(nodes));
        match simulation.random.below(5) {
            0 => simulation.loss_percent = simulation.random.below(30),
            1 => simulation.loss_percent = 0,
            2 => simulation.separated = vec![victim],
            3 => simulation.separated.clear(),
            _ => {
                simulation.nodes.remove(&victim);
                simulation.start(victim);
            }
        }
        for _ in 0..simulation.random.below(8000) {
            simulation.step();
        }
    }
    simulation.loss_percent = 0;
    simulation.separated.clear();
    for _ in 0..10_000 {
        simulation.step();
    }
    let before: Vec<u64> = simulation
        .nodes
        .values()
        .map(|node| node.received)
        .collect();
    for _ in 0..2000 {
        simulation.step();
    }
    for ((name, node), before) in simulation.nodes.iter().zip(before) {
        assert_eq!(
            node.peers.len() as u64,
            nodes - 1,
            "seed {seed}: {name} does not reach all others"
        );
        assert!(
            node.received > before,
            "seed {seed}: {name} receives nothing"
        );
    }
}

#[test]
fn nodes_converge_after_faults_and_messages_arrive_in_order_exactly_once() {
    for seed in 1..=8 {
        run_with_faults(seed, 3, 12);
    }
}

#[test]
fn twelve_nodes_converge_after_faults() {
    run_with_faults(7, 12, 3);
}

#[test]
fn what_was_meant_for_a_closed_channel_does_not_get_into_a_later_one() {
    let mut simulation = Simulation::new(3, 2);
    let peer_of = |simulation: &mut Simulation| {
        for _ in 0..5000 {
            simulation.step();
        }
        let node = simulation.nodes.get(&name(0)).expect("was started");
        *node.peers.keys().next().expect("is reachable")
    };
    let before = peer_of(&mut simulation);
    let now_ms = simulation.now_ms;
    let node = simulation.nodes.get_mut(&name(0)).expect("was started");
    node.membership.reconnect(before, now_ms);
    let after = peer_of(&mut simulation);
    assert_eq!(before.index(), after.index());
    let node = simulation.nodes.get_mut(&name(0)).expect("was started");
    let queued = node.membership.queued_bytes(after);
    node.membership.send(before, vec![0; 100].into(), now_ms);
    assert_eq!(node.membership.queued_bytes(after), queued);
    // It closes nothing either.
    node.membership.reconnect(before, now_ms);
    node.handle_events();
    assert!(node.peers.contains_key(&after));
}

/// More seeds and nodes, on demand: `cargo test --release -p tidegate-cluster -- --ignored`.
#[test]
#[ignore = "takes minutes"]
fn many_nodes_and_seeds_converge_after_faults() {
    for seed in 1..=2000 {
        run_with_faults(seed, 3 + seed % 5, 12);
    }
    for seed in 1..=10 {
        run_with_faults(seed, 50, 4);
    }
}
