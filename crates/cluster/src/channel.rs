//! One channel between this node and another: an ordered, reliable sequence of messages in both directions over frames
//! that may be lost or arrive twice.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use crate::frame::{DATA, FRAME_HEAD_BYTES, Frame, LAST, MISSING, OPEN};
use crate::member::NodeName;

/// Bounds and times of a channel. Times are in milliseconds, sizes in bytes.
#[derive(Debug, Clone)]
pub struct ChannelLimits {
    /// Largest frame that the links between nodes carry.
    pub max_frame_bytes: usize,
    /// Data that is sent and not yet acknowledged.
    pub window_bytes: usize,
    /// Messages that wait or are not acknowledged; a channel with more fails.
    pub max_queued_bytes: usize,
    /// Largest message that is received.
    pub max_message_bytes: usize,
    /// Time between two frames of a channel without messages.
    pub keep_alive_ms: u64,
}

impl Default for ChannelLimits {
    fn default() -> Self {
        Self {
            max_frame_bytes: 256 << 10,
            window_bytes: 8 << 20,
            max_queued_bytes: 256 << 20,
            max_message_bytes: 272 << 20,
            keep_alive_ms: 1000,
        }
    }
}

/// Time after which a frame is sent again if it was not acknowledged, before the delay of the channel is known.
const FIRST_TIMEOUT_MS: u64 = 200;
const MIN_TIMEOUT_MS: u64 = 50;
const MAX_TIMEOUT_MS: u64 = 2000;
/// Time between two attempts to open a channel.
const OPEN_INTERVAL_MS: u64 = 200;
/// An acknowledgement waits for further frames this long, and for at most so many.
const ACKNOWLEDGE_AFTER_MS: u64 = 10;
const ACKNOWLEDGE_AFTER_FRAMES: u32 = 8;

/// Why a channel has to be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChannelFailure {
    /// The other node has opened its end again: it has lost what it knew of the channel.
    Reopened,
    /// More messages wait than [`ChannelLimits::max_queued_bytes`].
    TooMuchQueued,
    /// The other node has sent a message above [`ChannelLimits::max_message_bytes`].
    MessageTooLarge,
}

/// A frame that is not acknowledged yet.
struct QueuedFrame {
    number: u64,
    data: Bytes,
    is_last: bool,
}

/// One end of a channel.
///
/// Each end has a random number. Both ends send open frames until they know the number of the other end; frames with
/// another number are ignored. Thus a channel never mixes with an earlier one between the same nodes: if either end is
/// created again, the other one fails with [`ChannelFailure::Reopened`], and its owner creates it again, too.
///
/// Data frames are numbered. The receiver acknowledges all up to a number and ignores frames behind a gap; the sender
/// then repeats from the gap on, at once if the receiver reports one, otherwise after a time that follows the delay.
///
/// The owner passes frames to [`handle`](Self::handle) and messages to [`send`](Self::send), and after either sends what
/// [`poll_frame`](Self::poll_frame) returns, until that is `None`. It calls that again when
/// [`next_timeout_ms`](Self::next_timeout_ms) has come.
pub(crate) struct PeerNodeChannel {
    local: NodeName,
    limits: ChannelLimits,
    local_end: u64,
    /// `None` until the other end has opened.
    remote_end: Option<u64>,
    /// The other end knows the number of this one.
    is_known_to_remote: bool,
    next_open_ms: u64,

    queue: VecDeque<QueuedFrame>,
    queued_bytes: usize,
    next_number: u64,
    /// Frames at the front of the queue that were sent, and their bytes.
    sent_frames: usize,
    sent_bytes: usize,
    timeout_at_ms: Option<u64>,
    timeout_ms: u64,
    round_trip_ms: Option<u64>,
    /// A frame whose acknowledgement is timed, and when it was sent.
    timed_frame: Option<(u64, u64)>,
    /// No frame up to this number is repeated because of a reported gap: it has been repeated already.
    repeated_until: u64,

    received: u64,
    partial: BytesMut,
    messages: VecDeque<Bytes>,
    unacknowledged_frames: u32,
    acknowledge_at_ms: Option<u64>,
    reports_missing: bool,
    /// When anything was received on this channel.
    last_received_ms: u64,
    last_sent_ms: u64,
    repeated_frames: u64,
}

impl PeerNodeChannel {
    /// `local_end` is a random number other than 0 that was not used before.
    pub(crate) fn new(local: NodeName, local_end: u64, limits: ChannelLimits, now_ms: u64) -> Self {
        Self {
            local,
            limits,
            local_end,
            remote_end: None,
            is_known_to_remote: false,
            next_open_ms: now_ms,
            queue: VecDeque::new(),
            queued_bytes: 0,
            next_number: 1,
            sent_frames: 0,
            sent_bytes: 0,
            timeout_at_ms: None,
            timeout_ms: FIRST_TIMEOUT_MS,
            round_trip_ms: None,
            timed_frame: None,
            repeated_until: 0,
            received: 0,
            partial: BytesMut::new(),
            messages: VecDeque::new(),
            unacknowledged_frames: 0,
            acknowledge_at_ms: None,
            reports_missing: false,
            last_received_ms: now_ms,
            last_sent_ms: now_ms,
            repeated_frames: 0,
        }
    }

    /// Whether both ends know each other.
    pub(crate) fn is_open(&self) -> bool {
        self.remote_end.is_some() && self.is_known_to_remote
    }

    /// Bytes of messages that wait or are not acknowledged.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    pub(crate) fn last_received_ms(&self) -> u64 {
        self.last_received_ms
    }

    /// Time between a frame and its acknowledgement, smoothed; `None` until one was measured.
    pub(crate) fn round_trip_ms(&self) -> Option<u64> {
        self.round_trip_ms
    }

    /// Frames that were sent more than once.
    pub(crate) fn repeated_frames(&self) -> u64 {
        self.repeated_frames
    }

    /// Queues a message.
    pub(crate) fn send(&mut self, mut message: Bytes) -> Result<(), ChannelFailure> {
        // A message of any size may be the only one.
        if self.queued_bytes > 0 && self.queued_bytes + message.len() > self.limits.max_queued_bytes
        {
            return Err(ChannelFailure::TooMuchQueued);
        }
        let most = self.limits.max_frame_bytes - FRAME_HEAD_BYTES;
        loop {
            let data = message.split_to(message.len().min(most));
            self.queued_bytes += data.len();
            self.queue.push_back(QueuedFrame {
                number: self.next_number,
                data,
                is_last: message.is_empty(),
            });
            self.next_number += 1;
            if message.is_empty() {
                return Ok(());
            }
        }
    }

    /// Handles a frame of the other node.
    pub(crate) fn handle(&mut self, frame: &Frame, now_ms: u64) -> Result<(), ChannelFailure> {
        let is_open_frame = frame.flags & OPEN != 0;
        match self.remote_end {
            Some(known) if known == frame.from_end => {}
            // A late frame of an earlier end.
            Some(_) if !is_open_frame => return Ok(()),
            Some(_) if self.is_known_to_remote => return Err(ChannelFailure::Reopened),
            _ if is_open_frame || frame.to_end == self.local_end => {
                self.remote_end = Some(frame.from_end);
            }
            _ => return Ok(()),
        }
        if frame.to_end != self.local_end {
            // The other end learns the number of this one now.
            self.next_open_ms = now_ms;
            return Ok(());
        }
        self.is_known_to_remote = true;
        if is_open_frame {
            // Any frame tells the other end that it is known.
            self.acknowledge_at_ms = Some(now_ms);
        }
        self.last_received_ms = now_ms;
        self.handle_acknowledgement(frame, now_ms);
        if frame.flags & DATA != 0 {
            self.handle_data(frame, now_ms)?;
        }
        Ok(())
    }

    fn handle_acknowledgement(&mut self, frame: &Frame, now_ms: u64) {
        let mut is_progress = false;
        while self
            .queue
            .front()
            .is_some_and(|first| first.number <= frame.received)
            && self.sent_frames > 0
        {
            if let Some(done) = self.queue.pop_front() {
                self.queued_bytes -= done.data.len();
                self.sent_bytes -= done.data.len();
                self.sent_frames -= 1;
                is_progress = true;
            }
        }
        if let Some((number, sent_ms)) = self.timed_frame
            && number <= frame.received
        {
            let measured = now_ms.saturating_sub(sent_ms);
            let smoothed = self
                .round_trip_ms
                .map_or(measured, |known| (7 * known + measured).div_ceil(8));
            self.round_trip_ms = Some(smoothed);
            self.timed_frame = None;
        }
        if is_progress {
            let timeout = self
                .round_trip_ms
                .map_or(FIRST_TIMEOUT_MS, |round_trip| 4 * round_trip + 20);
            self.timeout_ms = timeout.clamp(MIN_TIMEOUT_MS, MAX_TIMEOUT_MS);
            self.timeout_at_ms = (self.sent_frames > 0).then_some(now_ms + self.timeout_ms);
        }
        if frame.flags & MISSING != 0
            && self.sent_frames > 0
            && frame.received >= self.repeated_until
        {
            self.repeat(now_ms);
        }
    }

    /// Sends everything that is not acknowledged again.
    fn repeat(&mut self, now_ms: u64) {
        self.repeated_frames += self.sent_frames as u64;
        self.repeated_until = self.queue[self.sent_frames - 1].number;
        self.sent_frames = 0;
        self.sent_bytes = 0;
        self.timed_frame = None;
        self.timeout_at_ms = Some(now_ms + self.timeout_ms);
    }

    fn handle_data(&mut self, frame: &Frame, now_ms: u64) -> Result<(), ChannelFailure> {
        if frame.number != self.received + 1 {
            // A gap is reported, a repeated frame is acknowledged again: its acknowledgement may have been lost.
            self.reports_missing |= frame.number > self.received + 1;
            self.acknowledge_at_ms = Some(now_ms);
            return Ok(());
        }
        self.received = frame.number;
        self.reports_missing = false;
        if self.partial.len() + frame.data.len() > self.limits.max_message_bytes {
            return Err(ChannelFailure::MessageTooLarge);
        }
        if frame.flags & LAST == 0 {
            self.partial.extend_from_slice(&frame.data);
        } else if self.partial.is_empty() {
            self.messages.push_back(frame.data.clone());
        } else {
            self.partial.extend_from_slice(&frame.data);
            self.messages
                .push_back(std::mem::take(&mut self.partial).freeze());
        }
        self.unacknowledged_frames += 1;
        let at_ms = match self.unacknowledged_frames >= ACKNOWLEDGE_AFTER_FRAMES {
            true => now_ms,
            false => now_ms + ACKNOWLEDGE_AFTER_MS,
        };
        self.acknowledge_at_ms = Some(self.acknowledge_at_ms.map_or(at_ms, |due| due.min(at_ms)));
        Ok(())
    }

    /// The next message that has arrived completely.
    pub(crate) fn poll_message(&mut self) -> Option<Bytes> {
        self.messages.pop_front()
    }

    /// The next frame to be sent, encoded.
    pub(crate) fn poll_frame(&mut self, now_ms: u64) -> Option<Bytes> {
        if !self.is_open() {
            if now_ms < self.next_open_ms {
                return None;
            }
            self.next_open_ms = now_ms + OPEN_INTERVAL_MS;
            return Some(self.frame(OPEN, 0, Bytes::new(), now_ms));
        }
        if self.timeout_at_ms.is_some_and(|at| at <= now_ms) && self.sent_frames > 0 {
            self.timeout_ms = (2 * self.timeout_ms).min(MAX_TIMEOUT_MS);
            self.repeat(now_ms);
        }
        if let Some(next) = self.queue.get(self.sent_frames)
            && (self.sent_frames == 0
                || self.sent_bytes + next.data.len() <= self.limits.window_bytes)
        {
            let (number, data) = (next.number, next.data.clone());
            let flags = DATA | if next.is_last { LAST } else { 0 };
            self.sent_frames += 1;
            self.sent_bytes += data.len();
            if self.timed_frame.is_none() && number > self.repeated_until {
                self.timed_frame = Some((number, now_ms));
            }
            if self.timeout_at_ms.is_none() {
                self.timeout_at_ms = Some(now_ms + self.timeout_ms);
            }
            return Some(self.frame(flags, number, data, now_ms));
        }
        let is_due = self.acknowledge_at_ms.is_some_and(|at| at <= now_ms)
            || self.last_sent_ms + self.limits.keep_alive_ms <= now_ms;
        is_due.then(|| self.frame(0, 0, Bytes::new(), now_ms))
    }

    fn frame(&mut self, mut flags: u8, number: u64, data: Bytes, now_ms: u64) -> Bytes {
        if self.reports_missing {
            flags |= MISSING;
        }
        self.acknowledge_at_ms = None;
        self.unacknowledged_frames = 0;
        self.reports_missing = false;
        self.last_sent_ms = now_ms;
        let frame = Frame {
            sender: self.local.clone(),
            flags,
            from_end: self.local_end,
            to_end: self.remote_end.unwrap_or(0),
            number,
            received: self.received,
            data,
        };
        frame.encode()
    }

    /// When [`poll_frame`](Self::poll_frame) is to be called again at the latest.
    pub(crate) fn next_timeout_ms(&self) -> u64 {
        if !self.is_open() {
            return self.next_open_ms;
        }
        let keep_alive = self.last_sent_ms + self.limits.keep_alive_ms;
        [self.timeout_at_ms, self.acknowledge_at_ms]
            .into_iter()
            .flatten()
            .fold(keep_alive, u64::min)
    }
}
