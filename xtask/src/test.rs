//! `cargo xtask test`: all tests of the repository, on a machine with Rust, Node and apt and nothing else.

use std::process::Command;
use std::time::Duration;

use crate::libtest::Libtest;
use crate::process::{cargo, run_lines};
use crate::report::Report;
use crate::tools::Environment;
use crate::{Failure, check, tools};

/// A test run that writes nothing for so long hangs. Building prints a line per crate, tests a line per test.
const SILENCE: Duration = Duration::from_secs(15 * 60);

pub(crate) fn run(filters: &[String]) -> Result<(), Failure> {
    if let Some(flag) = filters.iter().find(|filter| filter.starts_with('-')) {
        return Err(format!(
            "`{flag}`: `test` takes parts of test names, no flags"
        ));
    }
    let mut report = Report::default();
    let environment = tools::provide(&mut report);
    if filters.is_empty() {
        check::steps(&mut report);
    }
    report.section("cargo test", |report| {
        rust_tests(&environment, filters, report)
    });
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
    if !filters.is_empty() {
        command.arg("--").args(filters);
    }
    command.env("CARGO_TERM_COLOR", "never");
    for (name, value) in environment {
        command.env(name, value);
    }
    command
}
