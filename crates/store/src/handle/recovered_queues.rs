//! The queues of a store that is open and not started yet.

use std::sync::Arc;

use super::Store;
use crate::error::StoreError;
use crate::log::read_job::EntryToRead;
use crate::log::reader::read_entries;
use crate::log::segments::find_segment;
use crate::log::shared::lock;
use crate::queue::{QueueEntry, QueueSummary};

/// Bytes of bodies and attributes in memory at a time, unless one entry is larger.
const MAX_READ_BYTES: u64 = 4 << 20;

impl Store {
    /// The queue of a session; `None` if it is empty. Before [`start`](Self::start) only.
    pub fn queue(&self, session: u64) -> Option<QueueSummary> {
        let opened = lock(&self.inner.recovered_store);
        let opened = opened.as_ref()?;
        match &opened.summaries {
            None => opened.recovered.index.summary(session),
            Some(summaries) => summaries.get(&session).cloned(),
        }
    }

    /// Sessions with queued messages, in order of their numbers, so that a start or an adoption can be repeated. Before
    /// [`start`](Self::start) only.
    pub fn queued_sessions(&self) -> Vec<u64> {
        let opened = lock(&self.inner.recovered_store);
        let Some(opened) = &*opened else {
            return Vec::new();
        };
        let mut sessions: Vec<u64> = match &opened.summaries {
            None => opened.recovered.index.queued_sessions(),
            Some(summaries) => summaries.keys().copied().collect(),
        };
        sessions.sort_unstable();
        sessions
    }

    /// Reads all queued entries of a session, in order of their sequence numbers. Before [`start`](Self::start) only. `each` must
    /// not use the queues of this store.
    ///
    /// # Errors
    ///
    /// [`StoreError::QueueUnavailable`] if the store was started, or its queues are in another server.
    /// [`StoreError::Damaged`] if an entry cannot be read; entries before it may have been passed.
    pub fn read_queue(
        &self,
        session: u64,
        each: &mut dyn FnMut(QueueEntry),
    ) -> Result<(), StoreError> {
        let opened = lock(&self.inner.recovered_store);
        let opened = opened.as_ref().filter(|opened| opened.summaries.is_none());
        let Some(opened) = opened else {
            return Err(StoreError::QueueUnavailable);
        };
        let Some(queue) = opened.recovered.index.queue(session) else {
            return Ok(());
        };
        let (mut wanted, mut bytes) = (Vec::new(), 0);
        for entry in queue.entries_from(0) {
            let Some(segment) = find_segment(&opened.recovered.segments, entry.segment) else {
                return Err(unreadable_entry(session, "its segment is missing"));
            };
            let file = Arc::clone(&segment.file);
            bytes += u64::from(entry.body_len) + u64::from(entry.attributes_len);
            wanted.push(EntryToRead {
                entry: *entry,
                file,
            });
            if bytes >= MAX_READ_BYTES {
                pass_entries(session, &wanted, each)?;
                wanted.clear();
                bytes = 0;
            }
        }
        pass_entries(session, &wanted, each)
    }
}

fn pass_entries(
    session: u64,
    wanted: &[EntryToRead],
    each: &mut dyn FnMut(QueueEntry),
) -> Result<(), StoreError> {
    let mut failure = None;
    let entries = read_entries(wanted.iter(), &mut |offset, bytes, error| {
        let detail = format!("{bytes} bytes at byte {offset} of a segment: {error}");
        failure.get_or_insert(detail);
    });
    if let Some(detail) = failure {
        return Err(unreadable_entry(session, &detail));
    }
    entries.into_iter().for_each(each);
    Ok(())
}

fn unreadable_entry(session: u64, detail: &str) -> StoreError {
    StoreError::Damaged {
        what: format!("an entry of the queue of session {session}"),
        detail: detail.to_owned(),
    }
}
