//! Batches in flight, callers that wait for their messages, and the results that brokers report.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::compression::Compression;
use crate::error::KafkaError;
use crate::protocol::{DecodeError, Decoder, ErrorCode};
use crate::record::{KafkaMessage, PackedMessages, ProducerId};

/// Limit on messages remembered as written: more than a caller should have in flight.
const MAX_WRITTEN: usize = 1 << 20;

/// Identifies a message for its caller: it is the same for each attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MessageId(pub u128);

/// A message that waits for a batch.
pub(crate) struct QueuedMessage {
    pub(crate) id: MessageId,
    pub(crate) waiter: RowWaiter,
    pub(crate) message: KafkaMessage,
}

/// A batch of one partition.
pub(crate) struct InFlightBatch {
    pub(crate) partition_index: usize,
    pub(crate) topic: Arc<str>,
    pub(crate) partition: i32,
    pub(crate) rows: Vec<(MessageId, KafkaMessage)>,
    packed: PackedMessages,
    /// With idempotence, the producer of its sequence numbers.
    pub(crate) producer: Option<ProducerId>,
    pub(crate) first_sequence: i32,
    /// Whether a broker may have received it.
    pub(crate) was_sent: bool,
}

impl InFlightBatch {
    pub(crate) fn new(
        spot: usize,
        topic: Arc<str>,
        partition: i32,
        rows: Vec<(MessageId, KafkaMessage)>,
        compression: Compression,
    ) -> Self {
        let packed = PackedMessages::new(rows.iter().map(|(_, message)| message), compression);
        Self {
            partition_index: spot,
            topic,
            partition,
            rows,
            packed,
            producer: None,
            first_sequence: 0,
            was_sent: false,
        }
    }

    pub(crate) fn size(&self) -> usize {
        self.packed.size()
    }

    pub(crate) fn seal(&self, out: &mut Vec<u8>) {
        match self.producer {
            Some(producer) => self.packed.seal(producer, self.first_sequence, out),
            None => self.packed.seal(ProducerId::NONE, -1, out),
        }
    }

    /// The indexes of flights, by topic.
    pub(crate) fn by_topic(flights: &[Self]) -> Vec<(Arc<str>, Vec<usize>)> {
        let mut topics: Vec<(Arc<str>, Vec<usize>)> = Vec::new();
        for (place, flight) in flights.iter().enumerate() {
            match topics.iter_mut().find(|(topic, _)| *topic == flight.topic) {
                Some((_, places)) => places.push(place),
                None => topics.push((flight.topic.clone(), vec![place])),
            }
        }
        topics
    }
}

/// Result of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BatchOutcome {
    Written,
    /// The batch may be stored or not.
    Unknown(KafkaError),
    /// The broker no longer knows the producer's sequence.
    Forgotten(KafkaError),
    /// Not stored because of its content, with the positions of the faulty messages if known.
    Rows(String, Vec<usize>),
}

/// Decodes the results of the requested flights.
pub(crate) fn read_outcomes(
    take: &mut Decoder<'_>,
    version: i16,
    flights: &[InFlightBatch],
) -> Result<Vec<BatchOutcome>, DecodeError> {
    let not_contained = BatchOutcome::Unknown(KafkaError::transient(
        "the response does not contain the batch",
    ));
    let mut outcomes = vec![not_contained; flights.len()];
    for _ in 0..take.count()? {
        let topic = take.text()?;
        for _ in 0..take.count()? {
            let partition = take.i32()?;
            let code = ErrorCode::take(take)?;
            take.raw(24)?;
            let (bad, why) = match version >= 8 {
                true => read_record_errors(take)?,
                false => (Vec::new(), None),
            };
            let is_it = |f: &InFlightBatch| f.partition == partition && *f.topic == *topic;
            if let Some(place) = flights.iter().position(is_it) {
                outcomes[place] = outcome_for_code(code, bad, why, topic, partition);
            }
        }
    }
    Ok(outcomes)
}

/// The faulty messages, and the error text.
fn read_record_errors(take: &mut Decoder<'_>) -> Result<(Vec<usize>, Option<String>), DecodeError> {
    let (mut bad, mut why) = (Vec::new(), None);
    for _ in 0..take.count()? {
        bad.push(usize::try_from(take.i32()?).unwrap_or(usize::MAX));
        why = take.nullable_text()?.map(str::to_owned).or(why);
    }
    let general = take.nullable_text()?.map(str::to_owned);
    Ok((bad, why.or(general)))
}

fn outcome_for_code(
    code: ErrorCode,
    bad: Vec<usize>,
    why: Option<String>,
    topic: &str,
    partition: i32,
) -> BatchOutcome {
    let why = why.map(|why| format!(": {why}")).unwrap_or_default();
    let what = format!("partition {partition} of {topic}: {code}{why}");
    match code {
        ErrorCode::NONE | ErrorCode::DUPLICATE_SEQUENCE => BatchOutcome::Written,
        code if code.is_message_error() => BatchOutcome::Rows(what, bad),
        code if code.is_producer_error() => BatchOutcome::Forgotten(KafkaError::transient(what)),
        _ => BatchOutcome::Unknown(KafkaError::transient(what)),
    }
}

/// Takes the messages of the next batch from a queue, skipping those nothing waits for any more. Always takes at least one.
pub(crate) fn take_rows(
    queue: &mut VecDeque<QueuedMessage>,
    max_rows: usize,
    max_bytes: usize,
) -> Vec<QueuedMessage> {
    let (mut taken, mut bytes) = (Vec::new(), 0);
    while let Some(next) = queue.front() {
        bytes += next.message.size();
        if !taken.is_empty() && (taken.len() >= max_rows || bytes > max_bytes) {
            break;
        }
        if let Some(next) = queue.pop_front() {
            match next.waiter.ticket.is_given_up() {
                true => bytes -= next.message.size(),
                false => taken.push(next),
            }
        }
    }
    taken
}

/// Collects the results of the messages of one call.
pub struct WriteTicket {
    open: Mutex<WriteTicketState>,
    is_done: Notify,
}

struct WriteTicketState {
    unsettled: usize,
    /// Positions of the written messages.
    written: Vec<usize>,
    failures: Vec<(usize, KafkaError)>,
    is_given_up: bool,
}

impl WriteTicket {
    /// A ticket for this number of messages.
    pub fn new(rows: usize) -> Arc<Self> {
        let open = WriteTicketState {
            unsettled: rows,
            written: Vec::with_capacity(rows),
            failures: Vec::new(),
            is_given_up: false,
        };
        Arc::new(Self {
            open: Mutex::new(open),
            is_done: Notify::new(),
        })
    }

    fn open(&self) -> MutexGuard<'_, WriteTicketState> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Settles a message; returns whether a caller still waits for it.
    pub(crate) fn settle_row(&self, place: usize, failure: Option<KafkaError>) -> bool {
        let mut open = self.open();
        if open.is_given_up {
            return false;
        }
        match failure {
            None => open.written.push(place),
            Some(failure) => open.failures.push((place, failure)),
        }
        open.unsettled = open.unsettled.saturating_sub(1);
        if open.unsettled == 0 {
            self.is_done.notify_one();
        }
        true
    }

    /// Settles messages that the caller does not send, and of which it knows why.
    pub fn skip(&self, count: usize) {
        let mut open = self.open();
        open.unsettled = open.unsettled.saturating_sub(count);
        if open.unsettled == 0 {
            self.is_done.notify_one();
        }
    }

    fn is_given_up(&self) -> bool {
        self.open().is_given_up
    }

    /// Ends the wait and returns the positions of the messages that are already written.
    pub fn give_up(&self) -> Vec<usize> {
        let mut open = self.open();
        open.is_given_up = true;
        std::mem::take(&mut open.written)
    }

    /// Waits until all messages are settled; returns the failed ones.
    pub async fn failures(&self) -> Vec<(usize, KafkaError)> {
        loop {
            {
                let mut open = self.open();
                if open.unsettled == 0 {
                    return std::mem::take(&mut open.failures);
                }
            }
            self.is_done.notified().await;
        }
    }
}

/// A ticket that waits for a message, and the message's position in it.
pub(crate) struct RowWaiter {
    ticket: Arc<WriteTicket>,
    place: usize,
}

impl RowWaiter {
    pub(crate) fn new(ticket: &Arc<WriteTicket>, place: usize) -> Self {
        Self {
            ticket: ticket.clone(),
            place,
        }
    }

    /// Settles the message; returns whether a caller still waits for it.
    pub(crate) fn settle(&self, failure: Option<KafkaError>) -> bool {
        self.ticket.settle_row(self.place, failure)
    }
}

/// Messages that were written after their caller stopped waiting; the oldest are dropped.
#[derive(Default)]
pub(crate) struct WrittenRows {
    rows: HashSet<MessageId>,
    in_order: VecDeque<MessageId>,
}

impl WrittenRows {
    pub(crate) fn add(&mut self, id: MessageId) {
        if self.rows.insert(id) {
            self.in_order.push_back(id);
        }
        if self.in_order.len() > MAX_WRITTEN
            && let Some(oldest) = self.in_order.pop_front()
        {
            self.rows.remove(&oldest);
        }
    }

    /// Removes a message; returns whether it was present.
    pub(crate) fn take(&mut self, id: MessageId) -> bool {
        let was_there = !self.rows.is_empty() && self.rows.remove(&id);
        if self.rows.is_empty() {
            self.in_order.clear();
        }
        was_there
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Encode as _;

    fn id(number: u64) -> MessageId {
        MessageId(number.into())
    }

    fn waiting(number: u64, ticket: &Arc<WriteTicket>, bytes: usize) -> QueuedMessage {
        QueuedMessage {
            id: id(number),
            waiter: RowWaiter::new(ticket, number as usize),
            message: KafkaMessage {
                value: Some(vec![0; bytes]),
                ..KafkaMessage::default()
            },
        }
    }

    #[test]
    fn batches_have_limits_and_skip_abandoned_rows() {
        let (ticket, other) = (WriteTicket::new(9), WriteTicket::new(1));
        other.give_up();
        let mut queue: VecDeque<_> = (0..4).map(|n| waiting(n, &ticket, 100)).collect();
        queue.push_front(waiting(7, &other, 5000));
        queue.push_front(waiting(8, &ticket, 5000));
        let mut take = |rows, bytes| -> Vec<u128> {
            let taken = take_rows(&mut queue, rows, bytes);
            taken.iter().map(|waiting| waiting.id.0).collect()
        };
        assert_eq!(take(10, 1000), [8]);
        assert_eq!(take(2, 1000), [0, 1]);
        assert_eq!(take(10, 200), [2]);
        assert_eq!(take(10, 200), [3]);
        assert_eq!(take(10, 200), [0; 0]);
    }

    #[test]
    fn an_abandoned_ticket_returns_the_rows_that_are_written() {
        let ticket = WriteTicket::new(3);
        assert!(ticket.settle_row(1, None));
        assert!(ticket.settle_row(0, Some(KafkaError::transient("x"))));
        assert_eq!(ticket.give_up(), [1]);
        assert!(!ticket.settle_row(2, None));
    }

    #[tokio::test]
    async fn a_ticket_does_not_wait_for_skipped_messages() {
        let ticket = WriteTicket::new(3);
        ticket.settle_row(1, None);
        ticket.skip(2);
        assert_eq!(ticket.failures().await, []);
    }

    #[test]
    fn written_rows_are_reported_once() {
        let mut written = WrittenRows::default();
        written.add(id(1));
        written.add(id(2));
        assert!(written.take(id(1)) && !written.take(id(1)) && !written.take(id(3)));
        assert!(written.take(id(2)) && written.in_order.is_empty());
    }

    #[test]
    fn outcomes_are_decoded() {
        let flight =
            |partition| InFlightBatch::new(0, "t".into(), partition, Vec::new(), Compression::None);
        let flights = [flight(0), flight(1), flight(2), flight(3), flight(4)];
        let mut out = Vec::new();
        out.put_count(1);
        out.put_text("t");
        out.put_count(4);
        for (partition, code) in [(3, 45), (1, 87), (0, 0), (2, 6)] {
            out.put_i32(partition);
            out.put_i16(code);
            out.put_raw(&[0; 24]);
            out.put_count(usize::from(code == 87));
            if code == 87 {
                out.put_i32(5);
                out.put_text("no key");
            }
            out.put_no_text();
        }
        let outcomes = read_outcomes(&mut Decoder(&out), 8, &flights).unwrap();
        assert_eq!(outcomes[0], BatchOutcome::Written);
        let why = "partition 1 of t: the broker rejects the record (Kafka error 87): no key";
        assert_eq!(outcomes[1], BatchOutcome::Rows(why.into(), vec![5]));
        assert!(
            matches!(&outcomes[2], BatchOutcome::Unknown(f) if f.to_string().contains("does not lead"))
        );
        assert!(matches!(outcomes[3], BatchOutcome::Forgotten(_)));
        assert!(
            matches!(&outcomes[4], BatchOutcome::Unknown(f) if f.to_string().contains("does not contain"))
        );
    }
}
