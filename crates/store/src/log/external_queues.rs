//! The writer's part for queues in another server. A group of batches goes to the server first, then its keyed state goes
//! into the log, and then shards are notified.
//!
//! The order matters: an entry must not be lost when its origin (a delayed message, a will) is already gone from the keyed
//! state. Ends of sessions follow the log for the same reason. The queue of a session that moved may be removed only
//! when the record of the move is durable. While the server is unavailable, batches wait, up to a limit.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;

use super::record::{LogRecord, LogRecords};
use super::shared::{StoreShared, increment};
use crate::backend::{BackendError, QueueBackend, QueueGroupBuilder};
use crate::batch::{FRAME_HEAD, StoreBatch};
use crate::health::HealthFlag;
use crate::observer::StoreObserver;
use crate::queue::QueueFetch;

/// Size of the batches in one group, unless one batch is larger.
const MAX_GROUP_BYTES: usize = 1 << 20;
/// Pages read with one call.
const MAX_FETCHES: usize = 64;
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// The server that holds the queues, and the progress of writing to it.
pub(crate) struct ExternalQueues {
    backend: Box<dyn QueueBackend>,
    /// Submitted and not yet applied by the server, in order.
    incoming: VecDeque<(u16, StoreBatch)>,
    /// Number of batches in the group tried last. A retry repeats the same group, because its number is fixed.
    attempted_batches: Option<usize>,
    next_number: u64,
    /// Sessions that ended according to the log; their queues are to be removed.
    ended_sessions: Vec<u64>,
    /// Ended sessions of batches that are not in the log yet.
    unlogged_ended_sessions: Vec<u64>,
    /// Batches without keyed state; reported when the log has the rest of their group.
    applied: Vec<(u16, u64)>,
    fetches: VecDeque<(u16, QueueFetch)>,
    failure: Option<BackendFailure>,
    /// Number of entries by session, for metrics.
    entries_by_session: HashMap<u64, u64, RandomState>,
    messages: u64,
}

struct BackendFailure {
    retry_at: Instant,
    pause: Duration,
    /// Whether the failure was logged. The first one is not: an idle connection may have been closed.
    is_logged: bool,
}

impl ExternalQueues {
    pub(crate) fn new(
        backend: Box<dyn QueueBackend>,
        last_number: u64,
        counts: HashMap<u64, u64, RandomState>,
    ) -> Self {
        Self {
            backend,
            incoming: VecDeque::new(),
            attempted_batches: None,
            next_number: last_number + 1,
            ended_sessions: Vec::new(),
            unlogged_ended_sessions: Vec::new(),
            applied: Vec::new(),
            fetches: VecDeque::new(),
            failure: None,
            messages: counts.values().sum(),
            entries_by_session: counts,
        }
    }

    pub(super) fn push(&mut self, shard: u16, batch: StoreBatch) {
        self.incoming.push_back((shard, batch));
    }

    pub(super) fn push_fetch(&mut self, shard: u16, fetch: QueueFetch) {
        self.fetches.push_back((shard, fetch));
    }

    /// Whether nothing waits for the server.
    pub(super) fn is_idle(&self) -> bool {
        self.incoming.is_empty()
            && self.ended_sessions.is_empty()
            && self.unlogged_ended_sessions.is_empty()
    }

    pub(super) fn pending_batches(&self) -> usize {
        self.incoming.len()
    }

    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.failure.as_ref().map(|failure| failure.retry_at)
    }

    pub(crate) fn messages(&self) -> u64 {
        self.messages
    }

    pub(crate) fn sessions(&self) -> usize {
        self.entries_by_session.len()
    }

    fn is_retry_due(&self) -> bool {
        self.retry_at().is_none_or(|at| at <= Instant::now())
    }

    /// Moves the batches applied so far to `logged`, once the log has all of their keyed state; their shards are to be notified.
    pub(super) fn take_logged(&mut self, logged: &mut Vec<(u16, u64)>) {
        logged.append(&mut self.applied);
        self.ended_sessions
            .append(&mut self.unlogged_ended_sessions);
    }

    /// Applies the next group; its keyed state is left in `for_log`. `false`: there is none, or it failed.
    pub(super) fn apply_next_group(
        &mut self,
        shared: &StoreShared,
        for_log: &mut VecDeque<(u16, StoreBatch)>,
    ) -> bool {
        if !self.is_retry_due() || self.incoming.is_empty() && self.ended_sessions.is_empty() {
            return false;
        }
        let result = self.try_next_group(shared, for_log);
        self.record_outcome(shared, result)
    }

    fn try_next_group(
        &mut self,
        shared: &StoreShared,
        for_log: &mut VecDeque<(u16, StoreBatch)>,
    ) -> Result<(), BackendError> {
        if !self.ended_sessions.is_empty() && self.attempted_batches.is_none() {
            self.backend.end_sessions(&self.ended_sessions)?;
            for session in self.ended_sessions.drain(..) {
                self.messages -= self.entries_by_session.remove(&session).unwrap_or(0);
            }
        }
        if self.incoming.is_empty() {
            return Ok(());
        }
        let batches = *self
            .attempted_batches
            .get_or_insert_with(|| group_len(self.incoming.iter().map(|(_, batch)| batch)));
        let mut builder = QueueGroupBuilder::default();
        for (_, batch) in self.incoming.iter().take(batches) {
            if !builder.add(&batch.bytes[FRAME_HEAD..]) {
                tracing::error!("batch contains an invalid record; ignoring the rest of the batch");
            }
        }
        let ends = std::mem::take(&mut builder.ended_sessions);
        let counts = std::mem::take(&mut builder.counts);
        let group = builder.finish(self.next_number);
        if !group.is_empty() {
            self.backend.apply(&group)?;
            self.next_number += 1;
        }
        self.attempted_batches = None;
        for (session, by) in counts {
            self.adjust_session_count(session, by);
        }
        self.unlogged_ended_sessions.extend(ends);
        self.complete_batches(batches, shared, for_log);
        Ok(())
    }

    fn adjust_session_count(&mut self, session: u64, by: i64) {
        let waiting = self.entries_by_session.entry(session).or_default();
        let before = *waiting;
        *waiting = before.saturating_add_signed(by);
        self.messages = self.messages + *waiting - before;
        if *waiting == 0 {
            self.entries_by_session.remove(&session);
        }
    }

    /// The server has these batches: passes their keyed state on to the log.
    fn complete_batches(
        &mut self,
        batches: usize,
        shared: &StoreShared,
        for_log: &mut VecDeque<(u16, StoreBatch)>,
    ) {
        let mut spent = Vec::new();
        let mut done_bytes = 0;
        for (shard, batch) in self.incoming.drain(..batches) {
            done_bytes += batch.bytes.len();
            self.applied.retain(|(of, _)| *of != shard);
            if !batch.is_keyed {
                self.applied.push((shard, batch.number));
            } else {
                // Reported once it is in the log, together with everything before it.
                let keyed = keyed_part(&batch, shared.recycled_batch());
                done_bytes -= keyed.bytes.len();
                for_log.push_back((shard, keyed));
            }
            spent.push(batch);
        }
        let counters = &shared.counters;
        increment(&counters.groups, 1);
        increment(&counters.batches, batches as u64);
        shared.subtract_pending_bytes(done_bytes);
        shared.recycle(&mut spent);
    }

    /// Answers requests; everything submitted before them has been applied.
    pub(super) fn answer_fetches(&mut self, shared: &StoreShared, owner: &dyn StoreObserver) {
        while self.incoming.is_empty() && !self.fetches.is_empty() && self.is_retry_due() {
            let wanted: Vec<QueueFetch> = (self.fetches.iter().take(MAX_FETCHES))
                .map(|(_, fetch)| *fetch)
                .collect();
            let pages = self.backend.fetch(&wanted);
            let outcome = pages.map(|pages| {
                debug_assert_eq!(pages.len(), wanted.len());
                for (page, (shard, _)) in pages.into_iter().zip(self.fetches.drain(..wanted.len()))
                {
                    owner.on_fetched(shard, page);
                }
            });
            self.record_outcome(shared, outcome);
        }
    }

    /// Records the outcome of an attempt.
    fn record_outcome(&mut self, shared: &StoreShared, outcome: Result<(), BackendError>) -> bool {
        let Err(error) = outcome else {
            if self.failure.take().is_some_and(|failure| failure.is_logged) {
                tracing::info!(
                    server = self.backend.name(),
                    "queue server recovered; storing queued messages again"
                );
            }
            shared.set_flag(HealthFlag::Queues, false);
            return true;
        };
        increment(&shared.counters.write_errors, 1);
        let (pause, is_told) = match &self.failure {
            None => (FIRST_PAUSE, false),
            Some(failure) => ((failure.pause * 2).min(MAX_PAUSE), true),
        };
        if is_told
            && !self
                .failure
                .as_ref()
                .is_some_and(|failure| failure.is_logged)
        {
            tracing::error!(
                server = self.backend.name(),
                %error,
                "queued messages cannot be stored; keeping them and retrying"
            );
        }
        self.failure = Some(BackendFailure {
            retry_at: Instant::now() + pause,
            pause,
            is_logged: is_told,
        });
        false
    }

    /// Reports the store as full if too much waits for a server that is unavailable.
    pub(super) fn update_health(&self, shared: &StoreShared, max_pending_bytes: usize) {
        // Half of the level at which publishers pause, so that messages are rejected before publishers stall.
        let is_over = self.failure.is_some() && shared.pending_bytes() > max_pending_bytes / 2;
        if is_over && shared.set_flag(HealthFlag::Queues, true) {
            tracing::error!(
                server = self.backend.name(),
                bytes = shared.pending_bytes(),
                "too many messages wait to be stored; rejecting new messages"
            );
        }
    }
}

/// Number of batches from the front that form one group.
fn group_len<'a>(batches: impl Iterator<Item = &'a StoreBatch>) -> usize {
    let mut bytes = 0;
    let fits = batches.take_while(|batch| {
        let is_first = bytes == 0;
        bytes += batch.bytes.len();
        is_first || bytes <= MAX_GROUP_BYTES
    });
    fits.count()
}

fn keyed_part(batch: &StoreBatch, mut keyed: StoreBatch) -> StoreBatch {
    keyed.number = batch.number;
    for record in LogRecords::new(&batch.bytes[FRAME_HEAD..]).flatten() {
        match record {
            LogRecord::Put { space, key, value } => keyed.put(space, key, value),
            LogRecord::Delete { space, key } => keyed.delete(space, key),
            _ => {}
        }
    }
    keyed
}
