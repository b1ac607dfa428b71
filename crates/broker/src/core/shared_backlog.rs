//! The messages that an ended session leaves to the other members of its shared subscriptions.

use std::collections::VecDeque;
use std::rc::Rc;

/// Bound on the backlogs of a shard; anything beyond is not passed on.
const MAX_SHARED_BACKLOGS: usize = 10_000;

/// The backlogs that a shard redistributes, one at a time: the *current* one is the oldest.
///
/// [`push`](Self::push) queues a backlog and returns whether it became the current one. Its stored messages arrive page
/// by page. [`take_current`](Self::take_current) returns the backlog that a page belongs to, and the caller [puts it
/// back](Self::put_back) unless the page was the last one. Then [`current`](Self::current) is the one whose next page
/// is to be read.
#[derive(Default)]
pub(crate) struct SharedBacklogs(VecDeque<SharedBacklog>);

impl SharedBacklogs {
    pub(super) fn has_room(&self) -> bool {
        self.0.len() < MAX_SHARED_BACKLOGS
    }

    pub(super) fn push(&mut self, backlog: SharedBacklog) -> bool {
        self.0.push_back(backlog);
        self.0.len() == 1
    }

    /// Takes the current backlog if it is the one of this stored session.
    pub(super) fn take_current(&mut self, store_number: u64) -> Option<SharedBacklog> {
        self.0
            .pop_front_if(|backlog| backlog.store_number == store_number)
    }

    pub(super) fn put_back(&mut self, backlog: SharedBacklog) {
        self.0.push_front(backlog);
    }

    pub(super) fn current(&self) -> Option<&SharedBacklog> {
        self.0.front()
    }
}

/// The stored messages of a member whose session has ended.
pub(crate) struct SharedBacklog {
    /// The number under which the session was stored.
    pub(super) store_number: u64,
    /// Messages before this number have been processed.
    pub(super) from_seq: u64,
    /// Filters and names of groups that have other members.
    pub(super) shared_filters: Vec<(Rc<str>, Rc<str>)>,
    /// Filters of all other subscriptions.
    pub(super) other_filters: Vec<Rc<str>>,
}

impl SharedBacklog {
    /// The only subscription by which a message of this topic can have come, if that is a shared one.
    pub(super) fn target_group(&self, topic: &str) -> Option<&(Rc<str>, Rc<str>)> {
        let fits = |filter: &str| mqtt::filter_matches(filter, topic);
        if self.other_filters.iter().any(|filter| fits(filter)) {
            return None;
        }
        let mut shared = self
            .shared_filters
            .iter()
            .filter(|(filter, _)| fits(filter));
        let first = shared.next();
        first.filter(|_| shared.next().is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_messages_of_one_shared_subscription_are_redistributed() {
        let text = |text: &str| Rc::<str>::from(text);
        let backlog = SharedBacklog {
            store_number: 1,
            from_seq: 0,
            shared_filters: vec![(text("a/#"), text("g")), (text("a/b"), text("h"))],
            other_filters: vec![text("+/own")],
        };
        let target = |topic| backlog.target_group(topic).map(|(_, name)| &**name);
        assert_eq!(target("a/c"), Some("g"));
        assert_eq!(target("a/b"), None, "either group's");
        assert_eq!(target("a/own"), None, "perhaps its own");
        assert_eq!(target("b"), None);
    }
}
