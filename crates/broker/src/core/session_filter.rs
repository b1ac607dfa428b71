//! Conditions for the sessions that get a message from before a start, or from another node.

use std::sync::Arc;

use super::hash_state::RandomState;
use hashbrown::HashMap;

use super::records::SessionRecord;

/// A session that was adopted from another node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AdoptedNumber {
    /// The number that it had there.
    pub(crate) before: u64,
    /// That node had not adopted it itself.
    pub(crate) is_of_node: bool,
}

impl AdoptedNumber {
    /// `record` is that of the other node.
    pub(crate) fn of(record: &SessionRecord<'_>) -> Self {
        Self {
            before: record.number,
            is_of_node: record.adoption.is_none(),
        }
    }

    fn is_of(&self, &(shards, shard): &ShardOfNode) -> bool {
        self.before % shards == shard
    }
}

/// The sessions of this shard that were adopted from one node, by their numbers here.
pub(crate) type AdoptedNumbers = HashMap<u64, AdoptedNumber, RandomState>;

/// A number of shards of a node, and one of these shards.
pub(crate) type ShardOfNode = (u64, u64);

/// The sessions of a node that had got a message there when it failed.
#[derive(Debug, Clone, Default)]
pub(crate) struct FormerReceivers {
    /// All of these shards.
    pub(crate) shards: Vec<ShardOfNode>,
    /// All except those that the node had adopted itself: it has published the message, perhaps before it had these.
    pub(crate) is_published_there: bool,
}

impl FormerReceivers {
    fn contains(&self, number: &AdoptedNumber) -> bool {
        self.is_published_there && number.is_of_node
            || self.shards.iter().any(|shard| number.is_of(shard))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.shards.is_empty() && !self.is_published_there
    }
}

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
        /// Not those that had the message there.
        excluded: FormerReceivers,
        /// Not those with lower numbers, which have got it here.
        excluded_below: u64,
    },
    /// All except these.
    NotAdopted(Vec<ExcludedSessions>),
}

/// Sessions that were adopted from a node, and have got a message.
#[derive(Debug, Clone)]
pub(crate) struct ExcludedSessions {
    pub(crate) numbers: Arc<AdoptedNumbers>,
    /// Only those that had it at the node; `None`: all.
    pub(crate) receivers: Option<FormerReceivers>,
}

impl ExcludedSessions {
    fn contains(&self, store_number: u64) -> bool {
        let number = self.numbers.get(&store_number);
        number.is_some_and(|number| {
            let receivers = self.receivers.as_ref();
            receivers.is_none_or(|receivers| receivers.contains(number))
        })
    }
}

impl SessionFilter {
    pub(crate) fn accepts(&self, store_number: u64) -> bool {
        match self {
            SessionFilter::Durable => store_number != 0,
            SessionFilter::OfShard { shards, shard } => store_number % shards == *shard,
            SessionFilter::Adopted {
                numbers,
                of_shard,
                excluded,
                excluded_below,
            } => {
                let Some(number) = numbers.get(&store_number) else {
                    return false;
                };
                of_shard.as_ref().is_none_or(|shard| number.is_of(shard))
                    && !excluded.contains(number)
                    && store_number >= *excluded_below
            }
            SessionFilter::NotAdopted(nodes) => {
                let mut nodes = nodes.iter();
                !nodes.any(|excluded| excluded.contains(store_number))
            }
        }
    }
}
