//! The connection of a device: a socket of its own, a pipe to a translator, or one to a node in this process.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use load_client::transport::{BrokerConnection, ReceiveOutcome, TransportError};
use mio::{Registry, Token};
use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};

use super::fetched_image::FetchedImage;
use super::memory_connection::MemoryConnection;
use super::target_access::TargetAccess;
use crate::definition::FleetTransport;
use crate::translation::{TranslatedPipe, TranslatedRoute};

/// The token by which a poll reports that pipes are ready.
pub(super) const PIPES: Token = Token(usize::MAX);

/// What other threads report to a thread with devices: pipes that can be read or written again, and downloaded images.
#[derive(Debug)]
pub(super) struct ReadyPipes {
    devices: Mutex<Vec<usize>>,
    fetched: Mutex<Vec<FetchedImage>>,
    waker: mio::Waker,
}

impl ReadyPipes {
    pub(super) fn new(registry: &Registry) -> std::io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            devices: Mutex::default(),
            fetched: Mutex::default(),
            waker: mio::Waker::new(registry, PIPES)?,
        }))
    }

    /// The devices since the last call.
    pub(super) fn take(&self) -> Vec<usize> {
        std::mem::take(&mut *self.lock())
    }

    /// The images since the last call.
    pub(super) fn take_fetched(&self) -> Vec<FetchedImage> {
        std::mem::take(&mut *self.lock_fetched())
    }

    /// Reports the end of a download.
    pub(super) fn push_fetched(&self, fetched: FetchedImage) {
        self.lock_fetched().push(fetched);
        let _ = self.waker.wake();
    }

    fn lock_fetched(&self) -> std::sync::MutexGuard<'_, Vec<FetchedImage>> {
        self.fetched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, device: usize) {
        let is_first = {
            let mut devices = self.lock();
            devices.push(device);
            devices.len() == 1
        };
        if is_first {
            // It fails only after the end of the poll.
            let _ = self.waker.wake();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<usize>> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct PipeWaker {
    device: usize,
    ready: Arc<ReadyPipes>,
}

impl Wake for PipeWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ready.push(self.device);
    }
}

/// A pipe to a translator, written and read like a socket that does not block.
#[derive(Debug)]
pub(super) struct PipeConnection {
    pipe: TranslatedPipe,
    waker: Waker,
    /// Bytes that the pipe did not take.
    unsent: Vec<u8>,
}

impl PipeConnection {
    fn send(&mut self, bytes: &[u8]) -> Result<(), TransportError> {
        self.unsent.extend_from_slice(bytes);
        self.flush()
    }

    fn flush(&mut self) -> Result<(), TransportError> {
        let mut cx = Context::from_waker(&self.waker);
        while !self.unsent.is_empty() {
            match Pin::new(&mut self.pipe.stream).poll_write(&mut cx, &self.unsent) {
                Poll::Ready(Ok(written)) => drop(self.unsent.drain(..written)),
                // The reason follows what can still be read.
                Poll::Ready(Err(_)) => self.unsent.clear(),
                Poll::Pending => return Ok(()),
            }
        }
        self.unsent = Vec::new();
        Ok(())
    }

    fn receive(&mut self, buf: &mut [u8]) -> Result<ReceiveOutcome, TransportError> {
        let mut cx = Context::from_waker(&self.waker);
        let mut buf = ReadBuf::new(buf);
        match Pin::new(&mut self.pipe.stream).poll_read(&mut cx, &mut buf) {
            Poll::Pending => Ok(ReceiveOutcome::default()),
            Poll::Ready(Ok(())) if buf.filled().is_empty() => Err(self.end()),
            Poll::Ready(Ok(())) => Ok(ReceiveOutcome {
                bytes: buf.filled().len(),
                more: true,
            }),
            Poll::Ready(Err(error)) => Err(error.into()),
        }
    }

    /// Why the translator has closed the pipe.
    fn end(&self) -> TransportError {
        match self.pipe.failure.get() {
            Some(reason) => TransportError::Rejected(reason.clone()),
            None => TransportError::Closed,
        }
    }
}

#[derive(Debug)]
pub(super) enum DeviceConnection {
    Socket(BrokerConnection),
    Pipe(Box<PipeConnection>),
    Memory(MemoryConnection),
}

impl DeviceConnection {
    /// Begins a connection to the broker; the poll reports under `token` when it is set up or has failed.
    pub(super) fn dial(
        access: &TargetAccess,
        source: Option<SocketAddr>,
        registry: &Registry,
        token: Token,
    ) -> Result<Self, TransportError> {
        // Connections in memory are opened as pipes.
        let Some(dialer) = access.dialer() else {
            return Err(TransportError::Closed);
        };
        BrokerConnection::dial(dialer, source, registry, token).map(Self::Socket)
    }

    /// Begins a connection by a translator, or to a node in this process. It can be written at once.
    pub(super) fn open_pipe(
        access: &TargetAccess,
        transport: FleetTransport,
        route: TranslatedRoute,
        (device, ready): (usize, &Arc<ReadyPipes>),
    ) -> Result<Self, TransportError> {
        let waker = Arc::new(PipeWaker {
            device,
            ready: ready.clone(),
        });
        if access.is_in_memory() {
            let pipe = access.connect_in_memory()?;
            return Ok(Self::Memory(MemoryConnection::new(pipe, waker.into())));
        }
        Ok(Self::Pipe(Box::new(PipeConnection {
            pipe: access.translators.open(transport, route),
            waker: waker.into(),
            unsent: Vec::new(),
        })))
    }

    /// Whether it can be written without an event of the poll.
    pub(super) fn is_open_at_once(&self) -> bool {
        match self {
            Self::Socket(_) => false,
            Self::Pipe(_) | Self::Memory(_) => true,
        }
    }

    /// What went wrong, after the poll has reported an error.
    pub(super) fn take_error(&self) -> TransportError {
        match self {
            Self::Socket(connection) => connection.take_error(),
            Self::Pipe(connection) => connection.end(),
            Self::Memory(_) => TransportError::Closed,
        }
    }

    /// Lets the end of the connection be a reset, where the device is connected to the broker itself.
    pub(super) fn reset_on_close(&self) -> std::io::Result<()> {
        match self {
            Self::Socket(connection) => connection.reset_on_close(),
            Self::Pipe(_) => Ok(()),
            Self::Memory(connection) => {
                connection.abort();
                Ok(())
            }
        }
    }

    #[inline]
    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<(), TransportError> {
        match self {
            Self::Socket(connection) => connection.send(bytes),
            Self::Pipe(connection) => connection.send(bytes),
            Self::Memory(connection) => connection.send(bytes),
        }
    }

    pub(super) fn flush(&mut self) -> Result<(), TransportError> {
        match self {
            Self::Socket(connection) => connection.flush(),
            Self::Pipe(connection) => connection.flush(),
            Self::Memory(connection) => connection.flush(),
        }
    }

    /// Whether bytes wait to be written.
    #[inline]
    pub(super) fn has_backlog(&self) -> bool {
        match self {
            Self::Socket(connection) => connection.has_backlog(),
            Self::Pipe(connection) => !connection.unsent.is_empty(),
            Self::Memory(connection) => connection.has_backlog(),
        }
    }

    #[inline]
    pub(super) fn receive(
        &mut self,
        buf: &mut [u8],
        raw: &mut [u8],
    ) -> Result<ReceiveOutcome, TransportError> {
        match self {
            Self::Socket(connection) => connection.receive(buf, raw),
            Self::Pipe(connection) => connection.receive(buf),
            Self::Memory(connection) => connection.receive(buf),
        }
    }
}
