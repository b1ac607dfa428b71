//! Demands on the result: `p99<5ms`, `throughput>=1M`, `lost==0`.

use std::fmt;
use std::str::FromStr;

use crate::metrics::{METRICS, MetricDefinition, MetricValues, find};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Less,
    AtMost,
    More,
    AtLeast,
    Equal,
    Unequal,
}

/// Two-character operators first, so that `<=` is not taken for `<`.
const OPERATORS: &[(&str, Comparison)] = &[
    ("<=", Comparison::AtMost),
    (">=", Comparison::AtLeast),
    ("==", Comparison::Equal),
    ("!=", Comparison::Unequal),
    ("<", Comparison::Less),
    (">", Comparison::More),
    ("=", Comparison::Equal),
];

/// One demand.
#[derive(Clone, Debug)]
pub(crate) struct Assertion {
    text: String,
    metric: &'static MetricDefinition,
    comparison: Comparison,
    limit: f64,
}

/// How a demand turned out.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub(crate) struct AssertionOutcome {
    /// The demand as it was written.
    pub(crate) demand: String,
    pub(crate) holds: bool,
    /// What was found.
    pub(crate) found: String,
}

impl FromStr for Assertion {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let start = text.find(['<', '>', '=', '!']);
        let parts = start.and_then(|at| {
            let (name, rest) = text.split_at(at);
            let (operator, comparison) = OPERATORS.iter().find(|(op, _)| rest.starts_with(op))?;
            Some((name.trim(), *comparison, &rest[operator.len()..]))
        });
        let Some((name, comparison, value)) = parts else {
            return Err(format!(
                "`{text}` is not METRIC, one of < <= > >= == !=, VALUE; for example p99<5ms"
            ));
        };
        let metric = find(name).ok_or_else(|| unknown_metric(name))?;
        let limit = metric
            .unit
            .parse(value)
            .map_err(|reason| format!("the value of `{name}`: {reason}"))?;
        Ok(Self {
            text: text.trim().to_owned(),
            metric,
            comparison,
            limit,
        })
    }
}

fn unknown_metric(name: &str) -> String {
    let names: Vec<&str> = METRICS.iter().map(|metric| metric.name).collect();
    let nearest = names
        .iter()
        .map(|known| (edit_distance(name, known), *known))
        .min();
    let hint = match nearest {
        Some((steps, known)) if steps <= 3 => format!("; did you mean `{known}`?"),
        _ => String::new(),
    };
    format!(
        "there is no metric `{name}`{hint} Known: {}",
        names.join(" ")
    )
}

/// Edit distance between two names.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replace = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = replace.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

impl Assertion {
    pub(crate) fn metric_name(&self) -> &'static str {
        self.metric.name
    }

    /// Checks the demand. A metric that was not measured does not hold.
    pub(crate) fn evaluate(&self, measures: &MetricValues) -> AssertionOutcome {
        let Some(value) = measures.get(self.metric.name) else {
            return AssertionOutcome {
                demand: self.text.clone(),
                holds: false,
                found: "not measured in this run (metrics of the broker's process need its id)"
                    .to_owned(),
            };
        };
        let holds = match self.comparison {
            Comparison::Less => value < self.limit,
            Comparison::AtMost => value <= self.limit,
            Comparison::More => value > self.limit,
            Comparison::AtLeast => value >= self.limit,
            Comparison::Equal => value == self.limit,
            Comparison::Unequal => value != self.limit,
        };
        AssertionOutcome {
            demand: self.text.clone(),
            holds,
            found: format!("{} is {}", self.metric.name, self.metric.unit.format(value)),
        }
    }
}

impl fmt::Display for Assertion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(demand: &str, name: &str, value: f64) -> bool {
        let mut measures = MetricValues::default();
        measures.set(name, value);
        let demand: Assertion = demand.parse().expect("well-formed");
        demand.evaluate(&measures).holds
    }

    #[test]
    fn compares_with_units() {
        assert!(holds("p99<5ms", "p99", 4_999_999.0));
        assert!(!holds("p99<5ms", "p99", 5_000_000.0));
        assert!(holds("p99.9 <= 5ms", "p99.9", 5_000_000.0));
        assert!(holds("throughput>=1M", "throughput", 1_000_000.0));
        assert!(!holds("throughput>1M", "throughput", 1_000_000.0));
        assert!(holds("lost==0", "lost", 0.0));
        assert!(holds("lost=0", "lost", 0.0));
        assert!(holds("reordered!=0", "reordered", 2.0));
        assert!(holds(
            "rss_per_connection<=2KiB",
            "rss_per_connection",
            2048.0
        ));
        assert!(holds("ratio>=25", "ratio", 25.0));
        assert!(holds("generator_cpu<90%", "generator_cpu", 0.5));
        assert!(holds("cpu_seconds<1s", "cpu_seconds", 0.25));
    }

    #[test]
    fn what_was_not_measured_does_not_hold() {
        let demand: Assertion = "per_cpu_second>1".parse().expect("well-formed");
        let verdict = demand.evaluate(&MetricValues::default());
        assert!(!verdict.holds);
        assert!(verdict.found.contains("not measured"));
    }

    #[test]
    fn says_what_is_wrong() {
        let error = |text: &str| text.parse::<Assertion>().unwrap_err();
        assert!(error("p99").contains("p99<5ms"));
        assert!(error("p98<5ms").contains("did you mean `p9"));
        assert!(error("p99<5").contains("no unit"));
        assert!(error("p99<5MB").contains("`MB`"));
        assert!(error("lost==none").contains("lost"));
        assert!(error("zzzzzzzzzzzz<1").contains("Known: throughput"));
    }
}
