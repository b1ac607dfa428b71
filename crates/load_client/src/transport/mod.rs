//! One connection's bytes: TCP, optionally with TLS and WebSocket, in one event loop.
//!
//! Sockets do not block and the poll is edge-triggered: reading goes on until a short read, writing until the
//! socket takes no more; what is left waits in the connection for the next writable event.

mod error;
mod tls;
mod websocket;

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use rustls::pki_types::ServerName;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

pub use error::TransportError;
pub use tls::{TlsFiles, client_config};
use websocket::WebSocketLayer;

/// Bytes of ciphertext taken from a socket at a time; a read buffer must have room for twice as much.
pub const RAW_BYTES: usize = 64 * 1024;

/// How to reach the broker: address, TLS, WebSocket.
#[derive(Clone, Debug)]
pub struct BrokerDialer {
    pub target: SocketAddr,
    pub tls: Option<(Arc<rustls::ClientConfig>, ServerName<'static>)>,
    /// `Host` header and path of the WebSocket endpoint.
    pub websocket: Option<(String, String)>,
}

/// What a read brought.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReceiveOutcome {
    pub bytes: usize,
    /// The socket may hold more: read again before waiting for an event.
    pub more: bool,
}

/// A connection to the broker.
#[derive(Debug)]
pub struct BrokerConnection {
    stream: TcpStream,
    tls: Option<Box<rustls::ClientConnection>>,
    websocket: Option<Box<WebSocketLayer>>,
    /// Bytes the socket did not take, from `unsent_at` on.
    unsent: Vec<u8>,
    unsent_at: usize,
}

impl BrokerConnection {
    /// Starts to connect; the poll reports under `token` when the connection is writable or has failed.
    pub fn dial(
        dialer: &BrokerDialer,
        source: Option<SocketAddr>,
        registry: &Registry,
        token: Token,
    ) -> Result<Self, TransportError> {
        let mut stream = start_connect(dialer.target, source)?;
        registry.register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)?;
        let tls = match &dialer.tls {
            Some((config, name)) => Some(Box::new(
                rustls::ClientConnection::new(config.clone(), name.clone())
                    .map_err(|error| TransportError::Tls(error.to_string()))?,
            )),
            None => None,
        };
        let mut connection = Self {
            stream,
            tls,
            websocket: None,
            unsent: Vec::new(),
            unsent_at: 0,
        };
        if let Some(tls) = &mut connection.tls {
            tls.set_buffer_limit(None);
        }
        if let Some((host, path)) = &dialer.websocket {
            let (websocket, request) = WebSocketLayer::start(host, path)?;
            connection.websocket = Some(Box::new(websocket));
            connection.queue(&request)?;
        }
        Ok(connection)
    }

    /// What went wrong, after the poll has reported an error.
    pub fn take_error(&self) -> TransportError {
        match self.stream.take_error() {
            Ok(Some(error)) | Err(error) => error.into(),
            Ok(None) => TransportError::Closed,
        }
    }

    /// Lets the end of the connection be a reset, which discards what is not yet sent.
    pub fn reset_on_close(&self) -> io::Result<()> {
        socket2::SockRef::from(&self.stream).set_linger(Some(std::time::Duration::ZERO))
    }

    /// Sends bytes of MQTT, or keeps those that the socket does not take now.
    #[inline]
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), TransportError> {
        match &mut self.websocket {
            None => self.send_raw(bytes),
            Some(websocket) => match websocket.encode_frame(bytes) {
                Some(frame) => {
                    let sent = self.send_raw(&frame);
                    if let Some(websocket) = &mut self.websocket {
                        websocket.recycle_buffer(frame);
                    }
                    sent
                }
                None => Ok(()),
            },
        }
    }

    /// Puts bytes below the WebSocket layer in line without touching the socket.
    fn queue(&mut self, bytes: &[u8]) -> Result<(), TransportError> {
        match &mut self.tls {
            Some(tls) => tls.writer().write_all(bytes)?,
            None => self.unsent.extend_from_slice(bytes),
        }
        Ok(())
    }

    #[inline]
    fn send_raw(&mut self, bytes: &[u8]) -> Result<(), TransportError> {
        if self.tls.is_some() || self.has_backlog() {
            self.queue(bytes)?;
            return self.flush();
        }
        let written = write_some(&mut self.stream, bytes)?;
        self.unsent.extend_from_slice(&bytes[written..]);
        Ok(())
    }

    /// Writes what waits to be written, as far as the socket takes it.
    pub fn flush(&mut self) -> Result<(), TransportError> {
        if let Some(tls) = &mut self.tls {
            while tls.wants_write() {
                match tls.write_tls(&mut self.stream) {
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error.into()),
                }
            }
            return Ok(());
        }
        if self.unsent_at < self.unsent.len() {
            self.unsent_at += write_some(&mut self.stream, &self.unsent[self.unsent_at..])?;
            if self.unsent_at == self.unsent.len() {
                self.unsent.clear();
                self.unsent_at = 0;
            }
        }
        Ok(())
    }

    /// Whether bytes wait for the socket to become writable.
    #[inline]
    pub fn has_backlog(&self) -> bool {
        !self.unsent.is_empty() || self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    /// Reads bytes of MQTT into `buf`, which is at least two [`RAW_BYTES`] long. `raw` is room for ciphertext.
    #[inline]
    pub fn receive(
        &mut self,
        buf: &mut [u8],
        raw: &mut [u8],
    ) -> Result<ReceiveOutcome, TransportError> {
        let Some(mut websocket) = self.websocket.take() else {
            return self.receive_raw(buf, raw);
        };
        let held = websocket.restore_unread(buf);
        let received = self.receive_raw(&mut buf[held..], raw)?;
        let unwrapped = websocket.decode(&mut buf[..held + received.bytes]);
        // Answers to pings, and what waited for the handshake to end.
        let replies = websocket.take_replies();
        self.websocket = Some(websocket);
        if !replies.is_empty() {
            self.send_raw(&replies)?;
        }
        Ok(ReceiveOutcome {
            bytes: unwrapped?,
            more: received.more,
        })
    }

    #[inline]
    fn receive_raw(
        &mut self,
        buf: &mut [u8],
        raw: &mut [u8],
    ) -> Result<ReceiveOutcome, TransportError> {
        let Some(tls) = &mut self.tls else {
            let bytes = read_some(&mut self.stream, buf)?;
            return Ok(ReceiveOutcome {
                bytes,
                more: bytes == buf.len(),
            });
        };
        let room = raw.len().min(RAW_BYTES);
        let bytes = read_some(&mut self.stream, &mut raw[..room])?;
        let plain = tls::decrypt(tls, &raw[..bytes], buf)?;
        if tls.wants_write() {
            self.flush()?;
        }
        Ok(ReceiveOutcome {
            bytes: plain,
            more: bytes == room,
        })
    }
}

/// Starts a TCP connection, from `source` if given, without waiting for it.
pub fn start_connect(target: SocketAddr, source: Option<SocketAddr>) -> io::Result<TcpStream> {
    let socket = Socket::new(
        Domain::for_address(target),
        Type::STREAM.nonblocking(),
        Some(Protocol::TCP),
    )?;
    socket.set_tcp_nodelay(true)?;
    if let Some(source) = source {
        // Lets the port of a closed connection be used again.
        socket.set_reuse_address(true)?;
        socket.bind(&SockAddr::from(source))?;
    }
    match socket.connect(&SockAddr::from(target)) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(IN_PROGRESS) => {}
        Err(error) => return Err(error),
    }
    Ok(TcpStream::from_std(socket.into()))
}

/// `EINPROGRESS`: the connection is being made.
const IN_PROGRESS: i32 = rustix::io::Errno::INPROGRESS.raw_os_error();

/// Reads once; 0 means that nothing is there now.
#[inline]
pub fn read_some(stream: &mut TcpStream, buf: &mut [u8]) -> Result<usize, TransportError> {
    loop {
        match stream.read(buf) {
            Ok(0) => return Err(TransportError::Closed),
            Ok(bytes) => return Ok(bytes),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Writes once; fewer bytes than given mean that a writable event will follow.
#[inline]
pub fn write_some(stream: &mut TcpStream, bytes: &[u8]) -> Result<usize, TransportError> {
    loop {
        match stream.write(bytes) {
            Ok(written) => return Ok(written),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
}
