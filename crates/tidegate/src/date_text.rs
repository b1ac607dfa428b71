//! Formatting of times.

use rules::Civil;

/// Formats seconds since 1970 as `2026-11-21T10:02:04` in UTC.
pub(crate) fn format_utc(seconds: u64) -> String {
    Civil::from_local_s(seconds as i64).to_string()
}
