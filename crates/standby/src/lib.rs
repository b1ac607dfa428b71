//! Copies of the durable sessions of a node at another one, its *standby*, which adopts them when the node fails.
//!
//! The unit is a node: its standby gets the keyed state and the frames of its message log ([`store::LogTail`]), in order, and
//! writes them into a store of its own. While the standby is *current*, the node acknowledges nothing that the standby has not
//! stored: the store holds the notifications of its shards ([`store::Store::hold_notifications`]).
//!
//! Who may adopt is decided by a record in the cluster (`record.rs`), which changes by compare-and-set only. A node that
//! loses its standby writes the record without it before it acknowledges anything again. A standby that loses its node
//! writes its own name into the record before it adopts anything. One of both writes fails, so that no acknowledged message is
//! lost, and no clock is involved.
//!
//! [`SessionCopies`] runs a thread for the sessions of this node (`copy_sender.rs`) and one for the copies of others (`copy_receiver.rs`).

mod copy_receiver;
mod copy_sender;
mod inputs;
mod kept_copy;
mod message;
mod outgoing_copy;
mod owner;
mod record;
mod status;
mod stored_copies;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use cluster::{ClusterObjects, DownReason, NodeName, PeerNodeId, SendMessage};
use store::{Store, StoreConfig};
use tokio::runtime::Handle;

use copy_receiver::{CopyReceiver, CopyReceiverParts};
use copy_sender::{CopySender, CopySenderParts};
use inputs::{Input, Inputs};
use record::StandbyRecords;

pub use message::SESSION_COPY_KIND;
pub use owner::{AdoptionProgress, SessionHold, SessionOwner};
pub use status::{CopyPhase, KeptCopyStatus, OwnCopyStatus, StandbyStatus};
pub use stored_copies::{StoredCopy, request_adoption, stored_copies};

/// What [`SessionCopies::start`] needs.
pub struct SessionCopiesParts {
    pub node: NodeName,
    pub store: Store,
    /// A directory for the copies of other nodes, which nothing else uses.
    pub directory: PathBuf,
    /// Settings of the stores of the copies.
    pub copy_config: StoreConfig,
    pub objects: Arc<dyn ClusterObjects>,
    pub send: SendMessage,
    pub owner: Arc<dyn SessionOwner>,
    pub runtime: Handle,
    /// Whether this node can keep copies: its sessions are in its own store.
    pub can_keep_copies: bool,
    /// Returns unpredictable numbers.
    pub random: fn() -> u64,
    /// Time after the start for which nodes of which there are copies here may return before their sessions are adopted.
    pub start_delay: Duration,
    /// Whether this node wants a standby now. It keeps copies of others in any case.
    pub is_wanted: Box<dyn Fn() -> bool + Send>,
}

/// The copies of sessions that this node takes part in.
///
/// The owner reports reachable nodes and received messages to [`peer_up`](Self::peer_up), [`peer_down`](Self::peer_down) and
/// [`receive`](Self::receive), in order; these never block and send nothing themselves.
#[derive(Default)]
pub struct SessionCopies {
    sender_inputs: Arc<Inputs>,
    receiver_inputs: Arc<Inputs>,
    own_status: Arc<Mutex<OwnCopyStatus>>,
    status: Arc<Mutex<StandbyStatus>>,
    records: OnceLock<StandbyRecords>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl SessionCopies {
    /// Starts to copy. To be called once, before the broker is started and before anything is reported. Acknowledgements
    /// and clients wait when it returns, if another node may have adopted the sessions of this one.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start(&self, parts: SessionCopiesParts) -> std::io::Result<()> {
        let records = StandbyRecords::new(parts.objects, parts.runtime);
        // Set once.
        let _ = self.records.set(records.clone());
        let send: Arc<SendMessage> = Arc::new(parts.send);
        let shared_send = |send: Arc<SendMessage>| -> SendMessage {
            Box::new(move |peer, message| send(peer, message))
        };
        let sender = CopySender::new(
            CopySenderParts {
                node: parts.node.clone(),
                store: parts.store.clone(),
                records: records.clone(),
                send: shared_send(send.clone()),
                owner: parts.owner.clone(),
                random: parts.random,
                marker: parts.directory.join("has-standby"),
                is_wanted: parts.is_wanted,
                status: self.own_status.clone(),
            },
            self.sender_inputs.clone(),
        );
        let receiver = CopyReceiver::new(
            CopyReceiverParts {
                node: parts.node,
                directory: parts.directory,
                config: parts.copy_config,
                records,
                send: shared_send(send),
                owner: parts.owner,
                start_delay: parts.start_delay,
                can_keep_copies: parts.can_keep_copies,
                status: self.status.clone(),
            },
            self.receiver_inputs.clone(),
        );
        let inputs = self.sender_inputs.clone();
        parts.store.watch_log(Box::new(move || inputs.wake()));
        let named = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let threads = [
            named("standby-sender").spawn(move || sender.run())?,
            named("standby-receiver").spawn(move || receiver.run())?,
        ];
        self.threads().extend(threads);
        Ok(())
    }

    pub fn peer_up(&self, peer: PeerNodeId, node: &NodeName) {
        for inputs in [&self.sender_inputs, &self.receiver_inputs] {
            inputs.push(Input::Up(peer, node.clone()));
        }
    }

    pub fn peer_down(&self, peer: PeerNodeId, reason: DownReason) {
        for inputs in [&self.sender_inputs, &self.receiver_inputs] {
            inputs.push(Input::Down(peer, reason));
        }
    }

    /// A message whose first byte is [`SESSION_COPY_KIND`].
    pub fn receive(&self, peer: PeerNodeId, message: Bytes) {
        let inputs = match copy_sender::is_for_sender(&message) {
            true => &self.sender_inputs,
            false => &self.receiver_inputs,
        };
        inputs.push(Input::Message(peer, message));
    }

    /// Gives the sessions of other nodes back to them that `node` has not finished to adopt, because it does not return.
    /// Blocks.
    ///
    /// # Errors
    /// A text, if the servers cannot be used; some records may be changed.
    pub fn cancel_adoptions(&self, node: &NodeName, members: &[NodeName]) -> Result<(), String> {
        match self.records.get() {
            Some(records) => records.cancel_adoptions(node, members),
            None => Ok(()),
        }
    }

    #[must_use]
    pub fn status(&self) -> StandbyStatus {
        let own = self.own_status.lock();
        let own = own.unwrap_or_else(PoisonError::into_inner).clone();
        let status = self.status.lock();
        let status = status.unwrap_or_else(PoisonError::into_inner).clone();
        StandbyStatus { own, ..status }
    }

    /// Ends the threads. What acknowledgements wait for stays unacknowledged. Blocks.
    pub fn stop(&self) {
        self.sender_inputs.stop();
        self.receiver_inputs.stop();
        for thread in std::mem::take(&mut *self.threads()) {
            if thread.join().is_err() {
                tracing::error!("a thread of the copies of sessions panicked; this is a bug");
            }
        }
    }

    fn threads(&self) -> std::sync::MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
