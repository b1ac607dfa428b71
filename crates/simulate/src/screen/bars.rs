//! Bars of characters.

const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// A horizontal bar that fills this share of `width` columns. A share above 0 is visible.
pub(super) fn bar(share: f64, width: usize) -> String {
    let eighths = (share.clamp(0.0, 1.0) * width as f64 * 8.0).round() as usize;
    let eighths = eighths.max(usize::from(share > 0.0 && width > 0));
    format!("{}{}", "█".repeat(eighths / 8), EIGHTHS[eighths % 8])
}

/// The last `width` values, one column each, relative to the highest of them.
pub(super) fn sparkline<'v>(
    values: impl DoubleEndedIterator<Item = &'v f64>,
    width: usize,
) -> String {
    let mut last: Vec<f64> = values.rev().take(width).copied().collect();
    last.reverse();
    let highest = last.iter().copied().fold(0.0, f64::max);
    let level = |value: f64| match value / highest {
        share if share > 0.0 => LEVELS[((share * 7.0).round() as usize).min(7)],
        _ => ' ',
    };
    last.into_iter().map(level).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_fill_a_share_of_their_width() {
        assert_eq!(bar(0.5, 4), "██");
        assert_eq!(bar(0.3125, 4), "█▎");
        assert_eq!(bar(1e-9, 4), "▏");
        assert_eq!(
            (bar(0.0, 4), bar(2.0, 2), bar(1.0, 0)),
            (String::new(), "██".to_owned(), String::new())
        );
    }

    #[test]
    fn sparklines_show_the_last_values() {
        assert_eq!(sparkline([9.0, 0.0, 1.0, 4.0, 7.0].iter(), 4), " ▂▅█");
        assert_eq!(sparkline([0.0, 0.0].iter(), 4), "  ");
    }
}
