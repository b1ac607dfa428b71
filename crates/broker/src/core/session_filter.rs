//! Conditions for the sessions that get a message from before a start, or from another node.

use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

/// The sessions of this shard that were adopted from one node: their numbers here, and those they had there.
pub(crate) type AdoptedNumbers = HashMap<u64, u64, RandomState>;

/// A condition for the sessions that get a message.
#[derive(Debug, Clone)]
pub(crate) enum SessionFilter {
    /// Durable ones.
    Durable,
    /// Those whose number modulo the first value is the second one.
    OfShard { shards: u64, shard: u64 },
    /// Those that were adopted from a node; if `shards` is not 0, only from its shard `shard`.
    Adopted {
        numbers: Arc<AdoptedNumbers>,
        shards: u64,
        shard: u64,
    },
}

impl SessionFilter {
    pub(crate) fn accepts(&self, store_number: u64) -> bool {
        match self {
            SessionFilter::Durable => store_number != 0,
            SessionFilter::OfShard { shards, shard } => store_number % shards == *shard,
            SessionFilter::Adopted {
                numbers,
                shards,
                shard,
            } => (numbers.get(&store_number))
                .is_some_and(|before| *shards == 0 || before % shards == *shard),
        }
    }
}
