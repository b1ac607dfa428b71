//! Decimal text of floats.

use std::fmt::Write as _;

use crate::value::Arena;

/// A float with at most `decimals` decimal places, without trailing zeros except the first one.
pub(crate) fn compact_decimals(number: f64, decimals: usize, arena: &Arena) -> &str {
    let mut text = bumpalo::collections::String::new_in(arena);
    write!(text, "{number:.decimals$}").expect("writing to memory");
    if decimals > 0 {
        let digits = text.trim_end_matches('0').len();
        let point = usize::from(text.as_bytes()[digits - 1] == b'.');
        text.truncate(digits + point);
    }
    text.into_bump_str()
}
