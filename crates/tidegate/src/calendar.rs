//! Times as people write them.

use rules::Civil;

/// Seconds since 1970 as `2026-11-21T10:02:04`, in UTC.
pub(crate) fn date_time(seconds: u64) -> String {
    let Civil {
        year,
        month,
        day,
        hour,
        minute,
        second,
    } = Civil::from_local_s(seconds as i64);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")
}
