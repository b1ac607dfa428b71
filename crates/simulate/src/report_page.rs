//! The result as one HTML file that needs nothing else: conditions, charts over time, and tables by phase.

use std::fmt::Write as _;

use load_client::plot::{Curve, Plot, REPORT_STYLE, axis_marks, escape};
use load_client::units::Unit;

use crate::metrics::METRICS;
use crate::report::{IN_MEMORY, PhaseReport, SimulationReport};
use crate::run::SeriesPoint;

/// Charts on narrow screens, and tables with a column for each phase, scroll instead of widening the page.
const TABLE_STYLE: &str = "
.wide { overflow-x: auto; } .wide svg { min-width: 640px; } .wide th, .wide td { white-space: nowrap; }
";

/// One line of a chart: its label, and its value between two points of the series.
type CurveSource<'a> = (
    &'a str,
    &'a dyn Fn(&SeriesPoint, &SeriesPoint) -> Option<f64>,
);

/// Renders the report of a simulation.
pub(crate) fn render(report: &SimulationReport) -> String {
    let title = escape(&format!("Simulation {}", report.name));
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{title}</title>\
         <style>{REPORT_STYLE}{TABLE_STYLE}</style></head>\n<body><h1>{title}</h1>\n"
    );
    if !report.description.is_empty() {
        put(
            &mut page,
            format_args!("<p>{}</p>\n", escape(&report.description)),
        );
    }
    put(
        &mut page,
        format_args!(
            "<p>{} devices, broker <code>{}</code>, seed {}, started {}</p>\n",
            Unit::Count.format(report.devices as f64),
            escape(&report.broker),
            report.seed,
            escape(&report.started),
        ),
    );
    if report.is_in_memory {
        put(
            &mut page,
            format_args!("<p class=\"note\">{IN_MEMORY}</p>\n"),
        );
    }
    if report.is_interrupted {
        page.push_str("<p class=\"note\">The run was interrupted.</p>\n");
    }
    if !report.interventions.is_empty() {
        let changes: Vec<String> = report
            .interventions
            .iter()
            .map(|text| escape(text))
            .collect();
        put(
            &mut page,
            format_args!(
                "<p class=\"note\">Changed by keys while it ran: {}.</p>\n",
                changes.join("; ")
            ),
        );
    }
    write_conditions(&mut page, report);
    page.push_str(&charts(report));
    write_metrics(&mut page, "Metrics by phase", &report.phases);
    if let Some(verification) = &report.verification {
        write_metrics(
            &mut page,
            "Verification",
            std::slice::from_ref(verification),
        );
    }
    write_classes(&mut page, &report.phases);
    for phase in &report.phases {
        write_failures(&mut page, phase);
    }
    page.push_str("</body></html>\n");
    page
}

fn put(page: &mut String, text: std::fmt::Arguments<'_>) {
    page.write_fmt(text).expect("a text takes all");
}

fn write_conditions(page: &mut String, report: &SimulationReport) {
    if report.sections().all(|phase| phase.conditions.is_empty()) {
        return;
    }
    page.push_str("<h2>Conditions</h2>\n<div class=\"wide\"><table><tr><th>phase</th><th>condition</th><th></th><th></th></tr>\n");
    for phase in report.sections() {
        for condition in &phase.conditions {
            let (class, word) = match condition.holds {
                true => ("", "holds"),
                false => ("broken", "fails"),
            };
            put(
                page,
                format_args!(
                    "<tr><td>{}</td><td><code>{}</code></td><td class=\"{class}\">{word}</td><td>{}</td></tr>\n",
                    escape(&phase.name),
                    escape(&condition.condition),
                    escape(&condition.found)
                ),
            );
        }
    }
    page.push_str("</table></div>\n");
}

/// Increase of a counter per second.
fn rate(before: &SeriesPoint, now: &SeriesPoint, counter: fn(&SeriesPoint) -> u64) -> Option<f64> {
    let seconds = now.at_s - before.at_s;
    (seconds > 0.0).then(|| counter(now).saturating_sub(counter(before)) as f64 / seconds)
}

fn charts(report: &SimulationReport) -> String {
    let per_second = |value| Unit::PerSecond.format(value);
    let connected = chart(
        report,
        "Devices connected",
        &[("", &|_, now| Some(now.progress.connected as f64))],
        |value| Unit::Count.format(value),
    );
    let messages = chart(
        report,
        "Messages per second",
        &[
            ("sent", &|before, now| {
                rate(before, now, |point| point.progress.sent)
            }),
            ("acknowledged", &|before, now| {
                rate(before, now, |point| point.progress.acknowledged)
            }),
            ("received", &|before, now| {
                rate(before, now, |point| point.progress.received)
            }),
        ],
        per_second,
    );
    let latency = chart(
        report,
        "Mean time to acknowledgement",
        &[("", &|before, now| {
            let count = now
                .progress
                .acknowledged
                .saturating_sub(before.progress.acknowledged);
            let sum_ns = now
                .progress
                .ack_sum_ns
                .saturating_sub(before.progress.ack_sum_ns);
            (count > 0).then(|| sum_ns as f64 / count as f64)
        })],
        |value| Unit::Nanoseconds.format(value),
    );
    let connections = chart(
        report,
        "Connections per second",
        &[
            ("accepted", &|before, now| {
                rate(before, now, |point| point.progress.connects)
            }),
            ("failed or ended unexpectedly", &|before, now| {
                rate(before, now, |point| point.progress.failures)
            }),
        ],
        per_second,
    );
    [connected, messages, latency, connections].concat()
}

/// A chart over the time of the run. Curves that are always 0 are left out.
fn chart(
    report: &SimulationReport,
    title: &str,
    sources: &[CurveSource<'_>],
    show: impl Fn(f64) -> String,
) -> String {
    let curves: Vec<Curve> = sources
        .iter()
        .map(|(label, value)| Curve {
            label: (*label).to_owned(),
            points: report
                .series
                .windows(2)
                .filter_map(|pair| Some((pair[1].at_s, value(&pair[0], &pair[1])?)))
                .collect(),
        })
        .filter(|curve: &Curve| curve.points.iter().any(|(_, value)| *value > 0.0))
        .collect();
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let longest_s = report.series.last().map_or(0.0, |point| point.at_s);
    let most = points().map(|point| point.1).fold(0.0, f64::max);
    let mut begin_s = 0.0;
    let mut sections = Vec::new();
    for phase in &report.phases {
        sections.push((begin_s, phase.name.clone()));
        begin_s += phase.values.get("seconds").unwrap_or_default();
    }
    let svg = Plot {
        title,
        curves: &curves,
        x_marks: axis_marks(longest_s, |seconds| {
            format!("{} s", (seconds * 10.0).round() / 10.0)
        }),
        // With room for the names of the phases.
        y_marks: axis_marks(most * 1.1, show),
        sections,
    }
    .render();
    match svg.is_empty() {
        true => svg,
        false => format!("<div class=\"wide\">{svg}</div>\n"),
    }
}

fn write_head(page: &mut String, title: &str, phases: &[PhaseReport]) {
    put(
        page,
        format_args!("<h2>{title}</h2>\n<div class=\"wide\"><table><tr><th></th>"),
    );
    for phase in phases {
        put(
            page,
            format_args!("<th class=\"n\">{}</th>", escape(&phase.name)),
        );
    }
    page.push_str("</tr>\n");
}

/// The results of `[verify]`: that nothing was lost is what a reader looks for.
const SHOWN_IF_ZERO: [&str; 3] = ["lost", "repeated", "reordered"];

fn write_metrics(page: &mut String, title: &str, phases: &[PhaseReport]) {
    write_head(page, title, phases);
    for metric in METRICS {
        let values: Vec<Option<f64>> = phases
            .iter()
            .map(|phase| phase.values.get(metric.name))
            .collect();
        // What did not happen in any phase is left out.
        let is_shown_if_zero = SHOWN_IF_ZERO.contains(&metric.name);
        if values
            .iter()
            .all(|value| value.is_none_or(|value| value == 0.0 && !is_shown_if_zero))
        {
            continue;
        }
        put(
            page,
            format_args!("<tr><td title=\"{}\">{}</td>", metric.name, metric.label),
        );
        for value in values {
            let shown = value.map_or("-".to_owned(), |value| metric.unit.format(value));
            put(page, format_args!("<td class=\"n\">{shown}</td>"));
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table></div>\n");
}

fn write_classes(page: &mut String, phases: &[PhaseReport]) {
    let Some(first) = phases.iter().find(|phase| !phase.classes.is_empty()) else {
        return;
    };
    write_head(page, "Connections by time to CONNACK", phases);
    for (at, (label, _)) in first.classes.iter().enumerate() {
        put(page, format_args!("<tr><td>{}</td>", escape(label)));
        for phase in phases {
            let count = phase.classes.get(at).map_or("-".to_owned(), |(_, count)| {
                Unit::Count.format(*count as f64)
            });
            put(page, format_args!("<td class=\"n\">{count}</td>"));
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table></div>\n");
}

fn write_failures(page: &mut String, phase: &PhaseReport) {
    if phase.failures.count() == 0 {
        return;
    }
    put(
        page,
        format_args!(
            "<h2>Failures in phase {}</h2>\n<table>",
            escape(&phase.name)
        ),
    );
    for (kind, count) in &phase.failures.by_kind {
        put(
            page,
            format_args!(
                "<tr><td>{}</td><td class=\"n\">{count}</td></tr>\n",
                escape(kind)
            ),
        );
    }
    page.push_str("</table>\n<ul>");
    for described in &phase.failures.first {
        put(page, format_args!("<li>{}</li>\n", escape(described)));
    }
    page.push_str("</ul>\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::MetricValues;
    use crate::run::RunProgress;
    use load_client::assertion::AssertionOutcome;

    #[test]
    fn a_page_stands_on_its_own() {
        let phase = |name: &str, holds| {
            let mut values = MetricValues::default();
            values.set("seconds", 2.0);
            values.set("sent", 20.0);
            PhaseReport {
                name: name.to_owned(),
                values,
                classes: vec![("> 10 ms".to_owned(), 7)],
                failures: Default::default(),
                conditions: vec![AssertionOutcome {
                    condition: "sent<5".to_owned(),
                    holds,
                    found: "sent is 20".to_owned(),
                }],
            }
        };
        let point = |second: u64| SeriesPoint {
            at_s: second as f64,
            progress: RunProgress {
                connected: 5,
                sent: second * 10,
                acknowledged: second * 10,
                ack_sum_ns: second * 10_000,
                ..RunProgress::default()
            },
        };
        let page = render(&SimulationReport {
            name: "a<b>.toml".to_owned(),
            description: String::new(),
            started: "2026-01-01T00:00:00Z".to_owned(),
            phases: vec![phase("first", true), phase("second", false)],
            verification: Some(phase("verification", true)),
            series: (0..5).map(point).collect(),
            is_interrupted: false,
            interventions: vec!["rates x2 after 1.0 s of phase <b>".to_owned()],
            broker: "memory:".to_owned(),
            is_in_memory: true,
            devices: 5,
            seed: 1,
        });
        // No connection failed, and none was accepted in the series.
        assert_eq!(page.matches("<svg").count(), 3, "{page}");
        assert_eq!(page.matches(">fails<").count(), 1);
        assert_eq!(page.matches(">holds<").count(), 2);
        assert!(
            page.contains("rates x2 after 1.0 s of phase &lt;b&gt;"),
            "{page}"
        );
        assert!(page.contains(IN_MEMORY), "{page}");
        assert!(page.contains("a&lt;b&gt;") && !page.contains("a<b>"));
        assert!(page.contains("1.00 us") || page.contains("1 us"), "{page}");
        assert!(!page.contains("http") && !page.contains("NaN"), "{page}");
    }
}
