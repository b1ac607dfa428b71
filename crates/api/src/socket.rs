//! Sockets of the HTTP listener: TCP or Unix, with a time limit on unread output.

use std::future::Future as _;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use broker::ProxyHeader;
use broker::config::BindAddress;
use hooks::PeerAddress;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::connection_tracker::{CloseReason, ConnectionTracker};

/// Maximum number of connections waiting in the kernel.
const BACKLOG: u32 = 1024;
/// A peer that reads fewer bytes within the write time-out is closed.
const MIN_PROGRESS_BYTES: usize = 16 * 1024;
/// Maximum length of a PROXY header, in bytes.
const MAX_PROXY_HEADER_BYTES: usize = 1024;

/// An open HTTP listener.
#[derive(Debug)]
pub struct HttpListener {
    socket: ListeningSocket,
}

#[derive(Debug)]
enum ListeningSocket {
    Tcp(TcpListener),
    Unix(UnixListener, SocketPath),
}

/// Removes the socket file when the listener is closed.
#[derive(Debug)]
struct SocketPath(PathBuf);

impl Drop for SocketPath {
    fn drop(&mut self) {
        // The file may already have been removed manually.
        let _ = std::fs::remove_file(&self.0);
    }
}

pub(crate) trait HttpSocket: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> HttpSocket for S {}

impl HttpListener {
    pub(crate) async fn bind(address: &BindAddress) -> io::Result<Self> {
        let socket = match address {
            BindAddress::Tcp(address) => ListeningSocket::Tcp(TcpListener::bind(address).await?),
            BindAddress::Unix(path) => {
                let socket: OwnedFd = broker::open_unix(path, BACKLOG)?.into();
                let listener = UnixListener::from_std(socket.into())?;
                ListeningSocket::Unix(listener, SocketPath(path.clone()))
            }
        };
        Ok(Self { socket })
    }

    /// The address in use: `127.0.0.1:8080`, or the path of a Unix socket.
    pub fn local_address(&self) -> io::Result<BindAddress> {
        Ok(match &self.socket {
            ListeningSocket::Tcp(listener) => BindAddress::Tcp(listener.local_addr()?),
            ListeningSocket::Unix(_, path) => BindAddress::Unix(path.0.clone()),
        })
    }

    /// The next connection and its peer address; `None` for a Unix socket.
    pub(crate) async fn accept(&self) -> io::Result<(Box<dyn HttpSocket>, Option<SocketAddr>)> {
        match &self.socket {
            ListeningSocket::Tcp(listener) => {
                let (stream, from): (TcpStream, _) = listener.accept().await?;
                Ok((Box::new(stream), Some(from)))
            }
            ListeningSocket::Unix(listener, _) => {
                let (stream, _): (UnixStream, _) = listener.accept().await?;
                Ok((Box::new(stream), None))
            }
        }
    }
}

/// A socket whose writes must make progress: less than the minimum within `timeout` closes the
/// connection.
pub(crate) struct TimedSocket {
    socket: Box<dyn HttpSocket>,
    /// Bytes read ahead.
    ahead: Vec<u8>,
    timeout: Duration,
    /// Set while a write waits; cleared when enough has been written.
    deadline: Option<Pin<Box<Sleep>>>,
    progress: usize,
    connections: Arc<ConnectionTracker>,
}

impl TimedSocket {
    pub(crate) fn new(
        socket: Box<dyn HttpSocket>,
        ahead: Vec<u8>,
        timeout: Duration,
        connections: Arc<ConnectionTracker>,
    ) -> Self {
        Self {
            socket,
            ahead,
            timeout,
            deadline: None,
            progress: 0,
            connections,
        }
    }

    fn after_write(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
        offered: usize,
    ) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(Ok(count)) => {
                self.progress += count;
                if count == offered || self.progress >= MIN_PROGRESS_BYTES {
                    self.deadline = None;
                    self.progress = 0;
                }
                Poll::Ready(Ok(count))
            }
            Poll::Pending => {
                let until = Instant::now() + self.timeout;
                let deadline = self
                    .deadline
                    .get_or_insert_with(|| Box::pin(sleep_until(until)));
                ready!(deadline.as_mut().poll(context));
                self.connections.count_close(CloseReason::WriteTimeout);
                let why = "the client does not read the response";
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)))
            }
            failed => failed,
        }
    }
}

impl AsyncRead for TimedSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.ahead.is_empty() {
            let count = self.ahead.len().min(buffer.remaining());
            buffer.put_slice(&self.ahead[..count]);
            self.ahead.drain(..count);
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.socket).poll_read(context, buffer)
    }
}

impl AsyncWrite for TimedSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.after_write(context, written, bytes.len())
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write_vectored(context, parts);
        let offered = parts.iter().map(|part| part.len()).sum();
        self.after_write(context, written, offered)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

/// Reads the PROXY header at the start of a connection. Returns the client it names, if any, and
/// the bytes read after it.
pub(crate) async fn read_proxy_header(
    socket: &mut dyn HttpSocket,
) -> io::Result<(Option<SocketAddr>, Vec<u8>)> {
    let mut read = Vec::new();
    loop {
        match broker::parse_proxy_header(&read) {
            ProxyHeader::Complete(length, peer) => {
                let client = match peer {
                    Some(PeerAddress::Tcp(client)) => Some(client),
                    Some(PeerAddress::Unix | PeerAddress::Memory) | None => None,
                };
                return Ok((client, read.split_off(length)));
            }
            ProxyHeader::Incomplete if read.len() < MAX_PROXY_HEADER_BYTES => {}
            ProxyHeader::Incomplete | ProxyHeader::Invalid => {
                let why = "expected a PROXY protocol header, since http.proxy_protocol is set";
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
        }
        let mut some = [0; MAX_PROXY_HEADER_BYTES];
        match socket.read(&mut some).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => read.extend_from_slice(&some[..count]),
        }
    }
}
