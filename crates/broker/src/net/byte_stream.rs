//! The bytes of a connection: a socket, or a pipe to a client in the same process.
//!
//! All calls are dispatched statically, and a socket takes no more memory than without the other kind.

use std::io::{self, IoSlice, Read as _};
use std::net::Shutdown;
use std::task::{Context, Poll, ready};

use memory_pipe::PipeEnd;
use socket2::Socket;
use tokio::io::unix::AsyncFd;

/// A connection that may move between threads. Sockets do not block.
pub(crate) enum ByteStream {
    Socket(Socket),
    Pipe(PipeEnd),
}

/// A connection that wakes tasks of this thread.
pub(crate) enum WatchedStream {
    Socket(AsyncFd<Socket>),
    Pipe(PipeEnd),
}

/// Registers a socket with the runtime of this thread.
pub(crate) fn register_socket(socket: Socket) -> io::Result<AsyncFd<Socket>> {
    // SAFETY: a `Socket` owns its descriptor, keeps it open for its whole life and never changes it.
    let watched = unsafe { AsyncFd::register(socket) };
    watched.map_err(io::Error::from)
}

impl ByteStream {
    /// Registers the connection with the runtime of this thread.
    pub(super) fn watch(self) -> io::Result<WatchedStream> {
        Ok(match self {
            Self::Socket(socket) => WatchedStream::Socket(register_socket(socket)?),
            Self::Pipe(pipe) => WatchedStream::Pipe(pipe),
        })
    }
}

impl WatchedStream {
    pub(super) fn into_stream(self) -> ByteStream {
        match self {
            Self::Socket(socket) => ByteStream::Socket(socket.into_inner()),
            Self::Pipe(pipe) => ByteStream::Pipe(pipe),
        }
    }

    /// Reads once; 0 bytes mean that the client has ended the stream.
    // A message that arrives alone costs two calls; inlined, they need about 34 instructions less.
    #[inline(always)]
    pub(super) fn poll_read(
        &self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let watched = match self {
            Self::Socket(watched) => watched,
            Self::Pipe(pipe) => return pipe.poll_read(context, buffer),
        };
        loop {
            let mut guard = ready!(watched.poll_read_ready(context))?;
            match watched.get_ref().read(buffer) {
                Ok(received) => {
                    if (1..buffer.len()).contains(&received) {
                        // The socket is empty: another read would only report that.
                        guard.clear_ready();
                    }
                    return Poll::Ready(Ok(received));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => guard.clear_ready(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Whether there may be more to read after a read of so many bytes into a buffer of this size.
    #[inline]
    pub(super) fn may_have_more(&self, received: usize, buffer_size: usize) -> bool {
        match self {
            Self::Socket(_) => received == buffer_size,
            // The client may write at any time, and only a read without bytes leaves a waker.
            Self::Pipe(_) => true,
        }
    }

    /// Calls `write` as soon as the stream may accept output. `write` returns whether it is full again.
    pub(super) fn poll_write(
        &self,
        context: &mut Context<'_>,
        write: impl FnOnce() -> bool,
    ) -> Poll<io::Result<()>> {
        match self {
            Self::Socket(watched) => {
                let mut guard = ready!(watched.poll_write_ready(context))?;
                if write() {
                    guard.clear_ready();
                }
            }
            Self::Pipe(pipe) => {
                ready!(pipe.poll_writable(context));
                write();
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Writes what the stream accepts now.
    #[inline]
    pub(super) fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Socket(watched) => watched.get_ref().send(bytes),
            Self::Pipe(pipe) => pipe.write(bytes),
        }
    }

    #[inline]
    pub(super) fn send_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Socket(watched) => watched.get_ref().send_vectored(slices),
            Self::Pipe(pipe) => pipe.write_vectored(slices),
        }
    }

    /// Ends the stream to the client.
    pub(super) fn shutdown_write(&self) {
        match self {
            Self::Socket(watched) => {
                // It fails if the client has closed the connection.
                let _ = watched.get_ref().shutdown(Shutdown::Write);
            }
            Self::Pipe(pipe) => pipe.shutdown_write(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_takes_no_more_memory_than_without_pipes() {
        assert_eq!(size_of::<WatchedStream>(), size_of::<AsyncFd<Socket>>());
    }
}
