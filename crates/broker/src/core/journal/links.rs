//! Links: messages that are recorded on their way to another shard or to other nodes.

use hooks::MessageView;
use mqtt::QoS;

use super::ShardJournal;
use crate::core::cross_shard_batch::{CrossShardBatch, GroupMemberTarget, MessageId, NodeTraffic};
use crate::core::dispatch::Dispatch;
use crate::core::node_link::{EntryRange, FirstSeqs, RestoredEntry, id_after};
use crate::core::records::{self, MAX_NODE_ENTRY_TEXT, NodeEntry, NodeEntryTarget};
use crate::core::shard_link::{CrossShardRecord, ShardLink};

impl ShardJournal {
    /// Records that a message goes to another shard, for all its subscribers or for one member of a group. A message
    /// that must arrive exactly once gets an entry in the link. Any other message above QoS 0 is confirmed by the other
    /// shard.
    pub(crate) fn record_cross_shard(
        &mut self,
        to: u16,
        view: &MessageView<'_>,
        dispatch: &mut Dispatch<'_>,
        member: Option<GroupMemberTarget<'_>>,
    ) -> CrossShardRecord {
        if view.qos == QoS::AtMostOnce {
            return CrossShardRecord::None;
        }
        let is_to_nodes = self.node_router == Some(to);
        let has_room = member
            .is_none_or(|member| member.filter.len() + member.group.len() <= MAX_NODE_ENTRY_TEXT);
        if !dispatch.is_exactly_once || is_to_nodes && !has_room {
            self.require_confirmation(to);
            return CrossShardRecord::None;
        }
        if !std::mem::replace(&mut dispatch.is_journaled, true) {
            self.append_message(view);
        }
        if is_to_nodes {
            let target = member.map_or(NodeEntryTarget::All, NodeEntryTarget::Member);
            if let Some(id) = self.append_node_entry(view, target, None) {
                return CrossShardRecord::ForNodes(id);
            }
        }
        let group = member.map(|member| (member.filter, member.group));
        CrossShardRecord::InLink(self.append_link_entry(to, group))
    }

    /// Records that the message written last goes to other nodes, and has them forwarded when that is logged. `id`: its
    /// identity, if it was published at another node.
    fn append_node_entry(
        &mut self,
        view: &MessageView<'_>,
        target: NodeEntryTarget<'_>,
        id: Option<MessageId>,
    ) -> Option<MessageId> {
        let link = self.node_link.as_mut()?;
        let own = link.next_id();
        let id = id.unwrap_or(own);
        let entry = NodeEntry {
            origin: id.origin,
            seq: id.seq,
            target,
        };
        self.scratch.clear();
        records::put_node_entry(&entry, &mut self.scratch);
        self.batch
            .add_entry(link.queue(), own.seq, 0, &self.scratch);
        let message = NodeTraffic { view, id: Some(id) };
        link.push(own.seq, message, target);
        Some(id)
    }

    /// Records a retained message that has to be passed to all other nodes although its publisher does not send it again.
    pub(crate) fn record_retained_copy(&mut self, view: &MessageView<'_>) {
        self.append_message(view);
        self.append_node_entry(view, NodeEntryTarget::RetainedCopy, None);
    }

    /// Takes over the messages that were in the links of the node `from`, whose sessions this one adopts.
    pub(crate) fn adopt_node_entries(
        &mut self,
        from: &str,
        entries: &[RestoredEntry],
        first_seqs: &FirstSeqs,
    ) {
        for restored in entries {
            let NodeEntry {
                origin,
                seq,
                target,
            } = restored.entry();
            let target = match target {
                NodeEntryTarget::All => NodeEntryTarget::PublishedAt(from),
                target => target,
            };
            let view = restored.message.view();
            self.append_message(&view);
            let id = id_after(origin, seq, first_seqs);
            self.append_node_entry(&view, target, Some(id));
        }
    }

    /// The next messages for other nodes that are in the log, and in that of the standby. This turn forwards them.
    pub(crate) fn pop_logged_for_nodes(&mut self) -> Option<CrossShardBatch> {
        let (logged, turn) = (self.last_logged_turn(), self.turn);
        self.node_link.as_mut()?.pop_logged(logged, turn)
    }

    /// Bytes of messages for other nodes that wait for the log.
    pub(crate) fn waiting_bytes_for_nodes(&self) -> usize {
        let link = self.node_link.as_ref();
        link.map_or(0, |link| link.waiting_bytes())
    }

    /// Whether messages for other nodes were forwarded in this turn.
    pub(super) fn has_forwarded_to_nodes(&self) -> bool {
        let turn = self.turn;
        let link = self.node_link.as_ref();
        link.is_some_and(|link| link.has_forwarded_in(turn))
    }

    /// Forgets the messages for other nodes, because another node has adopted them.
    pub(crate) fn abandon_node_link(&mut self) {
        let removed = match &mut self.node_link {
            Some(link) => link.clear(),
            None => return,
        };
        self.remove_node_entries(&removed);
    }

    /// Removes messages for other nodes from the link.
    pub(crate) fn remove_node_entries(&mut self, removed: &[EntryRange]) {
        for range in removed {
            for seq in range.first..=range.last {
                self.batch.complete_entry(range.queue, seq);
            }
        }
    }

    /// Continues a link after a start where it ended.
    pub(crate) fn resume_link(&mut self, link: ShardLink, last_seq: u64) {
        if u64::from(link.shards) == self.shard_count && link.from == self.shard {
            match &mut self.node_link {
                Some(to_nodes) if link.leads_to_nodes() => to_nodes.resume_after(last_seq),
                _ if link.leads_to_nodes() => {}
                _ => self.link_seqs[usize::from(link.to)] = last_seq,
            }
        }
    }

    /// Records that the message written last goes to another shard, for all its subscribers or for one member of a
    /// group.
    fn append_link_entry(&mut self, to: u16, member: Option<(&str, &str)>) -> u64 {
        let seq = &mut self.link_seqs[usize::from(to)];
        *seq += 1;
        let link = ShardLink {
            shards: self.shard_count as u16,
            from: self.shard,
            to,
        };
        self.scratch.clear();
        records::put_member_target(member, &mut self.scratch);
        self.batch
            .add_entry(link.store_number(), *seq, 0, &self.scratch);
        self.updated_links |= 1 << to;
        *seq
    }

    /// Removes a message that arrived from another shard from its link, after its subscribers are recorded.
    pub(crate) fn complete_link_entry(&mut self, from: u16, seq: u64) {
        let link = ShardLink {
            shards: self.shard_count as u16,
            from,
            to: self.shard,
        };
        self.batch.complete_entry(link.store_number(), seq);
    }
}
