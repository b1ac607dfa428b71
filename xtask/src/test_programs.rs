//! The test programs of the workspace: one cargo command builds all of them, then several run at a time. Most tests wait
//! for sockets, servers and timers, so one program at a time leaves cores idle.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use crate::TaskError;
use crate::process::{cargo, run_lines};
use crate::report::Report;
use crate::test_output::TestOutputParser;
use crate::tools::Environment;

/// A build or a test program that writes nothing for so long hangs: the build prints a line per crate, tests a line per
/// test.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// How many programs run at a time. Each runs as many tests at a time as there are cores, unless [`LONGEST`] says otherwise. With
/// three, two cores are always busy beside the browser, and tests that measure time fail.
const LANES: usize = 2;

/// So many failed tests of a run are repeated, each alone: more than these are no accident of timing. Of 3,700 tests, five were late
/// on a shared machine that had a third of its usual speed.
const MOST_REPEATED: usize = 6;
/// The same for programs that ended without a result; each is repeated whole, which takes up to minutes.
const MOST_REPEATED_PROGRAMS: usize = 1;
/// So many of the last lines of a program with failures are printed again before these are repeated: who sees only the end of a
/// long run, as in many CI systems, sees how a test failed that passed later.
const MOST_LINES_AGAIN: usize = 60;

/// Programs that take minutes, the longest first, and how many tests they run at a time if not as many as there are cores. They
/// start first, so that none of them runs alone at the end.
const LONGEST: [(&str, Option<usize>); 4] = [
    // Its tests wait for nodes, servers and protocol time most of the time.
    ("crates/tidegate/tests/wire/main.rs", Some(3)),
    ("crates/tidegate/tests/console/main.rs", None),
    ("crates/connect/tests/connectors/main.rs", None),
    ("crates/devices/src/lib.rs", None),
];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TestProgram {
    /// The path of its main source file in the repository.
    title: String,
    executable: PathBuf,
    package_name: String,
    /// Where cargo runs it.
    package_dir: PathBuf,
}

/// Builds all test programs, and the programs and examples that they start.
pub(crate) fn build() -> Result<Vec<TestProgram>, TaskError> {
    let mut command = cargo();
    command.args(["test", "--workspace", "--no-run"]);
    command.arg("--message-format=json-render-diagnostics");
    command.env("CARGO_TERM_COLOR", "never");
    let root = crate::root();
    let mut programs = Vec::new();
    let status = run_lines(&mut command, OUTPUT_TIMEOUT, |line| {
        if line.starts_with('{') {
            programs.extend(TestProgram::from_message(line, &root));
        } else {
            println!("{line}");
        }
    })?;
    if !status.success() {
        return Err(format!("the build of the tests ended with {status}"));
    }
    programs.sort_by_key(|program| {
        let place = LONGEST
            .iter()
            .position(|(title, _)| *title == program.title);
        (place.unwrap_or(LONGEST.len()), program.title.clone())
    });
    Ok(programs)
}

/// Runs the tests whose names contain one of `filters`, or all of them, and adds their results to `report`.
pub(crate) fn run(
    programs: Vec<TestProgram>,
    filters: &[String],
    environment: &Environment,
    report: &mut Report,
) {
    let queue = Mutex::new(VecDeque::from_iter(&programs));
    let (sender, results) = mpsc::channel();
    let mut failed_outputs = Vec::new();
    std::thread::scope(|scope| {
        for _ in 0..LANES {
            let sender = sender.clone();
            let queue = &queue;
            scope.spawn(move || {
                loop {
                    let next = queue.lock().expect("no lane panics").pop_front();
                    let Some(program) = next else { return };
                    let result = program.run(filters, environment);
                    sender.send(result).expect("the report is written below");
                }
            });
        }
        drop(sender);
        for (output, results) in results {
            // Whole, so that the output of one program is not mixed with that of another.
            print_lines(&output);
            if results.failed > 0 {
                failed_outputs.push(output);
            }
            report.append(results);
        }
    });
    for output in &failed_outputs {
        println!("    the end of a program with failures, again:");
        print_lines(&output[output.len().saturating_sub(MOST_LINES_AGAIN)..]);
    }
    repeat_failures(&programs, filters, environment, report);
}

/// Runs failed tests, and programs that ended without a result, again if they are few, one at a time. Thousands of tests with real timers and processes share two cores here: without this, one that was late by
/// chance would fail the whole run. The summary names such tests, because a test that does not always pass has to be
/// corrected all the same.
fn repeat_failures(
    programs: &[TestProgram],
    filters: &[String],
    environment: &Environment,
    report: &mut Report,
) {
    let (failed_tests, aborted_programs) =
        (report.failed_tests.clone(), report.aborted_programs.clone());
    if failed_tests.len() > MOST_REPEATED || aborted_programs.len() > MOST_REPEATED_PROGRAMS {
        return;
    }
    let run_again = |title: &str, what: &dyn std::fmt::Display, arguments: &[String]| {
        let program = programs.iter().find(|program| program.title == title)?;
        println!("    again: {what}");
        let (output, results) = program.run(arguments, environment);
        print_lines(&output);
        Some(results)
    };
    for test in failed_tests {
        let arguments = ["--exact".to_owned(), test.name.clone()];
        let results = run_again(&test.program, &test, &arguments);
        if results.is_some_and(|results| (results.passed, results.failed) == (1, 0)) {
            report.passed_again(test);
        }
    }
    for aborted in aborted_programs {
        match run_again(&aborted.program, &aborted, filters) {
            Some(results) if results.failed == 0 => report.program_passed_again(&aborted, results),
            _ => {}
        }
    }
}

fn print_lines(lines: &[String]) {
    for line in lines {
        println!("{line}");
    }
}

impl TestProgram {
    /// The program of a message that cargo wrote about something that it built, if that is one.
    fn from_message(message: &str, root: &Path) -> Option<Self> {
        let (_, profile) = message.split_once(r#""profile":{"#)?;
        let (profile, _) = profile.split_once('}')?;
        if !profile.contains(r#""test":true"#) {
            return None;
        }
        let source = Path::new(json_text(message, "src_path")?);
        // `path+file:///r/crates/ws#tidegate-ws@0.1.0`, or `path+file:///r/xtask#0.1.0` if the folder has the same name.
        let (folder, id) = json_text(message, "package_id")?.rsplit_once('#')?;
        let package_name = match id.split_once('@') {
            Some((name, _)) => name,
            None => folder.rsplit('/').next()?,
        };
        Some(Self {
            title: source
                .strip_prefix(root)
                .unwrap_or(source)
                .display()
                .to_string(),
            executable: json_text(message, "executable")?.into(),
            package_name: package_name.to_owned(),
            package_dir: Path::new(json_text(message, "manifest_path")?)
                .parent()?
                .into(),
        })
    }

    /// What to show of its output, and its results.
    fn run(&self, arguments: &[String], environment: &Environment) -> (Vec<String>, Report) {
        let mut report = Report::default();
        let mut parser = TestOutputParser::new(&self.title);
        let mut output = Vec::new();
        let ended = run_lines(
            &mut self.command(arguments, environment),
            OUTPUT_TIMEOUT,
            |line| {
                output.extend(parser.read_line(line, &mut report));
            },
        );
        parser.finish(ended.map(drop), &mut report);
        (output, report)
    }

    /// As cargo runs it, with as many open files as the machine allows: the floods need thousands.
    fn command(&self, arguments: &[String], environment: &Environment) -> Command {
        let mut command = Command::new("sh");
        command.args([
            "-c",
            r#"ulimit -Sn "$(ulimit -Hn)" 2>/dev/null; exec "$@""#,
            "sh",
        ]);
        command.arg(&self.executable).args(arguments);
        command.current_dir(&self.package_dir);
        command.env("CARGO", cargo().get_program());
        command.env("CARGO_MANIFEST_DIR", &self.package_dir);
        command.env("CARGO_PKG_NAME", &self.package_name);
        let of_program = LONGEST.iter().find(|(title, _)| *title == self.title);
        if let Some((_, Some(threads))) = of_program {
            command.env("RUST_TEST_THREADS", threads.to_string());
        }
        for (name, value) in environment {
            command.env(name, value);
        }
        command
    }
}

/// The first string with this key; paths of cargo contain nothing that JSON escapes.
fn json_text<'a>(message: &'a str, key: &str) -> Option<&'a str> {
    let (_, rest) = message.split_once(&format!(r#""{key}":""#))?;
    rest.split_once('"').map(|(text, _)| text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_found_in_messages_of_cargo() {
        let message = |executable: &str, is_test: bool| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"path+file:///r/crates/ws#tidegate-ws@0.1.0","manifest_path":"/r/crates/ws/Cargo.toml","target":{{"kind":["test"],"crate_types":["bin"],"name":"decoder","src_path":"/r/crates/ws/tests/decoder.rs","edition":"2024","doc":false,"doctest":false,"test":true}},"profile":{{"opt_level":"0","debuginfo":"line-tables-only","debug_assertions":true,"overflow_checks":true,"test":{is_test}}},"features":[],"filenames":["/t/decoder-1"],"executable":{executable},"fresh":true}}"#
            )
        };
        let found = |message: &str| TestProgram::from_message(message, Path::new("/r"));
        let program = TestProgram {
            title: "crates/ws/tests/decoder.rs".into(),
            executable: "/t/decoder-1".into(),
            package_name: "tidegate-ws".into(),
            package_dir: "/r/crates/ws".into(),
        };
        assert_eq!(found(&message(r#""/t/decoder-1""#, true)), Some(program));
        assert_eq!(found(&message(r#""/t/tidegate""#, false)), None);
        assert_eq!(found(&message("null", true)), None);
        assert_eq!(found(r#"{"reason":"build-finished","success":true}"#), None);
    }
}
