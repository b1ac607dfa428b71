//! `tidegate bench pipeline`: the cost of a device's message on its way into the telemetry store. It is measured in
//! this process, through the interface that the listeners of a node use.
//!
//! A message counts when it can be read back from the store. Its latency is from hand-over until it is stored. Senders wait as the
//! listeners make publishers wait: while the pipeline is saturated, they hand nothing over.

mod faulty_storage;
mod measurement;
mod pipeline_scenario;

use std::path::PathBuf;
use std::process::ExitCode;

use devices::ingest::{PipelineConfig, PipelineMode};
use serde_json::Value;

pub(crate) use faulty_storage::StorageFault;
pub(crate) use measurement::{PipelineRun, measure};
pub(crate) use pipeline_scenario::{PipelineResult, PipelineScenario, scenario};

/// Arguments of `tidegate bench pipeline`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct PipelineArgs {
    /// Messages of each scenario but the burst
    #[arg(long, default_value_t = 1_000_000, value_name = "COUNT")]
    messages: u64,
    /// Only scenarios whose name contains this text
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Directory for the stores, which are removed afterwards [default: the directory for temporary files]
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
    /// Size of a mailbox in bytes
    #[arg(long, default_value_t = PipelineConfig::default().mailbox_bytes, value_name = "BYTES")]
    mailbox_bytes: usize,
    /// Evaluate an alarm rule for each message
    #[arg(long)]
    alarm: bool,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

const SCENARIOS: [PipelineScenario; 11] = [
    scenario("sync 1 device", PipelineMode::Sync, 1, 1),
    scenario("sync 10 devices", PipelineMode::Sync, 10, 2),
    scenario("sync 50 devices", PipelineMode::Sync, 50, 2),
    scenario("sync 100 devices", PipelineMode::Sync, 100, 2),
    scenario("sync 10,000 devices", PipelineMode::Sync, 10_000, 2),
    scenario("actor 1 device", PipelineMode::Actor, 1, 1),
    scenario("actor 10 devices", PipelineMode::Actor, 10, 1),
    scenario("actor 50 devices", PipelineMode::Actor, 50, 1),
    scenario("actor 100 devices", PipelineMode::Actor, 100, 1),
    scenario("actor 10,000 devices", PipelineMode::Actor, 10_000, 1),
    PipelineScenario {
        name: "actor burst 20 x 5000",
        mode: PipelineMode::Actor,
        devices: 20,
        senders: 20,
        messages: Some(5000),
    },
];

pub(crate) fn run(arguments: &PipelineArgs) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(
        (1000..=100_000_000).contains(&arguments.messages),
        "--messages: expected 1000 to 100000000"
    );
    let wanted = |scenario: &&PipelineScenario| {
        let part = arguments.only.as_deref().unwrap_or_default();
        scenario.name.contains(part)
    };
    let mut all = Vec::new();
    let mut is_whole = true;
    if !arguments.json {
        println!(
            "{:22} {:>9} {:>9} {:>11} {:>8} {:>9} {:>9} {:>9} {:>9} {:>9}",
            "scenario",
            "sent",
            "stored",
            "stored/s",
            "CPU us",
            "mean us",
            "p50 us",
            "p95 us",
            "p99 us",
            "MiB"
        );
    }
    for scenario in SCENARIOS.iter().filter(wanted) {
        let shown = measure(&PipelineRun {
            directory: arguments.directory.clone(),
            mailbox_bytes: arguments.mailbox_bytes,
            alarm: arguments.alarm,
            ..PipelineRun::new(*scenario, arguments.messages)
        })?;
        is_whole &= shown.stored == shown.sent;
        if !arguments.json {
            println!(
                "{:22} {:>9} {:>9} {:>11.0} {:>8.2} {:>9.1} {:>9.1} {:>9.1} {:>9.1} {:>9.1}",
                shown.name,
                shown.sent,
                shown.stored,
                shown.per_s,
                shown.cpu_us,
                shown.mean_us,
                shown.p50_us,
                shown.p95_us,
                shown.p99_us,
                shown.resident_mib
            );
        }
        all.push(shown.to_json());
    }
    anyhow::ensure!(!all.is_empty(), "--only: there is no such scenario");
    if arguments.json {
        println!("{:#}", Value::Array(all));
    }
    Ok(match is_whole {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}
