//! Conditions for the sessions that get a message from before a start, or from another node.

use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

/// A session that was adopted from another node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AdoptedNumber {
    /// The number that it had there.
    pub(crate) before: u64,
    /// How many sessions this shard had adopted from the node before it.
    pub(crate) position: u32,
}

/// The sessions of this shard that were adopted from one node, by their numbers here.
pub(crate) type AdoptedNumbers = HashMap<u64, AdoptedNumber, RandomState>;

/// A number of shards of a node, and one of these shards.
pub(crate) type ShardOfNode = (u64, u64);

/// A condition for the sessions that get a message.
#[derive(Debug, Clone)]
pub(crate) enum SessionFilter {
    /// Durable ones.
    Durable,
    /// Those whose number modulo the first value is the second one.
    OfShard { shards: u64, shard: u64 },
    /// Those that were adopted from a node.
    Adopted {
        numbers: Arc<AdoptedNumbers>,
        /// If it is not `None`, only those of this shard of the node.
        of_shard: Option<ShardOfNode>,
        /// Not those of these shards of the node, which had the message.
        excluded_shards: Vec<ShardOfNode>,
        /// Not the first ones that were adopted, which have got it here.
        excluded_first: u32,
    },
    /// Those that were not adopted from certain nodes.
    NotAdopted(Vec<Arc<AdoptedNumbers>>),
}

impl SessionFilter {
    pub(crate) fn accepts(&self, store_number: u64) -> bool {
        match self {
            SessionFilter::Durable => store_number != 0,
            SessionFilter::OfShard { shards, shard } => store_number % shards == *shard,
            SessionFilter::Adopted {
                numbers,
                of_shard,
                excluded_shards,
                excluded_first,
            } => {
                let Some(number) = numbers.get(&store_number) else {
                    return false;
                };
                let is_of = |&(shards, shard): &ShardOfNode| number.before % shards == shard;
                of_shard.as_ref().is_none_or(is_of)
                    && !excluded_shards.iter().any(is_of)
                    && number.position >= *excluded_first
            }
            SessionFilter::NotAdopted(nodes) => {
                let mut nodes = nodes.iter();
                !nodes.any(|numbers| numbers.contains_key(&store_number))
            }
        }
    }
}
