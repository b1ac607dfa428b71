//! Session windows.

use std::collections::BTreeMap;

use super::Added;
use super::codec::{Damaged, Reader, key_of, put_bytes, put_u64};
use super::due::Due;
use super::group::{Close, ClosedGroup, Key, Room, Sums, read_key};
use crate::window::{Aggregate, Sample};

/// Windows that end when nothing has come for a while. Events may come late, so that a key may have several, and an event may
/// make one of two.
pub(super) struct Sessions {
    gap_ms: u64,
    keys: BTreeMap<Key, OfKey>,
    due: Due,
}

#[derive(Default)]
struct OfKey {
    /// In the order of time; never none, and always the gap apart.
    sessions: Vec<Session>,
    /// The entry of this key that counts among those to be looked at.
    due_ms: u64,
}

struct Session {
    first_ms: u64,
    last_ms: u64,
    sums: Sums,
}

impl Sessions {
    pub(super) fn new(gap_ms: u64) -> Self {
        Self {
            gap_ms: gap_ms.max(1),
            keys: BTreeMap::new(),
            due: Due::default(),
        }
    }

    pub(super) fn add(
        &mut self,
        sample: &Sample<'_>,
        closed_ms: u64,
        aggregates: &[Aggregate],
        room: &mut Room,
    ) -> Added {
        let (at_ms, gap_ms) = (sample.timestamp_ms, self.gap_ms);
        let key = key_of(sample.key);
        if let Some(of_key) = self.keys.get_mut(&key[..])
            && let Some(session) = of_key.joined(at_ms, gap_ms, closed_ms, &key, room)
        {
            return session.sums.add(sample.arguments, room);
        }
        let end_ms = at_ms.saturating_add(gap_ms);
        if end_ms <= closed_ms {
            return Added::Late;
        }
        if !room.take_group(Sums::empty_bytes(&key, aggregates)) {
            return Added::Full;
        }
        let mut sums = Sums::new(aggregates);
        let added = sums.add(sample.arguments, room);
        let session = Session {
            first_ms: at_ms,
            last_ms: at_ms,
            sums,
        };
        let of_key = self.keys.entry(key[..].into()).or_default();
        if of_key.sessions.is_empty() || end_ms < of_key.due_ms {
            of_key.due_ms = end_ms;
            self.due.push(end_ms, &key);
        }
        let before = of_key.sessions.iter().rposition(|s| s.first_ms < at_ms);
        let place = before.map_or(0, |before| before + 1);
        of_key.sessions.insert(place, session);
        added
    }

    pub(super) fn advance(&mut self, closed_ms: u64, room: &mut Room, close: Close<'_>) {
        while let Some((at_ms, key)) = self.due.pop(closed_ms) {
            let Some(of_key) = self.keys.get_mut(&key) else {
                continue;
            };
            if of_key.due_ms != at_ms {
                continue;
            }
            // The first ends first.
            if of_key.sessions[0].end_ms(self.gap_ms) <= closed_ms {
                let session = of_key.sessions.remove(0);
                session.end(&key, self.gap_ms, room, close);
            }
            match of_key.sessions.first() {
                Some(first) => {
                    of_key.due_ms = first.end_ms(self.gap_ms);
                    self.due.push(of_key.due_ms, &key);
                }
                None => {
                    self.keys.remove(&key);
                }
            }
        }
    }

    pub(super) fn due_ms(&self) -> Option<u64> {
        self.due.first_ms()
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        put_u64(self.keys.len() as u64, out);
        for (key, of_key) in &self.keys {
            put_bytes(key, out);
            put_u64(of_key.sessions.len() as u64, out);
            for session in &of_key.sessions {
                put_u64(session.first_ms, out);
                put_u64(session.last_ms, out);
                session.sums.put(out);
            }
        }
    }

    pub(super) fn read(
        &mut self,
        from: &mut Reader<'_>,
        aggregates: &[Aggregate],
        room: &mut Room,
    ) -> Result<(), Damaged> {
        for _ in 0..from.u64()? {
            let key = read_key(from)?;
            let mut sessions = Vec::new();
            for _ in 0..from.u64()? {
                let session = Session {
                    first_ms: from.u64()?,
                    last_ms: from.u64()?,
                    sums: Sums::read(from, aggregates)?,
                };
                if room.take_group(session.sums.size_bytes(&key)) {
                    sessions.push(session);
                }
            }
            if let Some(first) = sessions.first() {
                let due_ms = first.end_ms(self.gap_ms);
                self.due.push(due_ms, &key);
                self.keys.insert(key, OfKey { sessions, due_ms });
            }
        }
        Ok(())
    }
}

impl OfKey {
    /// The open session that an event is in, with all that it makes one of.
    fn joined(
        &mut self,
        at_ms: u64,
        gap_ms: u64,
        closed_ms: u64,
        key: &[u8],
        room: &mut Room,
    ) -> Option<&mut Session> {
        let is_in = |session: &Session| {
            let end_ms = session.end_ms(gap_ms);
            end_ms > closed_ms && at_ms < end_ms && session.first_ms < at_ms.saturating_add(gap_ms)
        };
        let place = self.sessions.iter().position(is_in)?;
        // It can bring two together, and no more: each is the gap from the next.
        if self.sessions.get(place + 1).is_some_and(is_in) {
            let later = self.sessions.remove(place + 1);
            room.give_group(later.sums.size_bytes(key));
            let session = &mut self.sessions[place];
            session.last_ms = session.last_ms.max(later.last_ms);
            session.sums.merge(later.sums, room);
        }
        let session = &mut self.sessions[place];
        session.first_ms = session.first_ms.min(at_ms);
        session.last_ms = session.last_ms.max(at_ms);
        Some(session)
    }
}

impl Session {
    fn end_ms(&self, gap_ms: u64) -> u64 {
        self.last_ms.saturating_add(gap_ms)
    }

    fn end(&self, key: &[u8], gap_ms: u64, room: &mut Room, close: Close<'_>) {
        room.give_group(self.sums.size_bytes(key));
        close(ClosedGroup {
            start_ms: self.first_ms,
            end_ms: self.end_ms(gap_ms),
            key,
            sums: &self.sums,
        });
    }
}
