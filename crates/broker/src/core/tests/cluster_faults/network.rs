//! Connections between nodes, as the crate `cluster` reports them: messages of two nodes keep their order and are not lost while
//! both nodes keep the connection. Each node notices on its own that another one is lost.

use super::standbys::PeerChange;
use super::{FaultSim, SimulatedNode};
use crate::core::peer_loss::PeerLoss;

/// A node from which nothing has arrived for so long is lost.
pub(super) const LEASE_MS: u64 = 5000;

impl FaultSim {
    /// Whether what a node sends arrives at another one.
    pub(super) fn reaches(&self, a: usize, b: usize) -> bool {
        let pair = (a.min(b), a.max(b));
        self.acts(a) && self.acts(b) && !self.cuts.iter().any(|cut| cut.pair == pair)
    }

    /// Whether both nodes have this connection.
    pub(super) fn is_agreed(&self, (a, b): (usize, usize), channel: u64) -> bool {
        self.channels[a][b] == Some(channel) && self.channels[b][a] == Some(channel)
    }

    /// Whether messages arrive over a connection.
    pub(super) fn is_open(&self, a: usize, b: usize, channel: u64) -> bool {
        self.reaches(a, b) && self.is_agreed((a, b), channel)
    }

    /// Nodes notice which others they reach.
    pub(super) fn step_network(&mut self) {
        let nodes = self.nodes.len();
        for a in 0..nodes {
            for b in 0..nodes {
                if a == b || !self.acts(a) {
                    continue;
                }
                let is_reachable = self.reaches(a, b);
                if is_reachable {
                    self.heard_ms[a][b] = self.now_ms;
                }
                let Some(channel) = self.channels[a][b] else {
                    continue;
                };
                if self.now_ms >= self.heard_ms[a][b] + LEASE_MS {
                    self.lose_peer(a, b, PeerLoss::Silent);
                } else if is_reachable
                    && self.channels[b][a] != Some(channel)
                    && self.pending_channel(b, a) != Some(channel)
                    && self.random(2) == 0
                {
                    // The other one has started again, or has given up the connection.
                    self.lose_peer(a, b, PeerLoss::Reconnecting);
                }
            }
        }
        for a in 0..nodes {
            for b in 0..nodes {
                if a != b && self.reaches(a, b) && self.channels[a][b].is_none() {
                    self.connect_nodes(a, b);
                }
            }
        }
        self.update_blocked();
    }

    /// The connection that a node is about to have, because the other one has it already.
    fn pending_channel(&self, a: usize, b: usize) -> Option<u64> {
        let pending = &self.pending_channels;
        let known = pending
            .iter()
            .find(|pending| (pending.0, pending.1) == (a, b));
        known.map(|&(_, _, channel)| channel)
    }

    /// One of the nodes begins a connection, or the other one learns of it.
    fn connect_nodes(&mut self, a: usize, b: usize) {
        if self.random(3) == 0 {
            return;
        }
        if let Some(channel) = self.pending_channel(a, b) {
            self.pending_channels
                .retain(|&(of, to, _)| (of, to) != (a, b));
            if self.channels[b][a] == Some(channel) {
                self.add_channel(a, b, channel);
            }
            return;
        }
        // The other one has to notice first that the earlier connection is gone.
        if self.channels[b][a].is_some() {
            return;
        }
        let channel = self.next_number();
        self.cluster.wires[a][b].clear();
        self.cluster.wires[b][a].clear();
        self.pending_channels
            .retain(|&(of, to, _)| (of, to) != (b, a));
        self.pending_channels.push((b, a, channel));
        self.add_channel(a, b, channel);
    }

    fn add_channel(&mut self, a: usize, b: usize, channel: u64) {
        self.channels[a][b] = Some(channel);
        self.heard_ms[a][b] = self.now_ms;
        self.cluster.add_peer(a, b);
        self.nodes[a].peer_changes.push(PeerChange::Up(b));
        self.note(format!("node {a} reaches {b}"));
    }

    pub(super) fn lose_peer(&mut self, node: usize, other: usize, loss: PeerLoss) {
        if self.channels[node][other].take().is_none() {
            return;
        }
        self.pending_channels
            .retain(|&(of, to, _)| (of, to) != (node, other) && (of, to) != (other, node));
        self.note(format!("node {node} loses {other}: {loss:?}"));
        self.cluster.lose(node, other, loss);
        let change = PeerChange::Down {
            peer: other,
            has_left: loss == PeerLoss::Left,
        };
        self.nodes[node].peer_changes.push(change);
        self.update_blocked();
    }

    /// Messages wait while their receiver cannot be reached. What a node had sent before it ended still arrives.
    pub(super) fn update_blocked(&mut self) {
        let nodes = self.nodes.len();
        let blocked = (0..nodes).map(|from| {
            let to_all = (0..nodes).map(|to| {
                let pair = (from.min(to), from.max(to));
                let is_cut = self.cuts.iter().any(|cut| cut.pair == pair);
                let has_channel = match self.channels[from][to] {
                    Some(channel) => self.channels[to][from] == Some(channel),
                    None => !self.runs(from) && self.channels[to][from].is_some(),
                };
                from != to && (is_cut || !self.acts(to) || !has_channel)
            });
            to_all.collect()
        });
        self.cluster.is_blocked = blocked.collect();
        let frozen = |node: &SimulatedNode| node.frozen_until_ms.is_some();
        self.cluster.frozen = (0..nodes).filter(|&n| frozen(&self.nodes[n])).collect();
        let is_slow = |node: &SimulatedNode| node.slow_log_until_ms > self.now_ms;
        self.cluster.without_log = (0..nodes).filter(|&n| is_slow(&self.nodes[n])).collect();
    }
}
