//! `cargo xtask docs`: the configuration reference, as the program itself writes it.

use std::fs;

use crate::process::{capture, cargo};
use crate::report::Outcome;
use crate::{Failure, no_more};

const REFERENCE: &str = "docs/configuration.md";
pub(crate) const STEP: &str = "docs/configuration.md is up to date";

pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let mut arguments = arguments.to_vec();
    let check_only = arguments.iter().position(|argument| argument == "--check");
    if let Some(at) = check_only {
        arguments.remove(at);
    }
    no_more(&arguments)?;
    if check_only.is_some() {
        return match check(Profile::Dev) {
            Outcome::Failed(why) | Outcome::Skipped(why) => Err(why),
            Outcome::Passed => Ok(()),
        };
    }
    let path = crate::root().join(REFERENCE);
    fs::write(&path, reference(Profile::Dev)?)
        .map_err(|error| format!("{}: {error}", path.display()))?;
    println!("{REFERENCE} written");
    Ok(())
}

/// Which build of the program is asked; the one that is there already saves minutes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    Dev,
    Release,
}

/// Whether the file is what the program would write now.
pub(crate) fn check(profile: Profile) -> Outcome {
    let wanted = match reference(profile) {
        Ok(text) => text,
        Err(why) => return Outcome::Failed(why),
    };
    match fs::read_to_string(crate::root().join(REFERENCE)) {
        Ok(found) if found == wanted => Outcome::Passed,
        Ok(_) => Outcome::Failed(format!("{REFERENCE} is stale; run `cargo xtask docs`")),
        Err(error) => Outcome::Failed(format!("{REFERENCE}: {error}; run `cargo xtask docs`")),
    }
}

fn reference(profile: Profile) -> Result<String, Failure> {
    let mut command = cargo();
    command.args(["run", "--quiet"]);
    if profile == Profile::Release {
        command.arg("--release");
    }
    capture(command.args(["--", "config", "reference"]))
}
