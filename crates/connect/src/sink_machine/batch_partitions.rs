//! Forms batches in partitions. A sink without an order has one partition with many batches in flight. A sink ordered by
//! key has many partitions with one batch in flight each, and a key always has the same partition. A fully ordered sink
//! has one partition with one batch.

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, Hasher as _};
use std::time::Duration;

use foldhash::fast::FixedState;
use tokio::time::Instant;

use crate::batch::SinkBatch;
use crate::row::SinkRow;
use crate::template::Template;

pub(crate) struct BatchPartitions {
    partitions: Vec<BatchPartition>,
    key: Option<Template>,
    sizes: BatchLimits,
    in_flight_per_partition: usize,
    /// Rows in all partitions, without those in flight.
    rows: usize,
    scratch: Vec<u8>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchLimits {
    pub(crate) max_rows: usize,
    pub(crate) max_bytes: usize,
    pub(crate) max_wait: Duration,
}

#[derive(Default)]
struct BatchPartition {
    /// Full batches.
    ready: VecDeque<SinkBatch>,
    filling: SinkBatch,
    /// When the first row of the filling batch arrived.
    filling_since: Option<Instant>,
    in_flight: usize,
}

/// How rows are assigned to partitions.
pub(crate) enum PartitionAssignment {
    One { in_flight: usize },
    ByKey { partitions: usize, key: Template },
}

impl BatchPartitions {
    pub(crate) fn new(spread: PartitionAssignment, sizes: BatchLimits) -> Self {
        let (count, in_flight_per_partition, key) = match spread {
            PartitionAssignment::One { in_flight } => (1, in_flight, None),
            PartitionAssignment::ByKey { partitions, key } => (partitions, 1, Some(key)),
        };
        Self {
            partitions: (0..count).map(|_| BatchPartition::default()).collect(),
            key,
            sizes,
            in_flight_per_partition,
            rows: 0,
            scratch: Vec::new(),
        }
    }

    /// Rows that may be added now. These are enough to fill the batches that can be sent, and not many more, because
    /// rows should wait in the queue.
    pub(crate) fn room(&self) -> usize {
        let wanted = self.sizes.max_rows * self.partitions.len();
        wanted.saturating_sub(self.rows)
    }

    /// Rows and bytes missing for the next full batch.
    pub(crate) fn missing_for_next_batch(&self) -> (usize, usize) {
        let filling = self.partitions.iter().map(|partition| &partition.filling);
        let bytes = filling.map(SinkBatch::byte_len).sum();
        let missing = self.sizes.max_rows.saturating_sub(self.rows).max(1);
        (missing, self.sizes.max_bytes.saturating_sub(bytes).max(1))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows == 0
    }

    pub(crate) fn add(&mut self, epoch: u64, number: u64, row: SinkRow<'_>, now: Instant) {
        let at = match &self.key {
            None => 0,
            Some(key) => {
                self.scratch.clear();
                key.render(row, &mut self.scratch);
                let mut hasher = FixedState::default().build_hasher();
                hasher.write(&self.scratch);
                hasher.finish() as usize % self.partitions.len()
            }
        };
        let partition = &mut self.partitions[at];
        let length = partition.filling.byte_len() + row.as_bytes().len();
        let is_other = partition.filling.epoch() != epoch;
        if !partition.filling.is_empty() && (is_other || length > self.sizes.max_bytes) {
            partition.close_filling();
        }
        if partition.filling.is_empty() {
            partition.filling = SinkBatch::new(epoch);
            partition.filling_since = Some(now);
        }
        partition.filling.push(number, row);
        self.rows += 1;
        if partition.filling.len() >= self.sizes.max_rows {
            partition.close_filling();
        }
    }

    /// A batch to send now, and its partition; with `is_ending` it need not be full or old.
    pub(crate) fn next_batch(
        &mut self,
        now: Instant,
        is_ending: bool,
    ) -> Option<(usize, SinkBatch)> {
        for (at, partition) in self.partitions.iter_mut().enumerate() {
            if partition.in_flight >= self.in_flight_per_partition {
                continue;
            }
            let is_old = partition
                .filling_since
                .is_some_and(|since| is_ending || now >= since + self.sizes.max_wait);
            if partition.ready.is_empty() && is_old {
                partition.close_filling();
            }
            if let Some(batch) = partition.ready.pop_front() {
                partition.in_flight += 1;
                self.rows -= batch.len();
                return Some((at, batch));
            }
        }
        None
    }

    /// When the next batch is old enough to be sent although it is not full.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let can_send = self
            .partitions
            .iter()
            .filter(|partition| partition.in_flight < self.in_flight_per_partition);
        let since = can_send
            .filter_map(|partition| partition.filling_since)
            .min()?;
        Some(since + self.sizes.max_wait)
    }

    /// Records that a batch of this partition is no longer in flight.
    pub(crate) fn release_slot(&mut self, partition: usize) {
        self.partitions[partition].in_flight -= 1;
    }

    /// All batches that were not sent.
    pub(crate) fn into_unsent(self) -> Vec<SinkBatch> {
        let all = self.partitions.into_iter().flat_map(|mut partition| {
            partition.close_filling();
            partition.ready
        });
        all.collect()
    }
}

impl BatchPartition {
    fn close_filling(&mut self) {
        self.filling_since = None;
        let full = std::mem::take(&mut self.filling);
        if !full.is_empty() {
            self.ready.push_back(full);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::SinkRowWriter;

    const SIZES: BatchLimits = BatchLimits {
        max_rows: 3,
        max_bytes: 1000,
        max_wait: Duration::from_millis(10),
    };

    fn add(partitions: &mut BatchPartitions, number: u64, key: i64, now: Instant) {
        let mut bytes = Vec::new();
        SinkRowWriter::new(&mut bytes).int("k", key);
        partitions.add(0, number, SinkRow::from_bytes(&bytes), now);
    }

    fn numbers(batch: &SinkBatch) -> Vec<u64> {
        (0..batch.len()).map(|at| batch.id(at).number).collect()
    }

    #[test]
    fn a_batch_goes_when_it_is_full_or_old() {
        let now = Instant::now();
        let mut partitions = BatchPartitions::new(PartitionAssignment::One { in_flight: 2 }, SIZES);
        for number in 0..4 {
            add(&mut partitions, number, 0, now);
        }
        let (_, full) = partitions.next_batch(now, false).unwrap();
        assert_eq!(numbers(&full), [0, 1, 2]);
        assert!(partitions.next_batch(now, false).is_none());
        assert_eq!(partitions.deadline(), Some(now + SIZES.max_wait));
        let (partition, old) = partitions.next_batch(now + SIZES.max_wait, false).unwrap();
        assert_eq!(numbers(&old), [3]);
        add(&mut partitions, 4, 0, now);
        assert!(
            partitions.next_batch(now, true).is_none(),
            "two are in flight"
        );
        partitions.release_slot(partition);
        assert!(partitions.next_batch(now, true).is_some());
        assert!(partitions.is_empty() && partitions.room() == 3);
    }

    #[test]
    fn bytes_fill_a_batch_too() {
        let now = Instant::now();
        let mut partitions = BatchPartitions::new(PartitionAssignment::One { in_flight: 9 }, SIZES);
        let mut bytes = Vec::new();
        SinkRowWriter::new(&mut bytes).text("t", &"x".repeat(600));
        partitions.add(0, 0, SinkRow::from_bytes(&bytes), now);
        assert!(partitions.next_batch(now, false).is_none());
        partitions.add(0, 1, SinkRow::from_bytes(&bytes), now);
        assert_eq!(numbers(&partitions.next_batch(now, false).unwrap().1), [0]);
    }

    #[test]
    fn a_key_has_one_batch_in_flight() {
        let now = Instant::now();
        let key = Template::parse("order.by", "${k}").unwrap();
        let mut partitions =
            BatchPartitions::new(PartitionAssignment::ByKey { partitions: 4, key }, SIZES);
        for number in 0..6 {
            add(&mut partitions, number, 7, now);
        }
        let (partition, first) = partitions.next_batch(now, false).unwrap();
        assert_eq!(numbers(&first), [0, 1, 2]);
        assert!(
            partitions.next_batch(now, true).is_none(),
            "its partition waits"
        );
        partitions.release_slot(partition);
        let (_, second) = partitions.next_batch(now, false).unwrap();
        assert_eq!(numbers(&second), [3, 4, 5]);
        assert_eq!(partitions.room(), 12);
    }
}
