//! `tidegate bench report`: published reports of other systems, repeated with Tidegate.
//!
//! A report is a file of the [`catalogue`]: its tables, what it states, and for each row the command that measures it
//! here. Each command is a child process of the same program, whose JSON contains the values. Results are
//! [stored](stored_results) after each row; a [`page`] is generated from them.

mod catalogue;
mod chart;
mod child_process;
mod json_path;
mod machine;
mod measurement;
mod page;
mod row_command;
mod row_server;
mod stored_results;
mod verdict;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};

use crate::units;
use catalogue::{ConnectionKind, PublishedReport, ReportForm, ReportRow, all_reports};
use load_client::interrupt::{self, Interrupt};
use machine::MachineDescription;
use measurement::{CommandRun, MeasurementSettings, PlannedRow};
use row_server::RowServer;
use stored_results::{RowOutcome, StoredResults, StoredRow, replace_file};

const AFTER_HELP: &str = "\
Results are stored in NNN.json beside the page NNN.md, after each row. The exit status is 1 if a row failed, and 130
after an interrupt; a missed goal is a result and no failure.";

/// Arguments of `tidegate bench report`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct ReportArgs {
    /// Number of the report, such as 004, or `all`
    #[arg(value_name = "REPORT")]
    report: String,
    /// Measure the long form: as long, as large and as many as in the report
    #[arg(long)]
    full: bool,
    /// Measure only this row, and keep the results of the others (repeatable); see --list
    #[arg(long = "row", value_name = "ID", conflicts_with = "from")]
    rows: Vec<String>,
    /// Keep the rows that have been measured in the same form, and measure those that are missing or have failed
    #[arg(long, conflicts_with_all = ["from", "rows"])]
    resume: bool,
    /// Measure nothing, and generate the page again from stored results: NNN.json, or a directory with such files
    #[arg(long, value_name = "PATH")]
    from: Option<PathBuf>,
    /// List the rows with their times and commands, and end
    #[arg(long, conflicts_with_all = ["from", "rows", "resume"])]
    list: bool,
    /// Directory of pages and results
    #[arg(long, value_name = "DIRECTORY", default_value = "docs/reports")]
    output: PathBuf,
    /// Directory for the data of nodes [default: the directory for temporary files]
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
    /// Server that rows write to (repeatable): mysql, redis or opensearch, and `[USER:PASSWORD@]HOST:PORT[/DATABASE]`
    #[arg(long = "server", value_name = "KIND=ADDRESS")]
    servers: Vec<RowServer>,
    /// Longest time of a row [default: five times the expected time, at least 2 min]
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration)]
    time_limit: Option<Duration>,
    /// Program to run [default: this program]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
}

pub(crate) fn run(arguments: &ReportArgs) -> anyhow::Result<ExitCode> {
    let reports = select_reports(&arguments.report)?;
    if arguments.list {
        for report in &reports {
            print!("{}", list(report)?);
        }
        return Ok(ExitCode::SUCCESS);
    }
    fs::create_dir_all(&arguments.output)
        .with_context(|| format!("cannot create {}", arguments.output.display()))?;
    if let Some(path) = &arguments.from {
        for report in &reports {
            let file = match path.is_dir() {
                true => path.join(format!("{}.json", report.id)),
                false => path.clone(),
            };
            let results = StoredResults::read(&file, report.id)?;
            ReportFiles::new(&arguments.output, report).write_page(report, &results)?;
            println!("{}", summary(report, &results));
        }
        return Ok(ExitCode::SUCCESS);
    }
    measure_reports(&reports, arguments)
}

/// Reports by their number, or all.
fn select_reports(name: &str) -> anyhow::Result<Vec<PublishedReport>> {
    let reports = all_reports()?;
    let known: Vec<&str> = reports.iter().map(|report| report.id).collect();
    ensure!(
        name == "all" || known.contains(&name),
        "there is no report `{name}`; expected {} or all",
        known.join(", ")
    );
    let selected = reports
        .into_iter()
        .filter(|report| name == "all" || report.id == name);
    Ok(selected.collect())
}

/// Arguments of `tidegate` for all rows of all reports in both forms, with 0 for what a node provides.
pub fn commands() -> anyhow::Result<Vec<Vec<String>>> {
    let mut commands = Vec::new();
    for report in all_reports()? {
        for row in report.rows().filter(|row| row.command.is_some()) {
            for form in [ReportForm::Short, ReportForm::Full] {
                for connections in [ConnectionKind::Sockets, ConnectionKind::InMemory] {
                    let command = row.command_in(form, connections)?;
                    let preparation = row.preparation_in(form, connections)?;
                    for command in std::iter::once(command).chain(preparation) {
                        commands.push(command.arguments(|_| Ok("0".to_owned()))?);
                    }
                }
            }
        }
    }
    Ok(commands)
}

fn measure_reports(
    reports: &[PublishedReport],
    arguments: &ReportArgs,
) -> anyhow::Result<ExitCode> {
    let program = match &arguments.program {
        Some(program) => program.clone(),
        None => std::env::current_exe().context("the program has no path")?,
    };
    let directory = arguments
        .directory
        .clone()
        .unwrap_or_else(std::env::temp_dir);
    let interrupt = Interrupt::watch()?;
    let machine = MachineDescription::read();
    let settings = MeasurementSettings {
        program: &program,
        directory: &directory,
        servers: &arguments.servers,
        form: match arguments.full {
            true => ReportForm::Full,
            false => ReportForm::Short,
        },
        time_limit: arguments.time_limit,
        interrupt: &interrupt,
        machine: &machine,
    };
    let mut has_failures = false;
    for report in reports {
        let files = ReportFiles::new(&arguments.output, report);
        let mut run = ReportRun::new(report, arguments, &settings, &files)?;
        run.measure()?;
        has_failures |= run.has_failures;
        println!("{}", summary(report, &run.results));
        if interrupt.is_requested() {
            eprintln!("interrupted; --resume continues with the rows that are missing");
            return Ok(ExitCode::from(interrupt::EXIT_STATUS));
        }
    }
    Ok(match has_failures {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    })
}

fn summary(report: &PublishedReport, results: &StoredResults) -> String {
    format!(
        "{} {}: {}",
        report.id,
        report.title,
        page::count_figures(report, results)
    )
}

/// Rows with times and commands, one per line.
fn list(report: &PublishedReport) -> anyhow::Result<String> {
    let mut out = String::new();
    for row in report.rows() {
        let shown = match &row.not_measured {
            Some(reason) => format!("not measured: {reason}"),
            None => PlannedRow::new(row, ReportForm::Short)?.command.to_string(),
        };
        let [short, full] = row.seconds;
        let times = format!("{short} s, full {full} s");
        out += &format!("{} {:26} {times:20} {shown}\n", report.id, row.id);
    }
    Ok(out)
}

/// Where page and results of a report are.
struct ReportFiles {
    folder: PathBuf,
    page: PathBuf,
    results: PathBuf,
}

impl ReportFiles {
    fn new(folder: &Path, report: &PublishedReport) -> Self {
        Self {
            folder: folder.to_owned(),
            page: folder.join(format!("{}.md", report.id)),
            results: folder.join(format!("{}.json", report.id)),
        }
    }

    fn write_page(&self, report: &PublishedReport, results: &StoredResults) -> anyhow::Result<()> {
        let page = page::render(report, results);
        for (name, chart) in &page.charts {
            replace_file(&self.folder.join(name), chart)?;
        }
        replace_file(&self.page, &page.text)
    }
}

/// The measurement of the rows of one report.
struct ReportRun<'a> {
    report: &'a PublishedReport,
    settings: &'a MeasurementSettings<'a>,
    files: &'a ReportFiles,
    is_quiet: bool,
    /// Rows to measure.
    rows: Vec<PlannedRow<'a>>,
    results: StoredResults,
    /// Commands that have run, by command and node: rows may share one.
    commands: BTreeMap<String, CommandRun>,
    has_failures: bool,
}

impl<'a> ReportRun<'a> {
    fn new(
        report: &'a PublishedReport,
        arguments: &ReportArgs,
        settings: &'a MeasurementSettings<'a>,
        files: &'a ReportFiles,
    ) -> anyhow::Result<Self> {
        for id in &arguments.rows {
            match report.row(id) {
                None => bail!(
                    "report {} has no row `{id}`; --list shows all rows",
                    report.id
                ),
                Some(ReportRow {
                    not_measured: Some(reason),
                    ..
                }) => bail!("row {id} is not measured: {reason}"),
                Some(_) => {}
            }
        }
        let keeps_results = arguments.resume || !arguments.rows.is_empty();
        let results = match keeps_results && files.results.exists() {
            true => StoredResults::read(&files.results, report.id)?,
            false => StoredResults::new(report.id),
        };
        let mut rows = Vec::new();
        for row in report.rows().filter(|row| row.command.is_some()) {
            let planned = PlannedRow::new(row, settings.form)?;
            let is_selected = arguments.rows.is_empty() || arguments.rows.contains(&row.id);
            let is_done = || {
                let command = planned.command.to_string();
                results.is_done(&row.id, settings.form, &command)
            };
            if is_selected && !(arguments.resume && is_done()) {
                rows.push(planned);
            }
        }
        Ok(Self {
            report,
            settings,
            files,
            is_quiet: arguments.quiet,
            rows,
            results,
            commands: BTreeMap::new(),
            has_failures: false,
        })
    }

    /// Measures all rows. A failure is a result; only files that cannot be written end the run.
    fn measure(&mut self) -> anyhow::Result<()> {
        let rows = std::mem::take(&mut self.rows);
        // Without rows to measure, the page may still be old.
        self.write()?;
        for (number, planned) in rows.iter().enumerate() {
            let (row, key) = (planned.row, planned.key());
            if !self.commands.contains_key(&key) {
                self.print_progress(number, &rows);
                let run = CommandRun::measure(planned, self.settings);
                if self.settings.interrupt.is_requested() {
                    return Ok(());
                }
                self.commands.insert(key.clone(), run);
            }
            let stored = self.commands[&key].result_of(self.report, planned, self.settings);
            self.has_failures |= matches!(stored.outcome, RowOutcome::Failed { .. });
            self.print_result(row, &stored);
            self.results.rows.insert(row.id.clone(), stored);
            self.write()?;
        }
        Ok(())
    }

    fn write(&self) -> anyhow::Result<()> {
        self.results.write(&self.files.results)?;
        self.files.write_page(self.report, &self.results)
    }

    fn print_progress(&self, number: usize, rows: &[PlannedRow<'_>]) {
        if self.is_quiet {
            return;
        }
        let row = rows[number].row;
        let seconds = |row: &ReportRow| self.settings.form.of(row.seconds);
        let mut commands: BTreeMap<String, u32> = BTreeMap::new();
        for planned in &rows[number..] {
            let key = planned.key();
            if !self.commands.contains_key(&key) {
                commands.insert(key, seconds(planned.row));
            }
        }
        let left: u32 = commands.values().sum();
        eprintln!(
            "{} row {} of {}, {}: about {} s; all that is left: about {} min",
            self.report.id,
            number + 1,
            rows.len(),
            row.id,
            seconds(row),
            left.div_ceil(60)
        );
    }

    fn print_result(&self, row: &ReportRow, stored: &StoredRow) {
        if self.is_quiet {
            return;
        }
        let result = match &stored.outcome {
            RowOutcome::Measured => {
                let missed = page::missed_figures(self.report, row, stored);
                match &missed[..] {
                    [] => format!("measured in {:.0} s", stored.seconds),
                    missed => format!(
                        "measured in {:.0} s; missed: {}",
                        stored.seconds,
                        missed.join(", ")
                    ),
                }
            }
            RowOutcome::Failed { reason } => format!("failed: {reason}"),
            RowOutcome::NotMeasured { reason } => format!("not measured: {reason}"),
        };
        eprintln!("{} {}: {result}", self.report.id, row.id);
    }
}
