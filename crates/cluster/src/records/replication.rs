//! Runs the exchange of records on a thread of its own, because it reads and writes files.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::changes::RecordChanges;
use super::shared::SharedRecords;
use super::sync::RecordSync;
use crate::membership::PeerNodeId;
use crate::requests::SendMessage;

/// Bytes of messages that wait for the thread; further ones are dropped, and what they contain arrives later.
const MAX_QUEUED_BYTES: usize = 64 << 20;

/// The exchange of records with other nodes.
///
/// The owner reports reachable nodes and received messages to [`peer_up`](Self::peer_up),
/// [`peer_down`](Self::peer_down) and [`receive`](Self::receive), in order; these never block and send nothing themselves.
pub struct RecordReplication {
    kind: u8,
    queue: Mutex<InputQueue>,
    arrival: Condvar,
}

#[derive(Default)]
struct InputQueue {
    inputs: VecDeque<Input>,
    bytes: usize,
    has_changes: bool,
    is_stopped: bool,
}

enum Input {
    Up(PeerNodeId),
    Down(PeerNodeId),
    Message(PeerNodeId, Bytes),
}

impl RecordReplication {
    /// `kind` is the first byte of the messages, such as [`DEVICE_RECORDS_KIND`](super::DEVICE_RECORDS_KIND).
    pub fn new(kind: u8) -> Arc<Self> {
        Arc::new(Self {
            kind,
            queue: Mutex::default(),
            arrival: Condvar::new(),
        })
    }

    /// The first byte of its messages.
    #[must_use]
    pub fn kind(&self) -> u8 {
        self.kind
    }

    /// Exchanges records from now on, until [`stop`](Self::stop). To be called once.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(
        self: &Arc<Self>,
        records: Arc<dyn SharedRecords>,
        changes: RecordChanges,
        send: SendMessage,
    ) -> std::io::Result<JoinHandle<()>> {
        let this = Arc::downgrade(self);
        changes.set_wake(Box::new(move || {
            if let Some(this) = this.upgrade() {
                this.queue().has_changes = true;
                this.arrival.notify_one();
            }
        }));
        let this = self.clone();
        let named = std::thread::Builder::new().name("cluster-records".to_owned());
        named.spawn(move || this.run(RecordSync::new(this.kind, records, changes), &send))
    }

    pub fn peer_up(&self, peer: PeerNodeId) {
        self.add(Input::Up(peer));
    }

    pub fn peer_down(&self, peer: PeerNodeId) {
        self.add(Input::Down(peer));
    }

    /// A message with the first byte of this exchange.
    pub fn receive(&self, peer: PeerNodeId, message: Bytes) {
        self.add(Input::Message(peer, message));
    }

    pub fn stop(&self) {
        self.queue().is_stopped = true;
        self.arrival.notify_one();
    }

    fn add(&self, input: Input) {
        let mut queue = self.queue();
        if let Input::Message(_, message) = &input {
            if queue.bytes + message.len() > MAX_QUEUED_BYTES {
                tracing::warn!("too many records of other nodes wait; a message was dropped");
                return;
            }
            queue.bytes += message.len();
        }
        queue.inputs.push_back(input);
        self.arrival.notify_one();
    }

    fn run(&self, mut sync: RecordSync, send: &SendMessage) {
        let started = Instant::now();
        let now_ms = || started.elapsed().as_millis() as u64;
        let mut next_ms = 0;
        while let Some(input) = self.next_input(started + Duration::from_millis(next_ms)) {
            match input {
                Some(Input::Up(peer)) => sync.peer_up(peer, now_ms()),
                Some(Input::Down(peer)) => sync.peer_down(peer),
                Some(Input::Message(peer, message)) => sync.handle(peer, &message, now_ms()),
                None => {}
            }
            next_ms = sync.poll(now_ms());
            while let Some((peer, message)) = sync.poll_message() {
                send(peer, message);
            }
        }
        sync.close();
    }

    /// Waits for an input, changes of this node, or a time. `None`: the exchange has ended.
    fn next_input(&self, deadline: Instant) -> Option<Option<Input>> {
        let mut queue = self.queue();
        loop {
            if queue.is_stopped {
                return None;
            }
            if let Some(input) = queue.inputs.pop_front() {
                if let Input::Message(_, message) = &input {
                    queue.bytes -= message.len();
                }
                return Some(Some(input));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if std::mem::take(&mut queue.has_changes) || left.is_zero() {
                return Some(None);
            }
            let waited = self.arrival.wait_timeout(queue, left);
            (queue, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn queue(&self) -> MutexGuard<'_, InputQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
