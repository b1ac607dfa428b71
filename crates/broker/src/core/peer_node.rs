//! What the node router knows of the other nodes of a cluster.

use std::collections::VecDeque;

use super::cross_shard_batch::CrossShardBatch;
use super::interest_snapshot::InterestSnapshot;
use super::node_batches::SentBatches;
use super::node_messages::Announcement;
use super::peer_node_ix::PeerNodeIx;
use super::retained_transfer::RetainedTransfer;

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
    /// Whether it has to be told that it knows everything; it is not as long as this node reads its stored sessions.
    pub(super) awaits_completion: bool,
    /// The announcement with which it has forgotten the filters that this node had before its sessions were adopted, or when it could not be
    /// reached; `u64::MAX`: that is not known yet.
    pub(super) forgets_with: u64,
}

/// What this node keeps of another one, from the first time that it is reachable until it is given up.
pub(super) struct RemoteNode {
    pub(super) name: Box<str>,
    /// `None` while it cannot be reached, since `lost_ms`.
    pub(super) peer: Option<PeerNodeIx>,
    pub(super) lost_ms: u64,
    /// How long it is kept then.
    pub(super) kept_ms: u64,
    pub(super) batch: CrossShardBatch,
    /// Whether the batch contains a message that has to be confirmed.
    pub(super) confirm: bool,
    pub(super) sent: SentBatches,
    /// The last batch before the node, which has returned in another slot, gets what it wants there.
    pub(super) returned_after: Option<u64>,
}
