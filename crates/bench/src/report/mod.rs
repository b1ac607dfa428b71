//! The result of a run, shown as a table, as JSON and as a page with plots.

mod html;
mod json;
mod load_report;
mod memory;
mod table;

pub(crate) use load_report::{LoadReport, ReportSide};

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;

use crate::args::OutputArgs;
use load_client::assertion::AssertionOutcome;

impl LoadReport {
    /// Checks the conditions, writes the requested outputs, and returns the exit status.
    pub(crate) fn write_and_finish(mut self, output: &OutputArgs) -> anyhow::Result<ExitCode> {
        let asserted = self.asserted_values();
        let checked = output
            .asserts
            .iter()
            .map(|condition| condition.evaluate(&asserted));
        self.verdicts = checked.collect();
        let to_stdout = output.json.as_deref() == Some(Path::new("-"));
        if let Some(path) = &output.json {
            let text = json::render(&self)?;
            if to_stdout {
                print_text(&text)?;
            } else {
                fs::write(path, text)
                    .with_context(|| format!("cannot write --json {}", path.display()))?;
            }
        }
        if let Some(path) = &output.report {
            fs::write(path, html::render(&self))
                .with_context(|| format!("cannot write --report {}", path.display()))?;
        }
        if let Some(path) = &output.memory_plot {
            fs::write(path, memory::memory_plot(&self)?)
                .with_context(|| format!("cannot write --memory-plot {}", path.display()))?;
        }
        if let Some(path) = &output.memory_csv {
            fs::write(path, memory::memory_csv(&self))
                .with_context(|| format!("cannot write --memory-csv {}", path.display()))?;
        }
        if !to_stdout {
            print_text(&table::render(&self))?;
        }
        let failed = self
            .sides
            .iter()
            .any(|s| s.total.tally.failures.count() > 0);
        let broken: Vec<&AssertionOutcome> = self.verdicts.iter().filter(|v| !v.holds).collect();
        for verdict in &broken {
            eprintln!(
                "assertion `{}` is broken: {}",
                verdict.condition, verdict.found
            );
        }
        Ok(if broken.is_empty() && !failed {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}

fn print_text(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .context("cannot write to standard output")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::observer::{BrokerUsage, Observations, SeriesPoint};
    use crate::round_outcome::{MeasuredSubject, RoundOutcome};
    use crate::worker::WorkerCounts;

    /// A report of a comparison, as the renderers see it.
    pub(crate) fn example() -> LoadReport {
        let side = |label: &str, factor: u64| {
            let mut tally = WorkerCounts {
                seconds: 2.0,
                received: 2_000_000 * factor,
                sent: 2_000_000 * factor,
                generator_cpu_s: 1.9,
                generator_core_s: 2.0,
                ..WorkerCounts::default()
            };
            for us in 1..1000u64 {
                tally.latency.saturating_record(us * 1000);
            }
            tally.faults.lost = 3 - factor;
            let total = RoundOutcome {
                subject: MeasuredSubject::Messages { payload_bytes: 64 },
                tally,
                observations: Observations {
                    broker: Some(BrokerUsage {
                        cpu_s: 1.0,
                        ..BrokerUsage::default()
                    }),
                    machine_cpu_s: Some(3.0),
                    disk: None,
                    series: (1..20)
                        .map(|i| SeriesPoint {
                            at_s: f64::from(i) / 10.0,
                            per_second: 1e6 + f64::from(i % 3) * 1e5,
                            broker_cpu: Some(0.5),
                            rss_bytes: Some(1_000_000),
                        })
                        .collect(),
                },
            };
            ReportSide {
                label: label.to_owned(),
                rounds: vec![total.clone(), total.clone()],
                total,
            }
        };
        let sides = vec![side("mqtt://a<b>:1883", 2), side("mqtt://c:1884", 1)];
        let settings = vec![("qos".to_owned(), "0".to_owned())];
        LoadReport::new("p2p", settings, sides)
    }

    #[test]
    fn faults_of_any_side_count() {
        let report = example();
        let asserted = report.asserted_values();
        assert_eq!(asserted.get("lost"), Some(2.0));
        assert_eq!(asserted.get("throughput"), Some(2_000_000.0));
        assert_eq!(asserted.get("ratio"), Some(2.0));
    }

    #[test]
    fn a_busy_generator_is_reported() {
        let report = example();
        assert!(report.warnings[0].contains("95 %"), "{:?}", report.warnings);
    }
}
