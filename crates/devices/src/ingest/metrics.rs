//! Metrics of the pipeline. Each processor has its own counters, written by its thread alone and read by any
//! thread.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter written by one thread: no atomic read-modify-write.
#[derive(Default)]
pub struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub(super) fn add(&self, more: u64) {
        let now = self.0.load(Ordering::Relaxed);
        self.0.store(now + more, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Buckets per power of two.
const SUB_BUCKETS: usize = 16;
const SUB_BUCKET_BITS: u32 = 4;
const BUCKETS: usize = 40 * SUB_BUCKETS;

/// Distribution of durations with a resolution of 1/16, up to nine minutes.
pub struct LatencyHistogram {
    buckets: Box<[Counter; BUCKETS]>,
    pub sum_ns: Counter,
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self {
            buckets: Box::new([const { Counter(AtomicU64::new(0)) }; BUCKETS]),
            sum_ns: Counter::default(),
        }
    }
}

fn bucket_of(ns: u64) -> usize {
    if ns < SUB_BUCKETS as u64 {
        return ns as usize;
    }
    let power = ns.ilog2();
    let part = (ns >> (power - SUB_BUCKET_BITS)) as usize - SUB_BUCKETS;
    ((power - SUB_BUCKET_BITS + 1) as usize * SUB_BUCKETS + part).min(BUCKETS - 1)
}

/// The largest duration counted in a bucket.
fn upper_ns(bucket: usize) -> u64 {
    if bucket < SUB_BUCKETS {
        return bucket as u64;
    }
    let power = (bucket / SUB_BUCKETS - 1) as u32;
    let part = (bucket % SUB_BUCKETS + SUB_BUCKETS) as u64;
    ((part + 1) << power) - 1
}

impl LatencyHistogram {
    #[inline]
    pub(super) fn record(&self, ns: u64) {
        self.buckets[bucket_of(ns)].add(1);
        self.sum_ns.add(ns);
    }

    fn add_to(&self, counts: &mut [u64; BUCKETS]) {
        for (count, bucket) in counts.iter_mut().zip(self.buckets.iter()) {
            *count += bucket.get();
        }
    }
}

/// Counters of one processor.
#[derive(Default)]
pub struct ProcessorCounters {
    /// Messages from devices, of any kind.
    pub messages: Counter,
    pub rows: Counter,
    pub points: Counter,
    /// Messages that could not be decoded.
    pub malformed: Counter,
    /// Values that did not fit the thing model, or whose key is unknown.
    pub rejected: Counter,
    /// Rows that the store rejected.
    pub unstored: Counter,
    /// Rows that a chain dropped before they were stored.
    pub filtered: Counter,
    /// Messages about unknown devices.
    pub unknown: Counter,
    /// Messages, or parts of them, without effect.
    pub ignored: Counter,
    pub batches: Counter,
    /// Time from the arrival of a message to the end of its processing; one of sixteen is timed.
    pub latency: LatencyHistogram,
    /// The share of it spent in a mailbox.
    pub waiting: LatencyHistogram,
}

/// The sum of the counters of all processors at one time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PipelineSnapshot {
    pub messages: u64,
    pub rows: u64,
    pub points: u64,
    pub malformed: u64,
    pub rejected: u64,
    pub unstored: u64,
    pub filtered: u64,
    pub unknown: u64,
    pub ignored: u64,
    pub batches: u64,
    /// Keys that could not be created because of a limit.
    pub rejected_keys: u64,
    /// Messages now in mailboxes.
    pub queued: u64,
    pub queued_bytes: u64,
    /// Mailboxes, each with its worker.
    pub mailboxes: u64,
    pub latency: HistogramSnapshot,
    pub waiting: HistogramSnapshot,
}

/// The values of a histogram at one time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HistogramSnapshot {
    counts: Vec<u64>,
    pub count: u64,
    pub sum_ns: u64,
}

impl HistogramSnapshot {
    fn from_histograms<'h>(histograms: impl Iterator<Item = &'h LatencyHistogram>) -> Self {
        let (mut counts, mut sum_ns) = ([0; BUCKETS], 0);
        for histogram in histograms {
            histogram.add_to(&mut counts);
            sum_ns += histogram.sum_ns.get();
        }
        Self {
            count: counts.iter().sum(),
            counts: counts.into(),
            sum_ns,
        }
    }

    /// The recordings since `before`.
    pub fn difference(&self, before: &Self) -> Self {
        let mut counts = self.counts.clone();
        for (count, before) in counts.iter_mut().zip(&before.counts) {
            *count = count.saturating_sub(*before);
        }
        Self {
            count: counts.iter().sum(),
            counts,
            sum_ns: self.sum_ns.saturating_sub(before.sum_ns),
        }
    }

    /// The quantile of the durations: `per_mille` of a thousand took at most this long, in nanoseconds.
    pub fn quantile_ns(&self, per_mille: u64) -> u64 {
        let wanted = (self.count * per_mille).div_ceil(1000).max(1);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return upper_ns(bucket);
            }
        }
        0
    }

    /// Number of durations up to this bound; slightly longer ones may be counted.
    pub fn within_ns(&self, ns: u64) -> u64 {
        let last = bucket_of(ns);
        self.counts.iter().take(last + 1).sum()
    }
}

pub(super) fn snapshot<'c>(
    processors: impl Iterator<Item = &'c ProcessorCounters> + Clone,
) -> PipelineSnapshot {
    let sum = |pick: fn(&ProcessorCounters) -> &Counter| {
        processors
            .clone()
            .map(|processor| pick(processor).get())
            .sum()
    };
    PipelineSnapshot {
        messages: sum(|processor| &processor.messages),
        rows: sum(|processor| &processor.rows),
        points: sum(|processor| &processor.points),
        malformed: sum(|processor| &processor.malformed),
        rejected: sum(|processor| &processor.rejected),
        unstored: sum(|processor| &processor.unstored),
        filtered: sum(|processor| &processor.filtered),
        unknown: sum(|processor| &processor.unknown),
        ignored: sum(|processor| &processor.ignored),
        batches: sum(|processor| &processor.batches),
        latency: HistogramSnapshot::from_histograms(
            processors.clone().map(|processor| &processor.latency),
        ),
        waiting: HistogramSnapshot::from_histograms(
            processors.clone().map(|processor| &processor.waiting),
        ),
        ..PipelineSnapshot::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_contain_their_durations() {
        let mut last = 0;
        for ns in (0..2000)
            .chain((11..39).flat_map(|power| [(1 << power) - 1, 1 << power, 3 << (power - 1)]))
        {
            let bucket = bucket_of(ns);
            assert!(upper_ns(bucket) >= ns, "{ns}");
            assert!(upper_ns(bucket) <= ns + ns / 16, "{ns}");
            if ns < 2000 {
                assert!(bucket >= last, "{ns}");
                last = bucket;
            }
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
        let histogram = LatencyHistogram::default();
        (1..=1000).for_each(|ns| histogram.record(ns * 100));
        let times = HistogramSnapshot::from_histograms(std::iter::once(&histogram));
        assert_eq!(times.count, 1000);
        assert!((49_000..=53_500).contains(&times.quantile_ns(500)));
        assert!((98_000..=106_000).contains(&times.quantile_ns(990)));
        assert!((480..=540).contains(&times.within_ns(50_000)));
    }
}
