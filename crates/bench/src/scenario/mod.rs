//! The scenarios. A new one is a file here and a line in [`Scenario`].

mod connect;
mod fanin;
mod fanout;
mod filters;
mod generator_ceiling;
mod load_run;
mod offline;
mod p2p;
mod rate;
mod rules;

pub(crate) use offline::OfflineScenario;

use std::process::ExitCode;

/// What to do to an MQTT broker.
#[derive(clap::Subcommand, Clone, Debug)]
pub(crate) enum Scenario {
    /// Pairs of one publisher and one subscriber, each with a topic of its own
    P2p(p2p::P2pScenario),
    /// Many publishers, one subscriber that reads them all through a wildcard
    Fanin(fanin::FanInScenario),
    /// One publisher, many subscribers that all get every message
    Fanout(fanout::FanOutScenario),
    /// Pairs at a fixed total rate, to measure latency
    Rate(rate::RateScenario),
    /// Many connections, opened with a bounded concurrency and then held: time and memory of each
    Connect(connect::ConnectScenario),
    /// Cost of many different filters, compared with one for each pair
    Filters(filters::FiltersScenario),
    /// Messages stored for disconnected clients, and delivered when they return
    Offline(OfflineScenario),
    /// Rules that republish messages (`--rules` is the same)
    #[command(long_flag = "rules")]
    Rules(rules::RulesScenario),
    /// Maximum rate of the generator, without a broker
    #[command(name = "self")]
    Generator(generator_ceiling::GeneratorScenario),
}

impl Scenario {
    /// Runs the scenario, and returns the exit status.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::P2p(scenario) => scenario.run(),
            Self::Fanin(scenario) => scenario.run(),
            Self::Fanout(scenario) => scenario.run(),
            Self::Rate(scenario) => scenario.run(),
            Self::Connect(scenario) => scenario.run(),
            Self::Filters(scenario) => scenario.run(),
            Self::Offline(scenario) => scenario.run(),
            Self::Rules(scenario) => scenario.run(),
            Self::Generator(scenario) => scenario.run(),
        }
    }
}
