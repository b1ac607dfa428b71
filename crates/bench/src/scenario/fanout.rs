//! `fanout`: one publisher, many subscribers.

use std::process::ExitCode;

use super::load_run::{LoadRun, parse_clients, run_load};
use crate::args::LoadScenarioArgs;
use crate::load_shape::{LoadShape, TopicLayout};

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct FanOutScenario {
    /// Subscribers of a group; each gets everything. Throughput counts every delivery
    #[arg(long, value_name = "N", default_value = "500", value_parser = parse_clients)]
    subscribers: usize,
    /// Publishers of a group
    #[arg(long, value_name = "N", default_value = "1", value_parser = parse_clients)]
    publishers: usize,
    /// Independent groups
    #[arg(long, value_name = "N", default_value = "1", value_parser = parse_clients)]
    groups: usize,
    #[command(flatten)]
    args: LoadScenarioArgs,
}

impl FanOutScenario {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let shape = LoadShape {
            groups: self.groups,
            publishers: self.publishers,
            subscribers: self.subscribers,
            topics: TopicLayout::PerPublisher,
        };
        let pace = self.args.pace.pace(20);
        run_load(LoadRun::new("fanout", shape, pace, &self.args))
    }
}
