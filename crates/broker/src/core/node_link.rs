//! The link of a shard to the other nodes: messages that these must get exactly once, also when nodes fail.
//!
//! A message is written into the link in the batch in which the packet id of its publisher is written. It leaves to the
//! node router when that batch is logged, by the standby of the node as well: a node that adopts the sessions then has the
//! message whenever it has the packet id. When all other nodes that want the message have logged it, it is removed. What
//! is left in the link after a start, or in the copy of a node that has failed, is sent again.
//!
//! A message that is sent again has the same [`MessageId`], so that receivers ignore it if they have it. The origin is
//! a random number of the run: if a run used the numbers of an earlier one again, for instance because its last records
//! were lost with a power failure, receivers would ignore new messages.

use std::collections::VecDeque;

use super::hash_state::{RandomState, random_number};
use hashbrown::HashMap;
use store::QueueEntry;

use super::cross_shard_batch::{CrossShardBatch, MessageId, NodeTraffic};
use super::message::Message;
use super::records::{self, NodeEntry, NodeEntryTarget};

/// Entries of one queue of the store with consecutive numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EntryRange {
    pub(crate) queue: u64,
    pub(crate) first: u64,
    pub(crate) last: u64,
}

impl EntryRange {
    pub(crate) fn of_entry(queue: u64, seq: u64) -> Self {
        Self {
            queue,
            first: seq,
            last: seq,
        }
    }
}

/// The entries of one turn, and their messages until these are forwarded.
#[derive(Debug, Default)]
struct LinkedTurn {
    /// The turn that wrote them; 0: one of an earlier run.
    turn: u64,
    entries: Vec<EntryRange>,
    batch: CrossShardBatch,
}

/// Entries whose messages other nodes have to log.
#[derive(Debug)]
struct ForwardedTurn {
    turn: u64,
    /// The turn that has forwarded them.
    forwarded_in: u64,
    entries: Vec<EntryRange>,
}

/// A message that was found in a link.
pub(crate) struct RestoredEntry {
    /// Number of the queue in the store.
    queue: u64,
    seq: u64,
    pub(crate) message: Message,
    /// A [`NodeEntry`].
    attributes: Box<[u8]>,
}

impl RestoredEntry {
    /// `None` if the entry cannot be decoded.
    pub(crate) fn read(queue: u64, entry: &QueueEntry) -> Option<Self> {
        records::read_node_entry(&entry.attributes)?;
        Some(Self {
            queue,
            seq: entry.seq,
            message: records::read_message(&entry.body)?,
            attributes: entry.attributes[..].into(),
        })
    }

    pub(crate) fn range(&self) -> EntryRange {
        EntryRange::of_entry(self.queue, self.seq)
    }

    pub(crate) fn entry(&self) -> NodeEntry<'_> {
        records::read_node_entry(&self.attributes).expect("was read before")
    }
}

/// The messages of one shard that are on their way to other nodes, and must reach them exactly once.
///
/// The owner writes the entries of the turn in progress to the store and announces them with [`push`](Self::push). Then it
/// calls [`end_turn`](Self::end_turn), [`pop_logged`](Self::pop_logged) when turns are logged,
/// [`pop_confirmed`](Self::pop_confirmed) when other nodes have logged what a turn forwarded, and removes the entries that
/// this returns.
#[derive(Debug)]
pub(crate) struct NodeLink {
    /// Number of the queue in the store.
    queue: u64,
    origin: u64,
    last_seq: u64,
    /// No lower number of this run is in the link, here or in the copy at the standby.
    first_seq: u64,
    open: LinkedTurn,
    /// Turns that are not logged.
    waiting: VecDeque<LinkedTurn>,
    waiting_bytes: usize,
    forwarded: VecDeque<ForwardedTurn>,
    /// The last turn that has forwarded messages.
    forwarded_in: u64,
    /// Turns that have removed entries, and the first number of this run that is left.
    removals: VecDeque<(u64, u64)>,
}

impl NodeLink {
    pub(crate) fn new(queue: u64) -> Self {
        Self {
            queue,
            origin: random_number(),
            last_seq: 0,
            first_seq: 1,
            open: LinkedTurn::default(),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            forwarded: VecDeque::new(),
            forwarded_in: 0,
            removals: VecDeque::new(),
        }
    }

    /// Number of the queue in the store.
    pub(crate) fn queue(&self) -> u64 {
        self.queue
    }

    /// Continues after the last entry of an earlier run.
    pub(crate) fn resume_after(&mut self, last_seq: u64) {
        self.last_seq = last_seq;
        self.first_seq = last_seq + 1;
    }

    /// The number for the next entry, and the identity of a message that is recorded for the first time.
    pub(crate) fn next_id(&mut self) -> MessageId {
        self.last_seq += 1;
        MessageId {
            origin: self.origin,
            seq: self.last_seq,
            behind: distance(self.first_seq, self.last_seq),
        }
    }

    /// The entry `seq` was written in this turn.
    pub(crate) fn push(&mut self, seq: u64, message: NodeTraffic<'_>, target: NodeEntryTarget<'_>) {
        push_entry(&mut self.open.batch, message, target);
        add_to_ranges(&mut self.open.entries, self.queue, seq);
    }

    /// The turn in progress has ended.
    pub(crate) fn end_turn(&mut self, turn: u64) {
        if self.open.entries.is_empty() {
            return;
        }
        let mut ended = std::mem::take(&mut self.open);
        ended.turn = turn;
        self.waiting_bytes += ended.batch.size();
        self.waiting.push_back(ended);
    }

    /// The next messages whose turn is logged; `now` is the turn that forwards them.
    pub(crate) fn pop_logged(&mut self, logged: u64, now: u64) -> Option<CrossShardBatch> {
        let LinkedTurn {
            turn,
            entries,
            batch,
        } = self.waiting.pop_front_if(|first| first.turn <= logged)?;
        self.waiting_bytes -= batch.size();
        self.forwarded_in = now;
        self.forwarded.push_back(ForwardedTurn {
            turn,
            forwarded_in: now,
            entries,
        });
        Some(batch)
    }

    /// Forwards messages that were found in the link after a start.
    pub(crate) fn forward_restored(
        &mut self,
        restored: &[RestoredEntry],
        now: u64,
        mut send: impl FnMut(NodeTraffic<'_>, NodeEntryTarget<'_>),
    ) {
        if restored.is_empty() {
            return;
        }
        let mut entries = Vec::new();
        let first_seqs = first_seqs(restored);
        for entry in restored {
            let NodeEntry {
                origin,
                seq,
                target,
            } = entry.entry();
            let message = NodeTraffic {
                view: &entry.message.view(),
                id: Some(id_after(origin, seq, &first_seqs)),
            };
            send(message, target);
            add_to_ranges(&mut entries, entry.queue, entry.seq);
        }
        self.forwarded_in = now;
        self.forwarded.push_back(ForwardedTurn {
            turn: 0,
            forwarded_in: now,
            entries,
        });
    }

    /// Entries whose messages all other nodes have logged that got any in the turns up to `confirmed`. They are removed in
    /// the turn `now`.
    pub(crate) fn pop_confirmed(&mut self, confirmed: u64, now: u64) -> Vec<EntryRange> {
        let mut removed = Vec::new();
        let mut first_seq = self.first_seq;
        while let Some(turn) = self
            .forwarded
            .pop_front_if(|first| first.forwarded_in <= confirmed)
        {
            for range in &turn.entries {
                if turn.turn != 0 {
                    first_seq = range.last + 1;
                }
            }
            removed.extend(turn.entries);
        }
        if first_seq > self.first_seq {
            self.removals.push_back((now, first_seq));
        }
        removed
    }

    /// Everything up to a turn is logged.
    pub(crate) fn mark_logged(&mut self, logged: u64) {
        while let Some((_, first_seq)) = self.removals.pop_front_if(|&mut (turn, _)| turn <= logged)
        {
            self.first_seq = first_seq;
        }
    }

    /// The first turn that is not complete because of its entries.
    pub(crate) fn first_unconfirmed_turn(&self) -> Option<u64> {
        let first = self.first_forwarded_turn();
        first.or_else(|| self.waiting.front().map(|waiting| waiting.turn))
    }

    /// The first turn whose messages other nodes have not logged.
    pub(crate) fn first_forwarded_turn(&self) -> Option<u64> {
        let mut turns = self.forwarded.iter().map(|forwarded| forwarded.turn);
        turns.find(|&turn| turn != 0)
    }

    /// Whether messages were forwarded in a turn.
    pub(crate) fn has_forwarded_in(&self, turn: u64) -> bool {
        self.forwarded_in == turn
    }

    /// Bytes of messages that wait for the log.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    /// Forgets all messages, because another node has adopted them; returns their entries.
    pub(crate) fn clear(&mut self) -> Vec<EntryRange> {
        let open = std::mem::take(&mut self.open).entries;
        let waiting = self.waiting.drain(..).map(|turn| turn.entries);
        let forwarded = self.forwarded.drain(..).map(|turn| turn.entries);
        let entries = forwarded.chain(waiting).flatten().chain(open).collect();
        self.waiting_bytes = 0;
        self.removals.clear();
        self.first_seq = self.last_seq + 1;
        entries
    }
}

/// Adds a message of a link to a batch for the node router.
pub(crate) fn push_entry(
    batch: &mut CrossShardBatch,
    message: NodeTraffic<'_>,
    target: NodeEntryTarget<'_>,
) {
    let (view, id) = (message.view, message.id);
    match target {
        NodeEntryTarget::All => batch.push(view, None, None, id),
        NodeEntryTarget::Member(member) => batch.push(view, Some(member), None, id),
        // Its version is its identity.
        NodeEntryTarget::RetainedCopy => batch.push_retained_copy(view),
        NodeEntryTarget::PublishedAt(node) => batch.push_published_at(message, node),
    }
}

/// The lowest number of each origin.
pub(crate) type FirstSeqs = HashMap<u64, u64, RandomState>;

pub(crate) fn first_seqs(entries: &[RestoredEntry]) -> FirstSeqs {
    let mut first_seqs = FirstSeqs::default();
    for NodeEntry { origin, seq, .. } in entries.iter().map(RestoredEntry::entry) {
        let first = first_seqs.entry(origin).or_insert(seq);
        *first = seq.min(*first);
    }
    first_seqs
}

/// The identity of a message when those before `first_seqs` will not be sent again.
pub(crate) fn id_after(origin: u64, seq: u64, first_seqs: &FirstSeqs) -> MessageId {
    let first = first_seqs.get(&origin).copied().unwrap_or(1);
    MessageId {
        origin,
        seq,
        behind: distance(first, seq),
    }
}

/// How many numbers lie between two; a link never has as many messages as the field has room for.
fn distance(first: u64, seq: u64) -> u32 {
    u32::try_from(seq.saturating_sub(first)).unwrap_or(u32::MAX)
}

fn add_to_ranges(ranges: &mut Vec<EntryRange>, queue: u64, seq: u64) {
    match ranges.last_mut() {
        Some(last) if last.queue == queue && last.last + 1 == seq => last.last = seq,
        _ => ranges.push(EntryRange::of_entry(queue, seq)),
    }
}
