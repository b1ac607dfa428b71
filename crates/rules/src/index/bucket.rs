//! The rules at one place of the index: those that want any event there, and those that want one client's or one QoS.

use std::cell::OnceCell;
use std::sync::Arc;

use super::Looked;
use super::map::{Map, hash_of};
use crate::keys::Keys;

/// One rule at one place.
#[derive(Clone)]
pub(super) struct Entry<T> {
    pub(super) value: T,
    /// What else the topic has to be.
    pub(super) guard: Option<Arc<Guard>>,
    /// The QoS it wants, one bit for each.
    pub(super) qos: Option<u8>,
}

/// Filters besides the one by which a rule is found.
#[derive(Default)]
pub(super) struct Guard {
    /// All of them match.
    pub(super) all: Box<[Box<str>]>,
    /// Of each of these, one does not: else the rule has been found there already.
    pub(super) none: Box<[Box<[Box<str>]>]>,
}

impl Guard {
    fn holds(&self, topic: &str) -> bool {
        let all = |filters: &[Box<str>]| {
            let mut filters = filters.iter();
            filters.all(|filter| mqtt::filter_matches(filter, topic))
        };
        all(&self.all) && !self.none.iter().any(|filters| all(filters))
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
                if wants_qos(entry.qos, look.of.qos) {
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
    pub(super) fn add(&mut self, keys: &Keys, entry: &Entry<T>) {
        self.each_list(keys, |list| {
            // Most lists have one entry, and there may be very many of them.
            if list.is_empty() {
                list.reserve_exact(1);
            }
            list.push(entry.clone());
        });
    }

    pub(super) fn remove(&mut self, keys: &Keys, is_it: &dyn Fn(&T) -> bool) {
        self.each_list(keys, |list| list.retain(|entry| !is_it(&entry.value)));
    }

    /// Changes the lists where a rule with these keys stands.
    fn each_list(&mut self, keys: &Keys, mut change: impl FnMut(&mut Vec<Entry<T>>)) {
        if keys.client_ids.is_none() && keys.qos.is_none() {
            change(&mut self.any);
            return;
        }
        let keyed = self.keyed.get_or_insert_default();
        match &keys.client_ids {
            Some(client_ids) => {
                for (n, client_id) in client_ids.iter().enumerate() {
                    if client_ids[..n].contains(client_id) {
                        continue;
                    }
                    let list = keyed.by_client.entry(client_id);
                    change(list);
                    if list.is_empty() {
                        keyed.by_client.remove(client_id);
                    }
                }
            }
            None => {
                for (qos, list) in keyed.by_qos.iter_mut().enumerate() {
                    if wants_qos(keys.qos, Some(qos as u8)) {
                        change(list);
                    }
                }
            }
        }
        if keyed.by_client.is_empty() && keyed.by_qos.iter().all(Vec::is_empty) {
            self.keyed = None;
        }
    }
}

/// `wanted` has one bit for each QoS.
#[inline]
fn wants_qos(wanted: Option<u8>, qos: Option<u8>) -> bool {
    match (wanted, qos) {
        (None, _) => true,
        (Some(bits), Some(qos)) => bits & 1 << qos.min(7) != 0,
        (Some(_), None) => false,
    }
}
