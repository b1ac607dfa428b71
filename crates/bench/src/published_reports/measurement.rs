//! Measuring one row: what it needs, its node, its command, and the values in the command's result.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustix::process::{Resource, getrlimit};
use serde_json::Value;
use wall_clock::now_ms;

use super::catalogue::{PublishedReport, ReportForm, ReportRow, RowNeeds, RowNode};
use super::child_process::{ChildOutput, run_child};
use super::json_path::number_at;
use super::machine::{self, MachineDescription};
use super::row_command::{RowCommand, split};
use super::stored_results::{RowOutcome, StoredRow};
use crate::own_node::{OwnNode, OwnNodeOptions};
use load_client::interrupt::Interrupt;

/// Least time that a command has.
const MIN_TIME_LIMIT: Duration = Duration::from_secs(120);
/// Time that a command has, by its expected time.
const TIME_LIMIT_FACTOR: u32 = 5;
const MIB_PER_GIB: u64 = 1024;

/// How rows are measured.
pub(super) struct MeasurementSettings<'a> {
    /// The program that is run; it is also the node.
    pub(super) program: &'a Path,
    /// For temporary files of nodes.
    pub(super) directory: &'a Path,
    pub(super) form: ReportForm,
    pub(super) time_limit: Option<Duration>,
    pub(super) interrupt: &'a Interrupt,
    pub(super) machine: &'a MachineDescription,
}

/// A command that has run. Rows with the same command share it.
#[derive(Clone)]
pub(super) struct CommandRun {
    started_ms: u64,
    seconds: f64,
    other_cores: Option<f64>,
    result: Result<ChildOutput, OutputError>,
}

/// Why a command has no output.
#[derive(Clone)]
enum OutputError {
    Missing(String),
    Failed(String),
}

impl CommandRun {
    /// Runs the command of a row. Whatever goes wrong is part of the result.
    pub(super) fn measure(
        row: &ReportRow,
        command: &RowCommand,
        settings: &MeasurementSettings<'_>,
    ) -> Self {
        let other_cores = machine::used_cores();
        let started_ms = now_ms();
        let began = Instant::now();
        let result = match missing_need(row.needs, settings) {
            Some(reason) => Err(OutputError::Missing(reason)),
            // A thread of its own, because a node and its command are kept on certain cores from then on.
            None => std::thread::scope(|scope| {
                let thread = scope.spawn(|| run_command(row, command, settings));
                let output = thread.join();
                let output = output.unwrap_or_else(|_| bail!("the thread of the row panicked"));
                output.map_err(|error| OutputError::Failed(format!("{error:#}")))
            }),
        };
        Self {
            started_ms,
            seconds: began.elapsed().as_secs_f64(),
            other_cores,
            result,
        }
    }

    /// The result of a row with this command.
    pub(super) fn result_of(
        &self,
        report: &PublishedReport,
        row: &ReportRow,
        command: &RowCommand,
        settings: &MeasurementSettings<'_>,
    ) -> StoredRow {
        let mut values = BTreeMap::new();
        let outcome = match &self.result {
            Ok(output) => match read_values(report, row, output, &mut values) {
                Ok(()) => RowOutcome::Measured,
                Err(error) => RowOutcome::Failed {
                    reason: format!("{error:#}"),
                },
            },
            Err(OutputError::Failed(reason)) => RowOutcome::Failed {
                reason: reason.clone(),
            },
            Err(OutputError::Missing(reason)) => RowOutcome::NotMeasured {
                reason: reason.clone(),
            },
        };
        StoredRow {
            form: settings.form.name().to_owned(),
            command: command.to_string(),
            outcome,
            values,
            started_ms: self.started_ms,
            seconds: self.seconds,
            other_cores: self.other_cores,
            machine: settings.machine.clone(),
        }
    }
}

/// What the machine lacks for the row.
fn missing_need(needs: RowNeeds, settings: &MeasurementSettings<'_>) -> Option<String> {
    let form = settings.form;
    let files = form.of(needs.open_files);
    let limit = getrlimit(Resource::Nofile).maximum;
    if let Some(limit) = limit.filter(|limit| *limit < files) {
        return Some(format!(
            "needs {files} open files in one process, and the limit is {limit} (`ulimit -Hn`)"
        ));
    }
    let memory = form.of(needs.memory_gib);
    if let Some(available) = machine::available_memory_gib()
        && available < memory as f64
    {
        return Some(format!(
            "needs {memory} GiB of memory, and {available:.1} GiB are available"
        ));
    }
    let disk = form.of(needs.disk_gib);
    let status = rustix::fs::statvfs(settings.directory).ok()?;
    let free = (status.f_bavail * status.f_frsize) >> 20;
    (free < disk * MIB_PER_GIB).then(|| {
        format!(
            "needs {disk} GiB of free space in {}, and there are {:.1}; --directory names another place",
            settings.directory.display(),
            free as f64 / MIB_PER_GIB as f64
        )
    })
}

/// Starts the node, if the row has one, and runs the command.
fn run_command(
    row: &ReportRow,
    command: &RowCommand,
    settings: &MeasurementSettings<'_>,
) -> anyhow::Result<ChildOutput> {
    let node = row.node.as_ref();
    let node = node.map(|node| start_node(node, settings)).transpose()?;
    let arguments = command.arguments(|name| {
        let node = node.as_ref().context("the row has no node")?;
        Ok(match name {
            "pid" => node.pid().to_string(),
            "token_file" => node.token_file().display().to_string(),
            "data_dir" => node.data_dir().display().to_string(),
            listener => node.address(listener)?,
        })
    })?;
    let expected = Duration::from_secs(settings.form.of(row.seconds).into());
    let limit = settings
        .time_limit
        .unwrap_or((expected * TIME_LIMIT_FACTOR).max(MIN_TIME_LIMIT));
    run_child(settings.program, &arguments, limit, settings.interrupt)
}

fn start_node(node: &RowNode, settings: &MeasurementSettings<'_>) -> anyhow::Result<OwnNode> {
    let arguments = split(&node.arguments)?;
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let options = OwnNodeOptions {
        benchmark: "report",
        parent: Some(settings.directory),
        arguments: &arguments,
        configuration: &node.configuration,
        is_pinned: !node.shares_cores,
    };
    OwnNode::start(settings.program, &options)
}

/// Takes the values of the row's figures out of the output. A status other than 0 is a failure, even with values.
fn read_values(
    report: &PublishedReport,
    row: &ReportRow,
    output: &ChildOutput,
    values: &mut BTreeMap<String, f64>,
) -> anyhow::Result<()> {
    let json: Option<Value> = serde_json::from_slice(&output.stdout).ok();
    let figures = report.figures_of(row);
    let figures: Vec<_> = figures
        .filter(|figure| figure.not_measured.is_none())
        .collect();
    for figure in &figures {
        let path = row.value_path(figure);
        let number = path
            .zip(json.as_ref())
            .and_then(|(path, json)| number_at(json, path));
        if let Some(number) = number {
            values.insert(figure.id.clone(), number * figure.scale);
        }
    }
    if !output.status.success() {
        let reason = match &output.error[..] {
            "" => "the command says that something went wrong",
            error => error,
        };
        bail!("{}: {reason}", output.status);
    }
    let missing: Vec<&str> = figures
        .iter()
        .filter(|figure| !values.contains_key(&figure.id))
        .map(|figure| &figure.id[..])
        .collect();
    match &missing[..] {
        [] => Ok(()),
        missing => bail!("the result does not contain {}", missing.join(", ")),
    }
}
