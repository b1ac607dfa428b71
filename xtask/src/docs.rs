//! `cargo xtask docs`: the pages that the code itself writes.

use std::fs;

use crate::process::{capture, cargo};
use crate::report::Outcome;
use crate::{Failure, no_more};

pub(crate) const STEP: &str = "generated pages in docs/ are up to date";

/// A page and who writes it.
struct Page {
    path: &'static str,
    /// Arguments of cargo; the program itself comes in both profiles.
    by: &'static [&'static str],
    of_the_program: bool,
}

const PAGES: &[Page] = &[
    Page {
        path: "docs/configuration.md",
        by: &["--", "config", "reference"],
        of_the_program: true,
    },
    Page {
        path: "docs/rule-functions.md",
        by: &["-p", "tidegate-rules", "--example", "functions_reference"],
        of_the_program: false,
    },
];

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
    for page in PAGES {
        let path = crate::root().join(page.path);
        fs::write(&path, page.text(Profile::Dev)?)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        println!("{} written", page.path);
    }
    Ok(())
}

/// Which build of the program is asked; the one that is there already saves minutes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    Dev,
    Release,
}

/// Whether the pages are what would be written now.
pub(crate) fn check(profile: Profile) -> Outcome {
    for page in PAGES {
        let wanted = match page.text(profile) {
            Ok(text) => text,
            Err(why) => return Outcome::Failed(why),
        };
        let name = page.path;
        match fs::read_to_string(crate::root().join(name)) {
            Ok(found) if found == wanted => {}
            Ok(_) => return Outcome::Failed(format!("{name} is stale; run `cargo xtask docs`")),
            Err(error) => {
                return Outcome::Failed(format!("{name}: {error}; run `cargo xtask docs`"));
            }
        }
    }
    Outcome::Passed
}

impl Page {
    fn text(&self, profile: Profile) -> Result<String, Failure> {
        let mut command = cargo();
        command.args(["run", "--quiet"]);
        if self.of_the_program && profile == Profile::Release {
            command.arg("--release");
        }
        capture(command.args(self.by))
    }
}
