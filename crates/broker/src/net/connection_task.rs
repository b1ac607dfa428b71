//! The task of one connection: it reads, and waits when the core requires it. It writes only while its socket is
//! blocked, that is after a write that the socket did not take completely.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hooks::PeerAddress;
use tokio::time::Sleep;

use super::byte_stream::ByteStream;
use super::inbox::{AcceptedConnection, InboxItem, StreamHandover};
use super::layers::{InboundResult, LayerError, TransportLayers};
use super::reserved_connection::release_connection_slots;
use super::shard_io::{ConnectionIo, ShardIo};
use crate::core::connection::ConnectionPhase;
use crate::core::shard::ConnectionAction;
use crate::core::tables::{ConnectionIx, TableIx};
use crate::metrics::Metric;

/// How long a closing connection may take to read its last bytes.
const LINGER: Duration = Duration::from_secs(2);
/// Bytes a closing connection may still send before it is cut.
const LINGER_BYTES: usize = 1 << 20;

enum ConnectionState {
    Reading,
    /// Not read until the timer fires; then the core decides again.
    Paused(Pin<Box<Sleep>>),
    /// Not read until another component resumes the connection.
    Waiting,
    /// Moves to another shard with the next step.
    HandingOver(u16),
    /// The last bytes are written. Then further input is read and discarded until the client closes, too, since closing
    /// a socket with unread bytes would discard the bytes sent last.
    Closing {
        until: Pin<Box<Sleep>>,
        progress: CloseProgress,
        discarded: usize,
    },
}

/// Progress of a closing connection.
#[derive(Clone, Copy, PartialEq)]
enum CloseProgress {
    NotSent,
    Sent,
    Done,
}

/// Small, since there is one for every idle connection.
struct ConnectionTask {
    shard: Rc<ShardIo>,
    io: Option<Rc<ConnectionIo>>,
    at: ConnectionIx,
    state: ConnectionState,
}

/// Starts the task; `flow` is the action that the core returned when it accepted the connection.
fn spawn_connection(
    shard: &Rc<ShardIo>,
    at: ConnectionIx,
    io: Rc<ConnectionIo>,
    flow: ConnectionAction,
) {
    shard.register(at, io.clone());
    let mut connection = ConnectionTask {
        shard: shard.clone(),
        io: Some(io),
        at,
        state: ConnectionState::Reading,
    };
    connection.apply_action(flow);
    tokio::task::spawn_local(connection);
}

impl ShardIo {
    /// Accepts a connection from another shard.
    pub(super) fn accept_handover(self: &Rc<Self>, moving: StreamHandover) {
        let StreamHandover {
            connection: moving,
            stream,
            layers,
        } = moving;
        let (at, flow) = self.core_at_now().accept_handover(moving);
        match ConnectionIo::new(stream, layers) {
            Ok(io) => spawn_connection(self, at, io, flow),
            Err(error) => {
                tracing::warn!(%error, "cannot move connection to another shard; connection closed");
                let mut core = self.core_at_now();
                core.connection_lost(at, "socket_error");
                self.release_connection(&mut core, at);
            }
        }
    }

    /// Registers a connection that has been accepted outside the shard.
    pub(super) fn accept(self: &Rc<Self>, accepted: AcceptedConnection) {
        if self.core.borrow().is_stopping {
            return;
        }
        let listener = accepted.reserved.keep();
        let addresses = (accepted.peer, accepted.local);
        let at = self.open_connection(listener, accepted.stream, addresses, None);
        let Some(at) = at else { return };
        let mut core = self.core.borrow_mut();
        if let Some(names) = accepted.certificate {
            core.set_certificate(at, names);
        }
        if let Some(source) = accepted.address_source {
            core.set_address_source(at, source);
        }
        if accepted.is_tunnel_exit {
            core.mark_tunnel_exit(at);
        }
    }

    /// Registers a new connection between these two addresses. `None`: the system cannot, and it is closed.
    pub(crate) fn open_connection(
        self: &Rc<Self>,
        listener: u16,
        stream: ByteStream,
        (peer, local): (PeerAddress, Option<SocketAddr>),
        layers: Option<Box<TransportLayers>>,
    ) -> Option<ConnectionIx> {
        let io = match ConnectionIo::new(stream, layers) {
            Ok(io) => io,
            Err(error) => {
                tracing::warn!(%error, "cannot register connection; connection closed");
                let core = self.core.borrow();
                release_connection_slots(&core.node, listener);
                return None;
            }
        };
        let at = {
            let mut core = self.core_at_now();
            core.metrics().inc(Metric::ConnectionsOpened);
            let at = core.open_connection(listener, peer);
            core.set_local_address(at, local);
            at
        };
        spawn_connection(self, at, io, ConnectionAction::Continue);
        Some(at)
    }
}

impl Drop for ConnectionTask {
    /// The shard ends with this connection still open.
    fn drop(&mut self) {
        if self.io.is_none() {
            return;
        }
        if let Ok(mut core) = self.shard.core.try_borrow_mut() {
            core.connection_lost(self.at, "server_shutting_down");
            self.shard.release_connection(&mut core, self.at);
        }
    }
}

impl Future for ConnectionTask {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        match this.advance(context) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => {
                if let Some(io) = &this.io {
                    let mut waker = io.waker.borrow_mut();
                    if !waker
                        .as_ref()
                        .is_some_and(|waker| waker.will_wake(context.waker()))
                    {
                        *waker = Some(context.waker().clone());
                    }
                }
                Poll::Pending
            }
        }
    }
}

impl ConnectionTask {
    fn advance(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            if let ConnectionState::HandingOver(to) = self.state {
                self.hand_over(to);
                return Poll::Ready(());
            }
            let Some(io) = self.io.clone() else {
                return Poll::Ready(());
            };
            if io.is_blocked.get() && self.resume_writing(&io, context).is_err() {
                return self.finish();
            }
            if !matches!(self.state, ConnectionState::Closing { .. })
                && self.shard.phase(self.at) == ConnectionPhase::Closing
            {
                self.begin_closing(&io);
                continue;
            }
            match &mut self.state {
                // A client that does not read its answers gets no new ones: its input is not read until its socket
                // accepts output.
                ConnectionState::Reading
                    if io.is_blocked.get() && self.shard.is_client_behind(self.at, &io) =>
                {
                    return Poll::Pending;
                }
                ConnectionState::Reading => match self.read(&io, context) {
                    Poll::Ready(true) => {
                        // Other tasks run first, and the output of this read is written before more is read.
                        context.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    Poll::Ready(false) => {}
                    Poll::Pending => return Poll::Pending,
                },
                ConnectionState::Paused(sleep) => {
                    if sleep.as_mut().poll(context).is_pending() {
                        return Poll::Pending;
                    }
                    self.shard.update_congestion();
                    let at = self.at;
                    let flow = self.shard.with_core(at, |core| {
                        // The reason for the pause may persist.
                        match core.action_after_publish(at) {
                            ConnectionAction::Continue => core.resume(at),
                            wait => wait,
                        }
                    });
                    self.apply_action(flow);
                }
                ConnectionState::Waiting => {
                    if let Some(to) = io.hand_over_to.take() {
                        self.state = ConnectionState::HandingOver(to);
                        continue;
                    }
                    if self.shard.is_holding_packets(self.at) {
                        return Poll::Pending;
                    }
                    let at = self.at;
                    let flow = self.shard.with_core(at, |core| core.resume(at));
                    self.apply_action(flow);
                }
                ConnectionState::Closing { .. } => return self.close(&io, context),
                ConnectionState::HandingOver(_) => {}
            }
        }
    }

    /// Sets the state according to the action returned by the core.
    fn apply_action(&mut self, flow: ConnectionAction) {
        self.state = match flow {
            // A closing connection is detected by its phase.
            ConnectionAction::Continue | ConnectionAction::Close => ConnectionState::Reading,
            ConnectionAction::Pause(ms) => {
                ConnectionState::Paused(Box::pin(tokio::time::sleep(Duration::from_millis(ms))))
            }
            ConnectionAction::AwaitResume => ConnectionState::Waiting,
            ConnectionAction::HandOver(to) => ConnectionState::HandingOver(to),
        };
    }

    /// Sends the connection to the shard that holds its session.
    fn hand_over(&mut self, to: u16) {
        let moving = self.shard.core_at_now().hand_over(self.at);
        self.shard.unregister(self.at);
        let Some(io) = self.io.take() else { return };
        // No other component holds a reference for longer than a call.
        let Ok(io) = Rc::try_unwrap(io).map(|io| (io.stream.into_stream(), io.layers.into_inner()))
        else {
            tracing::error!(
                "cannot move connection to another shard: its socket is in use; this is a bug"
            );
            return;
        };
        let moving = StreamHandover {
            connection: moving,
            stream: io.0,
            layers: io.1,
        };
        self.shard.inboxes[usize::from(to)].push(InboxItem::Handover(Box::new(moving)));
    }

    /// Performs one read, unless input is pending in a layer. `Ready(true)`: there may be more to read; `Ready(false)`: check the state again.
    fn read(&mut self, io: &Rc<ConnectionIo>, context: &mut Context<'_>) -> Poll<bool> {
        if io.has_pending_input() {
            let flow = self.feed_core(io, &mut []);
            self.apply_action(flow);
            return Poll::Ready(matches!(self.state, ConnectionState::Reading));
        }
        let shard = self.shard.clone();
        let mut scratch = shard.scratch.borrow_mut();
        let received = match ready!(io.stream.poll_read(context, &mut scratch)) {
            Ok(0) => {
                drop(scratch);
                return self.connection_lost("closed_by_client");
            }
            Ok(received) => received,
            Err(_) => {
                drop(scratch);
                return self.connection_lost("socket_error");
            }
        };
        let may_have_more = io.stream.may_have_more(received, scratch.len());
        let flow = self.feed_core(io, &mut scratch[..received]);
        drop(scratch);
        self.apply_action(flow);
        let has_more = may_have_more || io.has_pending_input();
        Poll::Ready(has_more && matches!(self.state, ConnectionState::Reading))
    }

    fn feed_core(&self, io: &Rc<ConnectionIo>, bytes: &mut [u8]) -> ConnectionAction {
        let at = self.at;
        let mut slot = io.layers.borrow_mut();
        let Some(layers) = &mut *slot else {
            return self.shard.with_core(at, |core| core.receive(at, bytes));
        };
        let mut mqtt = Vec::new();
        let result = layers.decode_inbound(bytes, &mut mqtt);
        let waiting = layers.waiting_bytes();
        if let Ok(learned) = &result
            && learned.relay.is_some()
            && let Some(response) = layers.take_wire_if_empty()
        {
            *slot = None;
            drop(slot);
            let mut core = self.shard.core.borrow_mut();
            core.delivery
                .write(at, |out| out.extend_from_slice(&response));
            drop(core);
            return self.apply_inbound(result, 0, &mut mqtt);
        }
        // Answers of the layers themselves are written in this turn, too.
        if !layers.wire().is_empty() {
            let mut core = self.shard.core.borrow_mut();
            core.delivery.mark_socket_dirty(at);
        }
        drop(slot);
        self.apply_inbound(result, waiting, &mut mqtt)
    }

    /// Passes what the layers have decoded to the core. `waiting` is the number of bytes they keep.
    fn apply_inbound(
        &self,
        result: Result<InboundResult, LayerError>,
        waiting: usize,
        mqtt: &mut [u8],
    ) -> ConnectionAction {
        let at = self.at;
        self.shard.with_core(at, |core| match result {
            Ok(learned) => {
                if let Some(peer) = learned.peer {
                    core.set_peer(at, peer);
                }
                if let Some(names) = learned.certificate {
                    core.set_certificate(at, names);
                }
                let mut flow = core.set_layer_bytes(at, waiting);
                if let Some(upgrade) = learned.relay
                    && flow == ConnectionAction::Continue
                {
                    flow = self.shard.open_relay(core, at, &upgrade);
                }
                // While the connection is held, its input waits.
                let takes_input = matches!(
                    flow,
                    ConnectionAction::Continue | ConnectionAction::AwaitResume
                );
                if takes_input && !mqtt.is_empty() {
                    flow = core.receive(at, mqtt);
                }
                if learned.closed {
                    core.connection_lost(at, "closed_by_client");
                    return ConnectionAction::Close;
                }
                flow
            }
            Err(error) => {
                tracing::debug!(
                    connection = at.position(),
                    error = error.0,
                    "invalid handshake or frame; connection closed"
                );
                core.metrics().inc(Metric::ConnectionsRejectedHandshake);
                core.warn_foreign_protocol(at, &error.0);
                core.connection_lost(at, "handshake_failed");
                ConnectionAction::Close
            }
        })
    }

    fn connection_lost(&mut self, why: &'static str) -> Poll<bool> {
        let at = self.at;
        self.shard.with_core(at, |core| {
            core.connection_lost(at, why);
            ConnectionAction::Close
        });
        Poll::Ready(false)
    }

    /// Called when the socket was full; continues when it accepts more. An error means that the connection is no longer
    /// usable.
    fn resume_writing(
        &mut self,
        io: &Rc<ConnectionIo>,
        context: &mut Context<'_>,
    ) -> io::Result<()> {
        while io.is_blocked.get() {
            let write = || {
                io.is_blocked.set(false);
                self.shard.flush_connection(self.at, io);
                io.is_blocked.get()
            };
            match io.stream.poll_write(context, write) {
                Poll::Pending => return Ok(()),
                Poll::Ready(written) => written?,
            }
        }
        self.shard.finish_core_call();
        Ok(())
    }

    fn begin_closing(&mut self, io: &Rc<ConnectionIo>) {
        if !io.is_blocked.get() {
            self.shard.flush_connection(self.at, io);
        }
        let until = Box::pin(tokio::time::sleep(LINGER));
        let progress = CloseProgress::NotSent;
        self.state = ConnectionState::Closing {
            until,
            progress,
            discarded: 0,
        };
    }

    fn close(&mut self, io: &Rc<ConnectionIo>, context: &mut Context<'_>) -> Poll<()> {
        let ConnectionState::Closing {
            until,
            progress,
            discarded,
        } = &mut self.state
        else {
            return Poll::Ready(());
        };
        if until.as_mut().poll(context).is_ready() {
            return self.finish();
        }
        // All pending output, then the close message of each layer, then the end of the stream.
        while *progress != CloseProgress::Done && !io.is_blocked.get() {
            if io.is_broken.get() {
                return self.finish();
            }
            if self.shard.has_ready(self.at, io) {
                self.shard.flush_connection(self.at, io);
            } else if self.shard.has_unwritten(self.at, io) {
                // The last bytes wait for the store, which will wake this task.
                break;
            } else if *progress == CloseProgress::NotSent {
                *progress = CloseProgress::Sent;
                if let Some(layers) = &mut *io.layers.borrow_mut() {
                    layers.send_close();
                }
            } else {
                *progress = CloseProgress::Done;
                io.stream.shutdown_write();
            }
        }
        if *progress == CloseProgress::Done && !self.shard.lingers(self.at) {
            return self.finish();
        }
        loop {
            let mut scratch = self.shard.scratch.borrow_mut();
            match ready!(io.stream.poll_read(context, &mut scratch)) {
                Ok(received) if received > 0 && *discarded < LINGER_BYTES => *discarded += received,
                _ => {
                    drop(scratch);
                    return self.finish();
                }
            }
        }
    }

    fn finish(&mut self) -> Poll<()> {
        let at = self.at;
        if self.shard.phase(at) != ConnectionPhase::Closing {
            self.shard.with_core(at, |core| {
                core.connection_lost(at, "socket_error");
                ConnectionAction::Close
            });
        }
        self.shard.unregister(at);
        self.io = None;
        self.shard
            .release_connection(&mut self.shard.core.borrow_mut(), at);
        Poll::Ready(())
    }
}
