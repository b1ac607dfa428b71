//! `fanin`: many publishers, one subscriber.

use std::process::ExitCode;

use super::load_run::{LoadRun, SpreadArgs, parse_clients, run_load};
use crate::args::LoadScenarioArgs;
use crate::load_shape::LoadShape;

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct FanInScenario {
    /// Publishers of a group, each with its own topic
    #[arg(long, value_name = "N", default_value = "500", value_parser = parse_clients)]
    publishers: usize,
    /// Subscribers of a group; each gets everything through one wildcard filter
    #[arg(long, value_name = "N", default_value = "1", value_parser = parse_clients)]
    subscribers: usize,
    /// Independent groups
    #[arg(long, value_name = "N", default_value = "1", value_parser = parse_clients)]
    groups: usize,
    #[command(flatten)]
    spread: SpreadArgs,
    #[command(flatten)]
    args: LoadScenarioArgs,
}

impl FanInScenario {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let shape = LoadShape {
            groups: self.groups,
            publishers: self.publishers,
            subscribers: self.subscribers,
            topics: self.spread.topics(),
        };
        let pace = self.args.pace.pace(20);
        run_load(LoadRun::new("fanin", shape, pace, &self.args))
    }
}
