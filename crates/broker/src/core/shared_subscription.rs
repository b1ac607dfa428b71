//! Shared subscriptions: the members of one group under one filter, on this and on other shards, and the selection of
//! the member that receives a message.
//!
//! Members are counted over shards in the order of their shard's number. Shards that agree on the counts thus agree on
//! which member is the n-th. Only online members are chosen as long as there is one.

use std::rc::Rc;

use super::subscriber_list::{Subscriber, SubscriberList};
use super::tables::{FilterId, SessionIx};
use crate::config::SharedSubscriptionStrategy;

/// The number of members of a group on another shard.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct RemoteMembers {
    pub(crate) shard: u16,
    pub(crate) online: u32,
    pub(crate) total: u32,
}

pub(crate) struct SubscriptionGroup {
    pub(crate) name: Rc<str>,
    pub(crate) filter: FilterId,
    online_members: SubscriberList,
    offline_members: SubscriberList,
    /// Sorted by shard.
    remote_members: Vec<RemoteMembers>,
    round_robin_next: usize,
    sticky_choice: Option<MemberChoice>,
    /// Sequence number of the last announcement of this shard's count.
    pub(crate) announced_sequence: u64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum MemberChoice {
    /// The session of a member on this shard.
    Local(SessionIx),
    /// The n-th member of another shard.
    Remote { shard: u16, nth: u32 },
}

/// The data a strategy may use to select a member.
pub(crate) struct MemberSelection<'a> {
    pub(crate) strategy: SharedSubscriptionStrategy,
    pub(crate) this_shard: u16,
    pub(crate) from_client_id: &'a str,
    pub(crate) topic: &'a str,
    pub(crate) random: u64,
}

impl SubscriptionGroup {
    pub(crate) fn new(name: &str, filter: FilterId) -> Self {
        Self {
            name: name.into(),
            filter,
            online_members: SubscriberList::default(),
            offline_members: SubscriberList::default(),
            remote_members: Vec::new(),
            round_robin_next: 0,
            sticky_choice: None,
            announced_sequence: 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.local_len() == 0 && self.remote_members.is_empty()
    }

    pub(crate) fn local_len(&self) -> usize {
        self.online_members.len() + self.offline_members.len()
    }

    pub(crate) fn local_online(&self) -> usize {
        self.online_members.len()
    }

    pub(crate) fn member(&self, session: SessionIx) -> Option<&Subscriber> {
        self.online_members
            .get(session)
            .or_else(|| self.offline_members.get(session))
    }

    pub(crate) fn remote(&self) -> &[RemoteMembers] {
        &self.remote_members
    }

    /// Adds or replaces an online member; returns whether it is new.
    pub(crate) fn join(&mut self, subscriber: Subscriber) -> bool {
        self.online_members.insert(subscriber)
    }

    pub(crate) fn leave(&mut self, session: SessionIx) -> bool {
        self.online_members
            .remove(session)
            .or_else(|| self.offline_members.remove(session))
            .is_some()
    }

    pub(crate) fn set_online(&mut self, session: SessionIx, online: bool) {
        let (from, to) = if online {
            (&mut self.offline_members, &mut self.online_members)
        } else {
            (&mut self.online_members, &mut self.offline_members)
        };
        if let Some(member) = from.remove(session) {
            to.insert(member);
        }
    }

    pub(crate) fn set_remote(&mut self, members: RemoteMembers) {
        match self
            .remote_members
            .binary_search_by_key(&members.shard, |r| r.shard)
        {
            Ok(at) if members.total == 0 => {
                self.remote_members.remove(at);
            }
            Ok(at) => self.remote_members[at] = members,
            Err(_) if members.total == 0 => {}
            Err(at) => self.remote_members.insert(at, members),
        }
    }

    /// The member that receives a message; `None` only if there is no member at all.
    pub(crate) fn choose_member(
        &mut self,
        selection: &MemberSelection<'_>,
    ) -> Option<MemberChoice> {
        let online = self.online_members.len()
            + self
                .remote_members
                .iter()
                .map(|r| r.online as usize)
                .sum::<usize>();
        let only_online = online > 0;
        let total = if only_online {
            online
        } else {
            self.offline_members.len()
                + self
                    .remote_members
                    .iter()
                    .map(|r| r.total as usize)
                    .sum::<usize>()
        };
        if total == 0 {
            return None;
        }
        match selection.strategy {
            SharedSubscriptionStrategy::Sticky => {
                if let Some(choice) = self.sticky_choice
                    && self.is_valid_choice(choice, only_online)
                {
                    return Some(choice);
                }
                let choice = self.nth_member(
                    selection.random as usize % total,
                    only_online,
                    selection.this_shard,
                );
                self.sticky_choice = Some(choice);
                Some(choice)
            }
            SharedSubscriptionStrategy::Local if !self.online_members.is_empty() => {
                self.round_robin_next = self.round_robin_next.wrapping_add(1);
                Some(MemberChoice::Local(
                    self.online_members
                        .get_at(self.round_robin_next % self.online_members.len())
                        .session,
                ))
            }
            SharedSubscriptionStrategy::RoundRobin | SharedSubscriptionStrategy::Local => {
                self.round_robin_next = self.round_robin_next.wrapping_add(1);
                Some(self.nth_member(
                    self.round_robin_next % total,
                    only_online,
                    selection.this_shard,
                ))
            }
            SharedSubscriptionStrategy::Random => Some(self.nth_member(
                selection.random as usize % total,
                only_online,
                selection.this_shard,
            )),
            SharedSubscriptionStrategy::HashClientId => {
                let n = stable_hash(selection.from_client_id) as usize % total;
                Some(self.nth_member(n, only_online, selection.this_shard))
            }
            SharedSubscriptionStrategy::HashTopic => {
                let n = stable_hash(selection.topic) as usize % total;
                Some(self.nth_member(n, only_online, selection.this_shard))
            }
        }
    }

    fn is_valid_choice(&self, choice: MemberChoice, only_online: bool) -> bool {
        match choice {
            MemberChoice::Local(session) => {
                self.online_members.get(session).is_some()
                    || (!only_online && self.offline_members.get(session).is_some())
            }
            MemberChoice::Remote { shard, nth } => self
                .remote_members
                .iter()
                .any(|r| r.shard == shard && nth < if only_online { r.online } else { r.total }),
        }
    }

    /// The member for a message that another shard has sent to this shard's `nth` member. If the members have changed
    /// meanwhile, another local member receives it.
    pub(crate) fn choose_local_member(
        &mut self,
        nth: u32,
        strategy: SharedSubscriptionStrategy,
    ) -> Option<SessionIx> {
        let list = if self.online_members.is_empty() {
            &self.offline_members
        } else {
            &self.online_members
        };
        if list.is_empty() {
            return None;
        }
        let session = list.get_at(nth as usize % list.len()).session;
        if strategy != SharedSubscriptionStrategy::Sticky {
            return Some(session);
        }
        // The sender sticks to a position in the local list. The member at that position may change; the first choice
        // must not.
        match self.sticky_choice {
            Some(MemberChoice::Local(chosen)) if list.get(chosen).is_some() => Some(chosen),
            _ => {
                self.sticky_choice = Some(MemberChoice::Local(session));
                Some(session)
            }
        }
    }

    fn nth_member(&self, mut n: usize, only_online: bool, this_shard: u16) -> MemberChoice {
        let local = if only_online {
            &self.online_members
        } else {
            &self.offline_members
        };
        let mut local_done = false;
        for remote in &self.remote_members {
            if !local_done && remote.shard > this_shard {
                if n < local.len() {
                    return MemberChoice::Local(local.get_at(n).session);
                }
                n -= local.len();
                local_done = true;
            }
            let count = if only_online {
                remote.online
            } else {
                remote.total
            } as usize;
            if n < count {
                return MemberChoice::Remote {
                    shard: remote.shard,
                    nth: n as u32,
                };
            }
            n -= count;
        }
        MemberChoice::Local(local.get_at(n).session)
    }
}

/// Returns the same hash on every shard and in every run (FNV-1a), since hash strategies must agree between shards.
fn stable_hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
