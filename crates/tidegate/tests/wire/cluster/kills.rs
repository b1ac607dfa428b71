//! Nodes are killed, frozen and restarted, and the NATS server is killed, again and again while clients exchange messages:
//! nothing that was acknowledged is lost.
//!
//! `TIDEGATE_TEST_KILLS=200` sets the number of disturbances; the test takes about 12 s for each.

use std::time::Duration;

use super::support::{Cluster, change_drain};
use super::trial::{self, Trial};
use crate::support::Random;

/// What happens to the cluster.
#[derive(Debug, Clone, Copy)]
enum Disturbance {
    /// A node is killed, and starts again before anybody has noticed.
    ShortKill,
    /// A node is killed, and starts again when its sessions are adopted.
    LongKill,
    /// A node is stopped by a signal, and continues when its sessions are adopted: it does not know that it was away.
    Freeze,
    /// The NATS server is killed, and starts again.
    NatsKill,
    /// A node and the NATS server are killed at once, and start again.
    KillWithNats,
    /// Two nodes are killed at once, and start again before the third one has noticed.
    KillOfTwo,
    /// A node is drained, stopped and started again, as for an upgrade.
    Restart,
}

impl Disturbance {
    /// `is_long`: also those that concern several processes at once or in order, which need many runs to show anything.
    fn choose(random: &mut Random, is_long: bool) -> Self {
        match random.below(if is_long { 9 } else { 6 }) {
            0 | 1 => Self::ShortKill,
            2 | 3 => Self::LongKill,
            4 => Self::Freeze,
            5 => Self::NatsKill,
            6 => Self::KillWithNats,
            7 => Self::KillOfTwo,
            _ => Self::Restart,
        }
    }

    fn apply(self, cluster: &mut Cluster, trial: &Trial, index: usize) {
        let killed: &[usize] = match self {
            Self::ShortKill | Self::LongKill | Self::KillWithNats => &[index],
            Self::KillOfTwo => &[index, (index + 1) % cluster.nodes.len()],
            Self::Freeze => {
                let node = &cluster.nodes[index];
                node.signal(libc::SIGSTOP);
                std::thread::sleep(Duration::from_secs(7));
                node.signal(libc::SIGCONT);
                &[]
            }
            Self::NatsKill => &[],
            Self::Restart => return restart(cluster, trial, index),
        };
        let kills_nats = matches!(self, Self::NatsKill | Self::KillWithNats);
        for &index in killed {
            cluster.nodes[index].signal(libc::SIGKILL);
        }
        if kills_nats {
            cluster.nats().kill();
        }
        for &index in killed {
            let status = cluster.nodes[index].wait(Duration::from_secs(10));
            assert!(status.is_some());
        }
        let pause_s = if matches!(self, Self::LongKill) { 7 } else { 1 };
        std::thread::sleep(Duration::from_secs(pause_s));
        if kills_nats {
            cluster.nats().start();
        }
        for &index in killed {
            start_again(cluster, trial, index);
        }
    }
}

fn start_again(cluster: &mut Cluster, trial: &Trial, index: usize) {
    let node = &mut cluster.nodes[index];
    node.start_again();
    trial.set_address(index, node);
}

/// What an operator does for an upgrade, see `docs/guides/cluster.md`.
fn restart(cluster: &mut Cluster, trial: &Trial, index: usize) {
    let name = format!("node-{}", index + 1);
    let drained = change_drain(&cluster.nodes[index], "POST", &name);
    assert_eq!(drained.status, 204, "{}", drained.body);
    std::thread::sleep(Duration::from_secs(2));
    let node = &mut cluster.nodes[index];
    node.signal(libc::SIGTERM);
    assert!(node.wait(Duration::from_secs(30)).is_some());
    start_again(cluster, trial, index);
}

#[test]
fn nothing_acknowledged_is_lost_when_nodes_and_nats_fail() {
    let kills = std::env::var("TIDEGATE_TEST_KILLS").ok();
    let is_long = kills.is_some();
    let kills: usize = kills.map_or(2, |kills| kills.parse().expect("a number of kills"));
    let _alone = trial::run_alone();
    let Some(mut cluster) = Cluster::start_with_standbys_or_skip(3) else {
        return;
    };
    cluster.wait_for_standbys();
    let seed = Random::seed();
    let mut random = Random::new(seed);
    let summary = Trial::run(&mut cluster, seed, |cluster, trial| {
        for _ in 0..kills {
            if trial.has_lost_sessions() {
                break;
            }
            std::thread::sleep(Duration::from_millis(500 + random.below(1500) as u64));
            let index = random.below(3);
            let disturbance = Disturbance::choose(&mut random, is_long);
            eprintln!("{disturbance:?} of node-{}", index + 1);
            disturbance.apply(cluster, trial, index);
            cluster.wait_until_connected();
            cluster.wait_for_standbys();
        }
    });
    eprintln!("{kills} disturbances: {summary}");
}
