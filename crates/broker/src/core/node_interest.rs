//! What the other nodes of a cluster want, as the node router announces it to the shards of this one.
//!
//! It orchestrates: the filters and groups of all nodes are in the `remote` tree of the router, by the slots of nodes. Most
//! filters are in its [`NodeFilters`](super::remote_interest::NodeFilters), without their texts.

use std::sync::Arc;

use super::filter_key::FilterKey;
use super::interest_snapshot::InterestSnapshot;
use super::node_messages::Announcement;
use super::node_router::NodeRouter;
use super::remote_interest::{NodeFilterChange, RemovedFilters};
use super::shard_messages::ShardMessage;
use super::shared_subscription::RemoteMembers;

impl NodeRouter {
    pub(super) fn apply_announcement(&mut self, slot: u8, announcement: &Announcement) {
        match announcement {
            Announcement::Filter { filter, wanted } => {
                self.set_remote_filter(slot, filter, *wanted);
            }
            Announcement::Members {
                filter,
                group,
                online,
                total,
            } => self.set_remote_members(slot, filter, group, *online, *total),
        }
    }

    fn set_remote_filter(&mut self, slot: u8, text: &str, wanted: bool) {
        if self.remote.remote_shards_in_tree(text) == 0 {
            let key = FilterKey::of(text);
            let change = self
                .remote
                .change_remote_filter(text, |nodes| nodes.set(slot, &key, wanted));
            match change {
                Some(NodeFilterChange::SameForShards) => return,
                Some(NodeFilterChange::Began) => return self.broadcast_filter(text, true),
                Some(NodeFilterChange::Ended) => return self.broadcast_filter(text, false),
                // There are too many shapes of filters.
                None => {}
            }
        }
        self.set_remote_filter_in_tree(slot, text, wanted);
    }

    fn broadcast_filter(&mut self, text: &str, wanted: bool) {
        self.queues
            .broadcast(|sequence| ShardMessage::FilterInterest {
                filter: text.into(),
                wanted,
                sequence,
            });
    }

    fn set_remote_filter_in_tree(&mut self, slot: u8, text: &str, wanted: bool) {
        let id = match wanted {
            true => self.remote.find_or_insert(text),
            false => match self.remote.find(text) {
                Some(id) => id,
                None => return,
            },
        };
        let was_wanted = self.remote.filter(id).remote_shards != 0;
        self.remote.set_remote(id, slot.into(), wanted);
        let is_wanted = self.remote.filter(id).remote_shards != 0;
        self.remote.remove_if_unused(id);
        if was_wanted != is_wanted {
            self.broadcast_filter(text, is_wanted);
        }
    }

    fn set_remote_members(&mut self, slot: u8, text: &str, name: &str, online: u32, total: u32) {
        let filter = self.remote.find_or_insert(text);
        let id = self.remote.find_or_insert_group(filter, name);
        let group = self.remote.group_mut(id);
        group.set_remote(RemoteMembers {
            shard: slot.into(),
            online,
            total,
        });
        let sum = |count: fn(&RemoteMembers) -> u32| group.remote().iter().map(count).sum();
        let (online, total) = (sum(|members| members.online), sum(|members| members.total));
        self.queues
            .broadcast(|sequence| ShardMessage::GroupMembers {
                filter: text.into(),
                group: name.into(),
                online,
                total,
                sequence,
            });
        self.remote.remove_group_if_unused(id);
    }

    /// The filters and names of the groups in which a node has members, with these.
    fn groups_of(&self, slot: u8) -> Vec<(Box<str>, Box<str>, RemoteMembers)> {
        let mut found = Vec::new();
        for (_, filter) in self.remote.filters.iter() {
            for &group in &filter.groups {
                let group = self.remote.group(group);
                let mut members = group.remote().iter();
                if let Some(members) = members.find(|members| members.shard == u16::from(slot)) {
                    let (text, name) = ((&*filter.text).into(), (&*group.name).into());
                    found.push((text, name, *members));
                }
            }
        }
        found
    }

    /// The members of a node that cannot be reached get no message that another one can get at once.
    pub(super) fn set_members_offline(&mut self, slot: u8) {
        for (filter, group, members) in self.groups_of(slot) {
            if members.online > 0 {
                self.set_remote_members(slot, &filter, &group, 0, members.total);
            }
        }
    }

    /// Removes what a node wanted and what is not in `snapshot`.
    pub(super) fn remove_interest(&mut self, slot: u8, snapshot: &InterestSnapshot) {
        for (filter, group, _) in self.groups_of(slot) {
            if !snapshot.has_group(&filter, &group) {
                self.set_remote_members(slot, &filter, &group, 0, 0);
            }
        }
        let removed: Arc<[RemovedFilters]> = self
            .remote
            .change_remote_filters(|nodes| {
                nodes.remove_node(slot, |filter| snapshot.has_filter(filter))
            })
            .into();
        if !removed.is_empty() {
            self.queues
                .broadcast(|sequence| ShardMessage::RouterFiltersRemoved {
                    removed: removed.clone(),
                    sequence,
                });
        }
        let filters = self.remote.filters.iter();
        let unwanted: Vec<Box<str>> = filters
            .filter(|(_, filter)| filter.remote_shards & 1 << slot != 0)
            .filter(|(_, filter)| !snapshot.has_filter(FilterKey::of(&filter.text).fingerprint))
            .map(|(_, filter)| (&*filter.text).into())
            .collect();
        for text in unwanted {
            self.set_remote_filter_in_tree(slot, &text, false);
        }
    }
}
