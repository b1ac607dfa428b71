//! A copy of the log of this node on its way to the standby.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::Instant;

use cluster::{NodeName, PeerNodeId, SendMessage};
use store::{LogTail, StateKind, Store, StoreError};

use crate::inputs::Inputs;
use crate::message::{CopyBody, CopyMessage, put_state_entry};

/// Bytes of one message, except that one frame may be larger.
const MESSAGE_BYTES: usize = 192 << 10;
/// Bytes that the standby has not confirmed; no more are sent then.
const WINDOW_BYTES: usize = 8 << 20;
/// Messages with keyed state that are read ahead.
const STATE_READ_AHEAD: usize = 8;
/// The keyed state that is copied. Other nodes have the retained messages already.
const COPIED_STATE: [StateKind; 4] = [
    StateKind::Sessions,
    StateKind::Subscriptions,
    StateKind::Delayed,
    StateKind::Received,
];

/// One message that the standby has not confirmed.
struct Unconfirmed {
    number: u64,
    /// The last frame of the log up to which the standby then has everything; `None`: it has no frames yet.
    last_lsn: Option<u64>,
    bytes: usize,
}

/// What is sent next.
enum CopyStage {
    /// The standby has not said what it has.
    AwaitPosition,
    State(Receiver<StatePortion>, LogTail),
    Frames(LogTail),
}

type StatePortion = Result<(StateKind, Vec<u8>), StoreError>;

/// The copy of this node's log at one standby. The owner passes on what the standby says, and calls
/// [`send`](Self::send) whenever there may be something to send.
pub(crate) struct OutgoingCopy {
    pub(crate) peer: PeerNodeId,
    pub(crate) standby: NodeName,
    copy: u64,
    stage: CopyStage,
    next_number: u64,
    unconfirmed: VecDeque<Unconfirmed>,
    unconfirmed_bytes: usize,
    /// The last frame of the log up to which the standby has everything.
    confirmed_lsn: Option<u64>,
    /// Whether everything that is in the log has been sent.
    is_at_end: bool,
    /// When something was last sent or confirmed.
    pub(crate) last_progress: Instant,
    pub(crate) sent_bytes: u64,
    buffer: Vec<u8>,
}

impl OutgoingCopy {
    /// Begins a copy, in the run `run` of this node. `copy` differs from the number of every other copy.
    pub(crate) fn begin(
        (peer, standby): (PeerNodeId, NodeName),
        (copy, run): (u64, u64),
        send: &SendMessage,
    ) -> Self {
        let body = CopyBody::Begin { run };
        send(peer, CopyMessage { copy, body }.encode());
        Self {
            peer,
            standby,
            copy,
            stage: CopyStage::AwaitPosition,
            next_number: 1,
            unconfirmed: VecDeque::new(),
            unconfirmed_bytes: 0,
            confirmed_lsn: None,
            is_at_end: false,
            last_progress: Instant::now(),
            sent_bytes: 0,
            buffer: Vec::new(),
        }
    }

    /// Sends a message of this copy.
    pub(crate) fn send_message(&self, body: CopyBody<'_>, send: &SendMessage) {
        let copy = self.copy;
        send(self.peer, CopyMessage { copy, body }.encode());
    }

    pub(crate) fn number(&self) -> u64 {
        self.copy
    }

    /// The standby has said what it has of this run.
    pub(crate) fn handle_position(
        &mut self,
        last_lsn: Option<u64>,
        store: &Store,
        inputs: &Arc<Inputs>,
        send: &SendMessage,
    ) -> Result<(), StoreError> {
        if !matches!(self.stage, CopyStage::AwaitPosition) {
            return Ok(());
        }
        self.last_progress = Instant::now();
        if let Some(lsn) = last_lsn {
            match store.tail_log(Some(lsn)) {
                Ok(tail) => {
                    self.confirmed_lsn = Some(lsn);
                    self.stage = CopyStage::Frames(tail);
                    return Ok(());
                }
                Err(StoreError::LogPositionGone { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let body = CopyBody::Reset;
        self.send_message(body, send);
        // Before the state is read, so that later changes of it are in the frames.
        let tail = store.tail_log(None)?;
        self.stage = CopyStage::State(read_state(store, inputs)?, tail);
        Ok(())
    }

    pub(crate) fn handle_confirmed(&mut self, number: u64) {
        while let Some(first) = self
            .unconfirmed
            .pop_front_if(|first| first.number <= number)
        {
            self.unconfirmed_bytes -= first.bytes;
            self.confirmed_lsn = first.last_lsn.or(self.confirmed_lsn);
            self.last_progress = Instant::now();
        }
    }

    /// The last frame up to which the standby has everything; `None`: it does not have the beginning yet.
    pub(crate) fn confirmed_lsn(&self) -> Option<u64> {
        self.confirmed_lsn
    }

    /// Whether the standby is so close to the end of the log that acknowledgements can wait for it.
    pub(crate) fn is_caught_up(&self) -> bool {
        let has_beginning = matches!(self.stage, CopyStage::Frames(_));
        has_beginning && self.is_at_end && self.unconfirmed_bytes <= MESSAGE_BYTES
    }

    pub(crate) fn unconfirmed_bytes(&self) -> usize {
        self.unconfirmed_bytes
    }

    /// Whether something has to be sent or confirmed.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.unconfirmed.is_empty() || !matches!(self.stage, CopyStage::Frames(_))
    }

    /// Whether the standby had everything in the log when [`send`](Self::send) was called last. The log may have no frames, so
    /// that none was confirmed.
    pub(crate) fn has_everything(&self) -> bool {
        self.is_at_end && !self.is_waiting()
    }

    /// Sends as much as may be on its way. An error ends the copy.
    pub(crate) fn send(&mut self, send: &SendMessage) -> Result<(), StoreError> {
        while self.unconfirmed_bytes < WINDOW_BYTES {
            match &mut self.stage {
                CopyStage::AwaitPosition => return Ok(()),
                CopyStage::State(portions, _) => match portions.try_recv() {
                    Ok(portion) => {
                        let (kind, entries) = portion?;
                        let number = self.next_number;
                        let body = CopyBody::State {
                            number,
                            kind,
                            entries: &entries,
                        };
                        let copy = self.copy;
                        send(self.peer, CopyMessage { copy, body }.encode());
                        self.record_sent(entries.len(), None);
                    }
                    Err(TryRecvError::Empty) => return Ok(()),
                    Err(TryRecvError::Disconnected) => self.begin_frames(),
                },
                CopyStage::Frames(tail) => {
                    self.buffer.clear();
                    let chunk = tail.read(MESSAGE_BYTES, &mut self.buffer)?;
                    self.is_at_end = chunk.is_none();
                    let Some(chunk) = chunk else { return Ok(()) };
                    let body = CopyBody::Frames {
                        number: self.next_number,
                        last_lsn: chunk.last_lsn,
                        frames: &self.buffer,
                    };
                    let copy = self.copy;
                    send(self.peer, CopyMessage { copy, body }.encode());
                    self.record_sent(self.buffer.len(), Some(chunk.last_lsn));
                }
            }
        }
        Ok(())
    }

    fn begin_frames(&mut self) {
        let stage = std::mem::replace(&mut self.stage, CopyStage::AwaitPosition);
        self.stage = match stage {
            CopyStage::State(_, tail) => CopyStage::Frames(tail),
            other => other,
        };
    }

    fn record_sent(&mut self, bytes: usize, last_lsn: Option<u64>) {
        self.unconfirmed.push_back(Unconfirmed {
            number: self.next_number,
            last_lsn,
            bytes,
        });
        self.next_number += 1;
        self.last_progress = Instant::now();
        self.unconfirmed_bytes += bytes;
        self.sent_bytes += bytes as u64;
    }
}

/// Reads the keyed state on a thread of its own, because there may be more than should be in memory.
fn read_state(store: &Store, inputs: &Arc<Inputs>) -> Result<Receiver<StatePortion>, StoreError> {
    let (portions, receiver) = sync_channel(STATE_READ_AHEAD);
    let (store, inputs) = (store.clone(), inputs.clone());
    let read = move || {
        let mut is_wanted = true;
        for kind in COPIED_STATE {
            let mut entries = Vec::new();
            let scanned = store.scan(kind, &mut |key, value| {
                if !is_wanted {
                    return;
                }
                put_state_entry(key, value, &mut entries);
                if entries.len() >= MESSAGE_BYTES {
                    let full = std::mem::take(&mut entries);
                    is_wanted = portions.send(Ok((kind, full))).is_ok();
                    inputs.wake();
                }
            });
            let last = scanned.map(|()| (kind, entries));
            if !is_wanted || portions.send(last).is_err() {
                return;
            }
            inputs.wake();
        }
        drop(portions);
        inputs.wake();
    };
    let thread = std::thread::Builder::new().name("standby-state".to_owned());
    match thread.spawn(read) {
        Ok(_) => Ok(receiver),
        Err(error) => Err(StoreError::Cluster(format!(
            "cannot start a thread for the copy of the sessions: {error}"
        ))),
    }
}
