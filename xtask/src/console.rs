//! The web console's own checks: types, format, unit tests, translations, licences.

use std::process::Command;

use crate::process::{find_program, run_step};
use crate::report::{Report, StepOutcome};

/// Steps with the script of `console/package.json` that does them.
const STEPS: [(&str, &str); 2] = [
    (
        "web console: types, format, translations, licences",
        "check",
    ),
    ("web console: unit tests", "test"),
];

pub(crate) fn steps(report: &mut Report) {
    let folder = crate::root().join("console");
    for (title, script) in STEPS {
        report.run_step(title, || {
            if find_program("npm").is_none() {
                return StepOutcome::Skipped("no npm here; install Node 20 or later".into());
            }
            // The build script of the crate `console` has installed the packages.
            if !folder.join("node_modules").is_dir() {
                return StepOutcome::Skipped("the packages of npm could not be installed".into());
            }
            let mut command = Command::new("npm");
            command.args(["run", "--silent", script]);
            run_step(command.current_dir(&folder))
        });
    }
}
