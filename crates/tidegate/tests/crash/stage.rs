//! What everybody has to know: where the node is now, and how far the play is.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// What one publisher has sent, all of it acknowledged in the end.
#[derive(Debug, Clone)]
pub(crate) struct Sent {
    pub(crate) topic: String,
    pub(crate) qos: u8,
    pub(crate) messages: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) enum Act {
    /// Nodes come and go.
    #[default]
    Load,
    /// The last node stays; what is under way is finished, nothing new begins.
    Settle,
    /// It is known what was sent: whoever has got it all is done.
    Delivered,
    /// Something failed: everybody goes home.
    Over,
}

#[derive(Debug, Default)]
struct State {
    address: Option<String>,
    /// Counts nodes.
    number: u32,
    act: Act,
    sent: Vec<Sent>,
}

#[derive(Debug, Default)]
pub(crate) struct Stage {
    state: Mutex<State>,
    changed: Condvar,
}

impl Stage {
    pub(crate) fn up(&self, address: &str) {
        self.change(|state| {
            state.number += 1;
            state.address = Some(address.to_owned());
        });
    }

    pub(crate) fn down(&self) {
        self.change(|state| state.address = None);
    }

    pub(crate) fn settle(&self) {
        self.change(|state| state.act = state.act.max(Act::Settle));
    }

    pub(crate) fn all_sent(&self, sent: Vec<Sent>) {
        self.change(|state| {
            state.sent = sent;
            state.act = state.act.max(Act::Delivered);
        });
    }

    pub(crate) fn over(&self) {
        self.change(|state| state.act = Act::Over);
    }

    pub(crate) fn act(&self) -> Act {
        self.lock().act
    }

    pub(crate) fn sent(&self) -> Vec<Sent> {
        self.lock().sent.clone()
    }

    /// The address and number of a node after number `after`; `None`: it is over. While the play settles, the node that
    /// was there already counts as well.
    pub(crate) fn next_node(&self, after: u32) -> Option<(String, u32)> {
        let mut state = self.lock();
        loop {
            if state.act == Act::Over {
                return None;
            }
            if let Some(address) = &state.address
                && (state.number > after || state.act >= Act::Settle)
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

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
