//! `filters`: pairs with many different filters, against the same pairs with one filter each.

use std::process::ExitCode;

use anyhow::ensure;

use super::{Target, clients, measure_load, plan, report_load, rounds};
use crate::access::Access;
use crate::args::{ClientArgs, LoadArgs, OutputArgs, PaceArgs, TargetArgs};
use crate::rounds::alternate;
use crate::shape::{Shape, Spread, Topics};
use crate::units;

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Filters {
    /// Different filters in total, each matched by one topic; publishers cycle through the topics
    #[arg(long, value_name = "N", default_value = "10000", value_parser = clients)]
    filters: usize,
    /// Share of the filters that have a wildcard
    #[arg(long, value_name = "PERCENT", default_value = "20%", value_parser = units::fraction)]
    wildcards: f64,
    /// Pairs of publisher and subscriber
    #[arg(long, value_name = "N", default_value = "100", value_parser = clients)]
    pairs: usize,
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

impl Filters {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        ensure!(
            self.target.versus.is_none(),
            "`filters` compares many filters with few on one broker; it takes no --versus"
        );
        let pace = self.pace.pace(200);
        let shape = |filters, wildcards| Shape {
            groups: self.pairs,
            publishers: 1,
            subscribers: 1,
            topics: Topics::Spread(Spread { filters, wildcards }),
        };
        let plans = [
            plan(&self.load, shape(self.filters, self.wildcards), pace)?,
            plan(&self.load, shape(self.pairs, 0.0), pace)?,
        ];
        let target = Target {
            label: self.target.broker.to_string(),
            access: Access::new(&self.clients, &self.target, &self.target.broker)?,
            pid: self.target.broker_pid,
        };
        let labels = [
            format!("{} filters", self.filters),
            format!("{} filters", self.pairs),
        ];
        let sides = alternate(&labels, rounds(&self.target, 2), |number, title| {
            measure_load(&target, title, &plans[number], self.output.quiet)
        })?;
        let mut report = report_load("filters", &plans[0], &self.clients, sides);
        report.settings[0].1 = target.label;
        // What a message costs is the inverse of how many there are.
        if let Some(ratio) = report.ratios.get("ratio").filter(|&ratio| ratio > 0.0) {
            report.ratios.set("cost_ratio", 1.0 / ratio);
        }
        report.deliver(&self.output)
    }
}
