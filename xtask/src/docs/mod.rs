//! The documentation: `cargo xtask docs` writes the pages that the code itself describes, and checks the links of all pages.

mod links;

use std::fs;
use std::process::Command;

use crate::process::{self, capture, cargo};
use crate::report::StepOutcome;
use crate::{TaskError, reject_extra_arguments};

pub(crate) const STEP: &str = "generated pages in docs/ are up to date";

pub(crate) const LINKS_STEP: &str = "links of all Markdown files resolve";

/// A page and the program that writes it.
struct GeneratedPage {
    path: &'static str,
    /// In the folder of what cargo builds.
    program: &'static str,
    arguments: &'static [&'static str],
}

const PAGES: &[GeneratedPage] = &[
    GeneratedPage {
        path: "docs/reference/configuration.md",
        program: "tidegate",
        arguments: &["config", "reference"],
    },
    GeneratedPage {
        path: "docs/reference/rule-functions.md",
        program: "examples/functions_reference",
        arguments: &[],
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
        return match check() {
            StepOutcome::Failed(why) | StepOutcome::Skipped(why) => Err(why),
            StepOutcome::Passed => Ok(()),
        };
    }
    build()?;
    for page in PAGES {
        let path = crate::root().join(page.path);
        fs::write(&path, page.text()?).map_err(|error| format!("{}: {error}", path.display()))?;
        println!("{} written", page.path);
    }
    Ok(())
}

/// Whether the pages are what would be written now.
pub(crate) fn check() -> StepOutcome {
    if let Err(why) = build() {
        return StepOutcome::Failed(why);
    }
    for page in PAGES {
        let wanted = match page.text() {
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

/// Builds the programs of [`PAGES`], with the features that the tests have: `cargo run` of one package selects others, and
/// would build most dependencies again.
fn build() -> Result<(), TaskError> {
    let mut command = cargo();
    command.args(["build", "--quiet", "--workspace"]);
    command.args(["--bin", "tidegate", "--example", "functions_reference"]);
    process::run(&mut command)
}

impl GeneratedPage {
    fn text(&self) -> Result<String, TaskError> {
        let program = crate::target_dir().join("debug").join(self.program);
        capture(
            Command::new(program)
                .args(self.arguments)
                .current_dir(crate::root()),
        )
    }
}
