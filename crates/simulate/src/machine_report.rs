//! The result of one of several machines as JSON, and the result of all of them.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};

use crate::machine::MachineShare;
use crate::plan::SimulationPlan;
use crate::run::{PhaseResult, RunResult, add_series};

/// A larger file is no report.
const MAX_REPORT_BYTES: u64 = 1 << 30;
const FORMAT: u32 = 1;

/// What a machine has counted, with whole histograms.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct MachineReport {
    /// Version of the format.
    machine_format: u32,
    machine: MachineShare,
    seed: u64,
    phase_names: Vec<String>,
    result: RunResult,
}

impl MachineReport {
    pub(crate) fn new(machine: MachineShare, plan: &SimulationPlan, result: RunResult) -> Self {
        Self {
            machine_format: FORMAT,
            machine,
            seed: plan.seed,
            phase_names: phase_names(plan),
            result,
        }
    }

    fn read(file: &Path) -> anyhow::Result<Self> {
        let size = std::fs::metadata(file)?.len();
        ensure!(size <= MAX_REPORT_BYTES, "larger than 1 GiB");
        let text = std::fs::read(file)?;
        let report: Self = serde_json::from_slice(&text).context(
            "expected what `tidegate simulate --machines NUMBER/COUNT --json` has printed",
        )?;
        ensure!(
            report.machine_format == FORMAT,
            "format {}, expected {FORMAT}; use the same version of the program on all machines",
            report.machine_format
        );
        Ok(report)
    }
}

fn phase_names(plan: &SimulationPlan) -> Vec<String> {
    plan.phases.iter().map(|phase| phase.name.clone()).collect()
}

/// Reads the reports of all machines and adds their results.
pub(crate) fn merge(plan: &SimulationPlan, files: &[PathBuf]) -> anyhow::Result<RunResult> {
    let mut reports: Vec<MachineReport> = Vec::new();
    for file in files {
        let read = MachineReport::read(file);
        let report = read.with_context(|| format!("cannot read {}", file.display()))?;
        ensure!(
            report.phase_names == phase_names(plan),
            "{}: the report has the phases {}; the simulation has {}",
            file.display(),
            report.phase_names.join(", "),
            phase_names(plan).join(", ")
        );
        if let Some(first) = reports.first() {
            ensure!(
                first.seed == report.seed && first.machine.count == report.machine.count,
                "{}: the report is of machine {}/{} with seed {}, and the first one of {}/{} with seed {}",
                file.display(),
                report.machine.number,
                report.machine.count,
                report.seed,
                first.machine.number,
                first.machine.count,
                first.seed
            );
            ensure!(
                reports
                    .iter()
                    .all(|other| other.machine.number != report.machine.number),
                "{}: another report is of the same machine {}/{}",
                file.display(),
                report.machine.number,
                report.machine.count
            );
        }
        reports.push(report);
    }
    let expected = reports.first().map_or(0, |report| report.machine.count);
    ensure!(
        reports.len() == expected as usize,
        "{} reports, expected those of {expected} machines",
        reports.len()
    );
    let mut results = reports.into_iter().map(|report| report.result);
    let mut sum = results.next().context("no report")?;
    for result in results {
        add(&mut sum, result);
    }
    Ok(sum)
}

fn add(sum: &mut RunResult, result: RunResult) {
    for phase in result.phases {
        match sum
            .phases
            .iter_mut()
            .find(|known| known.phase == phase.phase)
        {
            Some(known) => add_phase(known, &phase),
            None => sum.phases.push(phase),
        }
    }
    add_series(&mut sum.series, &result.series);
    sum.is_interrupted |= result.is_interrupted;
    sum.interventions.extend(result.interventions);
    if let (Some(sum), Some(verified)) = (&mut sum.verified, result.verified) {
        sum.sent += verified.sent;
        sum.lost += verified.lost;
    }
}

fn add_phase(sum: &mut PhaseResult, phase: &PhaseResult) {
    sum.seconds = sum.seconds.max(phase.seconds);
    sum.connected += phase.connected;
    sum.counts.add(&phase.counts);
}
