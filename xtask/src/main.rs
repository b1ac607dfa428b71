//! `cargo xtask`: what a developer and the CI do with this repository beyond building it. It has few dependencies, so
//! that it compiles in seconds.

mod apt;
mod bench;
mod check;
mod console;
mod crate_layers;
mod deny;
mod disk_space;
mod docs;
mod fuzz;
mod install_once;
mod layers;
mod process;
mod profiles;
mod report;
mod servers;
mod test;
mod test_output;
mod test_programs;
mod tools;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "\
Usage: cargo xtask <command>

Commands:
  test [FILTER...]                install what the tests need, run all of them, sum up
                                  (with filters: only the Rust tests whose names contain one)
  tools                           install what the tests need, say where it is (for `cargo test` by hand)
  check                           formatting, clippy, documentation: the fast part of `test`
  fuzz [TARGET] [--seconds N]     run one fuzz target, or all of them (60 s each)
  bench [NAME...] [--seconds N]   measure the figures of the README on this machine
  layers [CRATE]                  list import cycles of modules and imports through modules above;
                                  without a crate, also dependencies that the layers of crates do not permit
  docs [--check]                  write the generated pages of docs/, or say whether they are stale
";

/// What went wrong with a command, told to a person. The text ends without a line break.
type TaskError = String;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (command, rest) = match arguments.split_first() {
        Some((command, rest)) => (command.as_str(), rest),
        None => ("help", &[][..]),
    };
    let outcome = match command {
        "test" => test::run(rest),
        "tools" => tools::run(rest),
        "check" => check::run(rest),
        "fuzz" => fuzz::run(rest),
        "bench" => bench::run(rest),
        "docs" => docs::run(rest),
        "layers" => layers::run(rest),
        "help" | "--help" | "-h" => {
            print!("{USAGE}");
            Ok(())
        }
        other => Err(format!("`{other}` is not a command of xtask.\n\n{USAGE}")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.is_empty() {
                eprintln!("xtask: {}", failure.trim_end());
            }
            ExitCode::FAILURE
        }
    }
}

/// The root of the workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the workspace's root")
        .to_path_buf()
}

/// Where cargo builds, and where everything that xtask installs goes.
fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// Takes `--name N` out of `arguments`.
fn parse_number_option(arguments: &mut Vec<String>, name: &str) -> Result<Option<u64>, TaskError> {
    let Some(at) = arguments.iter().position(|argument| argument == name) else {
        return Ok(None);
    };
    arguments.remove(at);
    if at == arguments.len() {
        return Err(format!("{name} needs a number after it"));
    }
    let value = arguments.remove(at);
    match value.parse() {
        Ok(number) => Ok(Some(number)),
        Err(_) => Err(format!("{name} needs a whole number, not `{value}`")),
    }
}

/// Refuses arguments nobody took.
fn reject_extra_arguments(arguments: &[String]) -> Result<(), TaskError> {
    match arguments.first() {
        None => Ok(()),
        Some(argument) => Err(format!("`{argument}` is not understood here.\n\n{USAGE}")),
    }
}
