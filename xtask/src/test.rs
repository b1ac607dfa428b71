//! `cargo xtask test`: all tests of the repository, on a machine with Rust, Node and apt and nothing else.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::process::{self, cargo, command_line, run_lines};
use crate::report::{Report, StepOutcome};
use crate::test_output::TestOutputParser;
use crate::tools::Environment;
use crate::{TaskError, check, docs, tools};

/// A test run that writes nothing for so long hangs. Building prints a line per crate, tests a line per test.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(15 * 60);
const START_LIMIT: Duration = Duration::from_secs(30);

pub(crate) fn run(filters: &[String]) -> Result<(), TaskError> {
    if let Some(flag) = filters.iter().find(|filter| filter.starts_with('-')) {
        return Err(format!(
            "`{flag}`: `test` takes parts of test names, no flags"
        ));
    }
    let mut report = Report::default();
    let environment = tools::install_all(&mut report);
    if filters.is_empty() {
        tools::install_cargo_deny(&mut report);
        check::steps(&mut report);
    }
    report.run_section("cargo test", |report| {
        run_rust_tests(&environment, filters, report)
    });
    if filters.is_empty() {
        report.run_step(
            "cargo run --release starts a node",
            || match check_quick_start() {
                Ok(()) => StepOutcome::Passed,
                Err(why) => StepOutcome::Failed(why),
            },
        );
        report.run_step(docs::STEP, || docs::check(docs::BuildProfile::Release));
    }
    report.finish()
}

fn run_rust_tests(environment: &Environment, filters: &[String], report: &mut Report) {
    let failed_before = report.failed;
    let mut libtest = TestOutputParser::default();
    let ended = run_lines(&mut command(environment, filters), OUTPUT_TIMEOUT, |line| {
        if let Some(shown) = libtest.read_line(line, report) {
            println!("{shown}");
        }
    });
    libtest.finish_program(report);
    match ended {
        Err(why) => report.fail(why),
        // Not a test but the build failed.
        Ok(status) if !status.success() && report.failed == failed_before => {
            report.fail(format!("cargo test ended with {status}"));
        }
        Ok(_) => {}
    }
}

/// The first command of the README, on free ports: it must come up, and end well when told to.
fn check_quick_start() -> Result<(), TaskError> {
    process::run(cargo().args(["build", "--release"]))?;
    let data_dir = crate::target_dir().join("first-start");
    let _ = std::fs::remove_dir_all(&data_dir);
    let mut command = cargo();
    command
        .args(["run", "--release", "--quiet", "--", "--data-dir"])
        .arg(&data_dir);
    for listener in ["--mqtt", "--ws", "--http"] {
        command.args([listener, "127.0.0.1:0"]);
    }
    let mut child = command
        .spawn()
        .map_err(|error| format!("{}: {error}", command_line(&command)))?;
    let node_file = data_dir.join("node.json");
    let deadline = Instant::now() + START_LIMIT;
    // cargo replaces itself by the program, so this is the program's own process.
    while !node_file.exists() {
        if let Ok(Some(status)) = child.try_wait() {
            return Err(format!("it ended ({status}) instead of starting"));
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            return Err(format!("not ready after {START_LIMIT:?}"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    process::run(Command::new("kill").args(["-TERM", &child.id().to_string()]))?;
    let status = child.wait().map_err(|error| error.to_string())?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("stopped with {status}"))
    }
}

/// `cargo test` for everything, with as many open files as the machine allows: the floods need thousands.
fn command(environment: &Environment, filters: &[String]) -> Command {
    let mut command = Command::new("sh");
    command.args([
        "-c",
        r#"ulimit -Sn "$(ulimit -Hn)" 2>/dev/null; exec "$@""#,
        "sh",
    ]);
    command
        .arg(cargo().get_program())
        .current_dir(crate::root());
    command.args(["test", "--workspace", "--no-fail-fast"]);
    command.args(crate::RELEASED_FEATURES);
    if !filters.is_empty() {
        command.arg("--").args(filters);
    }
    command.env("CARGO_TERM_COLOR", "never");
    for (name, value) in environment {
        command.env(name, value);
    }
    command
}
