//! Steps with progress lines and timings, and the sum of what passed, failed and was skipped.

use std::fmt;
use std::time::{Duration, Instant};

/// What all steps so far amount to. One test counts one; a step without tests of its own (clippy) counts one.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
    /// A line for each failure, for the summary.
    pub(crate) failures: Vec<String>,
    /// The tests among the failures.
    pub(crate) failed_tests: Vec<FailedTest>,
    /// Programs among the failures that ended without a result.
    pub(crate) aborted_programs: Vec<AbortedProgram>,
    /// Tests and programs that failed beside others and passed when they ran again alone.
    unstable: Vec<String>,
    /// A line for each thing skipped, with its reason.
    pub(crate) skips: Vec<String>,
    timings: Vec<(String, Duration)>,
    start: Instant,
}

impl Default for Report {
    fn default() -> Self {
        Self {
            passed: 0,
            failed: 0,
            skipped: 0,
            failures: Vec::new(),
            failed_tests: Vec::new(),
            aborted_programs: Vec::new(),
            unstable: Vec::new(),
            skips: Vec::new(),
            timings: Vec::new(),
            start: Instant::now(),
        }
    }
}

/// A test and the program that it is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FailedTest {
    pub(crate) program: String,
    pub(crate) name: String,
}

impl fmt::Display for FailedTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.program, self.name)
    }
}

/// A test program that was killed or aborted before its result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AbortedProgram {
    pub(crate) program: String,
    pub(crate) reason: String,
    /// Tests that had passed by then.
    pub(crate) passed: u64,
}

impl fmt::Display for AbortedProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.program, self.reason)
    }
}

/// How a step without tests of its own ended.
pub(crate) enum StepOutcome {
    Passed,
    Failed(String),
    Skipped(String),
}

impl Report {
    /// Runs a step that counts its own tests into the report.
    pub(crate) fn run_section(&mut self, title: &str, run: impl FnOnce(&mut Report)) {
        println!("==> {title}");
        let failed_before = self.failed;
        let start = Instant::now();
        run(self);
        let took = start.elapsed();
        let verdict = if self.failed > failed_before {
            "FAILED"
        } else {
            "ok"
        };
        println!("<== {title}: {verdict} after {:.1} s", took.as_secs_f64());
        self.timings.push((title.to_owned(), took));
    }

    /// Runs a step that counts as one.
    pub(crate) fn run_step(&mut self, title: &str, run: impl FnOnce() -> StepOutcome) {
        self.run_section(title, |report| match run() {
            StepOutcome::Passed => report.passed += 1,
            StepOutcome::Failed(why) => report.fail(format!("{title}: {why}")),
            StepOutcome::Skipped(why) => report.skip(format!("{title}: {why}")),
        });
    }

    pub(crate) fn fail(&mut self, what: String) {
        println!("    FAILED {what}");
        self.failed += 1;
        self.failures.push(what);
    }

    /// A test of a program failed; the program's result line counts it.
    pub(crate) fn add_failed_test(&mut self, test: FailedTest) {
        self.failures.push(test.to_string());
        self.failed_tests.push(test);
    }

    /// `self` is the report of that program alone. Tests that had passed before the end count. Those that had failed are
    /// not repeated one by one, because the whole program is.
    pub(crate) fn add_aborted_program(&mut self, aborted: AbortedProgram) {
        self.passed += aborted.passed;
        self.failed_tests.clear();
        self.fail(aborted.to_string());
        self.aborted_programs.push(aborted);
    }

    /// A program that had ended without a result passed when it ran again: its results count, and the summary names it.
    pub(crate) fn program_passed_again(&mut self, aborted: &AbortedProgram, results: Report) {
        let line = aborted.to_string();
        let of_program = format!("{}: ", aborted.program);
        self.failures
            .retain(|failure| !failure.starts_with(&of_program));
        self.aborted_programs.retain(|other| other != aborted);
        self.failed -= 1;
        self.passed -= aborted.passed;
        self.append(results);
        self.unstable.push(line);
    }

    /// A test that failed passed when it ran again: it counts as passed, and the summary names it.
    pub(crate) fn passed_again(&mut self, test: FailedTest) {
        let line = test.to_string();
        self.failures.retain(|failure| *failure != line);
        self.failed_tests.retain(|failed| *failed != test);
        self.failed -= 1;
        self.passed += 1;
        self.unstable.push(line);
    }

    pub(crate) fn skip(&mut self, what: String) {
        println!("    SKIPPED {what}");
        self.skipped += 1;
        self.skips.push(what);
    }

    /// Adds the results of steps that ran beside those of this report.
    pub(crate) fn append(&mut self, other: Report) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.failures.extend(other.failures);
        self.failed_tests.extend(other.failed_tests);
        self.aborted_programs.extend(other.aborted_programs);
        self.unstable.extend(other.unstable);
        self.skips.extend(other.skips);
        self.timings.extend(other.timings);
    }

    /// Prints timings, skips, failures and, last and alone on its line, the sum.
    pub(crate) fn finish(self) -> Result<(), crate::TaskError> {
        println!();
        for (title, took) in &self.timings {
            println!("{:>8.1} s  {title}", took.as_secs_f64());
        }
        // Less than the sum: some steps run beside others.
        println!("{:>8.1} s  in all", self.start.elapsed().as_secs_f64());
        for skip in &self.skips {
            println!("skipped: {skip}");
        }
        for test in &self.unstable {
            println!("unstable: {test} (failed, and passed when it ran again alone)");
        }
        for failure in &self.failures {
            println!("failed: {failure}");
        }
        println!();
        println!("{}", self.summary_line());
        if self.failed == 0 {
            Ok(())
        } else {
            Err(String::new())
        }
    }

    fn summary_line(&self) -> String {
        let mut line = format!("{} passed, {} failed", self.passed, self.failed);
        if self.skipped > 0 {
            line.push_str(&format!(", {} skipped", self.skipped));
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closing_line_names_skips_only_if_there_are_any() {
        let mut report = Report {
            passed: 3,
            ..Report::default()
        };
        assert_eq!(report.summary_line(), "3 passed, 0 failed");
        report.skip("promtool: not installed".into());
        report.fail("x".into());
        assert_eq!(report.summary_line(), "3 passed, 1 failed, 1 skipped");
    }

    #[test]
    fn a_test_that_passes_again_is_counted_as_passed_and_named() {
        let mut report = Report::default();
        let test = |name: &str| FailedTest {
            program: "tests/wire.rs".into(),
            name: name.into(),
        };
        for name in ["a", "b"] {
            report.failed += 1;
            report.add_failed_test(test(name));
        }
        report.passed_again(test("a"));
        assert_eq!((report.passed, report.failed), (1, 1));
        assert_eq!(report.failures, ["tests/wire.rs: b"]);
        assert_eq!(report.unstable, ["tests/wire.rs: a"]);
        assert!(report.finish().is_err());
    }

    #[test]
    fn a_program_that_passes_again_counts_as_passed_and_is_named() {
        let mut report = Report::default();
        let aborted = AbortedProgram {
            program: "tests/wire.rs".into(),
            reason: "killed".into(),
            passed: 2,
        };
        report.add_aborted_program(aborted.clone());
        assert_eq!((report.passed, report.failed), (2, 1));
        let results = Report {
            passed: 5,
            ..Report::default()
        };
        report.program_passed_again(&aborted, results);
        assert_eq!((report.passed, report.failed), (5, 0));
        assert_eq!(report.unstable, ["tests/wire.rs: killed"]);
        assert!(report.finish().is_ok());
    }

    #[test]
    fn a_failed_step_fails_the_run() {
        let mut report = Report::default();
        report.run_step("good", || StepOutcome::Passed);
        report.run_step("bad", || StepOutcome::Failed("broke".into()));
        assert_eq!((report.passed, report.failed), (1, 1));
        assert_eq!(report.failures, ["bad: broke"]);
        assert!(report.finish().is_err());
    }
}
