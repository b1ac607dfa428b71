//! The rules at one place of the index: those that want any event there, and those that want one client's or one QoS.

use std::cell::OnceCell;
use std::sync::Arc;

use super::Looked;
use super::map::{Map, hash_of};

/// One rule at one place.
#[derive(Clone)]
pub(super) struct Entry<T> {
    pub(super) value: T,
    /// What else the topic has to be.
    pub(super) guard: Option<Arc<Guard>>,
    /// The QoS it wants, where it stands among others for its client id.
    pub(super) qos: Option<u8>,
}

/// Filters besides the one by which a rule is found.
#[derive(Default)]
pub(super) struct Guard {
    /// All of them match.
    pub(super) all: Box<[Box<str>]>,
    /// None of them does: else the rule has been found by that one already.
    pub(super) none: Box<[Box<str>]>,
}

impl Guard {
    fn holds(&self, topic: &str) -> bool {
        let mut all = self.all.iter();
        let mut none = self.none.iter();
        all.all(|filter| mqtt::filter_matches(filter, topic))
            && !none.any(|filter| mqtt::filter_matches(filter, topic))
    }
}

#[derive(Clone)]
pub(super) struct Bucket<T> {
    any: Vec<Entry<T>>,
    keyed: Option<Box<Keyed<T>>>,
}

#[derive(Clone)]
struct Keyed<T> {
    by_qos: [Vec<Entry<T>>; 3],
    by_client: Map<Vec<Entry<T>>>,
}

impl<T> Default for Bucket<T> {
    fn default() -> Self {
        Self {
            any: Vec::new(),
            keyed: None,
        }
    }
}

impl<T> Default for Keyed<T> {
    fn default() -> Self {
        Self {
            by_qos: Default::default(),
            by_client: Map::default(),
        }
    }
}

/// What one look into the index finds out once.
pub(super) struct Look<'a> {
    pub(super) of: &'a Looked<'a>,
    client_hash: OnceCell<u64>,
}

impl<'a> Look<'a> {
    pub(super) fn new(of: &'a Looked<'a>) -> Self {
        Self {
            of,
            client_hash: OnceCell::new(),
        }
    }
}

impl<T> Bucket<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.any.is_empty() && self.keyed.is_none()
    }

    #[inline]
    pub(super) fn matches<'a>(&'a self, look: &Look<'_>, each: &mut impl FnMut(&'a T)) {
        self.any.iter().for_each(|entry| entry.offer(look, each));
        if let Some(keyed) = &self.keyed {
            keyed.matches(look, each);
        }
    }
}

impl<T> Keyed<T> {
    fn matches<'a>(&'a self, look: &Look<'_>, each: &mut impl FnMut(&'a T)) {
        let of_qos = look
            .of
            .qos
            .and_then(|qos| self.by_qos.get(usize::from(qos)));
        for entry in of_qos.into_iter().flatten() {
            entry.offer(look, each);
        }
        if let Some(client_id) = look.of.client_id
            && !self.by_client.is_empty()
        {
            let hash = *look.client_hash.get_or_init(|| hash_of(client_id));
            for entry in self
                .by_client
                .get_hashed(hash, client_id)
                .into_iter()
                .flatten()
            {
                if entry.qos.is_none() || entry.qos == look.of.qos {
                    entry.offer(look, each);
                }
            }
        }
    }
}

impl<T> Entry<T> {
    #[inline]
    fn offer<'a>(&'a self, look: &Look<'_>, each: &mut impl FnMut(&'a T)) {
        match &self.guard {
            Some(guard) if !look.of.topic.is_some_and(|topic| guard.holds(topic)) => {}
            _ => each(&self.value),
        }
    }
}

impl<T: Clone> Bucket<T> {
    fn list(&mut self, client_id: Option<&str>, qos: Option<u8>) -> &mut Vec<Entry<T>> {
        match (client_id, qos) {
            (None, None) => &mut self.any,
            (Some(client_id), _) => {
                let keyed = self.keyed.get_or_insert_default();
                keyed.by_client.entry(client_id)
            }
            (None, Some(qos)) => {
                let keyed = self.keyed.get_or_insert_default();
                &mut keyed.by_qos[usize::from(qos.min(2))]
            }
        }
    }

    pub(super) fn add(&mut self, client_id: Option<&str>, entry: Entry<T>) {
        let list = self.list(client_id, entry.qos);
        // Most lists have one entry, and there may be very many of them.
        if list.is_empty() {
            list.reserve_exact(1);
        }
        list.push(entry);
    }

    pub(super) fn remove(
        &mut self,
        client_id: Option<&str>,
        qos: Option<u8>,
        is_it: &dyn Fn(&T) -> bool,
    ) {
        let list = self.list(client_id, qos);
        list.retain(|entry| !is_it(&entry.value));
        let is_empty = list.is_empty();
        let Some(keyed) = &mut self.keyed else { return };
        if let Some(client_id) = client_id
            && is_empty
        {
            keyed.by_client.remove(client_id);
        }
        if keyed.by_client.is_empty() && keyed.by_qos.iter().all(Vec::is_empty) {
            self.keyed = None;
        }
    }
}
