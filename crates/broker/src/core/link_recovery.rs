//! Messages that were between two shards, or on their way to other nodes, when the node died: they are delivered, or passed on.

use hooks::MessageView;

use store::QueuePage;

use super::dispatch::Dispatch;
use super::node_link::{EntryRange, RestoredEntry, push_entry};
use super::records;
use super::routing::deliver_locally;
use super::session_filter::SessionFilter;
use super::shard::Shard;
use super::shard_link::ShardLink;

impl Shard {
    /// Whether this shard delivers the messages in a link. With an unchanged number of shards it is the same shard as
    /// before. Otherwise every shard delivers to the sessions that were on the link's shard. One shard passes on what was for
    /// other nodes.
    pub(crate) fn is_responsible_for(&self, link: ShardLink) -> bool {
        match link.leads_to_nodes() {
            true => link.from % self.shards == self.id,
            false => link.shards != self.shards || link.to == self.id,
        }
    }

    /// Takes over messages that were on their way to other nodes when the node died.
    fn restore_for_nodes(&mut self, link: ShardLink, page: &QueuePage) {
        let queue = link.store_number();
        for entry in &page.entries {
            match RestoredEntry::read(queue, entry) {
                Some(entry) if !self.has_abandoned_for_nodes => self.restored_for_nodes.push(entry),
                read => {
                    if read.is_none() {
                        tracing::error!(
                            "message for other nodes could not be decoded; message lost"
                        );
                    }
                    self.remove_node_entries(&[EntryRange::of_entry(queue, entry.seq)]);
                }
            }
        }
    }

    fn remove_node_entries(&mut self, entries: &[EntryRange]) {
        if let Some(journal) = &mut self.delivery.journal {
            journal.remove_node_entries(entries);
        }
    }

    /// Passes on the messages that were on their way to other nodes when the node died. The filters of the other nodes are
    /// known, and no other node has adopted the sessions of this one.
    pub(crate) fn forward_restored(&mut self) {
        let restored = std::mem::take(&mut self.restored_for_nodes);
        let Some(journal) = &mut self.delivery.journal else {
            return;
        };
        let turn = journal.turn();
        if let (Some(link), Some(router)) = (&mut journal.node_link, self.node_router) {
            let queues = &mut self.shard_queues;
            return link.forward_restored(&restored, turn, |message, target| {
                queues.push_with(router, |batch| push_entry(batch, message, target));
            });
        }
        // The node has left the cluster.
        let entries = restored.iter();
        let entries: Vec<_> = entries.map(RestoredEntry::range).collect();
        journal.remove_node_entries(&entries);
    }

    /// Forgets the messages for other nodes, because another node has adopted them.
    pub(crate) fn abandon_for_nodes(&mut self) {
        self.has_abandoned_for_nodes = true;
        let restored = std::mem::take(&mut self.restored_for_nodes);
        if let Some(journal) = &mut self.delivery.journal {
            journal.abandon_node_link();
            let entries: Vec<_> = restored.iter().map(RestoredEntry::range).collect();
            journal.remove_node_entries(&entries);
        }
    }

    /// Delivers the messages that were between two shards when the node died to their receivers.
    pub(crate) fn deliver_linked(&mut self, link: ShardLink, page: &QueuePage) {
        if link.leads_to_nodes() {
            return self.restore_for_nodes(link, page);
        }
        for entry in &page.entries {
            let message = records::read_message(&entry.body);
            let member = records::read_member_target(&entry.attributes);
            if let (Some(message), Some(member)) = (message, member) {
                self.deliver_linked_message(link, &message.view(), member);
            } else {
                tracing::error!("message in a shard link could not be decoded; message lost");
            }
            if link.shards == self.shards
                && let Some(journal) = &mut self.delivery.journal
            {
                journal.complete_link_entry(link.from, entry.seq);
            }
        }
        self.close_pending_connections();
    }

    fn deliver_linked_message(
        &mut self,
        link: ShardLink,
        view: &MessageView<'_>,
        member: Option<(&str, &str)>,
    ) {
        let mut dispatch = Dispatch::new(view, None);
        dispatch.is_exactly_once = true;
        let Some((filter, group)) = member else {
            if link.shards == self.shards {
                let (set, filters) = self.tree.match_topic(view.topic);
                return deliver_locally(&mut self.delivery, set, filters, &mut dispatch);
            }
            let filter = SessionFilter::OfShard {
                shards: link.shards.into(),
                shard: link.to.into(),
            };
            return self.deliver_to_some(filter, &mut dispatch);
        };
        // Exactly one shard chooses the member.
        if link.shards == self.shards || self.id == 0 {
            let group = self
                .tree
                .find(filter)
                .and_then(|filter| self.tree.find_group(filter, group));
            if let Some(group) = group {
                self.deliver_to_group(group, &mut dispatch);
            }
        }
    }

    /// Deletes a link that is no longer used.
    pub(crate) fn delete_link(&mut self, link: ShardLink) {
        if let Some(journal) = &mut self.delivery.journal {
            journal.end_session(link.store_number());
        }
    }
}
