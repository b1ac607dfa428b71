//! `fanout`: one publisher, many subscribers.

use std::process::ExitCode;

use super::{LoadRun, clients, run_load};
use crate::args::{ClientArgs, LoadArgs, OutputArgs, PaceArgs, TargetArgs};
use crate::shape::{Shape, Topics};

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct FanOut {
    /// Subscribers of a group; each gets everything. Throughput counts every delivery
    #[arg(long, value_name = "N", default_value = "500", value_parser = clients)]
    subscribers: usize,
    /// Publishers of a group
    #[arg(long, value_name = "N", default_value = "1", value_parser = clients)]
    publishers: usize,
    /// Groups that have nothing to do with each other
    #[arg(long, value_name = "N", default_value = "1", value_parser = clients)]
    groups: usize,
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

impl FanOut {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let shape = Shape {
            groups: self.groups,
            publishers: self.publishers,
            subscribers: self.subscribers,
            topics: Topics::PerPublisher,
        };
        let pace = self.pace.pace(20);
        run_load(LoadRun {
            name: "fanout",
            shape,
            pace,
            load: &self.load,
            clients: &self.clients,
            target: &self.target,
            output: &self.output,
        })
    }
}
