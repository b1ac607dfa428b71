//! `self`: the generator against a forwarder that does next to nothing, to see its own ceiling.

use std::process::ExitCode;

use anyhow::Context;

use super::{Target, clients, measure_load, plan, report_load};
use crate::access::Access;
use crate::args::{ClientArgs, LoadArgs, OutputArgs, PaceArgs};
use crate::forwarder::Forwarder;
use crate::host::{allowed_cores, pin_to_core};
use crate::rounds::alternate;
use crate::shape::{Shape, Topics};

/// The forwarder is a thread of this process. It reads what a publisher sends and writes the same bytes to the
/// subscriber, over loopback TCP like any broker.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Generator {
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
    output: OutputArgs,
}

impl Generator {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let shape = Shape {
            groups: self.pairs,
            publishers: 1,
            subscribers: 1,
            topics: Topics::PerPublisher,
        };
        let plan = plan(&self.load, shape, self.pace.pace(200))?;
        let cores = allowed_cores();
        let forwarder = Forwarder::start(cores.first().copied(), self.pairs * 2)
            .context("cannot start the forwarder")?;
        // With a core for each, neither takes time from the other.
        if let (Some(&core), 1) = (cores.get(1), self.clients.threads) {
            pin_to_core(core)?;
        }
        let target = Target {
            label: "forwarder".to_owned(),
            access: Access::plain(&self.clients, forwarder.address())?,
            pid: None,
        };
        let labels = [target.label.clone()];
        let sides = alternate(&labels, 1, |_, title| {
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
        report.deliver(&self.output)
    }
}
