//! Rows that must become durable and are not yet.

use std::sync::atomic::Ordering::Relaxed;

use super::{ConnectorService, SinkId, UnsettledSinks};
use crate::sink_machine::memory_queue::WrittenCallback;

impl ConnectorService {
    fn unsettled(&self, shard: u16) -> &UnsettledSinks {
        &self.inner.unsettled[usize::from(shard) % self.inner.unsettled.len()]
    }

    pub(super) fn note_unsettled(&self, shard: u16, sink: SinkId) {
        let unsettled = self.unsettled(shard);
        let mut sinks = unsettled.lock();
        if !sinks.contains(&sink) {
            sinks.push(sink);
            unsettled.is_any.store(true, Relaxed);
        }
    }

    /// Whether a shard has pushed rows that are not yet known to be in their sink's files.
    pub fn is_unsettled(&self, shard: u16) -> bool {
        self.unsettled(shard).is_any.load(Relaxed)
    }

    /// Calls `done`, from any thread, when all rows this shard has pushed to sinks with files are written to them. The
    /// end of the process then loses none. Files that cannot be written are not waited for.
    pub fn settle(&self, shard: u16, done: Box<dyn FnOnce() + Send + Sync>) {
        let done = WrittenCallback::new(done);
        let unsettled = self.unsettled(shard);
        let mut sinks = unsettled.lock();
        unsettled.is_any.store(false, Relaxed);
        let table = self.inner.table.load();
        for sink in sinks.drain(..) {
            if let Some(Some(sink)) = table.sinks.get(sink.0 as usize) {
                sink.queue.hold_until_written(shard, &done);
            }
        }
    }

    /// Like [`ConnectorService::settle`], for a producer that several threads share: a thread's rows stay unsettled for
    /// it, whichever thread settles the producer, until they are written.
    pub fn settle_shared(&self, producer: u16, done: Box<dyn FnOnce() + Send + Sync>) {
        let done = WrittenCallback::new(done);
        let unsettled = self.unsettled(producer);
        let mut sinks = unsettled.lock();
        let table = self.inner.table.load();
        sinks.retain(|sink| match table.sinks.get(sink.0 as usize) {
            Some(Some(sink)) => sink.queue.hold_until_written(producer, &done),
            _ => false,
        });
        unsettled.is_any.store(!sinks.is_empty(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::service::ConnectorServiceOptions;

    #[test]
    fn rows_of_a_shared_producer_stay_unsettled_until_they_are_written() {
        // Its tasks run only within `block_on`.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let directory = tempfile::tempdir().unwrap();
        let options = ConnectorServiceOptions {
            directory: Some(directory.path().to_owned()),
            shards: 2,
        };
        let service = ConnectorService::new(runtime.handle().clone(), options);
        service
            .set_connector("c", &json!({"type": "file"}))
            .unwrap();
        let sink = json!({"connector": "c", "file": "rows", "queue": {"disk": {}}});
        let sink = service.set_sink("s", &sink).unwrap();
        let push = || service.push(sink, 1, |row| row.int("n", 1));
        let calls = Arc::new(AtomicUsize::new(0));
        let settle = || {
            let calls = calls.clone();
            let done = move || {
                calls.fetch_add(1, Relaxed);
            };
            service.settle_shared(1, Box::new(done));
        };
        push();
        settle();
        // Another thread's rows are as unsettled as before.
        assert!(service.is_unsettled(1));
        settle();
        assert_eq!(calls.load(Relaxed), 0);
        runtime.block_on(async {
            while calls.load(Relaxed) < 2 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        settle();
        assert!(!service.is_unsettled(1));
        assert_eq!(calls.load(Relaxed), 3);
    }
}
