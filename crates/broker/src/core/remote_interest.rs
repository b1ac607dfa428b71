//! Which filters other nodes want, in a few bytes for each filter.
//!
//! A node knows the filters of all others. Their texts and trie nodes would take several hundred bytes each, on every
//! shard. Therefore only hashes are kept, in one table for each shape of filters in use ([`filter_key`](super::filter_key)).
//! A topic is looked up once in each table.
//!
//! Invariants:
//! - a table exists exactly as long as a filter of its shape is wanted;
//! - there are at most [`MAX_SHAPES`] tables, so that the time to match a topic is limited. Filters of further shapes are
//!   in the subscription tree, where each of them takes more memory. A filter stays where it is as long as a node wants it;
//! - the hashes in the [`RouterFilters`] of each shard are those in the [`NodeFilters`] of the router, after the shard has
//!   handled what the router has sent. Both get the same changes in the same order, so that they have tables for the
//!   same shapes.

use hashbrown::HashTable;

use super::filter_key::{FilterFingerprint, FilterKey, FilterShape, HashedShape, HashedTopic};

/// Shapes of filters that have a table.
pub(crate) const MAX_SHAPES: usize = 64;

/// Who else wants a topic, besides those in a subscription tree.
pub(crate) trait RemoteInterest {
    /// The places that want the topic, one bit each.
    fn match_topic(&self, topic: &str) -> u64;
}

/// Of a tree that contains all filters itself.
#[derive(Default)]
pub(crate) struct NoRemoteInterest;

impl RemoteInterest for NoRemoteInterest {
    fn match_topic(&self, _topic: &str) -> u64 {
        0
    }
}

/// An entry of the table of a shape.
trait ShapeTableEntry {
    fn hash(&self) -> u64;
}

impl ShapeTableEntry for u64 {
    fn hash(&self) -> u64 {
        *self
    }
}

/// The filters of one shape.
struct ShapeTable<E> {
    shape: HashedShape,
    /// SipHash results serve as hashes of the table as they are.
    entries: HashTable<E>,
}

impl<E: ShapeTableEntry> ShapeTable<E> {
    fn insert(&mut self, entry: E) {
        self.entries
            .insert_unique(entry.hash(), entry, ShapeTableEntry::hash);
    }

    fn contains_hash(&self, hash: u64) -> bool {
        let found = self.entries.find(hash, |entry| entry.hash() == hash);
        found.is_some()
    }

    /// Releases memory if the table has become much emptier. Costs nothing on average: the number of buckets halves at
    /// least, or remains.
    fn shrink(&mut self) {
        if self.entries.len() < self.entries.capacity() / 4 {
            let capacity = 2 * self.entries.len();
            self.entries.shrink_to(capacity, ShapeTableEntry::hash);
        }
    }
}

struct ShapeTables<E> {
    tables: Vec<ShapeTable<E>>,
}

impl<E> Default for ShapeTables<E> {
    fn default() -> Self {
        Self { tables: Vec::new() }
    }
}

impl<E: ShapeTableEntry> ShapeTables<E> {
    fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    fn get(&mut self, shape: FilterShape) -> Option<&mut ShapeTable<E>> {
        let mut tables = self.tables.iter_mut();
        tables.find(|table| table.shape.shape == shape)
    }

    /// `None` if there are too many. The caller adds an entry to a new table.
    fn get_or_insert(&mut self, shape: FilterShape) -> Option<&mut ShapeTable<E>> {
        let is_of_shape = |table: &ShapeTable<E>| table.shape.shape == shape;
        let position = match self.tables.iter().position(is_of_shape) {
            Some(position) => position,
            None if self.tables.len() == MAX_SHAPES => return None,
            None => {
                self.tables.push(ShapeTable {
                    shape: HashedShape::new(shape),
                    entries: HashTable::new(),
                });
                self.tables.len() - 1
            }
        };
        Some(&mut self.tables[position])
    }

    /// The tables that can contain a filter that matches the topic, each with the hash of that filter.
    #[inline]
    fn matching<'a>(
        &'a self,
        topic: &'a HashedTopic<'_>,
    ) -> impl Iterator<Item = (&'a ShapeTable<E>, u64)> {
        let tables = self.tables.iter();
        tables.filter_map(|table| Some((table, topic.hash_for(&table.shape)?)))
    }

    /// After entries of a table were removed.
    fn release_memory(&mut self, shape: FilterShape) {
        let is_of_shape = |table: &ShapeTable<E>| table.shape.shape == shape;
        let Some(position) = self.tables.iter().position(is_of_shape) else {
            return;
        };
        match self.tables[position].entries.is_empty() {
            true => drop(self.tables.swap_remove(position)),
            false => self.tables[position].shrink(),
        }
    }
}

/// Filters of one shape that no other node wants any more.
#[derive(Debug)]
pub(crate) struct RemovedFilters {
    shape: FilterShape,
    hashes: Box<[u64]>,
}

impl RemovedFilters {
    pub(crate) fn size_bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.hashes)
    }
}

/// The filters that any other node wants, as a shard knows them. It has the messages sent to the node router, which
/// knows the nodes.
#[derive(Default)]
pub(crate) struct RouterFilters {
    /// The bit of the router among the shards.
    router: u64,
    tables: ShapeTables<u64>,
}

impl RouterFilters {
    /// Adds or removes a filter that `router` wants. Returns false if it belongs into the tree, because there are too many
    /// shapes.
    pub(crate) fn set(&mut self, router: u16, key: &FilterKey, wanted: bool) -> bool {
        let Some(shape) = key.shape else {
            return !wanted;
        };
        let hash = key.fingerprint.hash;
        if !wanted {
            self.remove(shape, &[hash]);
            return true;
        }
        let Some(table) = self.tables.get_or_insert(shape) else {
            return false;
        };
        self.router = 1 << router;
        if !table.contains_hash(hash) {
            table.insert(hash);
        }
        true
    }

    pub(crate) fn remove_all(&mut self, removed: &[RemovedFilters]) {
        for of_shape in removed {
            self.remove(of_shape.shape, &of_shape.hashes);
        }
    }

    fn remove(&mut self, shape: FilterShape, hashes: &[u64]) {
        let Some(table) = self.tables.get(shape) else {
            return;
        };
        for &hash in hashes {
            if let Ok(entry) = table.entries.find_entry(hash, |&found| found == hash) {
                entry.remove();
            }
        }
        self.tables.release_memory(shape);
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        let tables = self.tables.tables.iter();
        tables.map(|table| table.entries.len()).sum()
    }
}

impl RemoteInterest for RouterFilters {
    #[inline]
    fn match_topic(&self, topic: &str) -> u64 {
        if self.tables.is_empty() {
            return 0;
        }
        let topic = HashedTopic::new(topic);
        let mut matching = self.tables.matching(&topic);
        match matching.any(|(table, hash)| table.contains_hash(hash)) {
            true => self.router,
            false => 0,
        }
    }
}

/// The nodes that want a filter.
#[derive(Clone, Copy)]
// 20 bytes instead of 24.
#[repr(C, packed(4))]
struct NodeFilter {
    fingerprint: FilterFingerprint,
    /// By their slots, one bit each.
    nodes: u64,
}

impl ShapeTableEntry for NodeFilter {
    fn hash(&self) -> u64 {
        self.fingerprint.hash
    }
}

/// What a change means to the shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeFilterChange {
    /// Other nodes want the filter, or none does, as before.
    SameForShards,
    /// The first node wants the filter.
    Began,
    /// No node wants the filter any more.
    Ended,
}

/// The filters that other nodes want, by the slots of these nodes, as the node router knows them.
#[derive(Default)]
pub(crate) struct NodeFilters {
    tables: ShapeTables<NodeFilter>,
}

impl NodeFilters {
    /// Sets whether a node wants a filter. `None`: the filter belongs into the tree, because there are too many shapes.
    pub(crate) fn set(
        &mut self,
        slot: u8,
        key: &FilterKey,
        wanted: bool,
    ) -> Option<NodeFilterChange> {
        let Some(shape) = key.shape else {
            return (!wanted).then_some(NodeFilterChange::SameForShards);
        };
        match wanted {
            true => self.insert(slot, shape, key.fingerprint),
            false => Some(self.remove(slot, shape, key.fingerprint)),
        }
    }

    fn insert(
        &mut self,
        slot: u8,
        shape: FilterShape,
        fingerprint: FilterFingerprint,
    ) -> Option<NodeFilterChange> {
        let table = self.tables.get_or_insert(shape)?;
        let is_filter = |entry: &NodeFilter| entry.fingerprint == fingerprint;
        if let Some(entry) = table.entries.find_mut(fingerprint.hash, is_filter) {
            entry.nodes |= 1 << slot;
            return Some(NodeFilterChange::SameForShards);
        }
        table.insert(NodeFilter {
            fingerprint,
            nodes: 1 << slot,
        });
        // Also if another filter has the same hash: shards have to compute results anew for topics of this one.
        Some(NodeFilterChange::Began)
    }

    fn remove(
        &mut self,
        slot: u8,
        shape: FilterShape,
        fingerprint: FilterFingerprint,
    ) -> NodeFilterChange {
        let Some(table) = self.tables.get(shape) else {
            return NodeFilterChange::SameForShards;
        };
        let is_filter = |entry: &NodeFilter| entry.fingerprint == fingerprint;
        let Ok(mut entry) = table.entries.find_entry(fingerprint.hash, is_filter) else {
            return NodeFilterChange::SameForShards;
        };
        let filter = entry.get_mut();
        filter.nodes &= !(1 << slot);
        if filter.nodes != 0 {
            return NodeFilterChange::SameForShards;
        }
        entry.remove();
        // Shards know the hash only.
        let is_hash_wanted = table.contains_hash(fingerprint.hash);
        self.tables.release_memory(shape);
        match is_hash_wanted {
            true => NodeFilterChange::SameForShards,
            false => NodeFilterChange::Ended,
        }
    }

    /// Removes what a node wants, except what `keep` returns true for. Returns what no node wants any more.
    pub(crate) fn remove_node(
        &mut self,
        slot: u8,
        keep: impl Fn(FilterFingerprint) -> bool,
    ) -> Vec<RemovedFilters> {
        let mut removed = Vec::new();
        for table in &mut self.tables.tables {
            let mut hashes = Vec::new();
            table.entries.retain(|filter| {
                if filter.nodes & 1 << slot != 0 && !keep(filter.fingerprint) {
                    filter.nodes &= !(1 << slot);
                }
                if filter.nodes == 0 {
                    hashes.push(filter.hash());
                }
                filter.nodes != 0
            });
            // Shards know the hashes only.
            hashes.retain(|&hash| !table.contains_hash(hash));
            if !hashes.is_empty() {
                removed.push(RemovedFilters {
                    shape: table.shape.shape,
                    hashes: hashes.into_boxed_slice(),
                });
            }
        }
        for of_shape in &removed {
            self.tables.release_memory(of_shape.shape);
        }
        removed
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        let tables = self.tables.tables.iter();
        tables.map(|table| table.entries.len()).sum()
    }

    #[cfg(test)]
    pub(crate) fn size_bytes(&self) -> usize {
        let tables = self.tables.tables.iter();
        tables.map(|table| table.entries.allocation_size()).sum()
    }
}

impl RemoteInterest for NodeFilters {
    #[inline]
    fn match_topic(&self, topic: &str) -> u64 {
        if self.tables.is_empty() {
            return 0;
        }
        let topic = HashedTopic::new(topic);
        let mut nodes = 0;
        for (table, hash) in self.tables.matching(&topic) {
            let candidates = table.entries.iter_hash(hash);
            for filter in candidates.filter(|filter| filter.hash() == hash) {
                nodes |= filter.nodes;
            }
        }
        nodes
    }
}
