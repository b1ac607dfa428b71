//! The result as one HTML file that needs nothing else: settings, numbers, plots.

use std::fmt::Write;

use load_client::plot::{Curve, Plot, REPORT_STYLE, axis_marks, escape};

use super::load_report::{LoadReport, ReportSide};
use crate::metrics::{METRICS, latency_classes};
use crate::round_outcome::MeasuredSubject;
use crate::units::Unit;

/// Renders the report.
pub(super) fn render(report: &LoadReport) -> String {
    let title = format!("tidegate bench mqtt {}", report.scenario);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{title}</title>\
         <style>{REPORT_STYLE}</style></head>\n<body><h1>{title}</h1>\n<p>"
    );
    for (name, value) in &report.settings {
        let _ = write!(page, "{} <code>{}</code> ", escape(name), escape(value));
    }
    page.push_str("</p>\n");
    for warning in &report.warnings {
        let _ = writeln!(page, "<p class=\"note\">{}</p>", escape(warning));
    }
    write_assertions(&mut page, report);
    write_numbers(&mut page, report);
    page.push_str(&throughput(report));
    page.push_str(&broker_cpu(report));
    page.push_str(&percentiles(report));
    for side in &report.sides {
        connect_classes(&mut page, side);
        failures(&mut page, side);
    }
    page.push_str("</body></html>\n");
    page
}

fn write_assertions(page: &mut String, report: &LoadReport) {
    if report.verdicts.is_empty() {
        return;
    }
    page.push_str("<h2>Assertions</h2>\n<table>");
    for verdict in &report.verdicts {
        let (class, word) = match verdict.holds {
            true => ("", "holds"),
            false => ("broken", "broken"),
        };
        let _ = writeln!(
            page,
            "<tr><td><code>{}</code></td><td class=\"{class}\">{word}</td><td>{}</td></tr>",
            escape(&verdict.condition),
            escape(&verdict.found)
        );
    }
    page.push_str("</table>\n");
}

fn write_numbers(page: &mut String, report: &LoadReport) {
    let measures: Vec<_> = report.sides.iter().map(|s| s.total.measures()).collect();
    page.push_str("<h2>Numbers</h2>\n<table><tr><th></th>");
    for side in &report.sides {
        let _ = write!(page, "<th class=\"n\">{}</th>", escape(&side.label));
    }
    page.push_str("</tr>\n");
    for metric in METRICS {
        let values: Vec<Option<f64>> = measures.iter().map(|m| m.get(metric.name)).collect();
        if values.iter().all(Option::is_none) {
            continue;
        }
        let _ = write!(page, "<tr><td>{}</td>", metric.label);
        for value in values {
            let shown = value.map_or("-".to_owned(), |value| metric.unit.format(value));
            let _ = write!(page, "<td class=\"n\">{shown}</td>");
        }
        page.push_str("</tr>\n");
    }
    for (metric, value) in report.ratios.iter() {
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td class=\"n\" colspan=\"{}\">{}</td></tr>",
            metric.label,
            report.sides.len(),
            metric.unit.format(value)
        );
    }
    page.push_str("</table>\n");
}

/// A plot over time of one property of the series.
fn time_plot(
    report: &LoadReport,
    title: &str,
    value: impl Fn(&crate::observer::SeriesPoint) -> Option<f64>,
    show: impl Fn(f64) -> String,
) -> String {
    let curves: Vec<Curve> = report
        .sides
        .iter()
        .map(|side| Curve {
            label: side.label.clone(),
            points: side
                .total
                .observations
                .series
                .iter()
                .filter_map(|point| Some((point.at_s, value(point)?)))
                .collect(),
        })
        .collect();
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let most_x = points().map(|p| p.0).fold(0.0, f64::max);
    let most_y = points().map(|p| p.1).fold(0.0, f64::max);
    Plot {
        title,
        x_marks: axis_marks(most_x, |s| format!("{s} s")),
        y_marks: axis_marks(most_y, show),
        sections: Vec::new(),
        curves: &curves,
    }
    .render()
}

fn throughput(report: &LoadReport) -> String {
    let title = match report.sides.first().map(|side| side.total.subject) {
        Some(MeasuredSubject::Connections { .. }) => "Connections accepted per second",
        Some(MeasuredSubject::Stored { .. }) => "Messages stored, then received, per second",
        _ => "Messages received per second",
    };
    time_plot(
        report,
        title,
        |point| Some(point.per_second),
        |value| Unit::PerSecond.format(value),
    )
}

fn broker_cpu(report: &LoadReport) -> String {
    time_plot(
        report,
        "Broker processor use, of one core",
        |point| point.broker_cpu,
        |value| format!("{:.0} %", value * 100.0),
    )
}

/// Latency over percentiles. The x axis shows nines (50 %, 90 %, 99 %, ...), the y axis is logarithmic.
fn percentiles(report: &LoadReport) -> String {
    let curves: Vec<Curve> = report
        .sides
        .iter()
        .map(|side| Curve {
            label: side.label.clone(),
            points: percentile_curve(side),
        })
        .collect();
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let least = points().map(|p| p.1).fold(f64::INFINITY, f64::min).floor();
    let most = points().map(|p| p.1).fold(0.0, f64::max).ceil();
    if !least.is_finite() {
        return String::new();
    }
    let most = most.max(least + 1.0);
    let marks = (least as i32..=most as i32).map(f64::from);
    let nines = ["0 %", "90 %", "99 %", "99.9 %", "99.99 %", "99.999 %"];
    Plot {
        title: "Latency by percentile",
        curves: &curves,
        x_marks: nines
            .iter()
            .enumerate()
            .map(|(at, text)| (at as f64, (*text).to_owned()))
            .collect(),
        y_marks: marks
            .map(|at| (at, Unit::Nanoseconds.format(10f64.powf(at))))
            .collect(),
        sections: Vec::new(),
    }
    .render()
}

fn percentile_curve(side: &ReportSide) -> Vec<(f64, f64)> {
    let histogram = &side.total.tally.latency;
    if histogram.is_empty() {
        return Vec::new();
    }
    let steps = 100;
    (0..=steps)
        .map(|step| 5.0 * f64::from(step) / f64::from(steps))
        // A percentile beyond the number of messages has no meaning.
        .filter(|nines| 10f64.powf(*nines) <= histogram.len() as f64)
        .map(|nines| {
            let ns = histogram.value_at_quantile(1.0 - 10f64.powf(-nines));
            (nines, (ns.max(1) as f64).log10())
        })
        .collect()
}

fn connect_classes(page: &mut String, side: &ReportSide) {
    if !matches!(side.total.subject, MeasuredSubject::Connections { .. }) {
        return;
    }
    let _ = write!(
        page,
        "<h2>Time to CONNACK, {}</h2>\n<table>",
        escape(&side.label)
    );
    for (label, count) in latency_classes(&side.total.tally.latency) {
        let _ = writeln!(
            page,
            "<tr><td class=\"n\">{}</td><td class=\"n\">{count}</td></tr>",
            escape(&label)
        );
    }
    page.push_str("</table>\n");
}

fn failures(page: &mut String, side: &ReportSide) {
    let failures = &side.total.tally.failures;
    if failures.count() == 0 {
        return;
    }
    let _ = write!(page, "<h2>Errors, {}</h2>\n<table>", escape(&side.label));
    for (kind, count) in &failures.by_kind {
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td class=\"n\">{count}</td></tr>",
            escape(kind)
        );
    }
    page.push_str("</table>\n<ul>");
    for described in &failures.first {
        let _ = writeln!(page, "<li>{}</li>", escape(described));
    }
    page.push_str("</ul>\n");
}

#[cfg(test)]
mod tests {
    #[test]
    fn stands_on_its_own() {
        let page = super::render(&super::super::tests::example());
        assert_eq!(page.matches("<svg").count(), 3);
        assert!(page.contains("Latency by percentile"));
        assert!(page.contains("a&lt;b&gt;") && !page.contains("a<b>"));
        assert!(!page.contains("http") && !page.contains("NaN"), "{page}");
    }
}
