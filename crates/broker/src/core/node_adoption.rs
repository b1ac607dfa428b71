//! What a shard knows of the sessions that it has adopted from another node.

use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashSet};

use super::received_numbers::CopiedNumbers;
use super::session_filter::{AdoptedNumber, AdoptedNumbers};

/// The sessions that this shard has adopted from one node, and what concerns messages for them.
#[derive(Default)]
pub(crate) struct NodeAdoption {
    pub(crate) numbers: Arc<AdoptedNumbers>,
    /// The messages of other nodes that the shards of the node had received.
    pub(super) received: Arc<CopiedNumbers>,
    /// Origins and numbers of messages that were delivered here meanwhile, and how many sessions had been adopted by then.
    /// Other nodes send them for the adopted sessions, too, until they know that these are here.
    pub(super) delivered: HashMap<(u64, u64), u32, RandomState>,
    /// Origins and numbers of messages that these sessions have got as adopted ones. What another shard of this node has
    /// published may arrive from there later.
    pub(super) passed_on: HashSet<(u64, u64), RandomState>,
}

impl NodeAdoption {
    pub(super) fn insert(&mut self, number: u64, before: u64) {
        let numbers = Arc::make_mut(&mut self.numbers);
        let position = numbers.len() as u32;
        numbers
            .entry(number)
            .or_insert(AdoptedNumber { before, position });
    }
}
