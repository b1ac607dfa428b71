//! Requests between nodes about copies of telemetry, and their answers.
//!
//! The first byte of a request is `J`, followed by a [`CopyRequest`] as JSON, or `B`, followed by a line with a
//! [`BatchHead`] as JSON and the entries of a batch (`batch.rs`). Answers are a [`CopyAnswer`] as JSON.

use serde::{Deserialize, Serialize};
use series::SeriesPositions;

const JSON: u8 = b'J';
const BATCH: u8 = b'B';

/// Which copy is meant: those of a node whose time series were lost, and of the ones that it began afterwards, differ.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct CopySource {
    pub(crate) node: String,
    /// Random number of the time series that are copied.
    pub(crate) series: u64,
}

impl CopySource {
    /// The name of the copy, also that of its directory.
    pub(crate) fn key(&self) -> String {
        format!("{}-{:016x}", self.node, self.series)
    }

    /// Whether the name of the node can be part of a file name.
    pub(crate) fn is_valid(&self) -> bool {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        (1..=128).contains(&self.node.len()) && self.node.bytes().all(is_allowed)
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CopyRequest {
    /// The node begins to send, in this run of its own. Is answered with [`CopyAnswer::Position`].
    Begin {
        source: CopySource,
        copy: u64,
        run: u64,
    },
    /// What a node has copied elsewhere, and what it has copies of.
    Announce {
        from: String,
        /// `None`: it does not know yet.
        own: Option<OwnCopy>,
        kept: Vec<PlacedCopy>,
    },
}

/// The copy that counts for some time series: other ones of these are removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OwnCopy {
    pub(crate) series: u64,
    /// `None`: no copy is wanted.
    pub(crate) copy: Option<u64>,
    /// Until it is complete, earlier copies are kept.
    pub(crate) is_complete: bool,
}

/// A copy of the telemetry of a node at another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedCopy {
    /// Names the copy at the node that has it.
    pub key: String,
    /// Whose telemetry it is.
    pub node: String,
    /// Whether it has all rows of copied devices, except those that were on their way when the node failed.
    pub is_complete: bool,
    /// The node has begun again with empty time series: its former rows are only here.
    pub is_orphan: bool,
    /// When the node has last sent something, by its clock.
    pub sent_ms: u64,
    /// Random number of the copy.
    pub copy: u64,
}

/// The head of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BatchHead {
    pub(crate) source: CopySource,
    pub(crate) copy: u64,
    pub(crate) run: u64,
    /// Number of the batch in this run, ascending. A batch that is repeated has the same one.
    pub(crate) number: u64,
    /// With this batch, the copy has all rows up to these positions; `None`: they are the same as before.
    pub(crate) positions: Option<SeriesPositions>,
    /// With this batch, the copy has all deletions up to this number; 0: it is the same as before.
    pub(crate) deletion: u64,
    /// Products whose devices are copied; `None`: the same as before.
    pub(crate) products: Option<Vec<String>>,
    pub(crate) is_complete: bool,
    pub(crate) sent_ms: u64,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CopyAnswer {
    /// What the copy has on disk.
    Position {
        positions: SeriesPositions,
        deletion: u64,
        products: Vec<String>,
    },
    Stored {
        /// Numbers in the batch of devices that are unknown, whose entries are not stored.
        unknown_devices: Vec<u64>,
        /// The last deletion that is on disk.
        deletion: u64,
    },
    /// The copy is not known, or was begun by another run.
    NotBegun,
    Done,
}

pub(crate) enum ReceivedRequest<'a> {
    Json(CopyRequest),
    Batch(Box<BatchHead>, &'a [u8]),
}

fn to_json<T: Serialize>(message: &T, out: &mut Vec<u8>) {
    // Only maps with keys that are no texts, and failing writers, are errors.
    serde_json::to_writer(out, message).expect("the message can be written as JSON");
}

pub(crate) fn encode_request(request: &CopyRequest) -> Vec<u8> {
    let mut message = vec![JSON];
    to_json(request, &mut message);
    message
}

pub(crate) fn encode_batch(head: &BatchHead, entries: &[u8]) -> Vec<u8> {
    let mut message = vec![BATCH];
    to_json(head, &mut message);
    message.push(b'\n');
    message.extend_from_slice(entries);
    message
}

pub(crate) fn encode_answer(answer: &CopyAnswer) -> Vec<u8> {
    let mut message = Vec::new();
    to_json(answer, &mut message);
    message
}

/// # Errors
/// If the message is none of this version.
pub(crate) fn decode_request(message: &[u8]) -> Result<ReceivedRequest<'_>, String> {
    let unreadable =
        |error: serde_json::Error| format!("the request about a copy of telemetry: {error}");
    match message.split_first() {
        Some((&JSON, json)) => {
            let request = serde_json::from_slice(json).map_err(unreadable)?;
            Ok(ReceivedRequest::Json(request))
        }
        Some((&BATCH, rest)) => {
            let end = rest.iter().position(|byte| *byte == b'\n');
            let end = end.ok_or("a batch of telemetry has no head")?;
            let head = serde_json::from_slice(&rest[..end]).map_err(unreadable)?;
            Ok(ReceivedRequest::Batch(Box::new(head), &rest[end + 1..]))
        }
        _ => Err("a request about a copy of telemetry has an unknown form".to_owned()),
    }
}

/// # Errors
/// If the message is none of this version.
pub(crate) fn decode_answer(message: &[u8]) -> Result<CopyAnswer, String> {
    serde_json::from_slice(message)
        .map_err(|error| format!("the answer about a copy of telemetry: {error}"))
}
