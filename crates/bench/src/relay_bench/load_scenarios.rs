//! Loads whose result has the form of all others: `fanout`, `pairs` and `connections`.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::ensure;

use super::delivery_verifier::RelayShape;
use super::generator::RelayLoad;
use super::generator_run::run_load;
use super::message_template::{MessageTemplate, RelayMode};
use super::server::{EndpointSet, RelayServer, RelayServerArgs, definition};
use crate::alternation::run_alternating;
use crate::args::OutputArgs;
use crate::report::LoadReport;
use crate::round_outcome::{MeasuredSubject, RoundOutcome};
use crate::units;
use crate::worker::LoadPace;

/// clap value parser: a number of connections or endpoints.
fn parse_connections(text: &str) -> Result<usize, String> {
    let count = units::Unit::Count.parse(text)?;
    if !(1.0..=1e6).contains(&count) || count.fract() != 0.0 {
        return Err(format!(
            "`{text}` is not a whole number from 1 to 1,000,000"
        ));
    }
    Ok(count as usize)
}

/// What is sent, and for how long.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Load")]
struct RelayLoadArgs {
    /// Mode of the endpoints
    #[arg(long, value_enum, default_value = "direct")]
    mode: RelayMode,
    /// Size of each message, at least 51 bytes (in mode json 106)
    #[arg(long, value_name = "BYTES", default_value = "64", value_parser = units::parse_bytes)]
    payload: usize,
    /// Time to run before measuring
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::parse_duration)]
    warmup: Duration,
    /// Time to measure
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::parse_duration)]
    duration: Duration,
    /// How long to wait at the end with nothing arriving, before what is missing counts as lost
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = units::parse_duration)]
    drain: Duration,
    /// Connections to make at a time
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    concurrency: u32,
    /// Longest time until a connection is accepted
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::parse_duration)]
    connect_timeout: Duration,
    /// Times to measure each relay, in turn [default: 1; with --versus: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
}

/// How fast to send.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Load")]
struct RelayPaceArgs {
    /// Messages that a sender may have sent and its slowest receiver has not received
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=65_535))]
    window: u32,
    /// Send this many messages per second in total instead, without waiting for receivers; latency is measured from the
    /// time at which a message was due
    #[arg(long, value_name = "PER_SECOND", value_parser = units::parse_rate, conflicts_with = "window")]
    rate: Option<f64>,
}

impl RelayPaceArgs {
    fn pace(&self) -> LoadPace {
        match self.rate {
            Some(per_second) => LoadPace::Rate {
                per_second,
                tick_ns: 0,
            },
            None => LoadPace::Window(u64::from(self.window)),
        }
    }
}

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct RelayFanOutScenario {
    /// Receivers of an endpoint; throughput counts every delivery
    #[arg(long, value_name = "N", default_value = "200", value_parser = parse_connections)]
    receivers: usize,
    /// Endpoints, each with one sender
    #[arg(long, value_name = "N", default_value = "1", value_parser = parse_connections)]
    endpoints: usize,
    #[command(flatten)]
    load: RelayLoadArgs,
    #[command(flatten)]
    pace: RelayPaceArgs,
    #[command(flatten)]
    relay: RelayServerArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct RelayPairsScenario {
    /// Endpoints with one sender and one receiver each
    #[arg(long, value_name = "N", default_value = "100", value_parser = parse_connections)]
    pairs: usize,
    #[command(flatten)]
    load: RelayLoadArgs,
    #[command(flatten)]
    pace: RelayPaceArgs,
    #[command(flatten)]
    relay: RelayServerArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct RelayConnectionsScenario {
    /// Connections of all endpoints together
    #[arg(long, value_name = "N", default_value = "10000", value_parser = parse_connections)]
    connections: usize,
    /// Endpoints to spread the connections over; one connection of each sends
    #[arg(long, value_name = "N", default_value = "100", value_parser = parse_connections)]
    endpoints: usize,
    /// Deliveries per second in total
    #[arg(long, value_name = "PER_SECOND", default_value = "50k", value_parser = units::parse_rate)]
    deliveries: f64,
    /// Time for which all connections are idle, before memory is read and messages are sent
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = units::parse_duration)]
    hold: Duration,
    #[command(flatten)]
    load: RelayLoadArgs,
    #[command(flatten)]
    relay: RelayServerArgs,
    #[command(flatten)]
    output: OutputArgs,
}

impl RelayFanOutScenario {
    pub(super) fn run(&self) -> anyhow::Result<ExitCode> {
        RelayLoadRun {
            name: "relay fanout",
            shape: RelayShape {
                endpoints: self.endpoints,
                senders: 1,
                receivers: self.receivers,
                slow_receivers: 0,
            },
            pace: self.pace.pace(),
            hold: None,
            load: &self.load,
            relay: &self.relay,
            output: &self.output,
        }
        .run()
    }
}

impl RelayPairsScenario {
    pub(super) fn run(&self) -> anyhow::Result<ExitCode> {
        RelayLoadRun {
            name: "relay pairs",
            shape: RelayShape {
                endpoints: self.pairs,
                senders: 1,
                receivers: 1,
                slow_receivers: 0,
            },
            pace: self.pace.pace(),
            hold: None,
            load: &self.load,
            relay: &self.relay,
            output: &self.output,
        }
        .run()
    }
}

impl RelayConnectionsScenario {
    pub(super) fn run(&self) -> anyhow::Result<ExitCode> {
        let each = self.connections / self.endpoints;
        ensure!(
            each >= 2 && self.connections.is_multiple_of(self.endpoints),
            "--connections {} cannot be divided into --endpoints {} with the same number of connections, at least 2 each",
            self.connections,
            self.endpoints
        );
        RelayLoadRun {
            name: "relay connections",
            shape: RelayShape {
                endpoints: self.endpoints,
                senders: 1,
                receivers: each - 1,
                slow_receivers: 0,
            },
            pace: LoadPace::Rate {
                per_second: self.deliveries / (each - 1) as f64,
                tick_ns: 0,
            },
            hold: Some(self.hold),
            load: &self.load,
            relay: &self.relay,
            output: &self.output,
        }
        .run()
    }
}

/// A load to run, and the options it came from.
struct RelayLoadRun<'a> {
    name: &'static str,
    shape: RelayShape,
    pace: LoadPace,
    /// Idle time before the load, if memory is measured then.
    hold: Option<Duration>,
    load: &'a RelayLoadArgs,
    relay: &'a RelayServerArgs,
    output: &'a OutputArgs,
}

impl RelayLoadRun<'_> {
    /// Measures one relay, or two in turn, and delivers the report.
    fn run(&self) -> anyhow::Result<ExitCode> {
        let options = self.load;
        ensure!(
            !options.duration.is_zero(),
            "--duration must be more than 0 s"
        );
        let load = RelayLoad {
            shape: self.shape,
            template: MessageTemplate::new(options.mode, options.payload)?,
            pace: self.pace,
            concurrency: options.concurrency as usize,
            connect_timeout_ns: options.connect_timeout.as_nanos() as u64,
            hold_ns: self.hold.map_or(0, |hold| hold.as_nanos() as u64),
            warmup_ns: options.warmup.as_nanos() as u64,
            duration_ns: options.duration.as_nanos() as u64,
            quiet_ns: options.drain.as_nanos() as u64,
        };
        let servers = self.relay.servers()?;
        let labels: Vec<String> = servers.iter().map(|server| server.label.clone()).collect();
        let rounds = options
            .rounds
            .unwrap_or(if servers.len() > 1 { 3 } else { 1 });
        let sides = run_alternating(&labels, rounds, |number, title| {
            self.measure(&servers[number], &load, title)
        })?;
        LoadReport::new(self.name, self.settings(rounds, &labels[0]), sides)
            .write_and_finish(self.output)
    }

    fn measure(
        &self,
        server: &RelayServer,
        load: &RelayLoad,
        title: String,
    ) -> anyhow::Result<RoundOutcome> {
        let fields = definition(
            self.load.mode,
            self.shape.connections_per_endpoint(),
            self.load.payload,
        );
        let endpoints = EndpointSet::create(server, self.shape.endpoints, &fields)?;
        let run = run_load(server, &endpoints.ids, load, title, self.output.quiet)?;
        let payload_bytes = load.template.len();
        Ok(RoundOutcome {
            subject: match self.hold {
                Some(_) => MeasuredSubject::HeldConnections {
                    connections: self.shape.connections(),
                    payload_bytes,
                },
                None => MeasuredSubject::Messages { payload_bytes },
            },
            tally: run.counts,
            observations: run.observations,
        })
    }

    fn settings(&self, rounds: u32, label: &str) -> Vec<(String, String)> {
        let shape = self.shape;
        let mut settings = vec![
            ("relay", label.to_owned()),
            ("endpoints", shape.endpoints.to_string()),
            ("receivers", shape.receivers.to_string()),
            match self.pace {
                LoadPace::Rate { per_second, .. } => ("rate", format!("{per_second:.1}/s")),
                LoadPace::Window(window) | LoadPace::Stored { window, .. } => {
                    ("window", window.to_string())
                }
            },
            ("mode", self.load.mode.name().to_owned()),
            ("payload", format!("{} B", self.load.payload)),
            ("warm-up", format!("{} s", self.load.warmup.as_secs_f64())),
            (
                "duration",
                format!("{} s", self.load.duration.as_secs_f64()),
            ),
            ("rounds", rounds.to_string()),
        ];
        if let Some(hold) = self.hold {
            settings.push(("hold", format!("{} s", hold.as_secs_f64())));
        }
        let settings = settings.into_iter();
        settings
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }
}
