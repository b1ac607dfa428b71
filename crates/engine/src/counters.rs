//! Counters per rule and producer (a shard, or the thread that owns windows). A producer has counters of its own, so
//! that counting costs one addition. Counters survive changes of the rule.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A counted occurrence of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum RuleCounter {
    /// Events that matched the rule.
    Matched,
    /// Events that produced an output.
    Passed,
    /// Events without an output: WHERE or INCASE was false, or FOREACH had no items.
    NoResult,
    /// Events whose evaluation failed. The variants below count them by kind of error.
    Failed,
    FailedType,
    FailedLimit,
    FailedOther,
    ActionsSucceeded,
    ActionsFailed,
    ActionsQueued,
    ActionsDropped,
    /// Rows that arrived too late for their window, or for which there was no room.
    WindowLate,
    WindowFull,
    /// Events without a timestamp, and events with a timestamp too far in the future.
    WindowUntimed,
    WindowAhead,
}

impl RuleCounter {
    /// All counters with their names for people and for programs.
    pub const ALL: [(Self, &'static str); COUNTS] = [
        (Self::Matched, "matched"),
        (Self::Passed, "passed"),
        (Self::NoResult, "no_result"),
        (Self::Failed, "failed"),
        (Self::FailedType, "failed_value"),
        (Self::FailedLimit, "failed_limit"),
        (Self::FailedOther, "failed_other"),
        (Self::ActionsSucceeded, "actions_succeeded"),
        (Self::ActionsFailed, "actions_failed"),
        (Self::ActionsQueued, "actions_queued"),
        (Self::ActionsDropped, "actions_dropped"),
        (Self::WindowLate, "window_late"),
        (Self::WindowFull, "window_full"),
        (Self::WindowUntimed, "window_untimed"),
        (Self::WindowAhead, "window_ahead"),
    ];
}

impl RuleCounter {
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

/// One evaluation in this many is timed, because reading the clock twice costs as much as evaluating a small
/// rule.
const TIMING_SAMPLE_INTERVAL: u64 = 32;

const COUNTS: usize = RuleCounter::WindowAhead as usize + 1;

/// Upper bounds of the duration buckets in nanoseconds. The bounds are close enough to each other for
/// quantiles.
pub(crate) const BUCKET_BOUNDS_NS: [u64; 48] = bounds();

const fn bounds() -> [u64; 48] {
    let mut bounds = [0; 48];
    // 100 ns to 1 s in steps of about 2^(1/2), computed with integers.
    let (mut n, mut bound) = (0, 100_u64);
    while n < bounds.len() {
        bounds[n] = bound;
        bound = bound * 141 / 100;
        n += 1;
    }
    bounds
}

pub(crate) const BUCKETS: usize = BUCKET_BOUNDS_NS.len() + 1;

/// The counters of one producer. One thread writes them, any thread reads them.
pub(crate) struct ProducerCounters {
    counts: [AtomicU64; COUNTS],
    /// Durations of the timed evaluations.
    buckets: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

impl Default for ProducerCounters {
    fn default() -> Self {
        Self {
            counts: Default::default(),
            buckets: std::array::from_fn(|_| AtomicU64::new(0)),
            sum_ns: AtomicU64::new(0),
        }
    }
}

#[inline]
fn add_relaxed(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Relaxed) + by, Relaxed);
}

impl ProducerCounters {
    #[inline]
    pub(crate) fn add(&self, count: RuleCounter, by: u64) {
        add_relaxed(&self.counts[count as usize], by);
    }

    #[inline]
    pub(crate) fn increment(&self, count: RuleCounter) {
        self.add(count, 1);
    }

    /// Counts an event that matches the rule. Returns whether to time its evaluation: the first of each rule,
    /// and then one in [`TIMING_SAMPLE_INTERVAL`], independent of other rules.
    #[inline]
    pub(crate) fn record_match(&self) -> bool {
        let counter = &self.counts[RuleCounter::Matched as usize];
        let before = counter.load(Relaxed);
        counter.store(before + 1, Relaxed);
        before.is_multiple_of(TIMING_SAMPLE_INTERVAL)
    }

    pub(crate) fn record_duration(&self, ns: u64) {
        let bucket = BUCKET_BOUNDS_NS.partition_point(|&bound| bound < ns);
        add_relaxed(&self.buckets[bucket], 1);
        add_relaxed(&self.sum_ns, ns);
    }
}

/// The counters of one rule.
pub(crate) struct RuleCounters {
    /// Created when a producer first evaluates the rule, because most of a hundred thousand rules never match an
    /// event.
    producers: Box<[OnceLock<Box<ProducerCounters>>]>,
}

impl RuleCounters {
    pub(crate) fn new(producers: usize) -> Self {
        Self {
            producers: (0..producers).map(|_| OnceLock::new()).collect(),
        }
    }

    #[inline]
    pub(crate) fn producer(&self, producer: usize) -> &ProducerCounters {
        self.producers[producer].get_or_init(Box::default)
    }

    /// Whether an event ever matched the rule.
    pub(crate) fn has_counts(&self) -> bool {
        self.producers
            .iter()
            .any(|producer| producer.get().is_some())
    }

    pub(crate) fn total(&self) -> RuleTotals {
        let mut totals = RuleTotals::default();
        for producer in self.producers.iter().filter_map(OnceLock::get) {
            for (sum, count) in totals.counts.iter_mut().zip(&producer.counts) {
                *sum += count.load(Relaxed);
            }
            for (sum, bucket) in totals.buckets.iter_mut().zip(&producer.buckets) {
                *sum += bucket.load(Relaxed);
            }
            totals.sum_ns += producer.sum_ns.load(Relaxed);
        }
        totals
    }
}

/// Totals of all producers, for one rule or for many.
#[derive(Clone)]
pub struct RuleTotals {
    counts: [u64; COUNTS],
    buckets: [u64; BUCKETS],
    sum_ns: u64,
}

impl Default for RuleTotals {
    fn default() -> Self {
        Self {
            counts: [0; COUNTS],
            buckets: [0; BUCKETS],
            sum_ns: 0,
        }
    }
}

impl RuleTotals {
    pub fn get(&self, count: RuleCounter) -> u64 {
        self.counts[count as usize]
    }

    /// The difference to earlier totals.
    pub fn difference(&self, before: &Self) -> Self {
        let mut since = self.clone();
        for (count, before) in since.counts.iter_mut().zip(&before.counts) {
            *count = count.saturating_sub(*before);
        }
        for (bucket, before) in since.buckets.iter_mut().zip(&before.buckets) {
            *bucket = bucket.saturating_sub(*before);
        }
        since.sum_ns = since.sum_ns.saturating_sub(before.sum_ns);
        since
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (sum, count) in self.counts.iter_mut().zip(&other.counts) {
            *sum += count;
        }
        for (sum, bucket) in self.buckets.iter_mut().zip(&other.buckets) {
            *sum += bucket;
        }
        self.sum_ns += other.sum_ns;
    }

    /// Number of timed evaluations.
    pub fn timed_count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// The duration that the fraction `part` (0 to 1) of the timed evaluations does not exceed; `None` if
    /// there are none. The precision is that of the buckets: at most 41 % too high.
    pub fn quantile_ns(&self, part: f64) -> Option<u64> {
        let timed = self.timed_count();
        if timed == 0 {
            return None;
        }
        let wanted = ((timed as f64 * part).ceil() as u64).max(1);
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                let last = BUCKET_BOUNDS_NS[BUCKET_BOUNDS_NS.len() - 1];
                return Some(BUCKET_BOUNDS_NS.get(bucket).copied().unwrap_or(last));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_rules_are_timed_equally_often() {
        // As many rules as the sampling interval: a countdown shared by all rules would always time the same
        // rule.
        let rules: Vec<_> = (0..TIMING_SAMPLE_INTERVAL)
            .map(|_| ProducerCounters::default())
            .collect();
        let mut timed = vec![0; rules.len()];
        for _ in 0..64 {
            for (rule, timed) in rules.iter().zip(&mut timed) {
                *timed += u32::from(rule.record_match());
            }
        }
        assert_eq!(timed, vec![2; rules.len()]);
        assert_eq!(
            rules[7].counts[RuleCounter::Matched as usize].load(Relaxed),
            64
        );
    }

    #[test]
    fn producers_are_summed_and_quantiles_are_approximate() {
        let counters = RuleCounters::new(2);
        assert!(!counters.has_counts());
        counters.producer(0).increment(RuleCounter::Passed);
        counters.producer(1).add(RuleCounter::Passed, 2);
        for us in 1..=100 {
            counters.producer(us % 2).record_duration(us as u64 * 1000);
        }
        let totals = counters.total();
        assert_eq!(totals.get(RuleCounter::Passed), 3);
        assert_eq!((totals.timed_count(), totals.sum_ns()), (100, 5_050_000));
        let median = totals.quantile_ns(0.5).expect("something was timed");
        assert!((50_000..=72_000).contains(&median), "{median}");
        assert_eq!(RuleTotals::default().quantile_ns(0.5), None);
        assert!(
            BUCKET_BOUNDS_NS[47] > 500_000_000,
            "{}",
            BUCKET_BOUNDS_NS[47]
        );
    }
}
