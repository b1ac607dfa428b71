//! The subscription tree of one shard: which of its sessions, and which other shards, subscribe to a topic.
//!
//! Every filter subscribed to anywhere on the node has one [`FilterEntry`]. Filters without wildcards are found by one
//! hash look-up of the whole topic; filters with wildcards are in a trie by level. Results are kept in a bounded cache
//! by topic, since most publishers repeat their topics. Filters of other nodes are not in the tree, but in a
//! [`RemoteInterest`], which is asked when a result is computed.
//!
//! Invariants:
//! - a filter exists exactly as long as it has a subscriber here, a group member anywhere, or a bit of another shard;
//! - a trie node exists exactly as long as a wildcard filter ends at or below it;
//! - a cache entry is valid if its `generation` is the tree's, or if no wildcard filter that changed since then matches
//!   its topic. Each change of a wildcard filter or of its subscribers advances the generation and is listed in
//!   `recent_changes`. A change of a filter without wildcards only removes the entry of its own topic. The same applies to
//!   filters of the remote interest.

use super::hash_state::RandomState;
use hashbrown::{HashMap, HashTable};
use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::rc::Rc;

use super::match_set::{DeliveryTarget, FilterEntry, LocalTargets, MatchSet};
use super::remote_interest::{NoRemoteInterest, RemoteInterest};
use super::shared_subscription::SubscriptionGroup;
use super::subscriber_list::{Subscriber, SubscriberList};
use super::tables::{FilterId, GroupId, SessionIx, Table, table_ix};
use mqtt::{SubscriptionFilter, SubscriptionOptions};

/// The offset behind the last level of a topic.
const TOPIC_END: u32 = u32::MAX;

table_ix! {
    /// Index of a trie node.
    struct NodeIx
}

/// The node above the first level; it always exists.
const ROOT: NodeIx = NodeIx(0);

/// Topics whose result is cached.
const CACHE_TOPICS: usize = 32 * 1024;
/// Merged targets over all cached results; limits the product of many topics and many overlapping subscribers.
const CACHE_TARGETS: usize = 1 << 20;

/// Changes of wildcard filters that cache entries are compared with before they are computed again.
const RECENT_CHANGES: usize = 64;

#[derive(Default)]
struct FilterNode {
    children: HashMap<Box<str>, NodeIx, RandomState>,
    plus: Option<NodeIx>,
    /// The filter that ends here, and the one that ends here with a further `#`.
    filter: Option<FilterId>,
    hash_filter: Option<FilterId>,
}

impl FilterNode {
    fn is_empty(&self) -> bool {
        self.children.is_empty()
            && self.plus.is_none()
            && self.filter.is_none()
            && self.hash_filter.is_none()
    }
}

struct CachedMatch {
    topic: Box<str>,
    generation: u64,
    set: MatchSet,
}

/// The filters of a shard and who subscribes to them.
///
/// It owns filters and groups, and the cache of results. It sends no notifications: the caller announces changes to the other
/// shards.
///
/// - [`find_or_insert`](Self::find_or_insert) and [`find_or_insert_group`](Self::find_or_insert_group) create entries
///   without subscribers. The caller adds one, or removes the entry again with
///   [`remove_if_unused`](Self::remove_if_unused) or [`remove_group_if_unused`](Self::remove_group_if_unused); it also
///   calls these after removing a subscriber.
/// - [`change_remote_filter`](Self::change_remote_filter) and
///   [`change_remote_filters`](Self::change_remote_filters) change the remote interest.
/// - [`match_topic`](Self::match_topic) returns the receivers of a message, from the cache if possible.
pub(crate) struct SubscriptionTree<R = NoRemoteInterest> {
    pub(crate) filters: Table<FilterId, FilterEntry>,
    pub(crate) groups: Table<GroupId, SubscriptionGroup>,
    by_text: HashTable<FilterId>,
    nodes: Table<NodeIx, FilterNode>,
    wildcard_filters: usize,
    /// Its bits are those of `remote_shards`.
    remote_interest: R,
    hasher: RandomState,
    cache: HashTable<CachedMatch>,
    cached_targets: usize,
    /// Bucket of the topic that was found last in the cache: messages of one publisher often follow each other.
    last_bucket: usize,
    generation: u64,
    /// The wildcard filters of the latest generations, the newest at the end.
    recent_changes: VecDeque<Rc<str>>,
    /// Hashes of recently missed topics. A topic is cached on its second miss, so that a stream of topics that never
    /// repeat does not fill the cache.
    recent_misses: Box<[u32]>,
    /// The result of a match that is not cached.
    uncached_match: MatchSet,
    matching: Vec<FilterId>,
    /// Nodes to be visited, each with the byte offset of the level to match there, or [`TOPIC_END`].
    pending: Vec<(NodeIx, u32)>,
    /// Number of results that were not taken from the cache.
    #[cfg(test)]
    pub(crate) computed: u64,
}

impl<R: Default> Default for SubscriptionTree<R> {
    fn default() -> Self {
        let mut nodes = Table::default();
        nodes.insert(FilterNode::default());
        Self {
            filters: Table::default(),
            groups: Table::default(),
            by_text: HashTable::new(),
            nodes,
            wildcard_filters: 0,
            remote_interest: R::default(),
            hasher: RandomState::default(),
            cache: HashTable::new(),
            cached_targets: 0,
            last_bucket: 0,
            generation: 0,
            recent_changes: VecDeque::with_capacity(RECENT_CHANGES),
            recent_misses: vec![0; 4096].into_boxed_slice(),
            uncached_match: MatchSet {
                local_targets: LocalTargets::None,
                groups: Box::default(),
                remote_shards: 0,
            },
            matching: Vec::new(),
            pending: Vec::new(),
            #[cfg(test)]
            computed: 0,
        }
    }
}

impl<R: RemoteInterest> SubscriptionTree<R> {
    pub(crate) fn find(&self, text: &str) -> Option<FilterId> {
        let filters = &self.filters;
        self.by_text
            .find(self.hasher.hash_one(text), |&id| *filters[id].text == *text)
            .copied()
    }

    pub(crate) fn filter(&self, id: FilterId) -> &FilterEntry {
        &self.filters[id]
    }

    pub(crate) fn filter_mut(&mut self, id: FilterId) -> &mut FilterEntry {
        &mut self.filters[id]
    }

    pub(crate) fn group(&self, id: GroupId) -> &SubscriptionGroup {
        &self.groups[id]
    }

    pub(crate) fn group_mut(&mut self, id: GroupId) -> &mut SubscriptionGroup {
        &mut self.groups[id]
    }

    /// Returns the entry of `text` and creates it if there is none. A caller that created it must add something to it.
    pub(crate) fn find_or_insert(&mut self, text: &str) -> FilterId {
        if let Some(id) = self.find(text) {
            return id;
        }
        let id = self.filters.insert(FilterEntry {
            text: text.into(),
            subscribers: SubscriberList::default(),
            groups: Vec::new(),
            remote_shards: 0,
            announced_sequence: 0,
        });
        let (filters, hasher) = (&self.filters, &self.hasher);
        self.by_text
            .insert_unique(hasher.hash_one(text), id, |&id| {
                hasher.hash_one(&*filters[id].text)
            });
        if mqtt::has_wildcards(text) {
            self.insert_wildcard(self.filters[id].text.clone(), id);
        } else {
            self.evict_topic(text);
        }
        id
    }

    /// Removes the entry if it is no longer used.
    pub(crate) fn remove_if_unused(&mut self, id: FilterId) {
        let filter = &self.filters[id];
        if !filter.subscribers.is_empty() || !filter.groups.is_empty() || filter.remote_shards != 0
        {
            return;
        }
        let text = filter.text.clone();
        if let Ok(entry) = self
            .by_text
            .find_entry(self.hasher.hash_one(&*text), |&other| other == id)
        {
            entry.remove();
        }
        if mqtt::has_wildcards(&text) {
            self.remove_wildcard(text);
        } else {
            self.evict_topic(&text);
        }
        self.filters.remove(id);
    }

    /// Adds or replaces the non-shared subscription of a session; returns whether it is new.
    pub(crate) fn subscribe(&mut self, id: FilterId, subscriber: Subscriber) -> bool {
        let is_new = self.filters[id].subscribers.insert(subscriber);
        self.invalidate_matches(id);
        is_new
    }

    pub(crate) fn unsubscribe(&mut self, id: FilterId, session: SessionIx) -> bool {
        let removed = self.filters[id].subscribers.remove(session).is_some();
        self.invalidate_matches(id);
        removed
    }

    pub(crate) fn set_remote(&mut self, id: FilterId, shard: u16, wanted: bool) {
        let filter = &mut self.filters[id];
        if wanted {
            filter.remote_shards |= 1 << shard;
        } else {
            filter.remote_shards &= !(1 << shard);
        }
        self.invalidate_matches(id);
    }

    /// Changes who wants a filter elsewhere.
    pub(crate) fn change_remote_filter<T>(
        &mut self,
        text: &str,
        change: impl FnOnce(&mut R) -> T,
    ) -> T {
        match mqtt::has_wildcards(text) {
            true => self.advance_generation(text.into()),
            false => self.evict_topic(text),
        }
        change(&mut self.remote_interest)
    }

    /// Changes who wants any filters elsewhere.
    pub(crate) fn change_remote_filters<T>(&mut self, change: impl FnOnce(&mut R) -> T) -> T {
        // No earlier result is compared with these changes, so that all are computed again.
        self.recent_changes.clear();
        self.generation += 1;
        change(&mut self.remote_interest)
    }

    #[cfg(test)]
    pub(crate) fn remote_interest(&self) -> &R {
        &self.remote_interest
    }

    /// What the tree itself, without the remote interest, has in `remote_shards` of a filter.
    pub(crate) fn remote_shards_in_tree(&self, text: &str) -> u64 {
        let found = self.find(text);
        found.map_or(0, |id| self.filters[id].remote_shards)
    }

    /// The group `name` of a filter, if it has one.
    pub(crate) fn find_group(&self, id: FilterId, name: &str) -> Option<GroupId> {
        let groups = &self.filters[id].groups;
        groups
            .iter()
            .copied()
            .find(|&g| *self.groups[g].name == *name)
    }

    pub(crate) fn find_or_insert_group(&mut self, id: FilterId, name: &str) -> GroupId {
        if let Some(group) = self.find_group(id, name) {
            return group;
        }
        let group = self.groups.insert(SubscriptionGroup::new(name, id));
        self.filters[id].groups.push(group);
        self.invalidate_matches(id);
        group
    }

    /// Removes a group without members, and its filter if that is unused then.
    pub(crate) fn remove_group_if_unused(&mut self, group: GroupId) {
        if !self.groups[group].is_empty() {
            return;
        }
        let id = self.groups.remove(group).filter;
        self.filters[id].groups.retain(|&g| g != group);
        self.invalidate_matches(id);
        self.remove_if_unused(id);
    }

    /// Invalidates the results that were computed from this filter's content, not only its existence.
    fn invalidate_matches(&mut self, id: FilterId) {
        let text = self.filters[id].text.clone();
        if mqtt::has_wildcards(&text) {
            self.advance_generation(text);
        } else {
            self.evict_topic(&text);
        }
    }

    fn advance_generation(&mut self, changed_filter: Rc<str>) {
        if self.recent_changes.len() == RECENT_CHANGES {
            self.recent_changes.pop_front();
        }
        self.recent_changes.push_back(changed_filter);
        self.generation += 1;
    }

    /// Whether a result of an earlier generation is still valid: no filter that changed since then matches the topic.
    fn is_unaffected(&self, topic: &str, since_generation: u64) -> bool {
        let changes = self.generation - since_generation;
        changes <= self.recent_changes.len() as u64
            && (self.recent_changes.iter().rev())
                .take(changes as usize)
                .all(|filter| !mqtt::filter_matches(filter, topic))
    }

    fn evict_topic(&mut self, topic: &str) {
        let hash = self.hasher.hash_one(topic);
        if let Ok(entry) = self
            .cache
            .find_entry(hash, |cached| *cached.topic == *topic)
        {
            self.cached_targets -= entry.remove().0.set.target_count();
        }
    }

    fn insert_wildcard(&mut self, text: Rc<str>, id: FilterId) {
        let mut at = ROOT;
        let mut ends_with_hash = false;
        for level in mqtt::levels(&text) {
            at = match level {
                "#" => {
                    ends_with_hash = true;
                    break;
                }
                "+" => match self.nodes[at].plus {
                    Some(next) => next,
                    None => {
                        let next = self.nodes.insert(FilterNode::default());
                        self.nodes[at].plus = Some(next);
                        next
                    }
                },
                name => match self.nodes[at].children.get(name) {
                    Some(&next) => next,
                    None => {
                        let next = self.nodes.insert(FilterNode::default());
                        self.nodes[at].children.insert(name.into(), next);
                        next
                    }
                },
            };
        }
        let node = &mut self.nodes[at];
        if ends_with_hash {
            node.hash_filter = Some(id);
        } else {
            node.filter = Some(id);
        }
        self.wildcard_filters += 1;
        self.advance_generation(text);
    }

    fn remove_wildcard(&mut self, text: Rc<str>) {
        let mut path = Vec::new();
        let mut at = ROOT;
        let mut ends_with_hash = false;
        for level in mqtt::levels(&text) {
            let next = match level {
                "#" => {
                    ends_with_hash = true;
                    break;
                }
                "+" => self.nodes[at].plus,
                name => self.nodes[at].children.get(name).copied(),
            };
            path.push((at, level));
            at = next.expect("a filter in the table is in the trie");
        }
        let node = &mut self.nodes[at];
        if ends_with_hash {
            node.hash_filter = None;
        } else {
            node.filter = None;
        }
        while self.nodes[at].is_empty() {
            let Some((parent, level)) = path.pop() else {
                break;
            };
            self.nodes.remove(at);
            if level == "+" {
                self.nodes[parent].plus = None;
            } else {
                self.nodes[parent].children.remove(level);
            }
            at = parent;
        }
        self.wildcard_filters -= 1;
        self.advance_generation(text);
    }

    /// Collects all filters that match `topic` in `self.matching`.
    fn collect(&mut self, topic: &str) {
        self.matching.clear();
        if let Some(id) = self.find(topic) {
            // Publishing to a name with wildcards was rejected before, so this filter has no wildcards.
            self.matching.push(id);
        }
        if self.wildcard_filters == 0 {
            return;
        }
        // `$` topics are hidden from wildcards at the first level [MQTT-4.7.2-1].
        let hidden = topic.starts_with('$');
        self.pending.clear();
        self.pending.push((ROOT, 0));
        while let Some((at, offset)) = self.pending.pop() {
            let node = &self.nodes[at];
            let is_root = at == ROOT;
            if let Some(id) = node.hash_filter
                && !(is_root && hidden)
            {
                self.matching.push(id);
            }
            if offset == TOPIC_END {
                self.matching.extend(node.filter);
                continue;
            }
            let rest = &topic[offset as usize..];
            let (level, next) = match memchr::memchr(b'/', rest.as_bytes()) {
                Some(len) => (&rest[..len], offset + len as u32 + 1),
                None => (rest, TOPIC_END),
            };
            if let Some(plus) = node.plus
                && !(is_root && hidden)
            {
                self.pending.push((plus, next));
            }
            if let Some(&child) = node.children.get(level) {
                self.pending.push((child, next));
            }
        }
    }

    /// All filters that match `topic`, for queries outside a message's path.
    pub(crate) fn matching_filters(&mut self, topic: &str) -> Vec<FilterId> {
        self.collect(topic);
        let filters = &self.filters;
        // The topic of a query, unlike that of a PUBLISH, may be any text.
        let matches = |id: &&FilterId| mqtt::filter_matches(&filters[**id].text, topic);
        self.matching.iter().filter(matches).copied().collect()
    }

    fn build_match(&self, topic: &str) -> MatchSet {
        let mut remote = self.remote_interest.match_topic(topic);
        let mut groups = Vec::new();
        let mut with_locals = Vec::new();
        for &id in &self.matching {
            let filter = &self.filters[id];
            remote |= filter.remote_shards;
            groups.extend_from_slice(&filter.groups);
            if !filter.subscribers.is_empty() {
                with_locals.push(id);
            }
        }
        let locals = match with_locals[..] {
            [] => LocalTargets::None,
            [id] => LocalTargets::SingleFilter(id),
            _ => LocalTargets::Merged(self.merge_targets(&with_locals)),
        };
        MatchSet {
            local_targets: locals,
            groups: groups.into_boxed_slice(),
            remote_shards: remote,
        }
    }

    /// One target per session: the highest QoS, every identifier, delivered if any subscription would deliver.
    fn merge_targets(&self, filters: &[FilterId]) -> Box<[DeliveryTarget]> {
        let mut all: Vec<Subscriber> = filters
            .iter()
            .flat_map(|&id| self.filters[id].subscribers.iter().copied())
            .collect();
        all.sort_by_key(|s| s.session);
        let mut merged = Vec::with_capacity(all.len());
        for same in all.chunk_by(|a, b| a.session == b.session) {
            let mut subscriber = same[0];
            let ids: Vec<u32> = same
                .iter()
                .map(|s| s.identifier)
                .filter(|&id| id != 0)
                .collect();
            for other in &same[1..] {
                let (a, b) = (subscriber.options, other.options);
                subscriber.options = SubscriptionOptions {
                    qos: a.qos.max(b.qos),
                    no_local: a.no_local && b.no_local,
                    retain_as_published: a.retain_as_published || b.retain_as_published,
                    retain_handling: a.retain_handling,
                };
            }
            subscriber.identifier = ids.first().copied().unwrap_or(0);
            let more_ids = (ids.len() > 1).then(|| ids[1..].into());
            merged.push(DeliveryTarget {
                subscriber,
                more_identifiers: more_ids,
            });
        }
        merged.into_boxed_slice()
    }

    /// Returns the receivers of a message for `topic`, and the filters to resolve their ids.
    #[inline]
    pub(crate) fn match_topic(
        &mut self,
        topic: &str,
    ) -> (&MatchSet, &Table<FilterId, FilterEntry>) {
        let generation = self.generation;
        let kept = |cached: &CachedMatch| *cached.topic == *topic;
        // By index, since a reference that leaves the function would prevent a miss from changing the cache.
        let is_last = |cached: &CachedMatch| cached.generation == generation && kept(cached);
        if self.cache.get_bucket(self.last_bucket).is_some_and(is_last) {
            let cached = self.cache.get_bucket(self.last_bucket).expect("seen above");
            return (&cached.set, &self.filters);
        }
        let hash = self.hasher.hash_one(topic);
        if let Some(index) = self.cache.find_bucket_index(hash, kept)
            && self
                .cache
                .get_bucket(index)
                .is_some_and(|cached| cached.generation == generation)
        {
            self.last_bucket = index;
            let cached = self.cache.get_bucket(index).expect("found above");
            return (&cached.set, &self.filters);
        }
        self.compute_match(hash, topic)
    }

    #[cold]
    #[inline(never)]
    fn compute_match(
        &mut self,
        hash: u64,
        topic: &str,
    ) -> (&MatchSet, &Table<FilterId, FilterEntry>) {
        let kept = |cached: &CachedMatch| *cached.topic == *topic;
        if let Some(index) = self.cache.find_bucket_index(hash, kept) {
            let generation = self.generation;
            let since = self.cache.get_bucket(index).map(|cached| cached.generation);
            if since.is_some_and(|since| self.is_unaffected(topic, since)) {
                let cached = self.cache.get_bucket_mut(index).expect("found above");
                cached.generation = generation;
                return (&cached.set, &self.filters);
            }
        }
        #[cfg(test)]
        {
            self.computed += 1;
        }
        self.collect(topic);
        let set = self.build_match(topic);
        let slot = &mut self.recent_misses[hash as usize % 4096];
        let mark = (hash >> 32) as u32 | 1;
        let seen_before = std::mem::replace(slot, mark) == mark;
        if !seen_before {
            self.uncached_match = set;
            return (&self.uncached_match, &self.filters);
        }
        self.evict_topic(topic);
        if self.cache.len() >= CACHE_TOPICS
            || self.cached_targets + set.target_count() > CACHE_TARGETS
        {
            // Clearing is rare and cheap on average, and needs no bookkeeping of ages on the hot path.
            self.cache.clear();
            self.cached_targets = 0;
        }
        self.cached_targets += set.target_count();
        let cached = CachedMatch {
            topic: topic.into(),
            generation: self.generation,
            set,
        };
        let hasher = &self.hasher;
        let entry = self
            .cache
            .insert_unique(hash, cached, |cached| hasher.hash_one(&*cached.topic));
        (&entry.into_mut().set, &self.filters)
    }
}

/// The filter under which a subscription is stored, and the group it belongs to, if any.
pub(crate) fn filter_and_group<'a>(kind: &SubscriptionFilter<'a>) -> (&'a str, Option<&'a str>) {
    match *kind {
        SubscriptionFilter::Plain(filter) => (filter, None),
        SubscriptionFilter::Shared { group, filter } => (filter, Some(group)),
        SubscriptionFilter::Queue { filter } => (filter, Some(QUEUE_GROUP)),
        SubscriptionFilter::Exclusive { topic } => (topic, Some(EXCLUSIVE_GROUP)),
    }
}

/// The group of `$queue/{filter}`. No `$share` group can have this name: a group's name has no `/`.
pub(crate) const QUEUE_GROUP: &str = "$queue/";

/// The group of `$exclusive/{topic}`, which has at most one member.
pub(crate) const EXCLUSIVE_GROUP: &str = "$exclusive/";
