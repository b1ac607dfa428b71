//! State that all threads of a run share: the address of the node, and the phase of the run.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// What one publisher has sent, all of it acknowledged in the end.
#[derive(Debug, Clone)]
pub(crate) struct PublisherTotals {
    pub(crate) topic: String,
    pub(crate) qos: u8,
    pub(crate) messages: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) enum RunPhase {
    /// Nodes are killed and started under load.
    #[default]
    Load,
    /// The last node keeps running; clients finish what they have begun, and begin nothing new.
    Settle,
    /// What was sent is known: a subscriber that has received all of it is done.
    Delivered,
    /// A thread failed: all threads end.
    Aborted,
}

#[derive(Debug, Default)]
struct SharedState {
    address: Option<String>,
    /// Counts nodes.
    number: u32,
    phase: RunPhase,
    sent: Vec<PublisherTotals>,
}

#[derive(Debug, Default)]
pub(crate) struct RunState {
    state: Mutex<SharedState>,
    changed: Condvar,
}

impl RunState {
    pub(crate) fn set_address(&self, address: &str) {
        self.change(|state| {
            state.number += 1;
            state.address = Some(address.to_owned());
        });
    }

    pub(crate) fn clear_address(&self) {
        self.change(|state| state.address = None);
    }

    pub(crate) fn settle(&self) {
        self.change(|state| state.phase = state.phase.max(RunPhase::Settle));
    }

    pub(crate) fn all_sent(&self, sent: Vec<PublisherTotals>) {
        self.change(|state| {
            state.sent = sent;
            state.phase = state.phase.max(RunPhase::Delivered);
        });
    }

    pub(crate) fn abort(&self) {
        self.change(|state| state.phase = RunPhase::Aborted);
    }

    pub(crate) fn phase(&self) -> RunPhase {
        self.lock().phase
    }

    pub(crate) fn sent(&self) -> Vec<PublisherTotals> {
        self.lock().sent.clone()
    }

    /// The address and number of a node after number `after`; `None`: the run was aborted. In the phase `Settle`, also the
    /// node that was known before.
    pub(crate) fn next_node(&self, after: u32) -> Option<(String, u32)> {
        let mut state = self.lock();
        loop {
            if state.phase == RunPhase::Aborted {
                return None;
            }
            if let Some(address) = &state.address
                && (state.number > after || state.phase >= RunPhase::Settle)
            {
                return Some((address.clone(), state.number));
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }

    /// Waits for a change, but not longer than this.
    pub(crate) fn pause(&self, limit: Duration) {
        let state = self.lock();
        drop(self.changed.wait_timeout(state, limit));
    }

    fn change(&self, change: impl FnOnce(&mut SharedState)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, SharedState> {
        self.state
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
