//! Messages on their way to partitions. Each partition has at most one batch in flight while the next one is collected, so
//! the order is preserved in all failures.
//!
//! With idempotence, a batch without a response is kept, with its sequence numbers, until it is known whether the broker
//! stored it. It is resent before anything else goes to its partition. Messages that the caller passes again in the meantime
//! are recognised by their ids instead of being packed a second time. The broker therefore detects a duplicate.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::cluster::{KafkaCluster, extend_timeout};
use crate::compression::Compression;
use crate::error::KafkaError;
use crate::in_flight::{
    BatchOutcome, InFlightBatch, MessageId, QueuedMessage, RowWaiter, WriteTicket, WrittenRows,
    read_outcomes, take_rows,
};
use crate::protocol::{Encode as _, ErrorCode, INIT_PRODUCER_ID, PRODUCE};
use crate::record::{KafkaMessage, ProducerId, sequence_after};

/// Limit on tracked partitions.
const MAX_PARTITIONS: usize = 100_000;
/// Limit on batches of several partitions in one request to a broker.
const MAX_REQUEST_BYTES: usize = 8 << 20;
/// Time for the response, in addition to the time that the broker may wait for replicas.
const RESPONSE_MARGIN_MS: u32 = 1000;

#[derive(Debug, Clone, Copy)]
pub struct ProducerOptions {
    /// Acknowledgements: 0, 1, or -1 for all.
    pub acks: i16,
    pub compression: Compression,
    pub max_message_bytes: usize,
    pub is_idempotent: bool,
}

/// Sends messages to the leaders of their partitions.
pub struct Producer {
    cluster: Arc<KafkaCluster>,
    /// The connection slot it uses.
    slot: usize,
    options: ProducerOptions,
    state: Mutex<ProducerState>,
    /// Serialises requests for a producer id.
    asking: tokio::sync::Mutex<()>,
    weak_self: Weak<Producer>,
}

/// A message that waits for its partition, or was sent to it.
pub struct OutgoingMessage {
    pub id: MessageId,
    /// Its position in the ticket.
    pub place: usize,
    pub topic: Arc<str>,
    pub partition: i32,
    pub message: KafkaMessage,
}

#[derive(Default)]
struct ProducerState {
    partitions: Vec<PartitionState>,
    partition_indexes: HashMap<(Arc<str>, i32), usize>,
    /// Messages in flight or with an unknown result: their partition, and who waits for them.
    in_flight_rows: HashMap<MessageId, InFlightRow>,
    /// Messages that were written after their caller stopped waiting.
    written: WrittenRows,
    /// Partitions with something to send, by broker. While a broker has an entry, a task serves it.
    ready: HashMap<i32, VecDeque<usize>>,
    producer: Option<ProducerId>,
}

struct InFlightRow {
    partition_state: usize,
    waiter: Option<RowWaiter>,
}

/// A partition.
struct PartitionState {
    topic: Arc<str>,
    partition: i32,
    waiting: VecDeque<QueuedMessage>,
    /// A batch with an unknown result.
    open: Option<InFlightBatch>,
    is_ready: bool,
    is_in_flight: bool,
    /// Limit on messages in a batch; reduced after the broker rejected one as too large.
    max_rows: usize,
    producer: Option<ProducerId>,
    next_sequence: i32,
}

/// Data to send to a partition now.
struct PartitionLoad {
    partition_state: usize,
    topic: Arc<str>,
    partition: i32,
    rows: Vec<(MessageId, KafkaMessage)>,
    open: Option<InFlightBatch>,
}

impl Producer {
    /// `slot` chooses one of several connections to a broker.
    pub fn new(cluster: Arc<KafkaCluster>, slot: usize, options: ProducerOptions) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            cluster,
            slot,
            options,
            state: Mutex::default(),
            asking: tokio::sync::Mutex::default(),
            weak_self: me.clone(),
        })
    }

    fn state(&self) -> MutexGuard<'_, ProducerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds messages that were sent before, for which `ticket` waits from now on; new ones are returned by their position.
    /// The leaders of the returned topics must be known before `Producer::resume_topics`.
    pub fn match_sent(
        &self,
        rows: impl Iterator<Item = MessageId>,
        ticket: &Arc<WriteTicket>,
    ) -> (Vec<usize>, Vec<Arc<str>>) {
        let mut state = self.state();
        let state = &mut *state;
        let (mut new, mut topics) = (Vec::new(), Vec::new());
        for (place, id) in rows.enumerate() {
            if state.written.take(id) {
                ticket.settle_row(place, None);
            } else if let Some(flying) = state.in_flight_rows.get_mut(&id) {
                flying.waiter = Some(RowWaiter::new(ticket, place));
                let topic = &state.partitions[flying.partition_state].topic;
                if !topics.contains(topic) {
                    topics.push(topic.clone());
                }
            } else {
                new.push(place);
            }
        }
        (new, topics)
    }

    /// Remembers messages that are written although their caller no longer waits.
    pub fn remember_written(&self, rows: impl Iterator<Item = MessageId>) {
        let mut state = self.state();
        rows.for_each(|id| state.written.add(id));
    }

    /// Sends open batches of these topics.
    pub fn resume_topics(&self, topics: &[Arc<str>]) {
        let mut state = self.state();
        for number in 0..state.partitions.len() {
            let partition_state = &state.partitions[number];
            if partition_state.open.is_some() && topics.contains(&partition_state.topic) {
                self.schedule_partition(&mut state, number);
            }
        }
    }

    /// Fails the callers waiting for open batches of a topic whose leaders are unknown.
    pub fn fail_open(&self, topic: &str, failure: &KafkaError) {
        let mut state = self.state();
        for number in 0..state.partitions.len() {
            let partition_state = &state.partitions[number];
            if *partition_state.topic == *topic && !partition_state.is_in_flight {
                state.fail_waiting_rows(number, failure);
            }
        }
    }

    /// Sends messages; `ticket` receives the result of each.
    pub fn send(&self, messages: Vec<OutgoingMessage>, ticket: &Arc<WriteTicket>) {
        let mut state = self.state();
        let mut touched = Vec::new();
        for outgoing in messages {
            let place = outgoing.place;
            let Some(number) = state.partition_or_insert(outgoing.topic, outgoing.partition) else {
                let what = format!("more than {MAX_PARTITIONS} partitions");
                ticket.settle_row(place, Some(KafkaError::bad_message(what)));
                continue;
            };
            let partition_state = &mut state.partitions[number];
            if partition_state.waiting.is_empty() {
                touched.push(number);
            }
            partition_state.waiting.push_back(QueuedMessage {
                id: outgoing.id,
                waiter: RowWaiter::new(ticket, place),
                message: outgoing.message,
            });
        }
        for number in touched {
            self.schedule_partition(&mut state, number);
        }
    }

    /// Schedules a partition for the task of its leading broker.
    fn schedule_partition(&self, state: &mut ProducerState, number: usize) {
        let partition_state = &mut state.partitions[number];
        // Scheduled again when the batch in flight completes.
        if partition_state.is_ready || partition_state.is_in_flight {
            return;
        }
        let Some(broker) = self
            .cluster
            .leader(&partition_state.topic, partition_state.partition)
        else {
            let (topic, partition) = (&partition_state.topic, partition_state.partition);
            let what = format!("partition {partition} of {topic} has no leader at the moment");
            self.cluster.invalidate_topic(topic);
            state.fail_waiting_rows(number, &KafkaError::transient(what));
            return;
        };
        partition_state.is_ready = true;
        match state.ready.entry(broker) {
            Entry::Occupied(mut ready) => ready.get_mut().push_back(number),
            Entry::Vacant(none) => {
                none.insert(VecDeque::from([number]));
                if let Some(me) = self.weak_self.upgrade() {
                    tokio::spawn(async move { me.serve_broker(broker).await });
                }
            }
        }
    }

    /// Sends to a broker until nothing is left to send.
    async fn serve_broker(&self, broker: i32) {
        loop {
            let loads = self.take_loads(broker);
            if loads.is_empty() {
                return;
            }
            self.deliver_and_settle(broker, self.pack_loads(loads))
                .await;
        }
    }

    /// Takes what to send to a broker now; if empty, the broker's task has to end.
    fn take_loads(&self, broker: i32) -> Vec<PartitionLoad> {
        let mut state = self.state();
        let state = &mut *state;
        let mut loads = Vec::new();
        let mut bytes = 0;
        while bytes < MAX_REQUEST_BYTES {
            let Some(number) = state.ready.get_mut(&broker).and_then(VecDeque::pop_front) else {
                break;
            };
            let partition_state = &mut state.partitions[number];
            partition_state.is_ready = false;
            let open = partition_state.open.take();
            let rows = match &open {
                Some(flight) => {
                    bytes += flight.size();
                    Vec::new()
                }
                None => {
                    let max_bytes = self.options.max_message_bytes;
                    let taken = take_rows(
                        &mut partition_state.waiting,
                        partition_state.max_rows,
                        max_bytes,
                    );
                    let rows = taken.into_iter().map(|waiting| {
                        bytes += waiting.message.size();
                        let flying = InFlightRow {
                            partition_state: number,
                            waiter: Some(waiting.waiter),
                        };
                        state.in_flight_rows.insert(waiting.id, flying);
                        (waiting.id, waiting.message)
                    });
                    rows.collect()
                }
            };
            if rows.is_empty() && open.is_none() {
                continue;
            }
            partition_state.is_in_flight = true;
            loads.push(PartitionLoad {
                partition_state: number,
                topic: partition_state.topic.clone(),
                partition: partition_state.partition,
                rows,
                open,
            });
        }
        if loads.is_empty() {
            state.ready.remove(&broker);
        }
        loads
    }

    fn pack_loads(&self, loads: Vec<PartitionLoad>) -> Vec<InFlightBatch> {
        let compression = self.options.compression;
        let flights = loads.into_iter().map(|load| {
            load.open.unwrap_or_else(|| {
                InFlightBatch::new(
                    load.partition_state,
                    load.topic,
                    load.partition,
                    load.rows,
                    compression,
                )
            })
        });
        flights.collect()
    }

    async fn deliver_and_settle(&self, broker: i32, mut flights: Vec<InFlightBatch>) {
        let outcomes = match self.send_batches(broker, &mut flights).await {
            Ok(outcomes) => outcomes,
            Err(failure) => vec![BatchOutcome::Unknown(failure); flights.len()],
        };
        for (flight, outcome) in flights.into_iter().zip(outcomes) {
            self.settle_batch(flight, outcome);
        }
    }

    /// Sends batches and returns the result of each.
    async fn send_batches(
        &self,
        broker: i32,
        flights: &mut [InFlightBatch],
    ) -> Result<Vec<BatchOutcome>, KafkaError> {
        let session = self.cluster.connection(broker, self.slot).await?;
        if self.options.is_idempotent {
            let producer = self.producer_id().await?;
            let mut state = self.state();
            for flight in flights.iter_mut().filter(|f| f.producer.is_none()) {
                let partition_state = &mut state.partitions[flight.partition_index];
                flight.producer = Some(*partition_state.producer.get_or_insert(producer));
                flight.first_sequence = partition_state.next_sequence;
            }
        }
        let timeout = self.cluster.login().request_timeout;
        let order = InFlightBatch::by_topic(flights);
        let fill = |_: i16, out: &mut Vec<u8>| {
            out.put_no_text();
            out.put_i16(self.options.acks);
            out.put_i32(timeout.as_millis() as i32);
            out.put_count(order.len());
            for (topic, places) in &order {
                out.put_text(topic);
                out.put_count(places.len());
                for place in places {
                    let flight = &flights[*place];
                    out.put_i32(flight.partition);
                    out.put_count(flight.size());
                    flight.seal(out);
                }
            }
        };
        if self.options.acks == 0 {
            session.send_without_response(PRODUCE, fill).await?;
            return Ok(vec![BatchOutcome::Written; flights.len()]);
        }
        let within = extend_timeout(timeout, RESPONSE_MARGIN_MS);
        let answered = session.request_with_timeout(PRODUCE, within, fill).await;
        flights.iter_mut().for_each(|flight| flight.was_sent = true);
        answered?.read(|take, version| read_outcomes(take, version, flights))
    }

    async fn producer_id(&self) -> Result<ProducerId, KafkaError> {
        let _turn = self.asking.lock().await;
        if let Some(producer) = self.state().producer {
            return Ok(producer);
        }
        let session = self.cluster.any_connection().await?;
        let answer = session
            .request(INIT_PRODUCER_ID, |_, out| {
                out.put_no_text();
                // Transaction time-out; there are no transactions.
                out.put_i32(60_000);
            })
            .await?;
        let (code, producer) = answer.read(|take, _| {
            take.i32()?;
            let code = ErrorCode::take(take)?;
            let (id, epoch) = (take.i64()?, take.i16()?);
            Ok((code, ProducerId { id, epoch }))
        })?;
        if code.is_error() {
            let what = format!("no producer id: {code}; it is needed for idempotence");
            return Err(session.failure(&what));
        }
        self.state().producer = Some(producer);
        Ok(producer)
    }

    /// Handles the result of a batch.
    fn settle_batch(&self, mut flight: InFlightBatch, outcome: BatchOutcome) {
        let mut state = self.state();
        let state = &mut *state;
        let number = flight.partition_index;
        state.partitions[number].is_in_flight = false;
        match outcome {
            BatchOutcome::Written => state.record_written(&flight),
            BatchOutcome::Unknown(failure) => {
                self.cluster.invalidate_topic(&flight.topic);
                state.keep_or_drop_unknown(flight, &failure, self.options.is_idempotent);
            }
            BatchOutcome::Forgotten(failure) => {
                // With new sequence numbers it may be stored twice; otherwise it would never be stored.
                tracing::warn!(topic = %flight.topic, partition = flight.partition, error = %failure,
                    "broker no longer knows the producer id; resending the batch under a new id");
                if state.producer == flight.producer {
                    state.producer = None;
                }
                flight.producer = None;
                let partition_state = &mut state.partitions[number];
                (partition_state.producer, partition_state.next_sequence) = (None, 0);
                state.keep_or_drop_unknown(flight, &failure, self.options.is_idempotent);
            }
            BatchOutcome::Rows(why, bad) => state.handle_rejected_batch(flight, &why, &bad),
        }
        if state.has_work(number) {
            self.schedule_partition(state, number);
        }
    }
}

impl ProducerState {
    fn partition_or_insert(&mut self, topic: Arc<str>, partition: i32) -> Option<usize> {
        if let Some(number) = self.partition_indexes.get(&(topic.clone(), partition)) {
            return Some(*number);
        }
        let number = self.partitions.len();
        if number >= MAX_PARTITIONS {
            return None;
        }
        self.partitions.push(PartitionState {
            topic: topic.clone(),
            partition,
            waiting: VecDeque::new(),
            open: None,
            is_ready: false,
            is_in_flight: false,
            max_rows: usize::MAX,
            producer: None,
            next_sequence: 0,
        });
        self.partition_indexes.insert((topic, partition), number);
        Some(number)
    }

    fn has_work(&self, number: usize) -> bool {
        let partition_state = &self.partitions[number];
        let is_awaited = |flight: &InFlightBatch| {
            let mut rows = flight.rows.iter();
            rows.any(|(id, _)| {
                self.in_flight_rows
                    .get(id)
                    .is_some_and(|f| f.waiter.is_some())
            })
        };
        !partition_state.waiting.is_empty() || partition_state.open.as_ref().is_some_and(is_awaited)
    }

    fn record_written(&mut self, flight: &InFlightBatch) {
        let partition_state = &mut self.partitions[flight.partition_index];
        partition_state.next_sequence = sequence_after(flight.first_sequence, flight.rows.len());
        partition_state.max_rows = partition_state.max_rows.saturating_mul(2);
        for (id, _) in &flight.rows {
            let waiter = self
                .in_flight_rows
                .remove(id)
                .and_then(|flying| flying.waiter);
            if !waiter.is_some_and(|waiter| waiter.settle(None)) {
                self.written.add(*id);
            }
        }
    }

    /// Handles a batch with an unknown result. Messages queued behind it fail too, because they must not overtake it.
    fn keep_or_drop_unknown(&mut self, flight: InFlightBatch, failure: &KafkaError, keep: bool) {
        let number = flight.partition_index;
        if keep && flight.was_sent {
            self.partitions[number].open = Some(flight);
        } else {
            for (id, _) in &flight.rows {
                let waiter = self
                    .in_flight_rows
                    .remove(id)
                    .and_then(|flying| flying.waiter);
                waiter.map(|waiter| waiter.settle(Some(failure.clone())));
            }
        }
        self.fail_waiting_rows(number, failure);
    }

    /// Fails all waiting messages of a partition.
    fn fail_waiting_rows(&mut self, number: usize, failure: &KafkaError) {
        let partition_state = &mut self.partitions[number];
        let open = partition_state.open.iter().flat_map(|flight| &flight.rows);
        for (id, _) in open {
            let waiter = self
                .in_flight_rows
                .get_mut(id)
                .and_then(|f| f.waiter.take());
            waiter.map(|waiter| waiter.settle(Some(failure.clone())));
        }
        for waiting in partition_state.waiting.drain(..) {
            waiting.waiter.settle(Some(failure.clone()));
        }
    }

    /// Handles a batch that the broker rejected because of its content; `bad` lists the faulty messages if known.
    fn handle_rejected_batch(&mut self, flight: InFlightBatch, why: &str, bad: &[usize]) {
        let partition_state = &mut self.partitions[flight.partition_index];
        let count = flight.rows.len();
        let is_to_blame = |at: usize| count == 1 || bad.contains(&at);
        if count > 1 && !(0..count).any(is_to_blame) {
            // One of the halves contains the faulty message.
            partition_state.max_rows = count.div_ceil(2);
        }
        // The other messages are sent again, before later ones.
        for (at, (id, message)) in flight.rows.into_iter().enumerate().rev() {
            let flying = self.in_flight_rows.remove(&id);
            let Some(waiter) = flying.and_then(|flying| flying.waiter) else {
                continue;
            };
            if is_to_blame(at) {
                waiter.settle(Some(KafkaError::bad_message(why)));
            } else {
                partition_state.waiting.push_front(QueuedMessage {
                    id,
                    waiter,
                    message,
                });
            }
        }
    }
}
