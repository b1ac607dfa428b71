//! `offline`: how fast a broker stores messages for disconnected clients, and delivers them when the clients reconnect.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::ensure;

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
use crate::worker::{LoadPace, LoadPlan, OfflineTimes, WorkerClients, run_threads};

/// Most messages of one run.
const MAX_MESSAGES: u64 = 1_000_000_000;

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct OfflineScenario {
    /// Clients that connect, subscribe to a topic each, disconnect, and reconnect; see --concurrency for how many
    /// at a time
    #[arg(long = "clients", value_name = "N", default_value = "10000", value_parser = parse_clients)]
    count: usize,
    /// Messages for each client while it is disconnected
    #[arg(long, value_name = "N", default_value = "50", value_parser = parse_clients)]
    messages: usize,
    /// Publishers, each for an equal share of the clients
    #[arg(long, value_name = "N", default_value = "10", value_parser = parse_clients)]
    publishers: usize,
    /// Messages a publisher may have sent that the broker has not acknowledged
    #[arg(long, value_name = "N", default_value_t = 200,
          value_parser = clap::value_parser!(u32).range(1..=65_535))]
    window: u32,
    /// Quality of service, of publishers and subscribers
    #[arg(long, value_name = "1|2", default_value_t = 1,
          value_parser = clap::value_parser!(u8).range(1..=2))]
    qos: u8,
    /// Size of each payload, at least 24 bytes
    #[arg(long, value_name = "BYTES", default_value = "64", value_parser = units::parse_bytes)]
    payload: usize,
    /// How long nothing may be acknowledged or arrive before what is missing counts as lost
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::parse_duration)]
    drain: Duration,
    /// Pause after storing, and at the end, after which the broker's memory and disk are measured
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = units::parse_duration)]
    rest: Duration,
    /// The broker's data directory on this machine: measures its disk usage
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// The same of the broker to compare it with
    #[arg(long, value_name = "DIR", requires = "versus")]
    versus_data_dir: Option<PathBuf>,
    #[command(flatten)]
    clients: ClientArgs,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output: OutputArgs,
}

impl OfflineScenario {
    pub(super) fn run(mut self) -> anyhow::Result<ExitCode> {
        let at_a_time = *self.clients.concurrency.get_or_insert(1000);
        let plan = self.plan()?;
        let targets = broker_targets(&self.clients, &self.target)?;
        let labels: Vec<String> = targets.iter().map(|t| t.label.clone()).collect();
        let count = round_count(&self.target, targets.len());
        let sides = run_alternating(&labels, count, |number, title| {
            let data_dir = match number {
                0 => &self.data_dir,
                _ => &self.versus_data_dir,
            };
            self.measure(&plan, &targets[number], data_dir.as_ref(), title)
        })?;
        let settings = [
            ("broker", sides[0].label.clone()),
            ("clients", self.count.to_string()),
            ("messages for each", self.messages.to_string()),
            ("publishers", self.publishers.to_string()),
            ("window", self.window.to_string()),
            ("at a time", at_a_time.to_string()),
            ("qos", self.qos.to_string()),
            ("version", self.clients.version.codec().as_str().to_owned()),
            ("payload", format!("{} B", self.payload)),
            ("rounds", count.to_string()),
            ("threads", self.clients.threads.to_string()),
        ];
        let settings = settings.map(|(name, value)| (name.to_owned(), value));
        LoadReport::new("offline", settings.into(), sides).write_and_finish(&self.output)
    }

    fn plan(&self) -> anyhow::Result<LoadPlan> {
        ensure!(
            self.count.is_multiple_of(self.publishers),
            "--clients {} cannot be shared out equally to --publishers {}",
            self.count,
            self.publishers
        );
        let messages = self.count as u64 * self.messages as u64;
        ensure!(
            messages <= MAX_MESSAGES,
            "--clients {} times --messages {} is more than {MAX_MESSAGES} messages",
            self.count,
            self.messages
        );
        let shape = LoadShape {
            groups: self.publishers,
            publishers: 1,
            subscribers: self.count / self.publishers,
            topics: TopicLayout::PerSubscriber,
        };
        shape.validate()?;
        Ok(LoadPlan {
            shape,
            qos: mqtt::QoS::try_from(self.qos)
                .map_err(|_| anyhow::anyhow!("--qos is 1 or 2 here"))?,
            body: PayloadTemplate::Padded(self.payload),
            pace: LoadPace::Stored {
                window: u64::from(self.window),
                each: messages / self.publishers as u64,
            },
            warmup_ns: 0,
            duration_ns: 0,
            quiet_ns: self.drain.as_nanos() as u64,
        })
    }

    fn measure(
        &self,
        plan: &LoadPlan,
        target: &BrokerTarget,
        data_dir: Option<&PathBuf>,
        title: String,
    ) -> anyhow::Result<RoundOutcome> {
        let connections = plan.shape.connections();
        let access = target.access.for_next_round(connections);
        let threads = access.threads;
        ensure!(
            threads <= self.publishers,
            "--threads {threads} is more than --publishers {} to share out",
            self.publishers
        );
        allow_open_files(connections as u64)?;
        let mut observer =
            RunObserver::new(&target.pids, title, self.output.quiet, connections, 0.0)?;
        if let Some(dir) = data_dir {
            observer = observer.watch_disk(dir)?;
        }
        let times = OfflineTimes { rest: self.rest };
        let tally = run_threads(
            &access,
            |thread| WorkerClients::Groups(thread_share(self.publishers, thread, threads)),
            plan,
            &mut observer,
            |worker, observer| worker.run_offline(plan, times, observer),
        )?;
        Ok(RoundOutcome {
            subject: MeasuredSubject::Stored {
                payload_bytes: plan.body.len(),
            },
            tally,
            observations: observer.into_observations(),
        })
    }
}
