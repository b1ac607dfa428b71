//! What the tasks of a shard share: its core, its sockets, and the calls from one to the other.
//!
//! A task calls the core with [`ShardIo::with_core`], which closes connections, publishes what hooks requested, and
//! schedules the flusher for the output.

use std::cell::{Cell, RefCell};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use hooks::Authentication;
use store::Store;
use tokio::task::JoinHandle;

use super::byte_stream::{ByteStream, WatchedStream};
use super::clock::NodeClock;
use super::inbox::ShardInbox;
use super::layers::TransportLayers;
use super::node_router_thread::PeerNodeInbox;
use super::reserved_connection::release_connection_slots;
use crate::core::connection::{CloseReason, ConnectionPhase, PANIC};
use crate::core::directory::NodeDirectory;
use crate::core::shard::{ConnectionAction, Shard};
use crate::core::tables::{ConnectionIx, TableIx};
use crate::metrics::Metric;

/// The bytes of one connection and the layers on them.
pub(crate) struct ConnectionIo {
    pub(crate) stream: WatchedStream,
    pub(crate) layers: RefCell<Option<Box<TransportLayers>>>,
    /// The socket did not take all of the last write; its task waits until it accepts more.
    pub(crate) is_blocked: Cell<bool>,
    /// Writing failed; pending output will never be sent.
    pub(crate) is_broken: Cell<bool>,
    pub(crate) waker: RefCell<Option<Waker>>,
    /// The shard to which the connection moves when its task runs.
    pub(crate) hand_over_to: Cell<Option<u16>>,
}

impl ConnectionIo {
    pub(crate) fn new(
        stream: ByteStream,
        layers: Option<Box<TransportLayers>>,
    ) -> io::Result<Rc<Self>> {
        Ok(Rc::new(Self {
            stream: stream.watch()?,
            layers: RefCell::new(layers),
            is_blocked: Cell::new(false),
            is_broken: Cell::new(false),
            waker: RefCell::new(None),
            hand_over_to: Cell::new(None),
        }))
    }

    /// Whether a layer has input left that can be decoded without reading.
    pub(crate) fn has_pending_input(&self) -> bool {
        let layers = self.layers.borrow();
        layers
            .as_ref()
            .is_some_and(|layers| layers.has_pending_input())
    }

    pub(crate) fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }
}

/// State shared by the tasks of a shard.
pub(crate) struct ShardIo {
    pub(crate) core: RefCell<Shard>,
    pub(crate) connection_ios: RefCell<Vec<Option<Rc<ConnectionIo>>>>,
    pub(crate) scratch: RefCell<Box<[u8]>>,
    pub(crate) clock: NodeClock,
    pub(crate) inboxes: Arc<[ShardInbox]>,
    /// The inbox of the node router; `None` outside a cluster.
    pub(super) router: Option<PeerNodeInbox>,
    pub(super) flusher: RefCell<Option<Waker>>,
    pub(super) flush_due: Cell<bool>,
    pub(super) store: Option<Store>,
    /// Accepting tasks with the index of their listener.
    pub(super) accepting: RefCell<Vec<(u16, JoinHandle<()>)>>,
    pub(super) stop_timeout: Duration,
    pub(super) stopped: tokio::sync::Notify,
}

impl ShardIo {
    /// The core, with its time set to now.
    pub(crate) fn core_at_now(&self) -> std::cell::RefMut<'_, Shard> {
        let mut core = self.core.borrow_mut();
        let (ms, us) = self.clock.now();
        core.set_now(ms, us);
        core
    }

    /// Calls into the core for one connection. A panic there closes only that connection.
    #[inline]
    pub(crate) fn with_core(
        self: &Rc<Self>,
        at: ConnectionIx,
        call: impl FnOnce(&mut Shard) -> ConnectionAction,
    ) -> ConnectionAction {
        let flow = catch_unwind(AssertUnwindSafe(|| {
            let mut core = self.core_at_now();
            let flow = call(&mut core);
            core.close_pending_connections();
            core.poll_hooks(Some(at));
            flow
        }));
        let flow = flow.unwrap_or_else(|_| {
            tracing::error!(
                connection = at.position(),
                "panic while handling a connection; connection closed; this is a bug"
            );
            let mut core = self.core_at_now();
            core.reset_after_panic();
            core.metrics().inc(Metric::Panics);
            let why = CloseReason::new(mqtt::ReasonCode::UNSPECIFIED_ERROR, PANIC);
            core.close(at, why);
            ConnectionAction::Close
        });
        self.finish_core_call();
        flow
    }

    /// Logs and counts a panic that no single connection has caused; the shard continues.
    pub(super) fn catch_panic(&self, what: &'static str, call: impl FnOnce()) {
        if catch_unwind(AssertUnwindSafe(call)).is_err() {
            tracing::error!("panic while {what}; this is a bug");
            let mut core = self.core.borrow_mut();
            core.reset_after_panic();
            core.metrics().inc(Metric::Panics);
        }
    }

    /// Completes a call into the core.
    #[inline]
    pub(crate) fn finish_core_call(self: &Rc<Self>) {
        let core = self.core.borrow();
        let due = !core.delivery.dirty.is_empty()
            || core.shard_queues.waiting_shards != 0
            || !core.to_wake.is_empty()
            || !core.derived_messages.is_empty()
            || core.has_open_turn()
            || core.tunnels.has_unconfirmed();
        let authentications = !core.started_authentications.is_empty();
        drop(core);
        if due {
            self.schedule_flush();
        }
        if authentications {
            self.start_authentications();
        }
    }

    pub(crate) fn schedule_flush(&self) {
        if !self.flush_due.replace(true)
            && let Some(waker) = &*self.flusher.borrow()
        {
            waker.wake_by_ref();
        }
    }

    fn start_authentications(self: &Rc<Self>) {
        let started = std::mem::take(&mut self.core.borrow_mut().started_authentications);
        for (at, serial, authentication) in started {
            let Authentication::Pending(answer) = authentication else {
                continue;
            };
            let shard = self.clone();
            tokio::task::spawn_local(async move {
                let mut answer = answer.await;
                while let Authentication::Pending(next) = answer {
                    answer = next.await;
                }
                let flow =
                    shard.with_core(at, |core| core.complete_authentication(at, serial, answer));
                shard.set_pending_flow(at, serial, flow);
            });
        }
    }

    /// An authentication has completed: the connection's task continues with `flow`.
    fn set_pending_flow(&self, at: ConnectionIx, serial: u32, flow: ConnectionAction) {
        let io = self
            .connection_ios
            .borrow()
            .get(at.position())
            .cloned()
            .flatten();
        let core = self.core.borrow();
        let same = core
            .delivery
            .connections
            .get(at)
            .is_some_and(|c| c.serial == serial);
        drop(core);
        if let Some(io) = io
            && same
        {
            if let ConnectionAction::HandOver(to) = flow {
                io.hand_over_to.set(Some(to));
            }
            io.wake();
        }
    }

    pub(crate) fn register(&self, at: ConnectionIx, io: Rc<ConnectionIo>) {
        let mut ios = self.connection_ios.borrow_mut();
        if ios.len() <= at.position() {
            ios.resize_with(at.position() + 1, || None);
        }
        ios[at.position()] = Some(io);
    }

    pub(crate) fn unregister(&self, at: ConnectionIx) {
        self.connection_ios.borrow_mut()[at.position()] = None;
    }

    /// Releases the slot, the counters and the socket of a connection that has ended.
    pub(crate) fn release_connection(&self, core: &mut Shard, at: ConnectionIx) {
        let connection = &core.delivery.connections[at];
        let listener = connection.listener;
        if connection.phase == ConnectionPhase::Closing {
            NodeDirectory::release_slot(&core.node.directory.closing_connections);
        }
        core.remove_connection(at);
        core.metrics().inc(Metric::ConnectionsClosed);
        release_connection_slots(&core.node, listener);
        if core.is_stopping && core.delivery.connections.is_empty() {
            self.stopped.notify_one();
        }
    }

    pub(super) async fn wait_until_empty(&self) {
        while !self.core.borrow().delivery.connections.is_empty() {
            self.stopped.notified().await;
        }
    }

    pub(crate) fn phase(&self, at: ConnectionIx) -> ConnectionPhase {
        self.core.borrow().delivery.connections[at].phase
    }

    /// Whether the socket of a closing connection stays open until the client has read the last bytes.
    pub(crate) fn lingers(&self, at: ConnectionIx) -> bool {
        self.core.borrow().delivery.connections[at].lingers
    }

    /// Whether packets of a connection still wait for something.
    pub(crate) fn is_holding_packets(&self, at: ConnectionIx) -> bool {
        let core = self.core.borrow();
        let connection = &core.delivery.connections[at];
        connection.phase == ConnectionPhase::Authenticating || connection.is_held
    }
}
