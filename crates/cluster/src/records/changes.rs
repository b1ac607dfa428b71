//! The changes of this node in their order, until they are sent to the other nodes.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Changes that are remembered. A node that is further behind compares all records instead.
const MAX_CHANGES: usize = 131_072;

type Wake = Box<dyn Fn() + Send + Sync>;

/// Ids of the records that this node has changed. Clones share them.
#[derive(Clone, Default)]
pub struct RecordChanges {
    shared: Arc<ChangesShared>,
}

#[derive(Default)]
struct ChangesShared {
    state: Mutex<ChangesState>,
    confirmation: Condvar,
    wake: OnceLock<Wake>,
}

#[derive(Default)]
struct ChangesState {
    ids: VecDeque<Box<str>>,
    /// Position after the last change.
    end: u64,
    /// Position up to which all nodes that answer have confirmed; `None`: there is no such node.
    confirmed: Option<u64>,
}

/// Changes after a position.
pub(super) enum ChangedIds {
    Ids(Vec<Box<str>>),
    /// The changes after this position are not remembered any more.
    Forgotten,
}

impl RecordChanges {
    /// Adds changes that are in the store.
    pub fn add<'a>(&self, ids: impl IntoIterator<Item = &'a str>) {
        let mut state = self.state();
        for id in ids {
            if state.ids.len() == MAX_CHANGES {
                state.ids.pop_front();
            }
            state.ids.push_back(id.into());
            state.end += 1;
        }
        drop(state);
        if let Some(wake) = self.shared.wake.get() {
            wake();
        }
    }

    /// Waits until all nodes that answer have stored the changes so far, for a limited time. Returns whether they have.
    pub fn wait_until_confirmed(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut state = self.state();
        let position = state.end;
        loop {
            if state
                .confirmed
                .is_none_or(|confirmed| confirmed >= position)
            {
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.shared.confirmation.wait_timeout(state, left);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Calls `wake` after each change. To be called once.
    pub(super) fn set_wake(&self, wake: Wake) {
        let _ = self.shared.wake.set(wake);
    }

    pub(super) fn end(&self) -> u64 {
        self.state().end
    }

    /// At most `limit` changes from a position on.
    pub(super) fn since(&self, position: u64, limit: usize) -> ChangedIds {
        let state = self.state();
        let first = state.end - state.ids.len() as u64;
        let Some(skipped) = position.checked_sub(first) else {
            return ChangedIds::Forgotten;
        };
        let ids = state.ids.iter().skip(skipped as usize).take(limit);
        ChangedIds::Ids(ids.cloned().collect())
    }

    pub(super) fn set_confirmed(&self, confirmed: Option<u64>) {
        let mut state = self.state();
        if state.confirmed != confirmed {
            state.confirmed = confirmed;
            self.shared.confirmation.notify_all();
        }
    }

    fn state(&self) -> MutexGuard<'_, ChangesState> {
        let state = self.shared.state.lock();
        state.unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_remembered_up_to_a_limit() {
        let changes = RecordChanges::default();
        let ids: Vec<String> = (0..=MAX_CHANGES).map(|id| id.to_string()).collect();
        changes.add(ids.iter().map(String::as_str));
        assert!(matches!(changes.since(0, 1), ChangedIds::Forgotten));
        let ChangedIds::Ids(ids) = changes.since(1, 2) else {
            panic!("expected the oldest remembered changes");
        };
        assert_eq!(ids, ["1".into(), "2".into()]);
        let ChangedIds::Ids(ids) = changes.since(changes.end(), 2) else {
            panic!("expected no changes");
        };
        assert!(ids.is_empty());
    }

    #[test]
    fn waiting_ends_with_the_confirmation() {
        let changes = RecordChanges::default();
        changes.add(["a"]);
        assert!(changes.wait_until_confirmed(Duration::ZERO));
        changes.set_confirmed(Some(0));
        assert!(!changes.wait_until_confirmed(Duration::ZERO));
        let waiting = {
            let changes = changes.clone();
            std::thread::spawn(move || changes.wait_until_confirmed(Duration::from_secs(60)))
        };
        changes.set_confirmed(Some(1));
        assert!(waiting.join().unwrap());
    }
}
