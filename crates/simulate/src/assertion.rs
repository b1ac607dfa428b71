//! Conditions on the result of a phase: `connect_p99<50ms`, `disconnects==0`.

use std::str::FromStr;

use crate::metrics::{MetricDefinition, MetricValues, find, nearest};

type Comparison = fn(f64, f64) -> bool;

/// Longer operators first, so that `<=` is not read as `<`.
const OPERATORS: [(&str, Comparison); 6] = [
    ("<=", |value, limit| value <= limit),
    (">=", |value, limit| value >= limit),
    ("==", |value, limit| value == limit),
    ("!=", |value, limit| value != limit),
    ("<", |value, limit| value < limit),
    (">", |value, limit| value > limit),
];

#[derive(Clone, Debug)]
pub(crate) struct Assertion {
    text: String,
    metric: &'static MetricDefinition,
    holds: Comparison,
    limit: f64,
}

/// The result of a condition.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub(crate) struct AssertionOutcome {
    pub(crate) condition: String,
    pub(crate) holds: bool,
    pub(crate) found: String,
}

impl FromStr for Assertion {
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
                "`{text}` is not METRIC, one of < <= > >= == !=, VALUE; for example connect_p99<50ms"
            ));
        };
        let Some(metric) = find(name) else {
            let hint =
                nearest(name).map_or(String::new(), |name| format!("; did you mean `{name}`?"));
            return Err(format!("unknown metric `{name}`{hint}"));
        };
        let limit = metric
            .unit
            .parse(value)
            .map_err(|reason| format!("`{name}`: {reason}"))?;
        Ok(Self {
            text: text.trim().to_owned(),
            metric,
            holds,
            limit,
        })
    }
}

impl Assertion {
    /// Checks the condition. It does not hold if the metric was not measured.
    pub(crate) fn evaluate(&self, values: &MetricValues) -> AssertionOutcome {
        let value = values.get(self.metric.name);
        AssertionOutcome {
            condition: self.text.clone(),
            holds: value.is_some_and(|value| (self.holds)(value, self.limit)),
            found: match value {
                Some(value) => {
                    format!("{} is {}", self.metric.name, self.metric.unit.format(value))
                }
                None => format!("{} was not measured in this phase", self.metric.name),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_compared_with_their_unit() {
        let mut values = MetricValues::default();
        values.set("connect_p99", 49e6);
        values.set("sent", 0.0);
        let holds = |text: &str| {
            text.parse::<Assertion>()
                .expect("well-formed")
                .evaluate(&values)
                .holds
        };
        assert!(holds("connect_p99<50ms") && holds("connect_p99 <= 49ms") && holds("sent==0"));
        assert!(!holds("connect_p99>50ms") && !holds("sent!=0"));
        assert!(!holds("ack_p99<1s"), "it was not measured");
    }

    #[test]
    fn wrong_conditions_are_explained() {
        let error = |text: &str| text.parse::<Assertion>().unwrap_err();
        assert!(error("sent").contains("for example"));
        assert!(error("sents>1").contains("did you mean `sent`"));
        assert!(error("ack_p99<5").contains("no unit"));
    }
}
