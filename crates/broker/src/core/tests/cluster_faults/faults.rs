//! What fails, and when it works again.

use std::sync::atomic::Ordering::Relaxed;

use super::clients::Role;
use super::network::LEASE_MS;
use super::{AWAY_TIMEOUT_MS, Cut, FaultSim, name};
use crate::core::client_disconnects::{DisconnectCause, DisconnectScan};
use crate::core::inspection::{ScanStep, ShardScan as _};
use crate::core::peer_loss::PeerLoss;
use crate::core::tests::sim::Sim;

impl FaultSim {
    /// Something fails, sometimes.
    pub(super) fn cause_fault(&mut self) {
        let nodes = self.nodes.len();
        let node = self.random(nodes);
        match self.random(400) {
            0..=3 => self.kill_node(node),
            4..=5 => {
                // Several at the same moment.
                let count = 2 + self.random(nodes.saturating_sub(2).clamp(1, 3));
                for n in 0..count {
                    self.kill_node((node + n) % nodes);
                }
            }
            6..=8 => {
                let other = (node + 1 + self.random(nodes - 1)) % nodes;
                let ms = 100 + self.random(9000) as u64;
                self.cut(node, other, ms);
            }
            9..=10 => self.isolate_some(),
            11..=13 => {
                let other = (node + 1 + self.random(nodes - 1)) % nodes;
                if self.reaches(node, other) {
                    self.lose_peer(node, other, PeerLoss::Reconnecting);
                }
            }
            14..=18 => {
                let ms = 100 + self.random(3000) as u64;
                self.nodes[node].slow_log_until_ms = self.now_ms + ms;
                self.note(format!("the log of node {node} is slow for {ms} ms"));
                self.update_blocked();
            }
            19..=20 if self.acts(node) => {
                let ms = 100 + self.random(9000) as u64;
                self.nodes[node].frozen_until_ms = Some(self.now_ms + ms);
                self.note(format!("node {node} is frozen for {ms} ms"));
                self.update_blocked();
            }
            21..=22 => self.drain_node(node),
            23..=24 if self.nodes[node].is_draining && self.acts(node) => self.stop_node(node),
            25..=26 if self.nodes[node].is_draining => self.end_drain(node),
            _ => {}
        }
    }

    /// Clients publish, and come and go.
    pub(super) fn act_as_clients(&mut self) {
        let at = self.random(self.clients.len());
        let node = self.clients[at].node;
        if self.nodes[node].frozen_until_ms.is_some() {
            return;
        }
        match self.random(10) {
            0 if self.clients[at].is_connected() => {
                let wait_ms = self.random(2000) as u64;
                self.drop_client(at, wait_ms);
            }
            1 if self.clients[at].is_connected() => {
                let wait_ms = self.random(2000) as u64;
                self.disconnect_client(at, wait_ms);
            }
            _ if self.clients[at].role == Role::Publisher => self.publish_from(at),
            _ => {}
        }
    }

    fn cut(&mut self, a: usize, b: usize, ms: u64) {
        let (pair, until_ms) = ((a.min(b), a.max(b)), self.now_ms + ms);
        self.note(format!("nodes {a} and {b} are separated for {ms} ms"));
        self.cuts.push(Cut { pair, until_ms });
        self.update_blocked();
    }

    /// Fewer than half of the nodes reach neither the others nor the NATS servers.
    fn isolate_some(&mut self) {
        let nodes = self.nodes.len();
        let count = 1 + self.random((nodes - 1) / 2);
        let first = self.random(nodes);
        let ms = 100 + self.random(12_000) as u64;
        let is_inside = |node: usize| (node + nodes - first) % nodes < count;
        for a in (0..nodes).filter(|&a| is_inside(a)) {
            self.nodes[a].has_servers = false;
            for b in (0..nodes).filter(|&b| !is_inside(b)) {
                self.cut(a, b, ms);
            }
        }
        self.isolated_until_ms = self.isolated_until_ms.max(self.now_ms + ms);
    }

    /// The node ends at once; what is not in its log is lost.
    fn kill_node(&mut self, node: usize) {
        if !self.runs(node) {
            return;
        }
        self.note(format!("node {node} is killed"));
        self.end_node(node, true);
        let ms = 200 + self.random(12_000) as u64;
        self.nodes[node].start_at_ms = Some(self.now_ms + ms);
    }

    fn end_node(&mut self, node: usize, loses_messages: bool) {
        if self.nodes[node].has_adopted {
            self.record_end_of_adopter();
        }
        self.cluster.collect();
        self.forget_connections(node);
        self.end_standbys(node);
        let dir = self.cluster.nodes[node].kill();
        let state = &mut self.nodes[node];
        state.dir = Some(dir);
        state.run = 0;
        state.is_ready = false;
        state.is_listening = false;
        state.is_draining = false;
        state.has_forwarded = false;
        state.frozen_until_ms = None;
        let now_ms = self.cluster.nodes[node].now_ms;
        self.cluster.nodes[node] = Sim::in_cluster(&name(node), 1, 1, false);
        self.cluster.nodes[node].pass_without_timers(now_ms.saturating_sub(1_000_000));
        self.cluster.exits[node].clear();
        for other in 0..self.nodes.len() {
            self.channels[node][other] = None;
            self.cluster.wires[other][node].clear();
            // Some of what it has sent has not left it.
            let sent = self.cluster.wires[node][other].len();
            if loses_messages && sent > 0 {
                let left = self.random(sent + 1);
                self.cluster.wires[node][other].truncate(left);
            }
        }
        self.pending_channels
            .retain(|&(a, b, _)| a != node && b != node);
        self.update_blocked();
    }

    fn start_node(&mut self, node: usize) {
        let dir = self.nodes[node].dir.take().expect("it does not run");
        let seed = self.random(1 << 20) as u64;
        // The clocks of two runs differ.
        let jump_ms = match self.random(3) {
            0 => self.random(4000) as u64,
            _ => 0,
        };
        let now_ms = 1_000_000 + self.now_ms + jump_ms;
        self.note(format!(
            "node {node} starts, its clock is {jump_ms} ms ahead"
        ));
        for other in 0..self.nodes.len() {
            self.cluster.wires[node][other].clear();
            self.cluster.wires[other][node].clear();
            self.heard_ms[node][other] = self.now_ms;
        }
        let opened = Sim::open_with(&name(node), 2, (seed, now_ms), dir, AWAY_TIMEOUT_MS);
        self.cluster.nodes[node] = opened;
        let number = self.next_number();
        let state = &mut self.nodes[node];
        state.run = number;
        state.start_at_ms = None;
        state.started_ms = self.now_ms;
        state.has_restarted = true;
        state.has_adopted = false;
        for client in self.clients.iter_mut().filter(|client| client.home != node) {
            client.unaware.insert(node);
        }
        self.start_standbys(node);
        self.update_blocked();
    }

    fn drain_node(&mut self, node: usize) {
        if !self.acts(node) || !self.nodes[node].is_listening {
            return;
        }
        self.note(format!("node {node} is drained"));
        self.nodes[node].is_draining = true;
        let sim = &mut self.cluster.nodes[node];
        sim.shards[0].node.is_draining.store(true, Relaxed);
        for shard in &mut sim.shards {
            let mut scan = DisconnectScan::new(DisconnectCause::Drain, 1000, 0);
            while let ScanStep::Continue(next) = scan.step(shard) {
                scan = next;
            }
        }
        sim.collect();
    }

    fn end_drain(&mut self, node: usize) {
        self.nodes[node].is_draining = false;
        let shared = &self.cluster.nodes[node].shards[0].node;
        shared.is_draining.store(false, Relaxed);
    }

    /// A node is stopped in order: its log has everything, and the others are told.
    fn stop_node(&mut self, node: usize) {
        self.note(format!("node {node} is stopped"));
        for shard in 0..2 {
            while self.cluster.nodes[node].log_one(shard) {}
        }
        while self.copy_log(node) || self.confirm_copy(node) {}
        self.end_node(node, false);
        for other in 0..self.nodes.len() {
            if other != node && self.acts(other) && self.nodes[other].has_servers {
                self.lose_peer(other, node, PeerLoss::Left);
            }
        }
        let ms = 200 + self.random(8000) as u64;
        self.nodes[node].start_at_ms = Some(self.now_ms + ms);
    }

    /// What has lasted long enough ends.
    pub(super) fn end_faults(&mut self) {
        let now_ms = self.now_ms;
        self.cuts.retain(|cut| cut.until_ms > now_ms);
        if self.isolated_until_ms <= now_ms {
            for node in &mut self.nodes {
                node.has_servers = true;
            }
        }
        for node in 0..self.nodes.len() {
            if self.nodes[node]
                .frozen_until_ms
                .is_some_and(|until_ms| until_ms <= now_ms)
            {
                self.nodes[node].frozen_until_ms = None;
                self.note(format!("node {node} continues"));
                // Its clock has gone on. It has heard of nobody meanwhile.
                let behind_ms =
                    (1_000_000 + now_ms).saturating_sub(self.cluster.nodes[node].now_ms);
                self.cluster.nodes[node].pass_without_timers(behind_ms);
                // It may notice the silence before it reads what has arrived.
                for other in 0..self.nodes.len() {
                    let is_silent = now_ms >= self.heard_ms[node][other] + LEASE_MS;
                    if other != node && is_silent && self.random(2) == 0 {
                        self.lose_peer(node, other, PeerLoss::Silent);
                    }
                }
            }
            if self.nodes[node]
                .start_at_ms
                .is_some_and(|at_ms| at_ms <= now_ms)
            {
                self.start_node(node);
            }
        }
        self.update_blocked();
    }

    /// Everything works again.
    pub(super) fn heal(&mut self) {
        self.note("everything works again".to_owned());
        self.cuts.clear();
        self.isolated_until_ms = 0;
        for node in 0..self.nodes.len() {
            self.nodes[node].slow_log_until_ms = 0;
            if self.nodes[node].frozen_until_ms.is_some() {
                self.nodes[node].frozen_until_ms = Some(0);
            }
            if self.nodes[node].is_draining {
                self.end_drain(node);
            }
        }
        self.update_blocked();
    }
}
