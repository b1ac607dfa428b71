//! The index of all rules, so that an event meets only the rules that can match it.
//!
//! For each kind of event there is a hash of whole topics, a tree of filters with wildcards, and the rules
//! without a condition on the topic. At each of these places, rules are separated into those for any client,
//! for one client id, or for one QoS. A prefilter rejects most topics without rules.
//!
//! An index is a value. A clone costs a few reference counts, and adding a rule to a clone copies only the few nodes on
//! the path to its place. Readers use the old index until they receive the new one.

mod filter_tree;
mod persistent_map;
mod placement;
mod query;
mod rule_bucket;
mod topic_prefilter;

use std::sync::Arc;

pub use query::IndexQuery;

use filter_tree::FilterNode;
use persistent_map::PersistentMap;
use placement::placements;
use rule_bucket::{IndexEntry, IndexLookup, RuleBucket};
use topic_prefilter::TopicPrefilter;

use crate::index_keys::IndexKeys;
use crate::rule_source::{EventKind, RuleSource};

const KINDS: usize = EventKind::ALL.len();

/// Rules by their conditions. `T` stands for a rule and is cheap to clone, such as an `Arc`.
#[derive(Clone)]
pub struct RuleIndex<T> {
    kinds: [Option<Arc<KindIndex<T>>>; KINDS],
    /// Rules by the name of the rule whose outputs they take.
    chained: PersistentMap<Vec<T>>,
    /// Rules by the bridge they take messages from.
    bridged: PersistentMap<Vec<T>>,
}

#[derive(Clone)]
struct KindIndex<T> {
    /// Rules without a condition on the topic.
    any_topic: RuleBucket<T>,
    prefilter: TopicPrefilter,
    exact: PersistentMap<RuleBucket<T>>,
    tree: FilterNode<T>,
}

impl<T> Default for KindIndex<T> {
    fn default() -> Self {
        Self {
            any_topic: RuleBucket::default(),
            prefilter: TopicPrefilter::default(),
            exact: PersistentMap::default(),
            tree: FilterNode::default(),
        }
    }
}

impl<T> Default for RuleIndex<T> {
    fn default() -> Self {
        Self {
            kinds: Default::default(),
            chained: PersistentMap::default(),
            bridged: PersistentMap::default(),
        }
    }
}

impl<T> RuleIndex<T> {
    /// Whether any rule selects events of a kind.
    pub fn has_rules_for(&self, kind: EventKind) -> bool {
        self.kinds[kind as usize].is_some()
    }

    /// Returns false if no rule selects an event of this kind with this topic. Costs a few nanoseconds.
    #[inline]
    pub fn may_match(&self, kind: EventKind, topic: &str) -> bool {
        let kind = self.kinds[kind as usize].as_deref();
        kind.is_some_and(|kind| !kind.any_topic.is_empty() || kind.prefilter.may_match(topic))
    }

    /// Calls `each` once for every rule that can match, in unspecified order.
    #[inline]
    pub fn matches<'a>(&'a self, lookup: &IndexQuery<'_>, mut each: impl FnMut(&'a T)) {
        let Some(kind) = &self.kinds[lookup.kind as usize] else {
            return;
        };
        let look = IndexLookup::for_query(lookup);
        kind.any_topic.matches(&look, &mut each);
        let Some(topic) = lookup.topic else { return };
        if !kind.prefilter.may_match(topic) {
            return;
        }
        if let Some(bucket) = kind.exact.get(topic) {
            bucket.matches(&look, &mut each);
        }
        if !kind.tree.is_empty() {
            kind.tree.matches(topic, &look, &mut each);
        }
    }

    /// The rules that take the outputs of a rule.
    pub fn rules_chained_to(&self, name: &str) -> &[T] {
        self.chained.get(name).map_or(&[], Vec::as_slice)
    }

    /// The rules that take the messages of a bridge, `TYPE:NAME`.
    pub fn rules_for_bridge(&self, name: &str) -> &[T] {
        self.bridged.get(name).map_or(&[], Vec::as_slice)
    }
}

impl<T: Clone> RuleIndex<T> {
    /// Adds a rule with these sources and the index keys of its WHERE.
    pub fn add(&mut self, sources: &[RuleSource], keys: &IndexKeys, value: &T) {
        self.update_named(sources, |rules| rules.push(value.clone()));
        for (kind, spots) in placements(sources, keys) {
            let kind = Arc::make_mut(self.kinds[kind as usize].get_or_insert_default());
            for spot in spots {
                if let Some(filter) = spot.filter {
                    kind.prefilter.add(filter);
                }
                let entry = IndexEntry {
                    value: value.clone(),
                    guard: spot.guard.map(Arc::new),
                    qos: keys.qos,
                };
                kind.update_bucket(spot.filter, |bucket| bucket.add(keys, &entry));
            }
        }
    }

    /// Removes what [`RuleIndex::add`] added with the same sources and keys, where `is_it` returns true.
    pub fn remove(&mut self, sources: &[RuleSource], keys: &IndexKeys, is_it: impl Fn(&T) -> bool) {
        self.update_named(sources, |rules| rules.retain(|rule| !is_it(rule)));
        for (number, spots) in placements(sources, keys) {
            let Some(kind) = &mut self.kinds[number as usize] else {
                continue;
            };
            let kind = Arc::make_mut(kind);
            for spot in spots {
                if let Some(filter) = spot.filter {
                    kind.prefilter.remove(filter);
                }
                kind.update_bucket(spot.filter, |bucket| bucket.remove(keys, &is_it));
            }
            if kind.any_topic.is_empty() && kind.exact.is_empty() && kind.tree.is_empty() {
                self.kinds[number as usize] = None;
            }
        }
    }

    fn update_named(&mut self, sources: &[RuleSource], mut change: impl FnMut(&mut Vec<T>)) {
        for (n, source) in sources.iter().enumerate() {
            let (names, name) = match source {
                _ if sources[..n].contains(source) => continue,
                RuleSource::Rule(name) => (&mut self.chained, name),
                RuleSource::Bridge(name) => (&mut self.bridged, name),
                RuleSource::Event(_) | RuleSource::Topic(_) => continue,
            };
            let rules = names.entry(name);
            change(rules);
            if rules.is_empty() {
                names.remove(name);
            }
        }
    }
}

impl<T: Clone> KindIndex<T> {
    fn update_bucket(&mut self, filter: Option<&str>, change: impl FnOnce(&mut RuleBucket<T>)) {
        match filter {
            None => change(&mut self.any_topic),
            Some(filter) if mqtt::has_wildcards(filter) => {
                self.tree.update_bucket(Some(filter), change)
            }
            Some(topic) => {
                let bucket = self.exact.entry(topic);
                change(bucket);
                if bucket.is_empty() {
                    self.exact.remove(topic);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
