//! Reads the output of a test program as it appears: sums up its results, notices a program that died without saying
//! anything, and finds tests that could not run for want of a tool.

use crate::TaskError;
use crate::report::{AbortedProgram, FailedTest, Report};

/// A test that lacks a tool writes `SKIPPED name: reason` past libtest's capture and returns; libtest counts it
/// as passed, we do not.
const SKIP_MARK: &str = "SKIPPED ";
/// The `#[ignore]` reason of a function that is no test: another test runs it in a process of its own and kills it.
const CHILD_PROCESS: &str = "... ignored, the child process that another test kills";

pub(crate) struct TestOutputParser {
    program: String,
    has_result: bool,
    skipped: Vec<String>,
    passed_tests: u64,
    /// Functions marked with [`CHILD_PROCESS`].
    child_processes: u64,
}

impl TestOutputParser {
    pub(crate) fn new(program: &str) -> Self {
        Self {
            program: program.to_owned(),
            has_result: false,
            skipped: Vec::new(),
            passed_tests: 0,
            child_processes: 0,
        }
    }

    /// Takes one line of output into `report`; returns what to show of it.
    pub(crate) fn read_line(&mut self, line: &str, report: &mut Report) -> Option<String> {
        if let Some(at) = line.find(SKIP_MARK) {
            self.skipped.push(line[at + SKIP_MARK.len()..].to_owned());
            return None;
        }
        if let Some(summary) = line.strip_prefix("test result: ") {
            return self.summary(summary, report);
        }
        if let Some(name) = line.strip_prefix("test ") {
            // Some programs add how long it took: `... ok <1.5s>`.
            let is_passed = name.ends_with("... ok") || name.contains("... ok <");
            if is_passed || name.contains("... ignored") {
                self.passed_tests += u64::from(is_passed);
                self.child_processes += u64::from(name.ends_with(CHILD_PROCESS));
                return None;
            }
            if let Some(name) = name.strip_suffix(" ... FAILED") {
                report.add_failed_test(FailedTest {
                    program: self.program.clone(),
                    name: name.to_owned(),
                });
            }
        }
        let noise = line.is_empty() || line.starts_with("running ") || line == "ok";
        (!noise).then(|| line.to_owned())
    }

    fn summary(&mut self, summary: &str, report: &mut Report) -> Option<String> {
        self.has_result = true;
        let program = &self.program;
        let skipped = std::mem::take(&mut self.skipped);
        let passed = count(summary, "passed").saturating_sub(skipped.len() as u64);
        let failed = count(summary, "failed");
        let ignored = count(summary, "ignored").saturating_sub(self.child_processes);
        report.passed += passed;
        report.failed += failed;
        report.skipped += ignored + skipped.len() as u64;
        if ignored > 0 {
            report
                .skips
                .push(format!("{program}: {ignored} tests marked #[ignore]"));
        }
        let skips = ignored + skipped.len() as u64;
        report
            .skips
            .extend(skipped.into_iter().map(|skip| format!("{program}: {skip}")));
        if passed + failed + skips == 0 {
            return None;
        }
        let seconds = summary.rsplit("finished in ").next().unwrap_or_default();
        Some(format!(
            "    {program}: {passed} passed, {failed} failed, {skips} skipped in {seconds}"
        ))
    }

    /// `outcome` says how the program itself ended. One that ended without `test result:` was killed or aborted.
    pub(crate) fn finish(self, outcome: Result<(), TaskError>, report: &mut Report) {
        if !self.has_result {
            let reason = outcome
                .err()
                .unwrap_or_else(|| "the test program died before its result".to_owned());
            report.add_aborted_program(AbortedProgram {
                program: self.program,
                reason,
                passed: self.passed_tests,
            });
        } else if let Err(why) = outcome {
            report.fail(format!("{}: {why}", self.program));
        }
    }
}

/// The number before `what` in `ok. 12 passed; 0 failed; ...`.
fn count(summary: &str, what: &str) -> u64 {
    let mut words = summary
        .split([' ', ';', '.'])
        .filter(|word| !word.is_empty());
    let mut before = "";
    words
        .find_map(|word| {
            let found = word == what;
            let number = found.then(|| before.parse().ok()).flatten();
            before = word;
            number
        })
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[&str]) -> (Report, Vec<String>) {
        let mut report = Report::default();
        let mut parser = TestOutputParser::new("tests/wire.rs");
        let shown = lines
            .iter()
            .filter_map(|line| parser.read_line(line, &mut report))
            .collect();
        parser.finish(Ok(()), &mut report);
        (report, shown)
    }

    #[test]
    fn sums_a_program_up_and_takes_skipped_tests_out() {
        let (report, shown) = read(&[
            "running 5 tests",
            "test a ... ok",
            "test b ... ignored, needs a person",
            "SKIPPED interop::mosquitto: mosquitto_pub is not installed",
            "test interop::mosquitto ... ok",
            "test child ... ignored, the child process that another test kills",
            "test x ... FAILED",
            "thread 'x' panicked at src/x.rs:1:1:",
            "test result: FAILED. 2 passed; 1 failed; 2 ignored; 0 measured; 0 filtered out; finished in 2.50s",
        ]);
        assert_eq!((report.passed, report.failed, report.skipped), (1, 1, 2));
        assert_eq!(report.failures, ["tests/wire.rs: x"]);
        assert_eq!(report.skips.len(), 2);
        assert_eq!(
            shown,
            [
                "test x ... FAILED",
                "thread 'x' panicked at src/x.rs:1:1:",
                "    tests/wire.rs: 1 passed, 1 failed, 2 skipped in 2.50s",
            ]
        );
    }

    #[test]
    fn a_program_that_dies_is_a_failure() {
        let (report, _) = read(&[
            "running 3 tests",
            "test a ... ok",
            "test b ... ok <1.5s>",
            "thread 'c' has overflowed its stack",
        ]);
        assert_eq!((report.passed, report.failed), (2, 1));
        assert_eq!(report.aborted_programs.len(), 1);
    }
}
