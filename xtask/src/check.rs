//! `cargo xtask check`: what can be said about the sources without running them.

use crate::process::{cargo, run_step};
use crate::report::Report;
use crate::{
    TaskError, console, crate_layers, deny, docs, layers, profiles, reject_extra_arguments,
};

pub(crate) fn run(arguments: &[String]) -> Result<(), TaskError> {
    reject_extra_arguments(arguments)?;
    let mut report = Report::default();
    steps(&mut report);
    deny::steps(&mut report);
    report.run_step(docs::STEP, docs::check);
    report.finish()
}

/// Formatting, lints, documentation and links; part of `cargo xtask test`.
pub(crate) fn steps(report: &mut Report) {
    report.run_step("cargo fmt", || {
        run_step(cargo().args(["fmt", "--all", "--check"]))
    });
    report.run_step("cargo clippy", || {
        // The tests are built with debug assertions.
        let mut command = profiles::cargo_like_release("clippy");
        command.args(["--workspace", "--all-targets"]);
        run_step(command.args(["--", "-D", "warnings"]))
    });
    // The next two steps compile each crate of the workspace once for both, and use what clippy has compiled of other crates.
    report.run_step("the program alone compiles", || {
        // As `cargo run` compiles it: tests of the workspace add features to libraries. The fuzz targets select a feature of the
        // build dependency `cc`; without them, cargo would compile all C code a second time.
        let mut command = profiles::cargo_like_release("check");
        run_step(command.args(["--bins", "-p", "tidegate", "-p", "tidegate-fuzz"]))
    });
    report.run_step("cargo doc", || {
        // Not the program: its documentation comments are help texts, which are no Markdown. Nor the crate of tests, whose
        // dependencies have features that the program does not need.
        let mut command = profiles::cargo_like_release("doc");
        command.args(["--lib", "--workspace", "--exclude", "tidegate-testkit"]);
        command.args(["--no-deps", "--document-private-items"]);
        run_step(command.env("RUSTDOCFLAGS", "-D warnings"))
    });
    console::steps(report);
    report.run_step(docs::LINKS_STEP, docs::check_links);
    report.run_step("crate layers", crate_layers::check);
    report.run_step("module layers", layers::check);
    report.run_step("packages of profiles", profiles::check);
}
