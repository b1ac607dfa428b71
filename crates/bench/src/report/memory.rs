//! The broker's memory over time: its slope, a plot that stands by itself, a table for other programs.

use std::fmt::Write;

use anyhow::ensure;

use super::LoadReport;
use super::plot::{Curve, Plot, axis_marks};
use crate::observer::SeriesPoint;
use crate::units::Unit;

/// What a broker takes in its first minutes (buffers, caches, the heap's own reserves) is no growth.
const WARM_UP_S: f64 = 300.0;
/// Shorter runs behind it tell nothing about an hour.
const MIN_SLOPE_S: f64 = 60.0;

const STYLE: &str = "text { font: 12px system-ui, sans-serif; fill: #555; } .title { font-weight: 600; } \
    .x { text-anchor: middle; } .y, .key { text-anchor: end; } .grid { stroke: #ddd; }";

/// Seconds and bytes of every point that has both.
fn points(series: &[SeriesPoint]) -> Vec<(f64, f64)> {
    let known = series
        .iter()
        .filter_map(|point| Some((point.at_s, point.rss_bytes? as f64)));
    known.collect()
}

/// Bytes per hour by least squares over what comes after the first five minutes; nothing if that is less than a minute.
pub(crate) fn memory_slope(series: &[SeriesPoint]) -> Option<f64> {
    let settled: Vec<(f64, f64)> = points(series)
        .into_iter()
        .filter(|(at_s, _)| *at_s >= WARM_UP_S)
        .collect();
    let (first, last) = (settled.first()?, settled.last()?);
    if last.0 - first.0 < MIN_SLOPE_S {
        return None;
    }
    let count = settled.len() as f64;
    let mean_x = settled.iter().map(|(x, _)| x).sum::<f64>() / count;
    let mean_y = settled.iter().map(|(_, y)| y).sum::<f64>() / count;
    let (mut covariance, mut variance) = (0.0, 0.0);
    for (x, y) in &settled {
        covariance += (x - mean_x) * (y - mean_y);
        variance += (x - mean_x) * (x - mean_x);
    }
    Some(covariance / variance * 3600.0)
}

/// An SVG file with the memory of every side.
pub(super) fn memory_plot(report: &LoadReport) -> anyhow::Result<String> {
    let curves: Vec<Curve> = report
        .sides
        .iter()
        .map(|side| Curve {
            label: side.label.clone(),
            points: points(&side.total.observations.series),
        })
        .collect();
    let all = || curves.iter().flat_map(|curve| &curve.points);
    let (longest, highest) = all().fold((0.0, 0.0), |(x, y): (f64, f64), (px, py)| {
        (x.max(*px), y.max(*py))
    });
    let minutes = |at: f64| format!("{:.1} min", at / 60.0);
    let plot = Plot {
        title: "Resident memory of the broker",
        curves: &curves,
        x_marks: marks_up_to(longest, minutes),
        y_marks: axis_marks(highest * 1.2, |bytes| Unit::Bytes.format(bytes)),
    };
    let svg = plot.render();
    ensure!(
        !svg.is_empty(),
        "there is nothing for --memory-plot to draw: memory was seen less than twice; give --broker-pid, or run longer"
    );
    let head = "<svg xmlns=\"http://www.w3.org/2000/svg\" ";
    let svg = svg.replacen("<svg ", head, 1);
    Ok(svg.replacen('>', &format!("><style>{STYLE}</style>"), 1))
}

/// Six marks from 0 to the end.
fn marks_up_to(end: f64, show: impl Fn(f64) -> String) -> Vec<(f64, String)> {
    let end = if end > 0.0 { end } else { 1.0 };
    (0..=6)
        .map(|i| end * f64::from(i) / 6.0)
        .map(|at| (at, show(at)))
        .collect()
}

/// One line for each point of each side.
pub(super) fn memory_csv(report: &LoadReport) -> String {
    let mut text = "side,seconds,rss_bytes,messages_per_second\n".to_owned();
    for (number, side) in report.sides.iter().enumerate() {
        for point in &side.total.observations.series {
            let bytes = point.rss_bytes.unwrap_or(0);
            let _ = writeln!(
                text,
                "{number},{:.3},{bytes},{:.0}",
                point.at_s, point.per_second
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(minutes: u32, bytes: impl Fn(f64) -> f64) -> Vec<SeriesPoint> {
        let at = (0..minutes * 60).map(f64::from);
        at.map(|at_s| SeriesPoint {
            at_s,
            per_second: 1.0,
            broker_cpu: None,
            rss_bytes: Some(bytes(at_s) as u64),
        })
        .collect()
    }

    #[test]
    fn growth_counts_from_the_fifth_minute() {
        let grown = series(20, |at| {
            if at < 300.0 {
                at * 1e6
            } else {
                3e8 + at * 10.0
            }
        });
        let slope = memory_slope(&grown).expect("long enough");
        assert!((slope - 36_000.0).abs() < 100.0, "{slope}");
        let flat = series(20, |_| 5e7);
        assert_eq!(memory_slope(&flat), Some(0.0));
        assert_eq!(memory_slope(&series(5, |at| at)), None);
        let unknown: Vec<SeriesPoint> = flat
            .iter()
            .map(|&point| SeriesPoint {
                rss_bytes: None,
                ..point
            })
            .collect();
        assert_eq!(memory_slope(&unknown), None);
    }

    #[test]
    fn the_plot_stands_by_itself() {
        let report = super::super::tests::example();
        let svg = memory_plot(&report).expect("two points and more");
        assert!(svg.starts_with("<svg xmlns=") && svg.trim_end().ends_with("</svg>"));
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert_eq!(memory_csv(&report).lines().count(), 1 + 2 * 19);
    }
}
