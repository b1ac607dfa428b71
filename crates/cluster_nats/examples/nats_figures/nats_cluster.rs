//! Three servers with one node each, and the processor time of all.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use cluster::NodeName;
use cluster_nats::{ManagedNats, ManagedNatsSettings, NatsFabric, NatsState, NatsSync};
use hdrhistogram::Histogram;
use secret::Secret;

use crate::Options;

const NAMES: [&str; 3] = ["a", "b", "c"];

pub(crate) struct NatsCluster {
    pub(crate) servers: Vec<ManagedNats>,
    pub(crate) fabrics: Vec<NatsFabric>,
    _directory: tempfile::TempDir,
}

impl NatsCluster {
    /// Starts `servers` servers; `sync_ms=0` stands for a sync before each acknowledgement.
    pub(crate) async fn start(options: &Options) -> Self {
        let directory = tempfile::tempdir().expect("a directory can be created");
        let count = options.number("servers", 3) as usize;
        let sync = match options.number("sync_ms", 0) {
            0 => NatsSync::Always,
            interval_ms => NatsSync::Interval(Duration::from_millis(interval_ms)),
        };
        let listeners: Vec<TcpListener> = (0..count)
            .map(|_| TcpListener::bind("127.0.0.1:0").expect("a port is free"))
            .collect();
        let peers: Vec<String> = listeners
            .iter()
            .map(|listener| listener.local_addr().expect("it is bound").to_string())
            .collect();
        drop(listeners);
        let mut nodes = Self {
            servers: Vec::new(),
            fabrics: Vec::new(),
            _directory: directory,
        };
        for (name, peer) in NAMES.iter().zip(&peers) {
            let node = NodeName::new(name).expect("the name is valid");
            let settings = ManagedNatsSettings {
                program: Some(options.program.clone()),
                listen: peer.clone(),
                peers: peers.clone(),
                sync,
                ..ManagedNatsSettings::new(
                    nodes._directory.path().join(name),
                    "figures",
                    node.clone(),
                    Secret::from("secret of the figures"),
                )
            };
            let server = ManagedNats::start(settings).await.expect("a server starts");
            let fabric = NatsFabric::connect(server.connection(), &node)
                .await
                .expect("the settings are right");
            nodes.servers.push(server);
            nodes.fabrics.push(fabric);
        }
        let began = Instant::now();
        for fabric in &nodes.fabrics {
            while !(fabric.status().state == NatsState::Ready
                && fabric.status().are_links_connected)
            {
                assert!(
                    began.elapsed() < Duration::from_secs(60),
                    "{:?}",
                    fabric.status()
                );
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        nodes
    }

    /// Processor time of this process and of all servers.
    pub(crate) fn cpu(&self) -> CpuTime {
        let servers = self.servers.iter();
        CpuTime {
            nodes: own_cpu(),
            servers: servers
                .map(|server| Duration::from_millis(server.status().cpu_ms.unwrap_or_default()))
                .sum(),
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct CpuTime {
    pub(crate) nodes: Duration,
    pub(crate) servers: Duration,
}

impl CpuTime {
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            nodes: self.nodes - before.nodes,
            servers: self.servers - before.servers,
        }
    }

    pub(crate) fn seconds(self) -> f64 {
        (self.nodes + self.servers).as_secs_f64()
    }
}

impl std::fmt::Display for CpuTime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "CPU {:.2} s nodes, {:.2} s servers",
            self.nodes.as_secs_f64(),
            self.servers.as_secs_f64()
        )
    }
}

fn own_cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let (_, rest) = text.rsplit_once(')').expect("the name is in parentheses");
    let fields: Vec<u64> = rest
        .split_ascii_whitespace()
        .skip(11)
        .take(2)
        .map(|field| field.parse().expect("a number"))
        .collect();
    Duration::from_millis((fields[0] + fields[1]) * 10)
}

pub(crate) fn new_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 600_000_000, 3).expect("ten minutes in microseconds are possible")
}

pub(crate) fn percentiles(histogram: &Histogram<u64>) -> String {
    let ms = |percentile| histogram.value_at_quantile(percentile) as f64 / 1000.0;
    format!(
        "p50 {:.2} ms, p99 {:.2} ms, max {:.2} ms",
        ms(0.5),
        ms(0.99),
        histogram.max() as f64 / 1000.0
    )
}
