//! Session windows.

use std::collections::BTreeMap;

use super::Added;
use super::codec::{Damaged, Reader, key_of, put_bytes, put_u64};
use super::due::Due;
use super::group::{Close, ClosedGroup, Key, Room, Sums, read_key};
use crate::window::{Aggregate, Sample};

/// Windows that end when nothing has come for a while.
pub(super) struct Sessions {
    gap_ms: u64,
    groups: BTreeMap<Key, Session>,
    due: Due,
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
            groups: BTreeMap::new(),
            due: Due::default(),
        }
    }

    pub(super) fn add(
        &mut self,
        sample: &Sample<'_>,
        closed_ms: u64,
        aggregates: &[Aggregate],
        room: &mut Room,
        close: Close<'_>,
    ) -> Added {
        let at_ms = sample.timestamp_ms;
        let key = key_of(sample.key);
        if at_ms.saturating_add(self.gap_ms) <= closed_ms {
            return Added::Late;
        }
        if let Some(session) = self.groups.get_mut(&key[..]) {
            if at_ms.saturating_add(self.gap_ms) <= session.first_ms {
                // It would be a session of its own, before this one.
                return Added::Late;
            }
            if at_ms < session.last_ms.saturating_add(self.gap_ms) {
                session.first_ms = session.first_ms.min(at_ms);
                session.last_ms = session.last_ms.max(at_ms);
                return session.sums.add(sample.arguments, room);
            }
            // The key keeps its entry among those to be looked at.
            session.end(&key, self.gap_ms, room, close);
            self.groups.remove(&key[..]);
            if !room.take_group(Sums::empty_bytes(&key, aggregates)) {
                return Added::Full;
            }
        } else {
            if !room.take_group(Sums::empty_bytes(&key, aggregates)) {
                return Added::Full;
            }
            self.due.push(at_ms.saturating_add(self.gap_ms), &key);
        }
        let mut sums = Sums::new(aggregates);
        let added = sums.add(sample.arguments, room);
        let session = Session {
            first_ms: at_ms,
            last_ms: at_ms,
            sums,
        };
        self.groups.insert(key.into(), session);
        added
    }

    pub(super) fn advance(&mut self, closed_ms: u64, room: &mut Room, close: Close<'_>) {
        while let Some(key) = self.due.pop(closed_ms) {
            let Some(session) = self.groups.get(&key) else {
                continue;
            };
            let end_ms = session.last_ms.saturating_add(self.gap_ms);
            if end_ms > closed_ms {
                self.due.push(end_ms, &key);
                continue;
            }
            session.end(&key, self.gap_ms, room, close);
            self.groups.remove(&key);
        }
    }

    pub(super) fn due_ms(&self) -> Option<u64> {
        self.due.first_ms()
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        put_u64(self.groups.len() as u64, out);
        for (key, session) in &self.groups {
            put_bytes(key, out);
            put_u64(session.first_ms, out);
            put_u64(session.last_ms, out);
            session.sums.put(out);
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
            let session = Session {
                first_ms: from.u64()?,
                last_ms: from.u64()?,
                sums: Sums::read(from, aggregates)?,
            };
            if room.take_group(session.sums.size_bytes(&key)) {
                self.due
                    .push(session.last_ms.saturating_add(self.gap_ms), &key);
                self.groups.insert(key, session);
            }
        }
        Ok(())
    }
}

impl Session {
    fn end(&self, key: &[u8], gap_ms: u64, room: &mut Room, close: Close<'_>) {
        room.give_group(self.sums.size_bytes(key));
        close(ClosedGroup {
            start_ms: self.first_ms,
            end_ms: self.last_ms.saturating_add(gap_ms),
            key,
            sums: &self.sums,
        });
    }
}
