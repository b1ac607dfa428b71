//! What is stored for a member of shared subscriptions when its session ends: it is read piece by piece and handed on to
//! the other members [MQTT 4.8.2]. One estate of a shard is settled at a time, so that others do not wait for it.
//!
//! The store does not say by which subscription a message came. What can only have come by one shared subscription is
//! handed on; what may be meant for the session alone ends with it.

use std::rc::Rc;

use mqtt::QoS;
use store::{Page, Stored};

use super::deliver::Delivery;
use super::session::{Parcel, QueueSize};
use super::shard::Shard;
use super::shared::Group;
use super::stored;
use super::sublist::{GroupId, NO_GROUP};
use crate::hooks::DropReason;

/// Estates that may wait for their turn, and filters one may have; what is beyond is not handed on.
const MAX_ESTATES: usize = 10_000;
const MAX_FILTERS: usize = 256;

pub(crate) struct Estate {
    /// The session was stored under.
    number: u64,
    /// What is before has been settled.
    from_seq: u64,
    /// Filters and names of groups that have other members.
    shared: Vec<(Rc<str>, Rc<str>)>,
    /// Filters of all other subscriptions.
    others: Vec<Rc<str>>,
}

impl Estate {
    /// The only subscription a message of this topic can have come by, if that is a shared one.
    fn heir(&self, topic: &str) -> Option<&(Rc<str>, Rc<str>)> {
        let fits = |filter: &str| mqtt::filter_matches(filter, topic);
        if self.others.iter().any(|filter| fits(filter)) {
            return None;
        }
        let mut shared = self.shared.iter().filter(|(filter, _)| fits(filter));
        let first = shared.next();
        first.filter(|_| shared.next().is_none())
    }
}

fn has_members(group: &Group) -> bool {
    group.local_len() > 0 || group.remote().iter().any(|remote| remote.total > 0)
}

impl Delivery {
    /// As `drop_backlog`, of a session whose estate has it all.
    pub(super) fn leave_backlog(&mut self, at: u32) {
        if let Some(outbound) = self.sessions[at as usize].outbound.take() {
            self.count_queue(outbound.size(), QueueSize::default());
        }
    }
}

impl Shard {
    /// What a session that has left its groups leaves to them; `None`: nothing.
    pub(super) fn estate_of(&self, at: u32) -> Option<Estate> {
        let session = &self.delivery.sessions[at as usize];
        let is_stored = session.number != 0 && self.delivery.journal.is_some();
        let has_room = self.estates.len() < MAX_ESTATES;
        if !is_stored || session.outbound.is_none() || !has_room {
            return None;
        }
        let mut estate = Estate {
            number: session.number,
            from_seq: 0,
            shared: Vec::new(),
            others: Vec::new(),
        };
        for &(filter, group) in session.subscriptions.iter().take(MAX_FILTERS + 1) {
            let text = self.tree.filter(filter).text.clone();
            let group = (group != NO_GROUP).then(|| self.tree.group(group));
            match group.filter(|group| has_members(group)) {
                Some(group) => estate.shared.push((text, group.name.clone())),
                None => estate.others.push(text),
            }
        }
        let filters = estate.shared.len() + estate.others.len();
        (!estate.shared.is_empty() && filters <= MAX_FILTERS).then_some(estate)
    }

    /// Settles it when those before it are settled.
    pub(super) fn settle(&mut self, estate: Estate) {
        let number = estate.number;
        self.estates.push_back(estate);
        if let Some(journal) = &mut self.delivery.journal {
            journal.forget_number(number);
            if self.estates.len() == 1 {
                journal.start_fetch(number, 0);
            }
        }
    }

    /// Hands on what is in a piece of stored messages, if it is of the estate that is being settled.
    pub(super) fn inherit(&mut self, page: &Page) {
        let is_meant = |estate: &mut Estate| estate.number == page.session;
        let Some(mut estate) = self.estates.pop_front_if(is_meant) else {
            return;
        };
        for entry in &page.entries {
            if entry.seq < estate.from_seq {
                continue;
            }
            estate.from_seq = entry.seq + 1;
            self.hand_on_stored(&estate, entry);
            if let Some(journal) = &mut self.delivery.journal {
                journal.done(estate.number, entry.seq);
            }
        }
        self.close_doomed();
        let Some(journal) = &mut self.delivery.journal else {
            return;
        };
        match page.is_last {
            true => journal.end(estate.number),
            false => self.estates.push_front(estate),
        }
        if let Some(next) = self.estates.front() {
            journal.start_fetch(next.number, next.from_seq);
        }
    }

    fn hand_on_stored(&mut self, estate: &Estate, entry: &Stored) {
        let message = stored::read_message(&entry.body).filter(|_| !entry.released);
        let attributes = stored::read_attributes(&entry.attributes);
        let (Some(message), Some(attributes)) = (message, attributes) else {
            return;
        };
        // A QoS 2 message that was sent goes to no other client [MQTT-4.8.2-5].
        let may_go = entry.packet_id == 0 || attributes.qos != QoS::ExactlyOnce;
        let heir = estate.heir(message.view().topic).filter(|_| may_go);
        let Some(group) = heir.and_then(|(filter, name)| self.group_with_members(filter, name))
        else {
            let view = message.view();
            return self.delivery.dropped(None, &view, DropReason::SessionEnded);
        };
        self.hand_on(vec![Parcel {
            message: Rc::new(message),
            qos: attributes.qos,
            retain: attributes.retain,
            identifiers: None,
            group,
            seq: 0,
        }]);
    }

    /// Members may have left since the session ended.
    fn group_with_members(&self, filter: &str, name: &str) -> Option<GroupId> {
        let filter = self.tree.find(filter)?;
        let group = self.tree.find_group(filter, name)?;
        has_members(self.tree.group(group)).then_some(group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_came_by_one_shared_subscription_is_handed_on() {
        let text = |text: &str| Rc::<str>::from(text);
        let estate = Estate {
            number: 1,
            from_seq: 0,
            shared: vec![(text("a/#"), text("g")), (text("a/b"), text("h"))],
            others: vec![text("+/own")],
        };
        let heir = |topic| estate.heir(topic).map(|(_, name)| &**name);
        assert_eq!(heir("a/c"), Some("g"));
        assert_eq!(heir("a/b"), None, "either group's");
        assert_eq!(heir("a/own"), None, "perhaps its own");
        assert_eq!(heir("b"), None);
    }
}
