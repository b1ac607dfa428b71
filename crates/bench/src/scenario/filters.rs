//! `filters`: pairs with many different filters, against the same pairs with one filter each.

use std::process::ExitCode;

use anyhow::ensure;

use super::load_run::{
    BrokerTarget, load_plan, measure_load, parse_clients, report_load, round_count,
};
use crate::alternation::run_alternating;
use crate::args::LoadScenarioArgs;
use crate::load_shape::{LoadShape, TopicLayout, TopicSpread};
use crate::units;

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct FiltersScenario {
    /// Different filters in total, each matched by one topic; publishers cycle through the topics
    #[arg(long, value_name = "N", default_value = "10000", value_parser = parse_clients)]
    filters: usize,
    /// Share of the filters that have a wildcard
    #[arg(long, value_name = "PERCENT", default_value = "20%", value_parser = units::parse_fraction)]
    wildcards: f64,
    /// Pairs of publisher and subscriber
    #[arg(long, value_name = "N", default_value = "100", value_parser = parse_clients)]
    pairs: usize,
    #[command(flatten)]
    args: LoadScenarioArgs,
}

impl FiltersScenario {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        ensure!(
            self.args.target.versus.is_none(),
            "`filters` compares many filters with few on one broker; it takes no --versus"
        );
        let pace = self.args.pace.pace(200);
        let shape = |filters, wildcards| LoadShape {
            groups: self.pairs,
            publishers: 1,
            subscribers: 1,
            topics: TopicLayout::Spread(TopicSpread { filters, wildcards }),
        };
        let plans = [
            load_plan(&self.args.load, shape(self.filters, self.wildcards), pace)?,
            load_plan(&self.args.load, shape(self.pairs, 0.0), pace)?,
        ];
        let target = BrokerTarget::new(&self.args.clients, &self.args.target)?;
        let labels = [
            format!("{} filters", self.filters),
            format!("{} filters", self.pairs),
        ];
        let sides = run_alternating(
            &labels,
            round_count(&self.args.target, 2),
            |number, title| measure_load(&target, title, &plans[number], self.args.output.quiet),
        )?;
        let mut report = report_load("filters", &plans[0], &self.args.clients, sides);
        report.settings[0].1 = target.label;
        // What a message costs is the inverse of how many there are.
        if let Some(ratio) = report.ratios.get("ratio").filter(|&ratio| ratio > 0.0) {
            report.ratios.set("cost_ratio", 1.0 / ratio);
        }
        report.write_and_finish(&self.args.output)
    }
}
