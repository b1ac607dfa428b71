//! State shared by all shards of the node and used only when clients come and go. It records which shard holds the
//! session of a client id and, outside a cluster, which client holds an exclusive topic. It counts connections, sessions
//! and delayed messages.

use super::hash_state::RandomState;
use hashbrown::HashMap;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::config::BrokerLimits;

const STRIPES: usize = 64;

type DirectoryStripe = HashMap<Arc<str>, u16, RandomState>;

/// The answer to [`NodeDirectory::claim`].
#[derive(Debug, PartialEq)]
pub(crate) enum SessionClaim {
    /// The session is, or is now to be created, on the calling shard.
    ThisShard(Arc<str>),
    /// Another shard holds the session; the connection must move there.
    OtherShard(u16),
}

pub(crate) struct NodeDirectory {
    stripes: Vec<Mutex<DirectoryStripe>>,
    hasher: RandomState,
    exclusive: Mutex<HashMap<Box<str>, Arc<str>, RandomState>>,
    pub(crate) connections: AtomicU32,
    /// Those of the connections that are closed and wait until their client has read the last bytes.
    pub(crate) closing_connections: AtomicU32,
    pub(crate) sessions: AtomicU32,
    pub(crate) delayed: AtomicU32,
    pub(crate) delayed_bytes: AtomicU64,
}

impl Default for NodeDirectory {
    fn default() -> Self {
        Self {
            stripes: (0..STRIPES).map(|_| Mutex::default()).collect(),
            hasher: RandomState::default(),
            exclusive: Mutex::default(),
            connections: AtomicU32::new(0),
            closing_connections: AtomicU32::new(0),
            sessions: AtomicU32::new(0),
            delayed: AtomicU32::new(0),
            delayed_bytes: AtomicU64::new(0),
        }
    }
}

/// A lock poisoned by a panic is safe to use: each change is one insertion or removal.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl NodeDirectory {
    fn stripe(&self, client_id: &str) -> MutexGuard<'_, DirectoryStripe> {
        lock(&self.stripes[self.hasher.hash_one(client_id) as usize % STRIPES])
    }

    /// Claims the session of `client_id`; if no shard holds it, the calling shard holds it from now on.
    pub(crate) fn claim(&self, client_id: &str, shard: u16) -> SessionClaim {
        let mut stripe = self.stripe(client_id);
        match stripe.get_key_value(client_id) {
            Some((id, &holder)) if holder == shard => SessionClaim::ThisShard(id.clone()),
            Some((_, &holder)) => SessionClaim::OtherShard(holder),
            None => {
                let id: Arc<str> = client_id.into();
                stripe.insert(id.clone(), shard);
                SessionClaim::ThisShard(id)
            }
        }
    }

    /// Which shard holds the session, without claiming it.
    pub(crate) fn shard_of(&self, client_id: &str) -> Option<u16> {
        self.stripe(client_id).get(client_id).copied()
    }

    pub(crate) fn release(&self, client_id: &str, shard: u16) {
        let mut stripe = self.stripe(client_id);
        if stripe.get(client_id) == Some(&shard) {
            stripe.remove(client_id);
        }
    }

    /// Claims an exclusive topic for a client, outside a cluster; false if another client has it.
    pub(crate) fn claim_exclusive(&self, topic: &str, client_id: &Arc<str>) -> bool {
        let mut exclusive = lock(&self.exclusive);
        match exclusive.get(topic) {
            Some(holder) => holder == client_id,
            None => {
                exclusive.insert(topic.into(), client_id.clone());
                true
            }
        }
    }

    pub(crate) fn release_exclusive(&self, topic: &str, client_id: &str) {
        let mut exclusive = lock(&self.exclusive);
        if exclusive
            .get(topic)
            .is_some_and(|holder| **holder == *client_id)
        {
            exclusive.remove(topic);
        }
    }

    /// Reserves room for a delayed message; false if there is none.
    pub(crate) fn reserve_delayed(&self, bytes: u64, limits: &BrokerLimits) -> bool {
        if !Self::reserve_slot(&self.delayed, limits.max_delayed_messages) {
            return false;
        }
        let most = limits.max_delayed_bytes;
        let take = |taken: u64| (taken + bytes <= most).then_some(taken + bytes);
        let taken = self
            .delayed_bytes
            .fetch_update(Relaxed, Relaxed, take)
            .is_ok();
        if !taken {
            Self::release_slot(&self.delayed);
        }
        taken
    }

    /// Counts a delayed message that is kept whatever the limits are.
    pub(crate) fn add_delayed(&self, bytes: u64) {
        self.delayed.fetch_add(1, Relaxed);
        self.delayed_bytes.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn release_delayed(&self, bytes: u64) {
        Self::release_slot(&self.delayed);
        self.delayed_bytes.fetch_sub(bytes, Relaxed);
    }

    /// Increments `counter` unless that would exceed `limit`.
    pub(crate) fn reserve_slot(counter: &AtomicU32, limit: u32) -> bool {
        counter
            .fetch_update(Relaxed, Relaxed, |n| (n < limit).then_some(n + 1))
            .is_ok()
    }

    pub(crate) fn release_slot(counter: &AtomicU32) {
        counter.fetch_sub(1, Relaxed);
    }
}
