//! Queue of groups by due time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::window_group::GroupKey;

/// Keys by the time to check them. An entry may be outdated; the check decides whether the key is really due.
#[derive(Default)]
pub(super) struct DueQueue(BinaryHeap<Reverse<(u64, GroupKey)>>);

impl DueQueue {
    pub(super) fn push(&mut self, at_ms: u64, key: &[u8]) {
        self.0.push(Reverse((at_ms, key.into())));
    }

    pub(super) fn pop(&mut self, until_ms: u64) -> Option<(u64, GroupKey)> {
        self.0
            .peek()
            .filter(|Reverse((at_ms, _))| *at_ms <= until_ms)?;
        self.0.pop().map(|Reverse(entry)| entry)
    }

    pub(super) fn first_ms(&self) -> Option<u64> {
        self.0.peek().map(|Reverse((at_ms, _))| *at_ms)
    }
}
