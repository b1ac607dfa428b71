//! The machine of one sink: takes rows from its feed, forms batches, has them delivered and says what is done with.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;

use super::deliver::Delivery;
use super::feed::{DiskView, Feed};
use super::lanes::{Lanes, Sizes, Spread};
use super::queue::MemoryQueue;
use crate::batch::Batch;
use crate::settings::DiskQueue;

/// After a disk queue could not be opened or read.
const PAUSE: Duration = Duration::from_secs(1);
/// What is on its way when the machine gives up may still arrive; then it is let go, and may be sent twice.
const LANDING_TIME: Duration = Duration::from_secs(2);

/// What the machine is told from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    Run,
    /// Write what there is, then end. What is in files stays there.
    Drain,
    /// End: no further attempt is begun, what is left is handed back.
    GiveUp,
}

pub(crate) struct Plan {
    pub(crate) queue: Arc<MemoryQueue>,
    /// Epoch and next number of rows that are only in memory.
    pub(crate) numbers: (u64, Arc<AtomicU64>),
    /// Where the disk queue is or may have been.
    pub(crate) directory: Option<PathBuf>,
    pub(crate) disk: Option<DiskQueue>,
    pub(crate) spread: Spread,
    pub(crate) sizes: Sizes,
    pub(crate) delivery: Delivery,
    pub(crate) disk_view: watch::Sender<Option<DiskView>>,
    /// What another machine of this sink left.
    pub(crate) carried: Vec<Batch>,
}

struct Runner {
    feed: Feed,
    lanes: Lanes,
    delivery: Arc<Delivery>,
    deliveries: JoinSet<Vec<Batch>>,
    flying: HashMap<Id, (usize, Arc<Batch>)>,
    left: Vec<Batch>,
}

/// Runs until it is told to stop. Returns rows that were neither written nor are kept in files.
pub(crate) async fn run(plan: Plan) -> Vec<Batch> {
    let mut stop = plan.delivery.stop.clone();
    let feed = loop {
        let opening = Feed::open(
            plan.queue.clone(),
            plan.numbers.clone(),
            plan.directory.as_deref(),
            plan.disk.as_ref(),
        );
        match opening.await {
            Ok(feed) => break feed,
            Err(error) => {
                plan.queue.set_spooled(false);
                tracing::error!(sink = plan.delivery.sink, %error, "the disk queue of a sink cannot be opened");
                let what = format!("its disk queue cannot be opened: {error}");
                plan.delivery.circuit.note(&what);
                tokio::select! {
                    () = tokio::time::sleep(PAUSE) => {}
                    _ = stop.wait_for(|stop| *stop != Stop::Run) => return plan.carried,
                }
            }
        }
    };
    plan.disk_view.send_replace(feed.disk_view());
    let mut runner = Runner {
        feed,
        lanes: Lanes::new(plan.spread, plan.sizes),
        delivery: Arc::new(plan.delivery),
        deliveries: JoinSet::new(),
        flying: HashMap::new(),
        left: Vec::new(),
    };
    let now = Instant::now();
    for batch in plan.carried {
        for at in 0..batch.len() {
            let number = batch.id(at).number;
            runner.lanes.add(batch.epoch(), number, batch.row(at), now);
        }
    }
    runner.work(&mut stop).await;
    runner.end().await
}

impl Runner {
    async fn work(&mut self, stop: &mut watch::Receiver<Stop>) {
        loop {
            let told = *stop.borrow_and_update();
            let is_draining = told == Stop::Drain;
            // What is in files is sent after the next start.
            let takes = !(is_draining && self.feed.keeps_what_is_left());
            let is_last = is_draining && (!takes || self.feed.waiting() == 0);
            let now = Instant::now();
            if told != Stop::GiveUp {
                while let Some((lane, batch)) = self.lanes.next(now, is_last) {
                    self.send(lane, batch);
                }
            }
            if told == Stop::GiveUp
                || (is_last && self.deliveries.is_empty() && self.lanes.is_empty())
            {
                return;
            }
            let room = self.lanes.room();
            let (missing_rows, missing_bytes) = self.lanes.wanted();
            let wanted = match self.lanes.is_empty() || is_draining {
                true => 1,
                false => missing_rows,
            };
            let deadline = self.lanes.deadline();
            let is_time_to_take = tokio::select! {
                _ = stop.changed() => false,
                Some(landed) = self.deliveries.join_next_with_id(), if !self.deliveries.is_empty() => {
                    self.land(landed).await;
                    false
                }
                () = self.feed.ready(wanted, missing_bytes), if takes && room > 0 => true,
                // What came meanwhile goes with the batch that is due.
                () = tokio::time::sleep_until(deadline.unwrap_or(now)), if deadline.is_some() => takes,
            };
            if is_time_to_take && room > 0 {
                self.take(room).await;
            }
        }
    }

    async fn take(&mut self, room: usize) {
        let now = Instant::now();
        let epoch = self.feed.epoch();
        let lanes = &mut self.lanes;
        let add = |number, row: crate::Row<'_>| lanes.add(epoch, number, row, now);
        match self.feed.take(room, usize::MAX, add).await {
            Ok(taken) => {
                let metrics = &self.delivery.metrics;
                metrics.taken.fetch_add(taken as u64, Relaxed);
            }
            Err(error) => {
                tracing::error!(sink = self.delivery.sink, %error, "a disk queue cannot be read");
                let what = format!("its disk queue cannot be read: {error}");
                self.delivery.circuit.note(&what);
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    fn send(&mut self, lane: usize, batch: Batch) {
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
        self.flying.insert(task.id(), (lane, batch));
    }

    async fn land(&mut self, landed: Result<(Id, Vec<Batch>), JoinError>) {
        let (id, left) = match landed {
            Ok((id, left)) => (id, Some(left)),
            Err(error) => (error.id(), None),
        };
        let Some((lane, batch)) = self.flying.remove(&id) else {
            return;
        };
        let metrics = &self.delivery.metrics;
        metrics.batches_in_flight.fetch_sub(1, Relaxed);
        metrics
            .rows_in_flight
            .fetch_sub(batch.len() as u64, Relaxed);
        self.lanes.landed(lane);
        // Let go, or a panic of the machine itself: all of it may have to be sent again.
        let left = left.unwrap_or_else(|| vec![Batch::clone(&batch)]);
        if left.is_empty()
            && let Err(error) = self.feed.done(&batch).await
        {
            tracing::error!(sink = self.delivery.sink, %error, "a disk queue cannot be written");
        }
        self.left.extend(left);
    }

    async fn end(mut self) -> Vec<Batch> {
        let deadline = Instant::now() + LANDING_TIME;
        while !self.deliveries.is_empty() {
            let landed = self.deliveries.join_next_with_id();
            match tokio::time::timeout_at(deadline, landed).await {
                Ok(Some(landed)) => self.land(landed).await,
                Ok(None) => break,
                Err(_) => self.deliveries.abort_all(),
            }
            if Instant::now() >= deadline {
                self.deliveries.abort_all();
                while let Some(landed) = self.deliveries.join_next_with_id().await {
                    self.land(landed).await;
                }
            }
        }
        // A connector that does not come to an end must not keep the node from ending.
        let closing = self.delivery.writer.close();
        let _ = tokio::time::timeout(LANDING_TIME, closing).await;
        let mut left = self.left;
        left.extend(self.lanes.into_rest());
        left.retain(|batch| !self.feed.has_in_files(batch));
        self.feed.close().await;
        left
    }
}
