//! The reads of stored messages that a shard has requested from the store.

use std::collections::VecDeque;

use store::QueueFetch;

/// Sessions whose stored messages are read concurrently; others wait.
const MAX_CONCURRENT_READS: usize = 64;
/// Messages of one session read from the store at once.
const READ_MESSAGES: u32 = 128;
const READ_BYTES: u32 = 64 * 1024;

/// The reads of one shard, by the numbers of sessions in the store.
///
/// It owns the sessions that wait for a read, in the order of their requests. It also owns the reads of the turn in
/// progress, and the number of reads whose page has not arrived. It limits the reads that sessions request to
/// `MAX_CONCURRENT_READS`; the redistribution of a backlog, one at a time, is not delayed by them.
///
/// - [`request`](Self::request) adds a session. The caller takes sessions with [`next_request`](Self::next_request), as
///   long as it has memory for their messages, and calls [`start`](Self::start) for those that still need messages.
/// - At the end of the turn, [`take_started`](Self::take_started) returns the reads to be passed to the store, after the
///   batch of the turn.
/// - The store answers each read with one page, for which the caller calls [`finish`](Self::finish). The next page of a
///   session is another read.
#[derive(Default)]
pub(crate) struct StoredReads {
    requests: VecDeque<u64>,
    /// Reads of the turn in progress.
    started: Vec<QueueFetch>,
    /// Reads without a page so far.
    active: usize,
}

impl StoredReads {
    /// Requests the next stored messages of a session, now or after other sessions.
    pub(super) fn request(&mut self, session: u64) {
        self.requests.push_back(session);
    }

    /// Takes the next session whose messages may be read now.
    pub(super) fn next_request(&mut self) -> Option<u64> {
        if self.active >= MAX_CONCURRENT_READS {
            return None;
        }
        self.requests.pop_front()
    }

    /// Reads messages from `from_seq` on.
    pub(super) fn start(&mut self, session: u64, from_seq: u64) {
        self.active += 1;
        self.started.push(QueueFetch {
            session,
            from_seq,
            max_messages: READ_MESSAGES,
            max_bytes: READ_BYTES,
        });
    }

    pub(super) fn finish(&mut self) {
        self.active -= 1;
    }

    #[inline]
    pub(super) fn has_started(&self) -> bool {
        !self.started.is_empty()
    }

    pub(super) fn take_started(&mut self) -> Vec<QueueFetch> {
        std::mem::take(&mut self.started)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_wait_while_enough_others_are_read() {
        let mut reads = StoredReads::default();
        let sessions = MAX_CONCURRENT_READS as u64 + 2;
        (0..sessions).for_each(|session| reads.request(session));
        while let Some(session) = reads.next_request() {
            reads.start(session, 0);
        }
        assert_eq!(reads.take_started().len(), MAX_CONCURRENT_READS);
        assert!(!reads.has_started());
        reads.finish();
        assert_eq!(reads.next_request(), Some(MAX_CONCURRENT_READS as u64));
        reads.start(MAX_CONCURRENT_READS as u64, 0);
        assert_eq!(reads.next_request(), None);
    }
}
