//! The subscribers of one filter or the members of one group. A dense list to walk, with an index once it is long, so
//! that removal from a list of a hundred thousand needs no search.

use super::hash_state::RandomState;
use super::tables::SessionIx;
use hashbrown::HashMap;
use mqtt::SubscriptionOptions;

/// From this length on the list keeps an index.
const INDEXED_FROM: usize = 32;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Subscriber {
    pub(crate) session: SessionIx,
    /// Subscription identifier; 0: none.
    pub(crate) identifier: u32,
    pub(crate) options: SubscriptionOptions,
}

#[derive(Default)]
pub(crate) struct SubscriberList {
    entries: Vec<Subscriber>,
    index: Option<Box<HashMap<SessionIx, u32, RandomState>>>,
}

impl SubscriberList {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    #[inline]
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, Subscriber> {
        self.entries.iter()
    }

    pub(crate) fn get(&self, session: SessionIx) -> Option<&Subscriber> {
        self.position(session).map(|at| &self.entries[at])
    }

    pub(crate) fn get_at(&self, position: usize) -> &Subscriber {
        &self.entries[position]
    }

    fn position(&self, session: SessionIx) -> Option<usize> {
        match &self.index {
            Some(index) => index.get(&session).map(|&at| at as usize),
            None => self.entries.iter().position(|s| s.session == session),
        }
    }

    /// Adds or replaces the entry of a session; returns whether it is new.
    pub(crate) fn insert(&mut self, subscriber: Subscriber) -> bool {
        if let Some(at) = self.position(subscriber.session) {
            self.entries[at] = subscriber;
            return false;
        }
        let at = self.entries.len() as u32;
        self.entries.push(subscriber);
        if let Some(index) = &mut self.index {
            index.insert(subscriber.session, at);
        } else if self.entries.len() >= INDEXED_FROM {
            let positions = self.entries.iter().zip(0..).map(|(s, at)| (s.session, at));
            self.index = Some(Box::new(positions.collect()));
        }
        true
    }

    pub(crate) fn remove(&mut self, session: SessionIx) -> Option<Subscriber> {
        let at = self.position(session)?;
        let removed = self.entries.swap_remove(at);
        if let Some(index) = &mut self.index {
            index.remove(&session);
            if let Some(moved) = self.entries.get(at) {
                index.insert(moved.session, at as u32);
            }
            if self.entries.len() < INDEXED_FROM / 2 {
                self.index = None;
            }
        }
        Some(removed)
    }
}
