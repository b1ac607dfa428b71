//! The scenarios. A new one is a file here and a line in [`Scenario`].

mod connect;
mod fanin;
mod fanout;
mod filters;
mod generator;
mod offline;
mod p2p;
mod rate;
mod rules;

pub(crate) use offline::Offline;

use std::ops::Range;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::ensure;

use crate::access::Access;
use crate::args::{ClientArgs, LoadArgs, OutputArgs, PaceArgs, TargetArgs};
use crate::host::allow_open_files;
use crate::observer::Observer;
use crate::outcome::{Outcome, Subject};
use crate::packets::Body;
use crate::report::{Report, Side};
use crate::rounds::alternate;
use crate::shape::{Shape, Spread, Topics};
use crate::worker::{Clients, LoadPlan, Pace, run_threads};

/// What to do to an MQTT broker.
#[derive(clap::Subcommand, Clone, Debug)]
pub(crate) enum Scenario {
    /// Pairs of one publisher and one subscriber, each with a topic of its own
    P2p(p2p::P2p),
    /// Many publishers, one subscriber that reads them all through a wildcard
    Fanin(fanin::FanIn),
    /// One publisher, many subscribers that all get every message
    Fanout(fanout::FanOut),
    /// Pairs at a fixed total rate, for latency
    Rate(rate::Rate),
    /// Many connections, so many at a time, then held; how long each takes and what memory it costs
    Connect(connect::Connect),
    /// What many different filters cost, against one for each pair
    Filters(filters::Filters),
    /// Clients that come, subscribe and leave; messages stored for them; how fast they get them when they come back
    Offline(Offline),
    /// Rules that publish what they make of messages (also written `--rules`)
    #[command(long_flag = "rules")]
    Rules(rules::Rules),
    /// What the generator itself can do, without a broker
    #[command(name = "self")]
    Generator(generator::Generator),
}

impl Scenario {
    /// Runs it and says how the process should end.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::P2p(scenario) => scenario.run(),
            Self::Fanin(scenario) => scenario.run(),
            Self::Fanout(scenario) => scenario.run(),
            Self::Rate(scenario) => scenario.run(),
            Self::Connect(scenario) => scenario.run(),
            Self::Filters(scenario) => scenario.run(),
            Self::Offline(scenario) => scenario.run(),
            Self::Rules(scenario) => scenario.run(),
            Self::Generator(scenario) => scenario.run(),
        }
    }
}

/// clap value parser: a number of clients, pairs or groups.
fn clients(text: &str) -> Result<usize, String> {
    let count = crate::units::Unit::Count.parse(text)?;
    if !(1.0..=1e6).contains(&count) || count.fract() != 0.0 {
        return Err(format!(
            "`{text}` is not a whole number from 1 to 1,000,000"
        ));
    }
    Ok(count as usize)
}

/// Spreading a load over many different filters.
#[derive(clap::Args, Clone, Debug)]
struct SpreadArgs {
    /// Different filters that the subscribers hold in total, each matched by one topic; publishers cycle through
    /// the topics
    #[arg(long, value_name = "N", value_parser = clients)]
    filters: Option<usize>,
    /// Share of --filters that have a wildcard
    #[arg(long, value_name = "PERCENT", default_value = "0%", value_parser = crate::units::fraction,
          requires = "filters")]
    wildcards: f64,
}

impl SpreadArgs {
    fn topics(&self) -> Topics {
        let wildcards = self.wildcards;
        match self.filters {
            Some(filters) => Topics::Spread(Spread { filters, wildcards }),
            None => Topics::PerPublisher,
        }
    }
}

/// Where one side of a comparison connects to.
struct Target {
    label: String,
    access: Access,
    pid: Option<u32>,
}

/// The broker, and the one to compare it with if there is one.
fn targets(clients: &ClientArgs, args: &TargetArgs) -> anyhow::Result<Vec<Target>> {
    let mut targets = vec![Target {
        label: args.broker.to_string(),
        access: Access::new(clients, args, &args.broker)?,
        pid: args.broker_pid,
    }];
    if let Some(rival) = &args.versus {
        targets.push(Target {
            label: rival.endpoint.to_string(),
            access: Access::new(clients, args, &rival.endpoint)?,
            pid: rival.pid,
        });
    }
    Ok(targets)
}

fn rounds(args: &TargetArgs, sides: usize) -> u32 {
    args.rounds.unwrap_or(if sides > 1 { 3 } else { 1 })
}

impl PaceArgs {
    fn pace(&self, default_window: u64) -> Pace {
        match self.rate {
            Some(per_second) => Pace::Rate {
                per_second,
                tick_ns: self.tick.as_nanos() as u64,
            },
            None => Pace::Window(self.window.map_or(default_window, u64::from)),
        }
    }
}

/// The plan that the options ask for.
fn plan(load: &LoadArgs, shape: Shape, pace: Pace) -> anyhow::Result<LoadPlan> {
    shape.check()?;
    ensure!(!load.duration.is_zero(), "--duration must be more than 0 s");
    Ok(LoadPlan {
        shape,
        qos: mqtt::QoS::try_from(load.qos).map_err(|_| anyhow::anyhow!("--qos is 0, 1 or 2"))?,
        body: Body::Dots(load.payload),
        pace,
        warmup_ns: load.warmup.as_nanos() as u64,
        duration_ns: load.duration.as_nanos() as u64,
        quiet_ns: load.drain.as_nanos() as u64,
    })
}

/// The part of `total` that falls to one of `threads`.
fn share(total: usize, thread: usize, threads: usize) -> Range<usize> {
    total * thread / threads..total * (thread + 1) / threads
}

/// One round of a load against one broker.
fn measure_load(
    target: &Target,
    title: String,
    plan: &LoadPlan,
    is_quiet: bool,
) -> anyhow::Result<Outcome> {
    let access = target.access.fresh(plan.shape.connections());
    ensure!(
        access.threads <= plan.shape.groups,
        "--threads {} is more than there are groups of clients to spread ({})",
        access.threads,
        plan.shape.groups
    );
    let connections = plan.shape.connections();
    allow_open_files(connections as u64)?;
    let seconds = Duration::from_nanos(plan.duration_ns).as_secs_f64();
    let mut observer = Observer::new(target.pid, title, is_quiet, connections, seconds)?;
    let threads = access.threads;
    let tally = run_threads(
        &access,
        |thread| Clients::Groups(share(plan.shape.groups, thread, threads)),
        plan,
        &mut observer,
        |worker, observer| worker.run_load(plan, observer),
    )?;
    Ok(Outcome {
        subject: Subject::Messages {
            payload_bytes: plan.body.len(),
        },
        tally,
        seen: observer.into_seen(),
    })
}

/// A load to run, and the options it came from.
struct LoadRun<'a> {
    name: &'static str,
    shape: Shape,
    pace: Pace,
    load: &'a LoadArgs,
    clients: &'a ClientArgs,
    target: &'a TargetArgs,
    output: &'a OutputArgs,
}

/// Runs a load against the broker, or in turn against both, and delivers the report.
fn run_load(run: LoadRun<'_>) -> anyhow::Result<ExitCode> {
    let plan = plan(run.load, run.shape, run.pace)?;
    let targets = targets(run.clients, run.target)?;
    let labels: Vec<String> = targets.iter().map(|t| t.label.clone()).collect();
    let count = rounds(run.target, targets.len());
    let sides = alternate(&labels, count, |number, title| {
        measure_load(&targets[number], title, &plan, run.output.quiet)
    })?;
    report_load(run.name, &plan, run.clients, sides).deliver(run.output)
}

/// The report of a load.
fn report_load(
    name: &'static str,
    plan: &LoadPlan,
    clients: &ClientArgs,
    sides: Vec<Side>,
) -> Report {
    let shape = plan.shape;
    let mut settings = vec![("broker", sides[0].label.clone())];
    if shape.groups > 1 || shape.publishers == shape.subscribers {
        let unit = if shape.group_connections() == 2 {
            "pairs"
        } else {
            "groups"
        };
        settings.push((unit, shape.groups.to_string()));
    }
    if shape.group_connections() != 2 {
        settings.push(("publishers", shape.publishers.to_string()));
        settings.push(("subscribers", shape.subscribers.to_string()));
    }
    if let Topics::Spread(spread) = shape.topics {
        settings.push(("filters", spread.filters.to_string()));
        settings.push(("wildcards", format!("{:.0} %", spread.wildcards * 100.0)));
    }
    match plan.pace {
        Pace::Window(window) => settings.push(("window", window.to_string())),
        Pace::Rate {
            per_second,
            tick_ns,
        } => {
            settings.push(("rate", format!("{per_second}/s")));
            if tick_ns > 0 {
                settings.push(("tick", format!("{} us", tick_ns / 1000)));
            }
        }
        Pace::Stored { window, .. } => settings.push(("window", window.to_string())),
    }
    settings.extend([
        ("qos", (plan.qos as u8).to_string()),
        ("version", clients.version.codec().as_str().to_owned()),
        ("payload", format!("{} B", plan.body.len())),
        ("warm-up", format!("{} s", plan.warmup_ns as f64 / 1e9)),
        ("duration", format!("{} s", plan.duration_ns as f64 / 1e9)),
        ("rounds", sides[0].rounds.len().to_string()),
        ("threads", clients.threads.to_string()),
    ]);
    let settings = settings.into_iter().map(|(k, v)| (k.to_owned(), v));
    Report::new(name, settings.collect(), sides)
}
