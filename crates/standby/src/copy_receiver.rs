//! The copies of other nodes' sessions at this node, which it adopts when these nodes fail.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cluster::{DownReason, NodeName, PeerNodeId, SendMessage};
use store::{Store, StoreConfig};

use crate::inputs::{Input, Inputs};
use crate::kept_copy::{self, KeepError, KeptCopy};
use crate::message::{CopyBody, CopyMessage};
use crate::owner::{AdoptionProgress, SessionOwner};
use crate::record::{KnownRecord, StandbyRecord, StandbyRecords, WriteOutcome};
use crate::status::{KeptCopyStatus, StandbyStatus};

/// Time between two attempts to read or write a record, or to adopt.
const RETRY: Duration = Duration::from_millis(500);
/// Time after which the sessions of a node that has left without a drain are adopted; it may start again.
const LEFT_DELAY: Duration = Duration::from_secs(5);
/// Time after which the record of a node that has returned is read again, until the node continues with its copy.
const RETURN_CHECK: Duration = Duration::from_secs(5);
/// Time for which clients wait for a node that has taken its sessions back and is not a member again yet.
const RETURN_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait of the thread.
const IDLE: Duration = Duration::from_secs(1);

/// What this node knows of another one with a copy here.
#[derive(Default)]
struct Origin {
    peer: Option<PeerNodeId>,
    copy: Option<KeptCopy>,
    /// The run of the node whose copy begins.
    pending_run: u64,
    /// Whether this node may be the standby in the record.
    is_standby: bool,
    /// Whether the node has sent something for its copy since it is reachable.
    is_continued: bool,
    /// Whether the node was reachable since this one has started. Otherwise both may just have been started again.
    was_reachable: bool,
    /// When the sessions are to be adopted, unless the node returns.
    adopt_at: Option<Instant>,
    /// The sessions are not adopted; clients wait until this time for the node to return with them.
    return_until: Option<Instant>,
    adoption: Option<Adoption>,
    received_bytes: u64,
}

/// Sessions are being adopted on a thread of its own.
struct Adoption {
    thread: JoinHandle<bool>,
    progress: Arc<AdoptionProgress>,
    known: KnownRecord,
}

pub(crate) struct CopyReceiverParts {
    pub(crate) node: NodeName,
    pub(crate) directory: PathBuf,
    pub(crate) config: StoreConfig,
    pub(crate) records: StandbyRecords,
    pub(crate) send: SendMessage,
    pub(crate) owner: Arc<dyn SessionOwner>,
    pub(crate) start_delay: Duration,
    pub(crate) can_keep_copies: bool,
    pub(crate) status: Arc<Mutex<StandbyStatus>>,
}

/// Keeps copies of the sessions of other nodes; see [`SessionCopies`](crate::SessionCopies).
pub(crate) struct CopyReceiver {
    parts: CopyReceiverParts,
    inputs: Arc<Inputs>,
    names: BTreeMap<PeerNodeId, NodeName>,
    origins: BTreeMap<NodeName, Origin>,
    /// Records of adoptions that have ended, which are not written yet.
    ended: Vec<(NodeName, KnownRecord)>,
    adoptions: u64,
    adopted_sessions: Arc<AtomicU64>,
    started: Instant,
}

impl CopyReceiver {
    pub(crate) fn new(parts: CopyReceiverParts, inputs: Arc<Inputs>) -> Self {
        let mut receiver = Self {
            parts,
            inputs,
            names: BTreeMap::new(),
            origins: BTreeMap::new(),
            ended: Vec::new(),
            adoptions: 0,
            adopted_sessions: Arc::default(),
            started: Instant::now(),
        };
        receiver.find_copies();
        receiver
    }

    /// Copies of an earlier run of this node: their nodes may have failed meanwhile.
    fn find_copies(&mut self) {
        let Ok(entries) = std::fs::read_dir(&self.parts.directory) else {
            return;
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(node) = name.to_str().and_then(|name| NodeName::new(name).ok()) else {
                continue;
            };
            if kept_copy::read_origin(&entry.path()).is_some() {
                self.parts.owner.set_standby_for(&node, true);
                // Clients wait for their sessions until the record is read.
                self.parts.owner.begin_succession(&node);
                let origin = self.origins.entry(node).or_default();
                origin.is_standby = true;
                origin.adopt_at = Some(Instant::now());
            }
        }
    }

    pub(crate) fn run(mut self) {
        let mut deadline = Instant::now();
        while let Some(inputs) = self.inputs.wait(deadline) {
            for input in inputs {
                match input {
                    Input::Up(peer, node) => self.add_peer(peer, node),
                    Input::Down(peer, reason) => self.remove_peer(peer, reason),
                    Input::Message(peer, message) => self.handle_message(peer, &message),
                }
            }
            self.confirm();
            self.step();
            self.publish_status();
            let is_urgent = |origin: &Origin| {
                origin.adoption.is_some() || origin.adopt_at.is_some_and(|at| at <= Instant::now())
            };
            let is_urgent = self.origins.values().any(is_urgent) || !self.ended.is_empty();
            deadline = Instant::now() + if is_urgent { RETRY / 5 } else { IDLE };
        }
        // What is being adopted continues at the next start.
        for origin in self.origins.into_values() {
            if let Some(copy) = origin.copy {
                copy.close();
            }
            if let Some(adoption) = origin.adoption
                && adoption.thread.join().is_err()
            {
                tracing::error!("the adoption of sessions panicked; this is a bug");
            }
        }
    }

    fn directory(&self, node: &NodeName) -> PathBuf {
        self.parts.directory.join(node.as_str())
    }

    fn add_peer(&mut self, peer: PeerNodeId, node: NodeName) {
        self.names.insert(peer, node.clone());
        let directory = self.directory(&node);
        if let Some(origin) = self.origins.get_mut(&node) {
            if kept_copy::is_adoption_requested(&directory) {
                tracing::error!(node = %node, "a node that was declared lost for good has returned; its sessions are not adopted from the copy here");
                if let Err(error) = kept_copy::withdraw_request(&directory) {
                    tracing::error!(node = %node, %error, "the request to adopt the sessions of a node cannot be removed");
                }
            }
            origin.peer = Some(peer);
            origin.was_reachable = true;
            if origin.adopt_at.is_some() {
                origin.adopt_at = Some(Instant::now());
            }
            if origin.return_until.take().is_some() {
                self.parts.owner.end_succession(&node, false);
            }
        }
    }

    fn remove_peer(&mut self, peer: PeerNodeId, reason: DownReason) {
        let Some(node) = self.names.remove(&peer) else {
            return;
        };
        let directory = self.directory(&node);
        let Some(origin) = self.origins.get_mut(&node) else {
            // The router may have expected an adoption.
            return self.parts.owner.end_succession(&node, false);
        };
        if origin.peer == Some(peer) {
            origin.peer = None;
        }
        origin.is_continued = false;
        if origin.return_until.take().is_some() {
            self.parts.owner.end_succession(&node, false);
        }
        if origin.adoption.is_some() || self.ended.iter().any(|(ended, _)| *ended == node) {
            return;
        }
        // Only the record says whether the copy is current.
        if origin.copy.is_some() || kept_copy::read_origin(&directory).is_some() {
            let delay = match reason {
                DownReason::Left => LEFT_DELAY,
                _ => Duration::ZERO,
            };
            origin.adopt_at = Some(Instant::now() + delay);
        } else {
            self.parts.owner.end_succession(&node, false);
        }
    }

    fn handle_message(&mut self, peer: PeerNodeId, message: &[u8]) {
        let Some(node) = self.names.get(&peer).cloned() else {
            return;
        };
        let message = match CopyMessage::decode(message) {
            Ok(message) => message,
            Err(error) => {
                tracing::error!(node = %node, %error, "a message of a copy of sessions is invalid");
                return;
            }
        };
        if let Err(error) = self.keep(peer, &node, message) {
            tracing::error!(node = %node, %error, "the copy of the sessions of a node cannot be stored");
            let origin = self.origins.get_mut(&node);
            let keeps_copy = matches!(error, KeepError::Behind | KeepError::NoStore);
            if let Some(origin) = origin.filter(|_| !keeps_copy) {
                origin.copy = None;
            }
            let reason = error.to_string();
            let body = CopyBody::Failed { reason: &reason };
            self.answer(peer, message.copy, body);
        }
    }

    fn answer(&self, peer: PeerNodeId, copy: u64, body: CopyBody<'_>) {
        (self.parts.send)(peer, CopyMessage { copy, body }.encode());
    }

    fn keep(
        &mut self,
        peer: PeerNodeId,
        node: &NodeName,
        message: CopyMessage<'_>,
    ) -> Result<(), KeepError> {
        let directory = self.directory(node);
        let origin = self.origins.entry(node.clone()).or_default();
        if origin.adoption.is_some() {
            return Err(KeepError::Files(std::io::Error::other(
                "the sessions are being adopted",
            )));
        }
        origin.peer = Some(peer);
        origin.was_reachable = true;
        origin.is_continued = true;
        match message.body {
            CopyBody::Begin { .. } if !self.parts.can_keep_copies => {
                return Err(KeepError::NoStore);
            }
            CopyBody::Begin { run } => {
                let mut copy = origin.copy.as_mut();
                if copy.as_mut().is_some_and(|copy| copy.is_writing()) {
                    return Err(KeepError::Behind);
                }
                let position = copy.as_ref().and_then(|copy| copy.position(run));
                if let Some(copy) = copy.filter(|_| position.is_some()) {
                    copy.resume(message.copy);
                }
                origin.pending_run = run;
                let body = CopyBody::Position { last_lsn: position };
                self.answer(peer, message.copy, body);
            }
            CopyBody::Reset => {
                if let Some(copy) = origin.copy.take() {
                    copy.close();
                }
                origin.is_standby = false;
                self.parts.owner.set_standby_for(node, false);
                let numbers = (message.copy, origin.pending_run);
                let config = self.parts.config.clone();
                let copy = KeptCopy::create(&directory, config, numbers, &self.inputs)?;
                origin.copy = Some(copy);
            }
            body @ (CopyBody::State { .. } | CopyBody::Frames { .. }) => {
                let copy = origin.copy.as_mut();
                if let Some(copy) = copy.filter(|copy| copy.number() == message.copy) {
                    copy.store(body)?;
                }
            }
            CopyBody::Standby { is_standby } => {
                let copy = origin.copy.as_ref();
                if copy.is_some_and(|copy| copy.number() == message.copy) {
                    if is_standby {
                        kept_copy::mark_complete(&directory)?;
                    }
                    origin.is_standby = is_standby;
                    self.parts.owner.set_standby_for(node, is_standby);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Confirms what the stores of the copies have logged.
    fn confirm(&mut self) {
        let mut answers = Vec::new();
        for origin in self.origins.values_mut() {
            if let (Some(copy), Some(peer)) = (&mut origin.copy, origin.peer)
                && let Some(number) = copy.poll_confirmed()
            {
                answers.push((peer, copy.number(), number));
                origin.received_bytes = copy.received_bytes;
            }
        }
        for (peer, copy, number) in answers {
            self.answer(peer, copy, CopyBody::Confirmed { number });
        }
    }

    fn step(&mut self) {
        let now = Instant::now();
        for (node, origin) in &mut self.origins {
            if origin.return_until.is_some_and(|until| until <= now) {
                origin.return_until = None;
                self.parts.owner.end_succession(node, false);
            }
        }
        let due: Vec<_> = (self.origins.iter())
            .filter(|(_, origin)| origin.adopt_at.is_some_and(|at| at <= now))
            .map(|(node, _)| node.clone())
            .collect();
        for node in due {
            self.decide(&node);
        }
        let finished: Vec<_> = (self.origins.iter())
            .filter(|(_, origin)| {
                let adoption = origin.adoption.as_ref();
                adoption.is_some_and(|adoption| adoption.thread.is_finished())
            })
            .map(|(node, _)| node.clone())
            .collect();
        for node in finished {
            self.finish_adoption(&node);
        }
        self.write_ended();
    }

    /// Adopts the sessions of a node that cannot be reached, if the record says that the copy is current.
    fn decide(&mut self, node: &NodeName) {
        let run = kept_copy::read_origin(&self.directory(node)).map(|origin| origin.run);
        let known = match self.parts.records.read(node) {
            Ok(known) => known,
            Err(error) => {
                tracing::warn!(node = %node, %error, "cannot find out whether the sessions of a node may be adopted; trying again");
                return self.try_again(node);
            }
        };
        let own = &self.parts.node;
        let Some(known) = known else {
            return match run {
                Some(run) if kept_copy::is_adoption_requested(&self.directory(node)) => {
                    self.adopt_requested(node, run)
                }
                _ => self.decline(node, false),
            };
        };
        if Some(known.record.run) != run {
            // The node has started again and changed its record, and will be a member in a moment. Until then, clients
            // that connect elsewhere would get new sessions.
            let record = &known.record;
            let is_returning = record.standby.is_none() && record.adopted_by.is_none();
            return self.decline(node, is_returning);
        }
        let record = &known.record;
        if record.adopted_by.as_ref() == Some(own) && !record.is_adopted {
            // Continues what was interrupted.
            return self.begin_adoption(node, known);
        }
        if record.standby.as_ref() != Some(own) || record.adopted_by.is_some() {
            return self.decline(node, false);
        }
        let origin = self.origins.get_mut(node);
        if let Some(origin) = origin.filter(|origin| origin.peer.is_some()) {
            // It has returned before, and keeps its sessions. It may have lost this node, too, and be about to remove it from
            // the record.
            let is_continued = origin.is_continued;
            origin.adopt_at = (!is_continued).then(|| Instant::now() + RETURN_CHECK);
            return self.parts.owner.end_succession(node, false);
        }
        let was_reachable = (self.origins.get(node)).is_some_and(|origin| origin.was_reachable);
        if !was_reachable && self.started.elapsed() < self.parts.start_delay {
            // Both have been started again, perhaps.
            return self.try_again(node);
        }
        match self.is_adopted_itself() {
            Ok(false) => self.claim_sessions(node, known.record.run, Some(known.revision)),
            // What it adopted now would end with its own sessions.
            Ok(true) => self.try_again(node),
            Err(error) => {
                tracing::warn!(node = %node, %error, "cannot find out whether this node may adopt the sessions of another one; trying again");
                self.try_again(node);
            }
        }
    }

    /// Whether another node adopts, or has adopted, the sessions of this one, which has not ended them yet.
    fn is_adopted_itself(&self) -> Result<bool, String> {
        let known = self.parts.records.read(&self.parts.node)?;
        Ok(known.is_some_and(|known| known.record.adopted_by.is_some()))
    }

    /// The records of the cluster are lost, and an operator has declared that the node is lost for good. A node that has come
    /// back nevertheless keeps its sessions: it is reachable before the time is over, or has written a record.
    fn adopt_requested(&mut self, node: &NodeName, run: u64) {
        let is_reachable = (self.origins.get(node)).is_some_and(|origin| origin.peer.is_some());
        if is_reachable {
            return self.decline(node, false);
        }
        if self.started.elapsed() < self.parts.start_delay {
            return self.try_again(node);
        }
        self.claim_sessions(node, run, None);
    }

    /// Writes that this node adopts the sessions if the record has this revision (`None`: if there is none), and begins.
    fn claim_sessions(&mut self, node: &NodeName, run: u64, revision: Option<u64>) {
        let adopted = StandbyRecord {
            run,
            standby: None,
            adopted_by: Some(self.parts.node.clone()),
            is_adopted: false,
        };
        match self.parts.records.write(node, &adopted, revision) {
            WriteOutcome::Written(revision) => {
                let record = adopted;
                self.begin_adoption(node, KnownRecord { record, revision });
            }
            // The node has changed its record, or the change was made without an answer.
            WriteOutcome::Conflict => self.try_again(node),
            WriteOutcome::Unknown(error) => {
                tracing::warn!(node = %node, %error, "cannot adopt the sessions of a node; trying again");
                self.try_again(node);
            }
        }
    }

    fn try_again(&mut self, node: &NodeName) {
        if let Some(origin) = self.origins.get_mut(node) {
            origin.adopt_at = Some(Instant::now() + RETRY);
        }
    }

    /// The copy is not current, and of no use unless it is just being made. With `is_returning`, clients wait for the node.
    fn decline(&mut self, node: &NodeName, is_returning: bool) {
        let directory = self.directory(node);
        self.parts.owner.set_standby_for(node, false);
        let Some(origin) = self.origins.get_mut(node) else {
            return self.parts.owner.end_succession(node, false);
        };
        origin.adopt_at = None;
        origin.is_standby = false;
        if origin.peer.is_some() {
            return self.parts.owner.end_succession(node, false);
        }
        match is_returning {
            true => origin.return_until = Some(Instant::now() + RETURN_TIMEOUT),
            false => self.parts.owner.end_succession(node, false),
        }
        if let Some(copy) = origin.copy.take() {
            copy.close();
        }
        if let Err(error) = kept_copy::remove(&directory) {
            tracing::warn!(node = %node, %error, "a copy of sessions that is not current cannot be removed");
        }
    }

    fn begin_adoption(&mut self, node: &NodeName, known: KnownRecord) {
        let directory = self.directory(node);
        let Some(origin) = self.origins.get_mut(node) else {
            return;
        };
        origin.adopt_at = None;
        if let Some(copy) = origin.copy.take() {
            copy.close();
        }
        self.parts.owner.begin_succession(node);
        if kept_copy::is_adopted(&directory) {
            // An earlier run has adopted them, and could not write the record.
            origin.is_standby = false;
            self.parts.owner.set_standby_for(node, false);
            self.parts.owner.confirm_succession(node);
            return self.ended.push((node.clone(), known));
        }
        tracing::warn!(node = %node, "this node adopts the sessions of a node that cannot be reached");
        let progress = Arc::new(AdoptionProgress::default());
        let (owner, config) = (self.parts.owner.clone(), self.parts.config.clone());
        let (of, shown, adopted) = (
            node.clone(),
            progress.clone(),
            self.adopted_sessions.clone(),
        );
        let inputs = self.inputs.clone();
        let adopt = move || {
            let result = kept_copy::begin_adoption(&directory)
                .map_err(|error| error.to_string())
                .and_then(|since_ms| {
                    let (copy, _) = Store::open(&kept_copy::store_directory(&directory), config)
                        .map_err(|error| error.to_string())?;
                    owner.adopt_sessions(&of, &copy, since_ms, &shown)
                });
            let result = result.and_then(|sessions| {
                // Otherwise they would be adopted again after a restart, though some may have ended.
                kept_copy::mark_adopted(&directory).map_err(|error| error.to_string())?;
                Ok(sessions)
            });
            inputs.wake();
            match result {
                Ok(sessions) => {
                    adopted.fetch_add(sessions, Ordering::Relaxed);
                    true
                }
                Err(error) => {
                    tracing::warn!(node = %of, error, "the sessions of a node are not adopted yet");
                    false
                }
            }
        };
        let thread = std::thread::Builder::new().name("adoption".to_owned());
        match thread.spawn(adopt) {
            Ok(thread) => {
                origin.adoption = Some(Adoption {
                    thread,
                    progress,
                    known,
                });
            }
            Err(error) => {
                tracing::error!(node = %node, %error, "cannot start a thread to adopt the sessions of a node; trying again");
                self.try_again(node);
            }
        }
    }

    fn finish_adoption(&mut self, node: &NodeName) {
        let Some(origin) = self.origins.get_mut(node) else {
            return;
        };
        let Some(adoption) = origin.adoption.take() else {
            return;
        };
        if !adoption.thread.join().unwrap_or(false) {
            return self.try_again(node);
        }
        origin.is_standby = false;
        self.adoptions += 1;
        self.parts.owner.set_standby_for(node, false);
        self.parts.owner.end_succession(node, true);
        self.ended.push((node.clone(), adoption.known));
    }

    /// Tells the nodes whose sessions were adopted, and removes the copies.
    fn write_ended(&mut self) {
        for (node, known) in std::mem::take(&mut self.ended) {
            let record = StandbyRecord {
                is_adopted: true,
                ..known.record.clone()
            };
            let written = self
                .parts
                .records
                .write(&node, &record, Some(known.revision));
            if let WriteOutcome::Unknown(error) = written {
                tracing::warn!(node = %node, %error, "cannot record that the sessions of a node are adopted; trying again");
                self.ended.push((node, known));
                continue;
            }
            // After a conflict: an earlier attempt has changed it, and the node may have begun another copy since.
            let directory = self.directory(&node);
            let origin = self.origins.get(&node);
            let is_unused = origin.is_none_or(|origin| origin.copy.is_none());
            if is_unused
                && kept_copy::is_adopted(&directory)
                && let Err(error) = kept_copy::remove(&directory)
            {
                tracing::warn!(node = %node, %error, "the copy of adopted sessions cannot be removed");
            }
            tracing::info!(node = %node, "the adoption of the sessions of a node is recorded");
        }
    }

    fn publish_status(&self) {
        let kept = self.origins.iter().filter(|(_, origin)| {
            origin.copy.is_some() || origin.is_standby || origin.adoption.is_some()
        });
        let kept = kept.map(|(node, origin)| KeptCopyStatus {
            node: node.clone(),
            is_standby: origin.is_standby,
            adoption: (origin.adoption.as_ref()).map(|adoption| adoption.progress.sessions()),
            received_bytes: origin.received_bytes,
        });
        let kept = kept.collect();
        let status = self.parts.status.lock();
        let mut status = status.unwrap_or_else(PoisonError::into_inner);
        status.kept = kept;
        status.adoptions = self.adoptions;
        status.adopted_sessions = self.adopted_sessions.load(Ordering::Relaxed);
    }
}
