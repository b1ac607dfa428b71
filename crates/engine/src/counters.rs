//! What happens to each rule, counted on each lane (a shard, or the owner of windows) by itself, so that counting costs no more
//! than an addition. They outlive changes of the rule.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What is counted of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum RuleCounter {
    /// Events that met the rule.
    Matched,
    /// Those it had an output for.
    Passed,
    /// Those that WHERE or INCASE held back, or of which FOREACH made nothing.
    NoResult,
    /// Those at which it failed: its own errors, by kind below.
    Failed,
    FailedType,
    FailedLimit,
    FailedOther,
    ActionsSucceeded,
    ActionsFailed,
    ActionsQueued,
    ActionsDropped,
    /// Rows for a window that came too late for it, or for which there was no room.
    WindowLate,
    WindowFull,
    /// Those that do not say when they happened, and those that say a time to come.
    WindowUntimed,
    WindowAhead,
}

impl RuleCounter {
    /// All of them, with their names for people and programs.
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

/// Reading the clock twice costs as much as a small rule.
const TIMING_SAMPLE_INTERVAL: u64 = 32;

const COUNTS: usize = RuleCounter::WindowAhead as usize + 1;

/// Upper bounds of the buckets of time, in nanoseconds, each four thirds or so of the one before: fine enough for quantiles.
pub(crate) const BUCKET_BOUNDS_NS: [u64; 48] = bounds();

const fn bounds() -> [u64; 48] {
    let mut bounds = [0; 48];
    // 100 ns to 1 s: 2^(1/2) steps, in integers.
    let (mut n, mut bound) = (0, 100_u64);
    while n < bounds.len() {
        bounds[n] = bound;
        bound = bound * 141 / 100;
        n += 1;
    }
    bounds
}

pub(crate) const BUCKETS: usize = BUCKET_BOUNDS_NS.len() + 1;

/// Those of one lane. Written by one thread, read by any.
pub(crate) struct LaneCounters {
    counts: [AtomicU64; COUNTS],
    /// Of the evaluations that were timed.
    buckets: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

impl Default for LaneCounters {
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

impl LaneCounters {
    #[inline]
    pub(crate) fn add(&self, count: RuleCounter, by: u64) {
        add_relaxed(&self.counts[count as usize], by);
    }

    #[inline]
    pub(crate) fn increment(&self, count: RuleCounter) {
        self.add(count, 1);
    }

    /// Counts an event that meets the rule. Returns whether its evaluation is to be timed: of each rule the first and then one in
    /// so many, whatever other rules meet between them.
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

/// Those of one rule.
pub(crate) struct RuleCounters {
    /// Made when a lane first meets the rule, since most of a hundred thousand rules meet nothing.
    lanes: Box<[OnceLock<Box<LaneCounters>>]>,
}

impl RuleCounters {
    pub(crate) fn new(lanes: usize) -> Self {
        Self {
            lanes: (0..lanes).map(|_| OnceLock::new()).collect(),
        }
    }

    #[inline]
    pub(crate) fn lane(&self, lane: usize) -> &LaneCounters {
        self.lanes[lane].get_or_init(Box::default)
    }

    /// Whether anything ever met the rule.
    pub(crate) fn has_counts(&self) -> bool {
        self.lanes.iter().any(|lane| lane.get().is_some())
    }

    pub(crate) fn total(&self) -> RuleTotals {
        let mut totals = RuleTotals::default();
        for lane in self.lanes.iter().filter_map(OnceLock::get) {
            for (sum, count) in totals.counts.iter_mut().zip(&lane.counts) {
                *sum += count.load(Relaxed);
            }
            for (sum, bucket) in totals.buckets.iter_mut().zip(&lane.buckets) {
                *sum += bucket.load(Relaxed);
            }
            totals.sum_ns += lane.sum_ns.load(Relaxed);
        }
        totals
    }
}

/// All lanes together, of one rule or of many.
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

    /// What was counted since.
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

    /// Evaluations that were timed.
    pub fn timed_count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// The time that so much of the timed evaluations stay below, `part` from 0 to 1; `None` if there are none. As exact as the
    /// buckets: not more than 41 % too high.
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
    fn each_rule_is_timed_as_often_as_any_other() {
        // As many rules as evaluations lie between two that are timed: a shared countdown would always hit the same one.
        let rules: Vec<_> = (0..TIMING_SAMPLE_INTERVAL)
            .map(|_| LaneCounters::default())
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
    fn lanes_add_up_and_quantiles_are_near() {
        let counters = RuleCounters::new(2);
        assert!(!counters.has_counts());
        counters.lane(0).increment(RuleCounter::Passed);
        counters.lane(1).add(RuleCounter::Passed, 2);
        for us in 1..=100 {
            counters.lane(us % 2).record_duration(us as u64 * 1000);
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
