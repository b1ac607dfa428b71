//! `cargo xtask test`: all tests of the repository, on a machine with Rust, Node and apt and nothing else.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::process::{self, cargo, command_line};
use crate::report::{Report, StepOutcome};
use crate::tools::Environment;
use crate::{TaskError, check, deny, disk_space, docs, test_programs, tools};

const START_LIMIT: Duration = Duration::from_secs(30);

/// The dev profile as the release profile is: no debug assertions, wrapping arithmetic. What is not of this workspace
/// remains as it was built for the tests.
///
/// The real release profile costs 20 to 30 minutes of CPU time, more than all tests. What it has besides, the optimisation and
/// the numbers of codegen units, selects no code: what builds and starts with these settings does so with the real ones. The
/// check of profiles (`profiles.rs`) finds settings for packages that do not exist.
const LIKE_RELEASE: [&str; 5] = [
    "profile.dev.debug-assertions=false",
    "profile.dev.overflow-checks=false",
    "profile.dev.debug=false",
    r#"profile.dev.package."*".debug-assertions=true"#,
    r#"profile.dev.package."*".overflow-checks=true"#,
];

pub(crate) fn run(filters: &[String]) -> Result<(), TaskError> {
    if let Some(flag) = filters.iter().find(|filter| filter.starts_with('-')) {
        return Err(format!(
            "`{flag}`: `test` takes parts of test names, no flags"
        ));
    }
    // An estimate: a run that needs less must not fail because of it.
    if let Err(why) = disk_space::check() {
        eprintln!("warning: {why}");
    }
    let is_whole = filters.is_empty();
    let mut report = Report::default();
    let (environment, programs) = std::thread::scope(|scope| {
        // Mostly waits for downloads.
        let tools = scope.spawn(|| install_tools(is_whole));
        if is_whole {
            check::steps(&mut report);
        }
        let mut programs = Vec::new();
        report.run_section("build of the tests", |report| {
            match test_programs::build() {
                Ok(built) => programs = built,
                Err(why) => report.fail(why),
            }
        });
        let (environment, installed) = tools.join().expect("installing does not panic");
        report.append(installed);
        (environment, programs)
    });
    if is_whole {
        deny::steps(&mut report);
    }
    report.run_section("tests", |report| {
        disk_space::print_peak(|| test_programs::run(programs, filters, &environment, report));
    });
    if is_whole {
        report.run_step(docs::STEP, docs::check);
        // Last, because it replaces the program that the tests start.
        report.run_step("cargo run without debug assertions starts a node", || {
            match check_quick_start() {
                Ok(()) => StepOutcome::Passed,
                Err(why) => StepOutcome::Failed(why),
            }
        });
    }
    report.finish()
}

fn install_tools(is_whole: bool) -> (Environment, Report) {
    let mut report = Report::default();
    let environment = tools::install_all(&mut report);
    if is_whole {
        tools::install_cargo_deny(&mut report);
    }
    (environment, report)
}

/// The first command of the README, on free ports: it must come up, and end well when told to. It is compiled with the
/// features of the program alone, which the tests are not: those of their own dependencies are added there.
fn check_quick_start() -> Result<(), TaskError> {
    let with_profile = |subcommand| {
        let mut command = cargo();
        command.arg(subcommand);
        for setting in LIKE_RELEASE {
            command.args(["--config", setting]);
        }
        command
    };
    process::run(&mut with_profile("build"))?;
    let data_dir = crate::target_dir().join("first-start");
    let _ = std::fs::remove_dir_all(&data_dir);
    let mut command = with_profile("run");
    command.args(["--quiet", "--", "--data-dir"]).arg(&data_dir);
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
