//! The most recent error of a rule: kept for its status and logged at limited rates.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// Errors that follow within this time are counted but not kept, so that a rule that always fails costs
/// little.
const RECORD_INTERVAL_MS: u64 = 100;
/// Minimum interval between two warnings of one rule.
const LOG_INTERVAL_MS: u64 = 30_000;
/// Maximum number of warnings of all rules per second.
const MAX_LOGS_PER_S: u64 = 10;
const MAX_TEXT_BYTES: usize = 1000;

/// The most recent failure of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleFailure {
    pub at_ms: u64,
    /// `value`, `limit` or `other` for an evaluation, `action` for an action.
    pub kind: &'static str,
    pub text: String,
    /// Index of the failed action, counted from 0.
    pub action: Option<usize>,
}

#[derive(Default)]
pub(crate) struct RecentError {
    recorded_at_ms: AtomicU64,
    logged_at_ms: AtomicU64,
    /// Failures since the last logged one.
    unlogged: AtomicU64,
    last: Mutex<Option<RuleFailure>>,
}

impl RecentError {
    pub(crate) fn last(&self) -> Option<RuleFailure> {
        self.last
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Records an error. The text is built only if the error is kept.
    pub(crate) fn record(
        &self,
        rule: &str,
        now_ms: u64,
        kind: &'static str,
        action: Option<usize>,
        text: impl FnOnce() -> String,
    ) {
        let before = self.unlogged.fetch_add(1, Relaxed);
        let kept_at_ms = self.recorded_at_ms.load(Relaxed);
        let is_soon = kept_at_ms > 0 && now_ms < kept_at_ms.saturating_add(RECORD_INTERVAL_MS);
        // A clock that is set back counts as elapsed time.
        if is_soon && now_ms >= kept_at_ms {
            return;
        }
        self.recorded_at_ms.store(now_ms, Relaxed);
        let mut text = text();
        if text.len() > MAX_TEXT_BYTES {
            text.truncate(text.floor_char_boundary(MAX_TEXT_BYTES));
        }
        let logged_at_ms = self.logged_at_ms.load(Relaxed);
        let is_due = logged_at_ms == 0 || now_ms.abs_diff(logged_at_ms) >= LOG_INTERVAL_MS;
        if is_due && may_log(now_ms) {
            self.logged_at_ms.store(now_ms, Relaxed);
            self.unlogged.fetch_sub(before + 1, Relaxed);
            tracing::warn!(
                rule,
                kind,
                action,
                failures = before + 1,
                error = text,
                "rule failed"
            );
        }
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(RuleFailure {
            at_ms: now_ms,
            kind,
            text,
            action,
        });
    }
}

/// Whether one more warning of any rule may be logged in this second.
fn may_log(now_ms: u64) -> bool {
    /// High bits: the second; low bits: the number of warnings in it.
    static LOGGED: AtomicU64 = AtomicU64::new(0);
    let second = now_ms / 1000;
    let logged = LOGGED.load(Relaxed);
    let count = match logged >> 16 == second {
        true => logged & 0xffff,
        false => 0,
    };
    LOGGED.store(second << 16 | (count + 1).min(0xffff), Relaxed);
    count < MAX_LOGS_PER_S
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_error_is_kept_and_repeated_errors_are_cheap() {
        let errors = RecentError::default();
        assert_eq!(errors.last(), None);
        errors.record("r", 1000, "value", None, || "first".into());
        errors.record("r", 1001, "value", None, || unreachable!("too soon"));
        assert_eq!(errors.last().unwrap().text, "first");
        errors.record("r", 1200, "action", Some(1), || "x".repeat(5000));
        let last = errors.last().unwrap();
        assert_eq!(
            (last.at_ms, last.kind, last.action),
            (1200, "action", Some(1))
        );
        assert_eq!(last.text.len(), MAX_TEXT_BYTES);
        errors.record("r", 5, "limit", None, || "the clock was set back".into());
        assert_eq!(errors.last().unwrap().at_ms, 5);
    }
}
