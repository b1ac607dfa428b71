//! Three nodes as members of a cluster over real NATS servers, which are killed and frozen.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cluster::{
    ChannelLimits, ClusterNode, DownReason, Member, MembershipConfig, NodeLoad, NodeName,
    PeerNodeId, PeerNodeObserver,
};
use cluster_nats::{NatsFabric, NatsState};
use support::servers::{ManagedNode, cluster_settings_or_skip};
use support::{LIMIT, connect, member, server_or_skip, settings, wait_for_status};
use tokio::task::JoinHandle;

const PROTOCOL: u32 = 1;
const LEASE_MS: u64 = 3000;

/// What a node knows of another one.
#[derive(Debug, Default)]
struct PeerHistory {
    /// Messages to it, and the number of the channel, which differs after each interruption.
    number: u64,
    sent: u64,
    /// The number of the channel and of the last message in it.
    last: Option<(u64, u64)>,
}

#[derive(Default)]
struct Observed {
    peers: HashMap<PeerNodeId, (NodeName, PeerHistory)>,
    conversations: u64,
    received: HashMap<NodeName, u64>,
    interruptions: u64,
    faults: Vec<String>,
    is_known: bool,
}

/// Sends numbered messages to all peers, and checks those of the peers.
#[derive(Default)]
struct Observer(Mutex<Observed>);

impl PeerNodeObserver for Observer {
    fn peer_up(&self, peer: PeerNodeId, node: &NodeName, _: u32) {
        let mut observed = self.0.lock().unwrap();
        observed.conversations += 1;
        let number = observed.conversations;
        let history = PeerHistory {
            number,
            ..PeerHistory::default()
        };
        let before = observed.peers.insert(peer, (node.clone(), history));
        if before.is_some() {
            observed.faults.push(format!("{node} is up twice"));
        }
    }

    fn peer_down(&self, peer: PeerNodeId, _: DownReason) {
        let mut observed = self.0.lock().unwrap();
        observed.interruptions += 1;
        if observed.peers.remove(&peer).is_none() {
            observed.faults.push("a peer is down twice".to_owned());
        }
    }

    fn message(&self, peer: PeerNodeId, message: Bytes) {
        let mut observed = self.0.lock().unwrap();
        let number = |at: usize| u64::from_le_bytes(message[at..at + 8].try_into().unwrap());
        let next = (number(0), number(8));
        let Some((node, history)) = observed.peers.get_mut(&peer) else {
            observed
                .faults
                .push("a message of a peer that is down".to_owned());
            return;
        };
        let is_right = match history.last {
            None => true,
            Some((number, count)) if number == next.0 => next.1 == count + 1,
            Some((number, _)) => next.0 > number,
        };
        let fault = (!is_right).then(|| format!("{next:?} of {node} follows {:?}", history.last));
        history.last = Some(next);
        let node = node.clone();
        observed.faults.extend(fault);
        *observed.received.entry(node).or_default() += 1;
    }

    fn members_known(&self) {
        self.0.lock().unwrap().is_known = true;
    }

    fn is_full(&self) -> bool {
        false
    }

    fn load(&self) -> NodeLoad {
        NodeLoad {
            connections: 7,
            sessions: 8,
            is_draining: true,
            rebalance_target: Some(5),
        }
    }
}

struct RunningNode {
    node: Arc<ClusterNode>,
    observer: Arc<Observer>,
    tasks: Vec<JoinHandle<()>>,
}

impl RunningNode {
    fn start(name: &str, fabric: &NatsFabric, run_id: u64) -> Self {
        let local = Member {
            run_id,
            protocol: PROTOCOL,
            oldest_protocol: PROTOCOL,
            ..member(name, 0)
        };
        let config = MembershipConfig {
            lease_ms: LEASE_MS,
            channel: ChannelLimits::default(),
        };
        let observer = Arc::new(Observer::default());
        let mut random = run_id << 32;
        let node = ClusterNode::new(
            local,
            config,
            move || {
                random += 1;
                random
            },
            fabric.members(),
            fabric.links(),
            observer.clone(),
        );
        let mut tasks = node.start();
        tasks.push(tokio::spawn(talk(node.clone(), observer.clone())));
        Self {
            node,
            observer,
            tasks,
        }
    }

    fn peers(&self) -> Vec<String> {
        let observed = self.observer.0.lock().unwrap();
        let mut peers: Vec<String> = observed
            .peers
            .values()
            .map(|(node, _)| node.to_string())
            .collect();
        peers.sort();
        peers
    }

    /// Waits until this node reaches these others, and messages of all of them arrive.
    async fn wait_for_peers(&self, expected: &[&str]) {
        let began = Instant::now();
        loop {
            if self.peers() == expected {
                break;
            }
            assert!(
                began.elapsed() < LIMIT,
                "{} reaches {:?} instead of {expected:?}",
                self.node.local().node,
                self.peers()
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let before = self.observer.0.lock().unwrap().received.clone();
        let count = |received: &HashMap<NodeName, u64>, peer: &str| {
            let found = received.iter().find(|(node, _)| node.as_str() == peer);
            found.map_or(0, |(_, count)| *count)
        };
        for peer in expected {
            while count(&self.observer.0.lock().unwrap().received, peer) <= count(&before, peer) {
                assert!(began.elapsed() < LIMIT, "no messages of {peer}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }

    fn check(&self) {
        let observed = self.observer.0.lock().unwrap();
        assert!(observed.faults.is_empty(), "{:?}", observed.faults);
    }

    fn interruptions(&self) -> u64 {
        self.observer.0.lock().unwrap().interruptions
    }

    /// As if the process had been killed.
    fn end(self) {
        self.check();
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn talk(node: Arc<ClusterNode>, observer: Arc<Observer>) {
    loop {
        tokio::time::sleep(Duration::from_millis(5)).await;
        let messages: Vec<(PeerNodeId, Bytes)> = {
            let mut observed = observer.0.lock().unwrap();
            let numbered = observed.peers.iter_mut().map(|(peer, (_, history))| {
                history.sent += 1;
                let mut message = history.number.to_le_bytes().to_vec();
                message.extend(history.sent.to_le_bytes());
                (*peer, message.into())
            });
            numbered.collect()
        };
        for (peer, message) in messages {
            node.send(peer, message);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn three_nodes_find_each_other_through_all_faults() {
    let directory = tempfile::tempdir().unwrap();
    let Some(settings) = cluster_settings_or_skip(directory.path(), 3) else {
        return;
    };
    let mut servers = Vec::new();
    for settings in settings {
        servers.push(ManagedNode::start(settings).await);
    }
    // The nodes start before the servers are ready.
    let mut nodes: Vec<RunningNode> = servers
        .iter()
        .zip(1..)
        .map(|(server, run_id)| {
            RunningNode::start(server.settings.node.as_str(), &server.fabric, run_id)
        })
        .collect();
    let others = [["b", "c"], ["a", "c"], ["a", "b"]];
    for (node, others) in nodes.iter().zip(others) {
        node.wait_for_peers(&others).await;
    }
    let members = nodes[0].node.members();
    assert!(members.iter().all(|info| info.is_reachable), "{members:?}");

    // A server is killed and started again at once: nothing is lost.
    let before: Vec<u64> = nodes.iter().map(RunningNode::interruptions).collect();
    servers[1].kill();
    servers[1].wait_until_not_ready().await;
    servers[1].wait_until_ready().await;
    for (node, others) in nodes.iter().zip(others) {
        node.wait_for_peers(&others).await;
        node.check();
    }
    println!(
        "interruptions before and after a server was killed: {before:?}, {:?}",
        nodes
            .iter()
            .map(RunningNode::interruptions)
            .collect::<Vec<u64>>()
    );

    // A node is separated: its server does not answer.
    servers[2].freeze();
    nodes[0].wait_for_peers(&["b"]).await;
    nodes[1].wait_for_peers(&["a"]).await;
    nodes[2].wait_for_peers(&[]).await;
    servers[2].resume();
    for (node, others) in nodes.iter().zip(others) {
        node.wait_for_peers(&others).await;
        node.check();
    }

    // A node ends without leaving, and starts again.
    nodes.pop().unwrap().end();
    nodes[0].wait_for_peers(&["b"]).await;
    nodes[1].wait_for_peers(&["a"]).await;
    let third = servers.pop().unwrap();
    let settings = third.settings.clone();
    third.stop().await;
    servers.push(ManagedNode::start(settings).await);
    nodes.push(RunningNode::start("c", &servers[2].fabric, 4));
    for (node, others) in nodes.iter().zip(others) {
        node.wait_for_peers(&others).await;
        node.check();
    }

    // A node leaves.
    let third = nodes.pop().unwrap();
    third.tasks.iter().for_each(JoinHandle::abort);
    third.node.leave().await;
    let began = Instant::now();
    nodes[0].wait_for_peers(&["b"]).await;
    nodes[1].wait_for_peers(&["a"]).await;
    println!(
        "the others noticed after {:?} that a node has left",
        began.elapsed()
    );
    assert!(nodes[0].node.members().len() == 1);
    nodes.into_iter().for_each(RunningNode::end);
}

/// Its list of members is lost with it, and they remain reachable for each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_of_the_only_server_separates_no_nodes() {
    let Some(server) = server_or_skip() else {
        return;
    };
    let mut nodes = Vec::new();
    for (name, run_id) in [("a", 1), ("b", 2)] {
        let fabric = connect(settings(&server), name).await;
        nodes.push((RunningNode::start(name, &fabric, run_id), fabric));
    }
    nodes[0].0.wait_for_peers(&["b"]).await;
    nodes[1].0.wait_for_peers(&["a"]).await;
    server.kill();
    server.start();
    for (_, fabric) in &nodes {
        wait_for_status(fabric, "ready again", |status| {
            status.reconnects > 0 && status.state == NatsState::Ready
        })
        .await;
    }
    // The watches have noticed by then that the entries are gone.
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(LEASE_MS) {
        nodes[0].0.wait_for_peers(&["b"]).await;
        nodes[1].0.wait_for_peers(&["a"]).await;
    }
    for (node, _) in nodes {
        assert_eq!(node.interruptions(), 0);
        node.end();
    }
}
