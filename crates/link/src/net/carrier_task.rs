//! Moves bytes between one carrier and the state of its link.

use std::collections::VecDeque;
use std::future::{Future as _, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Buf as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::Notify;

use crate::config::LinkConfig;
use crate::core::{IncomingStreamInfo, LinkCore, LinkEvent};
use crate::durable::{FileJournal, Journal as _};
use crate::error_code::{ErrorCode, ProtocolError};
use crate::net::carrier::Carrier;
use crate::net::link_journal::{JournalRemoval, LinkJournal};
use crate::net::slice_queue::SliceQueue;
use crate::wire::reader::FrameReader;

/// Why a carrier ended.
#[derive(Debug, thiserror::Error)]
pub enum CarrierError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("the peer violated the protocol: {0}")]
    Protocol(#[from] ProtocolError),
    #[error("the peer ended the carrier: {text} ({code})")]
    Rejected { code: ErrorCode, text: String },
    #[error("the peer closed the carrier")]
    EndOfStream,
    #[error("another carrier of the same link replaced this one")]
    Replaced,
}

/// The state of a link, shared by its carrier and the application.
#[derive(Debug)]
pub(crate) struct SharedLink {
    core: Mutex<LinkCore>,
    /// Locked after `core`.
    journal: Option<Mutex<LinkJournal>>,
    /// The application has changed something that the carrier must send.
    pub(crate) outgoing: Notify,
    /// The carrier has changed something that the application may wait for.
    pub(crate) changed: Notify,
    /// Streams that the application has not accepted; the link limits their number.
    pub(crate) opened: Mutex<VecDeque<OpenedStream>>,
    /// Why there will be no other carrier.
    ended: Mutex<Option<LinkEnd>>,
    /// The number of carriers; a task whose number is lower has been replaced.
    carriers: AtomicU64,
    /// How often the peer has lost its state.
    peer_state_losses: AtomicU64,
}

/// A stream from the peer. After the peer has lost its state, the id of the stream may belong to another one.
#[derive(Debug)]
pub(crate) struct OpenedStream {
    pub(crate) info: IncomingStreamInfo,
    /// How often the peer had lost its state before.
    pub(crate) losses: u64,
}

/// Why a link has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LinkEnd {
    ShutDown,
    Rejected {
        code: ErrorCode,
        text: String,
    },
    Expired,
    /// The journal cannot be read or written.
    JournalFailed(String),
}

impl SharedLink {
    pub(crate) fn new(core: LinkCore, journal: Option<LinkJournal>) -> Arc<Self> {
        Arc::new(Self {
            core: Mutex::new(core),
            journal: journal.map(Mutex::new),
            outgoing: Notify::new(),
            changed: Notify::new(),
            opened: Mutex::default(),
            ended: Mutex::default(),
            carriers: AtomicU64::new(0),
            peer_state_losses: AtomicU64::new(0),
        })
    }

    /// Restores the link of a journal.
    pub(crate) fn restore(
        journal: FileJournal,
        config: LinkConfig,
        removal: JournalRemoval,
    ) -> Arc<Self> {
        let (core, journal) = LinkJournal::restore(journal, config, removal);
        let is_ended = journal.is_ended();
        let shared = Self::new(core, Some(journal));
        if is_ended {
            shared.end(LinkEnd::ShutDown);
        }
        shared
    }

    pub(crate) fn end(&self, end: LinkEnd) {
        lock(&self.ended).get_or_insert(end);
        self.changed.notify_waiters();
        self.outgoing.notify_waiters();
    }

    pub(crate) fn ended(&self) -> Option<LinkEnd> {
        lock(&self.ended).clone()
    }

    pub(crate) fn has_journal(&self) -> bool {
        self.journal.is_some()
    }

    /// Uses the journal, if there is one. A link whose journal fails ends before anything else is transmitted: the peer must
    /// not see what would be forgotten.
    pub(crate) fn with_journal<T>(
        &self,
        core: &mut LinkCore,
        change: impl FnOnce(&mut LinkCore, &mut LinkJournal) -> io::Result<T>,
    ) -> Result<Option<T>, LinkEnd> {
        let Some(journal) = &self.journal else {
            return Ok(None);
        };
        let result = change(core, &mut lock(journal));
        result.map(Some).map_err(|error| {
            let end = LinkEnd::JournalFailed(error.to_string());
            self.end(end.clone());
            core.disconnect();
            self.carriers.fetch_add(1, Ordering::Relaxed);
            end
        })
    }

    /// Records a change durably, if there is a journal.
    pub(crate) fn record(
        &self,
        core: &mut LinkCore,
        change: impl FnOnce(&mut FileJournal) -> io::Result<()>,
    ) -> Result<(), LinkEnd> {
        self.with_journal(core, |_, journal| journal.record(change))
            .map(|_| ())
    }

    /// The link has ended regularly: its journal is not needed any more, except for messages that are not processed.
    pub(crate) fn discard_journal(&self) {
        let mut core = self.lock();
        // The link has ended in any case.
        let _ = self.with_journal(&mut core, |_, journal| journal.set_ended());
    }

    /// Whether the journal contains messages that the application has not processed.
    pub(crate) fn has_unprocessed_messages(&self) -> bool {
        let journal = self.journal.as_ref();
        journal.is_some_and(|journal| lock(journal).has_unprocessed_messages())
    }

    /// Begins a carrier, unless the link has ended: `begin` calls `connect` or `accept`. Returns its number.
    pub(crate) fn begin_carrier(&self, begin: impl FnOnce(&mut LinkCore)) -> Option<u64> {
        let mut core = self.lock();
        if self.ended().is_some() {
            return None;
        }
        begin(&mut core);
        Some(self.replace_carrier(core))
    }

    /// Ends the carrier of a link that has [ended](Self::end). Another one does not begin.
    pub(crate) fn close_carrier(&self) {
        self.replace_carrier(self.lock());
    }

    fn replace_carrier(&self, core: MutexGuard<'_, LinkCore>) -> u64 {
        let number = self.carriers.fetch_add(1, Ordering::Relaxed) + 1;
        drop(core);
        // Wakes the task of the former carrier.
        self.outgoing.notify_waiters();
        number
    }

    pub(crate) fn peer_state_losses(&self) -> u64 {
        self.peer_state_losses.load(Ordering::Relaxed)
    }

    pub(crate) fn is_current(&self, carrier: u64) -> bool {
        self.carriers.load(Ordering::Relaxed) == carrier
    }

    /// The state, if this carrier has not been replaced.
    fn lock_current(&self, carrier: u64) -> Result<MutexGuard<'_, LinkCore>, CarrierError> {
        let core = self.lock();
        if self.is_current(carrier) {
            Ok(core)
        } else {
            Err(CarrierError::Replaced)
        }
    }

    pub(crate) fn end_carrier(&self, carrier: u64) {
        if let Ok(mut core) = self.lock_current(carrier) {
            core.disconnect();
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, LinkCore> {
        lock(&self.core)
    }
}

/// The state machine checks what it gets, so that after a panic the link is no worse off than after a violation.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The time of tokio's clock, which tests can pause.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// How long the last frames of a carrier may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Slices of one vectored write.
const MAX_SLICES: usize = 64;

/// What a carrier waits for.
enum CarrierEvent {
    /// So many bytes are in the buffer of the reader; 0: the peer has closed the carrier.
    Received(usize),
    /// What was to be transmitted is written.
    Written,
    /// The application has something to transmit, or the carrier was replaced.
    Notified,
    TimerElapsed,
}

/// Runs a carrier whose handshake has begun, until it ends. `Ok`: the link has been shut down.
pub(crate) async fn run_carrier(
    shared: &SharedLink,
    number: u64,
    mut carrier: impl Carrier,
    mut reader: FrameReader,
) -> Result<(), CarrierError> {
    let mut outgoing = Transmission::default();
    reader.set_max_payload_bytes(shared.lock().config().limits.max_frame_bytes);
    let mut notified = pin!(shared.outgoing.notified());
    // Deadlines move with every frame. The timer is set again only if a deadline is earlier, or when it elapses: setting
    // it each time would cost more than the frame.
    let mut timer = pin!(tokio::time::sleep(Duration::ZERO));
    let mut is_read_first = false;
    loop {
        let (deadline, is_closed) = {
            let mut core = shared.lock_current(number)?;
            outgoing.advance(&mut core);
            if core.take_transmission_notice() {
                shared.changed.notify_waiters();
            }
            (core.poll_timeout(), core.is_closed())
        };
        if is_closed && outgoing.is_complete() {
            let _ = tokio::time::timeout(CLOSE_TIMEOUT, carrier.shutdown()).await;
            return Ok(());
        }
        let deadline = deadline.ok_or(CarrierError::Replaced)?;
        if timer.is_elapsed() || deadline < timer.deadline().into_std() {
            timer.as_mut().reset(deadline.into());
        }
        let event = poll_fn(|cx| {
            // In turn: neither direction keeps the other waiting.
            is_read_first = !is_read_first;
            for is_read in [is_read_first, !is_read_first] {
                if is_read {
                    let mut buffer = reader.buffer();
                    let read = pin!(carrier.read_buf(&mut buffer));
                    if let Poll::Ready(read) = read.poll(cx) {
                        return Poll::Ready(read.map(CarrierEvent::Received));
                    }
                } else if !outgoing.is_complete()
                    && let Poll::Ready(written) = outgoing.poll_write(Pin::new(&mut carrier), cx)
                {
                    return Poll::Ready(written.map(|()| CarrierEvent::Written));
                }
            }
            while notified.as_mut().poll(cx).is_ready() {
                notified.set(shared.outgoing.notified());
                if outgoing.is_complete() || !shared.is_current(number) {
                    return Poll::Ready(Ok(CarrierEvent::Notified));
                }
            }
            let elapsed = timer.as_mut().poll(cx);
            elapsed.map(|()| Ok(CarrierEvent::TimerElapsed))
        });
        let result = match event.await? {
            CarrierEvent::Received(0) => return Err(CarrierError::EndOfStream),
            CarrierEvent::Received(_) => receive(shared, number, &mut reader),
            CarrierEvent::Written | CarrierEvent::Notified => Ok(false),
            CarrierEvent::TimerElapsed => {
                let result = shared.lock_current(number)?.handle_timeout(now());
                result.map(|()| false).map_err(CarrierError::from)
            }
        };
        match result {
            Ok(false) => {}
            // The application takes content while it is in the cache, and its buffer is then used again.
            Ok(true) => tokio::task::yield_now().await,
            Err(error) => {
                // The peer learns the reason, if it still reads.
                shared
                    .lock_current(number)?
                    .poll_transmit(now(), &mut outgoing.pending.slices);
                let closing = async {
                    carrier.write_all_buf(&mut outgoing.pending).await?;
                    carrier.shutdown().await
                };
                let _ = tokio::time::timeout(CLOSE_TIMEOUT, closing).await;
                return Err(error);
            }
        }
    }
}

/// What the link transmits at a time.
#[derive(Debug, Default)]
struct Transmission {
    pending: SliceQueue,
    /// Its length; 0: nothing is being transmitted.
    len: usize,
    /// The carrier may have a buffer of its own, as TLS and WebSocket do.
    is_flushed: bool,
}

impl Transmission {
    fn is_complete(&self) -> bool {
        self.len == 0
    }

    /// Reports what has been written, and takes what is next.
    fn advance(&mut self, core: &mut LinkCore) {
        if self.len > 0 && self.is_flushed {
            core.transmitted(self.len, now());
            self.len = 0;
        }
        if self.len == 0 {
            self.len = core.poll_transmit(now(), &mut self.pending.slices);
            self.is_flushed = false;
        }
    }

    /// Writes all of it.
    fn poll_write<C: Carrier>(
        &mut self,
        mut carrier: Pin<&mut C>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while !self.pending.slices.is_empty() {
            let written = if carrier.is_write_vectored() {
                let mut slices = [IoSlice::new(&[]); MAX_SLICES];
                let count = self.pending.chunks_vectored(&mut slices);
                ready!(carrier.as_mut().poll_write_vectored(cx, &slices[..count]))?
            } else {
                ready!(carrier.as_mut().poll_write(cx, self.pending.chunk()))?
            };
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.pending.advance(written);
        }
        ready!(carrier.poll_flush(cx))?;
        self.is_flushed = true;
        Poll::Ready(Ok(()))
    }
}

/// Passes received frames to the link, and its events to the caller. Returns whether there was a complete frame.
fn receive(
    shared: &SharedLink,
    number: u64,
    reader: &mut FrameReader,
) -> Result<bool, CarrierError> {
    if !reader.has_frame() {
        return Ok(false);
    }
    let now = now();
    let mut core = shared.lock_current(number)?;
    loop {
        match reader.next_frame() {
            Ok(Some(frame)) => core.handle_frame(frame, now)?,
            Ok(None) => break,
            Err(error) => {
                core.report_violation(error);
                return Err(error.into());
            }
        }
    }
    let mut rejected = None;
    while let Some(event) = core.next_event() {
        match event {
            LinkEvent::Acknowledged { priority, numbers } => {
                // A message that is not known to be acknowledged is sent again, and ignored by the peer.
                let record = |file: &mut FileJournal| file.record_acknowledged(priority, &numbers);
                let recorded =
                    shared.with_journal(&mut core, |_, journal| journal.record_unsynced(record));
                recorded.map_err(|_| CarrierError::Replaced)?;
            }
            LinkEvent::CarrierRejected { code, text } => {
                rejected = Some(CarrierError::Rejected { code, text });
            }
            LinkEvent::StreamOpened(info) => {
                let losses = shared.peer_state_losses();
                lock(&shared.opened).push_back(OpenedStream { info, losses });
            }
            LinkEvent::PeerStateLost => {
                let recorded = shared.with_journal(&mut core, |core, journal| {
                    journal.record_peer_state_loss(core)
                });
                recorded.map_err(|_| CarrierError::Replaced)?;
                shared.peer_state_losses.fetch_add(1, Ordering::Relaxed);
            }
            // The application sees the effect of the others in the state.
            _ => {}
        }
    }
    drop(core);
    shared.changed.notify_waiters();
    rejected.map_or(Ok(true), Err)
}
