//! What the copies of sessions need from the broker, which has the sessions.

use std::sync::atomic::{AtomicU64, Ordering};

use cluster::NodeName;
use store::Store;

/// How far an adoption is.
#[derive(Debug, Default)]
pub struct AdoptionProgress {
    done: AtomicU64,
    all: AtomicU64,
}

impl AdoptionProgress {
    pub fn set(&self, done: u64, all: u64) {
        self.all.store(all, Ordering::Relaxed);
        self.done.store(done, Ordering::Relaxed);
    }

    /// Sessions that were processed, and all.
    #[must_use]
    pub fn sessions(&self) -> (u64, u64) {
        (
            self.done.load(Ordering::Relaxed),
            self.all.load(Ordering::Relaxed),
        )
    }
}

/// What happens to the stored sessions of a node while they may be at another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionHold {
    /// They are at this node.
    Released,
    /// Other nodes are not told that they are here; no session expires, and no will or delayed message is published.
    Withheld,
    /// In addition, clients wait for their sessions.
    Held,
}

/// Who has the sessions of a node: the broker. Calls from any thread; only those that say so may block.
pub trait SessionOwner: Send + Sync + 'static {
    /// This node is, or is no longer, the standby of another one.
    fn set_standby_for(&self, node: &NodeName, is_standby: bool);

    /// This node begins to adopt the sessions of another one, so that clients wait for them.
    fn begin_succession(&self, node: &NodeName);

    /// This node has adopted the sessions of another one, or will not do so.
    fn end_succession(&self, node: &NodeName, is_adopted: bool);

    /// An earlier run of this node has adopted the sessions of another one, for which [`begin_succession`](Self::begin_succession) was
    /// called.
    fn confirm_succession(&self, node: &NodeName);

    /// Adopts the sessions in the copy of another node's store, which is opened and not started. `since_ms`: when the first attempt
    /// began, in milliseconds since 1970. Blocks. Returns the number of sessions.
    ///
    /// # Errors
    /// A text for the log; it will be tried again.
    fn adopt_sessions(
        &self,
        node: &NodeName,
        copy: &Store,
        since_ms: u64,
        progress: &AdoptionProgress,
    ) -> Result<u64, String>;

    /// The sessions of this node may be at another one from now on, or are not.
    fn hold_sessions(&self, hold: SessionHold);

    /// Ends all durable sessions of this node, because another one has adopted them; connections with answers that wait for
    /// the log are closed without them. Blocks. False: it has to be tried again.
    fn abandon_sessions(&self) -> bool;
}
