//! `tidegate bench alerts`: runs of the telemetry pipeline that exceed the thresholds of MiniTB's performance report, and the alerts
//! that they raise.
//!
//! The store of a run has a fault. A run without one shows that the same load raises no alert.

mod alert_rules;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use devices::ingest::PipelineMode;
use serde_json::{Map, Value, json};

use crate::pipeline_bench::{
    self, PipelineResult, PipelineRun, PipelineScenario, StorageFault, scenario,
};
use alert_rules::{AlertLevel, RULES};

const SCENARIO: PipelineScenario = scenario("actor 100 devices", PipelineMode::Actor, 100, 1);
/// As few as keep the queue of senders that wait below its threshold.
const MAILBOXES: usize = 4;
const MAILBOX_BYTES: usize = 64 << 10;
/// Runs without a fault, of which the one in the middle counts.
const REFERENCE_RUNS: usize = 3;

/// Arguments of `tidegate bench alerts`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct AlertsArgs {
    /// Messages of the runs whose throughput or success is compared
    #[arg(long, default_value_t = 300_000, value_name = "COUNT")]
    messages: u64,
    /// Only the run without a fault, and those whose name contains this text
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Directory for the stores, which are removed afterwards [default: the directory for temporary files]
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// A run with a fault, and the alerts that it must raise.
struct AlertCase {
    name: &'static str,
    fault: CaseFault,
    /// `None`: as many as the run without a fault.
    messages: Option<u64>,
    padding_bytes: usize,
    expected: &'static [(&'static str, AlertLevel)],
}

enum CaseFault {
    None,
    /// The store stands still for this multiple of the time that the run takes without a fault.
    RelativeOutage(f64),
    /// It stands still until so many milliseconds after senders that do not wait have handed over all messages.
    OutageAfterSendingMs(u64),
    Rejection {
        every: u64,
    },
}

use AlertLevel::{Critical, None as NoAlert, Warning};

const CASES: [AlertCase; 9] = [
    AlertCase {
        name: "no fault",
        fault: CaseFault::None,
        messages: None,
        padding_bytes: 0,
        expected: &[
            ("throughput_drop", NoAlert),
            ("mean_latency", NoAlert),
            ("p95_latency", NoAlert),
            ("success_rate", NoAlert),
            ("memory", NoAlert),
            ("queue", NoAlert),
        ],
    },
    AlertCase {
        name: "store that stands still for half of the time",
        fault: CaseFault::RelativeOutage(0.54),
        messages: None,
        padding_bytes: 0,
        expected: &[("throughput_drop", Warning)],
    },
    AlertCase {
        name: "store that stands still for twice the time",
        fault: CaseFault::RelativeOutage(2.0),
        messages: None,
        padding_bytes: 0,
        expected: &[("throughput_drop", Critical)],
    },
    AlertCase {
        name: "store that stands still for 0.85 s",
        fault: CaseFault::OutageAfterSendingMs(850),
        messages: Some(3000),
        padding_bytes: 0,
        expected: &[
            ("mean_latency", Warning),
            ("p95_latency", Warning),
            ("queue", Warning),
        ],
    },
    AlertCase {
        name: "store that stands still for 2 s",
        fault: CaseFault::OutageAfterSendingMs(2000),
        messages: Some(20_000),
        padding_bytes: 0,
        expected: &[
            ("mean_latency", Critical),
            ("p95_latency", Critical),
            ("queue", Critical),
        ],
    },
    AlertCase {
        name: "store that rejects 2 % of the rows",
        fault: CaseFault::Rejection { every: 50 },
        messages: None,
        padding_bytes: 0,
        expected: &[("success_rate", Warning)],
    },
    AlertCase {
        name: "store that rejects 10 % of the rows",
        fault: CaseFault::Rejection { every: 10 },
        messages: None,
        padding_bytes: 0,
        expected: &[("success_rate", Critical)],
    },
    AlertCase {
        name: "600 MB of waiting messages",
        fault: CaseFault::OutageAfterSendingMs(0),
        messages: Some(37_000),
        padding_bytes: 16 << 10,
        expected: &[("memory", Warning)],
    },
    AlertCase {
        name: "1.2 GB of waiting messages",
        fault: CaseFault::OutageAfterSendingMs(0),
        messages: Some(74_000),
        padding_bytes: 16 << 10,
        expected: &[("memory", Critical)],
    },
];

/// What the run without a fault has shown.
struct ReferenceRun {
    per_s: f64,
    seconds: f64,
}

/// The alerts of a run, as many as there are rules.
struct AlertCaseResult {
    name: &'static str,
    run: PipelineResult,
    /// In the order of [`RULES`].
    values: Vec<(f64, AlertLevel)>,
    /// Rules that have another level than expected.
    unexpected: Vec<&'static str>,
}

pub(crate) fn run(arguments: &AlertsArgs) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(
        (10_000..=10_000_000).contains(&arguments.messages),
        "--messages: expected 10000 to 10000000"
    );
    let part = arguments.only.as_deref().unwrap_or_default();
    let reference = measure_reference(arguments)?;
    let mut results = Vec::new();
    for case in &CASES {
        let is_reference = matches!(case.fault, CaseFault::None);
        if is_reference || case.name.contains(part) {
            let result = measure_case(case, &reference, arguments)?;
            if !arguments.json {
                print(&result);
            }
            results.push(result);
        }
    }
    if arguments.json {
        let all: Vec<Value> = results.iter().map(AlertCaseResult::to_json).collect();
        println!("{:#}", Value::Array(all));
    }
    for result in &results {
        for rule in &result.unexpected {
            eprintln!(
                "{}: the alert {rule} has another level than expected",
                result.name
            );
        }
    }
    Ok(
        match results.iter().all(|result| result.unexpected.is_empty()) {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        },
    )
}

fn new_run(arguments: &AlertsArgs, messages: u64) -> PipelineRun {
    PipelineRun {
        directory: arguments.directory.clone(),
        mailboxes: MAILBOXES,
        mailbox_bytes: MAILBOX_BYTES,
        ..PipelineRun::new(SCENARIO, messages)
    }
}

fn measure_reference(arguments: &AlertsArgs) -> anyhow::Result<ReferenceRun> {
    let mut runs = Vec::new();
    for _ in 0..REFERENCE_RUNS {
        let run = pipeline_bench::measure(&new_run(arguments, arguments.messages))?;
        runs.push(ReferenceRun {
            per_s: run.per_s,
            seconds: run.seconds,
        });
    }
    runs.sort_by(|a, b| a.per_s.total_cmp(&b.per_s));
    Ok(runs.swap_remove(REFERENCE_RUNS / 2))
}

fn measure_case(
    case: &AlertCase,
    reference: &ReferenceRun,
    arguments: &AlertsArgs,
) -> anyhow::Result<AlertCaseResult> {
    let (fault, senders_wait) = match case.fault {
        CaseFault::None => (StorageFault::None, true),
        CaseFault::RelativeOutage(part) => {
            let time = Duration::from_secs_f64(reference.seconds * part);
            (StorageFault::Outage(time), true)
        }
        CaseFault::OutageAfterSendingMs(time) => {
            let time = Duration::from_millis(time);
            (StorageFault::OutageAfterSending(time), false)
        }
        CaseFault::Rejection { every } => (StorageFault::Rejection { every }, true),
    };
    let run = pipeline_bench::measure(&PipelineRun {
        fault,
        senders_wait,
        padding_bytes: case.padding_bytes,
        ..new_run(arguments, case.messages.unwrap_or(arguments.messages))
    })?;
    let values = RULES.iter().map(|rule| {
        let value = rule.value_of(&run, reference.per_s);
        (value, rule.alert_level_of(value))
    });
    let values: Vec<(f64, AlertLevel)> = values.collect();
    let unexpected = RULES.iter().zip(&values).filter_map(|(rule, (_, level))| {
        let mut expected = case.expected.iter();
        let (name, expected) = expected.find(|(name, _)| *name == rule.name)?;
        (level != expected).then_some(*name)
    });
    Ok(AlertCaseResult {
        name: case.name,
        unexpected: unexpected.collect(),
        values,
        run,
    })
}

impl AlertCaseResult {
    fn to_json(&self) -> Value {
        let mut values = Map::new();
        let mut levels = Map::new();
        for (rule, (value, level)) in RULES.iter().zip(&self.values) {
            values.insert(rule.name.to_owned(), json!(value));
            levels.insert(rule.name.to_owned(), json!(*level as u8));
        }
        json!({"run": self.name, "result": self.run.to_json(), "values": values, "levels": levels, "unexpected": self.unexpected})
    }
}

fn print(result: &AlertCaseResult) {
    println!("{}", result.name);
    for (rule, (value, level)) in RULES.iter().zip(&result.values) {
        println!(
            "  {:16} {value:>10.1} {:9} {}",
            rule.name,
            rule.unit,
            level.name()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_alert_is_raised_at_both_levels_by_some_run() {
        for rule in &RULES {
            for level in [Warning, Critical] {
                let raises = |case: &AlertCase| case.expected.contains(&(rule.name, level));
                assert!(CASES.iter().any(raises), "{}: {level:?}", rule.name);
            }
        }
        let known = |name: &str| RULES.iter().any(|rule| rule.name == name);
        let mut names = CASES.iter().flat_map(|case| case.expected);
        assert!(names.all(|(name, _)| known(name)));
    }
}
