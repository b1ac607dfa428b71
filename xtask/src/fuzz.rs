//! `cargo xtask fuzz`: runs the fuzz targets of `fuzz/` with cargo-fuzz on the nightly toolchain.

use std::fs;
use std::process::Command;

use crate::process::{self, succeeds};
use crate::{TaskError, parse_number_option, reject_extra_arguments};

const DEFAULT_SECONDS: u64 = 60;

pub(crate) fn run(arguments: &[String]) -> Result<(), TaskError> {
    let mut arguments = arguments.to_vec();
    let seconds = parse_number_option(&mut arguments, "--seconds")?.unwrap_or(DEFAULT_SECONDS);
    let targets = targets()?;
    let chosen = if arguments.is_empty() {
        targets.clone()
    } else {
        vec![arguments.remove(0)]
    };
    reject_extra_arguments(&arguments)?;
    if let Some(unknown) = chosen.iter().find(|target| !targets.contains(target)) {
        return Err(format!(
            "there is no fuzz target `{unknown}`; there are: {}",
            targets.join(", ")
        ));
    }
    check_tools()?;
    for target in chosen {
        println!("==> {target} for {seconds} s");
        run_target(&target, seconds)?;
    }
    Ok(())
}

fn run_target(target: &str, seconds: u64) -> Result<(), TaskError> {
    let fuzz = crate::root().join("fuzz");
    // What fuzzing finds grows apart from the seeds, which are part of the repository.
    let work = fuzz.join("corpus-work").join(target);
    fs::create_dir_all(&work).map_err(|error| format!("{}: {error}", work.display()))?;
    let mut command = Command::new("rustup");
    command
        .args(["run", "nightly", "cargo", "fuzz", "run"])
        .args(["--features", "link", target])
        .arg(&work);
    let seeds = fuzz.join("seeds").join(target);
    if seeds.is_dir() {
        command.arg(seeds);
    }
    // For the lines of stack traces.
    command.env("CARGO_PROFILE_RELEASE_DEBUG", "1");
    command
        .args(["--", &format!("-max_total_time={seconds}")])
        .current_dir(crate::root());
    process::run(&mut command)
}

/// The names of the targets: one file each.
fn targets() -> Result<Vec<String>, TaskError> {
    let dir = crate::root().join("fuzz/fuzz_targets");
    let entries = fs::read_dir(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter_map(|name| name.strip_suffix(".rs").map(str::to_owned))
        .collect();
    names.sort();
    Ok(names)
}

fn check_tools() -> Result<(), TaskError> {
    let mut missing = Vec::new();
    if !succeeds(Command::new("rustup").args(["run", "nightly", "rustc", "--version"])) {
        missing.push("rustup toolchain install nightly --profile minimal");
    }
    if !succeeds(Command::new("cargo").args(["fuzz", "--version"])) {
        missing.push("cargo install cargo-fuzz --locked");
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(format!(
        "fuzzing needs more than is installed here; run\n  {}",
        missing.join("\n  ")
    ))
}
