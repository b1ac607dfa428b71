//! Publishes the messages of rule chains, many at a time, and reports when they are stored.
//!
//! The acknowledgement of a device message waits for them; so does the removal of a device message from its mailbox
//! ([`ChainPublisher::settle`]). Both wait as hooks of the broker do, so that the broker must not wait for hooks in turn
//! ([`BrokerHandle::publish_accepted`]). Messages are published without waiting for earlier ones, so that one sync of
//! the log serves many of them.
//!
//! A start processes mailboxes before the broker runs. Their messages wait here until then, and nothing waits for them
//! meanwhile. If the node stops before a message is stored, it is dropped, and not reported as stored. A device sends
//! its message again, and a mailbox keeps it for the next start.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use broker::control::{AcceptedOutcome, PublishRequest};
use broker::{AcceptedPublication, BrokerHandle, NotReadyReason};
use devices::QueueProgress;
use hooks::DurableCallback;
use tokio::sync::mpsc;

/// Number and size of messages from which publishers are paused. There is no other bound, because no message may be
/// lost: publishers may have been read further.
const SOFT_MAX_MESSAGES: u64 = 8192;
const SOFT_MAX_BYTES: usize = 16 << 20;
/// Maximum number of messages published together.
const MAX_BATCH: usize = 512;
/// Maximum number of batches that are published and not stored yet.
const MAX_BATCHES_IN_FLIGHT: usize = 8;
/// Pause before a batch while the buffers of a shard are full. It is bounded: the buffers may contain what waits for
/// these messages.
const MIN_PAUSE: Duration = Duration::from_millis(10);
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// Interval of checks whether the node stops.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(100);

pub(super) struct ChainPublisher {
    queue: mpsc::UnboundedSender<PublishRequest>,
    /// Present until the broker runs.
    waiting: Mutex<Option<mpsc::UnboundedReceiver<PublishRequest>>>,
    state: Arc<ChainPublisherState>,
}

#[derive(Default)]
struct ChainPublisherState {
    /// Progress of the messages; a message is completed when it is stored.
    progress: QueueProgress,
    /// Size of the messages that are not stored.
    bytes: AtomicUsize,
    is_broker_saturated: AtomicBool,
    rejected: AtomicU64,
}

/// A batch that is being written to the log.
struct PublishedBatch {
    publication: AcceptedPublication,
    messages: u64,
    bytes: usize,
}

fn size_of(message: &PublishRequest) -> usize {
    message.topic.len() + message.payload.len()
}

impl ChainPublisher {
    pub(super) fn new() -> Self {
        let (queue, waiting) = mpsc::unbounded_channel();
        Self {
            queue,
            waiting: Mutex::new(Some(waiting)),
            state: Arc::default(),
        }
    }

    /// Starts publishing. Must be called within the runtime.
    pub(super) fn start(&self, handle: BrokerHandle) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(waiting) = waiting.take() else {
            return;
        };
        let (published, in_flight) = mpsc::channel(MAX_BATCHES_IN_FLIGHT);
        let state = Arc::clone(&self.state);
        tokio::spawn(state.publish_batches(handle.clone(), waiting, published));
        let state = Arc::clone(&self.state);
        tokio::spawn(state.complete_batches(handle, in_flight));
    }

    /// Publishes a message behind earlier ones. Never blocks.
    pub(super) fn publish(&self, message: PublishRequest) {
        self.state.progress.add();
        self.state.bytes.fetch_add(size_of(&message), Relaxed);
        // Without a receiver the node stops, and the message is never completed.
        let _ = self.queue.send(message);
    }

    /// Whether publishers have to wait.
    pub(super) fn is_full(&self) -> bool {
        self.state.progress.pending() > SOFT_MAX_MESSAGES
            || self.state.bytes.load(Relaxed) > SOFT_MAX_BYTES
    }

    /// Calls `done`, from any thread, when all messages passed so far are stored. Drops it if the node stops before
    /// that.
    pub(super) fn settle(&self, done: DurableCallback) {
        self.state.progress.settle(done);
    }
}

impl ChainPublisherState {
    async fn publish_batches(
        self: Arc<Self>,
        handle: BrokerHandle,
        mut waiting: mpsc::UnboundedReceiver<PublishRequest>,
        published: mpsc::Sender<PublishedBatch>,
    ) {
        let mut pause = MIN_PAUSE;
        // Messages collect while too many batches are in flight.
        while let Ok(place) = published.reserve().await {
            let mut batch = Vec::new();
            if waiting.recv_many(&mut batch, MAX_BATCH).await == 0 {
                return;
            }
            match self.is_broker_saturated.load(Relaxed) {
                true => {
                    tokio::time::sleep(pause).await;
                    pause = (2 * pause).min(MAX_PAUSE);
                }
                false => pause = MIN_PAUSE,
            }
            let (messages, bytes) = (batch.len() as u64, batch.iter().map(size_of).sum());
            place.send(PublishedBatch {
                publication: handle.publish_accepted(batch),
                messages,
                bytes,
            });
        }
    }

    /// Completes the batches in their order.
    async fn complete_batches(
        self: Arc<Self>,
        handle: BrokerHandle,
        mut in_flight: mpsc::Receiver<PublishedBatch>,
    ) {
        while let Some(batch) = in_flight.recv().await {
            match wait_until_stored(&handle, batch.publication).await {
                Some(outcome) => self.handle_outcome(&outcome),
                None if is_stopping(&handle) => break,
                None => tracing::error!(
                    messages = batch.messages,
                    "publishing messages of rule chains failed; some may be lost; this is a bug"
                ),
            }
            self.bytes.fetch_sub(batch.bytes, Relaxed);
            self.progress.complete_many(batch.messages);
        }
        self.progress.close();
    }

    fn handle_outcome(&self, outcome: &AcceptedOutcome) {
        self.is_broker_saturated
            .store(outcome.is_saturated, Relaxed);
        for (topic, rejection) in &outcome.rejected {
            let count = self.rejected.fetch_add(1, Relaxed) + 1;
            // Logged once per power of two.
            if count.is_power_of_two() {
                tracing::warn!(topic, %rejection, count, "publishing a message of a rule chain failed; discarded");
            }
        }
    }
}

fn is_stopping(handle: &BrokerHandle) -> bool {
    handle.not_ready_reason() == Some(NotReadyReason::Stopping)
}

/// `None`: the node stops, or a shard failed.
async fn wait_until_stored(
    handle: &BrokerHandle,
    publication: AcceptedPublication,
) -> Option<AcceptedOutcome> {
    let mut stored = pin!(publication.stored());
    loop {
        match tokio::time::timeout(STOP_CHECK_INTERVAL, &mut stored).await {
            Ok(outcome) => return outcome,
            Err(_) if is_stopping(handle) => return None,
            Err(_) => {}
        }
    }
}
