//! The standbys of the nodes: a model of the crate `standby` that runs step by step. The record of each node is changed by
//! compare-and-set only. The copies are stores, which get the frames of the log of their node.

mod receiver;
mod sender;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use store::{LogTail, QueueEntry, QueuePage, StateKind, Store, StoreBatch, StoreObserver};
use tempfile::TempDir;

use super::{FaultSim, name};
use crate::core::adoption::AdoptedSession;
use crate::core::node_link::RestoredEntry;
use crate::core::received_numbers::CopiedNumbers;
use crate::core::shard_link::ShardLink;
use crate::core::succession::SessionHold;

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

    fn end_succession(&mut self, node: usize, of: usize, is_adopted: bool) {
        self.cluster.nodes[node].with_router(|router| router.end_succession(&name(of), is_adopted));
    }

    fn set_standby_for(&mut self, node: usize, of: usize, is_standby: bool) {
        self.cluster.nodes[node]
            .with_router(|router| router.set_standby_for(&name(of), is_standby));
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
