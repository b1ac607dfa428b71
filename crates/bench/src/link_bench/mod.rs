//! `tidegate bench link`: links between two peers of this machine, over TCP connections of the loopback interface.
//!
//! Every message is numbered, and the receiver checks the numbers; the link verifies the checksum of every frame. Plain TCP
//! is measured in the same run, with the same messages, cores and sizes of writes.

mod latency;
mod lossy_network;
mod network;
mod peer_process;
mod peers;
mod plain_tcp;
mod throughput;

use std::process::ExitCode;

/// What to measure.
#[derive(clap::Subcommand, Clone, Debug)]
pub(crate) enum LinkScenario {
    /// Messages and bytes per second for several sizes, compared with plain TCP
    Throughput(throughput::LinkThroughputScenario),
    /// Latency of small messages while a stream uses the whole connection
    Latency(latency::LinkLatencyScenario),
    /// A long round trip, outages, packet loss and a stalled reader, through a proxy
    Network(network::LinkNetworkScenario),
    /// A peer of `throughput`, which starts it
    #[command(hide = true)]
    Peer(peer_process::PeerArgs),
}

impl LinkScenario {
    /// Runs the scenario, and returns the exit status.
    pub(crate) fn run(&self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Throughput(scenario) => scenario.run(),
            Self::Latency(scenario) => scenario.run(),
            Self::Network(scenario) => scenario.run(),
            Self::Peer(arguments) => peer_process::run(arguments).map(|()| ExitCode::SUCCESS),
        }
    }
}
