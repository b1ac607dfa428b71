//! Messages on their way to partitions. Of each partition one batch is under way at a time and the next collects meanwhile, so
//! that the order is kept whatever fails.
//!
//! With idempotence a batch whose answer did not come is kept, with its sequence numbers, until it is known whether the broker
//! has it: it goes again before anything else goes to its partition, and rows that the sink's machine gives us again meanwhile
//! are recognised by their ids instead of being packed a second time. So a broker that had it after all sees that it has.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::cluster::{Cluster, longer};
use super::compression::Compression;
use super::flight::{Fate, Flight, Ticket, Waiter, WrittenRows, read_fates, take_rows};
use super::record::{Message, ProducerId, sequence_after};
use super::wire::{Code, INIT_PRODUCER_ID, PRODUCE, Put as _};
use crate::batch::RowId;
use crate::connector::Failure;

/// Partitions that are remembered.
const MAX_SPOTS: usize = 100_000;
/// Batches of several partitions that go to a broker together.
const MAX_REQUEST_BYTES: usize = 8 << 20;
/// For the broker's answer on top of the time it may wait for replicas.
const ANSWER_MS: u32 = 1000;

#[derive(Debug, Clone, Copy)]
pub(super) struct Manner {
    /// 0, 1, or -1 for all.
    pub(super) acks: i16,
    pub(super) compression: Compression,
    pub(super) max_message_bytes: usize,
    pub(super) is_idempotent: bool,
}

pub(super) struct Producer {
    cluster: Arc<Cluster>,
    /// Which of the connections to a broker it uses.
    slot: usize,
    manner: Manner,
    state: Mutex<State>,
    /// One asks for a producer id at a time.
    asking: tokio::sync::Mutex<()>,
    me: Weak<Producer>,
}

/// A message on its way to a partition.
pub(super) struct Outgoing {
    pub(super) id: RowId,
    pub(super) place: usize,
    pub(super) topic: Arc<str>,
    pub(super) partition: i32,
    pub(super) message: Message,
}

pub(super) struct Waiting {
    pub(super) id: RowId,
    pub(super) waiter: Waiter,
    pub(super) message: Message,
}

#[derive(Default)]
struct State {
    spots: Vec<Spot>,
    numbers: HashMap<(Arc<str>, i32), usize>,
    /// Rows that are under way or whose fate is not known: their partition, and who waits for them.
    flying: HashMap<RowId, Flying>,
    /// Rows that arrived when nobody waited for them any more.
    written: WrittenRows,
    /// Partitions with something to send, by the broker they go to. While a broker is in here, a task serves it.
    ready: HashMap<i32, VecDeque<usize>>,
    producer: Option<ProducerId>,
}

struct Flying {
    spot: usize,
    waiter: Option<Waiter>,
}

/// A partition.
struct Spot {
    topic: Arc<str>,
    partition: i32,
    waiting: VecDeque<Waiting>,
    /// A batch whose fate is not known.
    open: Option<Flight>,
    is_ready: bool,
    is_flying: bool,
    /// Of a batch; fewer after the broker found one too large.
    max_rows: usize,
    producer: Option<ProducerId>,
    next_sequence: i32,
}

/// What goes to a partition now.
struct Load {
    spot: usize,
    topic: Arc<str>,
    partition: i32,
    rows: Vec<(RowId, Message)>,
    open: Option<Flight>,
}

impl Producer {
    pub(super) fn new(cluster: Arc<Cluster>, slot: usize, manner: Manner) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            cluster,
            slot,
            manner,
            state: Mutex::default(),
            asking: tokio::sync::Mutex::default(),
            me: me.clone(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks for rows that were sent before. `ticket` waits for them from now on; what is new is left over, by its place.
    /// The topics are those whose leaders have to be known before [`Producer::resume`].
    pub(super) fn recognise(
        &self,
        rows: impl Iterator<Item = RowId>,
        ticket: &Arc<Ticket>,
    ) -> (Vec<usize>, Vec<Arc<str>>) {
        let mut state = self.state();
        let state = &mut *state;
        let (mut new, mut topics) = (Vec::new(), Vec::new());
        for (place, id) in rows.enumerate() {
            if state.written.take(id) {
                ticket.settle(place, None);
            } else if let Some(flying) = state.flying.get_mut(&id) {
                flying.waiter = Some(Waiter::new(ticket, place));
                let topic = &state.spots[flying.spot].topic;
                if !topics.contains(topic) {
                    topics.push(topic.clone());
                }
            } else {
                new.push(place);
            }
        }
        (new, topics)
    }

    /// Rows that are written, but whoever was told does not listen any more.
    pub(super) fn remember(&self, rows: impl Iterator<Item = RowId>) {
        let mut state = self.state();
        rows.for_each(|id| state.written.add(id));
    }

    /// Sends what is left open of these topics.
    pub(super) fn resume(&self, topics: &[Arc<str>]) {
        let mut state = self.state();
        for number in 0..state.spots.len() {
            let spot = &state.spots[number];
            if spot.open.is_some() && topics.contains(&spot.topic) {
                self.kick(&mut state, number);
            }
        }
    }

    /// The leaders of a topic cannot be told: whoever waits for what is left open there is told.
    pub(super) fn give_back(&self, topic: &str, failure: &Failure) {
        let mut state = self.state();
        for number in 0..state.spots.len() {
            let spot = &state.spots[number];
            if *spot.topic == *topic && !spot.is_flying {
                state.tell_all(number, failure);
            }
        }
    }

    /// Sends messages; `ticket` is told what becomes of each.
    pub(super) fn send(&self, messages: Vec<Outgoing>, ticket: &Arc<Ticket>) {
        let mut state = self.state();
        let mut touched = Vec::new();
        for outgoing in messages {
            let place = outgoing.place;
            let Some(number) = state.spot(outgoing.topic, outgoing.partition) else {
                let what = format!("more than {MAX_SPOTS} partitions");
                ticket.settle(place, Some(Failure::of_rows(what)));
                continue;
            };
            let spot = &mut state.spots[number];
            if spot.waiting.is_empty() {
                touched.push(number);
            }
            spot.waiting.push_back(Waiting {
                id: outgoing.id,
                waiter: Waiter::new(ticket, place),
                message: outgoing.message,
            });
        }
        for number in touched {
            self.kick(&mut state, number);
        }
    }

    /// Has a partition served by the broker that leads it.
    fn kick(&self, state: &mut State, number: usize) {
        let spot = &mut state.spots[number];
        // Looked at again when what is under way has landed.
        if spot.is_ready || spot.is_flying {
            return;
        }
        let Some(broker) = self.cluster.leader(&spot.topic, spot.partition) else {
            let (topic, partition) = (&spot.topic, spot.partition);
            let what = format!("partition {partition} of {topic} has no leader at the moment");
            self.cluster.doubt(topic);
            state.tell_all(number, &Failure::passing(what));
            return;
        };
        spot.is_ready = true;
        match state.ready.entry(broker) {
            Entry::Occupied(mut ready) => ready.get_mut().push_back(number),
            Entry::Vacant(none) => {
                none.insert(VecDeque::from([number]));
                if let Some(me) = self.me.upgrade() {
                    tokio::spawn(async move { me.serve(broker).await });
                }
            }
        }
    }

    /// Sends to a broker until there is nothing to send.
    async fn serve(&self, broker: i32) {
        loop {
            let loads = self.load(broker);
            if loads.is_empty() {
                return;
            }
            self.fly(broker, self.pack(loads)).await;
        }
    }

    /// What goes to a broker now; nothing only if nobody serves the broker any more.
    fn load(&self, broker: i32) -> Vec<Load> {
        let mut state = self.state();
        let state = &mut *state;
        let mut loads = Vec::new();
        let mut bytes = 0;
        while bytes < MAX_REQUEST_BYTES {
            let Some(number) = state.ready.get_mut(&broker).and_then(VecDeque::pop_front) else {
                break;
            };
            let spot = &mut state.spots[number];
            spot.is_ready = false;
            let open = spot.open.take();
            let rows = match &open {
                Some(flight) => {
                    bytes += flight.size();
                    Vec::new()
                }
                None => {
                    let max_bytes = self.manner.max_message_bytes;
                    let taken = take_rows(&mut spot.waiting, spot.max_rows, max_bytes);
                    let rows = taken.into_iter().map(|waiting| {
                        bytes += waiting.message.size();
                        let flying = Flying {
                            spot: number,
                            waiter: Some(waiting.waiter),
                        };
                        state.flying.insert(waiting.id, flying);
                        (waiting.id, waiting.message)
                    });
                    rows.collect()
                }
            };
            if rows.is_empty() && open.is_none() {
                continue;
            }
            spot.is_flying = true;
            loads.push(Load {
                spot: number,
                topic: spot.topic.clone(),
                partition: spot.partition,
                rows,
                open,
            });
        }
        if loads.is_empty() {
            state.ready.remove(&broker);
        }
        loads
    }

    fn pack(&self, loads: Vec<Load>) -> Vec<Flight> {
        let compression = self.manner.compression;
        let flights = loads.into_iter().map(|load| {
            load.open.unwrap_or_else(|| {
                Flight::new(
                    load.spot,
                    load.topic,
                    load.partition,
                    load.rows,
                    compression,
                )
            })
        });
        flights.collect()
    }

    async fn fly(&self, broker: i32, mut flights: Vec<Flight>) {
        let fates = match self.deliver(broker, &mut flights).await {
            Ok(fates) => fates,
            Err(failure) => vec![Fate::Unknown(failure); flights.len()],
        };
        for (flight, fate) in flights.into_iter().zip(fates) {
            self.land(flight, fate);
        }
    }

    /// Sends batches, and says what became of each.
    async fn deliver(&self, broker: i32, flights: &mut [Flight]) -> Result<Vec<Fate>, Failure> {
        let session = self.cluster.session(broker, self.slot).await?;
        if self.manner.is_idempotent {
            let producer = self.producer_id().await?;
            let mut state = self.state();
            for flight in flights.iter_mut().filter(|f| f.producer.is_none()) {
                let spot = &mut state.spots[flight.spot];
                flight.producer = Some(*spot.producer.get_or_insert(producer));
                flight.first_sequence = spot.next_sequence;
            }
        }
        let timeout = self.cluster.login().request_timeout;
        let order = Flight::by_topic(flights);
        let fill = |_: i16, out: &mut Vec<u8>| {
            out.put_no_text();
            out.put_i16(self.manner.acks);
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
        if self.manner.acks == 0 {
            session.tell(PRODUCE, fill).await?;
            return Ok(vec![Fate::Written; flights.len()]);
        }
        let within = longer(timeout, ANSWER_MS);
        let answered = session.ask_within(PRODUCE, within, fill).await;
        flights.iter_mut().for_each(|flight| flight.was_sent = true);
        answered?.read(|take, version| read_fates(take, version, flights))
    }

    async fn producer_id(&self) -> Result<ProducerId, Failure> {
        let _turn = self.asking.lock().await;
        if let Some(producer) = self.state().producer {
            return Ok(producer);
        }
        let session = self.cluster.any_session().await?;
        let answer = session
            .ask(INIT_PRODUCER_ID, |_, out| {
                out.put_no_text();
                // Of transactions, of which there are none.
                out.put_i32(60_000);
            })
            .await?;
        let (code, producer) = answer.read(|take, _| {
            take.i32()?;
            let code = Code::take(take)?;
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

    /// What became of a batch.
    fn land(&self, mut flight: Flight, fate: Fate) {
        let mut state = self.state();
        let state = &mut *state;
        let number = flight.spot;
        state.spots[number].is_flying = false;
        match fate {
            Fate::Written => state.arrived(&flight),
            Fate::Unknown(failure) => {
                self.cluster.doubt(&flight.topic);
                state.fail(flight, &failure, self.manner.is_idempotent);
            }
            Fate::Forgotten(failure) => {
                // With new numbers it may be there twice; without, it would never be there.
                tracing::warn!(topic = %flight.topic, partition = flight.partition, error = %failure,
                    "a broker does not know the producer any more; a batch is sent under a new id");
                if state.producer == flight.producer {
                    state.producer = None;
                }
                flight.producer = None;
                let spot = &mut state.spots[number];
                (spot.producer, spot.next_sequence) = (None, 0);
                state.fail(flight, &failure, self.manner.is_idempotent);
            }
            Fate::Rows(why, bad) => state.refused(flight, &why, &bad),
        }
        if state.has_work(number) {
            self.kick(state, number);
        }
    }
}

impl State {
    fn spot(&mut self, topic: Arc<str>, partition: i32) -> Option<usize> {
        if let Some(number) = self.numbers.get(&(topic.clone(), partition)) {
            return Some(*number);
        }
        let number = self.spots.len();
        if number >= MAX_SPOTS {
            return None;
        }
        self.spots.push(Spot {
            topic: topic.clone(),
            partition,
            waiting: VecDeque::new(),
            open: None,
            is_ready: false,
            is_flying: false,
            max_rows: usize::MAX,
            producer: None,
            next_sequence: 0,
        });
        self.numbers.insert((topic, partition), number);
        Some(number)
    }

    fn has_work(&self, number: usize) -> bool {
        let spot = &self.spots[number];
        let is_awaited = |flight: &Flight| {
            let mut rows = flight.rows.iter();
            rows.any(|(id, _)| self.flying.get(id).is_some_and(|f| f.waiter.is_some()))
        };
        !spot.waiting.is_empty() || spot.open.as_ref().is_some_and(is_awaited)
    }

    fn arrived(&mut self, flight: &Flight) {
        let spot = &mut self.spots[flight.spot];
        spot.next_sequence = sequence_after(flight.first_sequence, flight.rows.len());
        spot.max_rows = spot.max_rows.saturating_mul(2);
        for (id, _) in &flight.rows {
            let waiter = self.flying.remove(id).and_then(|flying| flying.waiter);
            if !waiter.is_some_and(|waiter| waiter.settle(None)) {
                self.written.add(*id);
            }
        }
    }

    /// It is not known whether a batch is there. What waits behind it is given back too: it must not overtake.
    fn fail(&mut self, flight: Flight, failure: &Failure, keep: bool) {
        let number = flight.spot;
        if keep && flight.was_sent {
            self.spots[number].open = Some(flight);
        } else {
            for (id, _) in &flight.rows {
                let waiter = self.flying.remove(id).and_then(|flying| flying.waiter);
                waiter.map(|waiter| waiter.settle(Some(failure.clone())));
            }
        }
        self.tell_all(number, failure);
    }

    /// Whoever waits for something of a partition is told that it failed.
    fn tell_all(&mut self, number: usize, failure: &Failure) {
        let spot = &mut self.spots[number];
        let open = spot.open.iter().flat_map(|flight| &flight.rows);
        for (id, _) in open {
            let waiter = self.flying.get_mut(id).and_then(|f| f.waiter.take());
            waiter.map(|waiter| waiter.settle(Some(failure.clone())));
        }
        for waiting in spot.waiting.drain(..) {
            waiting.waiter.settle(Some(failure.clone()));
        }
    }

    /// The broker refuses a batch for what is in it, and says which rows are to blame, or not.
    fn refused(&mut self, flight: Flight, why: &str, bad: &[usize]) {
        let spot = &mut self.spots[flight.spot];
        let count = flight.rows.len();
        let is_to_blame = |at: usize| count == 1 || bad.contains(&at);
        if count > 1 && !(0..count).any(is_to_blame) {
            // It is in one of the halves.
            spot.max_rows = count.div_ceil(2);
        }
        // The others go again, in front of what came after them.
        for (at, (id, message)) in flight.rows.into_iter().enumerate().rev() {
            let flying = self.flying.remove(&id);
            let Some(waiter) = flying.and_then(|flying| flying.waiter) else {
                continue;
            };
            if is_to_blame(at) {
                waiter.settle(Some(Failure::of_rows(why)));
            } else {
                spot.waiting.push_front(Waiting {
                    id,
                    waiter,
                    message,
                });
            }
        }
    }
}
