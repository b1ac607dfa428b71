//! `connect`: how fast clients get in, and what they cost while they do nothing.

use std::process::ExitCode;
use std::time::Duration;

use super::load_run::{BrokerTarget, broker_targets, parse_clients, round_count, thread_share};
use crate::alternation::run_alternating;
use crate::args::{ClientArgs, OutputArgs, TargetArgs};
use crate::host::allow_open_files;
use crate::load_shape::{LoadShape, TopicLayout};
use crate::observer::RunObserver;
use crate::packets::PayloadTemplate;
use crate::report::LoadReport;
use crate::round_outcome::{MeasuredSubject, RoundOutcome};
use crate::units;
use crate::worker::{LoadPace, LoadPlan, WorkerClients, run_threads};

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ConnectScenario {
    /// Connections to make; see --concurrency for how many at a time
    #[arg(long, value_name = "N", default_value = "1000", value_parser = parse_clients)]
    connections: usize,
    /// Time to hold the connections, all idle
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::parse_duration)]
    hold: Duration,
    #[command(flatten)]
    clients: ClientArgs,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output: OutputArgs,
}

impl ConnectScenario {
    pub(super) fn run(mut self) -> anyhow::Result<ExitCode> {
        let at_a_time = *self.clients.concurrency.get_or_insert(1000);
        let targets = broker_targets(&self.clients, &self.target)?;
        allow_open_files(self.connections as u64)?;
        let labels: Vec<String> = targets.iter().map(|t| t.label.clone()).collect();
        let count = round_count(&self.target, targets.len());
        let sides = run_alternating(&labels, count, |number, title| {
            self.measure(&targets[number], title)
        })?;
        let settings = [
            ("broker", sides[0].label.clone()),
            ("connections", self.connections.to_string()),
            ("at a time", at_a_time.to_string()),
            ("version", self.clients.version.codec().as_str().to_owned()),
            ("hold", format!("{} s", self.hold.as_secs_f64())),
            ("rounds", count.to_string()),
            ("threads", self.clients.threads.to_string()),
        ];
        let settings = settings.map(|(name, value)| (name.to_owned(), value));
        LoadReport::new("connect", settings.into(), sides).write_and_finish(&self.output)
    }

    fn measure(&self, target: &BrokerTarget, title: String) -> anyhow::Result<RoundOutcome> {
        let access = target.access.for_next_round(self.connections);
        let (wanted, threads) = (self.connections, access.threads);
        let hold_s = self.hold.as_secs_f64();
        let mut observer =
            RunObserver::new(&target.pids, title, self.output.quiet, wanted, hold_s)?;
        let hold_ns = self.hold.as_nanos() as u64;
        let tally = run_threads(
            &access,
            |thread| WorkerClients::Idle(thread_share(wanted, thread, threads)),
            &NO_LOAD,
            &mut observer,
            |worker, observer| worker.run_connects(hold_ns, observer),
        )?;
        Ok(RoundOutcome {
            subject: MeasuredSubject::Connections { wanted },
            tally,
            observations: observer.into_observations(),
        })
    }
}

/// Idle clients send nothing.
const NO_LOAD: LoadPlan = LoadPlan {
    shape: LoadShape {
        groups: 0,
        publishers: 0,
        subscribers: 0,
        topics: TopicLayout::PerPublisher,
    },
    qos: mqtt::QoS::AtMostOnce,
    body: PayloadTemplate::Padded(0),
    pace: LoadPace::Window(0),
    warmup_ns: 0,
    duration_ns: 0,
    quiet_ns: 0,
};
