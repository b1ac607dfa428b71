//! The queues of all sessions by session number. Records of one session come in runs, so the last queue is tried
//! before a look-up.

use std::collections::HashMap;

use super::session_queue::SessionQueue;

#[derive(Debug, Default)]
pub(super) struct SessionQueues {
    places: HashMap<u64, u32, foldhash::fast::RandomState>,
    slots: Vec<SessionQueue>,
    free: Vec<u32>,
    /// Session and slot of the queue that was changed last.
    last: Option<(u64, u32)>,
}

impl SessionQueues {
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn get(&self, session: u64) -> Option<&SessionQueue> {
        let &place = self.places.get(&session)?;
        Some(&self.slots[place as usize])
    }

    #[inline]
    fn place(&mut self, session: u64) -> Option<u32> {
        match self.last {
            Some((last, place)) if last == session => Some(place),
            _ => {
                let &place = self.places.get(&session)?;
                self.last = Some((session, place));
                Some(place)
            }
        }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, session: u64) -> Option<&mut SessionQueue> {
        let place = self.place(session)?;
        Some(&mut self.slots[place as usize])
    }

    /// The queue of a session, and whether it is new.
    #[inline]
    pub(super) fn get_or_insert(&mut self, session: u64) -> (&mut SessionQueue, bool) {
        let known = self.place(session);
        let place = known.unwrap_or_else(|| self.insert(session));
        (&mut self.slots[place as usize], known.is_none())
    }

    fn insert(&mut self, session: u64) -> u32 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.slots.push(SessionQueue::default());
            u32::try_from(self.slots.len() - 1).expect("fewer sessions than that fit into memory")
        });
        self.places.insert(session, place);
        self.last = Some((session, place));
        place
    }

    pub(super) fn remove(&mut self, session: u64) -> Option<SessionQueue> {
        let place = self.places.remove(&session)?;
        self.last = None;
        self.free.push(place);
        Some(std::mem::take(&mut self.slots[place as usize]))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &SessionQueue)> {
        let places = self.places.iter();
        places.map(|(&session, &place)| (session, &self.slots[place as usize]))
    }

    pub(super) fn retain(&mut self, mut is_kept: impl FnMut(&mut SessionQueue) -> bool) {
        self.last = None;
        let (slots, free) = (&mut self.slots, &mut self.free);
        self.places.retain(|_, &mut place| {
            let slot = &mut slots[place as usize];
            let stays = is_kept(slot);
            if !stays {
                *slot = SessionQueue::default();
                free.push(place);
            }
            stays
        });
        let used = self
            .places
            .values()
            .max()
            .map_or(0, |&last| last as usize + 1);
        self.slots.truncate(used);
        self.free.retain(|&place| (place as usize) < used);
    }

    pub(super) fn shrink_to_fit(&mut self) {
        self.slots.shrink_to_fit();
        self.free.shrink_to_fit();
        self.places.shrink_to_fit();
    }
}
