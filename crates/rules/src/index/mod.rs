//! All rules in one structure, so that an event meets only those that can match it.
//!
//! For each kind of event: a hash of whole topics, a tree of filters with wildcards, and the rules that ask nothing of the
//! topic; at each place those that want any client, one client id, or one QoS. A sieve in front says of most topics that
//! nobody wants them.
//!
//! An index is a value: a clone costs a few reference counts, and a rule is added to a clone by writing anew the few nodes
//! on the way to its place. Whoever routes keeps reading the old one until it is given the new one.

mod bucket;
mod map;
mod sieve;
mod spots;
mod tree;

use std::sync::Arc;

use bucket::{Bucket, Entry, Look};
use map::Map;
use sieve::Sieve;
use spots::spots_of;
use tree::Node;

use crate::keys::Keys;
use crate::source::{EventKind, Source};

const KINDS: usize = EventKind::ALL.len();

/// An event that looks for its rules.
#[derive(Debug, Clone, Copy)]
pub struct Looked<'a> {
    pub kind: EventKind,
    pub topic: Option<&'a str>,
    pub client_id: Option<&'a str>,
    pub qos: Option<u8>,
}

/// Rules by what they want. `T` stands for a rule and is cheap to clone, such as an `Arc`.
#[derive(Clone)]
pub struct Index<T> {
    kinds: [Option<Arc<Kind<T>>>; KINDS],
    /// By the name of a rule whose outputs they take.
    chained: Map<Vec<T>>,
    /// By the bridge they take from.
    bridged: Map<Vec<T>>,
}

#[derive(Clone)]
struct Kind<T> {
    /// Rules that ask nothing of the topic.
    free: Bucket<T>,
    sieve: Sieve,
    exact: Map<Bucket<T>>,
    tree: Node<T>,
}

impl<T> Default for Kind<T> {
    fn default() -> Self {
        Self {
            free: Bucket::default(),
            sieve: Sieve::default(),
            exact: Map::default(),
            tree: Node::default(),
        }
    }
}

impl<T> Default for Index<T> {
    fn default() -> Self {
        Self {
            kinds: Default::default(),
            chained: Map::default(),
            bridged: Map::default(),
        }
    }
}

impl<T> Index<T> {
    /// Whether any rule wants events of a kind.
    pub fn wants(&self, kind: EventKind) -> bool {
        self.kinds[kind as usize].is_some()
    }

    /// False: no rule wants an event of this kind with this topic. Costs a few nanoseconds.
    #[inline]
    pub fn may_match(&self, kind: EventKind, topic: &str) -> bool {
        let kind = self.kinds[kind as usize].as_deref();
        kind.is_some_and(|kind| !kind.free.is_empty() || kind.sieve.may_match(topic))
    }

    /// Calls `each` once for every rule that can match, in no order that is promised.
    #[inline]
    pub fn matches<'a>(&'a self, looked: &Looked<'_>, mut each: impl FnMut(&'a T)) {
        let Some(kind) = &self.kinds[looked.kind as usize] else {
            return;
        };
        let look = Look::new(looked);
        kind.free.matches(&look, &mut each);
        let Some(topic) = looked.topic else { return };
        if !kind.sieve.may_match(topic) {
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
    pub fn after_rule(&self, name: &str) -> &[T] {
        self.chained.get(name).map_or(&[], Vec::as_slice)
    }

    /// The rules that take what comes in through a bridge, `TYPE:NAME`.
    pub fn from_bridge(&self, name: &str) -> &[T] {
        self.bridged.get(name).map_or(&[], Vec::as_slice)
    }
}

impl<T: Clone> Index<T> {
    /// Adds a rule with these sources, whose WHERE asks for these keys.
    pub fn add(&mut self, sources: &[Source], keys: &Keys, value: &T) {
        self.each_name(sources, |rules| rules.push(value.clone()));
        for (kind, spots) in spots_of(sources, keys) {
            let kind = Arc::make_mut(self.kinds[kind as usize].get_or_insert_default());
            for spot in spots {
                if let Some(filter) = spot.filter {
                    kind.sieve.add(filter);
                }
                let entry = Entry {
                    value: value.clone(),
                    guard: spot.guard.map(Arc::new),
                    qos: keys.qos,
                };
                kind.change(spot.filter, |bucket| bucket.add(keys, &entry));
            }
        }
    }

    /// Takes away what [`Index::add`] added with the same sources and keys, where `is_it` says so.
    pub fn remove(&mut self, sources: &[Source], keys: &Keys, is_it: impl Fn(&T) -> bool) {
        self.each_name(sources, |rules| rules.retain(|rule| !is_it(rule)));
        for (number, spots) in spots_of(sources, keys) {
            let Some(kind) = &mut self.kinds[number as usize] else {
                continue;
            };
            let kind = Arc::make_mut(kind);
            for spot in spots {
                if let Some(filter) = spot.filter {
                    kind.sieve.remove(filter);
                }
                kind.change(spot.filter, |bucket| bucket.remove(keys, &is_it));
            }
            if kind.free.is_empty() && kind.exact.is_empty() && kind.tree.is_empty() {
                self.kinds[number as usize] = None;
            }
        }
    }

    fn each_name(&mut self, sources: &[Source], mut change: impl FnMut(&mut Vec<T>)) {
        for (n, source) in sources.iter().enumerate() {
            let (names, name) = match source {
                _ if sources[..n].contains(source) => continue,
                Source::Rule(name) => (&mut self.chained, name),
                Source::Bridge(name) => (&mut self.bridged, name),
                Source::Event(_) | Source::Topic(_) => continue,
            };
            let rules = names.entry(name);
            change(rules);
            if rules.is_empty() {
                names.remove(name);
            }
        }
    }
}

impl<T: Clone> Kind<T> {
    fn change(&mut self, filter: Option<&str>, change: impl FnOnce(&mut Bucket<T>)) {
        match filter {
            None => change(&mut self.free),
            Some(filter) if mqtt::has_wildcards(filter) => self.tree.change(Some(filter), change),
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
