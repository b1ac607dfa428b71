//! The sessions of this node, which a standby copies and may adopt.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cluster::{NodeName, PeerNodeId, SendMessage};
use store::Store;
use xxhash_rust::xxh3::xxh3_64;

use crate::inputs::{Input, Inputs};
use crate::message::{CopyBody, CopyMessage, SESSION_COPY_KIND};
use crate::outgoing_copy::OutgoingCopy;
use crate::owner::{SessionHold, SessionOwner};
use crate::record::{StandbyRecord, StandbyRecords, WriteOutcome};
use crate::status::{CopyPhase, OwnCopyStatus};

/// Time between two attempts to read or write the record.
const RECORD_RETRY: Duration = Duration::from_millis(500);
/// Time until a copy begins again after it has failed.
const COPY_RETRY: Duration = Duration::from_secs(5);
/// A standby that confirms nothing for so long is removed.
const MAX_SILENCE: Duration = Duration::from_secs(10);
/// Time for which another node is preferred to a standby that has failed.
const FAILED_STANDBY_PAUSE: Duration = Duration::from_secs(300);
/// Time for which a node that has lost its sessions waits for the node that has adopted them.
const ADOPTER_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest wait of the thread.
const IDLE: Duration = Duration::from_secs(1);

/// What the thread is doing.
enum Phase {
    /// The record has to be read: at the start, and after somebody else has changed it.
    Examining,
    NoStandby {
        next_copy: Instant,
    },
    /// `held_lsn`: acknowledgements wait for the standby since this frame of the log.
    Copying {
        copy: Box<OutgoingCopy>,
        held_lsn: Option<u64>,
    },
    /// The standby has everything, and the record is being written.
    Confirming(Box<OutgoingCopy>),
    Current(Box<OutgoingCopy>),
    /// The record is being written without the standby.
    Removing,
    /// Another node adopts the sessions.
    Adopted(NodeName),
    /// Another node has adopted the sessions, which have ended here, and cannot be reached yet. Until it can, clients are rejected,
    /// because they would get new sessions.
    AwaitingAdopter {
        adopter: NodeName,
        until: Instant,
    },
}

impl Phase {
    fn copy_mut(&mut self) -> Option<&mut OutgoingCopy> {
        match self {
            Phase::Copying { copy, .. } | Phase::Confirming(copy) | Phase::Current(copy) => {
                Some(copy)
            }
            _ => None,
        }
    }
}

/// What the thread needs.
pub(crate) struct CopySenderParts {
    pub(crate) node: NodeName,
    pub(crate) store: Store,
    pub(crate) records: StandbyRecords,
    pub(crate) send: SendMessage,
    pub(crate) owner: Arc<dyn SessionOwner>,
    pub(crate) random: fn() -> u64,
    /// Exists while another node may have adopted the sessions.
    pub(crate) marker: PathBuf,
    pub(crate) is_wanted: Box<dyn Fn() -> bool + Send>,
    pub(crate) status: Arc<Mutex<OwnCopyStatus>>,
}

/// Keeps a standby current; see [`SessionCopies`](crate::SessionCopies).
pub(crate) struct CopySender {
    parts: CopySenderParts,
    inputs: Arc<Inputs>,
    /// Differs in each run of the node, because frames of an earlier run may have been lost and their numbers used again.
    run: u64,
    peers: BTreeMap<NodeName, PeerNodeId>,
    phase: Phase,
    /// Revision of the record as it was read or written last; `None`: there is no record.
    revision: Option<u64>,
    next_attempt: Instant,
    /// The last standby that has failed, and until when another one is preferred.
    failed_standby: Option<(NodeName, Instant)>,
    /// Whether acknowledgements wait.
    is_holding: bool,
    sent_bytes: u64,
}

impl CopySender {
    /// Acknowledgements wait from the beginning if another node may have adopted the sessions.
    pub(crate) fn new(parts: CopySenderParts, inputs: Arc<Inputs>) -> Self {
        let may_be_adopted = parts.marker.exists();
        let mut sender = Self {
            run: (parts.random)(),
            parts,
            inputs,
            peers: BTreeMap::new(),
            phase: Phase::Examining,
            revision: None,
            next_attempt: Instant::now(),
            failed_standby: None,
            is_holding: false,
            sent_bytes: 0,
        };
        if may_be_adopted {
            sender.hold();
            sender.parts.owner.hold_sessions(SessionHold::Held);
        }
        sender
    }

    pub(crate) fn run(mut self) {
        let mut deadline = Instant::now();
        while let Some(inputs) = self.inputs.wait(deadline) {
            for input in inputs {
                match input {
                    Input::Up(peer, node) => {
                        self.peers.insert(node, peer);
                    }
                    Input::Down(peer, _) => self.remove_peer(peer),
                    Input::Message(peer, message) => self.handle_message(peer, &message),
                }
            }
            self.step();
            self.publish_status();
            deadline = Instant::now() + self.time_to_next_step();
        }
    }

    fn time_to_next_step(&self) -> Duration {
        match &self.phase {
            Phase::Examining | Phase::Confirming(_) | Phase::Removing | Phase::Adopted(_) => {
                let left = self.next_attempt.saturating_duration_since(Instant::now());
                left.clamp(Duration::from_millis(1), IDLE)
            }
            Phase::NoStandby { .. }
            | Phase::Copying { .. }
            | Phase::Current(_)
            | Phase::AwaitingAdopter { .. } => IDLE,
        }
    }

    fn hold(&mut self) {
        self.parts.store.hold_notifications();
        self.is_holding = true;
    }

    fn release(&mut self) {
        if std::mem::take(&mut self.is_holding) {
            self.parts.store.release_notifications();
        }
    }

    fn remove_peer(&mut self, peer: PeerNodeId) {
        self.peers.retain(|_, known| *known != peer);
        if self.phase.copy_mut().is_some_and(|copy| copy.peer == peer) {
            self.end_copy("it cannot be reached");
        }
    }

    /// The standby is lost, or has never had everything.
    fn end_copy(&mut self, why: &str) {
        if let Some(copy) = self.phase.copy_mut() {
            let until = Instant::now() + FAILED_STANDBY_PAUSE;
            self.failed_standby = Some((copy.standby.clone(), until));
        }
        let phase = std::mem::replace(&mut self.phase, Phase::Examining);
        self.phase = match phase {
            Phase::Copying { copy, .. } => {
                tracing::warn!(
                    standby = %copy.standby,
                    why,
                    "the copy of the sessions of this node has ended before it was complete"
                );
                self.sent_bytes += copy.sent_bytes;
                self.set_error(Some(why));
                self.release();
                Phase::NoStandby {
                    next_copy: Instant::now() + COPY_RETRY,
                }
            }
            Phase::Confirming(copy) | Phase::Current(copy) => {
                tracing::warn!(
                    standby = %copy.standby,
                    why,
                    "the standby of this node is lost; acknowledgements wait until the cluster knows it"
                );
                self.sent_bytes += copy.sent_bytes;
                self.set_error(Some(why));
                self.begin_removing()
            }
            other => other,
        };
    }

    /// The standby may adopt the sessions until the record is written.
    fn begin_removing(&mut self) -> Phase {
        self.parts.owner.hold_sessions(SessionHold::Withheld);
        self.next_attempt = Instant::now();
        Phase::Removing
    }

    fn handle_message(&mut self, peer: PeerNodeId, message: &[u8]) {
        let message = match CopyMessage::decode(message) {
            Ok(message) => message,
            Err(error) => {
                tracing::error!(%error, "a message of the standby of this node is invalid");
                return;
            }
        };
        let (store, inputs) = (self.parts.store.clone(), self.inputs.clone());
        let Some(copy) = self.phase.copy_mut() else {
            return;
        };
        if copy.peer != peer || copy.number() != message.copy {
            return;
        }
        let failure = match message.body {
            CopyBody::Position { last_lsn } => copy
                .handle_position(last_lsn, &store, &inputs, &self.parts.send)
                .err()
                .map(|error| error.to_string()),
            CopyBody::Confirmed { number } => {
                copy.handle_confirmed(number);
                if self.is_holding
                    && let Some(lsn) = copy.confirmed_lsn()
                {
                    store.confirm_replicated(lsn);
                }
                None
            }
            CopyBody::Failed { reason } => Some(format!("it cannot store the copy: {reason}")),
            // Only nodes with a standby send these.
            _ => None,
        };
        if let Some(failure) = failure {
            self.end_copy(&failure);
        }
    }

    fn step(&mut self) {
        self.send();
        let now = Instant::now();
        match &mut self.phase {
            Phase::Examining if now >= self.next_attempt => self.examine(),
            Phase::NoStandby { next_copy } if now >= *next_copy => self.begin_copy(),
            Phase::Copying { .. } => self.advance_copy(),
            Phase::Confirming(_) if now >= self.next_attempt => self.confirm(),
            Phase::Removing if now >= self.next_attempt => self.remove_standby(),
            Phase::Adopted(_) if now >= self.next_attempt => self.abandon(),
            Phase::AwaitingAdopter { adopter, until }
                if now >= *until || self.peers.contains_key(adopter) =>
            {
                self.finish_without_standby(now);
            }
            _ => {}
        }
    }

    /// Sends what may be sent, and gives up a standby that is silent.
    fn send(&mut self) {
        let Some(copy) = self.phase.copy_mut() else {
            return;
        };
        let sent = copy.send(&self.parts.send);
        let failure = match sent {
            Err(error) => Some(error.to_string()),
            Ok(()) if copy.is_waiting() && copy.last_progress.elapsed() > MAX_SILENCE => Some(
                format!("it has stored nothing for {} s", MAX_SILENCE.as_secs()),
            ),
            Ok(()) => None,
        };
        if let Some(failure) = failure {
            let body = CopyBody::Standby { is_standby: false };
            copy.send_message(body, &self.parts.send);
            self.end_copy(&failure);
        }
    }

    /// Chooses a standby among the nodes that can be reached, and begins to copy.
    fn begin_copy(&mut self) {
        if self.peers.is_empty() || !(self.parts.is_wanted)() {
            return;
        }
        let own = self.parts.node.as_str();
        // Nodes choose independently, and nevertheless different standbys.
        let weight = |node: &NodeName| xxh3_64(format!("{own} {node}").as_bytes());
        // One that has failed is chosen again only if there is no other one.
        let now = Instant::now();
        let has_failed = |node: &NodeName| {
            let failed = self.failed_standby.as_ref();
            failed.is_some_and(|(failed, until)| failed == node && now < *until)
        };
        let chosen = self
            .peers
            .iter()
            .max_by_key(|(node, _)| (!has_failed(node), weight(node)));
        let Some((standby, peer)) = chosen else {
            return;
        };
        tracing::info!(standby = %standby, "the sessions of this node are copied to its standby");
        let numbers = ((self.parts.random)(), self.run);
        let standby = (*peer, standby.clone());
        let copy = Box::new(OutgoingCopy::begin(standby, numbers, &self.parts.send));
        let held_lsn = None;
        self.phase = Phase::Copying { copy, held_lsn };
    }

    /// Lets acknowledgements wait for the standby when it is close to the end of the log, and writes the record when it has
    /// everything that was acknowledged before.
    fn advance_copy(&mut self) {
        let Phase::Copying { copy, held_lsn } = &mut self.phase else {
            return;
        };
        let Some(held) = *held_lsn else {
            if copy.is_caught_up() {
                self.parts.store.hold_notifications();
                self.is_holding = true;
                *held_lsn = Some(self.parts.store.logged_lsn());
                // The standby may have confirmed all of it already.
                self.inputs.wake();
            }
            return;
        };
        // Since the notifications are held, more has been sent.
        let is_confirmed = copy
            .confirmed_lsn()
            .is_some_and(|confirmed| confirmed >= held);
        if !is_confirmed && !copy.has_everything() {
            return;
        }
        if let Err(error) = write_marker(&self.parts.marker) {
            let why = format!("{} cannot be written: {error}", self.parts.marker.display());
            return self.end_copy(&why);
        }
        let body = CopyBody::Standby { is_standby: true };
        copy.send_message(body, &self.parts.send);
        if let Phase::Copying { copy, .. } = std::mem::replace(&mut self.phase, Phase::Examining) {
            self.phase = Phase::Confirming(copy);
        }
        self.next_attempt = Instant::now();
        self.confirm();
    }

    fn record(&self, standby: Option<NodeName>) -> StandbyRecord {
        StandbyRecord {
            run: self.run,
            standby,
            adopted_by: None,
            is_adopted: false,
        }
    }

    /// Writes the record with the standby.
    fn confirm(&mut self) {
        let Phase::Confirming(copy) = &self.phase else {
            return;
        };
        let standby = copy.standby.clone();
        if self.write(Some(standby.clone()))
            && let Phase::Confirming(copy) = std::mem::replace(&mut self.phase, Phase::Examining)
        {
            tracing::info!(standby = %standby, "the standby of this node is current");
            self.set_error(None);
            self.phase = Phase::Current(copy);
        }
    }

    /// Writes the record without the standby. Acknowledgements wait no longer then.
    fn remove_standby(&mut self) {
        if self.write(None) {
            tracing::info!(
                "this node has no standby any more; acknowledgements do not wait for one"
            );
            self.finish_without_standby(Instant::now() + COPY_RETRY);
        }
    }

    fn finish_without_standby(&mut self, next_copy: Instant) {
        self.release();
        self.parts.owner.hold_sessions(SessionHold::Released);
        if let Err(error) = remove_marker(&self.parts.marker) {
            // At the next start, clients then wait until the record is read.
            tracing::warn!(%error, "the marker of the standby cannot be removed");
        }
        self.phase = Phase::NoStandby { next_copy };
    }

    /// Writes the record; returns whether it has this content now. Otherwise it is tried again.
    fn write(&mut self, standby: Option<NodeName>) -> bool {
        let record = self.record(standby);
        self.next_attempt = Instant::now() + RECORD_RETRY;
        match self
            .parts
            .records
            .write(&self.parts.node, &record, self.revision)
        {
            WriteOutcome::Written(revision) => {
                self.revision = Some(revision);
                return true;
            }
            WriteOutcome::Conflict => {}
            WriteOutcome::Unknown(error) => {
                tracing::warn!(%error, "the record of the standby of this node cannot be written; trying again");
                self.set_error(Some(&error));
                return false;
            }
        }
        // Somebody else has changed it, or an earlier attempt was carried out without an answer.
        match self.parts.records.read(&self.parts.node) {
            Ok(known) => {
                self.revision = known.as_ref().map(|known| known.revision);
                let known = known.map(|known| known.record);
                if known.as_ref() == Some(&record) {
                    return true;
                }
                if let Some(adopter) = known.and_then(|known| known.adopted_by) {
                    self.begin_abandoning(adopter);
                }
            }
            Err(error) => {
                tracing::warn!(%error, "the record of the standby of this node cannot be read; trying again");
                self.set_error(Some(&error));
            }
        }
        false
    }

    /// Reads the record at the start: another node may have adopted the sessions.
    fn examine(&mut self) {
        self.next_attempt = Instant::now() + RECORD_RETRY;
        let known = match self.parts.records.read(&self.parts.node) {
            Ok(known) => known,
            Err(error) => {
                tracing::warn!(%error, "the record of the standby of this node cannot be read; trying again");
                return self.set_error(Some(&error));
            }
        };
        self.set_error(None);
        self.revision = known.as_ref().map(|known| known.revision);
        match known.map(|known| known.record) {
            Some(record) if record.adopted_by.is_some() => {
                if let Some(adopter) = record.adopted_by {
                    self.begin_abandoning(adopter);
                }
            }
            // The copy is that of an earlier run, whose last change of the record may still be made: that is excluded by
            // another change.
            known
                if self.parts.marker.exists()
                    || known
                        .as_ref()
                        .is_some_and(|record| record.standby.is_some()) =>
            {
                self.hold();
                self.phase = self.begin_removing();
            }
            _ => self.finish_without_standby(Instant::now()),
        }
    }

    fn begin_abandoning(&mut self, adopter: NodeName) {
        tracing::warn!(
            node = %adopter,
            "another node has adopted the sessions of this one, because it could not be reached; they end here"
        );
        if let Some(copy) = self.phase.copy_mut() {
            self.sent_bytes += copy.sent_bytes;
        }
        self.hold();
        self.parts.owner.hold_sessions(SessionHold::Held);
        self.next_attempt = Instant::now();
        self.phase = Phase::Adopted(adopter);
    }

    /// Ends the sessions of this node when the other one has adopted all of them. Nothing that waits for the log is
    /// acknowledged, because the other node does not have it.
    fn abandon(&mut self) {
        self.next_attempt = Instant::now() + RECORD_RETRY;
        let known = match self.parts.records.read(&self.parts.node) {
            Ok(known) => known,
            Err(error) => return self.set_error(Some(&error)),
        };
        self.revision = known.as_ref().map(|known| known.revision);
        if let Some(known) = &known
            && known.record.adopted_by.is_none()
        {
            if known.record.run == self.run {
                // An earlier attempt was carried out without an answer.
                return self.await_adopter();
            }
            tracing::warn!(
                "the adoption of the sessions of this node was cancelled; it keeps them"
            );
            self.phase = self.begin_removing();
            return;
        }
        let is_complete = known.is_none_or(|known| known.record.is_adopted);
        // Until then, other nodes may still send messages for these sessions here.
        if !is_complete || !self.parts.owner.abandon_sessions() || !self.wait_for_log() {
            return;
        }
        self.run = (self.parts.random)();
        if self.write(None) {
            self.await_adopter();
        }
    }

    /// The sessions have ended here, and the record says so.
    fn await_adopter(&mut self) {
        tracing::info!("this node has ended the sessions that another one has adopted");
        if let Phase::Adopted(adopter) = std::mem::replace(&mut self.phase, Phase::Examining) {
            let until = Instant::now() + ADOPTER_TIMEOUT;
            self.phase = Phase::AwaitingAdopter { adopter, until };
            self.inputs.wake();
        }
    }

    /// Waits until what the shards have changed is in the log; false: it takes too long.
    fn wait_for_log(&self) -> bool {
        let until = Instant::now() + MAX_SILENCE;
        loop {
            // The last turns of the shards are submitted meanwhile.
            std::thread::sleep(Duration::from_millis(50));
            if self.parts.store.pending_bytes() == 0 {
                return true;
            }
            if Instant::now() > until {
                return false;
            }
        }
    }

    fn set_error(&self, error: Option<&str>) {
        let mut status = self.parts.status.lock();
        let status = status.as_mut().map_err(|poisoned| poisoned.get_mut());
        let (Ok(status) | Err(status)) = status;
        status.last_error = error.map(str::to_owned);
    }

    fn publish_status(&mut self) {
        let (phase, node) = match &self.phase {
            Phase::Examining => (CopyPhase::Examining, None),
            Phase::NoStandby { .. } => (CopyPhase::NoStandby, None),
            Phase::Copying { copy, .. } | Phase::Confirming(copy) => {
                (CopyPhase::Copying, Some(copy.standby.clone()))
            }
            Phase::Current(copy) => (CopyPhase::Current, Some(copy.standby.clone())),
            Phase::Removing => (CopyPhase::RemovingStandby, None),
            Phase::Adopted(node) | Phase::AwaitingAdopter { adopter: node, .. } => {
                (CopyPhase::Adopted, Some(node.clone()))
            }
        };
        let before = self.sent_bytes;
        let (unconfirmed_bytes, sent_bytes) = self.phase.copy_mut().map_or((0, before), |copy| {
            (copy.unconfirmed_bytes() as u64, before + copy.sent_bytes)
        });
        let status = self.parts.status.lock();
        let mut status = status.unwrap_or_else(PoisonError::into_inner);
        status.phase = phase;
        status.node = node;
        status.unconfirmed_bytes = unconfirmed_bytes;
        status.sent_bytes = sent_bytes;
    }
}

/// The marker is on disk before the record names a standby.
fn write_marker(path: &std::path::Path) -> std::io::Result<()> {
    let directory = path.parent().unwrap_or(path);
    std::fs::create_dir_all(directory)?;
    std::fs::File::create(path)?.sync_all()?;
    std::fs::File::open(directory)?.sync_all()
}

fn remove_marker(path: &std::path::Path) -> std::io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Whether a message is one of a standby to its node.
pub(crate) fn is_for_sender(message: &[u8]) -> bool {
    debug_assert_eq!(message.first(), Some(&SESSION_COPY_KIND));
    let body = CopyMessage::decode(message).map(|message| message.body);
    matches!(
        body,
        Ok(CopyBody::Position { .. } | CopyBody::Confirmed { .. } | CopyBody::Failed { .. })
    )
}
