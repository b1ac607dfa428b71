//! Reads the output of `cargo test` as it appears: sums up what each test program says, notices programs that
//! died without saying anything, and finds tests that could not run for want of a tool.

use crate::report::Report;

/// A test that lacks a tool writes `SKIPPED name: reason` past libtest's capture and returns; libtest counts it
/// as passed, we do not.
const SKIP_MARK: &str = "SKIPPED ";
/// The `#[ignore]` reason of a function that is no test: another test runs it in a process of its own and kills it.
const CHILD_PROCESS: &str = "... ignored, the child process that another test kills";

#[derive(Default)]
pub(crate) struct TestOutputParser {
    /// The test program that runs now and has not said its result yet.
    running: Option<String>,
    skipped_now: Vec<String>,
    passed_tests: u64,
    /// Functions marked with [`CHILD_PROCESS`] in the program that runs now.
    child_processes: u64,
    total: u64,
}

impl TestOutputParser {
    /// Takes one line of output into `report`; returns what to show of it.
    pub(crate) fn read_line(&mut self, line: &str, report: &mut Report) -> Option<String> {
        if let Some(program) = program_started(line) {
            self.finish_program(report);
            self.running = Some(program);
            return None;
        }
        if let Some(at) = line.find(SKIP_MARK) {
            self.skipped_now
                .push(line[at + SKIP_MARK.len()..].to_owned());
            return None;
        }
        if let Some(summary) = line.strip_prefix("test result: ") {
            return self.summary(summary, report);
        }
        if let Some(name) = line.strip_prefix("test ") {
            if name.ends_with("... ok") || name.contains("... ignored") {
                self.passed_tests += u64::from(name.ends_with("... ok"));
                self.child_processes += u64::from(name.ends_with(CHILD_PROCESS));
                return None;
            }
            if let Some(name) = name.strip_suffix(" ... FAILED") {
                let program = self.running.as_deref().unwrap_or("?");
                report.failures.push(format!("{program}: {name}"));
            }
        }
        let noise = line.is_empty() || line.starts_with("running ") || line == "ok";
        (!noise).then(|| line.to_owned())
    }

    fn summary(&mut self, summary: &str, report: &mut Report) -> Option<String> {
        let program = self.running.take().unwrap_or_else(|| "tests".into());
        let skipped = std::mem::take(&mut self.skipped_now);
        let passed = count(summary, "passed").saturating_sub(skipped.len() as u64);
        let failed = count(summary, "failed");
        let children = std::mem::take(&mut self.child_processes);
        let ignored = count(summary, "ignored").saturating_sub(children);
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
        self.passed_tests = 0;
        self.total += passed + failed;
        if passed + failed + skips == 0 {
            return None;
        }
        let seconds = summary.rsplit("finished in ").next().unwrap_or_default();
        Some(format!(
            "    {program}: {passed} passed, {failed} failed, {skips} skipped in {seconds} ({} so far)",
            self.total
        ))
    }

    /// A program that ended without `test result:` was killed or aborted; what passed before still counts.
    pub(crate) fn finish_program(&mut self, report: &mut Report) {
        if let Some(program) = self.running.take() {
            report.passed += self.passed_tests;
            report.fail(format!(
                "{program}: the test program died before its result"
            ));
        }
        self.passed_tests = 0;
        self.child_processes = 0;
        self.skipped_now.clear();
    }
}

/// `     Running tests/wire/main.rs (target/debug/deps/wire-0123)` or `   Doc-tests mqtt`.
fn program_started(line: &str) -> Option<String> {
    let line = line.trim_start();
    if let Some(rest) = line.strip_prefix("Running ") {
        let (source, binary) = rest.split_once(" (")?;
        let name = binary.trim_end_matches(')').rsplit('/').next()?;
        let name = name.rsplit_once('-').map_or(name, |(name, _hash)| name);
        let source = source.trim_start_matches("unittests ");
        return Some(format!("{name} ({source})"));
    }
    let name = line.strip_prefix("Doc-tests ")?;
    Some(format!("{name} (documentation)"))
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
        let mut libtest = TestOutputParser::default();
        let shown = lines
            .iter()
            .filter_map(|line| libtest.read_line(line, &mut report))
            .collect();
        libtest.finish_program(&mut report);
        (report, shown)
    }

    #[test]
    fn sums_programs_up_and_takes_skipped_tests_out() {
        let (report, shown) = read(&[
            "     Running unittests src/lib.rs (target/debug/deps/tidegate_mqtt-a8d1)",
            "running 3 tests",
            "test a ... ok",
            "test b ... ok",
            "test c ... ignored, needs a person",
            "test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s",
            "     Running tests/wire/main.rs (target/debug/deps/wire-77)",
            "SKIPPED interop::mosquitto: mosquitto_pub is not installed",
            "test interop::mosquitto ... ok",
            "test child ... ignored, the child process that another test kills",
            "test x ... FAILED",
            "thread 'x' panicked at src/x.rs:1:1:",
            "test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 2.50s",
        ]);
        assert_eq!((report.passed, report.failed, report.skipped), (2, 1, 2));
        assert_eq!(report.failures, ["wire (tests/wire/main.rs): x"]);
        assert_eq!(report.skips.len(), 2);
        assert!(shown.contains(&"thread 'x' panicked at src/x.rs:1:1:".to_owned()));
        assert!(
            shown[0].contains("2 passed, 0 failed, 1 skipped in 0.01s"),
            "{shown:?}"
        );
        assert!(!shown.iter().any(|line| line.contains("... ok")));
    }

    #[test]
    fn a_program_that_dies_is_a_failure() {
        let (report, _) = read(&[
            "     Running tests/wire/main.rs (target/debug/deps/wire-77)",
            "running 2 tests",
            "test a ... ok",
            "error: test failed, to rerun pass `-p tidegate --test wire`",
            "     Running unittests src/lib.rs (target/debug/deps/ws-1)",
            "test result: ok. 4 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
        ]);
        assert_eq!((report.passed, report.failed), (5, 1));
    }
}
