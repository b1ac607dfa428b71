//! Interface for queued messages kept in another server than this store ([`QueueBackend`]), and the groups it is given.
//!
//! One thread uses a backend and blocks in it. Groups are numbered, and the backend stores the number together with the group.
//! A group whose outcome is unknown can therefore be repeated and is applied once. Keyed state and objects stay embedded.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Place;

use foldhash::fast::RandomState;

use crate::log::record::{LogRecord, LogRecords};
use crate::queue::{QueueFetch, QueuePage, QueueSummary};

/// Why a backend call failed, as text for the log. Contains no passwords.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BackendError(pub String);

impl BackendError {
    pub fn new(why: impl std::fmt::Display) -> Self {
        Self(why.to_string())
    }
}

/// A server that keeps queued messages. After an error, the next call reconnects.
pub trait QueueBackend: Send {
    /// Display name: "Redis at host:port".
    fn name(&self) -> String;

    /// Claims the server's queues for this owner, whose name does not change; fails if another owner holds them. Returns the
    /// queue of each session, and the number of the last applied group, 0 if there is none.
    fn recover(
        &mut self,
        owner: &str,
        each: &mut dyn FnMut(u64, QueueSummary),
    ) -> Result<u64, BackendError>;

    /// Applies a whole group or nothing. After an error the same group may come again and must not count twice. Groups come
    /// in the order of their numbers, without gaps.
    fn apply(&mut self, group: &QueueGroup<'_>) -> Result<(), BackendError>;

    /// Removes the queues of these sessions. May be done in part before an error; the same sessions are then passed again.
    fn end_sessions(&mut self, sessions: &[u64]) -> Result<(), BackendError>;

    /// Returns one page for each request, in the same order.
    fn fetch(&mut self, wanted: &[QueueFetch]) -> Result<Vec<QueuePage>, BackendError>;
}

/// Changes of queues, without changes that cancel each other within the group.
#[derive(Debug, Default)]
pub struct QueueGroup<'a> {
    /// Increases by one from group to group.
    pub number: u64,
    pub messages: Vec<NewMessage<'a>>,
    /// By session, then by sequence number.
    pub entries: Vec<NewEntry<'a>>,
    /// Changes of existing entries, by session, then by sequence number.
    pub changes: Vec<EntryChange>,
    /// QoS 2 packet ids of clients: received (`true`) or free again; by session.
    pub received: Vec<(u64, u16, bool)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewMessage<'a> {
    pub body: &'a [u8],
    /// Number of the group's entries that refer to it; 0: it need not be stored.
    pub entries: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewEntry<'a> {
    pub session: u64,
    pub seq: u64,
    /// 0: not sent yet.
    pub packet_id: u16,
    pub released: bool,
    pub attributes: &'a [u8],
    /// Index into the group's messages.
    pub message: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryChange {
    pub session: u64,
    pub seq: u64,
    /// 0: marked as not sent again.
    pub packet_id: Option<u16>,
    pub released: bool,
    /// The entry is removed, whatever the other fields are.
    pub done: bool,
}

/// Builds a group from the records of batches.
#[derive(Default)]
pub(crate) struct QueueGroupBuilder<'a> {
    messages: Vec<NewMessage<'a>>,
    /// `None`: added and removed within the group.
    entries: Vec<Option<NewEntry<'a>>>,
    changes: Vec<EntryChange>,
    known: HashMap<(u64, u64), KnownEntry, RandomState>,
    received: HashMap<(u64, u16), bool, RandomState>,
    pub(crate) ended_sessions: Vec<u64>,
    /// Net change in the number of entries of each session.
    pub(crate) counts: Vec<(u64, i64)>,
}

#[derive(Clone, Copy)]
enum KnownEntry {
    New(usize),
    Changed(usize),
}

impl<'a> QueueGroupBuilder<'a> {
    /// Adds a batch's records; `false` if it contains an invalid record, at which reading stops.
    pub(crate) fn add(&mut self, records: &'a [u8]) -> bool {
        let before = self.messages.len();
        for record in LogRecords::new(records) {
            let Some(record) = record else {
                return false;
            };
            match record {
                LogRecord::Message { body, .. } => {
                    self.messages.push(NewMessage { body, entries: 0 });
                }
                LogRecord::Entry {
                    session,
                    seq,
                    packet_id,
                    released,
                    attributes,
                    ..
                } => {
                    if self.messages.len() == before {
                        return false;
                    }
                    self.add_entry(NewEntry {
                        session,
                        seq,
                        packet_id,
                        released,
                        attributes,
                        message: self.messages.len() as u32 - 1,
                    });
                }
                LogRecord::Sent {
                    session,
                    seq,
                    packet_id,
                } => match self.entry_or_change(session, seq) {
                    Ok(entry) => entry.packet_id = packet_id,
                    Err(change) => change.packet_id = Some(packet_id),
                },
                LogRecord::Released { session, seq } => match self.entry_or_change(session, seq) {
                    Ok(entry) => entry.released = true,
                    Err(change) => change.released = true,
                },
                LogRecord::Done { session, seq } => self.complete_entry(session, seq),
                LogRecord::Received { session, packet_id } => {
                    self.received.insert((session, packet_id), true);
                }
                LogRecord::Forgotten { session, packet_id } => {
                    self.received.insert((session, packet_id), false);
                }
                LogRecord::End { session } => self.ended_sessions.push(session),
                LogRecord::Put { .. } | LogRecord::Delete { .. } => {}
            }
        }
        true
    }

    fn add_entry(&mut self, entry: NewEntry<'a>) {
        self.messages[entry.message as usize].entries += 1;
        self.counts.push((entry.session, 1));
        let at = self.entries.len();
        let earlier = self
            .known
            .insert((entry.session, entry.seq), KnownEntry::New(at));
        if let Some(KnownEntry::New(earlier)) = earlier {
            self.cancel_entry(earlier);
        }
        self.entries.push(Some(entry));
    }

    fn cancel_entry(&mut self, at: usize) {
        if let Some(entry) = self.entries[at].take() {
            self.messages[entry.message as usize].entries -= 1;
            self.counts.push((entry.session, -1));
        }
    }

    /// The entry if it is new in this group, else its change.
    fn entry_or_change(
        &mut self,
        session: u64,
        seq: u64,
    ) -> Result<&mut NewEntry<'a>, &mut EntryChange> {
        let at = match self.known.entry((session, seq)) {
            Place::Occupied(known) => *known.get(),
            Place::Vacant(place) => {
                self.changes.push(EntryChange {
                    session,
                    seq,
                    packet_id: None,
                    released: false,
                    done: false,
                });
                *place.insert(KnownEntry::Changed(self.changes.len() - 1))
            }
        };
        match at {
            KnownEntry::New(at) => Ok(self.entries[at].as_mut().expect("known entries are there")),
            KnownEntry::Changed(at) => Err(&mut self.changes[at]),
        }
    }

    fn complete_entry(&mut self, session: u64, seq: u64) {
        if let Some(&KnownEntry::New(at)) = self.known.get(&(session, seq)) {
            self.known.remove(&(session, seq));
            return self.cancel_entry(at);
        }
        if let Err(change) = self.entry_or_change(session, seq)
            && !std::mem::replace(&mut change.done, true)
        {
            self.counts.push((session, -1));
        }
    }

    pub(crate) fn finish(self, number: u64) -> QueueGroup<'a> {
        let mut entries: Vec<_> = self.entries.into_iter().flatten().collect();
        entries.sort_unstable_by_key(|entry| (entry.session, entry.seq));
        let mut changes = self.changes;
        changes.sort_unstable_by_key(|change| (change.session, change.seq));
        let received = self.received.into_iter();
        let mut received: Vec<_> = received.map(|((s, id), is)| (s, id, is)).collect();
        received.sort_unstable();
        QueueGroup {
            number,
            messages: self.messages,
            entries,
            changes,
            received,
        }
    }
}

impl QueueGroup<'_> {
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.changes.is_empty() && self.received.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{FRAME_HEAD, StoreBatch};

    #[test]
    fn what_takes_itself_back_is_left_out() {
        let mut batch = StoreBatch::default();
        batch.begin_message(&[b"for both"]);
        batch.add_entry(1, 10, 0, b"a");
        batch.add_entry(2, 20, 7, b"b");
        batch.begin_message(&[b"gone"]);
        batch.add_entry(1, 11, 3, b"c");
        batch.complete_entry(1, 11);
        batch.mark_sent(1, 10, 5);
        batch.mark_released(2, 20);
        batch.mark_sent(1, 4, 9);
        batch.mark_released(1, 3);
        batch.complete_entry(1, 3);
        batch.add_received_id(1, 1);
        batch.add_received_id(1, 2);
        batch.remove_received_id(1, 1);
        batch.end_session(8);
        let mut builder = QueueGroupBuilder::default();
        assert!(builder.add(&batch.bytes[FRAME_HEAD..]));
        assert_eq!(builder.ended_sessions, [8]);
        let group = builder.finish(1);
        let counts: Vec<_> = group.messages.iter().map(|m| m.entries).collect();
        assert_eq!(counts, [2, 0]);
        let entries: Vec<_> = group
            .entries
            .iter()
            .map(|e| (e.session, e.seq, e.packet_id, e.released))
            .collect();
        assert_eq!(entries, [(1, 10, 5, false), (2, 20, 7, true)]);
        let changes: Vec<_> = group
            .changes
            .iter()
            .map(|c| (c.seq, c.packet_id, c.done))
            .collect();
        assert_eq!(changes, [(3, None, true), (4, Some(9), false)]);
        assert_eq!(group.received, [(1, 1, false), (1, 2, true)]);
    }
}
