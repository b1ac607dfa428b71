//! The task of one connection: it reads, and waits where waiting is due. It does not write, unless its socket has
//! once taken less than it was given.

use std::future::Future;
use std::io::{self, Read};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Sleep;

use super::inbox::{MovingConnection, Parcel};
use super::shard_thread::{Io, ShardIo};
use crate::core::connection::Phase;
use crate::core::shard::Flow;

/// How long a closing connection may take to read what was said to it.
const LINGER: Duration = Duration::from_secs(2);
/// Bytes a closing connection may still send before it is cut.
const LINGER_BYTES: usize = 1 << 20;

enum State {
    Reading,
    /// Not read until the time has come, then asked again.
    Paused(Pin<Box<Sleep>>),
    /// Not read until somebody else says so.
    Waiting,
    /// To another shard, with the next step.
    Leaving(u16),
    /// The last bytes go out; then what the client still sends is read and thrown away until it closes too, since a
    /// socket closed with unread bytes would take back what was sent last.
    Closing {
        until: Pin<Box<Sleep>>,
        goodbye: Goodbye,
        discarded: usize,
    },
}

/// How far a closing connection is.
#[derive(Clone, Copy, PartialEq)]
enum Goodbye {
    NotSaid,
    Said,
    Done,
}

/// Small, since there is one for every idle connection.
struct Connection {
    shard: Rc<ShardIo>,
    io: Option<Rc<Io>>,
    at: u32,
    state: State,
}

/// Starts the task; `flow` is what the core said when it took the connection.
pub(crate) fn start(shard: &Rc<ShardIo>, at: u32, io: Rc<Io>, flow: Flow) {
    shard.register(at, io.clone());
    let mut connection = Connection {
        shard: shard.clone(),
        io: Some(io),
        at,
        state: State::Reading,
    };
    connection.follow(flow);
    tokio::task::spawn_local(connection);
}

/// An authentication has been answered: the connection's task goes on from there.
pub(crate) fn set_pending_flow(shard: &Rc<ShardIo>, at: u32, serial: u32, flow: Flow) {
    let io = shard.ios.borrow().get(at as usize).cloned().flatten();
    let core = shard.core.borrow();
    let same = core
        .delivery
        .connections
        .get(at as usize)
        .is_some_and(|c| c.serial == serial);
    drop(core);
    if let Some(io) = io
        && same
    {
        if let Flow::HandOver(to) = flow {
            io.hand_over_to.set(Some(to));
        }
        io.wake();
    }
}

impl Drop for Connection {
    /// The shard is going down with this connection still open.
    fn drop(&mut self) {
        if self.io.is_none() {
            return;
        }
        if let Ok(mut core) = self.shard.core.try_borrow_mut() {
            core.lost(self.at, "server_shutting_down");
            self.shard.forget(&mut core, self.at);
        }
    }
}

impl Future for Connection {
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

impl Connection {
    fn advance(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            if let State::Leaving(to) = self.state {
                self.hand_over(to);
                return Poll::Ready(());
            }
            let Some(io) = self.io.clone() else {
                return Poll::Ready(());
            };
            if io.blocked.get() && self.write_on(&io, context).is_err() {
                return self.end();
            }
            if !matches!(self.state, State::Closing { .. })
                && self.shard.phase(self.at) == Phase::Closing
            {
                self.begin_closing(&io);
                continue;
            }
            match &mut self.state {
                // Who does not read its answers gets no new ones: nothing is taken from it until its socket moves.
                State::Reading if io.blocked.get() && self.shard.is_behind(self.at, &io) => {
                    return Poll::Pending;
                }
                State::Reading => match self.read(&io, context) {
                    Poll::Ready(true) => {
                        // Others first; and what this read has caused is written before more is read.
                        context.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    Poll::Ready(false) => {}
                    Poll::Pending => return Poll::Pending,
                },
                State::Paused(sleep) => {
                    if sleep.as_mut().poll(context).is_pending() {
                        return Poll::Pending;
                    }
                    self.shard.update_congestion();
                    let at = self.at;
                    let flow = self.shard.with_core(at, |core| {
                        // What made it wait may still be so.
                        match core.flow_after_publish(at) {
                            Flow::Continue => core.resume(at),
                            wait => wait,
                        }
                    });
                    self.follow(flow);
                }
                State::Waiting => {
                    if let Some(to) = io.hand_over_to.take() {
                        self.state = State::Leaving(to);
                        continue;
                    }
                    if self.shard.is_waiting(self.at) {
                        return Poll::Pending;
                    }
                    let at = self.at;
                    let flow = self.shard.with_core(at, |core| core.resume(at));
                    self.follow(flow);
                }
                State::Closing { .. } => return self.close(&io, context),
                State::Leaving(_) => {}
            }
        }
    }

    /// What the core says is to be done next.
    fn follow(&mut self, flow: Flow) {
        self.state = match flow {
            // That it is closing is found out by its phase.
            Flow::Continue | Flow::Close => State::Reading,
            Flow::Pause(ms) => {
                State::Paused(Box::pin(tokio::time::sleep(Duration::from_millis(ms))))
            }
            Flow::Wait => State::Waiting,
            Flow::HandOver(to) => State::Leaving(to),
        };
    }

    /// Sends the connection to the shard that holds its session.
    fn hand_over(&mut self, to: u16) {
        let moving = self.shard.borrow_now().hand_over(self.at);
        self.shard.unregister(self.at);
        let Some(io) = self.io.take() else { return };
        // Nobody else keeps one for longer than a call.
        let Ok(io) = Rc::try_unwrap(io).map(|io| (io.socket.into_inner(), io.layers.into_inner()))
        else {
            tracing::error!("a connection could not be moved: its socket is in use; this is a bug");
            return;
        };
        let moving = MovingConnection {
            moving,
            socket: io.0,
            layers: io.1,
        };
        self.shard.inboxes[usize::from(to)].push(Parcel::Connection(Box::new(moving)));
    }

    /// One read. `Ready(true)`: there may be more to read; `Ready(false)`: look at the state again.
    fn read(&mut self, io: &Rc<Io>, context: &mut Context<'_>) -> Poll<bool> {
        let mut guard = match io.socket.poll_read_ready(context) {
            Poll::Ready(Ok(guard)) => guard,
            Poll::Ready(Err(_)) => return self.lost("socket_error"),
            Poll::Pending => return Poll::Pending,
        };
        let shard = self.shard.clone();
        let mut scratch = shard.scratch.borrow_mut();
        let received = match io.socket.get_ref().read(&mut scratch) {
            Ok(0) => {
                drop(scratch);
                return self.lost("closed_by_client");
            }
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                guard.clear_ready();
                return Poll::Ready(false);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Poll::Ready(false),
            Err(_) => {
                drop(scratch);
                return self.lost("socket_error");
            }
        };
        let filled = received == scratch.len();
        if !filled {
            // The socket is empty: no need to ask it again to hear so.
            guard.clear_ready();
        }
        let flow = self.feed(io, &mut scratch[..received]);
        drop(scratch);
        self.follow(flow);
        Poll::Ready(filled && matches!(self.state, State::Reading))
    }

    fn feed(&self, io: &Rc<Io>, bytes: &mut [u8]) -> Flow {
        let at = self.at;
        let mut layers = io.layers.borrow_mut();
        let Some(layers) = &mut *layers else {
            return self.shard.with_core(at, |core| core.receive(at, bytes));
        };
        let mut mqtt = Vec::new();
        let result = layers.inbound(bytes, &mut mqtt);
        let waiting = layers.waiting_bytes();
        // Answers of the layers themselves are written in this turn too.
        if !layers.wire().is_empty() {
            let mut core = self.shard.core.borrow_mut();
            core.delivery.touch(at);
        }
        self.shard.with_core(at, |core| match result {
            Ok(learned) => {
                if let Some(peer) = learned.peer {
                    core.set_peer(at, peer);
                }
                if let Some(names) = learned.certificate {
                    core.set_certificate(at, names);
                }
                let flow = match core.set_layer_bytes(at, waiting) {
                    Flow::Continue if !mqtt.is_empty() => core.receive(at, &mqtt),
                    flow => flow,
                };
                if learned.closed {
                    core.lost(at, "closed_by_client");
                    return Flow::Close;
                }
                flow
            }
            Err(error) => {
                tracing::debug!(
                    connection = at,
                    error = error.0,
                    "a handshake or a frame was not valid"
                );
                core.metrics()
                    .inc(crate::metrics::Metric::ConnectionsRefusedHandshake);
                core.warn_of_foreign(at, &error.0);
                core.lost(at, "handshake_failed");
                Flow::Close
            }
        })
    }

    fn lost(&mut self, why: &'static str) -> Poll<bool> {
        let at = self.at;
        self.shard.with_core(at, |core| {
            core.lost(at, why);
            Flow::Close
        });
        Poll::Ready(false)
    }

    /// The socket was full; goes on when it takes more. An error means that it is of no use any more.
    fn write_on(&mut self, io: &Rc<Io>, context: &mut Context<'_>) -> io::Result<()> {
        while io.blocked.get() {
            match io.socket.poll_write_ready(context) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Ready(Ok(mut guard)) => {
                    io.blocked.set(false);
                    self.shard.flush_one(self.at, io);
                    if io.blocked.get() {
                        guard.clear_ready();
                    }
                }
            }
        }
        self.shard.after_core();
        Ok(())
    }

    fn begin_closing(&mut self, io: &Rc<Io>) {
        if !io.blocked.get() {
            self.shard.flush_one(self.at, io);
        }
        let until = Box::pin(tokio::time::sleep(LINGER));
        let goodbye = Goodbye::NotSaid;
        self.state = State::Closing {
            until,
            goodbye,
            discarded: 0,
        };
    }

    fn close(&mut self, io: &Rc<Io>, context: &mut Context<'_>) -> Poll<()> {
        let State::Closing {
            until,
            goodbye,
            discarded,
        } = &mut self.state
        else {
            return Poll::Ready(());
        };
        if until.as_mut().poll(context).is_ready() {
            return self.end();
        }
        // Everything that waits, then the goodbye of each layer, then the end of the stream.
        while *goodbye != Goodbye::Done && !io.blocked.get() {
            if io.broken.get() {
                return self.end();
            }
            if self.shard.has_ready(self.at, io) {
                self.shard.flush_one(self.at, io);
            } else if self.shard.has_unwritten(self.at, io) {
                // What was said last waits for the store, which will wake this task.
                break;
            } else if *goodbye == Goodbye::NotSaid {
                *goodbye = Goodbye::Said;
                if let Some(layers) = &mut *io.layers.borrow_mut() {
                    layers.finish();
                }
            } else {
                *goodbye = Goodbye::Done;
                let _ = io.socket.get_ref().shutdown(std::net::Shutdown::Write);
            }
        }
        loop {
            let mut guard = match io.socket.poll_read_ready(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(guard)) => guard,
                Poll::Ready(Err(_)) => return self.end(),
            };
            let mut scratch = self.shard.scratch.borrow_mut();
            match io.socket.get_ref().read(&mut scratch) {
                Ok(received) if received > 0 && *discarded < LINGER_BYTES => *discarded += received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => guard.clear_ready(),
                _ => {
                    drop(scratch);
                    return self.end();
                }
            }
        }
    }

    fn end(&mut self) -> Poll<()> {
        let at = self.at;
        if self.shard.phase(at) != Phase::Closing {
            self.shard.with_core(at, |core| {
                core.lost(at, "socket_error");
                Flow::Close
            });
        }
        self.shard.unregister(at);
        self.io = None;
        self.shard.forget(&mut self.shard.core.borrow_mut(), at);
        Poll::Ready(())
    }
}
