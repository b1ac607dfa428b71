//! The release profile names packages that exist. Cargo only warns of others, so a crate that is renamed would silently lose
//! its settings, and with them its speed.

use std::fs;
use std::process::Command;

use crate::process::cargo;
use crate::report::StepOutcome;
use crate::{TaskError, root};

/// The dev profile as the release profile is: no debug assertions, wrapping arithmetic. What is not of this workspace
/// remains as it is built for the tests, and so does the console, whose build script then runs once for all.
///
/// A release build costs 20 to 30 minutes of CPU time, more than all tests. What its profile has besides, the optimisation and the
/// number of codegen units, selects no code: what compiles with these settings does so with the real ones. Clippy rejects
/// debug assertions that change something.
const LIKE_RELEASE: [&str; 6] = [
    "profile.dev.debug-assertions=false",
    "profile.dev.overflow-checks=false",
    r#"profile.dev.package."*".debug-assertions=true"#,
    r#"profile.dev.package."*".overflow-checks=true"#,
    "profile.dev.package.tidegate-console.debug-assertions=true",
    "profile.dev.package.tidegate-console.overflow-checks=true",
];

/// A command of cargo that compiles as the release profile does.
pub(crate) fn cargo_like_release(subcommand: &str) -> Command {
    let mut command = cargo();
    command.args([subcommand, "--quiet"]);
    for setting in LIKE_RELEASE {
        command.args(["--config", setting]);
    }
    command
}

/// The step of `cargo xtask check`.
pub(crate) fn check() -> StepOutcome {
    match unknown_packages_of_workspace() {
        Err(why) => StepOutcome::Failed(why),
        Ok(unknown) if unknown.is_empty() => StepOutcome::Passed,
        Ok(unknown) => StepOutcome::Failed(format!(
            "Cargo.toml has profiles for packages that Cargo.lock does not contain: {}",
            unknown.join(", ")
        )),
    }
}

fn unknown_packages_of_workspace() -> Result<Vec<String>, TaskError> {
    let read = |name: &str| {
        let path = root().join(name);
        fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
    };
    Ok(unknown_packages(&read("Cargo.toml")?, &read("Cargo.lock")?))
}

/// The packages of tables `[profile.NAME.package.PACKAGE]` that the lock file does not contain.
fn unknown_packages(manifest: &str, lock: &str) -> Vec<String> {
    let locked: Vec<&str> = lock
        .lines()
        .filter_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'))
        .collect();
    let tables = manifest.lines().filter_map(|line| {
        let table = line.trim().strip_prefix("[profile.")?.strip_suffix(']')?;
        let (_, package) = table.split_once(".package.")?;
        Some(package.trim_matches('"'))
    });
    tables
        .filter(|package| *package != "*" && !locked.contains(package))
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_of_missing_packages_are_found() {
        let manifest = "[profile.release]\nlto = false\n[profile.release.package.\"*\"]\ndebug = false\n\
                        [profile.release.package.ring]\nopt-level = 1\n[profile.dev.package.gone]\n";
        let lock = "[[package]]\nname = \"ring\"\nversion = \"0.17.14\"\n";
        assert_eq!(unknown_packages(manifest, lock), ["gone"]);
    }
}
