//! Where a shard's thread finds what other threads have for it: words of other shards, connections that move to it,
//! questions of the control plane. Locked once per batch, not per message.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use store::Page;
use tokio::sync::{Notify, oneshot};

use super::layers::Layers;
use super::listener::OpenListener;
use crate::core::connect::Moving;
use crate::core::cross::Said;
use crate::core::shard::Shard;
use crate::handle::queues::Looks;

/// A connection on its way to another shard: its state, its socket, what lies between.
pub(crate) struct MovingConnection {
    pub(crate) moving: Moving,
    pub(crate) socket: socket2::Socket,
    pub(crate) layers: Option<Box<Layers>>,
}

/// Tells the shards what the store has done for them.
pub(crate) struct StoreOwner {
    pub(crate) inboxes: std::sync::Arc<[Inbox]>,
    /// For the control plane.
    pub(crate) looks: std::sync::Arc<Looks>,
}

impl store::Owner for StoreOwner {
    fn logged(&self, shard: u16, batch: u64) {
        self.inboxes[usize::from(shard)].push(Parcel::Logged(batch));
    }

    fn fetched(&self, shard: u16, page: Page) {
        match self.inboxes.get(usize::from(shard)) {
            Some(inbox) => inbox.push(Parcel::Page(page)),
            None => self.looks.fetched(page),
        }
    }
}

pub(crate) enum Parcel {
    Said {
        from: u16,
        said: Vec<Said>,
        bytes: usize,
    },
    Connection(Box<MovingConnection>),
    /// Something to do with the shard; the answer goes its own way.
    Ask(Box<dyn FnOnce(&mut Shard) + Send>),
    /// A socket to take connections from.
    Listen(Box<OpenListener>),
    /// Take none from a listener any more; answered when its socket is closed.
    Unlisten {
        listener: u16,
        answer: oneshot::Sender<()>,
    },
    /// The store has everything up to this turn of the shard in its log.
    Logged(u64),
    /// What hooks have made of this turn of the shard is safe.
    Settled(u64),
    /// A piece of a session's stored messages.
    Page(Page),
    /// Stop accepting, say goodbye to every client.
    Stop,
}

#[derive(Default)]
pub(crate) struct Inbox {
    parcels: Mutex<VecDeque<Parcel>>,
    bytes: AtomicUsize,
    notify: Notify,
    /// When the shard was last seen to have a turn.
    ticked_ms: AtomicU64,
}

impl Inbox {
    pub(crate) fn new(now_ms: u64) -> Self {
        Self {
            ticked_ms: AtomicU64::new(now_ms),
            ..Self::default()
        }
    }

    pub(crate) fn ticked_ms(&self) -> u64 {
        self.ticked_ms.load(Relaxed)
    }

    pub(crate) fn tick(&self, now_ms: u64) {
        self.ticked_ms.store(now_ms, Relaxed);
    }

    /// Bytes of words that wait here.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    pub(crate) fn push(&self, parcel: Parcel) {
        if let Parcel::Said { bytes, .. } = &parcel {
            self.bytes.fetch_add(*bytes, Relaxed);
        }
        let was_empty = {
            let mut parcels = self.parcels.lock().unwrap_or_else(PoisonError::into_inner);
            parcels.push_back(parcel);
            parcels.len() == 1
        };
        if was_empty {
            self.notify.notify_one();
        }
    }

    pub(crate) async fn wait(&self) {
        self.notify.notified().await;
    }

    pub(crate) fn take(&self) -> VecDeque<Parcel> {
        let parcels =
            std::mem::take(&mut *self.parcels.lock().unwrap_or_else(PoisonError::into_inner));
        let said: usize = parcels
            .iter()
            .map(|parcel| {
                if let Parcel::Said { bytes, .. } = parcel {
                    *bytes
                } else {
                    0
                }
            })
            .sum();
        if said > 0 {
            self.bytes.fetch_sub(said, Relaxed);
        }
        parcels
    }
}
