//! `cargo xtask test`: all tests of the repository, on a machine with Rust, Node and apt and nothing else.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::libtest::Libtest;
use crate::process::{self, cargo, run_lines, shown};
use crate::report::{Outcome, Report};
use crate::tools::Environment;
use crate::{Failure, check, docs, tools};

/// A test run that writes nothing for so long hangs. Building prints a line per crate, tests a line per test.
const SILENCE: Duration = Duration::from_secs(15 * 60);
const START_LIMIT: Duration = Duration::from_secs(30);

pub(crate) fn run(filters: &[String]) -> Result<(), Failure> {
    if let Some(flag) = filters.iter().find(|filter| filter.starts_with('-')) {
        return Err(format!(
            "`{flag}`: `test` takes parts of test names, no flags"
        ));
    }
    let mut report = Report::default();
    let environment = tools::provide(&mut report);
    if filters.is_empty() {
        tools::provide_cargo_deny(&mut report);
        check::steps(&mut report);
    }
    report.section("cargo test", |report| {
        rust_tests(&environment, filters, report)
    });
    if filters.is_empty() {
        report.step("cargo run --release starts a node", || match starts() {
            Ok(()) => Outcome::Passed,
            Err(why) => Outcome::Failed(why),
        });
        report.step(docs::STEP, || docs::check(docs::Profile::Release));
    }
    report.finish()
}

fn rust_tests(environment: &Environment, filters: &[String], report: &mut Report) {
    let failed_before = report.failed;
    let mut libtest = Libtest::default();
    let ended = run_lines(&mut command(environment, filters), SILENCE, |line| {
        if let Some(shown) = libtest.line(line, report) {
            println!("{shown}");
        }
    });
    libtest.end_of_program(report);
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
fn starts() -> Result<(), Failure> {
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
        .map_err(|error| format!("{}: {error}", shown(&command)))?;
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
