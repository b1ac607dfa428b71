//! The tables of a shard: its sessions, its connections, and the filters and groups of its subscription tree. Each has
//! an index type of its own, so that a session is never looked up by the index of a connection.

use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

use slab::Slab;

/// An index type of a [`Table`].
pub(crate) trait TableIx: Copy {
    /// `position` is the position in the table, which has fewer than `u32::MAX` entries.
    fn from_position(position: usize) -> Self;

    fn position(self) -> usize;
}

/// Defines an index type of 32 bits.
macro_rules! table_ix {
    ($(#[$attribute:meta])* $visibility:vis struct $name:ident) => {
        $(#[$attribute])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        $visibility struct $name(u32);

        impl $crate::core::tables::TableIx for $name {
            #[inline]
            fn from_position(position: usize) -> Self {
                Self(position as u32)
            }

            #[inline]
            fn position(self) -> usize {
                self.0 as usize
            }
        }
    };
}

pub(super) use table_ix;

table_ix! {
    /// Index of a session of this shard. It is reused after the session has ended.
    pub(crate) struct SessionIx
}

table_ix! {
    /// Index of a connection of this shard. It is reused after the connection has been removed; `Connection::serial`
    /// distinguishes the connections that have used it.
    pub(crate) struct ConnectionIx
}

table_ix! {
    /// Index of a filter in the subscription tree. It is reused after the filter has been removed.
    pub(crate) struct FilterId
}

table_ix! {
    /// Index of a group of a shared subscription in the subscription tree. It is reused after the group has been
    /// removed.
    pub(crate) struct GroupId
}

/// The session of a connection that has none (yet).
pub(crate) const NO_SESSION: SessionIx = SessionIx(u32::MAX);

/// The group of a subscription that is not shared.
pub(crate) const NO_GROUP: GroupId = GroupId(u32::MAX);

/// Entries that keep their index until they are removed. Indexing by an index without an entry panics.
pub(crate) struct Table<I, T> {
    entries: Slab<T>,
    index: PhantomData<I>,
}

impl<I, T> Default for Table<I, T> {
    fn default() -> Self {
        Self {
            entries: Slab::new(),
            index: PhantomData,
        }
    }
}

impl<I: TableIx, T> Table<I, T> {
    pub(crate) fn insert(&mut self, entry: T) -> I {
        I::from_position(self.entries.insert(entry))
    }

    /// Removes an entry; panics if there is none.
    pub(crate) fn remove(&mut self, at: I) -> T {
        self.entries.remove(at.position())
    }

    #[inline]
    pub(crate) fn get(&self, at: I) -> Option<&T> {
        self.entries.get(at.position())
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, at: I) -> Option<&mut T> {
        self.entries.get_mut(at.position())
    }

    pub(crate) fn contains(&self, at: I) -> bool {
        self.entries.contains(at.position())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (I, &T)> {
        let entries = self.entries.iter();
        entries.map(|(at, entry)| (I::from_position(at), entry))
    }

    /// All positions in use are below this one.
    pub(crate) fn end_position(&self) -> usize {
        self.entries.capacity()
    }
}

impl<I: TableIx, T> Index<I> for Table<I, T> {
    type Output = T;

    #[inline]
    fn index(&self, at: I) -> &T {
        &self.entries[at.position()]
    }
}

impl<I: TableIx, T> IndexMut<I> for Table<I, T> {
    #[inline]
    fn index_mut(&mut self, at: I) -> &mut T {
        &mut self.entries[at.position()]
    }
}
