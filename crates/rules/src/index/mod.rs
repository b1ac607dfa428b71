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
mod tree;

use std::sync::Arc;

use bucket::{Bucket, Entry, Guard, Look};
use map::Map;
use sieve::Sieve;
use tree::Node;

/// Kinds of events there is room for.
pub const KINDS: usize = 16;

/// Where a rule takes its events from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place<'a> {
    /// Every event of a kind.
    Event(usize),
    /// Those whose topic matches a filter.
    Topic(usize, &'a str),
    /// What is sent to a name: another rule, a bridge.
    Named(&'a str),
}

/// What the topic has to be, besides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TopicKey {
    /// `topic = '...'`
    Is(Box<str>),
    /// `topic =~ '...'`
    Matches(Box<str>),
}

/// What every event has in common that a rule can let pass: conjuncts of its WHERE.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keys {
    pub topics: Vec<TopicKey>,
    pub client_id: Option<Box<str>>,
    pub qos: Option<u8>,
}

/// An event that looks for its rules.
#[derive(Debug, Clone, Copy)]
pub struct Looked<'a> {
    pub kind: usize,
    pub topic: Option<&'a str>,
    pub client_id: Option<&'a str>,
    pub qos: Option<u8>,
}

/// Rules by what they want. `T` stands for a rule and is cheap to clone, such as an `Arc`.
#[derive(Clone)]
pub struct Index<T> {
    kinds: [Option<Arc<Kind<T>>>; KINDS],
    named: Map<Vec<T>>,
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
            named: Map::default(),
        }
    }
}

impl<T> Index<T> {
    /// Whether any rule wants events of a kind.
    pub fn wants(&self, kind: usize) -> bool {
        self.kinds[kind].is_some()
    }

    /// Calls `each` once for every rule that can match, in no order that is promised.
    #[inline]
    pub fn matches<'a>(&'a self, looked: &Looked<'_>, mut each: impl FnMut(&'a T)) {
        let Some(kind) = &self.kinds[looked.kind] else {
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

    /// The rules that take what is sent to a name.
    pub fn named(&self, name: &str) -> &[T] {
        self.named.get(name).map_or(&[], Vec::as_slice)
    }

    /// Calls `each` with every name and the rules that take from it.
    pub fn for_each_named<'a>(&'a self, mut each: impl FnMut(&'a str, &'a [T])) {
        self.named.for_each(&mut |name, rules| each(name, rules));
    }
}

impl<T: Clone> Index<T> {
    pub fn add(&mut self, places: &[Place<'_>], keys: &Keys, value: &T) {
        self.each_name(places, |rules| rules.push(value.clone()));
        for (kind, spots) in spots_of(places, keys) {
            let kind = Arc::make_mut(self.kinds[kind].get_or_insert_default());
            for spot in spots {
                if let Some(filter) = spot.filter {
                    kind.sieve.add(filter);
                }
                let entry = Entry {
                    value: value.clone(),
                    guard: spot.guard.clone(),
                    qos: keys.qos,
                };
                kind.change(spot.filter, |bucket| {
                    bucket.add(keys.client_id.as_deref(), entry);
                });
            }
        }
    }

    /// Takes away what [`Index::add`] added with the same places and keys, where `is_it` says so.
    pub fn remove(&mut self, places: &[Place<'_>], keys: &Keys, is_it: impl Fn(&T) -> bool) {
        self.each_name(places, |rules| rules.retain(|rule| !is_it(rule)));
        for (number, spots) in spots_of(places, keys) {
            let Some(kind) = &mut self.kinds[number] else {
                continue;
            };
            let kind = Arc::make_mut(kind);
            for spot in spots {
                if let Some(filter) = spot.filter {
                    kind.sieve.remove(filter);
                }
                kind.change(spot.filter, |bucket| {
                    bucket.remove(keys.client_id.as_deref(), keys.qos, &is_it);
                });
            }
            if kind.free.is_empty() && kind.exact.is_empty() && kind.tree.is_empty() {
                self.kinds[number] = None;
            }
        }
    }

    fn each_name(&mut self, places: &[Place<'_>], mut change: impl FnMut(&mut Vec<T>)) {
        let mut seen: Vec<&str> = Vec::new();
        for place in places {
            if let Place::Named(name) = *place
                && !seen.contains(&name)
            {
                seen.push(name);
                let rules = self.named.entry(name);
                change(rules);
                if rules.is_empty() {
                    self.named.remove(name);
                }
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

/// Where a rule stands among those of one kind.
struct Spot<'a> {
    filter: Option<&'a str>,
    guard: Option<Arc<Guard>>,
}

/// The spots of a rule, by kind. For an event, at most one of them lets it through.
fn spots_of<'a>(places: &[Place<'a>], keys: &'a Keys) -> Vec<(usize, Vec<Spot<'a>>)> {
    let mut kinds: Vec<(usize, Vec<Option<&str>>)> = Vec::new();
    for place in places {
        let (kind, filter) = match *place {
            Place::Event(kind) => (kind, None),
            Place::Topic(kind, filter) => (kind, Some(filter)),
            Place::Named(_) => continue,
        };
        match kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, filters)) => filters.push(filter),
            None => kinds.push((kind, vec![filter])),
        }
    }
    let spots = |(kind, filters): (usize, Vec<Option<&'a str>>)| {
        // Who takes every event of a kind takes those of a filter too.
        let filters = match filters.contains(&None) {
            true => Vec::new(),
            false => filters.into_iter().flatten().collect(),
        };
        (kind, spots_of_kind(&filters, keys))
    };
    // A rule that nothing can match stands nowhere.
    let is_somewhere = |(_, spots): &(usize, Vec<Spot<'a>>)| !spots.is_empty();
    kinds.into_iter().map(spots).filter(is_somewhere).collect()
}

/// `filters`: one of them has to match; none: any topic will do, and none.
fn spots_of_kind<'a>(filters: &[&'a str], keys: &'a Keys) -> Vec<Spot<'a>> {
    let wanted = keys.topics.iter().map(|key| match key {
        TopicKey::Is(topic) => (true, &**topic),
        TopicKey::Matches(filter) => (false, &**filter),
    });
    let wanted: Vec<(bool, &str)> = wanted.collect();
    let matches = |is_name: bool, pattern: &str, topic: &str| match is_name {
        true => pattern == topic,
        false => mqtt::filter_matches(pattern, topic),
    };
    // One topic alone can match: whether it does is decided here.
    if let Some(&(_, topic)) = wanted.iter().find(|(is_name, _)| *is_name) {
        let in_filters = filters.is_empty()
            || (filters.iter()).any(|filter| mqtt::filter_matches(filter, topic));
        let in_wanted = |&(is_name, pattern): &(bool, &str)| matches(is_name, pattern, topic);
        return match in_filters && wanted.iter().all(in_wanted) {
            // A name with wildcards in it, such as that of a subscription, stands where nothing is asked of the topic.
            true => vec![Spot {
                filter: (!mqtt::has_wildcards(topic)).then_some(topic),
                guard: None,
            }],
            false => Vec::new(),
        };
    }
    if filters.is_empty() {
        let all: Vec<&str> = wanted.iter().map(|&(_, filter)| filter).collect();
        return vec![spot(&all, &[])];
    }
    let mut spots = Vec::new();
    for (n, filter) in filters.iter().enumerate() {
        if filters[..n].contains(filter) {
            continue;
        }
        let mut all = vec![*filter];
        all.extend(wanted.iter().map(|&(_, filter)| filter));
        spots.push(spot(&all, &filters[..n]));
    }
    spots
}

/// Stands under the most telling of the filters; the others are asked afterwards.
fn spot<'a>(all: &[&'a str], earlier: &[&str]) -> Spot<'a> {
    let telling = |filter: &&&str| {
        let has_wildcards = mqtt::has_wildcards(filter);
        let literal = mqtt::levels(filter).filter(|level| !matches!(*level, "+" | "#"));
        (!has_wildcards, literal.count(), filter.len())
    };
    let place = all.iter().max_by_key(telling).copied();
    let others = all.iter().filter(|filter| Some(**filter) != place);
    let guard = Guard {
        all: others.map(|&filter| filter.into()).collect(),
        none: earlier.iter().map(|&filter| filter.into()).collect(),
    };
    let is_needed = !guard.all.is_empty() || !guard.none.is_empty();
    Spot {
        filter: place,
        guard: is_needed.then(|| Arc::new(guard)),
    }
}

#[cfg(test)]
mod tests;
