//! The documentation: `cargo xtask docs` writes the pages that the code itself describes, and checks the links of all pages.

mod links;

use std::fs;

use crate::process::{capture, cargo};
use crate::report::StepOutcome;
use crate::{TaskError, reject_extra_arguments};

pub(crate) const STEP: &str = "generated pages in docs/ are up to date";

pub(crate) const LINKS_STEP: &str = "links of all Markdown files resolve";

/// A page and who writes it.
struct GeneratedPage {
    path: &'static str,
    /// Arguments of cargo; the program itself comes in both profiles.
    cargo_arguments: &'static [&'static str],
    is_main_program: bool,
}

const PAGES: &[GeneratedPage] = &[
    GeneratedPage {
        path: "docs/reference/configuration.md",
        cargo_arguments: &["--", "config", "reference"],
        is_main_program: true,
    },
    GeneratedPage {
        path: "docs/reference/rule-functions.md",
        cargo_arguments: &["-p", "tidegate-rules", "--example", "functions_reference"],
        is_main_program: false,
    },
];

pub(crate) fn run(arguments: &[String]) -> Result<(), TaskError> {
    let mut arguments = arguments.to_vec();
    let check_only = arguments.iter().position(|argument| argument == "--check");
    if let Some(at) = check_only {
        arguments.remove(at);
    }
    reject_extra_arguments(&arguments)?;
    if check_only.is_some() {
        return match check(BuildProfile::Dev) {
            StepOutcome::Failed(why) | StepOutcome::Skipped(why) => Err(why),
            StepOutcome::Passed => Ok(()),
        };
    }
    for page in PAGES {
        let path = crate::root().join(page.path);
        fs::write(&path, page.text(BuildProfile::Dev)?)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        println!("{} written", page.path);
    }
    Ok(())
}

/// Which build of the program is asked; the one that is there already saves minutes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum BuildProfile {
    Dev,
    Release,
}

/// Whether the pages are what would be written now.
pub(crate) fn check(profile: BuildProfile) -> StepOutcome {
    for page in PAGES {
        let wanted = match page.text(profile) {
            Ok(text) => text,
            Err(why) => return StepOutcome::Failed(why),
        };
        let name = page.path;
        match fs::read_to_string(crate::root().join(name)) {
            Ok(found) if found == wanted => {}
            Ok(_) => {
                return StepOutcome::Failed(format!("{name} is stale; run `cargo xtask docs`"));
            }
            Err(error) => {
                return StepOutcome::Failed(format!("{name}: {error}; run `cargo xtask docs`"));
            }
        }
    }
    StepOutcome::Passed
}

/// Whether every relative link and anchor of the Markdown files leads somewhere.
pub(crate) fn check_links() -> StepOutcome {
    links::check(&crate::root())
}

impl GeneratedPage {
    fn text(&self, profile: BuildProfile) -> Result<String, TaskError> {
        let mut command = cargo();
        command.args(["run", "--quiet"]);
        if self.is_main_program && profile == BuildProfile::Release {
            command.arg("--release");
        }
        capture(command.args(self.cargo_arguments))
    }
}
