//! The copies of other nodes at a standby, and the adoption of their sessions.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::super::{FaultSim, name};
use super::{
    Adoption, KnownRecord, LEFT_DELAY_MS, Origin, RETRY_MS, RETURN_CHECK_MS, RETURN_TIMEOUT_MS,
    START_DELAY_MS, StandbyRecord, WriteOutcome,
};
use crate::core::adoption::{AdoptedSession, AdoptionBegin};
use crate::core::node_link::{RestoredEntry, first_seqs};
use crate::core::records::{self, SessionRecord};
use crate::core::recovery::{RecoveredCopy, read_copy};
use crate::core::tests::sim::open_store;

impl FaultSim {
    pub(super) fn add_origin(&mut self, node: usize, peer: usize) {
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

    pub(super) fn remove_origin(&mut self, node: usize, peer: usize, has_left: bool) {
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

    /// Lets time pass for the copies of other nodes at this one.
    pub(in crate::core::tests::cluster_faults) fn step_receiver(&mut self, node: usize) {
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

    pub(super) fn origin(&mut self, node: usize, of: usize) -> &mut Origin {
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
        let is_adopted_itself = match self.read_record(node, node) {
            Ok(own) => own.is_some_and(|own| own.record.adopted_by.is_some()),
            Err(()) => true,
        };
        if is_adopted_itself {
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
            mut received,
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
        received.add_for_nodes(&for_nodes);
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
    pub(in crate::core::tests::cluster_faults) fn adopt(&mut self, node: usize, of: usize) {
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
    pub(in crate::core::tests::cluster_faults) fn is_adopting(
        &self,
        node: usize,
        of: usize,
    ) -> bool {
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
}
