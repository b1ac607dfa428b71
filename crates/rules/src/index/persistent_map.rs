//! A persistent map: copies share unchanged nodes. A copy costs one reference count, and a change copies only
//! the few nodes on the path to its key. Implemented as a hash trie with 32-way branches.

use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::FixedState;

const BITS: u32 = 5;

/// The hash of a key. Keys come from rules and not from clients, so no random seed is needed.
#[inline]
pub(super) fn hash_of(key: &str) -> u64 {
    FixedState::with_seed(0).hash_one(key)
}

#[derive(Clone)]
pub(super) struct PersistentMap<V> {
    root: Option<Arc<MapBranch<V>>>,
    len: usize,
}

#[derive(Clone)]
struct MapBranch<V> {
    /// Bitmap of the occupied slots, 32 in total.
    places: u32,
    slots: Vec<MapSlot<V>>,
}

#[derive(Clone)]
enum MapSlot<V> {
    Branch(Arc<MapBranch<V>>),
    Leaf(Arc<MapLeaf<V>>),
}

#[derive(Clone)]
struct MapLeaf<V> {
    hash: u64,
    key: Box<str>,
    value: V,
    /// Next leaf with the same hash and a different key.
    next: Option<Arc<MapLeaf<V>>>,
}

impl<V> Default for PersistentMap<V> {
    fn default() -> Self {
        Self { root: None, len: 0 }
    }
}

impl<V> MapBranch<V> {
    #[inline]
    fn index(&self, bit: u32) -> usize {
        (self.places & (bit - 1)).count_ones() as usize
    }
}

#[inline]
fn bit_of(hash: u64, depth: u32) -> u32 {
    1 << ((hash >> (depth * BITS)) & 31)
}

impl<V> PersistentMap<V> {
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub(super) fn get(&self, key: &str) -> Option<&V> {
        match &self.root {
            Some(_) => self.get_hashed(hash_of(key), key),
            None => None,
        }
    }

    #[inline]
    pub(super) fn get_hashed(&self, hash: u64, key: &str) -> Option<&V> {
        let mut branch = self.root.as_deref()?;
        let mut depth = 0;
        loop {
            let bit = bit_of(hash, depth);
            if branch.places & bit == 0 {
                return None;
            }
            match &branch.slots[branch.index(bit)] {
                MapSlot::Branch(below) => branch = below,
                MapSlot::Leaf(leaf) => return leaf.find(hash, key),
            }
            depth += 1;
        }
    }
}

impl<V> MapLeaf<V> {
    #[inline]
    fn find(&self, hash: u64, key: &str) -> Option<&V> {
        if self.hash != hash {
            return None;
        }
        let mut leaf = self;
        loop {
            if *leaf.key == *key {
                return Some(&leaf.value);
            }
            leaf = leaf.next.as_deref()?;
        }
    }
}

impl<V: Clone + Default> PersistentMap<V> {
    /// The value of a key, created if it does not exist.
    pub(super) fn entry(&mut self, key: &str) -> &mut V {
        let hash = hash_of(key);
        let root = self.root.get_or_insert_with(|| {
            Arc::new(MapBranch {
                places: 0,
                slots: Vec::new(),
            })
        });
        let (value, is_new) = entry_of(Arc::make_mut(root), hash, key, 0);
        self.len += usize::from(is_new);
        value
    }

    pub(super) fn remove(&mut self, key: &str) -> Option<V> {
        let hash = hash_of(key);
        self.get_hashed(hash, key)?;
        let root = Arc::make_mut(self.root.as_mut()?);
        let removed = remove_from(root, hash, key, 0);
        if root.slots.is_empty() {
            self.root = None;
        }
        self.len -= usize::from(removed.is_some());
        removed
    }
}

fn entry_of<'a, V: Clone + Default>(
    branch: &'a mut MapBranch<V>,
    hash: u64,
    key: &str,
    depth: u32,
) -> (&'a mut V, bool) {
    let bit = bit_of(hash, depth);
    let at = branch.index(bit);
    let new_leaf = |next| {
        Arc::new(MapLeaf {
            hash,
            key: key.into(),
            value: V::default(),
            next,
        })
    };
    if branch.places & bit == 0 {
        branch.places |= bit;
        branch.slots.reserve_exact(1);
        branch.slots.insert(at, MapSlot::Leaf(new_leaf(None)));
        let MapSlot::Leaf(leaf) = &mut branch.slots[at] else {
            unreachable!("the leaf was inserted just now");
        };
        return (&mut Arc::make_mut(leaf).value, true);
    }
    // Two keys whose hashes differ in a later part.
    if let MapSlot::Leaf(leaf) = &branch.slots[at]
        && leaf.hash != hash
    {
        let below = MapBranch {
            places: bit_of(leaf.hash, depth + 1),
            slots: vec![MapSlot::Leaf(leaf.clone())],
        };
        branch.slots[at] = MapSlot::Branch(Arc::new(below));
    }
    match &mut branch.slots[at] {
        MapSlot::Branch(below) => entry_of(Arc::make_mut(below), hash, key, depth + 1),
        MapSlot::Leaf(leaf) => {
            let is_new = leaf.find(hash, key).is_none();
            if is_new {
                let others = leaf.clone();
                *leaf = new_leaf(Some(others));
            }
            let mut found = Arc::make_mut(leaf);
            while *found.key != *key {
                let next = found
                    .next
                    .as_mut()
                    .expect("the key exists or was just inserted");
                found = Arc::make_mut(next);
            }
            (&mut found.value, is_new)
        }
    }
}

fn remove_from<V: Clone>(branch: &mut MapBranch<V>, hash: u64, key: &str, depth: u32) -> Option<V> {
    let bit = bit_of(hash, depth);
    let at = branch.index(bit);
    match &mut branch.slots[at] {
        MapSlot::Branch(below) => {
            let below = Arc::make_mut(below);
            let removed = remove_from(below, hash, key, depth + 1);
            // A single remaining leaf needs no branch of its own.
            if let [MapSlot::Leaf(last)] = &below.slots[..] {
                branch.slots[at] = MapSlot::Leaf(last.clone());
            }
            removed
        }
        MapSlot::Leaf(first) => {
            let (rest, removed) = chain_without(first, key);
            match rest {
                Some(rest) => *first = rest,
                None => {
                    branch.slots.remove(at);
                    branch.places &= !bit;
                }
            }
            removed
        }
    }
}

type LeafChain<V> = Option<Arc<MapLeaf<V>>>;

/// A copy of the chain of leaves without one key.
fn chain_without<V: Clone>(leaf: &Arc<MapLeaf<V>>, key: &str) -> (LeafChain<V>, Option<V>) {
    if *leaf.key == *key {
        return (leaf.next.clone(), Some(leaf.value.clone()));
    }
    let Some(next) = &leaf.next else {
        return (Some(leaf.clone()), None);
    };
    let (rest, removed) = chain_without(next, key);
    let mut kept = MapLeaf::clone(leaf);
    kept.next = rest;
    (Some(Arc::new(kept)), removed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn it_is_a_map_and_its_copies_do_not_change(
            steps in prop::collection::vec((any::<bool>(), 0..200_u32, any::<u32>()), 0..600),
        ) {
            let mut map = PersistentMap::<u32>::default();
            let mut model = HashMap::new();
            let mut copies = Vec::new();
            for (n, (puts, key, value)) in steps.into_iter().enumerate() {
                let key = format!("key/{key}");
                match puts {
                    true => {
                        *map.entry(&key) = value;
                        model.insert(key, value);
                    }
                    false => prop_assert_eq!(map.remove(&key), model.remove(&key)),
                }
                if n % 97 == 0 {
                    copies.push((map.clone(), model.clone()));
                }
            }
            copies.push((map, model));
            for (map, model) in copies {
                prop_assert_eq!(map.len, model.len());
                prop_assert_eq!(map.root.is_none(), model.is_empty());
                for (key, value) in &model {
                    prop_assert_eq!(map.get(key), Some(value));
                }
                prop_assert_eq!(map.get("another"), None);
            }
        }
    }

    #[test]
    fn keys_with_one_hash_live_in_one_chain() {
        let mut root = MapBranch::<u8> {
            places: 0,
            slots: Vec::new(),
        };
        for (n, key) in ["a", "b", "c"].into_iter().enumerate() {
            *entry_of(&mut root, 7, key, 0).0 = n as u8;
        }
        let copy = root.clone();
        assert_eq!(remove_from(&mut root, 7, "b", 0), Some(1));
        let map = |root| PersistentMap {
            root: Some(Arc::new(root)),
            len: 0,
        };
        let (map, copy) = (map(root), map(copy));
        let get = |map: &PersistentMap<u8>, key| map.get_hashed(7, key).copied();
        assert_eq!(
            ["a", "b", "c"].map(|key| get(&map, key)),
            [Some(0), None, Some(2)]
        );
        assert_eq!(
            ["a", "b", "c"].map(|key| get(&copy, key)),
            [Some(0), Some(1), Some(2)]
        );
    }
}
