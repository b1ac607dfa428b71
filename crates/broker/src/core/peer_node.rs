//! What the node router knows of the other nodes of a cluster.

use std::collections::VecDeque;

use super::cross_shard_batch::CrossShardBatch;
use super::interest_snapshot::InterestSnapshot;
use super::node_batches::SentBatches;
use super::node_messages::Announcement;
use super::retained_transfer::RetainedTransfer;
use super::tables::TableIx;
use crate::config::MAX_PEER_NODES;

/// Index of another node while it can be reached, below [`MAX_PEER_NODES`]. It is not the slot of the node, which remains
/// the same while the node cannot be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerNodeIx(u8);

impl PeerNodeIx {
    /// Panics if `index` is not below [`MAX_PEER_NODES`].
    pub fn new(index: u8) -> Self {
        assert!(
            usize::from(index) < MAX_PEER_NODES,
            "a node knows at most {MAX_PEER_NODES} others"
        );
        Self(index)
    }

    pub fn get(self) -> u8 {
        self.0
    }

    /// The bit of this node in a set of nodes.
    pub(crate) fn bit(self) -> u64 {
        1 << self.0
    }
}

impl TableIx for PeerNodeIx {
    fn from_position(position: usize) -> Self {
        Self(position as u8)
    }

    fn position(self) -> usize {
        usize::from(self.0)
    }
}

/// What this node knows of a node that can be reached.
pub(super) struct PeerNode {
    pub(super) slot: u8,
    /// Its announcements up to the first number are applied by all shards when these have applied this router's
    /// announcements up to the second one.
    pub(super) unconfirmed: VecDeque<(u64, u64)>,
    /// Whether everything that it announced before it became reachable has arrived.
    pub(super) is_complete: bool,
    /// What it has announced since it became reachable again, until it has announced everything.
    pub(super) snapshot: Option<Box<InterestSnapshot>>,
    /// Whether its store rejects writes.
    pub(super) rejects: bool,
    /// The retained messages that it lacks, until they are sent.
    pub(super) retained_transfer: Option<Box<RetainedTransfer>>,
    /// Whether it has named the stream of its batches, which is confirmed from then on.
    pub(super) has_named_stream: bool,
    /// The last announcement of this node that it has applied.
    pub(super) applied: u64,
    /// Announcements that it has not been sent yet, and the number of the last one before them.
    pub(super) announcements: Vec<Announcement>,
    pub(super) announced: u64,
}

/// What this node keeps of another one, from the first time that it is reachable until it is given up.
pub(super) struct RemoteNode {
    pub(super) name: Box<str>,
    /// `None` while it cannot be reached, since `lost_ms`.
    pub(super) peer: Option<PeerNodeIx>,
    pub(super) lost_ms: u64,
    pub(super) batch: CrossShardBatch,
    /// Whether the batch contains a message that has to be confirmed.
    pub(super) confirm: bool,
    pub(super) sent: SentBatches,
}
