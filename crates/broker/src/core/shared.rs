//! Shared subscriptions: the members of one group under one filter, here and on other shards, and the choice of
//! the one that gets a message.
//!
//! Members are counted over shards in the order of their shard's number, so that shards that agree on the counts
//! agree on what the n-th member is. Only members that are online are chosen as long as there is one.

use std::rc::Rc;

use super::sublist::{FilterId, SubList, Subscriber};
use crate::config::SharedStrategy;

/// How many members of a group another shard has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct RemoteMembers {
    pub(crate) shard: u16,
    pub(crate) online: u32,
    pub(crate) total: u32,
}

pub(crate) struct Group {
    pub(crate) name: Rc<str>,
    pub(crate) filter: FilterId,
    online: SubList,
    offline: SubList,
    /// Sorted by shard.
    remote: Vec<RemoteMembers>,
    turn: usize,
    sticky: Option<Choice>,
    /// Sequence number of the last announcement of this shard's count.
    pub(crate) announced: u64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Choice {
    /// The session of a member on this shard.
    Local(u32),
    /// The n-th member of another shard.
    Remote { shard: u16, nth: u32 },
}

/// What a strategy may look at.
pub(crate) struct Draw<'a> {
    pub(crate) strategy: SharedStrategy,
    pub(crate) this_shard: u16,
    pub(crate) from_client_id: &'a str,
    pub(crate) topic: &'a str,
    pub(crate) random: u64,
}

impl Group {
    pub(crate) fn new(name: &str, filter: FilterId) -> Self {
        Self {
            name: name.into(),
            filter,
            online: SubList::default(),
            offline: SubList::default(),
            remote: Vec::new(),
            turn: 0,
            sticky: None,
            announced: 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.local_len() == 0 && self.remote.is_empty()
    }

    pub(crate) fn local_len(&self) -> usize {
        self.online.len() + self.offline.len()
    }

    pub(crate) fn local_online(&self) -> usize {
        self.online.len()
    }

    pub(crate) fn member(&self, session: u32) -> Option<&Subscriber> {
        self.online
            .get(session)
            .or_else(|| self.offline.get(session))
    }

    pub(crate) fn remote(&self) -> &[RemoteMembers] {
        &self.remote
    }

    /// Adds or replaces an online member; returns whether it is new.
    pub(crate) fn join(&mut self, subscriber: Subscriber) -> bool {
        self.online.insert(subscriber)
    }

    pub(crate) fn leave(&mut self, session: u32) -> bool {
        self.online
            .remove(session)
            .or_else(|| self.offline.remove(session))
            .is_some()
    }

    pub(crate) fn set_online(&mut self, session: u32, online: bool) {
        let (from, to) = if online {
            (&mut self.offline, &mut self.online)
        } else {
            (&mut self.online, &mut self.offline)
        };
        if let Some(member) = from.remove(session) {
            to.insert(member);
        }
    }

    pub(crate) fn set_remote(&mut self, members: RemoteMembers) {
        match self
            .remote
            .binary_search_by_key(&members.shard, |r| r.shard)
        {
            Ok(at) if members.total == 0 => {
                self.remote.remove(at);
            }
            Ok(at) => self.remote[at] = members,
            Err(_) if members.total == 0 => {}
            Err(at) => self.remote.insert(at, members),
        }
    }

    /// The member that gets a message; `None` only if there is no member at all.
    pub(crate) fn choose(&mut self, draw: &Draw<'_>) -> Option<Choice> {
        let online =
            self.online.len() + self.remote.iter().map(|r| r.online as usize).sum::<usize>();
        let only_online = online > 0;
        let total = if only_online {
            online
        } else {
            self.offline.len() + self.remote.iter().map(|r| r.total as usize).sum::<usize>()
        };
        if total == 0 {
            return None;
        }
        match draw.strategy {
            SharedStrategy::Sticky => {
                if let Some(choice) = self.sticky
                    && self.holds(choice, only_online)
                {
                    return Some(choice);
                }
                let choice = self.nth(draw.random as usize % total, only_online, draw.this_shard);
                self.sticky = Some(choice);
                Some(choice)
            }
            SharedStrategy::Local if !self.online.is_empty() => {
                self.turn = self.turn.wrapping_add(1);
                Some(Choice::Local(
                    self.online.at(self.turn % self.online.len()).session,
                ))
            }
            SharedStrategy::RoundRobin | SharedStrategy::Local => {
                self.turn = self.turn.wrapping_add(1);
                Some(self.nth(self.turn % total, only_online, draw.this_shard))
            }
            SharedStrategy::Random => {
                Some(self.nth(draw.random as usize % total, only_online, draw.this_shard))
            }
            SharedStrategy::HashClientId => {
                let n = stable_hash(draw.from_client_id) as usize % total;
                Some(self.nth(n, only_online, draw.this_shard))
            }
            SharedStrategy::HashTopic => {
                let n = stable_hash(draw.topic) as usize % total;
                Some(self.nth(n, only_online, draw.this_shard))
            }
        }
    }

    fn holds(&self, choice: Choice, only_online: bool) -> bool {
        match choice {
            Choice::Local(session) => {
                self.online.get(session).is_some()
                    || (!only_online && self.offline.get(session).is_some())
            }
            Choice::Remote { shard, nth } => self
                .remote
                .iter()
                .any(|r| r.shard == shard && nth < if only_online { r.online } else { r.total }),
        }
    }

    /// The member for a message that another shard has sent to the `nth` of ours. Our members may have changed
    /// meanwhile; then another of ours gets it.
    pub(crate) fn choose_here(&mut self, nth: u32, strategy: SharedStrategy) -> Option<u32> {
        let list = if self.online.is_empty() {
            &self.offline
        } else {
            &self.online
        };
        if list.is_empty() {
            return None;
        }
        let session = list.at(nth as usize % list.len()).session;
        if strategy != SharedStrategy::Sticky {
            return Some(session);
        }
        // The sender sticks to a place in our list; the place's owner may move, the first choice must not.
        match self.sticky {
            Some(Choice::Local(chosen)) if list.get(chosen).is_some() => Some(chosen),
            _ => {
                self.sticky = Some(Choice::Local(session));
                Some(session)
            }
        }
    }

    fn nth(&self, mut n: usize, only_online: bool, this_shard: u16) -> Choice {
        let local = if only_online {
            &self.online
        } else {
            &self.offline
        };
        let mut local_done = false;
        for remote in &self.remote {
            if !local_done && remote.shard > this_shard {
                if n < local.len() {
                    return Choice::Local(local.at(n).session);
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
                return Choice::Remote {
                    shard: remote.shard,
                    nth: n as u32,
                };
            }
            n -= count;
        }
        Choice::Local(local.at(n).session)
    }
}

/// The same on every shard and in every run (FNV-1a): hash strategies must agree between shards.
fn stable_hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
