//! The messages that hooks publish because of other messages, while they wait to be published, and what their
//! publishers wait for. `derived_messages.rs` describes the rules.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use hooks::{BackpressureCheck, OutgoingMessages, OutgoingPosition};
use mqtt::{PacketType, ReasonCode};

use super::tables::ConnectionIx;

/// The budget for all messages that derive from one message. Only its shard uses it; it moves with the connection.
pub(crate) struct DerivedBudget {
    pub(super) messages: AtomicU64,
    /// Time spent on them in later turns.
    pub(super) time_spent_us: AtomicU64,
    /// The connection that published the original message, and its serial.
    pub(super) publisher: Option<(ConnectionIx, u32)>,
}

pub(super) struct DerivedBatch {
    pub(super) outgoing: OutgoingMessages,
    /// The next message to publish.
    pub(super) next: OutgoingPosition,
    pub(super) budget: Arc<DerivedBudget>,
}

#[derive(Default)]
pub(crate) struct DerivedMessages {
    pub(super) waiting: VecDeque<DerivedBatch>,
    pub(super) waiting_bytes: usize,
    /// The budget of the message being published.
    pub(super) current: Option<Arc<DerivedBudget>>,
    /// The budget of the message published last, if messages derived from it are still pending.
    pub(crate) unfinished_budget: Option<Arc<DerivedBudget>>,
}

/// What a connection waits for after publishing. Other connections of its shard do not wait.
#[derive(Default)]
pub(crate) struct PublisherWait {
    /// Messages that derive from its last one are still pending.
    pub(super) derived_budget: Option<Arc<DerivedBudget>>,
    /// The answer to the last message.
    pub(super) pending_ack: Option<(PacketType, u16, ReasonCode)>,
    pub(super) backpressure: Option<BackpressureCheck>,
}

impl DerivedMessages {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn is_publishing(&self) -> bool {
        self.current.is_some()
    }

    /// Discards the message in progress after a panic.
    pub(crate) fn reset_after_panic(&mut self) {
        self.current = None;
        let sizes = self.waiting.iter().map(|batch| batch.outgoing.size());
        self.waiting_bytes = sizes.sum();
    }
}
