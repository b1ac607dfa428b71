//! Reading partitions: a task for each broker that leads some of them fetches ahead while the node takes what came before.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Map;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::cluster::{Cluster, longer};
use super::record::{Aborted, Record, read_batches};
use super::wire::{Code, FETCH, LIST_OFFSETS, Malformed, Put as _, Take};
use crate::connector::{Failure, Inlet, Received};

/// How long a broker waits for messages.
const WAIT_MS: u32 = 500;
/// Of all partitions, and of one; a larger batch comes alone.
const MAX_FETCH_BYTES: i32 = 8 << 20;
const MAX_PARTITION_BYTES: i32 = 1 << 20;
/// Answers that wait while the node takes another one.
const MAX_AHEAD: usize = 4;
/// Which connection to a broker fetches: it waits most of the time, and nothing else should.
const SLOT: usize = 2;
const LATEST: i64 = -1;
const EARLIEST: i64 = -2;

/// Where reading begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Start {
    /// With the oldest message there is.
    Earliest,
    /// With the next message that comes.
    #[default]
    Latest,
    /// With the first message that is not older, in milliseconds since 1970.
    TimestampMs(u64),
    /// With this offset, in each partition.
    Offset(u64),
}

/// Whether messages of transactions wait for the end of these.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Isolation {
    #[default]
    ReadCommitted,
    ReadUncommitted,
}

/// A topic and the number of a partition.
pub(super) type Place = (Arc<str>, i32);

/// The next offset to be taken from each partition.
#[derive(Default)]
pub(super) struct Positions(Mutex<BTreeMap<Place, i64>>);

impl Positions {
    pub(super) fn of(places: BTreeMap<Place, i64>) -> Self {
        Self(Mutex::new(places))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Place, i64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn all(&self) -> BTreeMap<Place, i64> {
        self.lock().clone()
    }

    pub(super) fn get(&self, place: &Place) -> Option<i64> {
        self.lock().get(place).copied()
    }

    pub(super) fn set(&self, place: &Place, offset: i64) {
        self.lock().insert(place.clone(), offset);
    }
}

#[derive(Clone)]
pub(super) struct Fetcher {
    pub(super) cluster: Arc<Cluster>,
    pub(super) start: Start,
    pub(super) isolation: Isolation,
}

/// What came from one partition, or the offset from which it goes on.
struct Piece {
    place: Place,
    records: Vec<Record>,
    next_offset: i64,
}

/// What an answer says about one partition.
struct Part {
    topic: String,
    partition: i32,
    code: Code,
    aborted: Vec<Aborted>,
    bytes: Vec<u8>,
}

impl Fetcher {
    /// Hands over messages from these positions on, and moves them as messages are taken. Ends with a failure only.
    pub(super) async fn run(&self, positions: &Positions, inlet: &dyn Inlet) -> Failure {
        let mut by_broker: BTreeMap<i32, Vec<(Place, i64)>> = BTreeMap::new();
        for (place, offset) in positions.all() {
            let (topic, partition) = &place;
            let Some(broker) = self.cluster.leader(topic, *partition) else {
                self.cluster.doubt(topic);
                let what = format!("partition {partition} of {topic} has no leader at the moment");
                return Failure::passing(what);
            };
            by_broker.entry(broker).or_default().push((place, offset));
        }
        let (sender, mut pieces) = mpsc::channel(MAX_AHEAD);
        let mut tasks = JoinSet::new();
        for (broker, places) in by_broker {
            let (fetcher, pieces) = (self.clone(), sender.clone());
            tasks.spawn(async move {
                if let Err(failure) = fetcher.fetch_from(broker, places, &pieces).await {
                    // Whoever receives may be gone.
                    let _ = pieces.send(Err(failure)).await;
                }
            });
        }
        // Ours stays open: without partitions there is nothing to do until they are dealt out anew.
        loop {
            match pieces.recv().await {
                Some(Ok(piece)) => {
                    for record in piece.records {
                        let next = record.offset + 1;
                        inlet.take(received(&piece.place, record)).await;
                        positions.set(&piece.place, next);
                    }
                    positions.set(&piece.place, piece.next_offset);
                }
                Some(Err(failure)) => return failure,
                None => return Failure::passing("nothing fetches any more"),
            }
        }
    }

    async fn fetch_from(
        &self,
        broker: i32,
        mut places: Vec<(Place, i64)>,
        pieces: &mpsc::Sender<Result<Piece, Failure>>,
    ) -> Result<(), Failure> {
        let doubt_all = |failure: Failure| {
            self.cluster.doubt_all();
            failure
        };
        let session = self.cluster.session(broker, SLOT).await;
        let session = session.map_err(doubt_all)?;
        let within = longer(self.cluster.login().request_timeout, WAIT_MS);
        loop {
            let fill = |version: i16, out: &mut Vec<u8>| self.put_fetch(version, &places, out);
            let answer = session.ask_within(FETCH, within, fill).await;
            let (code, parts) = answer.map_err(doubt_all)?.read(read_parts)?;
            if code.is_error() {
                return Err(session.failure(&code.to_string()));
            }
            for part in parts {
                let is_it = |((topic, partition), _): &(Place, i64)| {
                    **topic == *part.topic && *partition == part.partition
                };
                let Some((place, offset)) = places.iter_mut().find(|place| is_it(place)) else {
                    continue;
                };
                let Some(piece) = self.piece(place, *offset, part).await? else {
                    continue;
                };
                *offset = piece.next_offset;
                if pieces.send(Ok(piece)).await.is_err() {
                    return Ok(());
                }
            }
            // The first partitions get the most room: each has its turn.
            places.rotate_left(1);
        }
    }

    fn put_fetch(&self, version: i16, places: &[(Place, i64)], out: &mut Vec<u8>) {
        // Not a replica.
        out.put_i32(-1);
        out.put_i32(WAIT_MS as i32);
        out.put_i32(1);
        out.put_i32(MAX_FETCH_BYTES);
        out.put_i8((self.isolation == Isolation::ReadCommitted).into());
        // No fetch session.
        out.put_i32(0);
        out.put_i32(-1);
        // A topic for each partition, so that they stay in their order.
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

    async fn piece(
        &self,
        place: &Place,
        offset: i64,
        part: Part,
    ) -> Result<Option<Piece>, Failure> {
        let (topic, partition) = place;
        let told =
            |what: String| Failure::passing(format!("partition {partition} of {topic}: {what}"));
        if part.code == Code::OFFSET_OUT_OF_RANGE {
            // What was there is deleted, or we were told of an offset that never was.
            let at = match self.start {
                Start::Latest => LATEST,
                _ => EARLIEST,
            };
            let next_offset = self.offset_at(place, at).await?;
            tracing::warn!(%topic, partition, offset, next_offset, "there is no such offset any more; a source goes on elsewhere");
            return Ok(Some(Piece {
                place: place.clone(),
                records: Vec::new(),
                next_offset,
            }));
        }
        if part.code.is_error() {
            self.cluster.doubt(topic);
            return Err(told(part.code.to_string()));
        }
        let fetched = read_batches(&part.bytes, offset, &part.aborted).map_err(told)?;
        Ok(fetched.next_offset.map(|next_offset| Piece {
            place: place.clone(),
            records: fetched.records,
            next_offset,
        }))
    }

    /// Where reading of a partition begins if nothing else is known.
    pub(super) async fn first_offset(&self, place: &Place) -> Result<i64, Failure> {
        match self.start {
            Start::Earliest => self.offset_at(place, EARLIEST).await,
            Start::Latest => self.offset_at(place, LATEST).await,
            Start::Offset(offset) => Ok(i64::try_from(offset).unwrap_or(i64::MAX)),
            Start::TimestampMs(at_ms) => {
                let at_ms = i64::try_from(at_ms).unwrap_or(i64::MAX);
                match self.offset_at(place, at_ms).await? {
                    // No message is so young.
                    -1 => self.offset_at(place, LATEST).await,
                    offset => Ok(offset),
                }
            }
        }
    }

    async fn offset_at(&self, place: &Place, at: i64) -> Result<i64, Failure> {
        let (topic, partition) = place;
        let no_leader = || {
            self.cluster.doubt(topic);
            Failure::passing(format!(
                "partition {partition} of {topic} has no leader at the moment"
            ))
        };
        let broker = self
            .cluster
            .leader(topic, *partition)
            .ok_or_else(no_leader)?;
        let session = self.cluster.session(broker, 0).await?;
        let answer = session
            .ask(LIST_OFFSETS, |_, out| {
                out.put_i32(-1);
                out.put_i8((self.isolation == Isolation::ReadCommitted).into());
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
                return Err(Malformed("one partition was asked for"));
            }
            take.i32()?;
            let code = Code::take(take)?;
            take.i64()?;
            Ok((code, take.i64()?))
        })?;
        if code.is_error() {
            self.cluster.doubt(topic);
            let what = format!("partition {partition} of {topic}: {code}");
            return Err(session.failure(&what));
        }
        Ok(offset)
    }
}

fn read_parts(take: &mut Take<'_>, version: i16) -> Result<(Code, Vec<Part>), Malformed> {
    take.i32()?;
    let code = Code::take(take)?;
    take.i32()?;
    let mut parts = Vec::new();
    for _ in 0..take.count()? {
        let topic = take.text()?;
        for _ in 0..take.count()? {
            let partition = take.i32()?;
            let code = Code::take(take)?;
            // How far the partition goes, and from where.
            take.raw(24)?;
            let mut aborted = Vec::new();
            for _ in 0..take.count()? {
                let (producer, first_offset) = (take.i64()?, take.i64()?);
                aborted.push(Aborted {
                    producer,
                    first_offset,
                });
            }
            if version >= 11 {
                take.i32()?;
            }
            let bytes = take.bytes()?.to_vec();
            parts.push(Part {
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

fn received((topic, partition): &Place, record: Record) -> Received {
    let message = record.message;
    let mut fields = Map::new();
    fields.insert("partition".into(), (*partition).into());
    fields.insert("offset".into(), record.offset.into());
    fields.insert("ts".into(), message.timestamp_ms.into());
    let headers = message.headers.into_iter();
    Received {
        topic: topic.to_string(),
        payload: message.value.unwrap_or_default(),
        key: message.key,
        properties: headers
            .map(|(name, value)| (name, String::from_utf8_lossy(&value).into_owned()))
            .collect(),
        fields,
        ..Received::default()
    }
}
