//! What the cases of a scenario yield: a line of a table each, JSON, and conditions that all of them must satisfy.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use serde_json::{Map, Value, json};

use load_client::assertion::AssertionOutcome;

use crate::metrics::{Assertion, MetricValues};

/// Version of the JSON, raised when a field changes its meaning or goes away.
const FORMAT: u32 = 2;

#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Result")]
pub(crate) struct CaseOutputArgs {
    /// Condition on every case that has this metric, such as 'ratio_throughput>=0.8'; exit status 1 if it does not
    /// hold (repeatable)
    #[arg(long = "assert", value_name = "METRIC<VALUE")]
    asserts: Vec<Assertion>,
    /// Write the result as JSON, `-` for standard output instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// One measured case, such as a size of messages.
pub(crate) struct MeasuredCase {
    pub(crate) name: String,
    pub(crate) measures: MetricValues,
}

/// Collects cases, and shows them as they come.
pub(crate) struct MeasuredCases<'a> {
    output: &'a CaseOutputArgs,
    cases: Vec<MeasuredCase>,
}

impl<'a> MeasuredCases<'a> {
    pub(crate) fn new(output: &'a CaseOutputArgs) -> Self {
        Self {
            output,
            cases: Vec::new(),
        }
    }

    /// Prints a line, unless standard output is for JSON.
    pub(crate) fn print(&self, line: &str) {
        if self.output.json.as_deref() != Some(Path::new("-")) {
            println!("{line}");
        }
    }

    /// Adds a case and prints its line.
    pub(crate) fn add(&mut self, case: MeasuredCase, line: &str) {
        self.print(line);
        self.cases.push(case);
    }

    /// Writes the JSON, checks the conditions, and returns the exit status.
    pub(crate) fn finish(self, scenario: &str) -> anyhow::Result<ExitCode> {
        let conditions = self.output.asserts.iter();
        let outcomes: Vec<_> = conditions
            .flat_map(|condition| self.evaluate(condition))
            .collect();
        if let Some(path) = &self.output.json {
            let text = format!("{:#}\n", self.to_json(scenario, &outcomes));
            if path == Path::new("-") {
                print!("{text}");
            } else {
                fs::write(path, text)
                    .with_context(|| format!("cannot write --json {}", path.display()))?;
            }
        }
        let mut is_right = true;
        for case in &self.cases {
            if case
                .measures
                .get("faults")
                .is_some_and(|faults| faults > 0.0)
            {
                eprintln!("{}: content was lost, repeated or exchanged", case.name);
                is_right = false;
            }
        }
        for (case, outcome) in outcomes.iter().filter(|(_, outcome)| !outcome.holds) {
            eprintln!(
                "{case}: assertion `{}` is broken: {}",
                outcome.condition, outcome.found
            );
            is_right = false;
        }
        Ok(match is_right {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        })
    }

    /// The result of a condition in each case that has its metric; one that no case has is broken.
    fn evaluate(&self, condition: &Assertion) -> Vec<(String, AssertionOutcome)> {
        let cases = self.cases.iter();
        let measured: Vec<_> = cases
            .filter(|case| case.measures.get(condition.metric_name()).is_some())
            .map(|case| (case.name.clone(), condition.evaluate(&case.measures)))
            .collect();
        if measured.is_empty() {
            let nothing = condition.evaluate(&MetricValues::default());
            return vec![("all cases".to_owned(), nothing)];
        }
        measured
    }

    fn to_json(&self, scenario: &str, outcomes: &[(String, AssertionOutcome)]) -> Value {
        let cases = self.cases.iter().map(|case| {
            let measures: Map<String, Value> = case
                .measures
                .iter()
                .map(|(metric, value)| (metric.name.to_owned(), json!(value)))
                .collect();
            json!({ "case": case.name, "measures": measures })
        });
        let asserts = outcomes.iter().map(|(case, outcome)| {
            json!({
                "case": case, "condition": outcome.condition, "holds": outcome.holds, "found": outcome.found,
            })
        });
        json!({
            "format": FORMAT,
            "program": concat!("tidegate bench ", env!("CARGO_PKG_VERSION")),
            "scenario": scenario,
            "cases": cases.collect::<Vec<_>>(),
            "asserts": asserts.collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_concern_the_cases_that_have_the_metric() {
        let output = CaseOutputArgs {
            asserts: Vec::new(),
            json: None,
        };
        let mut outcome = MeasuredCases::new(&output);
        for (name, metric, value) in [("a", "ratio_throughput", 0.9), ("b", "p99", 1e6)] {
            let mut measures = MetricValues::default();
            measures.set(metric, value);
            let name = name.to_owned();
            outcome.cases.push(MeasuredCase { name, measures });
        }
        let results = |condition: &str| {
            let condition = condition.parse().expect("well-formed");
            let results = outcome.evaluate(&condition).into_iter();
            results
                .map(|(case, result)| (case, result.holds))
                .collect::<Vec<_>>()
        };
        assert_eq!(results("ratio_throughput>=0.8"), [("a".to_owned(), true)]);
        assert_eq!(results("p99<1us"), [("b".to_owned(), false)]);
        assert_eq!(results("lost==0"), [("all cases".to_owned(), false)]);
    }
}
