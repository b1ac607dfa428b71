//! Options that several scenarios share: the broker, the load, what to do with the result.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::endpoint::{ComparisonBroker, Endpoint, SourceAddresses};
use crate::metrics::Assertion;
use crate::units;

/// Version of the protocol to speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProtocolVersion {
    #[value(name = "3.1")]
    V31,
    #[value(name = "3.1.1")]
    V311,
    #[value(name = "5", alias = "5.0")]
    V5,
}

impl ProtocolVersion {
    /// As the codec names it.
    pub(crate) fn codec(self) -> mqtt::Version {
        match self {
            Self::V31 => mqtt::Version::V31,
            Self::V311 => mqtt::Version::V311,
            Self::V5 => mqtt::Version::V5,
        }
    }
}

/// Which broker, and how to get in.
/// The options of a scenario that runs a load.
#[derive(Args, Clone, Debug)]
pub(crate) struct LoadScenarioArgs {
    #[command(flatten)]
    pub(crate) load: LoadArgs,
    #[command(flatten)]
    pub(crate) pace: PaceArgs,
    #[command(flatten)]
    pub(crate) clients: ClientArgs,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Broker")]
pub(crate) struct TargetArgs {
    /// The broker: HOST:PORT for plain MQTT, or mqtt://HOST:PORT, mqtts://HOST:PORT, ws://HOST:PORT/PATH or wss://...
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:1883")]
    pub(crate) broker: Endpoint,
    /// Where subscribers connect to instead, such as another node of the same cluster
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) subscriber_broker: Option<Endpoint>,
    /// The broker's process on this machine: measures its processor time and memory. Those of several, such as the nodes of
    /// a cluster and its NATS servers, are added
    #[arg(long, value_name = "PID,...", value_delimiter = ',')]
    pub(crate) broker_pid: Vec<u32>,
    /// A second broker to alternate with; prints the ratio of the first to the second
    #[arg(long, value_name = "ADDRESS[,PID,...]")]
    pub(crate) versus: Option<ComparisonBroker>,
    /// Number of measurements of each broker, in turn [default: 1; for comparisons: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: Option<u32>,
    /// User name to connect with; {number} in it becomes the number of each client, from 0 on
    #[arg(long, value_name = "NAME")]
    pub(crate) username: Option<String>,
    /// Password to connect with
    #[arg(long, value_name = "TEXT")]
    pub(crate) password: Option<String>,
    /// Local addresses to connect from in turn, e.g. 127.0.0.1-127.0.0.50 (one address has some 28,000 ports)
    #[arg(long, value_name = "ADDRESSES")]
    pub(crate) source_addresses: Option<SourceAddresses>,
    /// PEM file with the authorities of the broker's certificate
    #[arg(long, value_name = "FILE")]
    pub(crate) cafile: Option<PathBuf>,
    /// PEM file with the client certificate
    #[arg(long, value_name = "FILE", requires = "key")]
    pub(crate) cert: Option<PathBuf>,
    /// Private key of --cert (PEM)
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub(crate) key: Option<PathBuf>,
    /// Accept any certificate of the broker
    #[arg(long, conflicts_with = "cafile")]
    pub(crate) insecure: bool,
    /// Name to expect in the broker's certificate, if not the host of --broker
    #[arg(long, value_name = "NAME")]
    pub(crate) server_name: Option<String>,
}

/// How the clients behave, whatever they connect to.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Clients")]
pub(crate) struct ClientArgs {
    /// MQTT version
    #[arg(long, value_enum, default_value = "3.1.1")]
    pub(crate) version: ProtocolVersion,
    /// Start of every client identifier
    #[arg(long, value_name = "TEXT", default_value = "bench")]
    pub(crate) client_prefix: String,
    /// Keep-alive interval in whole seconds, 0s for none (pings are sent at half of it)
    #[arg(long, value_name = "TIME", default_value = "300s", value_parser = units::parse_duration)]
    pub(crate) keep_alive: Duration,
    /// Subscribers have sessions that outlive their connections for an hour, which a broker may have to keep on disk
    #[arg(long)]
    pub(crate) lasting_sessions: bool,
    /// Connections to make at a time [default: 100; connect: 1000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) concurrency: Option<u32>,
    /// Longest time from the first packet of a connection to its CONNACK
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::parse_duration)]
    pub(crate) connect_timeout: Duration,
    /// Threads among which the groups of clients are divided; one sends millions of messages per second
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) threads: u32,
}

/// What to send and for how long.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Load")]
pub(crate) struct LoadArgs {
    /// Quality of service, of publishers and subscribers
    #[arg(long, value_name = "0|1|2", default_value_t = 0,
          value_parser = clap::value_parser!(u8).range(0..=2))]
    pub(crate) qos: u8,
    /// Size of each payload, at least 24 bytes
    #[arg(long, value_name = "BYTES", default_value = "64", value_parser = units::parse_bytes)]
    pub(crate) payload: usize,
    /// Time to run before measuring
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = units::parse_duration)]
    pub(crate) warmup: Duration,
    /// Time to measure
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::parse_duration)]
    pub(crate) duration: Duration,
    /// How long to wait at the end with nothing arriving, before what is missing counts as lost
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = units::parse_duration)]
    pub(crate) drain: Duration,
}

/// How fast to send where a scenario leaves the choice.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Load")]
pub(crate) struct PaceArgs {
    /// Messages of a publisher that its slowest subscriber has not received, or at QoS 1 and 2 the broker has not
    /// acknowledged [default: 200; fanin and fanout: 20]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub(crate) window: Option<u32>,
    /// Send this many messages per second in total instead, without waiting for answers; latency is measured from the
    /// time at which a message was due
    #[arg(long, value_name = "PER_SECOND", value_parser = units::parse_rate, conflicts_with = "window")]
    pub(crate) rate: Option<f64>,
    /// With --rate: send the messages of each interval of this length together at its end, like devices that collect readings
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = units::parse_duration, requires = "rate")]
    pub(crate) tick: Duration,
}

/// Where the result goes and what it must satisfy.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Result")]
pub(crate) struct OutputArgs {
    /// Condition on a metric, such as 'p99<5ms' or 'lost==0'; exit status 1 if it does not hold (repeatable)
    #[arg(long = "assert", value_name = "METRIC<VALUE")]
    pub(crate) asserts: Vec<Assertion>,
    /// Write the result as JSON, `-` for standard output instead of the table
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write a report with plots as one HTML file
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// Draw the broker's memory over time as an SVG file (needs --broker-pid)
    #[arg(long, value_name = "FILE")]
    pub(crate) memory_plot: Option<PathBuf>,
    /// Write the data of the plot as CSV: seconds, bytes, messages per second
    #[arg(long, value_name = "FILE")]
    pub(crate) memory_csv: Option<PathBuf>,
    /// Show no progress
    #[arg(long, short)]
    pub(crate) quiet: bool,
}
