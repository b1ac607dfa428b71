//! The standby of a node: its choice, the copy of the log, and the end of the sessions that it has adopted.

use std::sync::Arc;

use store::{LogTail, Store, StoreBatch};
use tempfile::TempDir;

use super::super::FaultSim;
use super::{
    ADOPTER_TIMEOUT_MS, CHUNK_BYTES, COPIED_STATE, COPY_RETRY_MS, CopyFiles, CopySender, CopyStage,
    FAILED_STANDBY_PAUSE_MS, KeptCopy, MAX_SILENCE_MS, NoObserver, OutgoingCopy, Phase, RETRY_MS,
    StandbyRecord, WriteOutcome,
};
use crate::core::succession::SessionHold;
use crate::core::tests::sim::open_store;

impl FaultSim {
    pub(super) fn end_copy(&mut self, node: usize) {
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
    pub(in crate::core::tests::cluster_faults) fn copy_log(&mut self, node: usize) -> bool {
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
    pub(in crate::core::tests::cluster_faults) fn confirm_copy(&mut self, node: usize) -> bool {
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
    pub(in crate::core::tests::cluster_faults) fn step_sender(&mut self, node: usize) {
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
            self.cluster.nodes[node].abandon_all();
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
}
