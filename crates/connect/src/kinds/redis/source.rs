//! The Redis source: reads streams with a consumer group, which stores the position. An entry is acknowledged once it is
//! processed. Entries that a lost consumer did not acknowledge are claimed.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_all;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, Value as Answer};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Map;
use tokio::time::Instant;

use super::connector::RedisConnector;
use super::errors::failure;
use super::slot_routes::key_slot;
use crate::connector::{BoxFuture, ConnectorError, SourceMessage, SourcePort, SourceReader};
use crate::settings::{SettingsError, check_range};

const MAX_STREAMS: usize = 64;
const MAX_NAME_BYTES: usize = 512;
/// How long the server blocks a request when there are no new entries.
const BLOCK: Duration = Duration::from_secs(2);
/// Time-out of a reply in addition to `BLOCK`.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
/// Acknowledgements are collected for at most this long.
const MAX_ACK_DELAY: Duration = Duration::from_secs(1);

/// Settings of a Redis source.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RedisSourceSettings {
    /// Keys of the streams, which are created if needed.
    #[schemars(length(min = 1, max = 64))]
    streams: Vec<String>,
    /// Consumer group, which is created if needed. Nodes with the same group share the entries.
    #[schemars(length(min = 1, max = 512))]
    group: String,
    /// Name of this consumer in the group. Must differ between nodes.
    #[serde(default = "default_consumer")]
    #[schemars(length(min = 1, max = 512))]
    consumer: String,
    /// Start position of a new group.
    #[serde(default)]
    start: StartPosition,
    /// Field of an entry that is the message; other fields become properties. Default: the message is a JSON object
    /// of all fields.
    payload: Option<String>,
    /// Maximum number of unprocessed entries of each stream.
    #[serde(default = "default_batch")]
    #[schemars(range(min = 1, max = 10_000))]
    batch: usize,
    /// Time in milliseconds after which unacknowledged entries of another consumer are claimed. 0: never.
    #[serde(default = "default_claim_after_ms")]
    #[schemars(range(max = 86_400_000))]
    claim_after_ms: u64,
}

fn default_consumer() -> String {
    "tidegate".into()
}

fn default_batch() -> usize {
    100
}

fn default_claim_after_ms() -> u64 {
    60_000
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum StartPosition {
    /// The first entry of the stream.
    #[default]
    All,
    /// The next new entry.
    New,
}

pub(super) struct RedisSource {
    redis: Arc<RedisConnector>,
    settings: RedisSourceSettings,
}

impl RedisSource {
    pub(super) fn new(
        redis: Arc<RedisConnector>,
        settings: RedisSourceSettings,
    ) -> Result<Self, SettingsError> {
        if settings.streams.is_empty() || settings.streams.len() > MAX_STREAMS {
            let detail = format!("expected 1 to {MAX_STREAMS}");
            return Err(SettingsError::new("streams", detail));
        }
        let is_name = |name: &str| !name.is_empty() && name.len() <= MAX_NAME_BYTES;
        for (at, stream) in settings.streams.iter().enumerate() {
            if !is_name(stream) || settings.streams[..at].contains(stream) {
                let detail = format!("expected 1 to {MAX_NAME_BYTES} bytes, each stream once");
                return Err(SettingsError::new(&format!("streams[{at}]"), detail));
            }
        }
        for (field, name) in [("group", &settings.group), ("consumer", &settings.consumer)] {
            if !is_name(name) {
                let detail = format!("expected 1 to {MAX_NAME_BYTES} bytes");
                return Err(SettingsError::new(field, detail));
            }
        }
        check_range("batch", settings.batch, 1..=10_000)?;
        check_range("claim_after_ms", settings.claim_after_ms, 0..=86_400_000)?;
        Ok(Self { redis, settings })
    }

    /// Receives one stream over its own connection: requests block, and in a cluster each stream may be on another server.
    async fn receive_stream(&self, stream: &str, port: &dyn SourcePort) -> ConnectorError {
        match self.receive(stream, port).await {
            Ok(never) => match never {},
            Err(failure) => {
                self.redis.routes.mark_outdated();
                failure
            }
        }
    }

    async fn receive(
        &self,
        stream: &str,
        port: &dyn SourcePort,
    ) -> Result<std::convert::Infallible, ConnectorError> {
        let map = self.redis.routes.map(&self.redis.connections).await?;
        let owner = map.owner(key_slot(stream.as_bytes())).ok_or_else(|| {
            ConnectorError::transient(format!("no server of the cluster has the slot of {stream}"))
        })?;
        let connection = self
            .redis
            .connections
            .connect(owner)
            .await
            .map_err(failure)?;
        let mut line = StreamConnection {
            connection,
            settings: &self.settings,
            stream,
        };
        line.create_group().await?;
        line.receive_pending(port).await?;
        let claim_after = Duration::from_millis(self.settings.claim_after_ms);
        let mut claim_at = Instant::now();
        loop {
            if !claim_after.is_zero() && Instant::now() >= claim_at {
                line.claim_abandoned(port).await?;
                claim_at = Instant::now() + (claim_after / 2).max(Duration::from_millis(100));
            }
            let new = line
                .read(">", Some(BLOCK.min(claim_after.max(MAX_ACK_DELAY))))
                .await?;
            line.hand_over_entries(new, port).await?;
        }
    }
}

/// A stream entry; without fields if it was deleted in the meantime.
struct StreamEntry {
    id: Vec<u8>,
    fields: Option<Vec<(Vec<u8>, Vec<u8>)>>,
}

/// The connection of one stream.
struct StreamConnection<'s> {
    connection: MultiplexedConnection,
    settings: &'s RedisSourceSettings,
    stream: &'s str,
}

impl StreamConnection<'_> {
    async fn request(&mut self, command: &Cmd, held_for: Duration) -> Result<Answer, RedisError> {
        let asking = self.connection.send_packed_command(command);
        match tokio::time::timeout(held_for + REPLY_TIMEOUT, asking).await {
            Ok(answer) => answer?.extract_error(),
            Err(_) => Err((redis::ErrorKind::Io, "the server does not answer").into()),
        }
    }

    fn connection_error(&self, error: RedisError) -> ConnectorError {
        ConnectorError::transient(format!("stream {}: {error}", self.stream))
    }

    async fn create_group(&mut self) -> Result<(), ConnectorError> {
        let mut command = redis::cmd("XGROUP");
        command.arg("CREATE").arg(self.stream);
        command.arg(&self.settings.group);
        command.arg(match self.settings.start {
            StartPosition::All => "0",
            StartPosition::New => "$",
        });
        command.arg("MKSTREAM");
        match self.request(&command, Duration::ZERO).await {
            Ok(_) => Ok(()),
            Err(error) if error.code() == Some("BUSYGROUP") => Ok(()),
            Err(error) => Err(self.connection_error(error)),
        }
    }

    /// Receives entries that were delivered to this consumer before and not acknowledged.
    async fn receive_pending(&mut self, port: &dyn SourcePort) -> Result<(), ConnectorError> {
        let mut after = b"0".to_vec();
        loop {
            let from = String::from_utf8_lossy(&after).into_owned();
            let entries = self.read(&from, None).await?;
            let Some(last) = entries.last() else {
                return Ok(());
            };
            after.clone_from(&last.id);
            self.hand_over_entries(entries, port).await?;
        }
    }

    async fn read(
        &mut self,
        from: &str,
        block: Option<Duration>,
    ) -> Result<Vec<StreamEntry>, ConnectorError> {
        let mut command = redis::cmd("XREADGROUP");
        command.arg("GROUP").arg(&self.settings.group);
        command.arg(&self.settings.consumer);
        command.arg("COUNT").arg(self.settings.batch);
        if let Some(block) = block {
            command.arg("BLOCK").arg(block.as_millis() as u64);
        }
        command.arg("STREAMS").arg(self.stream).arg(from);
        let answer = self.request(&command, block.unwrap_or_default()).await;
        let answer = answer.map_err(|error| self.connection_error(error))?;
        // `[[stream, entries]]`, or null after a time-out.
        let of_stream = match items(answer).into_iter().next() {
            None => return Ok(Vec::new()),
            Some(of_stream) => items(of_stream),
        };
        let entries = of_stream.into_iter().nth(1).map(entries);
        Ok(entries.unwrap_or_default())
    }

    async fn claim_abandoned(&mut self, port: &dyn SourcePort) -> Result<(), ConnectorError> {
        let mut cursor = b"0-0".to_vec();
        loop {
            let mut command = redis::cmd("XAUTOCLAIM");
            command.arg(self.stream).arg(&self.settings.group);
            command.arg(&self.settings.consumer);
            command.arg(self.settings.claim_after_ms).arg(&cursor);
            command.arg("COUNT").arg(self.settings.batch);
            let answer = match self.request(&command, Duration::ZERO).await {
                Ok(answer) => answer,
                // XAUTOCLAIM exists since Redis 6.2.
                Err(error) if error.to_string().contains("unknown command") => return Ok(()),
                Err(error) => return Err(self.connection_error(error)),
            };
            // `[next start, entries, deleted entries]`
            let mut parts = items(answer).into_iter();
            let next = parts.next().and_then(bytes);
            let claimed = parts.next().map(entries).unwrap_or_default();
            self.hand_over_entries(claimed, port).await?;
            match next {
                Some(next) if next != b"0-0" => cursor = next,
                _ => return Ok(()),
            }
        }
    }

    /// Passes entries on, and acknowledges those that were processed.
    async fn hand_over_entries(
        &mut self,
        entries: Vec<StreamEntry>,
        port: &dyn SourcePort,
    ) -> Result<(), ConnectorError> {
        let mut taken = Vec::new();
        let mut since = Instant::now();
        for entry in entries {
            if let Some(fields) = entry.fields {
                let message = source_message(self.stream, self.settings, &entry.id, fields);
                port.accept(message).await;
            }
            taken.push(entry.id);
            if since.elapsed() >= MAX_ACK_DELAY {
                self.acknowledge(std::mem::take(&mut taken)).await?;
                since = Instant::now();
            }
        }
        self.acknowledge(taken).await
    }

    async fn acknowledge(&mut self, ids: Vec<Vec<u8>>) -> Result<(), ConnectorError> {
        if ids.is_empty() {
            return Ok(());
        }
        let mut command = redis::cmd("XACK");
        command.arg(self.stream).arg(&self.settings.group).arg(ids);
        let answer = self.request(&command, Duration::ZERO).await;
        answer
            .map(drop)
            .map_err(|error| self.connection_error(error))
    }
}

fn items(answer: Answer) -> Vec<Answer> {
    match answer {
        Answer::Array(items) => items,
        _ => Vec::new(),
    }
}

fn bytes(answer: Answer) -> Option<Vec<u8>> {
    match answer {
        Answer::BulkString(bytes) => Some(bytes),
        Answer::SimpleString(text) => Some(text.into_bytes()),
        _ => None,
    }
}

/// Parses `[[id, [name, value, ...]], ...]`; for a deleted entry there is only its id, or nothing.
fn entries(answer: Answer) -> Vec<StreamEntry> {
    let entries = items(answer).into_iter().filter_map(|entry| {
        let mut parts = items(entry).into_iter();
        let id = bytes(parts.next()?)?;
        let fields = match parts.next() {
            Some(Answer::Array(fields)) => {
                let mut words = fields.into_iter().filter_map(bytes);
                let mut pairs = Vec::new();
                while let (Some(name), Some(value)) = (words.next(), words.next()) {
                    pairs.push((name, value));
                }
                Some(pairs)
            }
            _ => None,
        };
        Some(StreamEntry { id, fields })
    });
    entries.collect()
}

fn source_message(
    stream: &str,
    settings: &RedisSourceSettings,
    id: &[u8],
    fields: Vec<(Vec<u8>, Vec<u8>)>,
) -> SourceMessage {
    let text = |bytes: Vec<u8>| match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    };
    let id = String::from_utf8_lossy(id).into_owned();
    let mut about = Map::new();
    about.insert("stream".into(), stream.into());
    // The first part of the id is the time, unless the producer chose the id.
    let at_ms = id.split('-').next().and_then(|ms| ms.parse::<u64>().ok());
    about.extend(at_ms.map(|at_ms| ("timestamp".to_owned(), at_ms.into())));
    about.insert("id".into(), id.into());
    let mut message = SourceMessage {
        topic: stream.to_owned(),
        fields: about,
        ..SourceMessage::default()
    };
    match &settings.payload {
        Some(wanted) => {
            for (name, value) in fields {
                match name == wanted.as_bytes() {
                    true => message.payload = value,
                    false => message.properties.push((text(name), text(value))),
                }
            }
        }
        None => {
            let fields = fields.into_iter();
            let object: Map<_, _> = fields
                .map(|(name, value)| (text(name), text(value).into()))
                .collect();
            message.payload = serde_json::to_vec(&object).unwrap_or_default();
        }
    }
    message
}

impl SourceReader for RedisSource {
    fn read<'a>(&'a self, port: &'a dyn SourcePort) -> BoxFuture<'a, ConnectorError> {
        Box::pin(async move {
            let streams = self.settings.streams.iter();
            let all = streams.map(|stream| Box::pin(self.receive_stream(stream, port)));
            // A failure of one stream restarts all.
            let (failure, ..) = select_all(all).await;
            failure
        })
    }
}
