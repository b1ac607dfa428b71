//! The fleet simulator: `tidegate simulate FILE`.
//!
//! A `definition` is what a file contains. It is compiled to a `plan`, from which `preview` prints messages and
//! `run` connects devices to a broker.

mod command_plan;
mod condition_argument;
mod created_devices;
mod creation_mark;
mod definition;
mod device_history;
mod device_limit;
mod device_protocol;
mod embedded;
mod firmware_setup;
mod fleet_compiler;
mod gateway_protocol;
mod image_digest;
mod in_process_node;
mod machine;
mod machine_report;
mod message_sampler;
mod metrics;
mod phase_plan;
mod plan;
mod plan_compiler;
mod preview;
mod random;
mod ready_made;
mod report;
mod report_page;
mod run;
mod schedule;
mod screen;
mod script;
mod script_compiler;
mod secure_login;
mod setup;
mod setup_mode;
mod simulation_run;
mod state;
mod suggestion;
mod target_api;
mod template;
mod translation;
mod verification_plan;

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use load_client::units::Unit;
use wall_clock::now_ms;

use condition_argument::ConditionArgument;
pub use definition::DefinitionErrors;
use definition::{DefinitionError, SimulationDefinition, SourceDocument, TargetDefinition};
pub use embedded::{
    CleanResult, ConditionResult, EmbeddedOptions, EmbeddedProgress, EmbeddedSimulation,
    SimulationInfo, ready_made_simulations,
};
pub use in_process_node::{InProcessNode, InProcessNodeLauncher, InProcessNodeOptions};
use in_process_node::{MemoryTargetUse, check_memory_target};
pub use load_client::interrupt::Interrupt;
pub use load_client::node_api::{NodeApi, NodeRequest, NodeTransport};
use machine::MachineShare;
use machine_report::MachineReport;
use plan::SimulationPlan;
use plan_compiler::CompileOptions;
use report::{ReportSubject, SimulationReport};
use run::{DisplayKind, MetricsEndpoint, RunDisplay, RunResult, TargetAccess};
pub use run::{PhaseSnapshot, PhaseSnapshotStage, RunSnapshot};
pub use setup::ForeignObjectError;
use setup::{CreatedObjects, SetupProgress};
use setup_mode::SetupMode;
use simulation_run::SimulationRun;

const AFTER_HELP: &str = "\
The exit status is 1 if a condition does not hold, and 2 if the file is wrong.";

/// Arguments of `tidegate simulate`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct SimulateArgs {
    /// Simulation file (TOML), or the name of one that is part of the program
    #[arg(required_unless_present = "list")]
    file: Option<PathBuf>,
    /// List the simulations that are part of the program
    #[arg(long, exclusive = true)]
    list: bool,
    /// Print the file, to begin one of your own with it
    #[arg(long, conflicts_with_all = ["check", "preview"])]
    print: bool,
    /// Check the file and end
    #[arg(long, conflicts_with = "preview")]
    check: bool,
    /// Print the first N messages without a network
    #[arg(long, value_name = "N")]
    preview: Option<usize>,
    /// Remove the products and devices that earlier runs of the file have left, and end
    #[arg(long, conflicts_with_all = ["check", "preview", "print"])]
    clean: bool,
    /// Leave products, devices and other objects on the node; the next run with --keep uses them again
    #[arg(long, conflicts_with_all = ["check", "preview", "print", "clean", "machines"])]
    keep: bool,
    /// Set a field of the file, such as fleet.meters.count=1000 or target.broker=mqtt://10.0.0.5:1883
    #[arg(long = "set", value_name = "NAME=VALUE")]
    sets: Vec<String>,
    /// Seed of all random values, instead of that of the file
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Also require a condition, such as steady:ack_p99<50ms, verify:lost==0, or disconnects==0 for each phase (repeatable)
    #[arg(long = "assert", value_name = "[PHASE:]CONDITION", conflicts_with_all = ["preview", "print", "clean"])]
    conditions: Vec<ConditionArgument>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
    /// Also write the result as an HTML page with charts
    #[arg(long, value_name = "FILE", conflicts_with_all = ["check", "preview", "print", "clean"])]
    report: Option<PathBuf>,
    /// Answer requests for metrics of the run in Prometheus' format on this address, such as 127.0.0.1:9100
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["check", "preview", "print", "clean", "merge"])]
    metrics: Option<String>,
    /// Simulate the part of one of several machines, such as 2/4; with --json the result is for --merge
    #[arg(long, value_name = "NUMBER/COUNT", conflicts_with = "merge")]
    machines: Option<MachineShare>,
    /// Print the result of several machines; give the JSON of each
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["check", "preview", "print", "clean"])]
    merge: Vec<PathBuf>,
    /// Show a status line instead of the full screen
    #[arg(long)]
    no_screen: bool,
    /// Show neither a screen nor a status line
    #[arg(long)]
    quiet: bool,
}

/// Runs a simulation, checks it or prints its messages. With `broker = "memory:"`, `launcher` starts the node.
pub fn run(
    arguments: &SimulateArgs,
    launcher: &dyn InProcessNodeLauncher,
) -> anyhow::Result<ExitCode> {
    let Some(file) = arguments.file.as_deref().filter(|_| !arguments.list) else {
        return print(&list()?);
    };
    let text = read(file)?;
    if arguments.print {
        return print(&text);
    }
    let mut document = SourceDocument::parse(file, &text)?;
    for argument in &arguments.sets {
        document.set(argument)?;
    }
    if let Some(seed) = arguments.seed {
        document.set(&format!("seed={seed}"))?;
    }
    let folder = file.parent().unwrap_or(Path::new(""));
    let options = CompileOptions {
        machine: arguments.machines,
        ..CompileOptions::default()
    };
    let (mut definition, mut plan) = plan_compiler::compile(&document, folder, options)?;
    for argument in &arguments.conditions {
        let field = || format!("--assert {}", argument.text());
        let added = argument.add_to(&mut plan);
        added.map_err(|message| document.errors(vec![DefinitionError::new(field(), message)]))?;
    }
    if let Some(count) = arguments.preview {
        let mut out = std::io::BufWriter::new(std::io::stdout().lock());
        let printed = preview::print(&plan, count, now_ms(), arguments.json, &mut out)
            .and_then(|()| out.flush());
        return match printed {
            // The reader has seen enough.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
            printed => printed
                .map(|()| ExitCode::SUCCESS)
                .context("cannot write messages"),
        };
    }
    let usage = MemoryTargetUse {
        has_machines: arguments.machines.is_some(),
        keeps: arguments.keep,
        cleans: arguments.clean,
    };
    let errors = check_memory_target(&definition, &plan, usage);
    if !errors.is_empty() {
        return Err(document.errors(errors).into());
    }
    let mut access = TargetAccess::new(&definition.target, folder, &plan)
        .with_context(|| file.display().to_string())?;
    if arguments.check {
        return print(&summary(&definition, &plan));
    }
    if !arguments.merge.is_empty() {
        let result = machine_report::merge(&plan, &arguments.merge)?;
        let merged = (jiff::Timestamp::now(), &result);
        let report = make_report(arguments, (&definition, &plan), &access, merged)?;
        return finish(arguments, &report);
    }
    if let Some(page) = &arguments.report {
        // A page that cannot be written is known before a long run, and an earlier one stays until its end.
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(page)
            .with_context(|| format!("cannot write the report {}", page.display()))?;
    }
    let is_quiet = arguments.quiet || arguments.json;
    let interrupt = Interrupt::watch()?;
    if access.is_in_memory() {
        let node = launcher
            .start(&node_options(&definition.target, folder, &plan))
            .context("cannot start the node in this process")?;
        definition.target.api = node.api_url();
        definition.target.token_file = Some(node.token_file());
        access.set_node(node);
    }
    let is_temporary = access.is_in_memory() && definition.target.node.data_dir.is_none();
    let show_progress = |progress: SetupProgress| {
        if !is_quiet {
            print_progress(progress);
        }
    };
    let run = SimulationRun {
        definition: &definition,
        plan: &plan,
        access: &access,
        node: SimulationRun::node_of_file((&definition, &plan), folder)?,
        mode: SetupMode {
            shares_products: arguments.machines.is_some(),
            // What a temporary node has goes with it.
            keeps: arguments.keep || is_temporary,
            is_embedded: false,
        },
        interrupt: &interrupt,
        progress: &show_progress,
    };
    if arguments.clean {
        let setup = run
            .setup()
            .context("no product of the file has create = true; there is nothing to remove")?;
        let removed = setup.clean()?;
        for title in &removed.kept {
            eprintln!("{title} is kept: no simulation created it");
        }
        return print(&format!(
            "removed {} devices and {} other objects\n",
            removed.devices, removed.others
        ));
    }
    let metrics = arguments.metrics.as_deref();
    let metrics = metrics.map(MetricsEndpoint::bind).transpose()?;
    if let Some(metrics) = &metrics {
        eprintln!("metrics at http://{}/metrics", metrics.address());
    }
    let started = jiff::Timestamp::now();
    let subject = (subject_name(arguments), access.broker.as_str());
    let open_display = |_: &CreatedObjects| {
        let kind = DisplayKind::choose(is_quiet, arguments.no_screen);
        RunDisplay::open(kind, &interrupt, subject)
    };
    let result = run.run(metrics, open_display, || {})?;
    let report = make_report(arguments, (&definition, &plan), &access, (started, &result))?;
    match arguments.machines {
        Some(machine) if arguments.json => {
            let report = MachineReport::new(machine, &plan, result);
            print(&format!("{}\n", serde_json::to_string(&report)?))
        }
        _ => finish(arguments, &report),
    }
}

/// What the node in this process is started with.
fn node_options(
    target: &TargetDefinition,
    folder: &Path,
    plan: &SimulationPlan,
) -> InProcessNodeOptions {
    let subscribers = plan.verification.as_ref();
    let subscribers = subscribers.map_or(0, |verification| u64::from(verification.subscribers));
    InProcessNodeOptions {
        data_dir: target.node.data_dir.as_ref().map(|dir| folder.join(dir)),
        shards: target.node.shards,
        connections: plan.connections() + subscribers,
    }
}

/// The report of a result; also written as a page if that is asked for.
fn make_report(
    arguments: &SimulateArgs,
    (definition, plan): (&SimulationDefinition, &SimulationPlan),
    access: &TargetAccess,
    (started, result): (jiff::Timestamp, &RunResult),
) -> anyhow::Result<SimulationReport> {
    let subject = ReportSubject {
        name: subject_name(arguments),
        description: definition.description.clone(),
        started: format!("{started:.0}"),
    };
    let report = SimulationReport::new(subject, plan, access, result);
    if let Some(page) = &arguments.report {
        std::fs::write(page, report_page::render(&report))
            .with_context(|| format!("cannot write the report {}", page.display()))?;
    }
    Ok(report)
}

/// The name of the file or of the ready-made simulation.
fn subject_name(arguments: &SimulateArgs) -> String {
    let file = arguments.file.as_deref().and_then(Path::file_name);
    file.unwrap_or_default().display().to_string()
}

/// Prints the result; the exit status tells whether all conditions hold.
fn finish(arguments: &SimulateArgs, report: &SimulationReport) -> anyhow::Result<ExitCode> {
    match arguments.json {
        true => print(&format!("{:#}\n", report.to_json()))?,
        false => print(&report.to_text())?,
    };
    Ok(if report.holds() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// A file, or a ready-made simulation if there is no file of this name.
fn read(file: &Path) -> anyhow::Result<String> {
    match std::fs::read_to_string(file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let ready_made = file.to_str().and_then(ready_made::find);
            let simulation = ready_made.with_context(|| {
                let names = ready_made::READY_MADE.iter().map(|known| known.name);
                let near = rules::nearest_name(&file.to_string_lossy(), names)
                    .map_or(String::new(), |near| format!("did you mean `{near}`? "));
                format!(
                    "there is no file {}, and no simulation of this name; {near}see `tidegate simulate --list`",
                    file.display()
                )
            })?;
            Ok(simulation.text.to_owned())
        }
        read => read.with_context(|| format!("cannot read {}", file.display())),
    }
}

fn list() -> anyhow::Result<String> {
    let mut text = String::new();
    for simulation in ready_made::READY_MADE {
        let document = SourceDocument::parse(Path::new(simulation.name), simulation.text)?;
        let definition = SimulationDefinition::read(&document)?;
        text += &format!("{:<16} {}\n", simulation.name, definition.description);
    }
    Ok(text)
}

fn print(text: &str) -> anyhow::Result<ExitCode> {
    std::io::stdout()
        .write_all(text.as_bytes())
        .context("cannot write the result")?;
    Ok(ExitCode::SUCCESS)
}

fn print_progress(progress: SetupProgress) {
    let count = |count: u64| Unit::Count.format(count as f64);
    let verb = match progress.is_removal {
        true => "removed",
        false => "created",
    };
    let (done, total) = (count(progress.done), count(progress.total));
    match progress.done == progress.total {
        true => eprint!("\r\x1b[K"),
        false => eprint!("\r\x1b[K{verb} {done} of {total} devices"),
    }
}

fn summary(definition: &SimulationDefinition, plan: &SimulationPlan) -> String {
    let mut text = String::new();
    if !definition.description.is_empty() {
        text += &format!("{}\n", definition.description);
    }
    for fleet in &plan.fleets {
        text += &format!(
            "fleet {}: {} devices, {} values, {} sends, {} responses, up to {:.1} messages/s\n",
            fleet.name,
            fleet.count,
            fleet.state.names().len(),
            fleet.sends.len(),
            fleet.responses.len(),
            fleet.messages_per_s(),
        );
    }
    let phases: Vec<&str> = plan
        .phases
        .iter()
        .map(|phase| phase.name.as_str())
        .collect();
    text += &format!("phases: {}\nThe file is valid.\n", phases.join(", "));
    text
}
