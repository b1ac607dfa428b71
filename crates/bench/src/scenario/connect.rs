//! `connect`: how fast clients get in, and what they cost while they do nothing.

use std::process::ExitCode;
use std::time::Duration;

use super::{Target, clients, rounds, share, targets};
use crate::args::{ClientArgs, OutputArgs, TargetArgs};
use crate::host::allow_open_files;
use crate::observer::Observer;
use crate::outcome::{Outcome, Subject};
use crate::packets::Body;
use crate::report::Report;
use crate::rounds::alternate;
use crate::shape::{Shape, Topics};
use crate::units;
use crate::worker::{Clients, LoadPlan, Pace, run_threads};

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Connect {
    /// Connections to make; see --concurrency for how many at a time
    #[arg(long, value_name = "N", default_value = "1000", value_parser = clients)]
    connections: usize,
    /// Time to hold the connections, all idle
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::duration)]
    hold: Duration,
    #[command(flatten)]
    clients: ClientArgs,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output: OutputArgs,
}

impl Connect {
    pub(super) fn run(mut self) -> anyhow::Result<ExitCode> {
        let at_a_time = *self.clients.concurrency.get_or_insert(1000);
        let targets = targets(&self.clients, &self.target)?;
        allow_open_files(self.connections as u64)?;
        let labels: Vec<String> = targets.iter().map(|t| t.label.clone()).collect();
        let count = rounds(&self.target, targets.len());
        let sides = alternate(&labels, count, |number, title| {
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
        Report::new("connect", settings.into(), sides).deliver(&self.output)
    }

    fn measure(&self, target: &Target, title: String) -> anyhow::Result<Outcome> {
        let access = target.access.fresh(self.connections);
        let (wanted, threads) = (self.connections, access.threads);
        let hold_s = self.hold.as_secs_f64();
        let mut observer = Observer::new(target.pid, title, self.output.quiet, wanted, hold_s)?;
        let hold_ns = self.hold.as_nanos() as u64;
        let tally = run_threads(
            &access,
            |thread| Clients::Idle(share(wanted, thread, threads)),
            &NO_LOAD,
            &mut observer,
            |worker, observer| worker.run_connects(hold_ns, observer),
        )?;
        Ok(Outcome {
            subject: Subject::Connections { wanted },
            tally,
            seen: observer.into_seen(),
        })
    }
}

/// Idle clients send nothing.
const NO_LOAD: LoadPlan = LoadPlan {
    shape: Shape {
        groups: 0,
        publishers: 0,
        subscribers: 0,
        topics: Topics::PerPublisher,
    },
    qos: mqtt::QoS::AtMostOnce,
    body: Body::Dots(0),
    pace: Pace::Window(0),
    warmup_ns: 0,
    duration_ns: 0,
    quiet_ns: 0,
};
