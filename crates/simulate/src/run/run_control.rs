//! What a user changes while a run lasts: pauses, and the factor of all rates.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Factors of all rates that a user chooses from, besides 1.
const FACTORS: [f64; 13] = [
    0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0,
];
const NORMAL: u64 = 6;

/// Changed by the coordinator, read by all workers.
#[derive(Debug)]
pub(crate) struct RunControl {
    is_paused: AtomicBool,
    /// Number in [`FACTORS`].
    factor: AtomicU64,
    /// Length of the pauses in the current phase that have ended.
    paused_ns: AtomicU64,
}

impl Default for RunControl {
    fn default() -> Self {
        Self {
            is_paused: AtomicBool::new(false),
            factor: AtomicU64::new(NORMAL),
            paused_ns: AtomicU64::new(0),
        }
    }
}

impl RunControl {
    pub(crate) fn is_paused(&self) -> bool {
        self.is_paused.load(Ordering::Acquire)
    }

    /// The factor of all rates that the user has chosen.
    pub(crate) fn factor(&self) -> f64 {
        FACTORS[self.factor.load(Ordering::Relaxed) as usize]
    }

    /// Length of the pauses in the current phase that have ended.
    pub(crate) fn paused_ns(&self) -> u64 {
        self.paused_ns.load(Ordering::Relaxed)
    }

    pub(super) fn pause(&self) {
        self.is_paused.store(true, Ordering::Release);
    }

    /// Ends a pause of this length.
    pub(super) fn resume(&self, pause_ns: u64) {
        self.paused_ns.fetch_add(pause_ns, Ordering::Relaxed);
        // Who sees that the pause has ended also sees its length.
        self.is_paused.store(false, Ordering::Release);
    }

    /// Called when a phase begins.
    pub(super) fn begin_phase(&self) {
        self.paused_ns.store(0, Ordering::Relaxed);
    }

    /// Chooses the next higher factor; the highest stays.
    pub(super) fn accelerate(&self) {
        self.shift(|number| (number + 1).min(FACTORS.len() as u64 - 1));
    }

    /// Chooses the next lower factor; the lowest stays.
    pub(super) fn slow_down(&self) {
        self.shift(|number| number.saturating_sub(1));
    }

    fn shift(&self, next: impl Fn(u64) -> u64) {
        let number = self.factor.load(Ordering::Relaxed);
        self.factor.store(next(number), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_have_limits_and_return_to_one() {
        let control = RunControl::default();
        assert_eq!(control.factor(), 1.0);
        (0..20).for_each(|_| control.accelerate());
        assert_eq!(control.factor(), 100.0);
        (0..20).for_each(|_| control.slow_down());
        assert_eq!(control.factor(), 0.01);
        (0..6).for_each(|_| control.accelerate());
        assert_eq!(control.factor(), 1.0);
    }
}
