//! Recovers the state of an earlier run from the store and distributes it to the shards before they start.

use super::hash_state::RandomState;
use hashbrown::HashMap;

use store::{StateKind, Store};

use super::node::NodeState;
use super::received_numbers::{CopiedNumbers, highest_mark};
use super::records;
use super::session_recovery::{ReceivedRecord, RecoveredDelayedMessage, RecoveredSession};
use super::shard_link::ShardLink;

/// The state recovered for one shard.
#[derive(Default)]
pub(crate) struct RecoveredShard {
    pub(crate) sessions: Vec<RecoveredSession>,
    pub(crate) delayed: Vec<RecoveredDelayedMessage>,
    /// Session numbers with messages in the log and no record: the node died while the session was created or ended.
    pub(crate) orphans: Vec<u64>,
    /// Links between shards that contain messages, and the number of the last message there.
    pub(crate) links: Vec<(ShardLink, u64)>,
    /// What it has received from other nodes.
    pub(crate) received: Vec<ReceivedRecord>,
    /// Keys of obsolete records: expired retained messages, sessions replaced by another.
    pub(crate) obsolete_keys: Vec<(StateKind, Box<[u8]>)>,
}

/// The state recovered for the node.
pub(crate) struct RecoveredNode {
    pub(crate) shards: Vec<RecoveredShard>,
    /// Above every number that was ever used.
    pub(crate) first_number: u64,
}

/// Logs the number of records that could not be decoded, by kind.
fn warn_unreadable_records(what: &str, count: u64) {
    if count > 0 {
        tracing::error!(count, "stored {what} could not be decoded; skipped");
    }
}

/// Reads the store; retained messages go directly to the retained store shared by all shards.
pub(crate) fn recover_from_store(
    store: &Store,
    node: &NodeState,
    shards: usize,
    now_ms: u64,
) -> Result<RecoveredNode, store::StoreError> {
    let mut recovered: Vec<RecoveredShard> =
        (0..shards).map(|_| RecoveredShard::default()).collect();
    let mut highest = 0;
    let places = read_sessions(store, &mut recovered, &mut highest)?;
    read_subscriptions(store, &mut recovered, &places)?;
    read_retained(store, node, now_ms, &mut recovered[0].obsolete_keys)?;
    read_delayed(store, &mut recovered, &mut highest)?;
    read_received(store, &mut recovered, &mut highest)?;
    for number in store.queued_sessions() {
        if let Some(link) = ShardLink::from_store_number(number) {
            let last_seq = store.queue(number).map_or(0, |queue| queue.last_seq);
            for shard in &mut recovered {
                shard.links.push((link, last_seq));
            }
            continue;
        }
        highest = highest.max(number);
        if !places.contains_key(&number) {
            recovered[0].orphans.push(number);
        }
    }
    Ok(RecoveredNode {
        shards: recovered,
        // Rounded so that a session's number modulo the number of shards is its shard.
        first_number: (highest + 1).next_multiple_of(shards as u64),
    })
}

/// What is adopted from the copy of another node's store.
pub(crate) struct RecoveredCopy {
    /// Sessions, delayed messages and shard links.
    pub(crate) shard: RecoveredShard,
    /// The messages of other nodes that the shards of the node had received.
    pub(crate) received: CopiedNumbers,
}

/// Reads the copy of another node's store.
pub(crate) fn read_copy(copy: &Store) -> Result<RecoveredCopy, store::StoreError> {
    let mut recovered = [RecoveredShard::default()];
    let mut highest = 0;
    let places = read_sessions(copy, &mut recovered, &mut highest)?;
    read_subscriptions(copy, &mut recovered, &places)?;
    read_delayed(copy, &mut recovered, &mut highest)?;
    let [mut recovered] = recovered;
    let links = copy.queued_sessions();
    let links = links.into_iter().filter_map(ShardLink::from_store_number);
    recovered.links = links.map(|link| (link, 0)).collect();
    Ok(RecoveredCopy {
        shard: recovered,
        received: read_copied_numbers(copy)?,
    })
}

/// Position of a session by its number: its shard, and its index there.
type SessionPositions = HashMap<u64, (usize, usize), RandomState>;

fn read_sessions(
    store: &Store,
    recovered: &mut [RecoveredShard],
    highest: &mut u64,
) -> Result<SessionPositions, store::StoreError> {
    let mut dealer = SessionAssigner {
        recovered,
        places: SessionPositions::default(),
        next: 0,
    };
    let mut unreadable = 0;
    let mut unwanted = Vec::new();
    // Keys sort by client id, so that two records of one client are adjacent.
    let mut last: Option<SessionCandidate> = None;
    store.scan(StateKind::Sessions, &mut |key, value| {
        let record = records::SessionRecord::read(value);
        let (Some(client_id), Some(record)) = (records::read_session_key(key), record) else {
            unreadable += 1;
            return;
        };
        *highest = (*highest).max(record.number);
        let candidate = SessionCandidate {
            key: key.into(),
            number: record.number,
            created_ms: record.created_ms,
            session: RecoveredSession {
                client_id: client_id.into(),
                record: value.into(),
                subscriptions: Vec::new(),
                queue: store.queue(record.number),
            },
        };
        let Some(earlier) = last.take() else {
            last = Some(candidate);
            return;
        };
        if earlier.session.client_id != candidate.session.client_id {
            dealer.assign(earlier);
            last = Some(candidate);
            return;
        }
        // The node died between the end of one session and the record of that end.
        let (older, newer) = match earlier.created_ms <= candidate.created_ms {
            true => (earlier, candidate),
            false => (candidate, earlier),
        };
        unwanted.push((StateKind::Sessions, older.key));
        last = Some(newer);
    })?;
    if let Some(last) = last {
        dealer.assign(last);
    }
    let places = dealer.places;
    recovered[0].obsolete_keys.extend(unwanted);
    warn_unreadable_records("sessions", unreadable);
    Ok(places)
}

/// A session that may be the client's last one.
struct SessionCandidate {
    key: Box<[u8]>,
    number: u64,
    created_ms: u64,
    session: RecoveredSession,
}

/// Assigns sessions to shards by their number. With an unchanged number of shards, each session returns to its shard.
struct SessionAssigner<'a> {
    recovered: &'a mut [RecoveredShard],
    places: SessionPositions,
    next: usize,
}

impl SessionAssigner<'_> {
    fn assign(&mut self, candidate: SessionCandidate) {
        let shards = self.recovered.len();
        let shard = match candidate.number {
            0 => self.next % shards,
            number => (number % shards as u64) as usize,
        };
        self.next += 1;
        let sessions = &mut self.recovered[shard].sessions;
        if candidate.number != 0 {
            self.places
                .insert(candidate.number, (shard, sessions.len()));
        }
        sessions.push(candidate.session);
    }
}

fn read_subscriptions(
    store: &Store,
    recovered: &mut [RecoveredShard],
    places: &SessionPositions,
) -> Result<(), store::StoreError> {
    let mut unreadable = 0;
    store.scan(StateKind::Subscriptions, &mut |key, value| {
        let parts = records::read_subscription_key(key);
        let (Some((number, filter)), Some((options, identifier))) =
            (parts, records::read_subscription(value))
        else {
            unreadable += 1;
            return;
        };
        match places.get(&number) {
            Some(&(shard, nth)) => {
                let session = &mut recovered[shard].sessions[nth];
                session
                    .subscriptions
                    .push((filter.into(), options, identifier));
            }
            None => recovered[0]
                .obsolete_keys
                .push((StateKind::Subscriptions, key.into())),
        }
    })?;
    warn_unreadable_records("subscriptions", unreadable);
    Ok(())
}

fn read_retained(
    store: &Store,
    node: &NodeState,
    now_ms: u64,
    unwanted: &mut Vec<(StateKind, Box<[u8]>)>,
) -> Result<(), store::StoreError> {
    let (mut unreadable, mut too_many) = (0, 0_u64);
    store.scan(StateKind::Retained, &mut |topic, value| {
        let Some(message) = records::read_message(value) else {
            unreadable += 1;
            return;
        };
        if message.is_expired(now_ms) {
            unwanted.push((StateKind::Retained, topic.into()));
        } else if node.retained.store(&message.view(), &node.limits).is_err() {
            too_many += 1;
        }
    })?;
    warn_unreadable_records("retained messages", unreadable);
    if too_many > 0 {
        tracing::error!(
            too_many,
            "limits.max_retained_messages or max_retained_bytes reached; stored retained messages skipped"
        );
    }
    Ok(())
}

fn read_delayed(
    store: &Store,
    recovered: &mut [RecoveredShard],
    highest: &mut u64,
) -> Result<(), store::StoreError> {
    let mut unreadable = 0;
    let mut next = 0;
    store.scan(StateKind::Delayed, &mut |key, value| {
        let key = records::read_delayed_key(key);
        let (Some((due_ms, number)), Some(message)) = (key, records::read_message(value)) else {
            unreadable += 1;
            return;
        };
        *highest = (*highest).max(number & !records::DELAYED_ROUTED);
        let shard = next % recovered.len();
        next += 1;
        recovered[shard].delayed.push(RecoveredDelayedMessage {
            due_ms,
            number,
            message,
        });
    })?;
    warn_unreadable_records("delayed messages", unreadable);
    Ok(())
}

fn read_received(
    store: &Store,
    recovered: &mut [RecoveredShard],
    highest: &mut u64,
) -> Result<(), store::StoreError> {
    let mut unreadable = 0;
    let shards = recovered.len();
    store.scan(StateKind::Received, &mut |key, value| {
        *highest = (*highest).max(highest_mark(value));
        match records::read_received_key(key) {
            Some(((of, shard), origin, part)) if usize::from(of) == shards => recovered
                [usize::from(shard)]
            .received
            .push((origin, part, value.into())),
            // The node had another number of shards, so that the sessions were on other ones.
            key_fields => {
                unreadable += u64::from(key_fields.is_none());
                recovered[0]
                    .obsolete_keys
                    .push((StateKind::Received, key.into()));
            }
        }
    })?;
    warn_unreadable_records("numbers of messages of other nodes", unreadable);
    Ok(())
}

fn read_copied_numbers(copy: &Store) -> Result<CopiedNumbers, store::StoreError> {
    let mut numbers = CopiedNumbers::default();
    let mut unreadable = 0;
    copy.scan(StateKind::Received, &mut |key, value| {
        let fields = records::read_received_key(key);
        let is_read = fields
            .is_some_and(|(shard, origin, part)| numbers.restore(shard, (origin, part), value));
        unreadable += u64::from(!is_read);
    })?;
    warn_unreadable_records("numbers of messages of other nodes", unreadable);
    Ok(numbers)
}
