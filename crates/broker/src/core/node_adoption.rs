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
    /// Origins and numbers of messages that were delivered here meanwhile, and the position of the next session that was adopted.
    /// Other nodes send them for the adopted sessions, too, until they know that these are here.
    pub(super) delivered: HashMap<(u64, u64), u32, RandomState>,
    /// Origins and numbers of messages that these sessions have got as adopted ones. What another shard of this node has
    /// published may arrive from there later.
    pub(super) passed_on: HashSet<(u64, u64), RandomState>,
}

impl NodeAdoption {
    /// Adds a session that is adopted now.
    pub(super) fn insert(&mut self, number: u64, adopted: AdoptedNumber) {
        let position = self.next_position();
        self.insert_restored(
            number,
            AdoptedNumber {
                position,
                ..adopted
            },
        );
    }

    /// Adds a session that was adopted before this node was started again. It has got all messages that were delivered here since.
    pub(super) fn insert_restored(&mut self, number: u64, adopted: AdoptedNumber) {
        let numbers = Arc::make_mut(&mut self.numbers);
        numbers.entry(number).or_insert(adopted);
    }

    /// A message was delivered to all sessions before the adoption was begun, or begun again.
    pub(super) fn note_delivered_before(&mut self, id: (u64, u64)) {
        self.delivered.entry(id).or_insert(1);
    }

    /// The position of the next session that is adopted; 0 is that of all sessions that were adopted in an earlier run.
    pub(super) fn next_position(&self) -> u32 {
        1 + self.numbers.len() as u32
    }
}
