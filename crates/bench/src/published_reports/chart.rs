//! The chart of a section: for each row a bar of what the report states and one of what was measured.

use std::fmt::Write as _;

use load_client::plot::escape;

use super::verdict::{display_measured, display_stated};

/// Values of one row.
pub(super) struct ChartRow<'a> {
    pub(super) label: &'a str,
    pub(super) theirs: Option<f64>,
    pub(super) ours: Option<f64>,
}

const WIDTH: f64 = 760.0;
const LABEL_WIDTH: f64 = 230.0;
const VALUE_WIDTH: f64 = 90.0;
const BAR_HEIGHT: f64 = 11.0;
const ROW_HEIGHT: f64 = 34.0;
const HEAD_HEIGHT: f64 = 48.0;
/// A logarithmic axis is used if the values differ by more.
const LINEAR_SPAN: f64 = 20.0;
const THEIRS: &str = "#9aa5b1";
const OURS: &str = "#1f6feb";

/// Renders the chart as SVG, unless nothing was measured.
pub(super) fn render(title: &str, rows: &[ChartRow<'_>]) -> Option<String> {
    rows.iter().find_map(|row| row.ours)?;
    let values = rows.iter().flat_map(|row| [row.theirs, row.ours]).flatten();
    let values: Vec<f64> = values.filter(|value| *value > 0.0).collect();
    let axis = BarAxis::new(&values)?;
    let height = HEAD_HEIGHT + ROW_HEIGHT * rows.len() as f64 + 8.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" font-family=\"system-ui, sans-serif\" font-size=\"12\" fill=\"#1c2733\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
         <text x=\"8\" y=\"18\" font-size=\"14\" font-weight=\"600\">{}</text>\n",
        escape(&match axis.is_logarithmic {
            true => format!("{title}, logarithmic"),
            false => title.to_owned(),
        })
    );
    let mut legend = vec![(OURS, "Tidegate")];
    if rows.iter().any(|row| row.theirs.is_some()) {
        legend.insert(0, (THEIRS, "report"));
    }
    for (at, (color, label)) in legend.iter().enumerate() {
        let x = 8.0 + 90.0 * at as f64;
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"28\" width=\"10\" height=\"10\" fill=\"{color}\"/>\
             <text x=\"{}\" y=\"37\">{label}</text>",
            x + 15.0
        );
    }
    for (at, row) in rows.iter().enumerate() {
        let top = HEAD_HEIGHT + ROW_HEIGHT * at as f64;
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
            LABEL_WIDTH - 8.0,
            top + BAR_HEIGHT + 4.0,
            escape(row.label)
        );
        for (side, (value, color)) in [(row.theirs, THEIRS), (row.ours, OURS)].iter().enumerate() {
            let y = top + BAR_HEIGHT * side as f64;
            let length = value.map_or(0.0, |value| axis.length(value));
            let text = match (value, side) {
                (Some(value), 0) => display_stated(*value),
                (Some(value), _) => display_measured(*value),
                (None, 0) => continue,
                (None, _) => "not measured".to_owned(),
            };
            let _ = writeln!(
                svg,
                "<rect x=\"{LABEL_WIDTH}\" y=\"{y}\" width=\"{length:.1}\" height=\"{}\" fill=\"{color}\"/>\
                 <text x=\"{:.1}\" y=\"{}\" font-size=\"11\">{text}</text>",
                BAR_HEIGHT - 1.0,
                LABEL_WIDTH + length + 4.0,
                y + BAR_HEIGHT - 2.0
            );
        }
    }
    svg.push_str("</svg>\n");
    Some(svg)
}

/// From values to lengths.
struct BarAxis {
    /// Where bars begin.
    least: f64,
    most: f64,
    is_logarithmic: bool,
}

impl BarAxis {
    fn new(values: &[f64]) -> Option<Self> {
        let least = values.iter().copied().reduce(f64::min)?;
        let most = values.iter().copied().reduce(f64::max)?;
        let is_logarithmic = most / least > LINEAR_SPAN;
        Some(Self {
            // The smallest value has a bar, too.
            least: if is_logarithmic { least / 2.0 } else { 0.0 },
            most,
            is_logarithmic,
        })
    }

    fn length(&self, value: f64) -> f64 {
        let share = match self.is_logarithmic {
            true => (value.max(self.least) / self.least).log10() / (self.most / self.least).log10(),
            false => value / self.most,
        };
        share.clamp(0.0, 1.0) * (WIDTH - LABEL_WIDTH - VALUE_WIDTH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_comparable() {
        let row = |theirs, ours| ChartRow {
            label: "a<b",
            theirs,
            ours,
        };
        assert_eq!(render("T", &[row(Some(1.0), None)]), None);
        let svg = render("T", &[row(Some(50.0), Some(100.0)), row(None, Some(25.0))]);
        let svg = svg.expect("something was measured");
        assert!(svg.contains("a&lt;b") && !svg.contains("logarithmic"));
        assert!(svg.contains("width=\"440.0\"") && svg.contains("width=\"220.0\""));
        let svg = render("T", &[row(Some(1.0), Some(1e6))]).expect("measured");
        assert!(
            svg.contains("logarithmic") && svg.contains("1,000,000"),
            "{svg}"
        );
    }
}
