//! The standbys of the nodes: a model of the crate `standby` that runs step by step. The record of each node is changed by
//! compare-and-set only. The copies are stores, which get the frames of the log of their node.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use store::{LogTail, QueueEntry, QueuePage, StateKind, Store, StoreBatch, StoreObserver};
use tempfile::TempDir;

use super::{FaultSim, name};
use crate::core::adoption::{AbandonScan, AdoptedSession, AdoptionBegin};
use crate::core::inspection::{ScanStep, ShardScan as _};
use crate::core::node_link::{RestoredEntry, first_seqs};
use crate::core::received_numbers::CopiedNumbers;
use crate::core::records::{self, SessionRecord};
use crate::core::recovery::{RecoveredCopy, read_copy};
use crate::core::shard_link::ShardLink;
use crate::core::succession::SessionHold;
use crate::core::tests::sim::open_store;

/// The times of the crate `standby`.
const RETRY_MS: u64 = 500;
const COPY_RETRY_MS: u64 = 5000;
const MAX_SILENCE_MS: u64 = 10_000;
const FAILED_STANDBY_PAUSE_MS: u64 = 300_000;
const ADOPTER_TIMEOUT_MS: u64 = 60_000;
const LEFT_DELAY_MS: u64 = 5000;
const RETURN_CHECK_MS: u64 = 5000;
const RETURN_TIMEOUT_MS: u64 = 5000;
/// Time after the start of a node until it adopts anything.
const START_DELAY_MS: u64 = 15_000;
/// Small, so that a copy often has a part of what was logged.
const CHUNK_BYTES: usize = 512;

/// The state that is copied before the frames of the log.
const COPIED_STATE: [StateKind; 4] = [
    StateKind::Sessions,
    StateKind::Subscriptions,
    StateKind::Delayed,
    StateKind::Received,
];

/// The record `standby.NODE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StandbyRecord {
    run: u64,
    standby: Option<usize>,
    adopted_by: Option<usize>,
    is_adopted: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct KnownRecord {
    record: StandbyRecord,
    revision: u64,
}

enum WriteOutcome {
    Written(u64),
    Conflict,
    Unknown,
}

/// The records of all nodes, as the NATS servers have them.
pub(super) struct StandbyRecords {
    of: Vec<Option<KnownRecord>>,
    last_revision: u64,
}

impl StandbyRecords {
    pub(super) fn new(nodes: usize) -> Self {
        Self {
            of: vec![None; nodes],
            last_revision: 0,
        }
    }

    fn write(&mut self, node: usize, record: StandbyRecord, revision: Option<u64>) -> WriteOutcome {
        if self.of[node].as_ref().map(|known| known.revision) != revision {
            return WriteOutcome::Conflict;
        }
        self.last_revision += 1;
        let revision = self.last_revision;
        self.of[node] = Some(KnownRecord { record, revision });
        WriteOutcome::Written(revision)
    }
}

/// What a node has on its disk besides its store.
#[derive(Default)]
pub(super) struct NodeFiles {
    /// Whether another node may have adopted its sessions.
    marker: bool,
    /// The copies of other nodes.
    copies: BTreeMap<usize, CopyFiles>,
}

struct CopyFiles {
    dir: TempDir,
    run: u64,
    is_adopted: bool,
    /// When the first attempt to adopt the sessions began, by the clock of the node with the copy.
    adopting_since_ms: Option<u64>,
}

enum CopyStage {
    AwaitPosition,
    Frames(LogTail),
}

/// The copy of the log of a node at its standby, as the node sees it.
struct OutgoingCopy {
    standby: usize,
    /// The connection of the two nodes that it uses.
    channel: u64,
    number: u64,
    stage: CopyStage,
    /// The last frame that the standby has, and the last one that it has confirmed.
    stored_lsn: Option<u64>,
    confirmed_lsn: Option<u64>,
    is_at_end: bool,
    last_progress_ms: u64,
}

enum Phase {
    Examining,
    NoStandby {
        next_copy_ms: u64,
    },
    Copying {
        copy: OutgoingCopy,
        held_lsn: Option<u64>,
    },
    Confirming(OutgoingCopy),
    Current(OutgoingCopy),
    Removing,
    Adopted {
        adopter: usize,
        is_abandoned: bool,
    },
    AwaitingAdopter {
        adopter: usize,
        until_ms: u64,
    },
}

/// What a node knows of its own standby.
pub(super) struct CopySender {
    run: u64,
    phase: Phase,
    revision: Option<u64>,
    next_attempt_ms: u64,
    failed_standby: Option<(usize, u64)>,
}

impl CopySender {
    fn copy_mut(&mut self) -> Option<&mut OutgoingCopy> {
        match &mut self.phase {
            Phase::Copying { copy, .. } | Phase::Confirming(copy) | Phase::Current(copy) => {
                Some(copy)
            }
            _ => None,
        }
    }

    pub(super) fn is_current(&self) -> bool {
        matches!(self.phase, Phase::Current(_))
    }

    pub(super) fn phase_name(&self) -> String {
        match &self.phase {
            Phase::Examining => "examining".to_owned(),
            Phase::NoStandby { .. } => "no standby".to_owned(),
            Phase::Copying { copy, .. } => format!("copying to {}", copy.standby),
            Phase::Confirming(copy) => format!("confirming {}", copy.standby),
            Phase::Current(copy) => format!("standby {}", copy.standby),
            Phase::Removing => "removing".to_owned(),
            Phase::Adopted { adopter, .. } => format!("adopted by {adopter}"),
            Phase::AwaitingAdopter { adopter, .. } => format!("awaiting {adopter}"),
        }
    }
}

struct NoObserver;

impl StoreObserver for NoObserver {
    fn on_logged(&self, _shard: u16, _batch: u64) {}

    fn on_fetched(&self, _shard: u16, _page: QueuePage) {}
}

/// The store of a copy that is being received.
struct KeptCopy {
    store: Store,
    number: u64,
    run: u64,
    last_lsn: Option<u64>,
    last_batch: u64,
}

impl KeptCopy {
    fn submit(&mut self, mut batch: StoreBatch) {
        self.last_batch += 1;
        batch.number = self.last_batch;
        self.store.submit(0, batch);
        while self.store.pending_bytes() > 0 {
            std::thread::yield_now();
        }
    }

    fn submit_frames(&mut self, frames: &[u8], last_lsn: u64) {
        let mut records = Vec::new();
        read_frames(frames, &mut records);
        let batch = StoreBatch::from_records(0, &records).expect("the log is read");
        self.submit(batch);
        self.last_lsn = Some(last_lsn);
    }
}

/// An adoption, which proceeds in pieces that have to be in the log before the next one begins.
struct Adoption {
    known: KnownRecord,
    since_ms: u64,
    stage: u8,
    sessions: VecDeque<(AdoptedSession, Vec<QueueEntry>)>,
    received: Arc<CopiedNumbers>,
    links: VecDeque<(ShardLink, Vec<QueueEntry>)>,
    for_nodes: Vec<RestoredEntry>,
    asked: usize,
    answered: Arc<AtomicUsize>,
}

/// What a node knows of another one with a copy here.
#[derive(Default)]
struct Origin {
    is_reachable: bool,
    copy: Option<KeptCopy>,
    is_standby: bool,
    is_continued: bool,
    adopt_at_ms: Option<u64>,
    return_until_ms: Option<u64>,
    adoption: Option<Adoption>,
}

#[derive(Default)]
pub(super) struct CopyReceiver {
    origins: BTreeMap<usize, Origin>,
    ended: Vec<(usize, KnownRecord)>,
}

impl CopyReceiver {
    pub(super) fn is_idle(&self) -> bool {
        self.ended.is_empty()
            && (self.origins.values()).all(|origin| {
                origin.adoption.is_none()
                    && origin.adopt_at_ms.is_none()
                    && origin.return_until_ms.is_none()
            })
    }
}

/// What the threads of a standby learn of other nodes.
pub(super) enum PeerChange {
    Up(usize),
    Down { peer: usize, has_left: bool },
}

impl FaultSim {
    /// The records as a node reads them; `Err`: it has no connection to the servers.
    fn read_record(&self, reader: usize, of: usize) -> Result<Option<KnownRecord>, ()> {
        match self.nodes[reader].has_servers {
            true => Ok(self.records.of[of].clone()),
            false => Err(()),
        }
    }

    fn write_record(
        &mut self,
        writer: usize,
        of: usize,
        record: StandbyRecord,
        revision: Option<u64>,
    ) -> WriteOutcome {
        if !self.nodes[writer].has_servers {
            return WriteOutcome::Unknown;
        }
        let outcome = self.records.write(of, record, revision);
        // The change is made, and its answer is lost.
        match self.is_faulty && self.random(20) == 0 {
            true => WriteOutcome::Unknown,
            false => outcome,
        }
    }

    /// The threads of a node that has just been started.
    pub(super) fn start_standbys(&mut self, node: usize) {
        let run = self.next_number();
        self.nodes[node].sender = Some(CopySender {
            run,
            phase: Phase::Examining,
            revision: None,
            next_attempt_ms: self.now_ms,
            failed_standby: None,
        });
        if self.nodes[node].files.marker {
            self.cluster.nodes[node].hold_turns();
            self.hold_sessions(node, SessionHold::Held);
        }
        let mut receiver = CopyReceiver::default();
        let copies: Vec<usize> = self.nodes[node].files.copies.keys().copied().collect();
        for of in copies {
            self.cluster.nodes[node].with_router(|router| {
                router.set_standby_for(&name(of), true);
                router.begin_succession(&name(of));
            });
            let origin = Origin {
                is_standby: true,
                adopt_at_ms: Some(self.now_ms),
                ..Origin::default()
            };
            receiver.origins.insert(of, origin);
        }
        self.nodes[node].receiver = receiver;
    }

    fn hold_sessions(&mut self, node: usize, hold: SessionHold) {
        self.cluster.nodes[node].with_router(|router| router.hold_sessions(hold));
    }

    fn sender(&mut self, node: usize) -> &mut CopySender {
        self.nodes[node].sender.as_mut().expect("the node runs")
    }

    fn set_phase(&mut self, node: usize, phase: Phase) {
        self.sender(node).phase = phase;
        let shown = self.sender(node).phase_name();
        self.note(format!("node {node}: {shown}"));
    }

    /// What other threads of a node have learned reaches those of the standbys.
    pub(super) fn handle_peer_changes(&mut self, node: usize) {
        for change in std::mem::take(&mut self.nodes[node].peer_changes) {
            match change {
                PeerChange::Up(peer) => self.add_origin(node, peer),
                PeerChange::Down { peer, has_left } => {
                    self.remove_origin(node, peer, has_left);
                    if self
                        .sender(node)
                        .copy_mut()
                        .is_some_and(|copy| copy.standby == peer)
                    {
                        self.end_copy(node);
                    }
                }
            }
        }
    }

    fn add_origin(&mut self, node: usize, peer: usize) {
        let now_ms = self.now_ms;
        let Some(origin) = self.nodes[node].receiver.origins.get_mut(&peer) else {
            return;
        };
        origin.is_reachable = true;
        if origin.adopt_at_ms.is_some() {
            origin.adopt_at_ms = Some(now_ms);
        }
        if origin.return_until_ms.take().is_some() {
            self.end_succession(node, peer, false);
        }
    }

    fn remove_origin(&mut self, node: usize, peer: usize, has_left: bool) {
        let now_ms = self.now_ms;
        let has_files = self.nodes[node].files.copies.contains_key(&peer);
        let receiver = &mut self.nodes[node].receiver;
        let is_ended = receiver.ended.iter().any(|&(of, _)| of == peer);
        let Some(origin) = receiver.origins.get_mut(&peer) else {
            return self.end_succession(node, peer, false);
        };
        origin.is_reachable = false;
        origin.is_continued = false;
        let has_returned = origin.return_until_ms.take().is_some();
        let is_adopting = origin.adoption.is_some();
        let is_kept = origin.copy.is_some() || has_files;
        if is_kept && !is_adopting && !is_ended {
            let delay_ms = if has_left { LEFT_DELAY_MS } else { 0 };
            origin.adopt_at_ms = Some(now_ms + delay_ms);
        }
        if has_returned || (!is_kept && !is_adopting && !is_ended) {
            self.end_succession(node, peer, false);
        }
    }

    fn end_succession(&mut self, node: usize, of: usize, is_adopted: bool) {
        self.cluster.nodes[node].with_router(|router| router.end_succession(&name(of), is_adopted));
    }

    fn set_standby_for(&mut self, node: usize, of: usize, is_standby: bool) {
        self.cluster.nodes[node]
            .with_router(|router| router.set_standby_for(&name(of), is_standby));
    }

    fn end_copy(&mut self, node: usize) {
        let now_ms = self.now_ms;
        let sender = self.sender(node);
        if let Some(copy) = sender.copy_mut() {
            let failed = (copy.standby, now_ms + FAILED_STANDBY_PAUSE_MS);
            sender.failed_standby = Some(failed);
        }
        match std::mem::replace(&mut self.sender(node).phase, Phase::Examining) {
            Phase::Copying { .. } => {
                self.cluster.nodes[node].release_turns();
                let next_copy_ms = now_ms + COPY_RETRY_MS;
                self.set_phase(node, Phase::NoStandby { next_copy_ms });
            }
            Phase::Confirming(_) | Phase::Current(_) => self.begin_removing(node),
            other => self.sender(node).phase = other,
        }
    }

    fn begin_removing(&mut self, node: usize) {
        self.hold_sessions(node, SessionHold::Withheld);
        self.sender(node).next_attempt_ms = self.now_ms;
        self.set_phase(node, Phase::Removing);
    }

    /// Sends the next part of the log of a node to its standby; false if there is nothing to send, or it cannot be sent.
    pub(super) fn copy_log(&mut self, node: usize) -> bool {
        let now_ms = self.now_ms;
        let Some(sender) = &mut self.nodes[node].sender else {
            return false;
        };
        let run = sender.run;
        let Some(copy) = sender.copy_mut() else {
            return false;
        };
        let (standby, channel, number) = (copy.standby, copy.channel, copy.number);
        if !self.is_open(node, standby, channel) {
            return false;
        }
        let Some(copy) = self.sender(node).copy_mut() else {
            return false;
        };
        if let CopyStage::Frames(tail) = &mut copy.stage {
            let mut frames = Vec::new();
            let chunk = tail
                .read(CHUNK_BYTES, &mut frames)
                .expect("the log is read");
            copy.is_at_end = chunk.is_none();
            let Some(chunk) = chunk else { return false };
            copy.stored_lsn = Some(chunk.last_lsn);
            copy.last_progress_ms = now_ms;
            let origins = &mut self.nodes[standby].receiver.origins;
            let kept = origins.get_mut(&node).and_then(|origin| {
                origin.is_continued = true;
                origin.copy.as_mut()
            });
            let kept = kept.filter(|kept| kept.number == number);
            let Some(kept) = kept else {
                self.end_copy(node);
                return true;
            };
            kept.submit_frames(&frames, chunk.last_lsn);
            return true;
        }
        self.begin_frames(node, standby, number, run);
        true
    }

    /// The standby says what it has of the run, or gets the state of the sessions.
    fn begin_frames(&mut self, node: usize, standby: usize, number: u64, run: u64) {
        let store = self.cluster.nodes[node].store().clone();
        let now_ms = self.now_ms;
        let origin = self.nodes[standby]
            .receiver
            .origins
            .entry(node)
            .or_default();
        if origin.adoption.is_some() {
            return self.end_copy(node);
        }
        origin.is_reachable = true;
        origin.is_continued = true;
        let position = origin.copy.as_ref();
        let position = position.and_then(|kept| kept.last_lsn.filter(|_| kept.run == run));
        let resumed = position.and_then(|lsn| store.tail_log(Some(lsn)).ok());
        let is_resumed = resumed.is_some();
        let (tail, stored_lsn) = match resumed {
            Some(tail) => {
                if let Some(kept) = &mut origin.copy {
                    kept.number = number;
                }
                (tail, position)
            }
            None => {
                if let Some(kept) = origin.copy.take() {
                    kept.store.close();
                }
                origin.is_standby = false;
                self.set_standby_for(standby, node, false);
                self.create_copy((node, standby), &store, (number, run))
            }
        };
        if let Some(copy) = self.sender(node).copy_mut() {
            copy.stored_lsn = stored_lsn;
            copy.confirmed_lsn = position.filter(|_| is_resumed);
            copy.stage = CopyStage::Frames(tail);
            copy.last_progress_ms = now_ms;
        }
    }

    /// Begins an empty copy with the state of the sessions. Returns the log, and the last frame of it in the copy.
    fn create_copy(
        &mut self,
        (node, standby): (usize, usize),
        store: &Store,
        (number, run): (u64, u64),
    ) -> (LogTail, Option<u64>) {
        // Before the state is read, so that later changes of it are in the frames.
        let mut tail = store.tail_log(None).expect("the log is read");
        let dir = TempDir::new().unwrap();
        let copy = open_store(&dir);
        copy.start(Arc::new(NoObserver)).unwrap();
        let mut kept = KeptCopy {
            store: copy,
            number,
            run,
            last_lsn: None,
            last_batch: 0,
        };
        for kind in COPIED_STATE {
            let mut batch = StoreBatch::default();
            let each = &mut |key: &[u8], value: &[u8]| batch.put(kind, key, value);
            store.scan(kind, each).unwrap();
            kept.submit(batch);
        }
        // The store removes segments of the log that it needs no longer, when its disk has the rest. Whether it has done so already must
        // not decide how many parts follow.
        let opened_lsn = self.cluster.nodes[node].opened_lsn();
        if opened_lsn > 0 {
            let mut frames = Vec::new();
            while kept.last_lsn <= Some(opened_lsn)
                && let Some(chunk) = tail.read(1, &mut frames).expect("the log is read")
            {
                kept.submit_frames(&frames, chunk.last_lsn);
                frames.clear();
            }
            kept.last_lsn = kept.last_lsn.max(Some(opened_lsn));
        }
        let is_adopted = false;
        let files = CopyFiles {
            dir,
            run,
            is_adopted,
            adopting_since_ms: None,
        };
        self.nodes[standby].files.copies.insert(node, files);
        let stored_lsn = kept.last_lsn;
        self.origin(standby, node).copy = Some(kept);
        (tail, stored_lsn)
    }

    /// The standby confirms what it has stored; false if there is nothing new.
    pub(super) fn confirm_copy(&mut self, node: usize) -> bool {
        let now_ms = self.now_ms;
        let Some(copy) = self.nodes[node]
            .sender
            .as_mut()
            .and_then(CopySender::copy_mut)
        else {
            return false;
        };
        let (standby, channel) = (copy.standby, copy.channel);
        if copy.stored_lsn == copy.confirmed_lsn {
            return false;
        }
        let confirmed = copy.stored_lsn;
        if !self.is_open(node, standby, channel) {
            return false;
        }
        if let Some(copy) = self.sender(node).copy_mut() {
            copy.confirmed_lsn = confirmed;
            copy.last_progress_ms = now_ms;
        }
        if let Some(lsn) = confirmed {
            self.cluster.nodes[node].confirm_replicated(lsn);
        }
        true
    }

    /// Lets time pass for the standby of a node.
    pub(super) fn step_sender(&mut self, node: usize) {
        let now_ms = self.now_ms;
        let sender = self.sender(node);
        let is_due = now_ms >= sender.next_attempt_ms;
        let silent = sender.copy_mut().is_some_and(|copy| {
            let is_waiting = copy.stored_lsn != copy.confirmed_lsn
                || !copy.is_at_end
                || matches!(copy.stage, CopyStage::AwaitPosition);
            is_waiting && now_ms > copy.last_progress_ms + MAX_SILENCE_MS
        });
        if silent {
            self.end_copy(node);
        }
        let is_adopter_awaited = match self.sender(node).phase {
            Phase::AwaitingAdopter { adopter, until_ms } => {
                now_ms < until_ms && self.channels[node][adopter].is_none()
            }
            _ => false,
        };
        match self.sender(node).phase {
            Phase::Examining if is_due => self.examine(node),
            Phase::NoStandby { next_copy_ms } if now_ms >= next_copy_ms => self.begin_copy(node),
            Phase::Copying { .. } => self.advance_copy(node),
            Phase::Confirming(_) if is_due => self.confirm_standby(node),
            Phase::Removing if is_due => self.remove_standby(node),
            Phase::Adopted { .. } if is_due => self.abandon(node),
            Phase::AwaitingAdopter { .. } if !is_adopter_awaited => {
                self.finish_without_standby(node, now_ms);
            }
            _ => {}
        }
    }

    fn begin_copy(&mut self, node: usize) {
        let now_ms = self.now_ms;
        let failed = self.sender(node).failed_standby;
        let has_failed = |peer: usize| {
            failed.is_some_and(|(failed, until_ms)| failed == peer && now_ms < until_ms)
        };
        let peers = (0..self.nodes.len()).filter(|&peer| self.channels[node][peer].is_some());
        let weight = |peer: usize| (node * 7 + peer * 13 + node * peer) % 11;
        let chosen = peers.max_by_key(|&peer| (!has_failed(peer), weight(peer)));
        let Some(standby) = chosen else { return };
        let channel = self.channels[node][standby].expect("it is reachable");
        let copy = OutgoingCopy {
            standby,
            channel,
            number: self.next_number(),
            stage: CopyStage::AwaitPosition,
            stored_lsn: None,
            confirmed_lsn: None,
            is_at_end: false,
            last_progress_ms: now_ms,
        };
        let held_lsn = None;
        self.set_phase(node, Phase::Copying { copy, held_lsn });
    }

    fn advance_copy(&mut self, node: usize) {
        let logged_lsn = self.cluster.nodes[node].store().logged_lsn();
        let Phase::Copying { copy, held_lsn } = &mut self.sender(node).phase else {
            return;
        };
        let Some(held) = *held_lsn else {
            if matches!(copy.stage, CopyStage::Frames(_)) && copy.is_at_end {
                *held_lsn = Some(logged_lsn);
                // More may have been logged since.
                copy.is_at_end = false;
                self.cluster.nodes[node].hold_turns();
            }
            return;
        };
        let is_confirmed = copy.confirmed_lsn.is_some_and(|lsn| lsn >= held);
        // The log may have no frames, so that none was confirmed.
        let has_everything = copy.is_at_end && copy.stored_lsn == copy.confirmed_lsn;
        if !is_confirmed && !has_everything {
            return;
        }
        let (standby, channel, number) = (copy.standby, copy.channel, copy.number);
        self.nodes[node].files.marker = true;
        if self.is_open(node, standby, channel) {
            self.tell_standby(node, standby, number);
        }
        let sender = self.sender(node);
        if let Phase::Copying { copy, .. } = std::mem::replace(&mut sender.phase, Phase::Examining)
        {
            sender.phase = Phase::Confirming(copy);
        }
        self.confirm_standby(node);
    }

    fn tell_standby(&mut self, node: usize, standby: usize, number: u64) {
        let Some(origin) = self.nodes[standby].receiver.origins.get_mut(&node) else {
            return;
        };
        if (origin.copy.as_ref()).is_some_and(|kept| kept.number == number) {
            origin.is_standby = true;
            self.set_standby_for(standby, node, true);
        }
    }

    fn confirm_standby(&mut self, node: usize) {
        let Phase::Confirming(copy) = &self.sender(node).phase else {
            return;
        };
        let standby = copy.standby;
        if !self.write_own_record(node, Some(standby)) {
            return;
        }
        let sender = self.sender(node);
        if let Phase::Confirming(copy) = std::mem::replace(&mut sender.phase, Phase::Examining) {
            self.set_phase(node, Phase::Current(copy));
        }
    }

    fn remove_standby(&mut self, node: usize) {
        if self.write_own_record(node, None) {
            self.finish_without_standby(node, self.now_ms + COPY_RETRY_MS);
        }
    }

    fn finish_without_standby(&mut self, node: usize, next_copy_ms: u64) {
        self.cluster.nodes[node].release_turns();
        self.hold_sessions(node, SessionHold::Released);
        self.nodes[node].files.marker = false;
        self.set_phase(node, Phase::NoStandby { next_copy_ms });
    }

    fn write_own_record(&mut self, node: usize, standby: Option<usize>) -> bool {
        let now_ms = self.now_ms;
        let sender = self.sender(node);
        sender.next_attempt_ms = now_ms + RETRY_MS;
        let revision = sender.revision;
        let record = StandbyRecord {
            run: sender.run,
            standby,
            adopted_by: None,
            is_adopted: false,
        };
        match self.write_record(node, node, record.clone(), revision) {
            WriteOutcome::Written(revision) => {
                self.sender(node).revision = Some(revision);
                return true;
            }
            WriteOutcome::Conflict => {}
            WriteOutcome::Unknown => return false,
        }
        let Ok(known) = self.read_record(node, node) else {
            return false;
        };
        self.sender(node).revision = known.as_ref().map(|known| known.revision);
        let known = known.map(|known| known.record);
        if known.as_ref() == Some(&record) {
            return true;
        }
        if let Some(adopter) = known.and_then(|known| known.adopted_by) {
            self.begin_abandoning(node, adopter);
        }
        false
    }

    fn examine(&mut self, node: usize) {
        self.sender(node).next_attempt_ms = self.now_ms + RETRY_MS;
        let Ok(known) = self.read_record(node, node) else {
            return;
        };
        self.sender(node).revision = known.as_ref().map(|known| known.revision);
        let record = known.map(|known| known.record);
        if let Some(adopter) = record.as_ref().and_then(|record| record.adopted_by) {
            return self.begin_abandoning(node, adopter);
        }
        if self.nodes[node].files.marker || record.is_some_and(|record| record.standby.is_some()) {
            self.cluster.nodes[node].hold_turns();
            return self.begin_removing(node);
        }
        self.finish_without_standby(node, self.now_ms);
    }

    fn begin_abandoning(&mut self, node: usize, adopter: usize) {
        self.cluster.nodes[node].hold_turns();
        self.hold_sessions(node, SessionHold::Held);
        self.sender(node).next_attempt_ms = self.now_ms;
        let is_abandoned = false;
        self.set_phase(
            node,
            Phase::Adopted {
                adopter,
                is_abandoned,
            },
        );
    }

    fn abandon(&mut self, node: usize) {
        self.sender(node).next_attempt_ms = self.now_ms + RETRY_MS;
        let Ok(known) = self.read_record(node, node) else {
            return;
        };
        let Phase::Adopted {
            adopter,
            is_abandoned,
        } = self.sender(node).phase
        else {
            return;
        };
        self.sender(node).revision = known.as_ref().map(|known| known.revision);
        let record = known.map(|known| known.record);
        if let Some(record) = &record
            && record.adopted_by.is_none()
        {
            if record.run == self.sender(node).run {
                return self.await_adopter(node, adopter);
            }
            return self.begin_removing(node);
        }
        if !record.is_none_or(|record| record.is_adopted) {
            return;
        }
        if !is_abandoned {
            for shard in &mut self.cluster.nodes[node].shards {
                let mut scan = AbandonScan::default();
                while let ScanStep::Continue(next) = scan.step(shard) {
                    scan = next;
                }
            }
            self.cluster.nodes[node].collect();
            self.repeat_adoptions(node);
            let is_abandoned = true;
            self.set_phase(
                node,
                Phase::Adopted {
                    adopter,
                    is_abandoned,
                },
            );
        }
        // Everything has to be in the log first.
        let unlogged = &self.cluster.nodes[node].unlogged;
        if unlogged.iter().any(|turns| !turns.is_empty()) {
            return;
        }
        self.sender(node).run = self.next_number();
        if self.write_own_record(node, None) {
            self.await_adopter(node, adopter);
        }
    }

    /// What a node was adopting is gone with its own sessions. The node that has adopted these may not have it.
    fn repeat_adoptions(&mut self, node: usize) {
        let now_ms = self.now_ms;
        for origin in self.nodes[node].receiver.origins.values_mut() {
            if origin.adoption.take().is_some() {
                origin.adopt_at_ms = Some(now_ms);
            }
        }
    }

    fn await_adopter(&mut self, node: usize, adopter: usize) {
        let until_ms = self.now_ms + ADOPTER_TIMEOUT_MS;
        self.set_phase(node, Phase::AwaitingAdopter { adopter, until_ms });
    }

    /// Lets time pass for the copies of other nodes at this one.
    pub(super) fn step_receiver(&mut self, node: usize) {
        let now_ms = self.now_ms;
        let origins: Vec<usize> = self.nodes[node].receiver.origins.keys().copied().collect();
        for of in origins {
            let Some(origin) = self.nodes[node].receiver.origins.get_mut(&of) else {
                continue;
            };
            if origin
                .return_until_ms
                .is_some_and(|until_ms| until_ms <= now_ms)
            {
                origin.return_until_ms = None;
                self.end_succession(node, of, false);
            }
            let origin = &self.nodes[node].receiver.origins[&of];
            if origin.adopt_at_ms.is_some_and(|at_ms| at_ms <= now_ms) {
                self.decide(node, of);
            }
            if self.nodes[node].receiver.origins[&of].adoption.is_some()
                && self.nodes[node].is_listening
            {
                self.adopt(node, of);
            }
        }
        for (of, known) in std::mem::take(&mut self.nodes[node].receiver.ended) {
            let record = StandbyRecord {
                is_adopted: true,
                ..known.record.clone()
            };
            match self.write_record(node, of, record, Some(known.revision)) {
                WriteOutcome::Unknown => self.nodes[node].receiver.ended.push((of, known)),
                WriteOutcome::Written(_) | WriteOutcome::Conflict => {
                    let origin = self.nodes[node].receiver.origins.get(&of);
                    let is_unused = origin.is_none_or(|origin| origin.copy.is_none());
                    let copies = &mut self.nodes[node].files.copies;
                    if is_unused && copies.get(&of).is_some_and(|files| files.is_adopted) {
                        copies.remove(&of);
                    }
                }
            }
        }
    }

    fn origin(&mut self, node: usize, of: usize) -> &mut Origin {
        self.nodes[node].receiver.origins.entry(of).or_default()
    }

    fn decide(&mut self, node: usize, of: usize) {
        let run = self.nodes[node]
            .files
            .copies
            .get(&of)
            .map(|files| files.run);
        let retry_ms = self.now_ms + RETRY_MS;
        let Ok(known) = self.read_record(node, of) else {
            self.origin(node, of).adopt_at_ms = Some(retry_ms);
            return;
        };
        let Some(known) = known else {
            return self.decline(node, of, false);
        };
        let record = &known.record;
        if Some(record.run) != run {
            let is_returning = record.standby.is_none() && record.adopted_by.is_none();
            return self.decline(node, of, is_returning);
        }
        if record.adopted_by == Some(node) && !record.is_adopted {
            return self.begin_adoption(node, of, known);
        }
        if record.standby != Some(node) || record.adopted_by.is_some() {
            return self.decline(node, of, false);
        }
        let check_ms = self.now_ms + RETURN_CHECK_MS;
        let origin = self.origin(node, of);
        if origin.is_reachable {
            origin.adopt_at_ms = (!origin.is_continued).then_some(check_ms);
            return self.end_succession(node, of, false);
        }
        if self.nodes[node].has_restarted
            && self.now_ms < self.nodes[node].started_ms + START_DELAY_MS
        {
            self.origin(node, of).adopt_at_ms = Some(retry_ms);
            return;
        }
        let adopted = StandbyRecord {
            run: record.run,
            standby: None,
            adopted_by: Some(node),
            is_adopted: false,
        };
        match self.write_record(node, of, adopted.clone(), Some(known.revision)) {
            WriteOutcome::Written(revision) => {
                let record = adopted;
                self.begin_adoption(node, of, KnownRecord { record, revision });
            }
            WriteOutcome::Conflict | WriteOutcome::Unknown => {
                self.origin(node, of).adopt_at_ms = Some(retry_ms);
            }
        }
    }

    fn decline(&mut self, node: usize, of: usize, is_returning: bool) {
        self.note(format!("node {node} does not adopt the sessions of {of}"));
        self.set_standby_for(node, of, false);
        let until_ms = self.now_ms + RETURN_TIMEOUT_MS;
        let origin = self.origin(node, of);
        origin.adopt_at_ms = None;
        origin.is_standby = false;
        if origin.is_reachable {
            return self.end_succession(node, of, false);
        }
        match is_returning {
            true => origin.return_until_ms = Some(until_ms),
            false => self.end_succession(node, of, false),
        }
        if let Some(kept) = self.origin(node, of).copy.take() {
            kept.store.close();
        }
        self.nodes[node].files.copies.remove(&of);
    }

    fn begin_adoption(&mut self, node: usize, of: usize, known: KnownRecord) {
        let origin = self.origin(node, of);
        origin.adopt_at_ms = None;
        if let Some(kept) = origin.copy.take() {
            kept.store.close();
        }
        self.cluster.nodes[node].with_router(|router| router.begin_succession(&name(of)));
        let now_ms = self.cluster.nodes[node].now_ms;
        let Some(files) = self.nodes[node].files.copies.get_mut(&of) else {
            return;
        };
        let since_ms = *files.adopting_since_ms.get_or_insert(now_ms);
        if files.is_adopted {
            self.origin(node, of).is_standby = false;
            self.set_standby_for(node, of, false);
            self.cluster.nodes[node].with_router(|router| router.confirm_succession(&name(of)));
            return self.nodes[node].receiver.ended.push((of, known));
        }
        let copy = open_store(&files.dir);
        let RecoveredCopy {
            shard: recovered,
            received,
        } = read_copy(&copy).unwrap();
        let read_queue = |number| {
            let mut entries = Vec::new();
            copy.read_queue(number, &mut |entry| entries.push(entry))
                .unwrap();
            entries
        };
        let sessions = recovered.sessions.into_iter().map(|session| {
            let number = SessionRecord::read(&session.record).map_or(0, |record| record.number);
            let session = AdoptedSession {
                client_id: session.client_id,
                record: session.record,
                subscriptions: session.subscriptions,
                queue: session.queue.unwrap_or_default(),
            };
            (session, read_queue(number))
        });
        let sessions: VecDeque<_> = sessions.collect();
        let mut for_nodes = Vec::new();
        let mut links = VecDeque::new();
        for (link, _) in recovered.links {
            let queue = link.store_number();
            let entries = read_queue(queue);
            match link.leads_to_nodes() {
                true => for_nodes.extend(
                    (entries.iter()).map(|entry| RestoredEntry::read(queue, entry).unwrap()),
                ),
                false => links.push_back((link, entries)),
            }
        }
        let ids: Vec<&str> = sessions
            .iter()
            .map(|(session, _)| &*session.client_id)
            .collect();
        let shown = format!("node {node} adopts the sessions of {of}: {ids:?}");
        self.note(shown);
        self.origin(node, of).adoption = Some(Adoption {
            known,
            since_ms,
            stage: 0,
            sessions,
            received: Arc::new(received),
            links,
            for_nodes,
            asked: 0,
            answered: Arc::default(),
        });
    }

    /// Adopts the next piece, if the one before is in the log.
    pub(super) fn adopt(&mut self, node: usize, of: usize) {
        let Some(origin) = self.nodes[node].receiver.origins.get_mut(&of) else {
            return;
        };
        let Some(adoption) = &mut origin.adoption else {
            return;
        };
        if adoption.asked > adoption.answered.load(Relaxed) {
            return;
        }
        let sim = &mut self.cluster.nodes[node];
        let shards = sim.shards.len();
        let from = name(of);
        // Shards, and the announcement that has to be confirmed.
        let mut asked: Vec<(usize, u64)> = (0..shards).map(|shard| (shard, 0)).collect();
        let mut sent_again: Vec<String> = Vec::new();
        match adoption.stage {
            0 => {
                for shard in &mut sim.shards {
                    shard.expect_adopted_messages(&from, adoption.received.clone());
                }
                adoption.stage = 1;
            }
            1 => match adoption.sessions.pop_front() {
                Some((session, entries)) => {
                    let mut shard = sim.random(shards);
                    let begun = loop {
                        match sim.shards[shard].begin_adoption(&from, &session) {
                            AdoptionBegin::OtherShard(other) => shard = usize::from(other),
                            begun => break begun,
                        }
                    };
                    if let AdoptionBegin::Begun { number } = begun {
                        sim.shards[shard].write_adopted_messages(number, &entries);
                        let since_ms = adoption.since_ms;
                        sim.shards[shard].finish_adoption(&from, number, session, since_ms);
                    }
                    asked = vec![(shard, 0)];
                }
                None => {
                    adoption.stage = 2;
                    asked.clear();
                }
            },
            2 => match adoption.links.pop_front() {
                Some((link, entries)) => {
                    for shard in &mut sim.shards {
                        for entry in &entries {
                            let message = records::read_message(&entry.body).unwrap();
                            let member = records::read_member_target(&entry.attributes).unwrap();
                            let of_shard = (link.shards, link.to);
                            shard.deliver_adopted_link(&from, of_shard, &message.view(), member);
                        }
                    }
                }
                None => {
                    let for_nodes = std::mem::take(&mut adoption.for_nodes);
                    let first_seqs = first_seqs(&for_nodes);
                    sim.shards[0].adopt_node_entries(&from, &for_nodes, &first_seqs);
                    let payload_of = |entry: &RestoredEntry| {
                        String::from_utf8_lossy(entry.message.view().payload).into_owned()
                    };
                    sent_again = for_nodes.iter().map(payload_of).collect();
                    asked = vec![(0, 0)];
                    adoption.stage = 3;
                }
            },
            3 => {
                for (shard, sequence) in &mut asked {
                    *sequence = sim.shards[*shard].shard_queues.last_sequence();
                }
                adoption.stage = 4;
            }
            _ => return self.finish_adoption(node, of),
        }
        for (shard, sequence) in asked {
            adoption.asked += 1;
            let answered = adoption.answered.clone();
            let respond = move || {
                answered.fetch_add(1, Relaxed);
            };
            sim.shards[shard].respond_when_logged(sequence, Box::new(respond));
        }
        sim.collect();
        self.record_sent_again(node, Some(of), &sent_again);
    }

    /// Whether a node adopts the sessions of another one, and has not said that it has done so.
    pub(super) fn is_adopting(&self, node: usize, of: usize) -> bool {
        let record = self.records.of[of].as_ref().map(|known| &known.record);
        record.is_some_and(|record| record.adopted_by == Some(node) && !record.is_adopted)
    }

    fn finish_adoption(&mut self, node: usize, of: usize) {
        let Some(adoption) = self.origin(node, of).adoption.take() else {
            return;
        };
        if let Some(files) = self.nodes[node].files.copies.get_mut(&of) {
            files.is_adopted = true;
        }
        self.nodes[node].has_adopted = true;
        self.note(format!("node {node} has adopted the sessions of {of}"));
        self.origin(node, of).is_standby = false;
        self.set_standby_for(node, of, false);
        self.end_succession(node, of, true);
        self.move_homes(of, node);
        self.nodes[node].receiver.ended.push((of, adoption.known));
    }

    /// A node ends: what its threads had is gone, and its files remain.
    pub(super) fn end_standbys(&mut self, node: usize) {
        self.nodes[node].sender = None;
        let receiver = std::mem::take(&mut self.nodes[node].receiver);
        for origin in receiver.origins.into_values() {
            if let Some(kept) = origin.copy {
                kept.store.close();
            }
        }
        self.nodes[node].peer_changes.clear();
    }
}

/// The records of frames as [`LogTail::read`] returns them.
fn read_frames(mut frames: &[u8], records: &mut Vec<u8>) {
    while !frames.is_empty() {
        let len = u32::from_le_bytes(frames[8..12].try_into().unwrap()) as usize;
        records.extend_from_slice(&frames[12..12 + len]);
        frames = &frames[12 + len..];
    }
}
