//! `tidegate bench relay`: relay endpoints under load, against what a published report states, and checks of what a relay
//! has to do right.
//!
//! Every message is numbered, and every receiver checks the numbers of every sender. A scenario of a load is a type in
//! [`load_scenarios`] and a line in [`RelayScenario`]; a check is a file in [`checks`].

mod checks;
mod connection;
mod delivery_verifier;
mod generator;
mod generator_run;
mod load_scenarios;
mod message_template;
mod published_report;
mod server;

use std::process::ExitCode;

/// What to do to a relay.
#[derive(clap::Subcommand, Clone, Debug)]
pub(crate) enum RelayScenario {
    /// The scenarios of a published report of another relay, with its figures beside those measured
    Report(published_report::PublishedReportScenario),
    /// Checks of correctness: identification, slow receivers, broken connections, commands
    Checks(checks::ChecksScenario),
    /// Endpoints with one sender and many receivers
    Fanout(load_scenarios::RelayFanOutScenario),
    /// Endpoints with one sender and one receiver
    Pairs(load_scenarios::RelayPairsScenario),
    /// Very many connections: memory of idle connections, then latency at a fixed rate
    Connections(load_scenarios::RelayConnectionsScenario),
}

impl RelayScenario {
    /// Runs the scenario, and returns the exit status.
    pub(crate) fn run(&self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Report(scenario) => scenario.run(),
            Self::Checks(scenario) => scenario.run(),
            Self::Fanout(scenario) => scenario.run(),
            Self::Pairs(scenario) => scenario.run(),
            Self::Connections(scenario) => scenario.run(),
        }
    }
}
