//! Reads partitions: a task for each leading broker fetches ahead while earlier messages are processed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use schemars::JsonSchema;
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::cluster::{KafkaCluster, extend_timeout};
use crate::error::KafkaError;
use crate::protocol::{DecodeError, Decoder, Encode as _, ErrorCode, FETCH, LIST_OFFSETS};
use crate::record::{AbortedTransaction, FetchedRecord, read_batches};

/// How long a broker waits for new messages.
const WAIT_MS: u32 = 500;
/// Limit for all partitions, and for one; a larger batch is returned alone.
const MAX_FETCH_BYTES: i32 = 8 << 20;
const MAX_PARTITION_BYTES: i32 = 1 << 20;
/// Limit on fetched responses waiting for processing.
const MAX_AHEAD: usize = 4;
/// Connection slot for fetches, separate because they wait most of the time.
const SLOT: usize = 2;
const LATEST: i64 = -1;
const EARLIEST: i64 = -2;

/// Start position.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StartPosition {
    /// The oldest message.
    Earliest,
    /// The next new message.
    #[default]
    Latest,
    /// The first message with this or a later time, in milliseconds since 1970.
    TimestampMs(u64),
    /// This offset in each partition.
    Offset(u64),
}

/// Whether transactional messages are held until the transaction ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum IsolationLevel {
    #[default]
    ReadCommitted,
    ReadUncommitted,
}

/// A topic and a partition number.
pub type TopicPartition = (Arc<str>, i32);

/// The next offset of each partition.
#[derive(Default)]
pub struct PartitionOffsets(Mutex<BTreeMap<TopicPartition, i64>>);

impl PartitionOffsets {
    pub fn of(places: BTreeMap<TopicPartition, i64>) -> Self {
        Self(Mutex::new(places))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<TopicPartition, i64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn all(&self) -> BTreeMap<TopicPartition, i64> {
        self.lock().clone()
    }

    pub fn get(&self, place: &TopicPartition) -> Option<i64> {
        self.lock().get(place).copied()
    }

    pub fn set(&self, place: &TopicPartition, offset: i64) {
        self.lock().insert(place.clone(), offset);
    }
}

/// Reads partitions of a cluster.
#[derive(Clone)]
pub struct PartitionFetcher {
    pub cluster: Arc<KafkaCluster>,
    pub start: StartPosition,
    pub isolation: IsolationLevel,
}

/// Records fetched from one partition, or a new offset to continue from.
pub struct PartitionRecords {
    pub place: TopicPartition,
    pub records: Vec<FetchedRecord>,
    pub next_offset: i64,
}

type FetchResult = Result<PartitionRecords, KafkaError>;

/// What the tasks of a fetcher receive; they end when it is dropped.
pub struct FetchedMessages {
    pieces: mpsc::Receiver<FetchResult>,
    /// Keeps the channel open: without partitions there is nothing to do until the next rebalance.
    _sender: mpsc::Sender<FetchResult>,
    _tasks: JoinSet<()>,
}

impl FetchedMessages {
    /// The next messages; those of a partition come in their order. After an error no more should be taken.
    pub async fn next(&mut self) -> Result<PartitionRecords, KafkaError> {
        match self.pieces.recv().await {
            Some(piece) => piece,
            None => Err(KafkaError::transient("all fetch tasks have ended")),
        }
    }
}

/// The part of a response for one partition.
struct PartitionResponse {
    topic: String,
    partition: i32,
    code: ErrorCode,
    aborted: Vec<AbortedTransaction>,
    bytes: Vec<u8>,
}

impl PartitionFetcher {
    /// Begins to fetch from these positions. Their leaders must be known.
    pub fn start(&self, positions: &PartitionOffsets) -> Result<FetchedMessages, KafkaError> {
        let mut by_broker: BTreeMap<i32, Vec<(TopicPartition, i64)>> = BTreeMap::new();
        for (place, offset) in positions.all() {
            let (topic, partition) = &place;
            let Some(broker) = self.cluster.leader(topic, *partition) else {
                self.cluster.invalidate_topic(topic);
                let what = format!("partition {partition} of {topic} has no leader at the moment");
                return Err(KafkaError::transient(what));
            };
            by_broker.entry(broker).or_default().push((place, offset));
        }
        let (sender, pieces) = mpsc::channel(MAX_AHEAD);
        let mut tasks = JoinSet::new();
        for (broker, places) in by_broker {
            let (fetcher, pieces) = (self.clone(), sender.clone());
            tasks.spawn(async move {
                if let Err(failure) = fetcher.fetch_from(broker, places, &pieces).await {
                    // The receiver may be dropped.
                    let _ = pieces.send(Err(failure)).await;
                }
            });
        }
        Ok(FetchedMessages {
            pieces,
            _sender: sender,
            _tasks: tasks,
        })
    }

    async fn fetch_from(
        &self,
        broker: i32,
        mut places: Vec<(TopicPartition, i64)>,
        pieces: &mpsc::Sender<FetchResult>,
    ) -> Result<(), KafkaError> {
        let doubt_all = |failure: KafkaError| {
            self.cluster.invalidate_all_topics();
            failure
        };
        let session = self.cluster.connection(broker, SLOT).await;
        let session = session.map_err(doubt_all)?;
        let within = extend_timeout(self.cluster.login().request_timeout, WAIT_MS);
        loop {
            let fill = |version: i16, out: &mut Vec<u8>| self.put_fetch(version, &places, out);
            let answer = session.request_with_timeout(FETCH, within, fill).await;
            let (code, parts) = answer.map_err(doubt_all)?.read(read_parts)?;
            if code.is_error() {
                return Err(session.failure(&code.to_string()));
            }
            for part in parts {
                let is_it = |((topic, partition), _): &(TopicPartition, i64)| {
                    **topic == *part.topic && *partition == part.partition
                };
                let Some((place, offset)) = places.iter_mut().find(|place| is_it(place)) else {
                    continue;
                };
                let Some(piece) = self.read_partition_response(place, *offset, part).await? else {
                    continue;
                };
                *offset = piece.next_offset;
                if pieces.send(Ok(piece)).await.is_err() {
                    return Ok(());
                }
            }
            // The first partitions of a request get the most room, so they rotate.
            places.rotate_left(1);
        }
    }

    fn put_fetch(&self, version: i16, places: &[(TopicPartition, i64)], out: &mut Vec<u8>) {
        // Not a replica.
        out.put_i32(-1);
        out.put_i32(WAIT_MS as i32);
        out.put_i32(1);
        out.put_i32(MAX_FETCH_BYTES);
        out.put_i8((self.isolation == IsolationLevel::ReadCommitted).into());
        // No fetch session.
        out.put_i32(0);
        out.put_i32(-1);
        // One topic entry per partition, to keep their order.
        out.put_count(places.len());
        for ((topic, partition), offset) in places {
            out.put_text(topic);
            out.put_count(1);
            out.put_i32(*partition);
            out.put_i32(-1);
            out.put_i64(*offset);
            out.put_i64(-1);
            out.put_i32(MAX_PARTITION_BYTES);
        }
        out.put_count(0);
        if version >= 11 {
            out.put_text("");
        }
    }

    async fn read_partition_response(
        &self,
        place: &TopicPartition,
        offset: i64,
        part: PartitionResponse,
    ) -> Result<Option<PartitionRecords>, KafkaError> {
        let (topic, partition) = place;
        let partition_error = |what: String| {
            KafkaError::transient(format!("partition {partition} of {topic}: {what}"))
        };
        if part.code == ErrorCode::OFFSET_OUT_OF_RANGE {
            // The messages there were deleted, or the offset never existed.
            let at = match self.start {
                StartPosition::Latest => LATEST,
                _ => EARLIEST,
            };
            let next_offset = self.offset_at(place, at).await?;
            tracing::warn!(%topic, partition, offset, next_offset, "offset no longer exists; source continues at another offset");
            return Ok(Some(PartitionRecords {
                place: place.clone(),
                records: Vec::new(),
                next_offset,
            }));
        }
        if part.code.is_error() {
            self.cluster.invalidate_topic(topic);
            return Err(partition_error(part.code.to_string()));
        }
        let fetched = read_batches(&part.bytes, offset, &part.aborted).map_err(partition_error)?;
        Ok(fetched.next_offset.map(|next_offset| PartitionRecords {
            place: place.clone(),
            records: fetched.records,
            next_offset,
        }))
    }

    /// Start offset of a partition without a stored position.
    pub async fn first_offset(&self, place: &TopicPartition) -> Result<i64, KafkaError> {
        match self.start {
            StartPosition::Earliest => self.offset_at(place, EARLIEST).await,
            StartPosition::Latest => self.offset_at(place, LATEST).await,
            StartPosition::Offset(offset) => Ok(i64::try_from(offset).unwrap_or(i64::MAX)),
            StartPosition::TimestampMs(at_ms) => {
                let at_ms = i64::try_from(at_ms).unwrap_or(i64::MAX);
                match self.offset_at(place, at_ms).await? {
                    // All messages are older.
                    -1 => self.offset_at(place, LATEST).await,
                    offset => Ok(offset),
                }
            }
        }
    }

    async fn offset_at(&self, place: &TopicPartition, at: i64) -> Result<i64, KafkaError> {
        let (topic, partition) = place;
        let no_leader = || {
            self.cluster.invalidate_topic(topic);
            KafkaError::transient(format!(
                "partition {partition} of {topic} has no leader at the moment"
            ))
        };
        let broker = self
            .cluster
            .leader(topic, *partition)
            .ok_or_else(no_leader)?;
        let session = self.cluster.connection(broker, 0).await?;
        let answer = session
            .request(LIST_OFFSETS, |_, out| {
                out.put_i32(-1);
                out.put_i8((self.isolation == IsolationLevel::ReadCommitted).into());
                out.put_count(1);
                out.put_text(topic);
                out.put_count(1);
                out.put_i32(*partition);
                out.put_i32(-1);
                out.put_i64(at);
            })
            .await?;
        let (code, offset) = answer.read(|take, _| {
            take.i32()?;
            let (topics, _, partitions) = (take.count()?, take.text()?, take.count()?);
            if (topics, partitions) != (1, 1) {
                return Err(DecodeError("one partition was requested"));
            }
            take.i32()?;
            let code = ErrorCode::take(take)?;
            take.i64()?;
            Ok((code, take.i64()?))
        })?;
        if code.is_error() {
            self.cluster.invalidate_topic(topic);
            let what = format!("partition {partition} of {topic}: {code}");
            return Err(session.failure(&what));
        }
        Ok(offset)
    }
}

fn read_parts(
    take: &mut Decoder<'_>,
    version: i16,
) -> Result<(ErrorCode, Vec<PartitionResponse>), DecodeError> {
    take.i32()?;
    let code = ErrorCode::take(take)?;
    take.i32()?;
    let mut parts = Vec::new();
    for _ in 0..take.count()? {
        let topic = take.text()?;
        for _ in 0..take.count()? {
            let partition = take.i32()?;
            let code = ErrorCode::take(take)?;
            // High watermark, last stable offset and log start offset.
            take.raw(24)?;
            let mut aborted = Vec::new();
            for _ in 0..take.count()? {
                let (producer, first_offset) = (take.i64()?, take.i64()?);
                aborted.push(AbortedTransaction {
                    producer,
                    first_offset,
                });
            }
            if version >= 11 {
                take.i32()?;
            }
            let bytes = take.bytes()?.to_vec();
            parts.push(PartitionResponse {
                topic: topic.to_owned(),
                partition,
                code,
                aborted,
                bytes,
            });
        }
    }
    Ok((code, parts))
}
