//! The result as text for a terminal.

use std::fmt::Write;

use super::load_report::{LoadReport, ReportSide};
use crate::metrics::{METRICS, latency_classes};
use crate::round_outcome::MeasuredSubject;

/// Numbers left out where they are zero, as they should be.
const HIDDEN_IF_ZERO: &[&str] = &[
    "incomplete",
    "repeated",
    "reordered",
    "rejected",
    "unacknowledged",
    "unsent",
    "abandoned_windows",
    "unexpected",
    "errors",
];

/// Renders the report.
pub(super) fn render(report: &LoadReport) -> String {
    let mut out = String::new();
    let settings: Vec<String> = report
        .settings
        .iter()
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    line(
        &mut out,
        &format!("{}: {}", report.scenario, settings.join(", ")),
    );
    out.push('\n');
    render_measures(&mut out, &report.sides);
    for side in &report.sides {
        render_classes(&mut out, side);
    }
    if report.sides.len() == 2 {
        render_ratios(&mut out, report);
    }
    for side in &report.sides {
        render_failures(&mut out, side);
    }
    for warning in &report.warnings {
        line(&mut out, &format!("note: {warning}"));
    }
    for verdict in &report.verdicts {
        let outcome = if verdict.holds { "holds" } else { "BROKEN" };
        line(
            &mut out,
            &format!(
                "assert {}: {outcome} ({})",
                verdict.condition, verdict.found
            ),
        );
    }
    out
}

fn line(out: &mut String, text: &str) {
    out.push_str(text);
    out.push('\n');
}

fn render_measures(out: &mut String, sides: &[ReportSide]) {
    let measures: Vec<_> = sides.iter().map(|side| side.total.measures()).collect();
    let mut rows: Vec<Vec<String>> = Vec::new();
    if sides.len() > 1 {
        let mut head = vec![String::new()];
        head.extend(sides.iter().map(|side| side.label.clone()));
        rows.push(head);
    }
    for metric in METRICS {
        let values: Vec<Option<f64>> = measures.iter().map(|m| m.get(metric.name)).collect();
        let is_quiet = HIDDEN_IF_ZERO.contains(&metric.name);
        if values
            .iter()
            .all(|value| value.is_none_or(|value| is_quiet && value == 0.0))
        {
            continue;
        }
        let mut row = vec![metric.label.to_owned()];
        row.extend(
            values
                .iter()
                .map(|value| value.map_or("-".to_owned(), |value| metric.unit.format(value))),
        );
        rows.push(row);
    }
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..=sides.len()).map(width).collect();
    for row in &rows {
        let _ = write!(out, "  {:<1$}", row[0], widths[0]);
        for (cell, width) in row.iter().zip(&widths).skip(1) {
            let _ = write!(out, "  {cell:>width$}");
        }
        out.push('\n');
    }
}

fn render_classes(out: &mut String, side: &ReportSide) {
    if !matches!(side.total.subject, MeasuredSubject::Connections { .. }) {
        return;
    }
    line(out, &format!("\n  time to CONNACK, {}", side.label));
    let all = side.total.tally.latency.len().max(1) as f64;
    for (label, count) in latency_classes(&side.total.tally.latency) {
        let share = count as f64 / all;
        let bar = "#".repeat((share * 40.0).ceil() as usize);
        let text = format!("  {label:>9}  {count:>9}  {:>5.1} %  {bar}", share * 100.0);
        line(out, text.trim_end());
    }
}

fn render_ratios(out: &mut String, report: &LoadReport) {
    let [first, second] = &report.sides[..] else {
        return;
    };
    line(out, &format!("\n  {} to {}", first.label, second.label));
    let shown = |name: &str| name != "ratio";
    for (metric, value) in report.ratios.iter().filter(|(m, _)| shown(m.name)) {
        let each = report.spread(metric.name);
        line(
            out,
            &format!(
                "  {:<40}  {}{each}",
                metric.label,
                metric.unit.format(value)
            ),
        );
    }
}

impl LoadReport {
    /// The range a ratio takes from round to round, where there are several.
    fn spread(&self, name: &str) -> String {
        let [first, second] = &self.sides[..] else {
            return String::new();
        };
        let pairs = first.rounds.iter().zip(&second.rounds);
        let values: Vec<f64> = pairs
            .filter_map(|(a, b)| {
                crate::round_outcome::ratios(&a.measures(), &b.measures()).get(name)
            })
            .collect();
        if values.len() < 2 {
            return String::new();
        }
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(0.0, f64::max);
        format!("  (rounds: {least:.2} to {most:.2})")
    }
}

fn render_failures(out: &mut String, side: &ReportSide) {
    let failures = &side.total.tally.failures;
    for (kind, count) in &failures.by_kind {
        line(out, &format!("error: {}: {count} x {kind}", side.label));
    }
    for described in &failures.first {
        line(out, &format!("error: {}: {described}", side.label));
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn columns_line_up() {
        let text = super::render(&super::super::tests::example());
        let row = text
            .lines()
            .find(|line| line.contains("received per second"))
            .expect("there is one");
        assert!(row.contains("2 M") && row.ends_with("1 M"), "{row}");
        assert!(text.contains("ratio of throughput"), "{text}");
        assert!(text.contains("(rounds: 2.00 to 2.00)"), "{text}");
        assert!(!text.contains("repeated"), "{text}");
        assert!(text.contains("messages lost"), "{text}");
    }
}
