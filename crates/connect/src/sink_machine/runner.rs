//! The machine of one sink: takes rows from its feed, forms batches, delivers them and acknowledges them to the feed.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;

use super::batch_partitions::{BatchLimits, BatchPartitions, PartitionAssignment};
use super::delivery::BatchDelivery;
use super::memory_queue::MemoryQueue;
use super::queue_feed::{DiskQueueView, QueueFeed};
use super::sink_files::SinkFiles;
use super::stop_signal::StopSignal;
use crate::batch::SinkBatch;
use crate::settings::DiskQueueSettings;

/// Pause after a disk queue could not be opened or read.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Time for batches in flight when the machine gives up; after it they are abandoned and may be sent twice.
const COMPLETION_GRACE: Duration = Duration::from_secs(2);

pub(crate) struct SinkRunPlan {
    pub(crate) queue: Arc<MemoryQueue>,
    /// Epoch and next number of rows that are only in memory.
    pub(crate) memory_row_numbers: (u64, Arc<AtomicU64>),
    /// Where the present or a former disk queue is.
    pub(crate) files: Option<SinkFiles>,
    pub(crate) disk: Option<DiskQueueSettings>,
    pub(crate) spread: PartitionAssignment,
    pub(crate) sizes: BatchLimits,
    pub(crate) delivery: BatchDelivery,
    pub(crate) disk_view: watch::Sender<Option<DiskQueueView>>,
    /// Batches left by the previous machine of this sink.
    pub(crate) carried_over_batches: Vec<SinkBatch>,
}

struct SinkRunner {
    feed: QueueFeed,
    partitions: BatchPartitions,
    delivery: Arc<BatchDelivery>,
    deliveries: JoinSet<Vec<SinkBatch>>,
    in_flight: HashMap<Id, (usize, Arc<SinkBatch>)>,
    undelivered: Vec<SinkBatch>,
}

/// Runs until stopped. Returns rows that were neither written nor are kept in files.
pub(crate) async fn run_sink(plan: SinkRunPlan) -> Vec<SinkBatch> {
    let mut stop = plan.delivery.stop.clone();
    let feed = loop {
        let opening = QueueFeed::open(
            plan.queue.clone(),
            plan.memory_row_numbers.clone(),
            plan.files.as_ref(),
            plan.disk.as_ref(),
        );
        match opening.await {
            Ok(feed) => break feed,
            Err(error) => {
                plan.queue.set_spooled(false);
                tracing::error!(sink = plan.delivery.sink, %error, "sink disk queue could not be opened; retrying");
                let what = format!("its disk queue cannot be opened: {error}");
                plan.delivery.circuit.record_row_error(&what);
                tokio::select! {
                    () = tokio::time::sleep(RETRY_PAUSE) => {}
                    _ = stop.wait_for(|stop| *stop != StopSignal::Run) => return plan.carried_over_batches,
                }
            }
        }
    };
    plan.disk_view.send_replace(feed.disk_view());
    let mut runner = SinkRunner {
        feed,
        partitions: BatchPartitions::new(plan.spread, plan.sizes),
        delivery: Arc::new(plan.delivery),
        deliveries: JoinSet::new(),
        in_flight: HashMap::new(),
        undelivered: Vec::new(),
    };
    let now = Instant::now();
    for batch in plan.carried_over_batches {
        for at in 0..batch.len() {
            let number = batch.id(at).number;
            runner
                .partitions
                .add(batch.epoch(), number, batch.row(at), now);
        }
    }
    runner.process_until_stopped(&mut stop).await;
    runner.finish().await
}

impl SinkRunner {
    async fn process_until_stopped(&mut self, stop: &mut watch::Receiver<StopSignal>) {
        loop {
            let stop_signal = *stop.borrow_and_update();
            let is_draining = stop_signal == StopSignal::Drain;
            // Rows in files are sent after the next start.
            let takes = !(is_draining && self.feed.is_fully_on_disk());
            let is_last = is_draining && (!takes || self.feed.waiting() == 0);
            let now = Instant::now();
            if stop_signal != StopSignal::GiveUp {
                while let Some((partition, batch)) = self.partitions.next_batch(now, is_last) {
                    self.spawn_delivery(partition, batch);
                }
            }
            if stop_signal == StopSignal::GiveUp
                || (is_last && self.deliveries.is_empty() && self.partitions.is_empty())
            {
                return;
            }
            let room = self.partitions.room();
            let (missing_rows, missing_bytes) = self.partitions.missing_for_next_batch();
            let wanted = match self.partitions.is_empty() || is_draining {
                true => 1,
                false => missing_rows,
            };
            let deadline = self.partitions.deadline();
            let is_time_to_take = tokio::select! {
                _ = stop.changed() => false,
                Some(landed) = self.deliveries.join_next_with_id(), if !self.deliveries.is_empty() => {
                    self.finish_delivery(landed).await;
                    false
                }
                () = self.feed.ready(wanted, missing_bytes), if takes && room > 0 => true,
                // Rows that arrived in the meantime join the batch that is due.
                () = tokio::time::sleep_until(deadline.unwrap_or(now)), if deadline.is_some() => takes,
            };
            if is_time_to_take && room > 0 {
                self.take_rows(room).await;
            }
        }
    }

    async fn take_rows(&mut self, room: usize) {
        let now = Instant::now();
        let epoch = self.feed.epoch();
        let partitions = &mut self.partitions;
        let add = |number, row: crate::row::SinkRow<'_>| partitions.add(epoch, number, row, now);
        match self.feed.take(room, usize::MAX, add).await {
            Ok(taken) => {
                let metrics = &self.delivery.metrics;
                metrics.taken.fetch_add(taken as u64, Relaxed);
            }
            Err(error) => {
                tracing::error!(sink = self.delivery.sink, %error, "sink disk queue could not be read; retrying");
                let what = format!("its disk queue cannot be read: {error}");
                self.delivery.circuit.record_row_error(&what);
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    }

    fn spawn_delivery(&mut self, partition: usize, batch: SinkBatch) {
        let metrics = &self.delivery.metrics;
        metrics.batches_in_flight.fetch_add(1, Relaxed);
        metrics
            .rows_in_flight
            .fetch_add(batch.len() as u64, Relaxed);
        let batch = Arc::new(batch);
        let (delivery, flying) = (self.delivery.clone(), batch.clone());
        let task = self
            .deliveries
            .spawn(async move { delivery.deliver(&flying).await });
        self.in_flight.insert(task.id(), (partition, batch));
    }

    async fn finish_delivery(&mut self, landed: Result<(Id, Vec<SinkBatch>), JoinError>) {
        let (id, left) = match landed {
            Ok((id, left)) => (id, Some(left)),
            Err(error) => (error.id(), None),
        };
        let Some((partition, batch)) = self.in_flight.remove(&id) else {
            return;
        };
        let metrics = &self.delivery.metrics;
        metrics.batches_in_flight.fetch_sub(1, Relaxed);
        metrics
            .rows_in_flight
            .fetch_sub(batch.len() as u64, Relaxed);
        self.partitions.release_slot(partition);
        // Abandoned, or a panic of the machine itself: all of it may have to be sent again.
        let left = left.unwrap_or_else(|| vec![SinkBatch::clone(&batch)]);
        if left.is_empty()
            && let Err(error) = self.feed.acknowledge(&batch).await
        {
            tracing::error!(sink = self.delivery.sink, %error, "sink disk queue acknowledgement could not be written");
        }
        self.undelivered.extend(left);
    }

    async fn finish(mut self) -> Vec<SinkBatch> {
        let deadline = Instant::now() + COMPLETION_GRACE;
        while !self.deliveries.is_empty() {
            let landed = self.deliveries.join_next_with_id();
            match tokio::time::timeout_at(deadline, landed).await {
                Ok(Some(landed)) => self.finish_delivery(landed).await,
                Ok(None) => break,
                Err(_) => self.deliveries.abort_all(),
            }
            if Instant::now() >= deadline {
                self.deliveries.abort_all();
                while let Some(landed) = self.deliveries.join_next_with_id().await {
                    self.finish_delivery(landed).await;
                }
            }
        }
        // A connector that fails to close must not block the end of the node.
        let closing = self.delivery.writer.close();
        let _ = tokio::time::timeout(COMPLETION_GRACE, closing).await;
        let mut left = self.undelivered;
        left.extend(self.partitions.into_unsent());
        left.retain(|batch| !self.feed.is_on_disk(batch));
        self.feed.close().await;
        left
    }
}
