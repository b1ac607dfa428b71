//! `self`: the generator against a forwarder that does next to nothing, to see its own ceiling.

use std::process::ExitCode;

use anyhow::Context;

use super::load_run::{BrokerTarget, load_plan, measure_load, parse_clients, report_load};
use crate::alternation::run_alternating;
use crate::args::{ClientArgs, LoadArgs, OutputArgs, PaceArgs};
use crate::broker_access::BrokerAccess;
use crate::forwarder::Forwarder;
use crate::host::{allowed_cores, pin_to_core};
use crate::load_shape::{LoadShape, TopicLayout};

/// The forwarder is a thread of this process. It reads what a publisher sends and writes the same bytes to the
/// subscriber, over loopback TCP like any broker.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct GeneratorScenario {
    /// Pairs of publisher and subscriber
    #[arg(long, value_name = "N", default_value = "100", value_parser = parse_clients)]
    pairs: usize,
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    pace: PaceArgs,
    #[command(flatten)]
    clients: ClientArgs,
    #[command(flatten)]
    output: OutputArgs,
}

impl GeneratorScenario {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let shape = LoadShape {
            groups: self.pairs,
            publishers: 1,
            subscribers: 1,
            topics: TopicLayout::PerPublisher,
        };
        let plan = load_plan(&self.load, shape, self.pace.pace(200))?;
        let cores = allowed_cores();
        let forwarder = Forwarder::start(cores.first().copied(), self.pairs * 2)
            .context("cannot start the forwarder")?;
        // With a core for each, neither takes time from the other.
        if let (Some(&core), 1) = (cores.get(1), self.clients.threads) {
            pin_to_core(core)?;
        }
        let target = BrokerTarget {
            label: "forwarder".to_owned(),
            access: BrokerAccess::without_authentication(&self.clients, forwarder.address())?,
            pids: Vec::new(),
        };
        let labels = [target.label.clone()];
        let sides = run_alternating(&labels, 1, |_, title| {
            measure_load(&target, title, &plan, self.output.quiet)
        })?;
        let forwarder_cpu_s = forwarder.stop();
        let mut report = report_load("self", &plan, &self.clients, sides);
        report.warnings.clear();
        if let Some(side) = report.sides.first() {
            let measures = side.total.measures();
            let ceiling = measures.get("generator_per_cpu_second").unwrap_or(0.0);
            report.warnings.push(format!(
                "the generator's ceiling is {:.2} M messages per second of one core, each sent, received and checked; \
                 the forwarder used {forwarder_cpu_s:.2} s of another over the whole run",
                ceiling / 1e6
            ));
        }
        report.write_and_finish(&self.output)
    }
}
