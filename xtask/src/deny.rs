//! `cargo deny`: what we build on has licences that suit ours, comes from crates.io, and is not known to be vulnerable.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::TaskError;
use crate::install_once::install_once;
use crate::process::{capture, cargo, find_program, run_lines, run_step};
use crate::report::{Report, StepOutcome};

const VERSION: &str = "0.20.2";
/// Building it takes a minute or two; a crate that compiles for longer than this hangs.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(5 * 60);
/// For fetching the advisories.
const FETCH_LIMIT_S: &str = "120";

/// Builds the program once, quickly rather than well: it runs for less than a second.
pub(crate) fn install(tools: &Path) -> Result<(), TaskError> {
    if find_program("cargo-deny").is_some() {
        return Ok(());
    }
    install_once(&tools.join("cargo-deny"), VERSION, |dir| {
        println!(
            "    cargo install cargo-deny {VERSION} below {}",
            dir.display()
        );
        let build = dir.join("build");
        let mut command = cargo();
        command.args(["install", "--locked", "--quiet", "cargo-deny"]);
        command.args(["--version", VERSION, "--no-default-features", "--root"]);
        command.arg(dir).arg("--target-dir").arg(&build);
        for (setting, value) in [("OPT_LEVEL", "0"), ("LTO", "off"), ("CODEGEN_UNITS", "64")] {
            command.env(format!("CARGO_PROFILE_RELEASE_{setting}"), value);
        }
        let mut printed = String::new();
        let status = run_lines(&mut command, OUTPUT_TIMEOUT, |line| {
            printed.push_str(line);
            printed.push('\n');
        })?;
        if !status.success() {
            return Err(format!("cargo install ended with {status}\n{printed}"));
        }
        std::fs::remove_dir_all(build).map_err(|error| error.to_string())
    })
}

fn program() -> Option<PathBuf> {
    let unpacked = crate::target_dir().join("tools/cargo-deny/bin/cargo-deny");
    find_program("cargo-deny").or_else(|| unpacked.is_file().then_some(unpacked))
}

pub(crate) fn steps(report: &mut Report) {
    const SOURCES: &str = "cargo deny: licences, sources, duplicates";
    const ADVISORIES: &str = "cargo deny: advisories";
    let Some(program) = program() else {
        report.run_step(SOURCES, || {
            StepOutcome::Skipped("no cargo-deny here; run `cargo xtask tools`".into())
        });
        return;
    };
    let deny = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.args(arguments).current_dir(crate::root());
        command
    };
    report.run_step(SOURCES, || {
        let mut command = deny(&["--locked", "--log-level", "error", "check"]);
        run_step(command.args(["--hide-inclusion-graph", "licenses", "bans", "sources"]))
    });
    report.run_step(ADVISORIES, || {
        let mut fetch = Command::new("timeout");
        fetch.arg(FETCH_LIMIT_S).arg(&program).args(["fetch", "db"]);
        match capture(fetch.current_dir(crate::root())) {
            Err(_) => StepOutcome::Skipped("the advisory database cannot be reached".into()),
            Ok(_) => run_step(&mut deny(&["--locked", "check", "advisories"])),
        }
    });
}
