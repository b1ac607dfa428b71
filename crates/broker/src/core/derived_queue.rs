//! The messages that hooks publish because of other messages, while they wait to be published, and what their
//! publishers wait for. `derived_messages.rs` publishes them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use hooks::{BackpressureCheck, MessageDraftView, OutgoingMessages, OutgoingPosition};
use mqtt::{PacketType, ReasonCode};

use super::tables::ConnectionIx;

/// Bytes of derived messages that may wait on a shard.
const MAX_WAITING_BYTES: usize = 64 << 20;

/// The budget for all messages that derive from one message. It is shared by their batches and by the connection of
/// the publisher: the last batch is published when only the connection has it. Only its shard uses it; it moves with
/// the connection.
pub(crate) struct DerivedBudget {
    messages: AtomicU64,
    /// Time spent on them in later turns.
    time_spent_us: AtomicU64,
    /// The connection that published the original message, and its serial.
    publisher: Option<(ConnectionIx, u32)>,
}

impl DerivedBudget {
    pub(super) fn new(messages: u64, publisher: Option<(ConnectionIx, u32)>) -> Arc<Self> {
        Arc::new(Self {
            messages: AtomicU64::new(messages),
            time_spent_us: AtomicU64::new(0),
            publisher,
        })
    }

    pub(super) fn publisher(&self) -> Option<(ConnectionIx, u32)> {
        self.publisher
    }

    /// Takes one message from the budget; false if the messages or the time are used up.
    pub(super) fn charge_message(&self, max_time_us: u64) -> bool {
        let left = self.messages.load(Relaxed);
        if left == 0 || self.time_spent_us.load(Relaxed) > max_time_us {
            return false;
        }
        self.messages.store(left - 1, Relaxed);
        true
    }
}

/// Messages that hooks returned at once, of which some are published.
pub(super) struct DerivedBatch {
    outgoing: OutgoingMessages,
    /// The next message to publish.
    next: OutgoingPosition,
    budget: Arc<DerivedBudget>,
}

impl DerivedBatch {
    /// Takes the next message, with the budget that it is charged to.
    pub(super) fn next_message(&mut self) -> Option<(MessageDraftView<'_>, &Arc<DerivedBudget>)> {
        let (draft, next) = self.outgoing.message_at(self.next)?;
        self.next = next;
        Some((draft, &self.budget))
    }

    fn is_finished(&self) -> bool {
        self.outgoing.message_at(self.next).is_none()
    }
}

/// The messages of a shard that hooks requested and that are not published yet.
///
/// It owns the batches, in the order in which hooks returned them, and their budgets. Their number is limited by the
/// budgets, and their bytes by `MAX_WAITING_BYTES`. What hooks return beyond that has no budget left.
///
/// - [`push`](Self::push) queues a batch. Messages that derive from the message being published are charged to its
///   budget.
/// - To publish one message, the caller takes the first batch ([`take_first`](Self::take_first)), publishes its next
///   message between [`begin`](Self::begin) and [`end`](Self::end), and puts the batch back
///   ([`put_back`](Self::put_back)). [`charge_time`](Self::charge_time) adds the time that this took.
/// - The publisher of a message waits while messages derived from it are pending. The caller calls
///   [`begin_publisher`](Self::begin_publisher) for each PUBLISH, [`set_unfinished`](Self::set_unfinished) after it has
///   published the first derived messages, and moves [`take_unfinished`](Self::take_unfinished) to the
///   [`PublisherWait`] of the connection.
/// - After a panic, the caller calls [`reset_after_panic`](Self::reset_after_panic).
#[derive(Default)]
pub(crate) struct DerivedMessages {
    waiting: VecDeque<DerivedBatch>,
    waiting_bytes: usize,
    /// The budget of the message being published.
    current: Option<Arc<DerivedBudget>>,
    /// The budget of the message published last, if messages derived from it are still pending.
    unfinished_budget: Option<Arc<DerivedBudget>>,
}

impl DerivedMessages {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn is_publishing(&self) -> bool {
        self.current.is_some()
    }

    /// Queues messages of hooks, and returns their budget. `budget` is that of the messages queued before them because
    /// of the same message or events; `new_budget` creates the first one.
    pub(super) fn push(
        &mut self,
        outgoing: OutgoingMessages,
        budget: Option<Arc<DerivedBudget>>,
        new_budget: impl FnOnce(&OutgoingMessages) -> Arc<DerivedBudget>,
    ) -> Arc<DerivedBudget> {
        let budget = budget
            .or_else(|| self.current.clone())
            .unwrap_or_else(|| new_budget(&outgoing));
        if self.waiting_bytes > MAX_WAITING_BYTES {
            budget.messages.store(0, Relaxed);
        }
        self.waiting_bytes += outgoing.size();
        self.waiting.push_back(DerivedBatch {
            outgoing,
            next: OutgoingPosition::default(),
            budget: budget.clone(),
        });
        budget
    }

    pub(super) fn take_first(&mut self) -> Option<DerivedBatch> {
        self.waiting.pop_front()
    }

    /// Puts the first batch back; returns its emptied buffer if all of its messages are published.
    pub(super) fn put_back(&mut self, mut batch: DerivedBatch) -> Option<OutgoingMessages> {
        if !batch.is_finished() {
            self.waiting.push_front(batch);
            return None;
        }
        self.waiting_bytes -= batch.outgoing.size();
        batch.outgoing.clear();
        Some(batch.outgoing)
    }

    pub(super) fn begin(&mut self, budget: &Arc<DerivedBudget>) {
        self.current = Some(budget.clone());
    }

    pub(super) fn end(&mut self) {
        self.current = None;
    }

    /// Charges time to the budget of the first batch.
    pub(super) fn charge_time(&self, us: u64) {
        if let Some(batch) = self.waiting.front() {
            batch.budget.time_spent_us.fetch_add(us, Relaxed);
        }
    }

    #[inline]
    pub(super) fn begin_publisher(&mut self) {
        self.unfinished_budget = None;
    }

    /// `budget`: that of the messages that the publisher's message has caused.
    pub(super) fn set_unfinished(&mut self, budget: Option<Arc<DerivedBudget>>) {
        self.unfinished_budget = budget.filter(|budget| Arc::strong_count(budget) > 1);
    }

    #[inline]
    pub(super) fn has_unfinished(&self) -> bool {
        self.unfinished_budget.is_some()
    }

    #[inline]
    pub(super) fn take_unfinished(&mut self) -> Option<Arc<DerivedBudget>> {
        self.unfinished_budget.take()
    }

    /// Discards the message in progress after a panic.
    pub(crate) fn reset_after_panic(&mut self) {
        self.current = None;
        let sizes = self.waiting.iter().map(|batch| batch.outgoing.size());
        self.waiting_bytes = sizes.sum();
    }
}

/// What a connection waits for after publishing. Other connections of its shard do not wait.
///
/// The caller does not read the connection until [`poll`](Self::poll) returns that nothing holds it, and sends the
/// answer that `poll` returns.
#[derive(Default)]
pub(crate) struct PublisherWait {
    /// Messages that derive from its last one are still pending.
    derived_budget: Option<Arc<DerivedBudget>>,
    /// The answer to the last message.
    pending_ack: Option<PendingAck>,
    backpressure: Option<BackpressureCheck>,
}

/// An answer to a PUBLISH: the packet type, the packet id and the reason code.
pub(super) type PendingAck = (PacketType, u16, ReasonCode);

/// The result of [`PublisherWait::poll`].
pub(super) struct PublisherWaitPoll {
    /// Whether the connection has to wait longer.
    pub(super) is_held: bool,
    /// An answer to be sent now.
    pub(super) ack: Option<PendingAck>,
}

impl PublisherWait {
    /// Waits until the messages of a budget are published.
    pub(super) fn wait_for_derived(&mut self, unfinished: Arc<DerivedBudget>) {
        self.derived_budget = Some(unfinished);
    }

    /// Keeps the answer until the messages derived from the message are published.
    pub(super) fn keep_ack(&mut self, ack: PendingAck) {
        self.pending_ack = Some(ack);
    }

    /// Waits while a component behind the hooks is full, in addition to those that are already waited for.
    pub(super) fn add_backpressure(&mut self, backpressure: BackpressureCheck) {
        self.backpressure = Some(match self.backpressure.take() {
            None => backpressure,
            Some(before) => Box::new(move || before() || backpressure()),
        });
    }

    pub(super) fn poll(&mut self) -> PublisherWaitPoll {
        if let Some(budget) = &self.derived_budget {
            if Arc::strong_count(budget) > 1 {
                return PublisherWaitPoll {
                    is_held: true,
                    ack: None,
                };
            }
            self.derived_budget = None;
        }
        let is_held = self.backpressure.as_ref().is_some_and(|waits| waits());
        if !is_held {
            self.backpressure = None;
        }
        PublisherWaitPoll {
            is_held,
            ack: self.pending_ack.take(),
        }
    }
}
