//! A bucket of keys and values: a JetStream stream with the subjects and headers of NATS key-value stores, so that the
//! program `nats` can show it.
//!
//! The key-value module of the library is not used: it reads from any replica, which may be behind; it does not return the
//! revision of a deletion; and it does not recognise all conflicts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::stream::{
    Config, DiscardPolicy, Info, LastRawMessageErrorKind, StorageType,
};
use async_nats::{HeaderMap, header};
use bytes::Bytes;
use cluster::{ClusterError, ExpectedRevision, ObjectEntry, PutError};
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::sync::Mutex;
use tracing::{info, warn};

use crate::connection::{ApiError, Connection, unreachable};

pub(crate) const OPERATION_HEADER: &str = "KV-Operation";
const DELETE_OPERATION: &str = "DEL";
/// How long the marker of a deletion is kept. Watches that are away for longer compare the keys.
const MARKER_MAX_AGE: &str = "24h";
const MAX_KEY_BYTES: usize = 512;
/// Pause before a message is sent again that no server was responsible for, which is so while a leader is elected.
const NO_LEADER_PAUSE: Duration = Duration::from_millis(100);
/// Pause before a message is sent again because the server still works on the one before with the same key. It answers
/// before it is done, so that this is no conflict even if only one node writes the key.
const IN_PROCESS_PAUSE: Duration = Duration::from_millis(2);
/// How long the leader of a stream has for an answer about it. Without a leader there may be no answer at all.
const LEADER_TIMEOUT: Duration = Duration::from_millis(1500);
/// How often the number of copies may be changed.
const REPLICAS_INTERVAL: Duration = Duration::from_secs(60);

/// What a bucket is for.
#[derive(Debug, Clone)]
pub(crate) struct BucketSettings {
    /// The part of its name after the prefix.
    pub(crate) name: &'static str,
    pub(crate) description: &'static str,
    pub(crate) storage: StorageType,
    /// Keys that are not renewed for this long are removed.
    pub(crate) max_age: Option<Duration>,
    pub(crate) max_bytes: u64,
}

#[derive(Debug)]
pub(crate) struct Bucket {
    pub(crate) connection: Arc<Connection>,
    pub(crate) settings: BucketSettings,
    pub(crate) stream_name: String,
    /// The begin of all its subjects, with a dot at the end.
    pub(crate) subject_prefix: String,
    /// When the configuration was last checked.
    checked: Mutex<Option<Instant>>,
    /// The highest revision that was seen: a bucket that somebody has removed is created with higher ones.
    last_revision: AtomicU64,
}

/// The latest state of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KeyState {
    Value(ObjectEntry),
    Deleted(Deletion),
}

/// How a key was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Deletion {
    pub(crate) revision: u64,
    /// Somebody has removed the key. Otherwise it has expired, or was lost.
    pub(crate) is_requested: bool,
}

#[derive(Deserialize)]
struct PublishAnswer {
    #[serde(default)]
    seq: u64,
    error: Option<async_nats::jetstream::Error>,
}

impl Bucket {
    pub(crate) fn new(connection: &Arc<Connection>, settings: BucketSettings) -> Self {
        let bucket = format!("{}-{}", connection.settings.prefix, settings.name);
        Self {
            connection: Arc::clone(connection),
            settings,
            stream_name: format!("KV_{bucket}"),
            subject_prefix: format!("$KV.{bucket}."),
            checked: Mutex::new(None),
            last_revision: AtomicU64::new(0),
        }
    }

    pub(crate) fn record_revision(&self, revision: u64) {
        self.last_revision.fetch_max(revision, Ordering::Relaxed);
    }

    fn subject(&self, key: &str) -> Result<String, ClusterError> {
        let is_valid = |byte: u8| {
            byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'=' | b'/' | b'.' | b'-')
        };
        let has_empty_part = key.split('.').any(str::is_empty);
        if has_empty_part || key.len() > MAX_KEY_BYTES || !key.bytes().all(is_valid) {
            let shown: String = key.chars().take(64).collect();
            return Err(ClusterError::Rejected(format!(
                "{shown:?} is no key: expected 1 to {MAX_KEY_BYTES} of the characters A-Z, a-z, 0-9, '_', '=', '/', '-' and \
                 '.', which is neither first nor last nor doubled"
            )));
        }
        Ok(format!("{}{key}", self.subject_prefix))
    }

    /// The state of the stream by its leader; the stream is created if it does not exist.
    pub(crate) async fn info(&self) -> Result<Info, ApiError> {
        let subject = format!("STREAM.INFO.{}", self.stream_name);
        match self.connection.api(subject.clone(), &()).await {
            Err(ApiError::Answer(error)) if error.error_code() == ErrorCode::STREAM_NOT_FOUND => {}
            outcome => return outcome,
        }
        let replicas = self.connection.replicas();
        let created = match self.create(replicas).await {
            // Not all servers have started yet. The copy that is missing is added later.
            Err(ApiError::Answer(error)) if replicas > 2 && has_too_few_servers(&error) => {
                self.create(2).await
            }
            created => created,
        };
        match created {
            // Another node was faster, with other settings.
            Err(ApiError::Answer(error)) if error.error_code() == ErrorCode::STREAM_NAME_EXIST => {
                self.connection.api(subject, &()).await
            }
            created => created,
        }
    }

    async fn create(&self, replicas: usize) -> Result<Info, ApiError> {
        let subject = format!("STREAM.CREATE.{}", self.stream_name);
        let config = self.stream_config(replicas);
        let info: Info = self.connection.api(subject, &config).await?;
        info!(
            stream = self.stream_name,
            replicas, "created a stream in NATS"
        );
        Ok(info)
    }

    /// Creates the stream if it does not exist, and adds copies if there are servers for them.
    async fn ensure(&self) -> Result<(), ApiError> {
        let mut checked = self.checked.lock().await;
        if checked.is_some_and(|at| at.elapsed() < REPLICAS_INTERVAL) {
            return Ok(());
        }
        let info = self.info().await?;
        self.record_revision(info.state.last_sequence);
        *checked = Some(Instant::now());
        let wanted = self.connection.replicas();
        if info.config.num_replicas >= wanted {
            return Ok(());
        }
        let config = Config {
            num_replicas: wanted,
            ..info.config
        };
        let update = format!("STREAM.UPDATE.{}", self.stream_name);
        match self.connection.api::<_, Info>(update, &config).await {
            Ok(_) => info!(
                stream = self.stream_name,
                replicas = wanted,
                "added copies to a stream in NATS"
            ),
            // The stream is usable as it is.
            Err(error) => {
                let error = ClusterError::from(error);
                warn!(
                    stream = self.stream_name,
                    replicas = wanted,
                    %error,
                    "a stream in NATS has fewer copies than it should have; trying again in 60 s"
                );
            }
        }
        Ok(())
    }

    /// Removes the stream with all keys if no server leads it, although the servers have a leader and could create it anew. To be
    /// used for streams in memory only. Returns whether it is gone.
    ///
    /// A server that was started again has lost its copy of such a stream, and elects no leader until one has brought it up to date.
    /// If the majority of the servers have been started again one after the other, there is none that could.
    pub(crate) async fn remove_without_leader(&self) -> Result<bool, ClusterError> {
        let info = format!("STREAM.INFO.{}", self.stream_name);
        let info = self.connection.api::<_, Info>(info, &());
        if let Ok(Ok(info)) = tokio::time::timeout(LEADER_TIMEOUT, info).await
            && (info.cluster).is_none_or(|cluster| cluster.leader.is_some())
        {
            return Ok(false);
        }
        // Fails without a leader of the servers.
        let _: IgnoredAny = self.connection.api("INFO".to_owned(), &()).await?;
        // Whether there is an answer or not, the stream may be gone.
        self.forget_check().await;
        let delete = format!("STREAM.DELETE.{}", self.stream_name);
        let empty = serde_json::json!({});
        let deletion = self.connection.api::<_, IgnoredAny>(delete, &empty);
        match tokio::time::timeout(LEADER_TIMEOUT, deletion).await {
            // It is the leader of the stream that would answer.
            Err(_) | Ok(Ok(_)) => Ok(true),
            Ok(Err(ApiError::Answer(error)))
                if error.error_code() == ErrorCode::STREAM_NOT_FOUND =>
            {
                Ok(true)
            }
            Ok(Err(error)) => Err(error.into()),
        }
    }

    async fn forget_check(&self) {
        *self.checked.lock().await = None;
    }

    fn stream_config(&self, num_replicas: usize) -> Config {
        let settings = &self.settings;
        let is_expiring = settings.max_age.is_some();
        // Larger than the numbers of changes that nodes have counted before they were a cluster.
        let first_sequence = self.last_revision.load(Ordering::Relaxed) + 1;
        let first_sequence = Some(first_sequence.max(wall_clock::now_ms()));
        Config {
            name: self.stream_name.clone(),
            subjects: vec![format!("{}>", self.subject_prefix)],
            description: Some(settings.description.to_owned()),
            storage: settings.storage,
            num_replicas,
            max_messages_per_subject: 1,
            max_messages: -1,
            max_bytes: i64::try_from(settings.max_bytes).unwrap_or(i64::MAX),
            max_consumers: -1,
            max_message_size: -1,
            max_age: settings.max_age.unwrap_or_default(),
            // Objects are never removed to make space.
            discard: match is_expiring {
                true => DiscardPolicy::Old,
                false => DiscardPolicy::New,
            },
            deny_delete: true,
            // Reads are answered by the leader only.
            allow_direct: false,
            allow_message_ttl: true,
            first_sequence,
            ..Config::default()
        }
    }

    pub(crate) async fn get(&self, key: &str) -> Result<Option<ObjectEntry>, ClusterError> {
        let state = self.connection.perform(self.state(key)).await?;
        Ok(match state {
            Some(KeyState::Value(entry)) => Some(entry),
            Some(KeyState::Deleted(_)) | None => None,
        })
    }

    /// The latest state of a key by the leader of the stream, without waiting for a connection.
    pub(crate) async fn state(&self, key: &str) -> Result<Option<KeyState>, ClusterError> {
        let subject = self.subject(key)?;
        self.ensure().await?;
        let stream = self
            .connection
            .jetstream
            .get_stream_no_info(&self.stream_name)
            .await
            .map_err(|error| ClusterError::Rejected(error.to_string()))?;
        match stream.get_last_raw_message_by_subject(&subject).await {
            Ok(message) => Ok(Some(key_state(message))),
            Err(error) => match error.kind() {
                LastRawMessageErrorKind::NoMessageFound => Ok(None),
                LastRawMessageErrorKind::JetStream(answer) => {
                    if answer.error_code() == ErrorCode::STREAM_NOT_FOUND {
                        self.forget_check().await;
                    }
                    Err(ApiError::Answer(answer).into())
                }
                LastRawMessageErrorKind::InvalidSubject | LastRawMessageErrorKind::Other => {
                    Err(unreachable(error.to_string()))
                }
            },
        }
    }

    pub(crate) async fn put(
        &self,
        key: &str,
        value: Bytes,
        expected: ExpectedRevision,
    ) -> Result<u64, PutError> {
        let write = self.write(key, HeaderMap::new(), value, expected);
        self.connection.perform(write).await
    }

    pub(crate) async fn delete(
        &self,
        key: &str,
        expected: ExpectedRevision,
    ) -> Result<u64, PutError> {
        let mut headers = HeaderMap::new();
        headers.insert(OPERATION_HEADER, DELETE_OPERATION);
        headers.insert(header::NATS_MESSAGE_TTL, MARKER_MAX_AGE);
        let write = self.write(key, headers, Bytes::new(), expected);
        self.connection.perform(write).await
    }

    async fn write(
        &self,
        key: &str,
        headers: HeaderMap,
        value: Bytes,
        expected: ExpectedRevision,
    ) -> Result<u64, PutError> {
        let subject = self.subject(key)?;
        let before = match expected {
            ExpectedRevision::Any => None,
            ExpectedRevision::Absent => Some(0),
            ExpectedRevision::Revision(revision) => Some(revision),
        };
        let outcome = self
            .publish(&subject, headers.clone(), value.clone(), before)
            .await;
        if expected != ExpectedRevision::Absent || outcome != Err(PutError::Conflict) {
            return outcome;
        }
        // The marker of a deletion has a revision as well.
        match self.state(key).await? {
            Some(KeyState::Deleted(deletion)) => {
                self.publish(&subject, headers, value, Some(deletion.revision))
                    .await
            }
            Some(KeyState::Value(_)) => Err(PutError::Conflict),
            None => self.publish(&subject, headers, value, Some(0)).await,
        }
    }

    async fn publish(
        &self,
        subject: &str,
        mut headers: HeaderMap,
        value: Bytes,
        revision_before: Option<u64>,
    ) -> Result<u64, PutError> {
        if let Some(revision) = revision_before {
            headers.insert(
                header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE,
                revision.to_string(),
            );
        }
        loop {
            self.ensure().await.map_err(ClusterError::from)?;
            let sent = self
                .connection
                .publish(subject.to_owned(), headers.clone(), value.clone());
            let Some(message) = sent.await? else {
                self.forget_check().await;
                tokio::time::sleep(NO_LEADER_PAUSE).await;
                continue;
            };
            let answer: PublishAnswer = serde_json::from_slice(&message.payload)
                .map_err(|error| unreadable("an answer of JetStream", error))?;
            match WriteOutcome::of(answer) {
                WriteOutcome::Stored { revision } => {
                    self.record_revision(revision);
                    return Ok(revision);
                }
                WriteOutcome::Conflict => return Err(PutError::Conflict),
                WriteOutcome::InProcess => tokio::time::sleep(IN_PROCESS_PAUSE).await,
                WriteOutcome::Failed(error) => {
                    return Err(ClusterError::from(ApiError::Answer(error)).into());
                }
            }
        }
    }
}

/// What an answer of JetStream to a message means.
#[derive(Debug)]
enum WriteOutcome {
    Stored {
        revision: u64,
    },
    Conflict,
    /// The server still works on the message before with the same subject.
    InProcess,
    Failed(async_nats::jetstream::Error),
}

impl WriteOutcome {
    fn of(answer: PublishAnswer) -> Self {
        match answer.error {
            None => Self::Stored {
                revision: answer.seq,
            },
            Some(error) => match error.error_code() {
                ErrorCode::STREAM_WRONG_LAST_SEQUENCE => Self::Conflict,
                ErrorCode::STREAM_WRONG_LAST_SEQUENCE_CONSTANT => Self::InProcess,
                _ => Self::Failed(error),
            },
        }
    }
}

fn has_too_few_servers(error: &async_nats::jetstream::Error) -> bool {
    matches!(
        error.error_code(),
        ErrorCode::CLUSTER_NO_PEERS | ErrorCode::INSUFFICIENT_RESOURCES
    )
}

fn unreadable(what: &str, error: serde_json::Error) -> ClusterError {
    ClusterError::Unreadable {
        what: what.to_owned(),
        detail: error.to_string(),
    }
}

fn key_state(message: StreamMessage) -> KeyState {
    let revision = message.sequence;
    match deletion(&message.headers, revision) {
        Some(deletion) => KeyState::Deleted(deletion),
        None => KeyState::Value(ObjectEntry {
            value: message.payload,
            revision,
        }),
    }
}

/// The deletion that a message with these headers marks. It may be from this node, the program `nats`, or a server that has
/// removed the key because of its age.
pub(crate) fn deletion(headers: &HeaderMap, revision: u64) -> Option<Deletion> {
    let is_requested = headers.get(OPERATION_HEADER).is_some();
    (is_requested || headers.get(header::NATS_MARKER_REASON).is_some()).then_some(Deletion {
        revision,
        is_requested,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn outcome(answer: &str) -> WriteOutcome {
        WriteOutcome::of(serde_json::from_str(answer).unwrap())
    }

    /// Answers of version 2.12.15. One of about 50,000 changes by the only writer of a key is answered with 10164.
    #[test]
    fn a_message_that_meets_the_one_before_in_process_is_no_conflict() {
        let stored = r#"{"stream": "KV_tidegate-objects", "seq": 7}"#;
        assert!(matches!(
            outcome(stored),
            WriteOutcome::Stored { revision: 7 }
        ));
        let error = |code: u64, description: &str| {
            outcome(&format!(
                r#"{{"error": {{"code": 400, "err_code": {code}, "description": "{description}"}}, "seq": 0}}"#
            ))
        };
        assert!(matches!(
            error(10071, "wrong last sequence: 5"),
            WriteOutcome::Conflict
        ));
        assert!(matches!(
            error(10164, "wrong last sequence"),
            WriteOutcome::InProcess
        ));
        assert!(matches!(
            error(10054, "message size exceeds maximum allowed"),
            WriteOutcome::Failed(_)
        ));
    }
}
