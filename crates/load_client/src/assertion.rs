//! Conditions on the metrics of a run: `p99<5ms`, `throughput>=1M`, `lost==0`.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use crate::metrics::{MetricDefinition, MetricTable, MetricValues};

type Comparison = fn(f64, f64) -> bool;

/// Longer operators first, so that `<=` is not read as `<`.
const OPERATORS: [(&str, Comparison); 7] = [
    ("<=", |value, limit| value <= limit),
    (">=", |value, limit| value >= limit),
    ("==", |value, limit| value == limit),
    ("!=", |value, limit| value != limit),
    ("<", |value, limit| value < limit),
    (">", |value, limit| value > limit),
    ("=", |value, limit| value == limit),
];

/// A condition on one metric of `T`.
#[derive(Clone, Debug)]
pub struct Assertion<T> {
    text: String,
    metric: &'static MetricDefinition,
    holds: Comparison,
    limit: f64,
    table: PhantomData<T>,
}

/// The result of a condition.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct AssertionOutcome {
    /// As it was written.
    pub condition: String,
    pub holds: bool,
    /// The value, or that there is none.
    pub found: String,
}

impl<T: MetricTable> FromStr for Assertion<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.find(['<', '>', '=', '!']).and_then(|at| {
            let (name, rest) = text.split_at(at);
            let (operator, holds) = OPERATORS
                .iter()
                .find(|(operator, _)| rest.starts_with(operator))?;
            Some((name.trim(), *holds, &rest[operator.len()..]))
        });
        let Some((name, holds, value)) = parts else {
            return Err(format!(
                "`{text}` is not a condition; expected METRIC, one of < <= > >= == !=, and a value, for example {}",
                T::EXAMPLE
            ));
        };
        let metric = T::find(name).ok_or_else(|| unknown_metric::<T>(name))?;
        let limit = metric
            .unit
            .parse(value)
            .map_err(|reason| format!("the value of `{name}`: {reason}"))?;
        Ok(Self {
            text: text.trim().to_owned(),
            metric,
            holds,
            limit,
            table: PhantomData,
        })
    }
}

fn unknown_metric<T: MetricTable>(name: &str) -> String {
    let names = T::METRICS.iter().map(|metric| metric.name);
    match rules::nearest_name(name, names.clone()) {
        Some(nearest) => format!("unknown metric `{name}`; did you mean `{nearest}`?"),
        None => format!(
            "unknown metric `{name}`; expected one of {}",
            names.collect::<Vec<_>>().join(", ")
        ),
    }
}

impl<T: MetricTable> Assertion<T> {
    #[must_use]
    pub fn metric_name(&self) -> &'static str {
        self.metric.name
    }

    /// Checks the condition. It does not hold if the metric was not measured.
    #[must_use]
    pub fn evaluate(&self, values: &MetricValues<T>) -> AssertionOutcome {
        let name = self.metric.name;
        let value = values.get(name);
        AssertionOutcome {
            condition: self.text.clone(),
            holds: value.is_some_and(|value| (self.holds)(value, self.limit)),
            found: match value {
                Some(value) => format!("{name} is {}", self.metric.unit.format(value)),
                None => format!("{name} was not measured{}", T::NOT_MEASURED),
            },
        }
    }
}

impl<T> fmt::Display for Assertion<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::tests::TestMetrics;

    fn outcome(condition: &str, value: Option<(&str, f64)>) -> AssertionOutcome {
        let mut values = MetricValues::default();
        if let Some((name, value)) = value {
            values.set(name, value);
        }
        let condition: Assertion<TestMetrics> = condition.parse().expect("well-formed");
        condition.evaluate(&values)
    }

    #[test]
    fn conditions_are_compared_with_their_unit() {
        let holds = |condition, name, value| outcome(condition, Some((name, value))).holds;
        assert!(holds("ack_p99<5ms", "ack_p99", 4_999_999.0));
        assert!(!holds("ack_p99<5ms", "ack_p99", 5_000_000.0));
        assert!(holds("p99.9 <= 5ms", "p99.9", 5_000_000.0));
        assert!(holds("rate>=1M", "rate", 1_000_000.0));
        assert!(!holds("rate>1M", "rate", 1_000_000.0));
        assert!(holds("sent==0", "sent", 0.0) && holds("sent=0", "sent", 0.0));
        assert!(holds("sent!=0", "sent", 2.0) && !holds("sent!=0", "sent", 0.0));
        assert!(holds("bytes<=2KiB", "bytes", 2048.0));
        assert!(holds("ratio>=25", "ratio", 25.0));
        assert!(holds("share<90%", "share", 0.5));
        assert!(holds("seconds<1s", "seconds", 0.25));
    }

    #[test]
    fn a_condition_on_what_was_not_measured_does_not_hold() {
        let outcome = outcome("ack_p99<1s", None);
        assert!(!outcome.holds);
        assert_eq!(outcome.found, "ack_p99 was not measured in this test");
    }

    #[test]
    fn wrong_conditions_are_explained() {
        let error = |text: &str| text.parse::<Assertion<TestMetrics>>().unwrap_err();
        assert!(error("ack_p99").contains("ack_p99<5ms"));
        assert!(error("ack_p98<5ms").contains("did you mean `ack_p99`?"));
        assert!(error("ack_p99<5").contains("no unit"));
        assert!(error("ack_p99<5MB").contains("`MB`"));
        assert!(error("sent==none").contains("sent"));
        assert!(error("zzzzzzzzzzzz<1").contains("expected one of sent, share"));
    }
}
