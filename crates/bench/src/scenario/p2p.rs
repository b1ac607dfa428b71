//! `p2p`: pairs of one publisher and one subscriber.

use std::process::ExitCode;

use super::load_run::{LoadRun, SpreadArgs, parse_clients, run_load};
use crate::args::{ClientArgs, LoadArgs, OutputArgs, PaceArgs, TargetArgs};
use crate::load_shape::LoadShape;

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct P2pScenario {
    /// Pairs of publisher and subscriber
    #[arg(long, value_name = "N", default_value = "100", value_parser = parse_clients)]
    pairs: usize,
    #[command(flatten)]
    spread: SpreadArgs,
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    pace: PaceArgs,
    #[command(flatten)]
    clients: ClientArgs,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output: OutputArgs,
}

impl P2pScenario {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let shape = LoadShape {
            groups: self.pairs,
            publishers: 1,
            subscribers: 1,
            topics: self.spread.topics(),
        };
        let pace = self.pace.pace(200);
        run_load(LoadRun {
            name: "p2p",
            shape,
            pace,
            load: &self.load,
            clients: &self.clients,
            target: &self.target,
            output: &self.output,
        })
    }
}
