//! Metrics in the Prometheus text format (exposition format 0.0.4).

use std::fmt::Write as _;

use hooks::{MetricFamily, MetricKind, MetricValue};

pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Appends families, each name prefixed with `prefix`. Families without samples are skipped.
pub(crate) fn write_families(families: &[MetricFamily], prefix: &str, out: &mut String) {
    // Writing to a string cannot fail, so the results of `write!` are ignored here and below.
    for family in families.iter().filter(|family| !family.samples.is_empty()) {
        let name = format!("{prefix}{}", family.name);
        let kind = match family.kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
            MetricKind::Summary => "summary",
        };
        let _ = writeln!(
            out,
            "# HELP {name} {}",
            family.help.replace('\\', r"\\").replace('\n', r"\n")
        );
        let _ = writeln!(out, "# TYPE {name} {kind}");
        for sample in &family.samples {
            match &sample.value {
                MetricValue::Number(value) => {
                    write_sample(out, &name, "", &sample.labels, None, *value)
                }
                MetricValue::Histogram {
                    buckets,
                    sum,
                    count,
                } => {
                    for (bound, cumulative) in buckets {
                        write_sample(
                            out,
                            &name,
                            "_bucket",
                            &sample.labels,
                            Some(*bound),
                            *cumulative as f64,
                        );
                    }
                    write_sample(
                        out,
                        &name,
                        "_bucket",
                        &sample.labels,
                        Some(f64::INFINITY),
                        *count as f64,
                    );
                    write_sample(out, &name, "_sum", &sample.labels, None, *sum);
                    write_sample(out, &name, "_count", &sample.labels, None, *count as f64);
                }
                MetricValue::Summary {
                    quantiles,
                    sum,
                    count,
                } => {
                    for (part, value) in quantiles {
                        let mut labels = sample.labels.clone();
                        labels.push(("quantile", part.to_string()));
                        write_sample(out, &name, "", &labels, None, *value);
                    }
                    write_sample(out, &name, "_sum", &sample.labels, None, *sum);
                    write_sample(out, &name, "_count", &sample.labels, None, *count as f64);
                }
            }
        }
    }
}

/// Writes one sample; `bound` is the upper bound of a histogram bucket.
fn write_sample(
    out: &mut String,
    name: &str,
    suffix: &str,
    labels: &[(&str, String)],
    bound: Option<f64>,
    value: f64,
) {
    let _ = write!(out, "{name}{suffix}");
    let mut separator = '{';
    for (label, text) in labels {
        let _ = write!(out, "{separator}{label}=\"");
        text.chars().for_each(|c| match c {
            '\\' => out.push_str(r"\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str(r"\n"),
            c => out.push(c),
        });
        out.push('"');
        separator = ',';
    }
    if let Some(bound) = bound {
        let _ = write!(out, "{separator}le=\"");
        write_number(out, bound);
        out.push('"');
        separator = ',';
    }
    if separator == ',' {
        out.push('}');
    }
    out.push(' ');
    write_number(out, value);
    out.push('\n');
}

fn write_number(out: &mut String, value: f64) {
    let _ = match value {
        f64::INFINITY => write!(out, "+Inf"),
        f64::NEG_INFINITY => write!(out, "-Inf"),
        value => write!(out, "{value}"),
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use hooks::MetricSample;

    fn family(name: &'static str, kind: MetricKind, samples: Vec<MetricSample>) -> MetricFamily {
        MetricFamily {
            name,
            help: "Back\\slash\nand line.",
            kind,
            samples,
        }
    }

    #[test]
    fn every_kind_is_written_and_escaped() {
        let sample = |labels, value| MetricSample { labels, value };
        let families = [
            family(
                "messages_total",
                MetricKind::Counter,
                vec![
                    sample(
                        vec![("qos", "0".into()), ("name", "a\"\\\nä".into())],
                        MetricValue::Number(5.0),
                    ),
                    sample(vec![], MetricValue::Number(0.25)),
                ],
            ),
            family("empty", MetricKind::Gauge, vec![]),
            family(
                "odd",
                MetricKind::Gauge,
                vec![sample(vec![], MetricValue::Number(f64::NAN))],
            ),
            family(
                "latency_seconds",
                MetricKind::Histogram,
                vec![sample(
                    vec![("shard", "1".into())],
                    MetricValue::Histogram {
                        buckets: vec![(0.001, 2), (1.0, 3)],
                        sum: 4.5,
                        count: 4,
                    },
                )],
            ),
            family(
                "duration_seconds",
                MetricKind::Summary,
                vec![sample(
                    vec![("rule", "r".into())],
                    MetricValue::Summary {
                        quantiles: vec![(0.99, 0.5)],
                        sum: 1.5,
                        count: 2,
                    },
                )],
            ),
        ];
        let mut out = String::new();
        write_families(&families, "tidegate_", &mut out);
        let expected = r#"# HELP tidegate_messages_total Back\\slash\nand line.
# TYPE tidegate_messages_total counter
tidegate_messages_total{qos="0",name="a\"\\\nä"} 5
tidegate_messages_total 0.25
# HELP tidegate_odd Back\\slash\nand line.
# TYPE tidegate_odd gauge
tidegate_odd NaN
# HELP tidegate_latency_seconds Back\\slash\nand line.
# TYPE tidegate_latency_seconds histogram
tidegate_latency_seconds_bucket{shard="1",le="0.001"} 2
tidegate_latency_seconds_bucket{shard="1",le="1"} 3
tidegate_latency_seconds_bucket{shard="1",le="+Inf"} 4
tidegate_latency_seconds_sum{shard="1"} 4.5
tidegate_latency_seconds_count{shard="1"} 4
# HELP tidegate_duration_seconds Back\\slash\nand line.
# TYPE tidegate_duration_seconds summary
tidegate_duration_seconds{rule="r",quantile="0.99"} 0.5
tidegate_duration_seconds_sum{rule="r"} 1.5
tidegate_duration_seconds_count{rule="r"} 2
"#;
        assert_eq!(out, expected);
    }
}
