//! `p2p`: pairs of one publisher and one subscriber.

use std::process::ExitCode;

use super::{LoadRun, SpreadArgs, clients, run_load};
use crate::args::{ClientArgs, LoadArgs, OutputArgs, PaceArgs, TargetArgs};
use crate::shape::Shape;

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct P2p {
    /// Pairs of publisher and subscriber
    #[arg(long, value_name = "N", default_value = "100", value_parser = clients)]
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

impl P2p {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let shape = Shape {
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
