//! The web console in Chromium, against real nodes. The tests are TypeScript in `console/tests` and run in Vitest; this program
//! starts it, and its reporter writes results as those of Rust tests.
//!
//! `TIDEGATE_TEST_SCREENSHOTS` names a folder for a picture of each page.

use std::path::Path;
use std::process::{Command, ExitCode};

use testkit::{find_chromium, find_program};

fn main() -> ExitCode {
    let mut filters = Vec::new();
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            // There are neither: what cargo's options ask for is nothing.
            "--list" | "--ignored" => return ExitCode::SUCCESS,
            flag if flag.starts_with('-') => {}
            _ => filters.push(argument),
        }
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../console");
    let (Some(node), Some(chromium)) = (find_program("node"), find_chromium()) else {
        return skipped("Chromium or Node is not installed");
    };
    if console::index().is_none() {
        return skipped(console::missing_reason());
    }
    let vitest = folder.join("node_modules/vitest/vitest.mjs");
    if !vitest.exists() {
        return skipped("the packages of npm are not installed");
    }
    let mut command = Command::new(node);
    command.arg(vitest).arg("run");
    command.args(["--config", "tests/vitest.config.ts", "--passWithNoTests"]);
    if !filters.is_empty() {
        let filters: Vec<String> = filters.iter().map(|filter| escaped(filter)).collect();
        command.args(["--testNamePattern", &filters.join("|")]);
    }
    command.current_dir(folder);
    command.env("TIDEGATE_TEST_PROGRAM", env!("CARGO_BIN_EXE_tidegate"));
    command.env("TIDEGATE_TEST_CHROMIUM", chromium);
    let names = ["localhost".to_owned()];
    let created = rcgen::generate_simple_self_signed(names).expect("a valid name");
    command.env("TIDEGATE_TEST_CERTIFICATE", created.cert.pem());
    let key = created.signing_key.serialize_pem();
    command.env("TIDEGATE_TEST_PRIVATE_KEY", key);
    let status = testkit::processes::spawn(command).wait();
    match status {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// `cargo xtask test` counts this as a skipped test.
fn skipped(why: &str) -> ExitCode {
    eprintln!("SKIPPED console: {why}");
    println!("test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out");
    ExitCode::SUCCESS
}

/// The regular expression that matches this text only.
fn escaped(text: &str) -> String {
    let mut expression = String::new();
    for character in text.chars() {
        if !character.is_alphanumeric() && character != '_' {
            expression.push('\\');
        }
        expression.push(character);
    }
    expression
}
