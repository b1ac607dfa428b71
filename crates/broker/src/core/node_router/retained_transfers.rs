//! Retained messages that a node lacks, when it becomes reachable.

use super::NodeRouter;
use crate::core::peer_node_ix::PeerNodeIx;
use crate::core::retained_transfer::RetainedTransfer;
use crate::core::retained_versions::RetainedDigests;
use crate::core::tables::TableIx as _;

/// Retained messages that a node lacks, in one turn.
const TRANSFER_BYTES: usize = 8 << 20;

impl NodeRouter {
    /// Begins to send the retained messages of the buckets in which a node has others.
    pub(super) fn begin_retained_transfer(&mut self, from: PeerNodeIx, theirs: &RetainedDigests) {
        if let (Some(own), Some(peer)) = (self.retained.digests(), &mut self.peers[from.position()])
        {
            let transfer = RetainedTransfer::new(&own, theirs);
            peer.retained_transfer = Some(Box::new(transfer));
        }
    }

    /// Sends some of the retained messages that nodes lack. A node that is behind gets none now.
    pub(super) fn continue_retained_transfers(&mut self) {
        let retained = self.retained.clone();
        for index in 0..self.peers.len() {
            if self.peers_behind & 1 << index != 0 {
                continue;
            }
            let Some(peer) = &mut self.peers[index] else {
                continue;
            };
            let slot = peer.slot;
            let Some(mut transfer) = peer.retained_transfer.take() else {
                continue;
            };
            let has_more = transfer.send_some(&retained, TRANSFER_BYTES, |view| {
                self.push_retained_copy(slot, view)
            });
            if let Some(peer) = self.peers[index].as_mut().filter(|_| has_more) {
                peer.retained_transfer = Some(transfer);
            }
        }
    }
}
