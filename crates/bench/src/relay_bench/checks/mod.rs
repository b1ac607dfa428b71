//! `checks`: what a relay has to do right, with the time that it takes. A check is a file here and a line in [`CHECKS`].

mod check_client;
mod check_result;
mod commands;
mod disconnects;
mod identify;
mod slow_receivers;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;
use serde_json::{Map, Value, json};

use self::check_result::CheckResult;
use super::published_report::write_result;
use super::server::{RelayServer, RelayServerArgs};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CheckName {
    /// `identify` sent together with the request for the connection
    Identify,
    /// Receivers that do not read: their lost messages, the warnings about them, and no effect on others
    SlowReceivers,
    /// A hundred connections that break: the statistics afterwards
    Disconnects,
    /// Commands over the HTTP API: control message, acknowledgement, result
    Commands,
}

type CheckFunction = fn(&RelayServer, &mut CheckResult) -> anyhow::Result<()>;

const CHECKS: &[(CheckName, CheckFunction)] = &[
    (CheckName::Identify, identify::run),
    (CheckName::SlowReceivers, slow_receivers::run),
    (CheckName::Disconnects, disconnects::run),
    (CheckName::Commands, commands::run),
];

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ChecksScenario {
    /// Run only this check (repeatable)
    #[arg(long = "check", value_enum)]
    checks: Vec<CheckName>,
    #[command(flatten)]
    relay: RelayServerArgs,
    /// Write the result as JSON, `-` for standard output instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
}

impl ChecksScenario {
    pub(super) fn run(&self) -> anyhow::Result<ExitCode> {
        let server = self.relay.first_server()?;
        server.api()?;
        let mut results = Vec::new();
        for (name, check) in CHECKS {
            if !self.checks.is_empty() && !self.checks.contains(name) {
                continue;
            }
            let possible = name.to_possible_value();
            let mut result = CheckResult {
                name: possible.map_or(String::new(), |value| value.get_name().to_owned()),
                values: Vec::new(),
                failures: Vec::new(),
            };
            if !self.quiet {
                eprintln!("check {}", result.name);
            }
            check(&server, &mut result)?;
            results.push(result);
        }
        write_result(
            self.json.as_deref(),
            || to_json(&results),
            || table(&results),
        )?;
        let is_right = results.iter().all(|result| result.failures.is_empty());
        Ok(match is_right {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        })
    }
}

fn to_json(results: &[CheckResult]) -> Value {
    let checks = results.iter().map(|result| {
        let values = result.values.iter();
        let values: Map<String, Value> = values
            .map(|(name, value, unit)| {
                let unit = if unit.is_empty() {
                    String::new()
                } else {
                    format!("_{unit}")
                };
                (
                    format!("{}{unit}", name.replace([' ', ','], "_")),
                    json!(value),
                )
            })
            .collect();
        json!({"check": result.name, "values": values, "failures": result.failures})
    });
    json!({ "checks": checks.collect::<Vec<_>>() })
}

fn table(results: &[CheckResult]) -> String {
    let mut out = String::new();
    for result in results {
        let verdict = match result.failures.is_empty() {
            true => "right",
            false => "FAILED",
        };
        let _ = writeln!(out, "{}: {verdict}", result.name);
        for (name, value, unit) in &result.values {
            let decimals = if unit.is_empty() { 0 } else { 3 };
            let line = format!("  {name:44} {value:>12.decimals$} {unit}");
            let _ = writeln!(out, "{}", line.trim_end());
        }
        for failure in &result.failures {
            let _ = writeln!(out, "  FAILED: {failure}");
        }
    }
    out
}
