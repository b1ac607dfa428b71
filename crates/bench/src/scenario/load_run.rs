//! What the scenarios share: their clients and targets, and the run of a load with its report.

use std::ops::Range;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::ensure;

use crate::alternation::run_alternating;
use crate::args::{ClientArgs, LoadArgs, LoadScenarioArgs, OutputArgs, PaceArgs, TargetArgs};
use crate::broker_access::BrokerAccess;
use crate::host::allow_open_files;
use crate::load_shape::{LoadShape, TopicLayout, TopicSpread};
use crate::observer::RunObserver;
use crate::packets::PayloadTemplate;
use crate::report::{LoadReport, ReportSide};
use crate::round_outcome::{MeasuredSubject, RoundOutcome};
use crate::worker::{LoadPace, LoadPlan, WorkerClients, run_threads};

/// clap value parser: a number of clients, pairs or groups.
pub(super) fn parse_clients(text: &str) -> Result<usize, String> {
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
pub(super) struct SpreadArgs {
    /// Different filters that the subscribers hold in total, each matched by one topic; publishers cycle through
    /// the topics
    #[arg(long, value_name = "N", value_parser = parse_clients)]
    filters: Option<usize>,
    /// Share of --filters that have a wildcard
    #[arg(long, value_name = "PERCENT", default_value = "0%", value_parser = crate::units::parse_fraction,
          requires = "filters")]
    wildcards: f64,
}

impl SpreadArgs {
    pub(super) fn topics(&self) -> TopicLayout {
        let wildcards = self.wildcards;
        match self.filters {
            Some(filters) => TopicLayout::Spread(TopicSpread { filters, wildcards }),
            None => TopicLayout::PerPublisher,
        }
    }
}

/// Where one side of a comparison connects to.
pub(super) struct BrokerTarget {
    pub(super) label: String,
    pub(super) access: BrokerAccess,
    /// Its processes on this machine.
    pub(super) pids: Vec<u32>,
}

impl BrokerTarget {
    /// The broker of the options.
    pub(super) fn new(clients: &ClientArgs, args: &TargetArgs) -> anyhow::Result<Self> {
        let mut label = args.broker.to_string();
        let mut access = BrokerAccess::new(clients, args, &args.broker)?;
        if let Some(other) = &args.subscriber_broker {
            label = format!("{label} to {other}");
            access = access.with_subscribers_at(args, other)?;
        }
        Ok(Self {
            label,
            access,
            pids: args.broker_pid.clone(),
        })
    }
}

/// The broker, and the one to compare it with if there is one.
pub(super) fn broker_targets(
    clients: &ClientArgs,
    args: &TargetArgs,
) -> anyhow::Result<Vec<BrokerTarget>> {
    let mut targets = vec![BrokerTarget::new(clients, args)?];
    if let Some(rival) = &args.versus {
        targets.push(BrokerTarget {
            label: rival.endpoint.to_string(),
            access: BrokerAccess::new(clients, args, &rival.endpoint)?,
            pids: rival.pids.clone(),
        });
    }
    Ok(targets)
}

pub(super) fn round_count(args: &TargetArgs, sides: usize) -> u32 {
    args.rounds.unwrap_or(if sides > 1 { 3 } else { 1 })
}

impl PaceArgs {
    pub(super) fn pace(&self, default_window: u64) -> LoadPace {
        match self.rate {
            Some(per_second) => LoadPace::Rate {
                per_second,
                tick_ns: self.tick.as_nanos() as u64,
            },
            None => LoadPace::Window(self.window.map_or(default_window, u64::from)),
        }
    }
}

/// The plan that the options ask for.
pub(super) fn load_plan(
    load: &LoadArgs,
    shape: LoadShape,
    pace: LoadPace,
) -> anyhow::Result<LoadPlan> {
    shape.validate()?;
    ensure!(!load.duration.is_zero(), "--duration must be more than 0 s");
    Ok(LoadPlan {
        shape,
        qos: mqtt::QoS::try_from(load.qos).map_err(|_| anyhow::anyhow!("--qos is 0, 1 or 2"))?,
        body: PayloadTemplate::Padded(load.payload),
        pace,
        warmup_ns: load.warmup.as_nanos() as u64,
        duration_ns: load.duration.as_nanos() as u64,
        quiet_ns: load.drain.as_nanos() as u64,
    })
}

/// The part of `total` that falls to one of `threads`.
pub(super) fn thread_share(total: usize, thread: usize, threads: usize) -> Range<usize> {
    total * thread / threads..total * (thread + 1) / threads
}

/// One round of a load against one broker.
pub(super) fn measure_load(
    target: &BrokerTarget,
    title: String,
    plan: &LoadPlan,
    is_quiet: bool,
) -> anyhow::Result<RoundOutcome> {
    let access = target.access.for_next_round(plan.shape.connections());
    ensure!(
        access.threads <= plan.shape.groups,
        "--threads {} is more than there are groups of clients to spread ({})",
        access.threads,
        plan.shape.groups
    );
    let connections = plan.shape.connections();
    allow_open_files(connections as u64)?;
    let seconds = Duration::from_nanos(plan.duration_ns).as_secs_f64();
    let mut observer = RunObserver::new(&target.pids, title, is_quiet, connections, seconds)?;
    let threads = access.threads;
    let tally = run_threads(
        &access,
        |thread| WorkerClients::Groups(thread_share(plan.shape.groups, thread, threads)),
        plan,
        &mut observer,
        |worker, observer| worker.run_load(plan, observer),
    )?;
    Ok(RoundOutcome {
        subject: MeasuredSubject::Messages {
            payload_bytes: plan.body.len(),
        },
        tally,
        observations: observer.into_observations(),
    })
}

/// A load to run, and the options it came from.
pub(super) struct LoadRun<'a> {
    pub(super) name: &'static str,
    pub(super) shape: LoadShape,
    pub(super) pace: LoadPace,
    pub(super) load: &'a LoadArgs,
    pub(super) clients: &'a ClientArgs,
    pub(super) target: &'a TargetArgs,
    pub(super) output: &'a OutputArgs,
}

impl<'a> LoadRun<'a> {
    pub(super) fn new(
        name: &'static str,
        shape: LoadShape,
        pace: LoadPace,
        args: &'a LoadScenarioArgs,
    ) -> Self {
        Self {
            name,
            shape,
            pace,
            load: &args.load,
            clients: &args.clients,
            target: &args.target,
            output: &args.output,
        }
    }
}

/// Runs a load against the broker, or in turn against both, and delivers the report.
pub(super) fn run_load(run: LoadRun<'_>) -> anyhow::Result<ExitCode> {
    let plan = load_plan(run.load, run.shape, run.pace)?;
    let targets = broker_targets(run.clients, run.target)?;
    let labels: Vec<String> = targets.iter().map(|t| t.label.clone()).collect();
    let count = round_count(run.target, targets.len());
    let sides = run_alternating(&labels, count, |number, title| {
        measure_load(&targets[number], title, &plan, run.output.quiet)
    })?;
    report_load(run.name, &plan, run.clients, sides).write_and_finish(run.output)
}

/// The report of a load.
pub(super) fn report_load(
    name: &'static str,
    plan: &LoadPlan,
    clients: &ClientArgs,
    sides: Vec<ReportSide>,
) -> LoadReport {
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
    if let TopicLayout::Spread(spread) = shape.topics {
        settings.push(("filters", spread.filters.to_string()));
        settings.push(("wildcards", format!("{:.0} %", spread.wildcards * 100.0)));
    }
    match plan.pace {
        LoadPace::Window(window) => settings.push(("window", window.to_string())),
        LoadPace::Rate {
            per_second,
            tick_ns,
        } => {
            settings.push(("rate", format!("{per_second}/s")));
            if tick_ns > 0 {
                settings.push(("tick", format!("{} us", tick_ns / 1000)));
            }
        }
        LoadPace::Stored { window, .. } => settings.push(("window", window.to_string())),
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
    LoadReport::new(name, settings.collect(), sides)
}
