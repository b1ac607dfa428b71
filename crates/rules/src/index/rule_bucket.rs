//! The rules at one place of the index: for any event there, for one client, or for one QoS.

use std::cell::OnceCell;
use std::sync::Arc;

use super::persistent_map::{PersistentMap, hash_of};
use super::query::IndexQuery;
use crate::index_keys::IndexKeys;

/// One rule at one place.
#[derive(Clone)]
pub(super) struct IndexEntry<T> {
    pub(super) value: T,
    /// Further conditions on the topic.
    pub(super) guard: Option<Arc<TopicGuard>>,
    /// The accepted QoS levels, one bit each.
    pub(super) qos: Option<u8>,
}

/// Filters in addition to the one at which a rule is placed.
#[derive(Default)]
pub(super) struct TopicGuard {
    /// All of them must match.
    pub(super) all: Box<[Box<str>]>,
    /// In each of these lists one filter must not match; otherwise the rule was already found at another
    /// place.
    pub(super) none: Box<[Box<[Box<str>]>]>,
}

impl TopicGuard {
    fn matches_topic(&self, topic: &str) -> bool {
        let all = |filters: &[Box<str>]| {
            let mut filters = filters.iter();
            filters.all(|filter| mqtt::filter_matches(filter, topic))
        };
        all(&self.all) && !self.none.iter().any(|filters| all(filters))
    }
}

#[derive(Clone)]
pub(super) struct RuleBucket<T> {
    any: Vec<IndexEntry<T>>,
    keyed: Option<Box<KeyedRules<T>>>,
}

#[derive(Clone)]
struct KeyedRules<T> {
    by_qos: [Vec<IndexEntry<T>>; 3],
    by_client: PersistentMap<Vec<IndexEntry<T>>>,
}

impl<T> Default for RuleBucket<T> {
    fn default() -> Self {
        Self {
            any: Vec::new(),
            keyed: None,
        }
    }
}

impl<T> Default for KeyedRules<T> {
    fn default() -> Self {
        Self {
            by_qos: Default::default(),
            by_client: PersistentMap::default(),
        }
    }
}

/// Values computed once per lookup.
pub(super) struct IndexLookup<'a> {
    pub(super) query: &'a IndexQuery<'a>,
    client_hash: OnceCell<u64>,
}

impl<'a> IndexLookup<'a> {
    pub(super) fn for_query(of: &'a IndexQuery<'a>) -> Self {
        Self {
            query: of,
            client_hash: OnceCell::new(),
        }
    }
}

impl<T> RuleBucket<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.any.is_empty() && self.keyed.is_none()
    }

    /// Inlined at its three places, because nearly every bucket has one rule or none.
    #[inline(always)]
    pub(super) fn matches<'a>(&'a self, look: &IndexLookup<'_>, each: &mut impl FnMut(&'a T)) {
        self.any
            .iter()
            .for_each(|entry| entry.match_guarded(look, each));
        if let Some(keyed) = &self.keyed {
            keyed.matches(look, each);
        }
    }
}

impl<T> KeyedRules<T> {
    fn matches<'a>(&'a self, look: &IndexLookup<'_>, each: &mut impl FnMut(&'a T)) {
        let of_qos = look
            .query
            .qos
            .and_then(|qos| self.by_qos.get(usize::from(qos)));
        for entry in of_qos.into_iter().flatten() {
            entry.match_guarded(look, each);
        }
        if let Some(client_id) = look.query.client_id
            && !self.by_client.is_empty()
        {
            let hash = *look.client_hash.get_or_init(|| hash_of(client_id));
            for entry in self
                .by_client
                .get_hashed(hash, client_id)
                .into_iter()
                .flatten()
            {
                if matches_qos(entry.qos, look.query.qos) {
                    entry.match_guarded(look, each);
                }
            }
        }
    }
}

impl<T> IndexEntry<T> {
    #[inline]
    fn match_guarded<'a>(&'a self, look: &IndexLookup<'_>, each: &mut impl FnMut(&'a T)) {
        match &self.guard {
            Some(guard)
                if !look
                    .query
                    .topic
                    .is_some_and(|topic| guard.matches_topic(topic)) => {}
            _ => each(&self.value),
        }
    }
}

impl<T: Clone> RuleBucket<T> {
    pub(super) fn add(&mut self, keys: &IndexKeys, entry: &IndexEntry<T>) {
        self.update_lists(keys, |list| {
            // Most lists have one entry, and there may be very many lists.
            if list.is_empty() {
                list.reserve_exact(1);
            }
            list.push(entry.clone());
        });
    }

    pub(super) fn remove(&mut self, keys: &IndexKeys, is_it: &dyn Fn(&T) -> bool) {
        self.update_lists(keys, |list| list.retain(|entry| !is_it(&entry.value)));
    }

    /// Changes the lists that contain a rule with these keys.
    fn update_lists(&mut self, keys: &IndexKeys, mut change: impl FnMut(&mut Vec<IndexEntry<T>>)) {
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
                    if matches_qos(keys.qos, Some(qos as u8)) {
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
fn matches_qos(wanted: Option<u8>, qos: Option<u8>) -> bool {
    match (wanted, qos) {
        (None, _) => true,
        (Some(bits), Some(qos)) => bits & 1 << qos.min(7) != 0,
        (Some(_), None) => false,
    }
}
