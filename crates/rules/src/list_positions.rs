//! Positions in lists as the language counts them: from 1, or negative from the end.

/// Converts a position from 1, or negative from the end, to an index.
pub(crate) fn list_position(index: i64, length: usize) -> Option<usize> {
    let at = if index > 0 {
        index - 1
    } else {
        (length as i64).checked_add(index)?
    };
    usize::try_from(at)
        .ok()
        .filter(|&at| index != 0 && at < length)
}

/// The items between two positions, both inclusive.
pub(crate) fn slice<T>(items: &[T], from: i64, to: i64) -> &[T] {
    let length = items.len() as i64;
    let place = |index: i64| {
        if index < 0 {
            length.saturating_add(index)
        } else {
            index - 1
        }
    };
    let start = place(from).clamp(0, length) as usize;
    let end = place(to).saturating_add(1).clamp(0, length) as usize;
    items.get(start..end).unwrap_or_default()
}
