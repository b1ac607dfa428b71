//! `rate`: a fixed total rate over pairs, for latency without coordinated omission.

use std::process::ExitCode;

use super::load_run::{LoadRun, parse_clients, run_load};
use crate::args::{ClientArgs, LoadArgs, OutputArgs, TargetArgs};
use crate::load_shape::{LoadShape, TopicLayout};
use crate::units;
use crate::worker::LoadPace;

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct RateScenario {
    /// Messages per second, over all pairs; latency is measured from the time at which one was due
    #[arg(long, value_name = "PER_SECOND", default_value = "20000", value_parser = units::parse_rate)]
    rate: f64,
    /// Pairs of publisher and subscriber
    #[arg(long, value_name = "N", default_value = "100", value_parser = parse_clients)]
    pairs: usize,
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    clients: ClientArgs,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output: OutputArgs,
}

impl RateScenario {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let shape = LoadShape {
            groups: self.pairs,
            publishers: 1,
            subscribers: 1,
            topics: TopicLayout::PerPublisher,
        };
        let pace = LoadPace::Rate {
            per_second: self.rate,
            tick_ns: 0,
        };
        run_load(LoadRun {
            name: "rate",
            shape,
            pace,
            load: &self.load,
            clients: &self.clients,
            target: &self.target,
            output: &self.output,
        })
    }
}
