//! Line plots as inline SVG, and the style of HTML reports.

use std::fmt::Write;

/// Style sheet of a report with plots and tables, for light and dark screens.
pub const REPORT_STYLE: &str = "
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 900px; margin: 2em auto; padding: 0 1em; color: #222; }
h1 { font-size: 1.5em; } h2 { font-size: 1.1em; margin-top: 2em; }
table { border-collapse: collapse; } td, th { padding: .2em .8em; border-bottom: 1px solid #ddd; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; } th { text-align: left; }
svg { width: 100%; height: auto; margin: 1em 0; } svg text { font: 12px system-ui, sans-serif; fill: #444; }
svg text.title { font-weight: 600; } svg text.x { text-anchor: middle; }
svg text.y, svg text.key { text-anchor: end; } svg .grid { stroke: #e4e4e4; }
svg .section { stroke: #888; stroke-dasharray: 4 4; }
.broken { color: #c92a2a; font-weight: 600; } .note { background: #fff3bf; padding: .4em .8em; }
code { background: #f1f3f5; padding: .1em .3em; }
@media (prefers-color-scheme: dark) { body { background: #16181b; color: #ddd; }
 td, th { border-color: #333; } svg text { fill: #bbb; } svg .grid { stroke: #2c2f33; }
 svg polyline, svg text.key { filter: brightness(1.6); } .broken { color: #ff8787; }
 .note { background: #4d3d00; } code { background: #25282c; } }
";

/// One line of a plot.
pub struct Curve {
    pub label: String,
    pub points: Vec<(f64, f64)>,
}

/// A plot of some lines. Both axes are linear; put transformed values in for another scale.
pub struct Plot<'a> {
    pub title: &'a str,
    pub curves: &'a [Curve],
    /// Where to put marks on the x axis, with their text.
    pub x_marks: Vec<(f64, String)>,
    pub y_marks: Vec<(f64, String)>,
    /// Parts of the x axis: where each begins, and its name.
    pub sections: Vec<(f64, String)>,
}

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 36.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 40.0;
/// Width of a letter, at most; a name that would cover the next one is left out.
const LETTER_WIDTH: f64 = 8.0;
const COLOURS: [&str; 4] = ["#0b6e99", "#d9480f", "#2b8a3e", "#862e9c"];

/// Marks at round numbers from 0 to `most`, about five of them.
pub fn axis_marks(most: f64, show: impl Fn(f64) -> String) -> Vec<(f64, String)> {
    if !(most.is_finite() && most > 0.0) {
        return vec![(0.0, show(0.0)), (1.0, show(1.0))];
    }
    let rough = most / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|&step| step >= rough)
        .unwrap_or(rough);
    let count = (most / step).ceil() as u32;
    (0..=count)
        .map(|i| f64::from(i) * step)
        .map(|at| (at, show(at)))
        .collect()
}

/// Text safe within HTML and SVG.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

impl Plot<'_> {
    /// The plot as an `<svg>` element; nothing if there is nothing to draw.
    pub fn render(&self) -> String {
        if self.curves.iter().all(|curve| curve.points.len() < 2) {
            return String::new();
        }
        let end = |marks: &[(f64, String)]| marks.last().map_or(1.0, |(at, _)| *at);
        let begin = |marks: &[(f64, String)]| marks.first().map_or(0.0, |(at, _)| *at);
        let (x0, x1) = (begin(&self.x_marks), end(&self.x_marks));
        let (y0, y1) = (begin(&self.y_marks), end(&self.y_marks));
        let x = |value: f64| LEFT + (value - x0) / (x1 - x0) * (WIDTH - LEFT - RIGHT);
        let y = |value: f64| HEIGHT - BOTTOM - (value - y0) / (y1 - y0) * (HEIGHT - TOP - BOTTOM);
        let mut svg = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\"><title>{0}</title>\
             <text class=\"title\" x=\"{LEFT}\" y=\"20\">{0}</text>\n",
            escape(self.title)
        );
        for (at, text) in &self.y_marks {
            let _ = writeln!(
                svg,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{1:.1}\" y2=\"{1:.1}\"/>\
                 <text class=\"y\" x=\"{2:.1}\" y=\"{3:.1}\">{4}</text>",
                WIDTH - RIGHT,
                y(*at),
                LEFT - 8.0,
                y(*at) + 4.0,
                escape(text)
            );
        }
        for (at, text) in &self.x_marks {
            let _ = writeln!(
                svg,
                "<line class=\"grid\" x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{TOP}\" y2=\"{1:.1}\"/>\
                 <text class=\"x\" x=\"{0:.1}\" y=\"{2:.1}\">{3}</text>",
                x(*at),
                HEIGHT - BOTTOM,
                HEIGHT - BOTTOM + 18.0,
                escape(text)
            );
        }
        for (at, (begin, name)) in self.sections.iter().enumerate() {
            let left = x(*begin);
            let right = match self.sections.get(at + 1) {
                Some((next, _)) => x(*next),
                None => WIDTH - RIGHT,
            };
            let _ = writeln!(
                svg,
                "<line class=\"section\" x1=\"{left:.1}\" x2=\"{left:.1}\" y1=\"{TOP}\" y2=\"{:.1}\"/>",
                HEIGHT - BOTTOM
            );
            if name.chars().count() as f64 * LETTER_WIDTH + 4.0 <= right - left {
                let _ = writeln!(
                    svg,
                    "<text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                    left + 4.0,
                    TOP + 14.0,
                    escape(name)
                );
            }
        }
        for (number, curve) in self.curves.iter().enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            let points: Vec<String> = curve
                .points
                .iter()
                .map(|&(px, py)| format!("{:.1},{:.1}", x(px.clamp(x0, x1)), y(py.clamp(y0, y1))))
                .collect();
            let _ = writeln!(
                svg,
                "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{}\"/>\
                 <text class=\"key\" x=\"{:.1}\" y=\"{:.1}\" style=\"fill: {colour}\">{}</text>",
                points.join(" "),
                WIDTH - RIGHT,
                20.0 + 16.0 * number as f64,
                escape(&curve.label)
            );
        }
        svg.push_str("</svg>\n");
        svg
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round() {
        let at = |most: f64| -> Vec<f64> {
            axis_marks(most, |v| v.to_string())
                .into_iter()
                .map(|(at, _)| at)
                .collect()
        };
        assert_eq!(at(10.0), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(at(7.3), [0.0, 2.0, 4.0, 6.0, 8.0]);
        assert_eq!(at(0.0), [0.0, 1.0]);
        assert_eq!(at(f64::NAN), [0.0, 1.0]);
    }

    #[test]
    fn draws_every_curve_and_no_markup_of_others() {
        let curves = [Curve {
            label: "<b>&".to_owned(),
            points: vec![(0.0, 1.0), (1.0, 2.0)],
        }];
        let plot = Plot {
            title: "t",
            curves: &curves,
            x_marks: axis_marks(1.0, |v| v.to_string()),
            y_marks: axis_marks(2.0, |v| v.to_string()),
            sections: vec![(0.0, "a".to_owned()), (0.9, "too long a name".to_owned())],
        };
        let svg = plot.render();
        assert!(svg.contains("<polyline") && svg.contains("&lt;b&gt;&amp;"));
        assert!(svg.contains(">a</text>") && !svg.contains("too long"));
        assert!(!svg.contains("<b>") && !svg.contains("NaN"));
        let empty = Plot {
            curves: &[],
            ..plot
        };
        assert_eq!(empty.render(), "");
    }
}
