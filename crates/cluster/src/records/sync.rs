//! Decides what is sent to which node, and when. Without I/O of its own: the caller passes messages and the time.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use super::changes::{ChangedIds, RecordChanges};
use super::message::RecordMessage;
use super::shared::{Record, SharedRecords, SharedRecordsError};
use super::version::RecordVersion;
use crate::membership::PeerNodeId;

/// Size from which on a message contains no further record. Changes of nodes and messages of clients share the channel to
/// a node, and must not wait long for each other.
const MAX_CHUNK_BYTES: usize = 256 << 10;
/// Records of one message, and so of one batch of the store.
const MAX_CHUNK_RECORDS: usize = 2000;
/// Time between two summaries.
const STATE_INTERVAL_MS: u64 = 5000;
/// Time for an answer.
const ANSWER_TIMEOUT_MS: u64 = 5000;
/// Time until changes are sent again that could not be read or were not confirmed.
const RETRY_MS: u64 = 1000;
/// While the other node sends changes, summaries differ and show nothing.
const QUIET_MS: u64 = 1000;
/// All the same, records are compared at least so often while they differ.
const MAX_COMPARE_INTERVAL_MS: u64 = 60_000;

/// The exchange of records with all nodes that can be reached.
///
/// The caller reports [`peer_up`](Self::peer_up), [`peer_down`](Self::peer_down) and received messages
/// ([`handle`](Self::handle)) in order. After each of them, after changes, and at the time that it has returned, it calls
/// [`poll`](Self::poll), and then sends what [`poll_message`](Self::poll_message) returns. Messages may be lost.
///
/// At most one message with changes and one question are on their way to each node, so that a slow node bounds what is
/// sent to it, and nothing else.
pub struct RecordSync {
    kind: u8,
    records: Arc<dyn SharedRecords>,
    changes: RecordChanges,
    peers: BTreeMap<PeerNodeId, PeerExchange>,
    outgoing: VecDeque<(PeerNodeId, Bytes)>,
    last_number: u64,
}

/// The exchange with one node.
struct PeerExchange {
    /// Position in the changes of this node up to which the peer has confirmed them, or has compared all records since.
    position: u64,
    /// Whether a message of the peer has arrived. Older versions send none.
    is_active: bool,
    /// Whether the last changes were not confirmed in time; nobody waits for the peer then.
    is_behind: bool,
    push: Option<Push>,
    /// Earliest time of the next changes.
    push_ms: u64,
    pull: Option<Pull>,
    compared_ms: Option<u64>,
    /// When changes of the peer arrived last.
    changed_ms: Option<u64>,
    state_due_ms: u64,
}

/// Changes that the peer has not confirmed yet.
struct Push {
    number: u64,
    end: u64,
    deadline_ms: u64,
}

/// The comparison with a peer, whose answer to a question is waited for.
struct Pull {
    number: u64,
    deadline_ms: u64,
    /// Buckets that differ and are not compared yet.
    buckets: Vec<u16>,
    /// Records of the compared buckets that the peer has in a later version.
    ids: Vec<String>,
}

impl PeerExchange {
    fn new(position: u64, now_ms: u64) -> Self {
        Self {
            position,
            is_active: false,
            is_behind: false,
            push: None,
            push_ms: 0,
            pull: None,
            compared_ms: None,
            changed_ms: None,
            state_due_ms: now_ms,
        }
    }

    /// Whether different summaries mean that something is missing, as far as this can be known.
    fn is_comparison_due(&self, now_ms: u64) -> bool {
        let Some(compared_ms) = self.compared_ms else {
            return true;
        };
        let since = |at_ms: u64| now_ms.saturating_sub(at_ms);
        let is_quiet =
            self.push.is_none() && self.changed_ms.is_none_or(|at_ms| since(at_ms) >= QUIET_MS);
        is_quiet || since(compared_ms) >= MAX_COMPARE_INTERVAL_MS
    }
}

impl RecordSync {
    /// `kind` is the first byte of the messages.
    pub fn new(kind: u8, records: Arc<dyn SharedRecords>, changes: RecordChanges) -> Self {
        Self {
            kind,
            records,
            changes,
            peers: BTreeMap::new(),
            outgoing: VecDeque::new(),
            last_number: 0,
        }
    }

    /// A node can be reached. Its records are compared with those of this node.
    pub fn peer_up(&mut self, peer: PeerNodeId, now_ms: u64) {
        let exchange = PeerExchange::new(self.changes.end(), now_ms);
        self.peers.insert(peer, exchange);
    }

    pub fn peer_down(&mut self, peer: PeerNodeId) {
        self.peers.remove(&peer);
    }

    /// Nothing is exchanged any more; nobody waits for other nodes.
    pub fn close(self) {
        self.changes.set_confirmed(None);
    }

    /// A message of a node with the first byte of this exchange.
    pub fn handle(&mut self, peer: PeerNodeId, message: &[u8], now_ms: u64) {
        let Some(exchange) = self.peers.get_mut(&peer) else {
            return;
        };
        exchange.is_active = true;
        let Some(message) = RecordMessage::decode(message) else {
            tracing::warn!("a message with records of another node cannot be read; it is ignored");
            return;
        };
        if let Err(error) = self.process(peer, message, now_ms) {
            tracing::warn!(%error, "records of another node could not be compared or stored; repeated later");
            if let Some(exchange) = self.peers.get_mut(&peer) {
                exchange.pull = None;
            }
        }
    }

    /// The next message to send, and to whom.
    pub fn poll_message(&mut self) -> Option<(PeerNodeId, Bytes)> {
        self.outgoing.pop_front()
    }

    /// Continues what is due, and returns the time of the next call.
    pub fn poll(&mut self, now_ms: u64) -> u64 {
        let peers: Vec<PeerNodeId> = self.peers.keys().copied().collect();
        let mut next_ms = now_ms + STATE_INTERVAL_MS;
        for peer in peers {
            if let Err(error) = self.push_changes(peer, now_ms) {
                tracing::warn!(%error, "changed records could not be read for another node; repeated later");
                if let Some(exchange) = self.peers.get_mut(&peer) {
                    exchange.push_ms = now_ms + RETRY_MS;
                }
            }
            if let Some(due_ms) = self.keep_times(peer, now_ms) {
                next_ms = next_ms.min(due_ms);
            }
        }
        let waited_for = self.peers.values();
        let waited_for = waited_for.filter(|exchange| exchange.is_active && !exchange.is_behind);
        let confirmed = waited_for.map(|exchange| exchange.position).min();
        self.changes.set_confirmed(confirmed);
        next_ms
    }

    /// Sends a summary when it is due. Returns the next time at which something is due.
    fn keep_times(&mut self, peer: PeerNodeId, now_ms: u64) -> Option<u64> {
        let exchange = self.peers.get_mut(&peer)?;
        let is_over = |pull: &mut Pull| pull.deadline_ms <= now_ms;
        exchange.pull.take_if(is_over);
        if exchange.state_due_ms <= now_ms {
            exchange.state_due_ms = now_ms + STATE_INTERVAL_MS;
            let state = RecordMessage::State {
                root: self.records.root(),
                context: self.records.context(),
            };
            self.outgoing.push_back((peer, state.encode(self.kind)));
        }
        let times = [
            Some(exchange.state_due_ms),
            exchange.push.as_ref().map(|push| push.deadline_ms),
            exchange.pull.as_ref().map(|pull| pull.deadline_ms),
            (exchange.push_ms > now_ms).then_some(exchange.push_ms),
        ];
        times.into_iter().flatten().min()
    }

    /// Sends the next changes, if the previous ones are confirmed.
    fn push_changes(&mut self, peer: PeerNodeId, now_ms: u64) -> Result<(), SharedRecordsError> {
        let Some(exchange) = self.peers.get_mut(&peer) else {
            return Ok(());
        };
        if exchange
            .push
            .take_if(|push| push.deadline_ms <= now_ms)
            .is_some()
        {
            exchange.is_behind = true;
            exchange.push_ms = now_ms + RETRY_MS;
        }
        if !exchange.is_active || exchange.push.is_some() || exchange.push_ms > now_ms {
            return Ok(());
        }
        while exchange.position < self.changes.end() {
            let ids = match self.changes.since(exchange.position, MAX_CHUNK_RECORDS) {
                ChangedIds::Ids(ids) => ids,
                ChangedIds::Forgotten => {
                    // The summary makes the peer compare all records.
                    exchange.position = self.changes.end();
                    exchange.state_due_ms = now_ms;
                    return Ok(());
                }
            };
            let (count, records) = read_chunk(&*self.records, &ids)?;
            let end = exchange.position + count as u64;
            if records.is_empty() {
                exchange.position = end;
                continue;
            }
            self.last_number += 1;
            let changes = RecordMessage::Changes {
                number: self.last_number,
                context: self.records.context(),
                records,
            };
            self.outgoing.push_back((peer, changes.encode(self.kind)));
            exchange.push = Some(Push {
                number: self.last_number,
                end,
                deadline_ms: now_ms + ANSWER_TIMEOUT_MS,
            });
            return Ok(());
        }
        Ok(())
    }

    fn process(
        &mut self,
        peer: PeerNodeId,
        message: RecordMessage,
        now_ms: u64,
    ) -> Result<(), SharedRecordsError> {
        match message {
            RecordMessage::State { root, context } => {
                self.records.merge_context(&context)?;
                self.compare(peer, root, now_ms);
            }
            RecordMessage::Changes {
                number,
                context,
                records,
            } => {
                self.records.merge_context(&context)?;
                self.records.apply(records)?;
                if let Some(exchange) = self.peers.get_mut(&peer) {
                    exchange.changed_ms = Some(now_ms);
                }
                self.send(peer, &RecordMessage::Confirmation { number });
            }
            RecordMessage::Confirmation { number } => {
                if let Some(exchange) = self.peers.get_mut(&peer)
                    && let Some(push) = exchange.push.take_if(|push| push.number == number)
                {
                    exchange.position = push.end;
                    exchange.is_behind = false;
                }
            }
            RecordMessage::GetDigests { number } => {
                let digests = self.records.digests().as_slice().to_vec();
                self.send(peer, &RecordMessage::Digests { number, digests });
            }
            RecordMessage::Digests { number, digests } => {
                if let Some(pull) = self.pull_of(peer, number) {
                    pull.buckets = Vec::new();
                    let buckets = self.records.digests().differences(&digests);
                    self.continue_pull(peer, buckets, Vec::new(), now_ms);
                }
            }
            RecordMessage::GetVersions { number, buckets } => {
                self.answer_versions(peer, number, &buckets)?;
            }
            RecordMessage::Versions {
                number,
                buckets,
                versions,
            } => {
                let Some(pull) = self.pull_of(peer, number) else {
                    return Ok(());
                };
                let mut left = std::mem::take(&mut pull.buckets);
                left.drain(..left.len().min(buckets as usize));
                let ids = self.select_later(versions)?;
                self.continue_pull(peer, left, ids, now_ms);
            }
            RecordMessage::GetRecords { number, ids } => {
                let (count, records) = read_chunk(&*self.records, &ids)?;
                let answer = RecordMessage::Records {
                    number,
                    ids: count as u32,
                    context: self.records.context(),
                    records,
                };
                self.send(peer, &answer);
            }
            RecordMessage::Records {
                number,
                ids,
                context,
                records,
            } => {
                let Some(pull) = self.pull_of(peer, number) else {
                    return Ok(());
                };
                let mut left = std::mem::take(&mut pull.ids);
                let buckets = std::mem::take(&mut pull.buckets);
                left.drain(..left.len().min(ids as usize));
                self.records.merge_context(&context)?;
                self.records.apply(records)?;
                self.continue_pull(peer, buckets, left, now_ms);
            }
        }
        Ok(())
    }

    /// Begins to compare the records with a peer whose summary differs.
    fn compare(&mut self, peer: PeerNodeId, root: u64, now_ms: u64) {
        let is_same = root == self.records.root();
        let Some(exchange) = self.peers.get_mut(&peer) else {
            return;
        };
        if is_same || exchange.pull.is_some() || !exchange.is_comparison_due(now_ms) {
            return;
        }
        self.last_number += 1;
        let number = self.last_number;
        exchange.compared_ms = Some(now_ms);
        exchange.pull = Some(Pull {
            number,
            deadline_ms: now_ms + ANSWER_TIMEOUT_MS,
            buckets: Vec::new(),
            ids: Vec::new(),
        });
        self.send(peer, &RecordMessage::GetDigests { number });
    }

    /// The comparison that waits for this answer.
    fn pull_of(&mut self, peer: PeerNodeId, number: u64) -> Option<&mut Pull> {
        let pull = self.peers.get_mut(&peer)?.pull.as_mut()?;
        (pull.number == number).then_some(pull)
    }

    /// Asks the next question of a comparison; without one, it has ended.
    fn continue_pull(
        &mut self,
        peer: PeerNodeId,
        buckets: Vec<u16>,
        ids: Vec<String>,
        now_ms: u64,
    ) {
        self.last_number += 1;
        let number = self.last_number;
        let question = if !ids.is_empty() {
            let ids = ids.iter().take(MAX_CHUNK_RECORDS).cloned().collect();
            Some(RecordMessage::GetRecords { number, ids })
        } else if !buckets.is_empty() {
            let buckets = buckets.clone();
            Some(RecordMessage::GetVersions { number, buckets })
        } else {
            None
        };
        let Some(exchange) = self.peers.get_mut(&peer) else {
            return;
        };
        exchange.pull = question.is_some().then_some(Pull {
            number,
            deadline_ms: now_ms + ANSWER_TIMEOUT_MS,
            buckets,
            ids,
        });
        if let Some(question) = question {
            self.send(peer, &question);
        }
    }

    fn answer_versions(
        &mut self,
        peer: PeerNodeId,
        number: u64,
        buckets: &[u16],
    ) -> Result<(), SharedRecordsError> {
        let (mut versions, mut bytes, mut count) = (Vec::new(), 0, 0);
        for bucket in buckets {
            if bytes >= MAX_CHUNK_BYTES {
                break;
            }
            self.records.versions(*bucket, &mut |id, version| {
                bytes += 4 + id.len() + RecordVersion::BYTES;
                versions.push((id.to_owned(), version));
            })?;
            count += 1;
        }
        let answer = RecordMessage::Versions {
            number,
            buckets: count,
            versions,
        };
        self.send(peer, &answer);
        Ok(())
    }

    /// The records of which this node has an earlier version or none.
    fn select_later(
        &self,
        versions: Vec<(String, RecordVersion)>,
    ) -> Result<Vec<String>, SharedRecordsError> {
        let mut later = Vec::new();
        for (id, version) in versions {
            if self
                .records
                .version(&id)?
                .is_none_or(|known| known < version)
            {
                later.push(id);
            }
        }
        Ok(later)
    }

    fn send(&mut self, peer: PeerNodeId, message: &RecordMessage) {
        self.outgoing.push_back((peer, message.encode(self.kind)));
    }
}

/// Reads records until they fill a message. Returns how many of the ids were examined, at least one.
fn read_chunk<S: AsRef<str>>(
    records: &dyn SharedRecords,
    ids: &[S],
) -> Result<(usize, Vec<Record>), SharedRecordsError> {
    let (mut chunk, mut bytes, mut count) = (Vec::new(), 0, 0);
    let mut seen = HashSet::new();
    for id in ids {
        if bytes >= MAX_CHUNK_BYTES || count == MAX_CHUNK_RECORDS {
            break;
        }
        count += 1;
        if seen.insert(id.as_ref())
            && let Some(record) = records.read(id.as_ref())?
        {
            bytes += record.id.len() + record.content.as_ref().map_or(0, Vec::len) + 32;
            chunk.push(record);
        }
    }
    Ok((count, chunk))
}
