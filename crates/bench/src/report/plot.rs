//! Line plots as inline SVG, with axes a person can read.

use std::fmt::Write;

/// One line of a plot.
pub(super) struct Curve {
    pub(super) label: String,
    pub(super) points: Vec<(f64, f64)>,
}

/// A plot of some lines. Both axes are linear; put transformed values in for another scale.
pub(super) struct Plot<'a> {
    pub(super) title: &'a str,
    pub(super) curves: &'a [Curve],
    /// Where to put marks on the x axis, with their text.
    pub(super) x_marks: Vec<(f64, String)>,
    pub(super) y_marks: Vec<(f64, String)>,
}

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 36.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 40.0;
const COLOURS: [&str; 4] = ["#0b6e99", "#d9480f", "#2b8a3e", "#862e9c"];

/// Marks at round numbers from 0 to `most`, about five of them.
pub(super) fn axis_marks(most: f64, show: impl Fn(f64) -> String) -> Vec<(f64, String)> {
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
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

impl Plot<'_> {
    /// The plot as an `<svg>` element; nothing if there is nothing to draw.
    pub(super) fn render(&self) -> String {
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
        };
        let svg = plot.render();
        assert!(svg.contains("<polyline") && svg.contains("&lt;b&gt;&amp;"));
        assert!(!svg.contains("<b>") && !svg.contains("NaN"));
        let empty = Plot {
            curves: &[],
            ..plot
        };
        assert_eq!(empty.render(), "");
    }
}
