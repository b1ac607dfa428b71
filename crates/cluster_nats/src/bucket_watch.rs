//! Watching a bucket: all keys, then changes, through interruptions of any kind.
//!
//! A watch is a series of sessions. Each session creates a consumer that first delivers the latest message of each key and
//! then new messages, and ends as soon as anything may have been missed:
//!
//! - the connection was interrupted;
//! - the consumer delivers neither messages nor heartbeats, or its numbers have a gap;
//! - the leader of the stream has had later messages for two checks.
//!
//! The next session compares the keys of the bucket with those reported before. A consumer may run on a replica that is
//! behind, so that a missing key is only reported as deleted when the leader confirms it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::jetstream;
use async_nats::jetstream::consumer::pull::Config as ConsumerConfig;
use async_nats::jetstream::consumer::{AckPolicy, Consumer, DeliverPolicy, PullConsumer};
use async_nats::jetstream::stream::Info;
use bytes::Bytes;
use cluster::{ClusterError, ObjectEntry};
use futures_util::StreamExt as _;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval_at, timeout};
use tracing::{debug, warn};

use crate::bucket::{Bucket, Deletion, KeyState, deletion};
use crate::connection::unreachable;
use crate::status::NatsState;

/// Bounds what the client buffers: an object has at most 1 MiB.
const MESSAGES_PER_REQUEST: usize = 64;
const REQUEST_EXPIRY: Duration = Duration::from_secs(30);
/// After two intervals without messages a session ends.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(2);
/// How long the server keeps the consumer of a session that has ended.
const CONSUMER_EXPIRY: Duration = Duration::from_secs(30);
/// How often the position of the stream is compared.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// How often the end of the listing is looked for, if it was not recognised.
const LISTING_INTERVAL: Duration = Duration::from_secs(1);
/// Changes that wait for the reader.
const WATCH_CAPACITY: usize = 256;
const MIN_RETRY_DELAY: Duration = Duration::from_millis(100);
const MAX_RETRY_DELAY: Duration = Duration::from_millis(500);

/// A change of a bucket.
#[derive(Debug)]
pub(crate) enum BucketChange {
    Put { key: String, entry: ObjectEntry },
    Deleted { key: String, deletion: Deletion },
    Complete,
}

/// Which changes a watch reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WatchKind {
    /// After an interruption, all keys are reported again.
    Objects,
    /// After an interruption, keys are reported that have been written since they were reported. Keys that are not written
    /// for the time of expiry are reported as deleted.
    Members { expiry: Duration },
}

/// What was reported of a key.
#[derive(Debug)]
struct ReportedKey {
    revision: u64,
    at: Instant,
}

#[derive(Debug)]
pub(crate) struct BucketWatch {
    bucket: Arc<Bucket>,
    kind: WatchKind,
    changes: mpsc::Sender<BucketChange>,
    reported: HashMap<String, ReportedKey>,
    /// When the stream was created that the revisions belong to, in nanoseconds since 1970.
    stream_created: Option<i128>,
}

/// Why a session has ended.
enum SessionEnd {
    /// Nobody reads the changes any more.
    Closed,
    Interrupted(ClusterError),
}

impl<E: Into<ClusterError>> From<E> for SessionEnd {
    fn from(error: E) -> Self {
        Self::Interrupted(error.into())
    }
}

impl BucketWatch {
    /// Reports the changes for which `convert` returns something, until the receiver is dropped. It must be called within
    /// a tokio runtime.
    pub(crate) fn start<T: Send + 'static>(
        bucket: Arc<Bucket>,
        kind: WatchKind,
        convert: fn(BucketChange) -> Option<T>,
    ) -> mpsc::Receiver<T> {
        let (changes, mut bucket_changes) = mpsc::channel(1);
        let watch = Self {
            bucket,
            kind,
            changes,
            reported: HashMap::new(),
            stream_created: None,
        };
        let (sender, receiver) = mpsc::channel(WATCH_CAPACITY);
        tokio::spawn(async move {
            let forward = async {
                while let Some(change) = bucket_changes.recv().await {
                    if let Some(change) = convert(change)
                        && sender.send(change).await.is_err()
                    {
                        return;
                    }
                }
            };
            tokio::select! {
                () = watch.run() => {}
                () = forward => {}
                () = sender.closed() => {}
            }
        });
        receiver
    }

    /// Reports changes until nobody reads them.
    async fn run(mut self) {
        let mut delay = MIN_RETRY_DELAY;
        loop {
            let mut readiness = self.bucket.connection.readiness();
            let is_ready = readiness.wait_for(|readiness| readiness.state == NatsState::Ready);
            let generation = tokio::select! {
                () = self.changes.closed() => return,
                ready = is_ready => match ready {
                    Ok(ready) => ready.generation,
                    Err(_) => return,
                },
            };
            let began = Instant::now();
            let lost = async {
                let is_other = |r: &crate::connection::Readiness| {
                    r.generation != generation || r.state != NatsState::Ready
                };
                let _ = readiness.wait_for(is_other).await;
            };
            let end = tokio::select! {
                end = self.run_session() => end,
                () = lost => SessionEnd::Interrupted(unreachable("the connection was interrupted")),
            };
            let error = match end {
                SessionEnd::Closed => return,
                SessionEnd::Interrupted(error) => error,
            };
            delay = match began.elapsed() > CHECK_INTERVAL {
                true => MIN_RETRY_DELAY,
                false => (delay * 2).min(MAX_RETRY_DELAY),
            };
            let stream = &self.bucket.stream_name;
            let next_in_ms = delay.as_millis();
            debug!(stream, %error, next_in_ms, "the watch of a stream in NATS is interrupted; restarting it");
            tokio::select! {
                () = self.changes.closed() => return,
                () = tokio::time::sleep(delay) => {}
            }
        }
    }

    /// Lists all keys and reports changes. Returns the reason for its end.
    async fn run_session(&mut self) -> SessionEnd {
        match self.try_session().await {
            Ok(never) => match never {},
            Err(end) => end,
        }
    }

    async fn try_session(&mut self) -> Result<std::convert::Infallible, SessionEnd> {
        let bucket = Arc::clone(&self.bucket);
        let request_timeout = bucket.connection.settings.request_timeout;
        let info = bucket.info().await.map_err(ClusterError::from)?;
        self.compare_stream(&info);
        let mut session = Session::begin(&bucket, &info).await?;
        if info.state.messages == 0 {
            self.finish_listing(&mut session).await?;
        }
        let messages = session
            .consumer
            .stream()
            .max_messages_per_batch(MESSAGES_PER_REQUEST)
            .expires(REQUEST_EXPIRY)
            .heartbeat(HEARTBEAT_INTERVAL)
            .messages();
        let mut messages = timeout(request_timeout, messages)
            .await
            .map_err(|_| unreachable("the consumer does not answer"))?
            .map_err(|error| unreachable(error.to_string()))?;
        let mut check = interval_at(tokio::time::Instant::now() + CHECK_INTERVAL, CHECK_INTERVAL);
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut listing_check = interval_at(
            tokio::time::Instant::now() + LISTING_INTERVAL,
            LISTING_INTERVAL,
        );
        listing_check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.changes.closed() => return Err(SessionEnd::Closed),
                message = messages.next() => {
                    let message = message
                        .ok_or_else(|| unreachable("the consumer has ended"))?
                        .map_err(|error| unreachable(error.to_string()))?;
                    self.receive(&mut session, message).await?;
                }
                _ = listing_check.tick(), if session.listing.is_some() => {
                    if session.is_listing_delivered(request_timeout).await? {
                        self.finish_listing(&mut session).await?;
                    }
                }
                _ = check.tick(), if session.listing.is_none() => {
                    self.check_position(&mut session).await?;
                    self.expire_keys().await?;
                }
            }
        }
    }

    /// Forgets revisions that belong to a stream that was removed.
    fn compare_stream(&mut self, info: &Info) {
        let created = info.created.unix_timestamp_nanos();
        if self.stream_created.is_some_and(|before| before != created) {
            warn!(
                stream = self.bucket.stream_name,
                "a stream in NATS was removed and created again; comparing all keys"
            );
            self.reported
                .values_mut()
                .for_each(|reported| reported.revision = 0);
        }
        self.stream_created = Some(created);
        self.bucket.record_revision(info.state.last_sequence);
    }

    async fn receive(
        &mut self,
        session: &mut Session,
        message: jetstream::Message,
    ) -> Result<(), SessionEnd> {
        let (revision, consumer_sequence, pending) = {
            let info = message.info().map_err(|error| {
                unreachable(format!("a message of a consumer cannot be read: {error}"))
            })?;
            (info.stream_sequence, info.consumer_sequence, info.pending)
        };
        if consumer_sequence != session.consumer_sequence + 1 {
            return Err(unreachable(format!(
                "messages {} to {} of a consumer were lost",
                session.consumer_sequence + 1,
                consumer_sequence.saturating_sub(1)
            ))
            .into());
        }
        session.consumer_sequence = consumer_sequence;
        session.position = session.position.max(revision);
        let key = message.subject.strip_prefix(&self.bucket.subject_prefix);
        if let Some(key) = key {
            let headers = message.headers.as_ref();
            let state = match headers.and_then(|headers| deletion(headers, revision)) {
                Some(deletion) => KeyState::Deleted(deletion),
                None => KeyState::Value(ObjectEntry {
                    value: detach(&message.payload),
                    revision,
                }),
            };
            let is_listing = match &mut session.listing {
                Some(listing) => {
                    listing.insert(key.to_owned());
                    true
                }
                None => false,
            };
            self.report(key, state, is_listing).await?;
        }
        if session.listing.is_some() && (pending == 0 || revision >= session.last_sequence) {
            self.finish_listing(session).await?;
        }
        Ok(())
    }

    /// Reports the state of a key, unless the same or a later one was reported.
    async fn report(
        &mut self,
        key: &str,
        state: KeyState,
        is_listing: bool,
    ) -> Result<(), SessionEnd> {
        let known = self.reported.get(key).map(|reported| reported.revision);
        match state {
            KeyState::Value(entry) => {
                let revision = entry.revision;
                let is_repeated = is_listing && self.kind == WatchKind::Objects;
                let is_new = match known {
                    Some(known) => revision > known || (is_repeated && revision == known),
                    None => true,
                };
                if !is_new {
                    return Ok(());
                }
                let put = BucketChange::Put {
                    key: key.to_owned(),
                    entry,
                };
                // A session can end while it waits here; then the change is not recorded as reported.
                self.send(put).await?;
                let at = Instant::now();
                self.reported
                    .insert(key.to_owned(), ReportedKey { revision, at });
            }
            KeyState::Deleted(deletion) => {
                // What was never reported need not be reported as deleted.
                if known.is_none_or(|known| deletion.revision < known) {
                    return Ok(());
                }
                let deleted = BucketChange::Deleted {
                    key: key.to_owned(),
                    deletion,
                };
                self.send(deleted).await?;
                self.reported.remove(key);
            }
        }
        Ok(())
    }

    async fn send(&self, change: BucketChange) -> Result<(), SessionEnd> {
        self.changes
            .send(change)
            .await
            .map_err(|_| SessionEnd::Closed)
    }

    /// Reports keys that were deleted without a message that tells so, and the end of the listing.
    async fn finish_listing(&mut self, session: &mut Session) -> Result<(), SessionEnd> {
        let listed = session.listing.take().unwrap_or_default();
        let missing: Vec<String> = self
            .reported
            .keys()
            .filter(|key| !listed.contains(key.as_str()))
            .cloned()
            .collect();
        session.position = session.position.max(session.last_sequence);
        self.confirm_deletions(missing, session.last_sequence)
            .await?;
        self.send(BucketChange::Complete).await
    }

    async fn confirm_deletions(
        &mut self,
        keys: Vec<String>,
        revision: u64,
    ) -> Result<(), SessionEnd> {
        let request_timeout = self.bucket.connection.settings.request_timeout;
        for key in keys {
            let state = timeout(request_timeout, self.bucket.state(&key))
                .await
                .map_err(|_| unreachable("the stream does not answer"))??;
            let known = self
                .reported
                .get(&key)
                .map_or(0, |reported| reported.revision);
            let state = state.unwrap_or(KeyState::Deleted(Deletion {
                revision: revision.max(known),
                is_requested: false,
            }));
            self.report(&key, state, false).await?;
        }
        Ok(())
    }

    /// Ends the session if the leader of the stream has had later messages for two checks.
    async fn check_position(&mut self, session: &mut Session) -> Result<(), SessionEnd> {
        let info = self.bucket.info().await.map_err(ClusterError::from)?;
        let last = info.state.last_sequence;
        if self.stream_created != Some(info.created.unix_timestamp_nanos()) {
            return Err(unreachable("the stream was created again").into());
        }
        let is_behind = last > session.position;
        if is_behind && session.position_before == Some(session.position) {
            warn!(
                stream = self.bucket.stream_name,
                position = session.position,
                last,
                "a consumer in NATS does not deliver the messages of its stream; replacing the consumer"
            );
            return Err(unreachable("the consumer delivers no messages").into());
        }
        session.position_before = is_behind.then_some(session.position);
        Ok(())
    }

    async fn expire_keys(&mut self) -> Result<(), SessionEnd> {
        let WatchKind::Members { expiry } = self.kind else {
            return Ok(());
        };
        let expired: Vec<String> = self
            .reported
            .iter()
            .filter(|(_, reported)| reported.at.elapsed() > expiry)
            .map(|(key, _)| key.clone())
            .collect();
        self.confirm_deletions(expired, 0).await
    }
}

/// Copies a value, which would otherwise keep the whole buffer that it was received in.
fn detach(payload: &Bytes) -> Bytes {
    Bytes::copy_from_slice(payload)
}

/// The life of one consumer.
struct Session {
    consumer: PullConsumer,
    /// The last message of the stream when the session began.
    last_sequence: u64,
    /// Number of the last message of the consumer.
    consumer_sequence: u64,
    /// The last revision that was delivered.
    position: u64,
    /// The position at the last check, if the stream had later messages then.
    position_before: Option<u64>,
    /// The listed keys, until the listing is complete.
    listing: Option<HashSet<String>>,
}

impl Session {
    async fn begin(bucket: &Bucket, info: &Info) -> Result<Self, SessionEnd> {
        let config = ConsumerConfig {
            deliver_policy: DeliverPolicy::LastPerSubject,
            ack_policy: AckPolicy::None,
            filter_subject: format!("{}>", bucket.subject_prefix),
            inactive_threshold: CONSUMER_EXPIRY,
            memory_storage: true,
            num_replicas: 1,
            ..ConsumerConfig::default()
        };
        let context = &bucket.connection.jetstream;
        let consumer: Consumer<ConsumerConfig> = context
            .create_consumer_on_stream(config, bucket.stream_name.as_str())
            .await
            .map_err(|error| unreachable(error.to_string()))?;
        Ok(Self {
            consumer,
            last_sequence: info.state.last_sequence,
            consumer_sequence: 0,
            position: 0,
            position_before: None,
            listing: Some(HashSet::new()),
        })
    }

    /// Whether everything that was pending has arrived. Messages can be removed before they are delivered, so that the last
    /// one does not arrive.
    async fn is_listing_delivered(&self, request_timeout: Duration) -> Result<bool, SessionEnd> {
        let info = timeout(request_timeout, self.consumer.get_info())
            .await
            .map_err(|_| unreachable("the consumer does not answer"))?
            .map_err(|error| unreachable(error.to_string()))?;
        Ok(info.num_pending == 0 && info.delivered.consumer_sequence <= self.consumer_sequence)
    }
}
