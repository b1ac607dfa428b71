//! `tidegate bench link throughput`.

use std::process::ExitCode;
use std::time::Duration;

use super::peer_process::{LinkLoad, LinkSubject, PeerMeasurement, measure};
use crate::measured_cases::{CaseOutputArgs, MeasuredCase, MeasuredCases};
use crate::metrics::MetricValues;
use crate::units;

/// Sizes and connections of a published report, and larger messages.
const LOADS: [(usize, usize); 6] = [
    (512, 5),
    (50_000, 3),
    (1_000_000, 2),
    (5_000_000, 1),
    (50_000_000, 1),
    (1_000_000_000, 1),
];

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct LinkThroughputScenario {
    /// Size of each message, repeatable [default: 512B over 5 connections, 50kB over 3, 1MB over 2, then 5MB, 50MB and
    /// 1GB]
    #[arg(long, value_name = "BYTES", value_parser = units::parse_size)]
    size: Vec<usize>,
    /// Connections [default: as above; 1 for other sizes]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: Option<u32>,
    /// Threads of each peer, among which the connections are divided
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: u32,
    /// Time to send
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::parse_duration)]
    duration: Duration,
    /// Times to measure plain TCP and the link, in turn
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Measure plain TCP with the send buffer of links: 160 KiB over the loopback interface. By default the system chooses it
    #[arg(long)]
    tcp_link_buffer: bool,
    #[command(flatten)]
    output: CaseOutputArgs,
}

impl LinkThroughputScenario {
    pub(super) fn run(&self) -> anyhow::Result<ExitCode> {
        let mut outcome = MeasuredCases::new(&self.output);
        outcome.print(&format!(
            "{:>12} {:>5} {:>10} {:>12} {:>10} {:>6} {:>11} {:>7} {:>9} {:>11}",
            "size",
            "conn.",
            "link MB/s",
            "messages/s",
            "TCP MB/s",
            "ratio",
            "ratio (CPU)",
            "sender",
            "receiver",
            "memory MB"
        ));
        let plain_tcp = match self.tcp_link_buffer {
            true => LinkSubject::TunedTcp,
            false => LinkSubject::PlainTcp,
        };
        for (size, connections) in self.loads() {
            let load = LinkLoad {
                size,
                connections,
                threads: (self.threads as usize).min(connections),
                duration: self.duration,
            };
            let (mut tcp, mut link) = (PeerMeasurement::default(), PeerMeasurement::default());
            for _ in 0..self.rounds {
                tcp.add_round(&measure(&load, plain_tcp)?);
                link.add_round(&measure(&load, LinkSubject::Link)?);
            }
            let measures = measures(&tcp, &link);
            let line = line(&load, &measures);
            let name = format!("{size} B x {connections}");
            outcome.add(MeasuredCase { name, measures }, &line);
        }
        outcome.finish("link throughput")
    }

    /// Sizes and connections to measure.
    fn loads(&self) -> Vec<(usize, usize)> {
        let known = |size: usize| LOADS.iter().find(|(known, _)| *known == size);
        let usual = |size: usize| known(size).map_or(1, |(_, connections)| *connections);
        let sizes: Vec<usize> = match &self.size[..] {
            [] => LOADS.iter().map(|(size, _)| *size).collect(),
            sizes => sizes.to_vec(),
        };
        let connections = |size| self.connections.map_or(usual(size), |count| count as usize);
        sizes
            .into_iter()
            .map(|size| (size, connections(size)))
            .collect()
    }
}

fn measures(tcp: &PeerMeasurement, link: &PeerMeasurement) -> MetricValues {
    let rate = |it: &PeerMeasurement| it.received.bytes as f64 / it.received.seconds.max(1e-9);
    let per_cpu_second =
        |it: &PeerMeasurement| it.received.bytes as f64 / (it.sender.cpu_s + it.receiver.cpu_s);
    let seconds = link.received.seconds.max(1e-9);
    let mut measures = MetricValues::default();
    for (name, value) in [
        ("throughput", link.received.messages as f64 / seconds),
        ("payload_rate", rate(link)),
        ("received", link.received.messages as f64),
        ("seconds", link.received.seconds),
        ("faults", link.received.faults as f64),
        ("tcp_rate", rate(tcp)),
        ("ratio_throughput", rate(link) / rate(tcp)),
        (
            "ratio_per_cpu_second",
            per_cpu_second(link) / per_cpu_second(tcp),
        ),
        ("bytes_per_cpu_second", per_cpu_second(link)),
        ("sender_cpu", link.sender.cpu_s / seconds),
        ("receiver_cpu", link.receiver.cpu_s / seconds),
        ("sender_memory", link.sender.memory_bytes as f64),
        ("receiver_memory", link.receiver.memory_bytes as f64),
    ] {
        measures.set(name, value);
    }
    measures
}

fn line(load: &LinkLoad, measures: &MetricValues) -> String {
    let value = |name: &str| measures.get(name).unwrap_or(f64::NAN);
    format!(
        "{:>12} {:>5} {:>10.0} {:>12.0} {:>10.0} {:>6.2} {:>11.2} {:>5.0} % {:>7.0} % {:>5.1}/{:.1}",
        load.size,
        load.connections,
        value("payload_rate") / 1e6,
        value("throughput"),
        value("tcp_rate") / 1e6,
        value("ratio_throughput"),
        value("ratio_per_cpu_second"),
        value("sender_cpu") * 100.0,
        value("receiver_cpu") * 100.0,
        value("sender_memory") / 1e6,
        value("receiver_memory") / 1e6,
    )
}
