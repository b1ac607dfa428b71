//! Session windows.

use std::collections::BTreeMap;

use super::codec::{DecodeError, WindowReader, encode_key, put_bytes, put_u64};
use super::due_queue::DueQueue;
use super::window_group::{
    AddOutcome, CloseCallback, ClosedGroup, GroupAggregates, GroupKey, WindowBudget, read_key,
};
use crate::window::{Aggregate, WindowSample};

/// Windows that end after a time without events. Because events may arrive late, a key can have several
/// sessions, and a late event can merge two of them.
pub(super) struct SessionWindows {
    bounds: SessionLimits,
    keys: BTreeMap<GroupKey, KeySessions>,
    due: DueQueue,
}

/// Limits that end a session.
#[derive(Clone, Copy)]
struct SessionLimits {
    gap_ms: u64,
    /// Maximum length from the first event to the end; `u64::MAX` if unlimited.
    max_ms: u64,
}

#[derive(Default)]
struct KeySessions {
    /// In order of time and never empty. Sessions are at least the gap apart, unless one has reached its
    /// maximum length.
    sessions: Vec<SessionWindow>,
    /// The due time in the queue that is valid for this key; other entries of the key are outdated.
    due_ms: u64,
}

struct SessionWindow {
    first_ms: u64,
    last_ms: u64,
    sums: GroupAggregates,
}

impl SessionWindows {
    pub(super) fn new(gap_ms: u64, max_ms: Option<u64>) -> Self {
        let gap_ms = gap_ms.max(1);
        Self {
            bounds: SessionLimits {
                gap_ms,
                max_ms: max_ms.map_or(u64::MAX, |max_ms| max_ms.max(gap_ms)),
            },
            keys: BTreeMap::new(),
            due: DueQueue::default(),
        }
    }

    pub(super) fn add(
        &mut self,
        sample: &WindowSample<'_>,
        closed_ms: u64,
        aggregates: &[Aggregate],
        room: &mut WindowBudget,
    ) -> AddOutcome {
        let (at_ms, bounds) = (sample.timestamp_ms, self.bounds);
        let key = encode_key(sample.key);
        if let Some(of_key) = self.keys.get_mut(&key[..])
            && let Some(session) = of_key.merge_overlapping(at_ms, bounds, closed_ms, &key, room)
        {
            let (added, end_ms) = (
                session.sums.add(sample.arguments, room),
                session.end_ms(bounds),
            );
            // An earlier event moves the end of a session of maximum length forward.
            if end_ms < of_key.due_ms {
                of_key.due_ms = end_ms;
                self.due.push(end_ms, &key);
            }
            return added;
        }
        let end_ms = at_ms.saturating_add(bounds.gap_ms);
        if end_ms <= closed_ms {
            return AddOutcome::Late;
        }
        if !room.try_reserve_group(GroupAggregates::empty_bytes(&key, aggregates)) {
            return AddOutcome::Full;
        }
        let mut sums = GroupAggregates::new(aggregates);
        let added = sums.add(sample.arguments, room);
        let session = SessionWindow {
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

    pub(super) fn advance(
        &mut self,
        closed_ms: u64,
        room: &mut WindowBudget,
        close: CloseCallback<'_>,
    ) {
        while let Some((at_ms, key)) = self.due.pop(closed_ms) {
            let Some(of_key) = self.keys.get_mut(&key) else {
                continue;
            };
            if of_key.due_ms != at_ms {
                continue;
            }
            // The first session ends first.
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
        from: &mut WindowReader<'_>,
        aggregates: &[Aggregate],
        room: &mut WindowBudget,
    ) -> Result<(), DecodeError> {
        for _ in 0..from.u64()? {
            let key = read_key(from)?;
            let mut sessions = Vec::new();
            for _ in 0..from.u64()? {
                let session = SessionWindow {
                    first_ms: from.u64()?,
                    last_ms: from.u64()?,
                    sums: GroupAggregates::read(from, aggregates)?,
                };
                if room.try_reserve_group(session.sums.size_bytes(&key)) {
                    sessions.push(session);
                }
            }
            if let Some(first) = sessions.first() {
                let due_ms = first.end_ms(self.bounds);
                self.due.push(due_ms, &key);
                self.keys.insert(key, KeySessions { sessions, due_ms });
            }
        }
        Ok(())
    }
}

impl KeySessions {
    /// Returns the open session that contains the event, after merging all sessions that the event connects.
    fn merge_overlapping(
        &mut self,
        at_ms: u64,
        bounds: SessionLimits,
        closed_ms: u64,
        key: &[u8],
        room: &mut WindowBudget,
    ) -> Option<&mut SessionWindow> {
        let is_in = |session: &SessionWindow| {
            let end_ms = session.end_ms(bounds);
            end_ms > closed_ms
                && at_ms < end_ms
                && session.first_ms < at_ms.saturating_add(bounds.gap_ms)
                && session.last_ms.saturating_sub(at_ms) < bounds.max_ms
        };
        let place = self.sessions.iter().position(is_in)?;
        // An event connects at most two sessions, because sessions are at least the gap apart.
        let makes_one = |later: &SessionWindow| {
            let length_ms = later.last_ms - self.sessions[place].first_ms.min(at_ms);
            is_in(later) && length_ms < bounds.max_ms
        };
        if self.sessions.get(place + 1).is_some_and(makes_one) {
            let later = self.sessions.remove(place + 1);
            room.release_group(later.sums.size_bytes(key));
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

impl SessionWindow {
    fn end_ms(&self, bounds: SessionLimits) -> u64 {
        let longest_ms = self.first_ms.saturating_add(bounds.max_ms);
        self.last_ms.saturating_add(bounds.gap_ms).min(longest_ms)
    }

    fn end(
        &self,
        key: &[u8],
        bounds: SessionLimits,
        room: &mut WindowBudget,
        close: CloseCallback<'_>,
    ) {
        room.release_group(self.sums.size_bytes(key));
        close(ClosedGroup {
            start_ms: self.first_ms,
            end_ms: self.end_ms(bounds),
            key,
            sums: &self.sums,
        });
    }
}
