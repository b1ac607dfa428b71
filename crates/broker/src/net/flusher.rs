//! The end of a turn: every socket with pending output is written once, and messages go to the other shards. The tasks
//! of closed or released connections are woken.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use store::Store;

use super::inbox::InboxItem;
use super::node_router_thread::RouterItem;
use super::shard_io::{ConnectionIo, ShardIo};
use crate::core::shard::Shard;
use crate::core::tables::{ConnectionIx, TableIx};
use crate::metrics::Metric;

/// Time for derived messages in one turn.
const DERIVED_TURN: Duration = Duration::from_millis(1);
/// Slices passed to one `writev`.
const MAX_SLICES: usize = 64;

/// The only task that writes in the normal case. The first connection with output wakes it; it runs after the tasks
/// that were ready before it.
pub(super) async fn run_flusher(shard: Rc<ShardIo>) {
    poll_fn(|context| {
        *shard.flusher.borrow_mut() = Some(context.waker().clone());
        shard.flush_due.set(false);
        shard.catch_panic("writing sockets", || shard.flush_all());
        Poll::<()>::Pending
    })
    .await;
}

impl ShardIo {
    /// Ends the turn: its batch goes to the store, its messages to the other shards.
    pub(super) fn end_turn(&self) {
        let mut core = self.core.borrow_mut();
        self.update_store_health(&mut core);
        if let Some(store) = &self.store {
            let shard = core.id;
            if let Some(end) = core.end_turn(|| store.recycled_batch()) {
                if let Some(batch) = end.batch {
                    store.submit(shard, batch);
                }
                for fetch in end.fetches {
                    store.fetch(shard, fetch);
                }
                if end.waits_for_hooks {
                    let (inboxes, turn) = (self.inboxes.clone(), end.turn);
                    let done =
                        move || inboxes[usize::from(shard)].push(InboxItem::TurnSettled(turn));
                    core.delivery.hooks.notify_when_durable(Box::new(done));
                }
            }
        }
        let waiting = core.shard_queues.waiting_shards;
        if waiting != 0 {
            self.send_shard_messages(&mut core, waiting);
        }
        core.is_congested = core.is_congested || self.is_store_behind();
    }

    /// Updates whether the store accepts writes.
    pub(super) fn update_store_health(&self, core: &mut Shard) {
        if let Some(store) = &self.store {
            core.set_store_rejects(store.health() != store::StoreHealth::Ok);
        }
    }

    /// Whether so many bytes wait for the log that publishers have to wait, too.
    fn is_store_behind(&self) -> bool {
        (self.store.as_ref()).is_some_and(Store::is_overloaded)
    }

    fn flush_all(self: &Rc<Self>) {
        self.publish_derived_messages();
        self.end_turn();
        let mut dirty = std::mem::take(&mut self.core_at_now().delivery.dirty);
        for &at in &dirty {
            if let Some(connection) = self.core.borrow_mut().delivery.connections.get_mut(at) {
                connection.is_dirty = false;
            }
            let io = self
                .connection_ios
                .borrow()
                .get(at.position())
                .cloned()
                .flatten();
            if let Some(io) = io
                && !io.is_blocked.get()
            {
                self.flush_connection(at, &io);
            }
        }
        dirty.clear();
        let mut core = self.core.borrow_mut();
        if core.tunnels.has_unconfirmed() {
            core.confirm_tunnel_output();
        }
        // Writing makes room, so that more output may be ready.
        if core.shard_queues.waiting_shards != 0
            || core.has_open_turn()
            || !core.delivery.dirty.is_empty()
            || !core.derived_messages.is_empty()
        {
            self.schedule_flush();
        }
        if core.delivery.dirty.is_empty() {
            // Keeps the allocation for the next turn.
            core.delivery.dirty = dirty;
        }
        let to_wake = std::mem::take(&mut core.to_wake);
        drop(core);
        for at in to_wake {
            if let Some(Some(io)) = self.connection_ios.borrow().get(at.position()) {
                io.wake();
            }
        }
    }

    /// Publishes messages that hooks requested, until the time for them in this turn is used up.
    fn publish_derived_messages(&self) {
        if self.core.borrow().derived_messages.is_empty() {
            return;
        }
        let mut core = self.core_at_now();
        let mut begun = Instant::now();
        let deadline = begun + DERIVED_TURN;
        while core.publish_next_derived() {
            let now = Instant::now();
            core.charge_derived((now - begun).as_micros() as u64);
            if now > deadline {
                break;
            }
            begun = now;
        }
        core.close_pending_connections();
    }

    fn send_shard_messages(&self, core: &mut Shard, mut waiting: u64) {
        let from = core.id;
        while waiting != 0 {
            let shard = waiting.trailing_zeros() as u16;
            waiting &= waiting - 1;
            let messages = core.shard_queues.take_ready(shard);
            if messages.is_empty() {
                continue;
            }
            let bytes = messages
                .iter()
                .map(crate::core::shard_messages::ShardMessage::size_bytes)
                .sum();
            match (self.inboxes.get(usize::from(shard)), &self.router) {
                (Some(inbox), _) => inbox.push(InboxItem::ShardMessages {
                    from,
                    messages,
                    bytes,
                }),
                (None, Some(router)) => router.router_inbox().push(RouterItem::ShardMessages {
                    from,
                    messages,
                    bytes,
                }),
                (None, None) => {}
            }
        }
        core.is_congested = self.is_congested(core);
    }

    fn is_congested(&self, core: &Shard) -> bool {
        let limit = core.limits.max_cross_shard_bytes as usize;
        let own = usize::from(core.id);
        let journal = core.delivery.journal.as_ref();
        if journal.is_some_and(|journal| journal.waiting_bytes_for_nodes() > limit) {
            return true;
        }
        self.inboxes
            .iter()
            .enumerate()
            .any(|(n, inbox)| n != own && inbox.queued_bytes() > limit)
            || (self.router.as_ref()).is_some_and(|router| router.is_congested(limit))
    }

    pub(crate) fn update_congestion(&self) {
        let mut core = self.core.borrow_mut();
        core.is_congested =
            core.is_congested && (self.is_congested(&core) || self.is_store_behind());
    }

    /// Writes the pending output of one socket, once. A blocked socket is left to its connection's task.
    pub(crate) fn flush_connection(self: &Rc<Self>, at: ConnectionIx, io: &ConnectionIo) {
        let result = if io.layers.borrow().is_some() {
            self.flush_layers(at, io)
        } else {
            self.flush_plain(at, io)
        };
        match result {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                io.is_blocked.set(true);
                io.wake();
            }
            Err(error) => {
                tracing::debug!(connection = at.position(), %error, "socket write failed; connection closes");
                io.is_broken.set(true);
                let mut core = self.core_at_now();
                core.connection_lost(at, "socket_error");
            }
        }
    }

    fn flush_plain(&self, at: ConnectionIx, io: &ConnectionIo) -> io::Result<()> {
        let mut core = self.core_at_now();
        let Some(connection) = core.delivery.connections.get_mut(at) else {
            return Ok(());
        };
        if connection.outbox.ready_bytes() == 0 {
            return Ok(());
        }
        let (offered, sent) = match connection.outbox.contiguous() {
            Some(bytes) => (bytes.len(), io.stream.send(bytes)?),
            None => {
                let mut slices = [IoSlice::new(&[]); MAX_SLICES];
                let filled = connection.outbox.fill_slices(&mut slices);
                let offered = slices[..filled].iter().map(|slice| slice.len()).sum();
                (offered, io.stream.send_vectored(&slices[..filled])?)
            }
        };
        core.metrics().add(Metric::BytesSent, sent as u64);
        core.delivery.record_written(at, sent);
        if sent < offered {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if let Some(connection) = core.delivery.connections.get_mut(at)
            && connection.outbox.ready_bytes() > 0
            && !connection.is_dirty
        {
            connection.is_dirty = true;
            core.delivery.dirty.push(at);
        }
        Ok(())
    }

    fn flush_layers(&self, at: ConnectionIx, io: &ConnectionIo) -> io::Result<()> {
        let mut core = self.core.borrow_mut();
        let mut layers = io.layers.borrow_mut();
        let Some(layers) = &mut *layers else {
            return Ok(());
        };
        loop {
            let delivery = &mut core.delivery;
            if let Some(connection) = delivery.connections.get(at)
                && connection.outbox.ready_bytes() > 0
                && layers.can_accept_more()
            {
                let mut slices = [IoSlice::new(&[]); MAX_SLICES];
                let filled = connection.outbox.fill_slices(&mut slices);
                let mut taken = 0;
                for slice in &slices[..filled] {
                    layers.encode_outbound(slice, &mut delivery.deflater);
                    taken += slice.len();
                }
                delivery.record_written(at, taken);
            }
            if layers.wire().is_empty() {
                return Ok(());
            }
            let sent = io.stream.send(layers.wire())?;
            core.metrics().add(Metric::BytesSent, sent as u64);
            layers.advance(sent);
            if !layers.wire().is_empty() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
        }
    }

    /// Bytes that wait for a connection's socket.
    fn unwritten(&self, at: ConnectionIx, io: &ConnectionIo) -> usize {
        let core = self.core.borrow();
        let outbox = core.delivery.connections[at].outbox.len();
        let layers = io.layers.borrow();
        outbox + layers.as_ref().map_or(0, |layers| layers.wire().len())
    }

    pub(crate) fn has_unwritten(&self, at: ConnectionIx, io: &ConnectionIo) -> bool {
        self.unwritten(at, io) > 0
    }

    /// Whether there is output that may be written now, without waiting for the store.
    pub(crate) fn has_ready(&self, at: ConnectionIx, io: &ConnectionIo) -> bool {
        let ready = self.core.borrow().delivery.connections[at]
            .outbox
            .ready_bytes();
        let layers = io.layers.borrow();
        ready > 0 || layers.as_ref().is_some_and(|l| !l.wire().is_empty())
    }

    /// Whether so much output waits for a socket that its client has to read first.
    pub(crate) fn is_client_behind(&self, at: ConnectionIx, io: &ConnectionIo) -> bool {
        let most = self.core.borrow().limits.max_outbox_bytes as usize;
        self.unwritten(at, io) > most
    }
}
