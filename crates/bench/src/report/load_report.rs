//! What a report contains: the outcome of each side, ratios and warnings.

use crate::metrics::MetricValues;
use crate::round_outcome::{MeasuredSubject, RoundOutcome, ratios};
use load_client::assertion::AssertionOutcome;

/// One of the things compared: a broker, or a way to use it.
#[derive(Clone, Debug)]
pub(crate) struct ReportSide {
    /// What distinguishes it.
    pub(crate) label: String,
    /// All rounds together, and each.
    pub(crate) total: RoundOutcome,
    pub(crate) rounds: Vec<RoundOutcome>,
}

/// All remarks about a result.
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
    "rejected",
    "unacknowledged",
    "unsent",
    "abandoned_windows",
    "unexpected",
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

    /// What conditions are checked against: the first side, the worst of both for faults, and the ratios.
    pub(super) fn asserted_values(&self) -> MetricValues {
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
    if let MeasuredSubject::Messages { .. } | MeasuredSubject::HeldConnections { .. } =
        outcome.subject
    {
        if measures.get("received") == Some(0.0) {
            found.push(format!("{label}: nothing was received in the interval"));
        }
        if let Some(unsent) = measures.get("unsent").filter(|&n| n > 0.0) {
            found.push(format!(
                "{label}: {unsent:.0} messages were due and never sent: the rate is more than broker or generator \
                 can do"
            ));
        }
        if let Some(windows) = measures.get("abandoned_windows").filter(|&n| n > 0.0) {
            found.push(format!(
                "{label}: {windows:.0} windows without progress for a second were abandoned, because messages were lost"
            ));
        }
    }
    if let Some(others) = measures.get("other_cores").filter(|&cores| cores > 0.15) {
        found.push(format!(
            "{label}: other programs kept {others:.1} cores busy meanwhile: throughput and latencies are not those of \
             an idle machine"
        ));
    }
    if let Some(stalls) = measures.get("stalls").filter(|&stalls| stalls > 0.005) {
        found.push(format!(
            "{label}: the machine did not run the generator for {:.1} % of the time in which it waited for messages, in \
             pieces of more than 0.2 ms: about as many of the latencies are longer because of the machine",
            100.0 * stalls
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
