//! The writer's part for queues in another server: a group of batches goes there first, then what is keyed state goes into
//! the log, and then shards are told.
//!
//! In this order, because what becomes of a message (an entry) must not be lost when what it came from (a delayed message, a
//! will) is gone from the keyed state. Ends of sessions go after the log for the same reason: the queue of a session that
//! moved may go only when the record of the move is kept. While the server is away, batches wait, as many as may.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;

use super::record::{Record, Records};
use super::shared::{Shared, Trouble, count};
use crate::backend::{BackendError, Builder, QueueBackend};
use crate::batch::{Batch, FRAME_HEAD};
use crate::handle::Owner;
use crate::queue::Fetch;

/// Bytes of batches in one group, unless one batch is larger.
const MAX_GROUP_BYTES: usize = 1 << 20;
/// Pages read with one call.
const MAX_FETCHES: usize = 64;
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// A server that keeps the queues, and how far it is.
pub(crate) struct Outside {
    backend: Box<dyn QueueBackend>,
    /// Submitted and not yet there, in order.
    incoming: VecDeque<(u16, Batch)>,
    /// How many of them are in the group that was tried last: the same again, as it has its number.
    trying: Option<usize>,
    next_number: u64,
    /// Sessions that ended; the log says so.
    ends: Vec<u64>,
    /// Of batches that are not in the log yet.
    later_ends: Vec<u64>,
    /// Batches without keyed state; told when the log has what came with them.
    applied: Vec<(u16, u64)>,
    fetches: VecDeque<(u16, Fetch)>,
    failure: Option<Failure>,
    /// Entries by session, for the figures.
    counts: HashMap<u64, u64, RandomState>,
    messages: u64,
}

struct Failure {
    retry_at: Instant,
    pause: Duration,
    /// The first failure is not told: a connection that lay idle may have been closed.
    is_told: bool,
}

impl Outside {
    pub(crate) fn new(
        backend: Box<dyn QueueBackend>,
        last_number: u64,
        counts: HashMap<u64, u64, RandomState>,
    ) -> Self {
        Self {
            backend,
            incoming: VecDeque::new(),
            trying: None,
            next_number: last_number + 1,
            ends: Vec::new(),
            later_ends: Vec::new(),
            applied: Vec::new(),
            fetches: VecDeque::new(),
            failure: None,
            messages: counts.values().sum(),
            counts,
        }
    }

    pub(super) fn push(&mut self, shard: u16, batch: Batch) {
        self.incoming.push_back((shard, batch));
    }

    pub(super) fn push_fetch(&mut self, shard: u16, fetch: Fetch) {
        self.fetches.push_back((shard, fetch));
    }

    /// Nothing waits for the server.
    pub(super) fn is_idle(&self) -> bool {
        self.incoming.is_empty() && self.ends.is_empty() && self.later_ends.is_empty()
    }

    pub(super) fn waiting(&self) -> usize {
        self.incoming.len()
    }

    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.failure.as_ref().map(|failure| failure.retry_at)
    }

    pub(crate) fn messages(&self) -> u64 {
        self.messages
    }

    pub(crate) fn sessions(&self) -> usize {
        self.counts.len()
    }

    fn may_try(&self) -> bool {
        self.retry_at().is_none_or(|at| at <= Instant::now())
    }

    /// The log has everything of the groups applied so far.
    pub(super) fn logged(&mut self, owner: &dyn Owner) {
        for (shard, number) in self.applied.drain(..) {
            owner.logged(shard, number);
        }
        self.ends.append(&mut self.later_ends);
    }

    /// Brings the next group there; its keyed state is left in `for_log`. `false`: there is none, or it failed.
    pub(super) fn advance(
        &mut self,
        shared: &Shared,
        for_log: &mut VecDeque<(u16, Batch)>,
    ) -> bool {
        if !self.may_try() || self.incoming.is_empty() && self.ends.is_empty() {
            return false;
        }
        let result = self.try_next(shared, for_log);
        self.settle(shared, result)
    }

    fn try_next(
        &mut self,
        shared: &Shared,
        for_log: &mut VecDeque<(u16, Batch)>,
    ) -> Result<(), BackendError> {
        if !self.ends.is_empty() && self.trying.is_none() {
            self.backend.end(&self.ends)?;
            for session in self.ends.drain(..) {
                self.messages -= self.counts.remove(&session).unwrap_or(0);
            }
        }
        if self.incoming.is_empty() {
            return Ok(());
        }
        let batches = *self
            .trying
            .get_or_insert_with(|| group_len(self.incoming.iter().map(|(_, batch)| batch)));
        let mut builder = Builder::default();
        for (_, batch) in self.incoming.iter().take(batches) {
            if !builder.add(&batch.bytes[FRAME_HEAD..]) {
                tracing::error!("a batch holds something that is no record; its rest is ignored");
            }
        }
        let ends = std::mem::take(&mut builder.ends);
        let counts = std::mem::take(&mut builder.counts);
        let group = builder.finish(self.next_number);
        if !group.is_empty() {
            self.backend.apply(&group)?;
            self.next_number += 1;
        }
        self.trying = None;
        for (session, by) in counts {
            self.count(session, by);
        }
        self.later_ends.extend(ends);
        self.hand_over(batches, shared, for_log);
        Ok(())
    }

    fn count(&mut self, session: u64, by: i64) {
        let waiting = self.counts.entry(session).or_default();
        let before = *waiting;
        *waiting = before.saturating_add_signed(by);
        self.messages = self.messages + *waiting - before;
        if *waiting == 0 {
            self.counts.remove(&session);
        }
    }

    /// The server has these batches: what is keyed state goes on to the log.
    fn hand_over(&mut self, batches: usize, shared: &Shared, for_log: &mut VecDeque<(u16, Batch)>) {
        let mut spent = Vec::new();
        let mut done_bytes = 0;
        for (shard, batch) in self.incoming.drain(..batches) {
            done_bytes += batch.bytes.len();
            self.applied.retain(|(of, _)| *of != shard);
            if !batch.is_keyed {
                self.applied.push((shard, batch.number));
            } else {
                // Told when it is in the log, and with it all before.
                let keyed = keyed_part(&batch, shared.spare());
                done_bytes -= keyed.bytes.len();
                for_log.push_back((shard, keyed));
            }
            spent.push(batch);
        }
        let counters = &shared.counters;
        count(&counters.groups, 1);
        count(&counters.batches, batches as u64);
        shared.logged_bytes(done_bytes);
        shared.recycle(&mut spent);
    }

    /// Answers requests; everything submitted before them is there.
    pub(super) fn answer_fetches(&mut self, shared: &Shared, owner: &dyn Owner) {
        while self.incoming.is_empty() && !self.fetches.is_empty() && self.may_try() {
            let wanted: Vec<Fetch> = (self.fetches.iter().take(MAX_FETCHES))
                .map(|(_, fetch)| *fetch)
                .collect();
            let pages = self.backend.fetch(&wanted);
            let outcome = pages.map(|pages| {
                debug_assert_eq!(pages.len(), wanted.len());
                for (page, (shard, _)) in pages.into_iter().zip(self.fetches.drain(..wanted.len()))
                {
                    owner.fetched(shard, page);
                }
            });
            self.settle(shared, outcome);
        }
    }

    /// Learns from what an attempt brought.
    fn settle(&mut self, shared: &Shared, outcome: Result<(), BackendError>) -> bool {
        let Err(error) = outcome else {
            if self.failure.take().is_some_and(|failure| failure.is_told) {
                tracing::info!(
                    server = self.backend.name(),
                    "queued messages can be stored again"
                );
            }
            shared.set(Trouble::Queues, false);
            return true;
        };
        count(&shared.counters.write_errors, 1);
        let (pause, is_told) = match &self.failure {
            None => (FIRST_PAUSE, false),
            Some(failure) => ((failure.pause * 2).min(MAX_PAUSE), true),
        };
        if is_told && !self.failure.as_ref().is_some_and(|failure| failure.is_told) {
            tracing::error!(
                server = self.backend.name(),
                %error,
                "queued messages cannot be stored; they wait and it is tried again"
            );
        }
        self.failure = Some(Failure {
            retry_at: Instant::now() + pause,
            pause,
            is_told,
        });
        false
    }

    /// Says whether so much waits for a server that is away that nothing new is to be taken.
    pub(super) fn tell_health(&self, shared: &Shared, max_pending_bytes: usize) {
        // Half of what makes publishers wait, so that they are told before they stand still.
        let is_over = self.failure.is_some() && shared.pending_bytes() > max_pending_bytes / 2;
        if is_over && shared.set(Trouble::Queues, true) {
            tracing::error!(
                server = self.backend.name(),
                bytes = shared.pending_bytes(),
                "too much waits to be stored: new messages are refused"
            );
        }
    }
}

/// How many batches from the front are one group.
fn group_len<'a>(batches: impl Iterator<Item = &'a Batch>) -> usize {
    let mut bytes = 0;
    let fits = batches.take_while(|batch| {
        let is_first = bytes == 0;
        bytes += batch.bytes.len();
        is_first || bytes <= MAX_GROUP_BYTES
    });
    fits.count()
}

fn keyed_part(batch: &Batch, mut keyed: Batch) -> Batch {
    keyed.number = batch.number;
    for record in Records::new(&batch.bytes[FRAME_HEAD..]).flatten() {
        match record {
            Record::Put { space, key, value } => keyed.put(space, key, value),
            Record::Delete { space, key } => keyed.delete(space, key),
            _ => {}
        }
    }
    keyed
}
