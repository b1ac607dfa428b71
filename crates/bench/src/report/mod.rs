//! The result of a run, shown as a table, as JSON and as a page with plots.

mod html;
mod json;
mod memory;
mod plot;
mod table;

pub(crate) use memory::memory_slope;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;

use crate::args::OutputArgs;
use crate::assertion::AssertionOutcome;
use crate::metrics::MetricValues;
use crate::round_outcome::MeasuredSubject;
use crate::round_outcome::{RoundOutcome, ratios};

/// One of the things compared: a broker, or a way to use it.
#[derive(Clone, Debug)]
pub(crate) struct ReportSide {
    /// What distinguishes it.
    pub(crate) label: String,
    /// All rounds together, and each.
    pub(crate) total: RoundOutcome,
    pub(crate) rounds: Vec<RoundOutcome>,
}

/// All that is to be told.
#[derive(Debug)]
pub(crate) struct LoadReport {
    pub(crate) scenario: &'static str,
    /// Options that matter, as (name, value).
    pub(crate) settings: Vec<(String, String)>,
    pub(crate) sides: Vec<ReportSide>,
    /// Of the first side to the second.
    pub(crate) ratios: MetricValues,
    pub(crate) verdicts: Vec<AssertionOutcome>,
    pub(crate) warnings: Vec<String>,
}

/// Demands about these are made of every side, others of the first.
const FAULTS: &[&str] = &[
    "incomplete",
    "lost",
    "repeated",
    "reordered",
    "refused",
    "unacknowledged",
    "unsent",
    "stalls",
    "strange",
    "errors",
];

impl LoadReport {
    /// Works out ratios and warnings.
    pub(crate) fn new(
        scenario: &'static str,
        settings: Vec<(String, String)>,
        sides: Vec<ReportSide>,
    ) -> Self {
        let ratios = match &sides[..] {
            [first, second] => ratios(&first.total.measures(), &second.total.measures()),
            _ => MetricValues::default(),
        };
        let warnings = sides.iter().flat_map(warnings).collect();
        Self {
            scenario,
            settings,
            sides,
            ratios,
            verdicts: Vec::new(),
            warnings,
        }
    }

    /// What demands are checked against: the first side, the worst of both for faults, and the ratios.
    fn asserted_values(&self) -> MetricValues {
        let mut all = MetricValues::default();
        let each: Vec<MetricValues> = self.sides.iter().map(|s| s.total.measures()).collect();
        if let Some(first) = each.first() {
            for (metric, value) in first.iter() {
                let worst = each.iter().filter_map(|m| m.get(metric.name));
                let is_fault = FAULTS.contains(&metric.name);
                let value = if is_fault {
                    worst.fold(value, f64::max)
                } else {
                    value
                };
                all.set(metric.name, value);
            }
        }
        for (metric, value) in self.ratios.iter() {
            all.set(metric.name, value);
        }
        all
    }

    /// Checks the demands, writes everything that was asked for, and says how the process should end.
    pub(crate) fn write_and_finish(mut self, output: &OutputArgs) -> anyhow::Result<ExitCode> {
        let demanded = self.asserted_values();
        let checked = output
            .asserts
            .iter()
            .map(|demand| demand.evaluate(&demanded));
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
                verdict.demand, verdict.found
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

/// What a reader should know before believing the numbers of one side.
fn warnings(side: &ReportSide) -> Vec<String> {
    let (label, outcome) = (&side.label, &side.total);
    let measures = outcome.measures();
    let mut found = Vec::new();
    let cpu = outcome.generator_cpu();
    if cpu > 0.9 {
        found.push(match measures.get("cpu") {
            Some(broker) if broker > 0.95 => format!(
                "{label}: both the generator ({:.0} %) and the broker ({:.0} %) were busy: latencies are those of \
                 overload, throughput per CPU second is the broker's",
                cpu * 100.0,
                broker * 100.0
            ),
            Some(broker) => format!(
                "{label}: the generator used {:.0} % of its cores, the broker {:.0} % of one: throughput and \
                 latencies may be the generator's",
                cpu * 100.0,
                broker * 100.0
            ),
            None => format!(
                "{label}: the generator used {:.0} % of its cores: it may be what limits; give --broker-pid to see \
                 whether the broker was busy",
                cpu * 100.0
            ),
        });
    }
    if let MeasuredSubject::Messages { .. } = outcome.subject {
        if measures.get("received") == Some(0.0) {
            found.push(format!("{label}: nothing was received in the interval"));
        }
        if let Some(unsent) = measures.get("unsent").filter(|&n| n > 0.0) {
            found.push(format!(
                "{label}: {unsent:.0} messages were due and never sent: the rate is more than broker or generator \
                 can do"
            ));
        }
        if let Some(stalls) = measures.get("stalls").filter(|&n| n > 0.0) {
            found.push(format!(
                "{label}: a closed window stood still {stalls:.0} times for a second, because messages were lost"
            ));
        }
    }
    if let Some(others) = measures.get("other_cores").filter(|&cores| cores > 0.15) {
        found.push(format!(
            "{label}: other programs kept {others:.1} cores busy meanwhile: throughput and latencies are not those of \
             an idle machine"
        ));
    }
    if let Some(cpu_s) = measures.get("cpu_seconds").filter(|&cpu_s| cpu_s < 0.2) {
        found.push(format!(
            "{label}: the broker used {cpu_s:.2} s of processor time, which is counted in steps of 0.01 s: measure \
             longer"
        ));
    }
    found
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::observer::{BrokerUsage, Observations, SeriesPoint};
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
        let demanded = report.asserted_values();
        assert_eq!(demanded.get("lost"), Some(2.0));
        assert_eq!(demanded.get("throughput"), Some(2_000_000.0));
        assert_eq!(demanded.get("ratio"), Some(2.0));
    }

    #[test]
    fn a_busy_generator_is_told() {
        let report = example();
        assert!(report.warnings[0].contains("95 %"), "{:?}", report.warnings);
    }
}
