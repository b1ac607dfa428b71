//! Measuring one row: what it needs, its node, its command, and the values in the command's result.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use rustix::process::{Resource, getrlimit};
use serde_json::Value;
use wall_clock::now_ms;

use super::catalogue::{ConnectionKind, PublishedReport, ReportForm, ReportRow, RowNeeds, RowNode};
use super::child_process::{ChildOutput, run_child};
use super::json_path::number_at;
use super::machine::{self, MachineDescription};
use super::row_command::{RowCommand, split};
use super::row_server::RowServer;
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
    /// Servers of other systems, of which the first of a kind is used.
    pub(super) servers: &'a [RowServer],
    pub(super) form: ReportForm,
    pub(super) time_limit: Option<Duration>,
    pub(super) interrupt: &'a Interrupt,
    pub(super) machine: &'a MachineDescription,
}

/// A row and what measures it.
pub(super) struct PlannedRow<'a> {
    pub(super) row: &'a ReportRow,
    pub(super) command: RowCommand,
    connections: ConnectionKind,
}

impl<'a> PlannedRow<'a> {
    /// The row in a form, with sockets where this process may have enough open files.
    pub(super) fn new(row: &'a ReportRow, form: ReportForm) -> anyhow::Result<Self> {
        let connections = row.connections_in(form, open_file_limit());
        Ok(Self {
            row,
            command: row.command_in(form, connections)?,
            connections,
        })
    }

    /// What rows must have in common to share a command.
    pub(super) fn key(&self) -> String {
        let node = self.row.node.as_ref();
        let node = node.map(|node| (&node.arguments, &node.configuration));
        format!("{} {node:?} {:?}", self.command, self.row.preparation)
    }
}

/// Open files that this process and its children may have; `None`: any number.
fn open_file_limit() -> Option<u64> {
    getrlimit(Resource::Nofile).maximum
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
    pub(super) fn measure(planned: &PlannedRow<'_>, settings: &MeasurementSettings<'_>) -> Self {
        let other_cores = machine::used_cores();
        let started_ms = now_ms();
        let began = Instant::now();
        let result = match missing_server(planned.row, settings)
            .or_else(|| missing_need(planned, settings))
        {
            Some(reason) => Err(OutputError::Missing(reason)),
            // A thread of its own, because a node and its command are kept on certain cores from then on.
            None => std::thread::scope(|scope| {
                let thread = scope.spawn(|| run_command(planned, settings));
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
        planned: &PlannedRow<'_>,
        settings: &MeasurementSettings<'_>,
    ) -> StoredRow {
        let mut values = BTreeMap::new();
        let outcome = match &self.result {
            Ok(output) => match read_values(report, planned, output, &mut values) {
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
            command: planned.command.to_string(),
            is_in_memory: planned.connections == ConnectionKind::InMemory,
            outcome,
            values,
            started_ms: self.started_ms,
            seconds: self.seconds,
            other_cores: self.other_cores,
            machine: settings.machine.clone(),
        }
    }
}

/// The server that is not given.
fn missing_server(row: &ReportRow, settings: &MeasurementSettings<'_>) -> Option<String> {
    let kind = row.server?;
    let mut servers = settings.servers.iter();
    let is_missing = !servers.any(|server| server.kind == kind);
    is_missing.then(|| kind.missing_reason())
}

/// What the machine lacks for the row.
fn missing_need(planned: &PlannedRow<'_>, settings: &MeasurementSettings<'_>) -> Option<String> {
    let (form, needs): (ReportForm, RowNeeds) = (settings.form, planned.row.needs);
    let files = match planned.connections {
        ConnectionKind::Sockets => form.of(needs.open_files),
        ConnectionKind::InMemory => 0,
    };
    if let Some(limit) = open_file_limit().filter(|limit| *limit < files) {
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
    planned: &PlannedRow<'_>,
    settings: &MeasurementSettings<'_>,
) -> anyhow::Result<ChildOutput> {
    let (row, command) = (planned.row, &planned.command);
    let node = row.node.as_ref();
    let mut servers = settings.servers.iter();
    let server = servers.find(|server| Some(server.kind) == row.server);
    let expected = Duration::from_secs(settings.form.of(row.seconds).into());
    let limit = settings
        .time_limit
        .unwrap_or((expected * TIME_LIMIT_FACTOR).max(MIN_TIME_LIMIT));
    let run = |command: &RowCommand, node: Option<&OwnNode>| {
        let arguments = command.arguments(|name| {
            let node = node.context("the row has no node")?;
            node_value(node, name)
        })?;
        run_child(settings.program, &arguments, limit, settings.interrupt)
    };
    let preparation = row.preparation_in(settings.form, planned.connections)?;
    if planned.connections == ConnectionKind::InMemory {
        return run_in_memory(preparation.as_ref(), command, settings, limit);
    }
    let Some(node) = node else {
        return run(command, None);
    };
    with_node_options(node, server, settings, |options| {
        let mut node = OwnNode::start(settings.program, options)?;
        if let Some(preparation) = &preparation {
            check_prepared(&run(preparation, Some(&node))?)?;
            node = node.restart(settings.program, options)?;
        }
        run(command, Some(&node))
    })
}

/// Runs the commands of a row one after the other, each of which starts a node in its process. They share its data.
fn run_in_memory(
    preparation: Option<&RowCommand>,
    command: &RowCommand,
    settings: &MeasurementSettings<'_>,
    limit: Duration,
) -> anyhow::Result<ChildOutput> {
    let directory = DataDirectory::new(settings.directory);
    let run = |command: &RowCommand| {
        let arguments = command.arguments(|name| {
            ensure!(name == "data_dir", "{{{name}}} is of a node with sockets");
            Ok(directory.0.display().to_string())
        })?;
        run_child(settings.program, &arguments, limit, settings.interrupt)
    };
    if let Some(preparation) = preparation {
        check_prepared(&run(preparation)?)?;
    }
    run(command)
}

fn check_prepared(prepared: &ChildOutput) -> anyhow::Result<()> {
    ensure!(
        prepared.status.success(),
        "the preparation failed: {}: {}",
        prepared.status,
        prepared.error
    );
    Ok(())
}

/// The data of nodes in the processes of commands, removed with this value.
struct DataDirectory(PathBuf);

impl DataDirectory {
    /// The first node creates it.
    fn new(parent: &Path) -> Self {
        let name = format!("tidegate-bench-in-memory-{}", std::process::id());
        Self(parent.join(name))
    }
}

impl Drop for DataDirectory {
    fn drop(&mut self) {
        // There is none if no node was started.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What a node provides to commands.
fn node_value(node: &OwnNode, name: &str) -> anyhow::Result<String> {
    Ok(match name {
        "pid" => node.pid().to_string(),
        "token_file" => node.token_file().display().to_string(),
        "data_dir" => node.data_dir().display().to_string(),
        listener => node.address(listener)?,
    })
}

fn with_node_options<T>(
    node: &RowNode,
    server: Option<&RowServer>,
    settings: &MeasurementSettings<'_>,
    run: impl FnOnce(&OwnNodeOptions<'_>) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let configuration = match server {
        Some(server) => server.fill_in(&node.configuration),
        None => node.configuration.clone(),
    };
    let arguments = split(&node.arguments)?;
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let options = OwnNodeOptions {
        benchmark: "report",
        parent: Some(settings.directory),
        arguments: &arguments,
        configuration: &configuration,
        is_pinned: !node.shares_cores,
    };
    run(&options)
}

/// Takes the values of the row's figures out of the output. A status other than 0 is a failure, even with values.
fn read_values(
    report: &PublishedReport,
    planned: &PlannedRow<'_>,
    output: &ChildOutput,
    values: &mut BTreeMap<String, f64>,
) -> anyhow::Result<()> {
    let row = planned.row;
    let is_in_memory = planned.connections == ConnectionKind::InMemory;
    let json: Option<Value> = serde_json::from_slice(&output.stdout).ok();
    let figures = report.figures_of(row);
    let figures: Vec<_> = figures
        .filter(|figure| figure.not_measured.is_none())
        .filter(|figure| is_in_memory || !figure.only_in_memory)
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
    let missing: Vec<&str> = figures
        .iter()
        .filter(|figure| !values.contains_key(&figure.id))
        .map(|figure| &figure.id[..])
        .collect();
    let is_judged_by_values = row.is_judged_by_values && missing.is_empty();
    if !output.status.success() && !is_judged_by_values {
        let reason = match &output.error[..] {
            "" => "the command says that something went wrong",
            error => error,
        };
        bail!("{}: {reason}", output.status);
    }
    match &missing[..] {
        [] => Ok(()),
        missing => bail!("the result does not contain {}", missing.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::ExitStatus;

    use super::*;

    #[test]
    fn a_wrong_value_of_one_row_fails_no_other_row() {
        let text = r#"
            title = "T"
            source = "S"
            method = "M"
            [[figure]]
            id = "level"
            label = "level"
            better = "equal"
            ours = "level"
            [[section]]
            title = "One"
            text = ""
            [[section.row]]
            id = "a"
            label = "A"
            command = "bench alerts"
            goals = { level = 1 }
            values = { level = "/a" }
        "#;
        let output = |json: &str| ChildOutput {
            status: ExitStatus::from_raw(1 << 8),
            stdout: json.as_bytes().to_vec(),
            error: "b has another level".to_owned(),
        };
        let read = |text: &str, json: &str| {
            let report: PublishedReport = toml::from_str(text).expect("well-formed");
            let row = report.row("a").expect("it is there");
            let planned = PlannedRow::new(row, ReportForm::Short).expect("valid");
            read_values(&report, &planned, &output(json), &mut BTreeMap::new())
        };
        let shared = text.replace("goals =", "is_judged_by_values = true\ngoals =");
        assert!(read(&shared, r#"{"a": 2, "b": 0}"#).is_ok());
        assert!(read(text, r#"{"a": 1, "b": 0}"#).is_err());
        let error = read(&shared, "{}").expect_err("no value").to_string();
        assert!(error.contains("b has another level"), "{error}");
    }
}
