//! Times counted by class while a run lasts, for the screen. The report has exact histograms.

use std::sync::atomic::{AtomicU64, Ordering};

/// Upper bounds of the classes; the last class has none.
pub(crate) const CLASS_BOUNDS_NS: [u64; 17] = [
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
    200_000_000,
    500_000_000,
    1_000_000_000,
    2_000_000_000,
    5_000_000_000,
    10_000_000_000,
];
pub(crate) const CLASSES: usize = CLASS_BOUNDS_NS.len() + 1;

/// Counts of one worker since the start of the run.
#[derive(Debug, Default)]
pub(crate) struct LiveLatency([AtomicU64; CLASSES]);

/// Counts of all workers.
pub(crate) type LatencyCounts = [u64; CLASSES];

impl LiveLatency {
    /// Counts a time. Only the worker that owns the counts may call it.
    #[inline]
    pub(super) fn record(&self, ns: u64) {
        let class = CLASS_BOUNDS_NS.partition_point(|bound| *bound < ns);
        let count = &self.0[class];
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    pub(super) fn add_to(&self, sum: &mut LatencyCounts) {
        for (sum, count) in sum.iter_mut().zip(&self.0) {
            *sum += count.load(Ordering::Relaxed);
        }
    }
}

/// The upper bound of the class that contains a share of all times; `None`: there are no times, or it has no bound.
pub(crate) fn quantile_bound_ns(counts: &LatencyCounts, share: f64) -> Option<u64> {
    let total: u64 = counts.iter().sum();
    let rank = ((total as f64 * share).ceil() as u64).max(1);
    let mut sum = 0;
    for (class, count) in counts.iter().enumerate() {
        sum += count;
        if sum >= rank {
            return CLASS_BOUNDS_NS.get(class).copied();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_counted_in_the_class_that_includes_its_upper_bound() {
        let latency = LiveLatency::default();
        for ns in [
            0,
            50_000,
            50_001,
            100_000,
            10_000_000_000,
            10_000_000_001,
            u64::MAX,
        ] {
            latency.record(ns);
        }
        let mut counts = [0; CLASSES];
        latency.add_to(&mut counts);
        assert_eq!((counts[0], counts[1]), (2, 2));
        assert_eq!((counts[CLASSES - 2], counts[CLASSES - 1]), (1, 2));
        assert_eq!(quantile_bound_ns(&counts, 0.5), Some(100_000));
        assert_eq!(quantile_bound_ns(&counts, 0.99), None);
        assert_eq!(quantile_bound_ns(&[0; CLASSES], 0.5), None);
    }
}
