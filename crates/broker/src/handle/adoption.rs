//! Adopts the sessions of another node from the copy of its store, and abandons those that another node has adopted.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use store::{QueueEntry, Store, StoreError};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::BrokerHandle;
use crate::core::adoption::{AbandonScan, AdoptedSession, AdoptionBegin};
use crate::core::message::Message;
use crate::core::node_link::{RestoredEntry, first_seqs};
use crate::core::records;
use crate::core::recovery::{RecoveredCopy, read_copy};
use crate::core::shard::Shard;
use crate::core::shard_link::ShardLink;
use crate::net::inbox::InboxItem;

/// Sessions that a shard adopts in one turn, and bytes of their messages.
const SESSIONS_PER_TURN: usize = 128;
const BYTES_PER_TURN: usize = 1 << 20;
/// Messages of the node for others that a shard adopts in one turn.
const MESSAGES_PER_TURN: usize = 1024;
/// Portions that shards have been given and have not logged yet.
const MAX_OPEN_PORTIONS: usize = 8;
/// Time for a portion to be in the log, and in that of the standby of this node.
const PORTION_TIMEOUT: Duration = Duration::from_secs(120);

/// What was adopted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AdoptionReport {
    pub sessions: u64,
    /// Sessions that this node had already, or has no room for.
    pub skipped: u64,
    /// Queued messages.
    pub messages: u64,
    /// Messages published to `$delayed/...`.
    pub delayed: u64,
}

/// Why the adoption has not ended. It can be repeated: sessions that were adopted are skipped then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdoptionError {
    #[error("the copy of the sessions cannot be read: {0}")]
    Copy(#[from] StoreError),
    #[error("a shard has not stored the sessions in time")]
    ShardUnavailable,
    /// Another node has adopted the sessions of this one meanwhile. It may not have those that this one was adopting.
    #[error("this node ends all its sessions, because another node has adopted them")]
    Abandoned,
}

/// A session and its messages.
struct CopiedSession {
    session: AdoptedSession,
    entries: Vec<QueueEntry>,
}

/// Sessions of the same shard.
#[derive(Default)]
struct Portion {
    sessions: Vec<CopiedSession>,
    bytes: usize,
}

/// The node whose sessions are adopted, and when that began.
struct AdoptionOrigin {
    node: Box<str>,
    since_ms: u64,
}

/// Results of a portion, and the sessions that another shard has to adopt.
#[derive(Default)]
struct PortionResult {
    report: AdoptionReport,
    elsewhere: Vec<(u16, CopiedSession)>,
}

fn adopt_portion(shard: &mut Shard, from: &AdoptionOrigin, portion: Portion) -> PortionResult {
    let mut result = PortionResult::default();
    for copied in portion.sessions {
        let number = match shard.begin_adoption(&from.node, &copied.session) {
            AdoptionBegin::Begun { number } => number,
            AdoptionBegin::OtherShard(other) => {
                result.elsewhere.push((other, copied));
                continue;
            }
            AdoptionBegin::Skipped => {
                result.report.skipped += 1;
                continue;
            }
        };
        shard.write_adopted_messages(number, &copied.entries);
        let messages = copied.session.queue.messages;
        match shard.finish_adoption(&from.node, number, copied.session, from.since_ms) {
            true => {
                result.report.sessions += 1;
                result.report.messages += messages;
            }
            false => result.report.skipped += 1,
        }
    }
    result
}

/// Reads the messages in the links of the shards of the node to other nodes, up to the first one that cannot be read.
fn read_for_nodes(
    copy: &Store,
    links: &[(ShardLink, u64)],
) -> (Vec<RestoredEntry>, Result<(), StoreError>) {
    let mut entries = Vec::new();
    let links = links.iter().filter(|(link, _)| link.leads_to_nodes());
    let result = links
        .map(|(link, _)| link.store_number())
        .try_for_each(|queue| {
            copy.read_queue(
                queue,
                &mut |entry| match RestoredEntry::read(queue, &entry) {
                    Some(entry) => entries.push(entry),
                    None => tracing::error!(
                        "message of another node for others could not be decoded; message lost"
                    ),
                },
            )
        });
    (entries, result)
}

impl BrokerHandle {
    /// Adopts the sessions, queued and delayed messages of the node `from`, whose store `copy` is a copy of. `copy` is opened
    /// and not started; reading it blocks the thread. `since_ms`: when the first attempt began, in milliseconds since 1970. The
    /// sessions count as begun then, so that one of this adoption that another node has adopted meanwhile stays there. `progress`
    /// gets the number of sessions that were processed, and of all. Returns when everything is in the log, and when all nodes that
    /// can be reached know the subscriptions.
    ///
    /// # Errors
    /// If the copy cannot be read, or a shard does not store the sessions, or this node has abandoned its sessions meanwhile.
    pub async fn adopt_sessions(
        &self,
        from: &str,
        copy: &Store,
        since_ms: u64,
        progress: impl FnMut(u64, u64),
    ) -> Result<AdoptionReport, AdoptionError> {
        let abandonments = || self.shared.abandonments.load(Ordering::Acquire);
        let before = abandonments();
        let report = self.adopt_all(from, copy, since_ms, progress).await?;
        match before.is_multiple_of(2) && abandonments() == before {
            true => Ok(report),
            false => Err(AdoptionError::Abandoned),
        }
    }

    async fn adopt_all(
        &self,
        from: &str,
        copy: &Store,
        since_ms: u64,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<AdoptionReport, AdoptionError> {
        let RecoveredCopy {
            shard: recovered,
            mut received,
        } = read_copy(copy)?;
        // If not all can be read, the adoption is repeated, and the sessions need not wait for that.
        let (for_nodes, result) = read_for_nodes(copy, &recovered.links);
        received.add_for_nodes(&for_nodes);
        let all = recovered.sessions.len() as u64;
        let mut report = AdoptionReport::default();
        let from = Arc::new(AdoptionOrigin {
            node: from.into(),
            since_ms,
        });
        let shards = self.shard_count() as u16;
        let received = Arc::new(received);
        for shard in 0..shards {
            let (from, received) = (from.clone(), received.clone());
            let expect = move |shard: &mut Shard| {
                shard.expect_adopted_messages(&from.node, received);
                ((), 0)
            };
            self.adopt_on(shard, expect).await?;
        }
        let mut portions: Vec<Portion> = (0..shards).map(|_| Portion::default()).collect();
        let mut open = VecDeque::new();
        let mut next = 0;
        for (done, session) in recovered.sessions.into_iter().enumerate() {
            let number = records::SessionRecord::read(&session.record).map(|record| record.number);
            let session = AdoptedSession {
                client_id: session.client_id,
                record: session.record,
                subscriptions: session.subscriptions,
                queue: session.queue.unwrap_or_default(),
            };
            let known = self.shared.node.directory.shard_of(&session.client_id);
            next = (next + 1) % shards;
            let shard = known.unwrap_or(next);
            let portion = &mut portions[usize::from(shard)];
            let mut entries = Vec::new();
            if session.queue.messages > 0
                && let Some(number) = number.filter(|&number| number != 0)
            {
                if let Err(error) = copy.read_queue(number, &mut |entry| entries.push(entry)) {
                    // The other sessions do not wait for it.
                    tracing::error!(
                        client_id = &*session.client_id,
                        node = &*from.node,
                        %error,
                        "queued messages of another node cannot be read; they are lost"
                    );
                }
                entries.shrink_to_fit();
            }
            let bytes = entries.iter().map(|entry| entry.body.len() + 32);
            portion.bytes += bytes.sum::<usize>();
            portion.sessions.push(CopiedSession { session, entries });
            if portion.sessions.len() >= SESSIONS_PER_TURN || portion.bytes >= BYTES_PER_TURN {
                let full = std::mem::take(portion);
                open.push_back(self.submit_portion(shard, &from, full));
                if open.len() > MAX_OPEN_PORTIONS {
                    self.finish_portion(open.pop_front(), &from, &mut report)
                        .await?;
                    progress(done as u64, all);
                }
            }
        }
        for (shard, portion) in portions.into_iter().enumerate() {
            if !portion.sessions.is_empty() {
                open.push_back(self.submit_portion(shard as u16, &from, portion));
            }
        }
        while !open.is_empty() {
            self.finish_portion(open.pop_front(), &from, &mut report)
                .await?;
        }
        for (link, _) in recovered.links {
            if !link.leads_to_nodes() {
                self.deliver_link(&from, copy, link).await?;
            }
        }
        result?;
        self.adopt_for_nodes(&from, for_nodes).await?;
        // A delayed message that is due is published at once, and has to reach the adopted sessions of all shards.
        for shard in 0..shards {
            let last = |shard: &mut Shard| ((), shard.shard_queues.last_sequence());
            self.adopt_on(shard, last).await?;
        }
        let mut delayed = recovered.delayed.into_iter();
        for shard in (0..shards).cycle() {
            let portion: Vec<_> = delayed.by_ref().take(SESSIONS_PER_TURN).collect();
            if portion.is_empty() {
                break;
            }
            report.delayed += portion.len() as u64;
            let adopt = move |shard: &mut Shard| {
                for delayed in portion {
                    shard.adopt_delayed(delayed);
                }
                ((), 0)
            };
            self.adopt_on(shard, adopt).await?;
        }
        progress(all, all);
        Ok(report)
    }

    fn submit_portion(
        &self,
        shard: u16,
        from: &Arc<AdoptionOrigin>,
        portion: Portion,
    ) -> JoinHandle<Result<PortionResult, AdoptionError>> {
        let (handle, from) = (self.clone(), from.clone());
        tokio::spawn(async move {
            let adopt = move |shard: &mut Shard| (adopt_portion(shard, &from, portion), 0);
            handle.adopt_on(shard, adopt).await
        })
    }

    async fn finish_portion(
        &self,
        portion: Option<JoinHandle<Result<PortionResult, AdoptionError>>>,
        from: &Arc<AdoptionOrigin>,
        report: &mut AdoptionReport,
    ) -> Result<(), AdoptionError> {
        let Some(portion) = portion else {
            return Ok(());
        };
        let mut results = vec![
            portion
                .await
                .map_err(|_| AdoptionError::ShardUnavailable)??,
        ];
        while let Some(result) = results.pop() {
            report.sessions += result.report.sessions;
            report.skipped += result.report.skipped;
            report.messages += result.report.messages;
            for (shard, copied) in result.elsewhere {
                let from = from.clone();
                let portion = Portion {
                    sessions: vec![copied],
                    bytes: 0,
                };
                let adopt = move |shard: &mut Shard| (adopt_portion(shard, &from, portion), 0);
                results.push(self.adopt_on(shard, adopt).await?);
            }
        }
        Ok(())
    }

    /// Delivers the messages that were between two shards of the node.
    async fn deliver_link(
        &self,
        from: &Arc<AdoptionOrigin>,
        copy: &Store,
        link: ShardLink,
    ) -> Result<(), AdoptionError> {
        let mut entries = Vec::new();
        copy.read_queue(link.store_number(), &mut |entry| entries.push(entry))?;
        let entries: Arc<[QueueEntry]> = entries.into();
        for shard in 0..self.shard_count() as u16 {
            let (from, entries) = (from.clone(), entries.clone());
            let deliver = move |shard: &mut Shard| {
                for entry in &*entries {
                    let message: Option<Message> = records::read_message(&entry.body);
                    let member = records::read_member_target(&entry.attributes);
                    let (Some(message), Some(member)) = (message, member) else {
                        tracing::error!(
                            "message in a shard link of another node could not be decoded; message lost"
                        );
                        continue;
                    };
                    let of_shard = (link.shards, link.to);
                    shard.deliver_adopted_link(&from.node, of_shard, &message.view(), member);
                }
                ((), 0)
            };
            self.adopt_on(shard, deliver).await?;
        }
        Ok(())
    }

    /// Takes over the messages that were on their way from the node to others.
    async fn adopt_for_nodes(
        &self,
        from: &Arc<AdoptionOrigin>,
        entries: Vec<RestoredEntry>,
    ) -> Result<(), AdoptionError> {
        let first_seqs = Arc::new(first_seqs(&entries));
        let mut entries = entries.into_iter();
        loop {
            let portion: Vec<_> = entries.by_ref().take(MESSAGES_PER_TURN).collect();
            if portion.is_empty() {
                return Ok(());
            }
            let (from, first_seqs) = (from.clone(), first_seqs.clone());
            let adopt = move |shard: &mut Shard| {
                shard.adopt_node_entries(&from.node, &portion, &first_seqs);
                ((), 0)
            };
            self.adopt_on(0, adopt).await?;
        }
    }

    async fn adopt_on<T: Send + 'static>(
        &self,
        shard: u16,
        operation: impl FnOnce(&mut Shard) -> (T, u64) + Send + 'static,
    ) -> Result<T, AdoptionError> {
        let (answer, answered) = oneshot::channel();
        let ask = move |shard: &mut Shard| {
            let (value, sequence) = operation(shard);
            // The caller may have stopped waiting.
            let respond = move || drop(answer.send(value));
            // Turns before may wait for the node whose sessions are adopted.
            shard.respond_when_logged(sequence, Box::new(respond));
        };
        self.shared.inboxes[usize::from(shard)].push(InboxItem::Query(Box::new(ask)));
        let answer = tokio::time::timeout(PORTION_TIMEOUT, answered).await;
        answer
            .ok()
            .and_then(Result::ok)
            .ok_or(AdoptionError::ShardUnavailable)
    }

    /// Messages for the sessions that were adopted from a node do not arrive any more.
    pub async fn forget_adoption(&self, from: &str) {
        for shard in 0..self.shard_count() as u16 {
            let from = from.to_owned();
            let forget = move |shard: &mut Shard| shard.forget_adoption(&from);
            self.query_shard(shard, forget).await;
        }
    }

    /// Ends all durable sessions, because another node has adopted them, and closes connections with answers that wait for
    /// the log, without these answers. An adoption that has not ended has to be repeated. Returns the number of sessions; `None`: a
    /// shard has not answered in time.
    pub async fn abandon_sessions(&self) -> Option<u64> {
        self.shared.abandonments.fetch_add(1, Ordering::AcqRel);
        let count = self.abandon_on_all_shards().await;
        self.shared.abandonments.fetch_add(1, Ordering::AcqRel);
        count
    }

    async fn abandon_on_all_shards(&self) -> Option<u64> {
        let mut count = 0;
        for shard in 0..self.shard_count() as u16 {
            count += self.scan_shard(shard, AbandonScan::default()).await?;
        }
        Some(count)
    }
}
