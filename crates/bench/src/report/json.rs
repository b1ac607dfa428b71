//! The result as JSON: every number under the name it has in `--assert`, in the unit of the metric without prefix
//! (seconds of processor time, nanoseconds of latency, bytes, fractions).

use serde_json::{Map, Value, json};

use super::load_report::{LoadReport, ReportSide};
use crate::metrics::{MetricValues, latency_classes};
use crate::round_outcome::{MeasuredSubject, RoundOutcome};

/// Version of the format, raised when a field changes its meaning or goes away.
const FORMAT: u32 = 2;

/// Renders the report.
pub(super) fn render(report: &LoadReport) -> anyhow::Result<String> {
    let settings: Map<String, Value> = report
        .settings
        .iter()
        .map(|(name, value)| (name.clone(), json!(value)))
        .collect();
    let document = json!({
        "format": FORMAT,
        "program": concat!("tidegate bench ", env!("CARGO_PKG_VERSION")),
        "scenario": report.scenario,
        "settings": settings,
        "brokers": report.sides.iter().map(side).collect::<Vec<_>>(),
        "ratios": measures(&report.ratios),
        "asserts": report.verdicts,
        "warnings": report.warnings,
    });
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

fn side(side: &ReportSide) -> Value {
    let mut value = outcome(&side.total);
    value["label"] = json!(side.label);
    value["failures"] = json!(side.total.tally.failures);
    value["series"] = json!(side.total.observations.series);
    if let MeasuredSubject::Connections { .. } = side.total.subject {
        value["classes"] = latency_classes(&side.total.tally.latency)
            .into_iter()
            .map(|(label, count)| json!({ "class": label, "connects": count }))
            .collect();
    }
    value["rounds"] = side.rounds.iter().map(outcome).collect();
    value
}

fn outcome(outcome: &RoundOutcome) -> Value {
    json!({ "measures": measures(&outcome.measures()) })
}

fn measures(measures: &MetricValues) -> Value {
    let each = measures.iter();
    let map: Map<String, Value> = each
        .map(|(metric, value)| (metric.name.to_owned(), json!(value)))
        .collect();
    Value::Object(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_names() {
        let text = render(&super::super::tests::example()).expect("serializable");
        let value: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(value["brokers"][0]["measures"]["throughput"], 2_000_000.0);
        assert_eq!(value["brokers"][1]["rounds"][1]["measures"]["lost"], 2.0);
        assert_eq!(value["ratios"]["ratio"], 2.0);
        assert_eq!(value["settings"]["qos"], "0");
        assert_eq!(value["brokers"][0]["series"][0]["at_s"], 0.1);
    }
}
