//! Nodes of a cluster, with all messages between shards and between nodes in an order chosen by a seed.

use std::collections::VecDeque;

use bytes::Bytes;
use mqtt::{Direction, Packet, Properties, Publish, QoS, Version};
use tempfile::TempDir;

use super::sim::{Sim, SimConnection};
use crate::core::node_messages::{self, NODE_PROTOCOL};
use crate::core::peer_loss::PeerLoss;
use crate::core::peer_node_ix::PeerNodeIx;
use crate::core::succession::SessionHold;
use crate::core::tables::TableIx as _;
use crate::core::tunnel::TunnelMessage;

/// The exit of a tunnel whose entry is at a node.
pub(super) struct TunnelExit {
    pub(super) entry: usize,
    pub(super) tunnel: u64,
    pub(super) connection: SimConnection,
}

pub(super) fn name(node: usize) -> String {
    format!("node-{node}")
}

pub(super) struct ClusterSim {
    pub(super) nodes: Vec<Sim>,
    /// The exits of tunnels, by the node that they are on.
    pub(super) exits: Vec<Vec<TunnelExit>>,
    /// Messages on their way, `[from][to]`.
    pub(super) wires: Vec<Vec<VecDeque<Bytes>>>,
    /// Nodes whose shards do not write to their log.
    pub(super) without_log: Vec<usize>,
    /// Nodes whose messages to the others wait.
    pub(super) is_silent: Vec<usize>,
    /// The version of the messages between nodes that each node speaks.
    pub(super) protocols: Vec<u32>,
    /// Whether messages wait, `[from][to]`; empty: none do.
    pub(super) is_blocked: Vec<Vec<bool>>,
    /// Nodes that do nothing.
    pub(super) frozen: Vec<usize>,
    pub(super) seed: u64,
}

impl ClusterSim {
    pub(super) fn new(nodes: usize, shards: usize, seed: u64, keeps_journals: bool) -> Self {
        Self::of_nodes(nodes, seed, |n| {
            let mut node = Sim::in_cluster(&name(n), shards, seed * 31 + n as u64, keeps_journals);
            node.finish_restore();
            node
        })
    }

    /// Nodes with two shards and a store, which can be killed.
    pub(super) fn with_stores(nodes: usize, seed: u64) -> Self {
        Self::of_nodes(nodes, seed, |n| {
            let dir = TempDir::new().unwrap();
            Sim::open(&name(n), 2, (seed * 31 + n as u64, 0), dir)
        })
    }

    fn of_nodes(nodes: usize, seed: u64, node: impl Fn(usize) -> Sim) -> Self {
        let mut cluster = Self::separated(nodes, seed, node);
        for a in 0..nodes {
            for b in 0..nodes {
                if a != b {
                    cluster.add_peer(a, b);
                }
            }
        }
        cluster.settle();
        cluster
    }

    /// Nodes that do not know each other yet.
    pub(super) fn separated(nodes: usize, seed: u64, node: impl Fn(usize) -> Sim) -> Self {
        Self {
            nodes: (0..nodes).map(node).collect(),
            exits: (0..nodes).map(|_| Vec::new()).collect(),
            wires: (0..nodes)
                .map(|_| (0..nodes).map(|_| VecDeque::new()).collect())
                .collect(),
            without_log: Vec::new(),
            is_silent: Vec::new(),
            protocols: vec![NODE_PROTOCOL; nodes],
            is_blocked: Vec::new(),
            frozen: Vec::new(),
            seed: seed | 1,
        }
    }

    pub(super) fn random(&mut self, below: usize) -> usize {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        (self.seed >> 33) as usize % below
    }

    /// Does for the exits of tunnels what tasks with sockets do in a node.
    pub(super) fn run_exits(&mut self) {
        for node in 0..self.nodes.len() {
            if self.frozen.contains(&node) {
                continue;
            }
            let Some(router) = &mut self.nodes[node].router else {
                continue;
            };
            for (entry, tunnel, message) in std::mem::take(&mut router.to_tunnel_exits) {
                self.handle_exit(node, entry.position(), tunnel, message);
            }
            let mut exits = std::mem::take(&mut self.exits[node]);
            exits.retain(|exit| {
                let output = self.nodes[node].take_bytes(exit.connection);
                if !output.is_empty() {
                    let message = TunnelMessage::Output(output.into());
                    self.send_tunnel(node, exit.entry, exit.tunnel, &message);
                }
                let is_closing = self.nodes[node].is_closing(exit.connection);
                if is_closing {
                    self.nodes[node].drop_connection(exit.connection);
                    self.send_tunnel(node, exit.entry, exit.tunnel, &TunnelMessage::ExitClosed);
                }
                !is_closing
            });
            self.exits[node].extend(exits);
        }
    }

    pub(super) fn send_tunnel(
        &mut self,
        from: usize,
        to: usize,
        tunnel: u64,
        message: &TunnelMessage,
    ) {
        self.wires[from][to].push_back(node_messages::encode_tunnel(tunnel, message));
    }

    pub(super) fn handle_exit(
        &mut self,
        node: usize,
        entry: usize,
        tunnel: u64,
        message: TunnelMessage,
    ) {
        if let TunnelMessage::Open(request) = message {
            let connection = self.nodes[node].accept_tunnel(0, request.peer, &request.connect);
            self.exits[node].push(TunnelExit {
                entry,
                tunnel,
                connection,
            });
            return;
        }
        let is_meant = |exit: &TunnelExit| exit.entry == entry && exit.tunnel == tunnel;
        let Some(place) = self.exits[node].iter().position(is_meant) else {
            return;
        };
        let exit = &mut self.exits[node][place];
        match message {
            TunnelMessage::Input(bytes) => {
                self.nodes[node].send(&mut exit.connection, &bytes);
                let credit = TunnelMessage::InputCredit(bytes.len() as u32);
                self.send_tunnel(node, entry, tunnel, &credit);
            }
            TunnelMessage::EntryClosed => {
                let exit = self.exits[node].remove(place);
                self.nodes[node].drop_connection(exit.connection);
            }
            _ => {}
        }
    }

    pub(super) fn collect(&mut self) {
        self.run_exits();
        for (from, node) in self.nodes.iter_mut().enumerate() {
            let Some(router) = &mut node.router else {
                continue;
            };
            for (to, message) in std::mem::take(&mut router.outgoing) {
                // A node that a test does not simulate answers nothing.
                if let Some(wire) = self.wires[from].get_mut(to.position()) {
                    wire.push_back(message);
                }
            }
        }
    }

    /// Processes one message between shards or nodes, chosen at random; false if none waits.
    pub(super) fn step(&mut self) -> bool {
        self.collect();
        let count = self.nodes.len();
        let start = self.random(count * (count + 1));
        for n in 0..count * (count + 1) {
            let choice = (start + n) % (count * (count + 1));
            let (from, to) = (choice / (count + 1), choice % (count + 1));
            if to == count {
                if self.frozen.contains(&from) {
                    continue;
                }
                if self.nodes[from].step() || (0..2).any(|shard| self.log_one(from, shard)) {
                    return true;
                }
            } else if !self.is_silent.contains(&from)
                && !(self.is_blocked.get(from)).is_some_and(|to_all| to_all[to])
                && let Some(message) = self.wires[from][to].pop_front()
            {
                self.nodes[to].with_router(|router| {
                    router
                        .handle_node_message(PeerNodeIx::from_position(from), &message)
                        .expect("nodes understand each other");
                });
                return true;
            }
        }
        false
    }

    pub(super) fn log_one(&mut self, node: usize, shard: usize) -> bool {
        !self.without_log.contains(&node)
            && shard < self.nodes[node].shards.len()
            && self.nodes[node].log_one(shard)
    }

    pub(super) fn settle(&mut self) {
        while self.step() {}
    }

    /// Everything proceeds except the logs of these nodes.
    pub(super) fn settle_without_logs_of(&mut self, nodes: &[usize]) {
        self.without_log = nodes.to_vec();
        self.settle();
        self.without_log.clear();
    }

    /// Two nodes lose each other; what was on its way is lost.
    pub(super) fn separate(&mut self, a: usize, b: usize) {
        self.lose(a, b, PeerLoss::Silent);
        self.lose(b, a, PeerLoss::Silent);
    }

    /// A node loses another one; what was on its way between them is lost.
    pub(super) fn lose(&mut self, node: usize, other: usize, loss: PeerLoss) {
        self.collect();
        self.wires[node][other].clear();
        self.wires[other][node].clear();
        for exit in self.exits[node].extract_if(.., |exit| exit.entry == other) {
            self.nodes[node].drop_connection(exit.connection);
        }
        self.nodes[node]
            .with_router(|router| router.remove_peer(PeerNodeIx::from_position(other), loss));
    }

    /// A node is killed, and the others notice it. Returns its store.
    pub(super) fn kill(&mut self, node: usize) -> TempDir {
        self.collect();
        let dir = self.nodes[node].kill();
        for other in (0..self.nodes.len()).filter(|&other| other != node) {
            self.wires[node][other].clear();
            self.wires[other][node].clear();
            let peer = PeerNodeIx::from_position(node);
            self.nodes[other].with_router(|router| router.remove_peer(peer, PeerLoss::Silent));
        }
        dir
    }

    /// A node that was killed starts again, and all others reach it.
    pub(super) fn start_again(&mut self, node: usize, dir: TempDir, hold: SessionHold) {
        let seed = self.random(1 << 20) as u64;
        let now_ms = self.nodes[node].now_ms;
        self.nodes[node] = Sim::open(&name(node), 2, (seed, now_ms), dir);
        self.nodes[node].with_router(|router| router.hold_sessions(hold));
        for other in (0..self.nodes.len()).filter(|&other| other != node) {
            self.wires[node][other].clear();
            self.wires[other][node].clear();
            self.join(node, other);
        }
    }

    /// Connects a client and waits for the answer.
    pub(super) fn connect(
        &mut self,
        node: usize,
        shard: usize,
        client_id: &str,
        clean: bool,
    ) -> SimConnection {
        let connection = self.nodes[node].connect(shard, client_id, clean);
        self.settle();
        connection
    }

    /// Time passes on all nodes.
    pub(super) fn pass(&mut self, ms: u64) {
        for node in &mut self.nodes {
            node.pass(ms);
            node.with_router(|router| {
                router.tick();
            });
        }
        self.settle();
    }

    pub(super) fn join(&mut self, a: usize, b: usize) {
        self.add_peer(a, b);
        self.add_peer(b, a);
    }

    pub(super) fn add_peer(&mut self, node: usize, other: usize) {
        let name = name(other);
        let protocol = self.protocols[node].min(self.protocols[other]);
        self.nodes[node].with_router(|router| {
            router.add_peer(PeerNodeIx::from_position(other), &name, protocol)
        });
    }
}

pub(super) fn payloads(node: &mut Sim, connection: &mut SimConnection) -> Vec<Vec<u8>> {
    let taken = node.take(connection, true);
    taken.into_iter().map(|got| got.payload).collect()
}

pub(super) fn publish_packet(topic: &str, payload: &[u8], qos: QoS, packet_id: u16) -> Vec<u8> {
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
    bytes
}

pub(super) fn packets<T>(bytes: &[u8], find: impl Fn(Packet<'_>) -> Option<T>) -> Option<T> {
    let mut rest = bytes;
    let mut found = None;
    while let Some(frame) = mqtt::split_frame(rest, u32::MAX).unwrap() {
        rest = &rest[frame.len..];
        let packet = Packet::decode(frame, Version::V5, Direction::FromServer).unwrap();
        found = found.or(find(packet));
    }
    found
}
