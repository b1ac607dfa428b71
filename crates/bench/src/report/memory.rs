//! The broker's memory over time: a plot that stands by itself, a table for other programs.

use std::fmt::Write;

use anyhow::ensure;

use super::load_report::LoadReport;
use crate::memory_slope::memory_points;
use crate::units::Unit;
use load_client::plot::{Curve, Plot, axis_marks};

const STYLE: &str = "text { font: 12px system-ui, sans-serif; fill: #555; } .title { font-weight: 600; } \
    .x { text-anchor: middle; } .y, .key { text-anchor: end; } .grid { stroke: #ddd; }";

/// An SVG file with the memory of every side.
pub(super) fn memory_plot(report: &LoadReport) -> anyhow::Result<String> {
    let curves: Vec<Curve> = report
        .sides
        .iter()
        .map(|side| Curve {
            label: side.label.clone(),
            points: memory_points(&side.total.observations.series),
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
        sections: Vec::new(),
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

    #[test]
    fn the_plot_stands_by_itself() {
        let report = super::super::tests::example();
        let svg = memory_plot(&report).expect("two points and more");
        assert!(svg.starts_with("<svg xmlns=") && svg.trim_end().ends_with("</svg>"));
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert_eq!(memory_csv(&report).lines().count(), 1 + 2 * 19);
    }
}
