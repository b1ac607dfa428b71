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
    bounds: SessionBounds,
    keys: BTreeMap<Key, OfKey>,
    due: Due,
}

/// When a session ends.
#[derive(Clone, Copy)]
struct SessionBounds {
    gap_ms: u64,
    /// From the first event to the end; the greatest number if there is no such bound.
    max_ms: u64,
}

#[derive(Default)]
struct OfKey {
    /// In the order of time; never none, and the gap apart unless one was as long as it may be.
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
    pub(super) fn new(gap_ms: u64, max_ms: Option<u64>) -> Self {
        let gap_ms = gap_ms.max(1);
        Self {
            bounds: SessionBounds {
                gap_ms,
                max_ms: max_ms.map_or(u64::MAX, |max_ms| max_ms.max(gap_ms)),
            },
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
        let (at_ms, bounds) = (sample.timestamp_ms, self.bounds);
        let key = key_of(sample.key);
        if let Some(of_key) = self.keys.get_mut(&key[..])
            && let Some(session) = of_key.joined(at_ms, bounds, closed_ms, &key, room)
        {
            let (added, end_ms) = (
                session.sums.add(sample.arguments, room),
                session.end_ms(bounds),
            );
            // An earlier event makes a session end earlier that is as long as it may be.
            if end_ms < of_key.due_ms {
                of_key.due_ms = end_ms;
                self.due.push(end_ms, &key);
            }
            return added;
        }
        let end_ms = at_ms.saturating_add(bounds.gap_ms);
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
            if of_key.sessions[0].end_ms(self.bounds) <= closed_ms {
                let session = of_key.sessions.remove(0);
                session.end(&key, self.bounds, room, close);
            }
            match of_key.sessions.first() {
                Some(first) => {
                    of_key.due_ms = first.end_ms(self.bounds);
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
                let due_ms = first.end_ms(self.bounds);
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
        bounds: SessionBounds,
        closed_ms: u64,
        key: &[u8],
        room: &mut Room,
    ) -> Option<&mut Session> {
        let is_in = |session: &Session| {
            let end_ms = session.end_ms(bounds);
            end_ms > closed_ms
                && at_ms < end_ms
                && session.first_ms < at_ms.saturating_add(bounds.gap_ms)
                && session.last_ms.saturating_sub(at_ms) < bounds.max_ms
        };
        let place = self.sessions.iter().position(is_in)?;
        // It can bring two together, and no more: each is the gap from the next.
        let makes_one = |later: &Session| {
            let length_ms = later.last_ms - self.sessions[place].first_ms.min(at_ms);
            is_in(later) && length_ms < bounds.max_ms
        };
        if self.sessions.get(place + 1).is_some_and(makes_one) {
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
    fn end_ms(&self, bounds: SessionBounds) -> u64 {
        let longest_ms = self.first_ms.saturating_add(bounds.max_ms);
        self.last_ms.saturating_add(bounds.gap_ms).min(longest_ms)
    }

    fn end(&self, key: &[u8], bounds: SessionBounds, room: &mut Room, close: Close<'_>) {
        room.give_group(self.sums.size_bytes(key));
        close(ClosedGroup {
            start_ms: self.first_ms,
            end_ms: self.end_ms(bounds),
            key,
            sums: &self.sums,
        });
    }
}
