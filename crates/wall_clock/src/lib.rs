//! The wall clock in the unit of all stored and shown times.

use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970; 0 if the system clock is set to an earlier time.
///
/// The clock can be set back. Durations and deadlines need [`std::time::Instant`].
#[must_use]
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}
