//! The watchers of a running rule. A slow watcher never delays the rule, and without watchers no record is
//! built.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use tokio::sync::broadcast;

use crate::trace_record::TraceRecord;

/// Records buffered for a slow watcher.
const TRACE_BUFFER: usize = 256;
/// Maximum records of one rule per second. The number of omitted records is sent in the next second.
const RECORDS_PER_S: u64 = 200;
/// The watchers of one rule.
#[derive(Default)]
pub(crate) struct TraceWatchers {
    sender: OnceLock<broadcast::Sender<Arc<TraceRecord>>>,
    /// High bits: the second of the last record; low bits: the number of records in it.
    sent_this_second: AtomicU64,
    omitted: AtomicU64,
}

impl TraceWatchers {
    pub(crate) fn watch(&self) -> broadcast::Receiver<Arc<TraceRecord>> {
        self.sender
            .get_or_init(|| broadcast::Sender::new(TRACE_BUFFER))
            .subscribe()
    }

    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.sender
            .get()
            .is_some_and(|sender| sender.receiver_count() > 0)
    }

    /// Sends the record built by `record`, unless the limit of this second is reached.
    pub(crate) fn send(&self, now_ms: u64, record: impl FnOnce() -> TraceRecord) {
        let Some(sender) = self.sender.get() else {
            return;
        };
        let second = now_ms / 1000;
        let packed = self.sent_this_second.load(Relaxed);
        let count = if packed >> 16 == second {
            packed & 0xffff
        } else {
            0
        };
        if count >= RECORDS_PER_S {
            self.omitted.fetch_add(1, Relaxed);
            return;
        }
        self.sent_this_second
            .store(second << 16 | (count + 1), Relaxed);
        let mut record = record();
        let omitted = self.omitted.swap(0, Relaxed);
        record.omitted = (omitted > 0).then_some(omitted);
        // The last watcher may have left just now.
        let _ = sender.send(Arc::new(record));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_rate_limited_and_omissions_counted() {
        let watchers = TraceWatchers::default();
        assert!(!watchers.is_watched());
        watchers.send(0, || unreachable!("there are no watchers"));
        let mut receiver = watchers.watch();
        assert!(watchers.is_watched());
        for _ in 0..RECORDS_PER_S + 7 {
            watchers.send(5_000, TraceRecord::default);
            let _ = receiver.try_recv();
        }
        let last = || TraceRecord {
            result: "last",
            ..TraceRecord::default()
        };
        watchers.send(6_000, last);
        let last = receiver.try_recv().expect("a record was sent");
        assert_eq!((last.result, last.omitted), ("last", Some(7)));
        drop(receiver);
        assert!(!watchers.is_watched());
    }
}
