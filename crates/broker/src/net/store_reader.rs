//! Read access of the control plane to stored session queues.

use std::sync::{Mutex, MutexGuard, PoisonError};

use store::{QueueFetch, QueuePage, Store};
use tokio::sync::oneshot;

use crate::control::SHARD_RESPONSE_TIMEOUT;

/// Messages read from the store at once.
const PIECE_MESSAGES: u32 = 256;
const PIECE_BYTES: u32 = 1 << 20;

/// Read access of the control plane to the store: one page at a time for all callers.
pub(crate) struct StoreReader {
    store: Store,
    /// The reader number known to the store; it follows those of the shards.
    number: u16,
    turn: tokio::sync::Mutex<()>,
}

/// Receives the page that was requested from the store's writer.
#[derive(Default)]
pub(crate) struct PendingStoreRead {
    waiting: Mutex<Option<(QueueFetch, oneshot::Sender<QueuePage>)>>,
}

impl PendingStoreRead {
    fn lock(&self) -> MutexGuard<'_, Option<(QueueFetch, oneshot::Sender<QueuePage>)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn complete(&self, page: QueuePage) {
        let mut waiting = self.lock();
        // A page that arrives after its time-out may follow the next request.
        let first = page.entries.first().map(|entry| entry.seq);
        let is_current = waiting.as_ref().is_some_and(|(requested, _)| {
            requested.session == page.session
                && first.is_none_or(|first| first >= requested.from_seq)
        });
        if is_current && let Some((_, answer)) = waiting.take() {
            // The caller may have stopped waiting.
            let _ = answer.send(page);
        }
    }
}

impl StoreReader {
    pub(crate) fn new(store: Store, shards: usize) -> Self {
        Self {
            store,
            number: shards as u16,
            turn: tokio::sync::Mutex::default(),
        }
    }

    pub(crate) async fn read_piece(
        &self,
        pending_read: &PendingStoreRead,
        session: u64,
        from_seq: u64,
    ) -> Option<QueuePage> {
        let _turn = self.turn.lock().await;
        let (answer, answered) = oneshot::channel();
        let fetch = QueueFetch {
            session,
            from_seq,
            max_messages: PIECE_MESSAGES,
            max_bytes: PIECE_BYTES,
        };
        let requested = QueueFetch { ..fetch };
        *pending_read.lock() = Some((requested, answer));
        self.store.fetch(self.number, fetch);
        tokio::time::timeout(SHARD_RESPONSE_TIMEOUT, answered)
            .await
            .ok()?
            .ok()
    }
}
