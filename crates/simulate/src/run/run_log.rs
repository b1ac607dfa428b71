//! Events of a run as lines, and counts of failures by kind, for the screen.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Mutex, PoisonError};

use wall_clock::now_ms;

/// Lines that are kept.
const MAX_LINES: usize = 200;
/// Longer lines are cut.
const MAX_LINE_CHARACTERS: usize = 300;
/// Kinds of failures that are counted; others are counted as one.
const MAX_KINDS: usize = 50;
const OTHER_KINDS: &str = "other failures";
/// Failures of a kind that are shown as lines per second: a storm of them would hide all other lines.
const LINES_PER_KIND: u64 = 2;
/// Lines of scripts that are shown per second; a line says that there are more.
const SCRIPT_LINES_PER_SECOND: u64 = 20;

/// A line with its time in milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogLine {
    pub(crate) at_ms: u64,
    pub(crate) text: String,
}

#[derive(Debug, Default)]
struct FailureKind {
    count: u64,
    /// The second of the last lines, and their number.
    second: u64,
    lines: u64,
}

#[derive(Debug, Default)]
struct LogContents {
    lines: VecDeque<LogLine>,
    failures: BTreeMap<String, FailureKind>,
    /// The second of the last lines of scripts, and their number.
    script_lines: (u64, u64),
    /// Whether lines of scripts are also printed, because no screen shows them.
    prints_script_lines: bool,
}

/// Written by all threads of a run.
#[derive(Debug, Default)]
pub(crate) struct RunLog(Mutex<LogContents>);

impl RunLog {
    /// A log that nobody looks at, but whose lines of scripts are printed to standard error.
    pub(crate) fn printed() -> Self {
        Self(Mutex::new(LogContents {
            prints_script_lines: true,
            ..LogContents::default()
        }))
    }

    pub(crate) fn add(&self, text: impl Into<String>) {
        self.with(|log| {
            log.push(now_ms(), text.into());
        });
    }

    /// Counts the failure of a device, and describes it unless there are too many.
    pub(crate) fn record_failure(&self, device: &str, kind: &str, failure: &dyn fmt::Display) {
        self.record_failure_at(now_ms(), kind.to_owned(), || format!("{device}: {failure}"));
    }

    /// Shows a line of a script.
    pub(crate) fn add_script_line(&self, text: String) {
        self.with(|log| {
            let at_ms = now_ms();
            if log.is_script_line_allowed(at_ms) {
                log.push_script_line(at_ms, text);
            }
        });
    }

    fn record_failure_at(&self, at_ms: u64, kind: String, line: impl FnOnce() -> String) {
        // A terminal would obey control characters, which may come from a broker.
        let kind = kind.replace(char::is_control, " ");
        self.with(|log| {
            let is_known = log.failures.contains_key(&kind) || log.failures.len() < MAX_KINDS;
            let kind = if is_known {
                kind
            } else {
                OTHER_KINDS.to_owned()
            };
            let failures = log.failures.entry(kind).or_default();
            failures.count += 1;
            if failures.second != at_ms / 1000 {
                (failures.second, failures.lines) = (at_ms / 1000, 0);
            }
            failures.lines += 1;
            if failures.lines <= LINES_PER_KIND {
                log.push(at_ms, line());
            }
        });
    }

    /// The last lines, the latest first.
    pub(crate) fn latest(&self, count: usize) -> Vec<LogLine> {
        self.with(|log| log.lines.iter().rev().take(count).cloned().collect())
    }

    /// Kinds of failures with their counts, the most frequent first.
    pub(crate) fn failures(&self) -> Vec<(String, u64)> {
        let mut failures: Vec<(String, u64)> = self.with(|log| {
            let failures = log.failures.iter();
            failures
                .map(|(kind, failures)| (kind.clone(), failures.count))
                .collect()
        });
        failures.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        failures
    }

    fn with<T>(&self, call: impl FnOnce(&mut LogContents) -> T) -> T {
        call(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl LogContents {
    fn is_script_line_allowed(&mut self, at_ms: u64) -> bool {
        let (second, lines) = &mut self.script_lines;
        if *second != at_ms / 1000 {
            (*second, *lines) = (at_ms / 1000, 0);
        }
        *lines += 1;
        if *lines == SCRIPT_LINES_PER_SECOND + 1 {
            self.push_script_line(at_ms, "scripts write more lines in this second".to_owned());
        }
        self.script_lines.1 <= SCRIPT_LINES_PER_SECOND
    }

    fn push_script_line(&mut self, at_ms: u64, text: String) {
        let is_printed = self.prints_script_lines;
        let text = self.push(at_ms, text);
        if is_printed {
            eprintln!("\r\x1b[K{text}");
        }
    }

    fn push(&mut self, at_ms: u64, mut text: String) -> &str {
        if let Some((end, _)) = text.char_indices().nth(MAX_LINE_CHARACTERS) {
            text.truncate(end);
        }
        let text = text.replace(char::is_control, " ");
        if self.lines.len() == MAX_LINES {
            self.lines.pop_front();
        }
        self.lines.push_back(LogLine { at_ms, text });
        self.lines.back().map_or("", |line| &line.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_of_failures_is_counted_and_described_a_few_times_per_second() {
        let log = RunLog::default();
        log.add("phase begins");
        for number in 0..1000 {
            log.record_failure_at(5000 + number, "closed".to_owned(), || {
                format!("d{number}: closed")
            });
        }
        log.record_failure_at(6000, "refused\u{1b}[2J".to_owned(), || {
            "d0: refused\u{1b}[2J".to_owned()
        });
        assert_eq!(log.failures()[0], ("closed".to_owned(), 1000));
        let lines = log.latest(10);
        let texts: Vec<&str> = lines.iter().map(|line| line.text.as_str()).collect();
        assert_eq!(
            texts,
            [
                "d0: refused [2J",
                "d1: closed",
                "d0: closed",
                "phase begins"
            ]
        );
    }

    #[test]
    fn lines_and_kinds_have_limits() {
        let log = RunLog::default();
        for number in 0..1000 {
            log.record_failure_at(number * 1000, format!("kind {number}"), || "x".repeat(1000));
        }
        assert_eq!(log.latest(usize::MAX).len(), MAX_LINES);
        assert_eq!(log.latest(1)[0].text.len(), MAX_LINE_CHARACTERS);
        assert_eq!(log.failures().len(), MAX_KINDS + 1);
        assert_eq!(
            log.failures()[0],
            (OTHER_KINDS.to_owned(), 1000 - MAX_KINDS as u64)
        );
    }
}
