//! `p2p`: pairs of one publisher and one subscriber.

use std::process::ExitCode;

use super::load_run::{LoadRun, SpreadArgs, parse_clients, run_load};
use crate::args::LoadScenarioArgs;
use crate::load_shape::LoadShape;

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct P2pScenario {
    /// Pairs of publisher and subscriber
    #[arg(long, value_name = "N", default_value = "100", value_parser = parse_clients)]
    pairs: usize,
    #[command(flatten)]
    spread: SpreadArgs,
    #[command(flatten)]
    args: LoadScenarioArgs,
}

impl P2pScenario {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let shape = LoadShape {
            groups: self.pairs,
            publishers: 1,
            subscribers: 1,
            topics: self.spread.topics(),
        };
        let pace = self.args.pace.pace(200);
        run_load(LoadRun::new("p2p", shape, pace, &self.args))
    }
}
