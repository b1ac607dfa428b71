//! Nodes are killed and frozen, and the NATS server is killed, again and again while clients exchange messages: nothing that
//! was acknowledged is lost.
//!
//! `TIDEGATE_TEST_KILLS=200` sets the number of disturbances; the test takes about 12 s for each.

use std::time::Duration;

use super::support::Cluster;
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
}

impl Disturbance {
    fn choose(random: &mut Random) -> Self {
        match random.below(6) {
            0 | 1 => Self::ShortKill,
            2 | 3 => Self::LongKill,
            4 => Self::Freeze,
            _ => Self::NatsKill,
        }
    }

    fn apply(self, cluster: &mut Cluster, trial: &Trial, index: usize) {
        let node = &mut cluster.nodes[index];
        match self {
            Self::ShortKill | Self::LongKill => {
                node.signal(libc::SIGKILL);
                assert!(node.wait(Duration::from_secs(10)).is_some());
                let pause_ms = if matches!(self, Self::ShortKill) {
                    1000
                } else {
                    7000
                };
                std::thread::sleep(Duration::from_millis(pause_ms));
                node.start_again();
                trial.set_address(index, node);
            }
            Self::Freeze => {
                node.signal(libc::SIGSTOP);
                std::thread::sleep(Duration::from_secs(7));
                node.signal(libc::SIGCONT);
            }
            Self::NatsKill => {
                cluster.nats().kill();
                std::thread::sleep(Duration::from_secs(1));
                cluster.nats().start();
            }
        }
    }
}

#[test]
fn nothing_acknowledged_is_lost_when_nodes_and_nats_fail() {
    let kills = std::env::var("TIDEGATE_TEST_KILLS").ok();
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
            let disturbance = Disturbance::choose(&mut random);
            eprintln!("{disturbance:?} of node-{}", index + 1);
            disturbance.apply(cluster, trial, index);
            cluster.wait_until_connected();
            cluster.wait_for_standbys();
        }
    });
    eprintln!("{kills} disturbances: {summary}");
}
