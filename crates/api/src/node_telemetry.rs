//! Telemetry between the nodes of a cluster: what a node asks another, and how it answers from what it has stored.
//!
//! Questions and answers are JSON. The node that asks has checked the permissions of its caller.

use serde::{Deserialize, Serialize};

use crate::node_intervals::{IntervalQuestion, interval_page};
use crate::shared_value::{SharedValue, size_of};
use crate::telemetry_backend::{
    RowQuery, TelemetryBackend, TelemetryBackendError, TelemetryReader, TelemetrySample, to_reason,
};

/// Values of an answer with the latest values, in bytes. The other devices are left out, and asked for again.
const MAX_LATEST_BYTES: usize = 2 << 20;

/// What a node asks another about its telemetry. Devices that the other one does not have, have no telemetry there.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TelemetryQuestion {
    /// Is answered with lists of [`SharedSample`] for the first devices, at least one.
    Latest {
        devices: Vec<String>,
        keys: Option<Vec<String>>,
    },
    /// Is answered with a [`RowPage`].
    Rows { query: RowQuery, max_bytes: usize },
    /// Is answered with an [`IntervalPage`](crate::node_intervals::IntervalPage).
    Intervals(IntervalQuestion),
    /// Another question, about the telemetry of another node, of which the node has a copy with this key. Is answered with a
    /// [`CopyAnswer`].
    Copy {
        key: String,
        question: Box<TelemetryQuestion>,
    },
}

impl TelemetryQuestion {
    /// The devices that it is about.
    fn devices(&self) -> &[String] {
        match self {
            Self::Latest { devices, .. } => devices,
            Self::Rows { query, .. } => std::slice::from_ref(&query.device),
            Self::Intervals(question) => question.devices(),
            Self::Copy { question, .. } => question.devices(),
        }
    }
}

/// An answer from a copy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CopyAnswer<T> {
    /// Whether the copy has everything that its node has stored of the devices.
    pub(crate) is_complete: bool,
    pub(crate) answer: T,
}

/// The latest value of a key.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SharedSample {
    key: String,
    ts_ms: i64,
    value: SharedValue,
    unit: Option<String>,
}

impl From<TelemetrySample> for SharedSample {
    fn from(sample: TelemetrySample) -> Self {
        Self {
            key: sample.key,
            ts_ms: sample.ts_ms,
            value: sample.value.into(),
            unit: sample.unit,
        }
    }
}

impl From<SharedSample> for TelemetrySample {
    fn from(sample: SharedSample) -> Self {
        Self {
            key: sample.key,
            ts_ms: sample.ts_ms,
            value: sample.value.into(),
            unit: sample.unit,
        }
    }
}

/// Values of one time by key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct SharedRow(pub(crate) i64, pub(crate) Vec<(String, SharedValue)>);

/// Rows in the order of their query.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct RowPage {
    pub(crate) rows: Vec<SharedRow>,
    /// No rows follow.
    pub(crate) is_last: bool,
}

/// Reads rows up to the limit of the query, or until they have this size.
pub(crate) fn read_page(
    telemetry: &dyn TelemetryReader,
    query: &RowQuery,
    max_bytes: usize,
) -> Result<RowPage, TelemetryBackendError> {
    let mut rows = Vec::new();
    let mut bytes = 0;
    telemetry.rows(query, &mut |ts_ms, values| {
        let values = values.into_iter().map(|(key, value)| {
            let value = SharedValue::from(value);
            bytes += key.len() + size_of(&value);
            (key, value)
        });
        rows.push(SharedRow(ts_ms, values.collect()));
        bytes < max_bytes
    })?;
    Ok(RowPage {
        is_last: bytes < max_bytes && rows.len() < query.limit,
        rows,
    })
}

fn read_latest(
    telemetry: &dyn TelemetryReader,
    devices: &[String],
    keys: Option<&[String]>,
) -> Result<Vec<Vec<SharedSample>>, TelemetryBackendError> {
    let mut latest = Vec::new();
    let mut bytes = 0;
    for device in devices {
        let samples = match telemetry.latest(device, keys) {
            Err(TelemetryBackendError::NoDevice(_)) => Vec::new(),
            samples => samples?,
        };
        let samples: Vec<_> = samples.into_iter().map(SharedSample::from).collect();
        let sizes = samples
            .iter()
            .map(|sample| sample.key.len() + size_of(&sample.value));
        bytes += sizes.sum::<usize>();
        latest.push(samples);
        if bytes > MAX_LATEST_BYTES {
            break;
        }
    }
    Ok(latest)
}

/// Answers with the telemetry of this node, or with a copy of that of another one. May block.
pub(crate) fn answer(
    telemetry: &dyn TelemetryBackend,
    question: TelemetryQuestion,
) -> Result<Vec<u8>, String> {
    let TelemetryQuestion::Copy { key, question } = question else {
        return answer_from(telemetry, question);
    };
    let copy = telemetry.copy(&key).ok_or("it has no such copy")?;
    // First: what it lacks afterwards may be answered nevertheless.
    let is_complete = (copy.covers)(question.devices())?;
    let answer = answer_from(&*copy.reader, *question)?;
    let mut json = format!("{{\"is_complete\":{is_complete},\"answer\":").into_bytes();
    json.extend_from_slice(&answer);
    json.push(b'}');
    Ok(json)
}

fn answer_from(
    telemetry: &dyn TelemetryReader,
    question: TelemetryQuestion,
) -> Result<Vec<u8>, String> {
    let json = match question {
        TelemetryQuestion::Latest { devices, keys } => {
            let latest = read_latest(telemetry, &devices, keys.as_deref());
            serde_json::to_vec(&latest.map_err(to_reason)?)
        }
        TelemetryQuestion::Rows { query, max_bytes } => {
            let page = match read_page(telemetry, &query, max_bytes) {
                Err(TelemetryBackendError::NoDevice(_)) => RowPage {
                    rows: Vec::new(),
                    is_last: true,
                },
                page => page.map_err(to_reason)?,
            };
            serde_json::to_vec(&page)
        }
        TelemetryQuestion::Intervals(question) => {
            serde_json::to_vec(&interval_page(telemetry, question)?)
        }
        TelemetryQuestion::Copy { .. } => return Err("a copy has no copies".to_owned()),
    };
    json.map_err(|error| error.to_string())
}
