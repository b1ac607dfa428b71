//! Redistributes the stored messages of a shared subscription member whose session has ended. They are read page by
//! page and passed on to the other members [MQTT 4.8.2]. A shard processes one backlog at a time, so that other work
//! does not wait for it.
//!
//! The store does not record by which subscription a message came. A message that can only have come by one shared
//! subscription is passed on. A message that may be meant for the session alone ends with it.
//!
//! It orchestrates: the backlogs are in `SharedBacklogs`, their reads in `StoredReads`.

use std::rc::Rc;

use hooks::DropReason;
use mqtt::QoS;
use store::{QueueEntry, QueuePage};

use super::delivery::Delivery;
use super::records;
use super::session::{QueueSize, SessionMessage};
use super::shard::Shard;
use super::shared_backlog::SharedBacklog;
use super::shared_subscription::SubscriptionGroup;
use super::tables::{GroupId, NO_GROUP, SessionIx};

/// Bound on the filters of one backlog; a session with more leaves none.
const MAX_FILTERS: usize = 256;

fn has_members(group: &SubscriptionGroup) -> bool {
    group.local_len() > 0 || group.remote().iter().any(|remote| remote.total > 0)
}

impl Delivery {
    /// Like `drop_backlog`, for a session whose [`SharedBacklog`] contains its messages.
    pub(super) fn release_backlog(&mut self, at: SessionIx) {
        if let Some(outbound) = self.sessions[at].outbound.take() {
            self.update_queue_counters(outbound.size(), QueueSize::default());
        }
    }
}

impl Shard {
    /// The backlog that a session that has left its groups leaves to them; `None`: nothing.
    pub(super) fn collect_shared_backlog(&self, at: SessionIx) -> Option<SharedBacklog> {
        let session = &self.delivery.sessions[at];
        let is_stored = session.store_number != 0 && self.delivery.journal.is_some();
        let has_room = self.shared_backlogs.has_room();
        if !is_stored || session.outbound.is_none() || !has_room {
            return None;
        }
        let mut backlog = SharedBacklog {
            store_number: session.store_number,
            from_seq: 0,
            shared_filters: Vec::new(),
            other_filters: Vec::new(),
        };
        for &(filter, group) in session.subscriptions.iter().take(MAX_FILTERS + 1) {
            let text = self.tree.filter(filter).text.clone();
            let group = (group != NO_GROUP).then(|| self.tree.group(group));
            match group.filter(|group| has_members(group)) {
                Some(group) => backlog.shared_filters.push((text, group.name.clone())),
                None => backlog.other_filters.push(text),
            }
        }
        let filters = backlog.shared_filters.len() + backlog.other_filters.len();
        (!backlog.shared_filters.is_empty() && filters <= MAX_FILTERS).then_some(backlog)
    }

    /// Queues a backlog; it is processed after those before it.
    pub(super) fn start_redistribution(&mut self, backlog: SharedBacklog) {
        let number = backlog.store_number;
        let is_current = self.shared_backlogs.push(backlog);
        if let Some(journal) = &mut self.delivery.journal {
            journal.unbind_session(number);
            if is_current {
                journal.reads.start(number, 0);
            }
        }
    }

    /// Passes on the messages in a page of stored messages, if it belongs to the backlog being processed.
    pub(super) fn redistribute_page(&mut self, page: &QueuePage) {
        let Some(mut backlog) = self.shared_backlogs.take_current(page.session) else {
            return;
        };
        for entry in &page.entries {
            if entry.seq < backlog.from_seq {
                continue;
            }
            backlog.from_seq = entry.seq + 1;
            self.redistribute_stored_message(&backlog, entry);
            if let Some(journal) = &mut self.delivery.journal {
                journal.mark_done(backlog.store_number, entry.seq);
            }
        }
        self.close_pending_connections();
        let Some(journal) = &mut self.delivery.journal else {
            return;
        };
        match page.is_last {
            true => journal.end_session(backlog.store_number),
            false => self.shared_backlogs.put_back(backlog),
        }
        if let Some(next) = self.shared_backlogs.current() {
            journal.reads.start(next.store_number, next.from_seq);
        }
    }

    fn redistribute_stored_message(&mut self, backlog: &SharedBacklog, entry: &QueueEntry) {
        let message = records::read_message(&entry.body).filter(|_| !entry.released);
        let attributes = records::read_attributes(&entry.attributes);
        let (Some(message), Some(attributes)) = (message, attributes) else {
            return;
        };
        // A QoS 2 message that was sent goes to no other client [MQTT-4.8.2-5].
        let may_go = entry.packet_id == 0 || attributes.qos != QoS::ExactlyOnce;
        let target = backlog
            .target_group(message.view().topic)
            .filter(|_| may_go);
        let Some(group) =
            target.and_then(|(filter, name)| self.find_group_with_members(filter, name))
        else {
            let view = message.view();
            return self
                .delivery
                .record_drop(None, &view, DropReason::SessionEnded);
        };
        self.redistribute(vec![SessionMessage {
            message: Rc::new(message),
            qos: attributes.qos,
            retain: attributes.retain,
            identifiers: None,
            group,
            seq: 0,
        }]);
    }

    /// Returns the group if it still has members; they may have left since the session ended.
    fn find_group_with_members(&self, filter: &str, name: &str) -> Option<GroupId> {
        let filter = self.tree.find(filter)?;
        let group = self.tree.find_group(filter, name)?;
        has_members(self.tree.group(group)).then_some(group)
    }
}
