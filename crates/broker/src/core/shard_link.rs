//! Queues of messages on their way to another shard, or to the other nodes.

use super::cross_shard_batch::MessageId;

/// Session numbers from here on denote shard links: queues of messages from one shard to another.
const FIRST_LINK_NUMBER: u64 = 1 << 62;

/// A durable queue of QoS 2 messages from one shard to another.
///
/// A QoS 2 message that a durable session published must reach subscribers on another shard exactly once. One shard
/// logs its packet id, the other shard logs its subscribers, and the node may die in between. Therefore the message is
/// written into the link together with the packet id. The shard message about it leaves when that is in the log. The
/// other shard removes it from the link in the batch that records its subscribers. A start delivers the messages it
/// finds in a link.
///
/// The link to the number behind the last shard is that to the other nodes, see [`NodeLink`](super::node_link::NodeLink).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ShardLink {
    /// Number of shards the node had. A session belongs to the shard whose id is its number modulo this.
    pub(crate) shards: u16,
    pub(crate) from: u16,
    pub(crate) to: u16,
}

impl ShardLink {
    pub(crate) fn store_number(self) -> u64 {
        FIRST_LINK_NUMBER
            | u64::from(self.shards) << 32
            | u64::from(self.from) << 16
            | u64::from(self.to)
    }

    pub(crate) fn from_store_number(number: u64) -> Option<Self> {
        let link = Self {
            shards: (number >> 32) as u16,
            from: (number >> 16) as u16,
            to: number as u16,
        };
        let is_valid = link.from < link.shards && link.to <= link.shards;
        (number & FIRST_LINK_NUMBER != 0 && is_valid).then_some(link)
    }

    /// Whether its messages are for other nodes.
    pub(crate) fn leads_to_nodes(self) -> bool {
        self.to == self.shards
    }
}

/// Where a message that goes to another shard, or to the node router, is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CrossShardRecord {
    /// Nowhere: it may arrive twice, or not at all if the publisher does not send it again.
    None,
    /// Under this number in the link to the shard.
    InLink(u64),
    /// In the link to the other nodes, which forwards it.
    ForNodes(MessageId),
}
