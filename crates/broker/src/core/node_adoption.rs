//! What a shard knows of the sessions that it has adopted from another node.

use std::sync::Arc;

use super::hash_state::RandomState;
use hashbrown::{HashMap, HashSet};

use super::received_numbers::CopiedNumbers;
use super::session_filter::{AdoptedNumber, AdoptedNumbers};

/// The sessions that this shard has adopted from one node, and what concerns messages for them.
#[derive(Default)]
pub(crate) struct NodeAdoption {
    pub(crate) numbers: Arc<AdoptedNumbers>,
    /// The messages that the node had.
    pub(super) received: Arc<CopiedNumbers>,
    /// Origins and numbers of messages that were delivered here meanwhile, and the number of the next session: those with lower numbers
    /// have got them. Other nodes send them for the adopted sessions, too, until they know that these are here.
    pub(super) delivered: HashMap<(u64, u64), u64, RandomState>,
    /// Origins and numbers of messages that these sessions have got as adopted ones. What another shard of this node has
    /// published may arrive from there later.
    pub(super) passed_on: HashSet<(u64, u64), RandomState>,
}

impl NodeAdoption {
    /// Adds a session that is adopted now, or was before this node was started again.
    pub(super) fn insert(&mut self, number: u64, adopted: AdoptedNumber) {
        let numbers = Arc::make_mut(&mut self.numbers);
        numbers.entry(number).or_insert(adopted);
    }

    /// A message was delivered to all sessions below a number.
    pub(super) fn note_delivered(&mut self, id: (u64, u64), below: u64) {
        self.delivered.entry(id).or_insert(below);
    }
}
