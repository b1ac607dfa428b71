//! What the shards of this node want: announcements to the other nodes, and their confirmation.

use std::sync::atomic::Ordering::Relaxed;

use super::NodeRouter;
use crate::core::node_messages::{self, Announcement};
use crate::core::peer_node_ix::PeerNodeIx;
use crate::core::retained_versions::NODE_TOPICS;
use crate::core::shard_messages::ShardMessage;
use crate::core::shared_subscription::RemoteMembers;
use crate::core::tables::{GroupId, TableIx as _};

impl NodeRouter {
    pub(super) fn send_all_announcements(&mut self, index: PeerNodeIx) {
        let mut announcements = Vec::new();
        for (_, filter) in self.local.filters.iter() {
            if filter.remote_shards != 0 && !filter.text.starts_with(NODE_TOPICS) {
                announcements.push(Announcement::Filter {
                    filter: (&*filter.text).into(),
                    wanted: true,
                });
            }
            for &group in &filter.groups {
                announcements.push(self.members_announcement(group));
            }
        }
        let outgoing = &mut self.outgoing;
        let send = |message| outgoing.push((index, message));
        node_messages::encode_announcements(&announcements, 0, 0, send);
        if let Some(peer) = &mut self.peers[index.position()] {
            peer.awaits_completion = true;
        }
        self.send_completions();
    }

    /// Tells nodes that they know everything that this one wants, once all shards have announced the filters of their stored
    /// sessions. Until then, a node that knew this one keeps messages for the filters that it had before.
    pub(super) fn send_completions(&mut self) {
        if !self.are_shards_restored() {
            return;
        }
        self.send_announcements();
        let complete = node_messages::encode_complete(self.sequence);
        // As long as the sessions are held, these are announced.
        let forgets_with = match self.node.are_sessions_held.load(Relaxed) {
            true => u64::MAX,
            false => self.sequence,
        };
        for (position, peer) in self.peers.iter_mut().enumerate() {
            if let Some(peer) = peer
                && std::mem::take(&mut peer.awaits_completion)
            {
                peer.forgets_with = forgets_with;
                let to = PeerNodeIx::from_position(position);
                self.outgoing.push((to, complete.clone()));
            }
        }
    }

    /// A shard wants a filter, or wants it no longer. Returns the announcement that the other nodes have to apply first.
    pub(super) fn set_local_filter(&mut self, shard: u16, text: &str, wanted: bool) -> u64 {
        let id = match wanted {
            true => self.local.find_or_insert(text),
            false => match self.local.find(text) {
                Some(id) => id,
                None => return 0,
            },
        };
        let was_wanted = self.local.filter(id).remote_shards != 0;
        self.local.set_remote(id, shard, wanted);
        let is_wanted = self.local.filter(id).remote_shards != 0;
        if was_wanted != is_wanted && !text.starts_with(NODE_TOPICS) {
            let sequence = self.announce(&Announcement::Filter {
                filter: text.into(),
                wanted: is_wanted,
            });
            self.local.filter_mut(id).announced_sequence = sequence;
        }
        let required = self.local.filter(id).announced_sequence;
        self.local.remove_if_unused(id);
        if wanted { required } else { 0 }
    }

    pub(super) fn set_local_members(
        &mut self,
        filter: &str,
        name: &str,
        members: RemoteMembers,
    ) -> u64 {
        let filter = self.local.find_or_insert(filter);
        let group = self.local.find_or_insert_group(filter, name);
        self.local.group_mut(group).set_remote(members);
        let announcement = self.members_announcement(group);
        let sequence = self.announce(&announcement);
        self.local.remove_group_if_unused(group);
        sequence
    }

    fn members_announcement(&self, group: GroupId) -> Announcement {
        let group = self.local.group(group);
        let sum = |count: fn(&RemoteMembers) -> u32| group.remote().iter().map(count).sum();
        Announcement::Members {
            filter: (&*self.local.filter(group.filter).text).into(),
            group: (&*group.name).into(),
            online: sum(|members| members.online),
            total: sum(|members| members.total),
        }
    }

    fn announce(&mut self, announcement: &Announcement) -> u64 {
        self.sequence += 1;
        for peer in self.peers.iter_mut().flatten() {
            peer.announcements.push(announcement.clone());
        }
        self.sequence
    }

    pub(super) fn send_announcements(&mut self) {
        let sequence = self.sequence;
        for (position, peer) in self.peers.iter_mut().enumerate() {
            let Some(peer) = peer else { continue };
            let to = PeerNodeIx::from_position(position);
            if peer.announcements.is_empty() {
                continue;
            }
            let outgoing = &mut self.outgoing;
            let send = |message| outgoing.push((to, message));
            node_messages::encode_announcements(
                &peer.announcements,
                peer.announced,
                sequence,
                send,
            );
            peer.announcements.clear();
            peer.announced = sequence;
        }
    }

    /// The announcements of a node up to `sequence` are confirmed when all shards have applied what results from them.
    pub(super) fn confirm_later(&mut self, from: PeerNodeIx, sequence: u64) {
        let own = self.queues.last_sequence();
        if let Some(peer) = &mut self.peers[from.position()] {
            peer.unconfirmed.push_back((sequence, own));
        }
    }

    /// Confirms the announcements of shards that all reachable nodes have applied.
    pub(super) fn confirm_announcements(&mut self) {
        let applied = (self.peers.iter().flatten())
            .map(|peer| peer.applied)
            .min()
            .unwrap_or(u64::MAX);
        for (shard, unconfirmed) in self.unconfirmed.iter_mut().enumerate() {
            let mut confirmed = 0;
            while let Some((sequence, _)) =
                unconfirmed.pop_front_if(|&mut (_, required)| required <= applied)
            {
                confirmed = sequence;
            }
            if confirmed > 0 {
                let message = ShardMessage::SequenceApplied {
                    sequence: confirmed,
                };
                self.queues.send(shard as u16, message);
            }
        }
    }
}
