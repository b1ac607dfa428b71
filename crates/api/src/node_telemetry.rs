//! Telemetry between the nodes of a cluster: what a node asks another, and how it answers from what it has stored.
//!
//! Questions and answers are JSON. The node that asks has checked the permissions of its caller.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use series::Aggregate;

use crate::telemetry_backend::{
    CalendarUnit, IntervalLength, IntervalQuery, IntervalRow, RowQuery, TelemetryBackendError,
    TelemetryReader, TelemetrySample,
};

/// Values of an answer with the latest values, in bytes. The other devices are left out, and asked for again.
const MAX_LATEST_BYTES: usize = 2 << 20;
/// Size of a value without its texts.
const BYTES_PER_VALUE: usize = 48;

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
    /// Is answered with a list of [`SharedInterval`].
    Intervals(SharedIntervalQuery),
}

/// A value; that of a number has all its bits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum SharedValue {
    #[serde(rename = "b")]
    Bool(bool),
    #[serde(rename = "i")]
    Int(i64),
    /// The bits of a number with fractional digits, which may not be the same after reading them as decimal digits.
    #[serde(rename = "f")]
    Float(u64),
    #[serde(rename = "t")]
    Text(String),
    #[serde(rename = "j")]
    Json(Value),
}

impl From<Value> for SharedValue {
    fn from(value: Value) -> Self {
        match value {
            Value::Bool(value) => Self::Bool(value),
            Value::String(text) => Self::Text(text),
            Value::Number(number) => match (number.as_i64(), number.as_f64()) {
                (Some(value), _) => Self::Int(value),
                (None, Some(value)) => Self::Float(value.to_bits()),
                (None, None) => Self::Json(Value::Number(number)),
            },
            value @ (Value::Null | Value::Array(_) | Value::Object(_)) => Self::Json(value),
        }
    }
}

impl From<SharedValue> for Value {
    fn from(value: SharedValue) -> Self {
        match value {
            SharedValue::Bool(value) => value.into(),
            SharedValue::Int(value) => value.into(),
            SharedValue::Float(bits) => f64::from_bits(bits).into(),
            SharedValue::Text(text) => text.into(),
            SharedValue::Json(value) => value,
        }
    }
}

fn size_of(value: &SharedValue) -> usize {
    BYTES_PER_VALUE
        + match value {
            SharedValue::Text(text) => text.len(),
            SharedValue::Json(value) => value.to_string().len(),
            SharedValue::Bool(_) | SharedValue::Int(_) | SharedValue::Float(_) => 0,
        }
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

/// Like [`IntervalQuery`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SharedIntervalQuery {
    devices: Vec<String>,
    keys: Vec<String>,
    from_ms: Option<i64>,
    to_ms: i64,
    length: SharedLength,
    origin_ms: Option<i64>,
    time_zone: Option<String>,
    functions: Vec<String>,
    merged: bool,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum SharedLength {
    All,
    Ms(i64),
    Day,
    Week,
    WeekFromSunday,
    Month,
    Quarter,
    Year,
}

impl From<IntervalLength> for SharedLength {
    fn from(length: IntervalLength) -> Self {
        match length {
            IntervalLength::All => Self::All,
            IntervalLength::Ms(ms) => Self::Ms(ms),
            IntervalLength::Calendar(unit) => match unit {
                CalendarUnit::Day => Self::Day,
                CalendarUnit::Week => Self::Week,
                CalendarUnit::WeekFromSunday => Self::WeekFromSunday,
                CalendarUnit::Month => Self::Month,
                CalendarUnit::Quarter => Self::Quarter,
                CalendarUnit::Year => Self::Year,
            },
        }
    }
}

impl From<SharedLength> for IntervalLength {
    fn from(length: SharedLength) -> Self {
        Self::Calendar(match length {
            SharedLength::All => return Self::All,
            SharedLength::Ms(ms) => return Self::Ms(ms),
            SharedLength::Day => CalendarUnit::Day,
            SharedLength::Week => CalendarUnit::Week,
            SharedLength::WeekFromSunday => CalendarUnit::WeekFromSunday,
            SharedLength::Month => CalendarUnit::Month,
            SharedLength::Quarter => CalendarUnit::Quarter,
            SharedLength::Year => CalendarUnit::Year,
        })
    }
}

impl SharedIntervalQuery {
    /// `functions` replace those of the query.
    pub(crate) fn new(query: &IntervalQuery, functions: &[Aggregate]) -> Self {
        let names = functions.iter().map(|function| function.name().to_owned());
        Self {
            devices: query.devices.clone(),
            keys: query.keys.clone(),
            from_ms: query.from_ms,
            to_ms: query.to_ms,
            length: query.length.into(),
            origin_ms: query.origin_ms,
            time_zone: query.time_zone.clone(),
            functions: names.collect(),
            merged: query.merged,
        }
    }

    fn into_query(self) -> Result<IntervalQuery, String> {
        let functions = self.functions.iter().map(|name| {
            let function = Aggregate::from_name(name);
            function.ok_or_else(|| format!("it does not know the function {name:?}"))
        });
        Ok(IntervalQuery {
            functions: functions.collect::<Result<_, _>>()?,
            devices: self.devices,
            keys: self.keys,
            from_ms: self.from_ms,
            to_ms: self.to_ms,
            length: self.length.into(),
            origin_ms: self.origin_ms,
            time_zone: self.time_zone,
            merged: self.merged,
        })
    }
}

/// Like [`IntervalRow`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SharedInterval {
    device: Option<String>,
    key: String,
    ts_ms: i64,
    values: Vec<SharedValue>,
}

impl From<IntervalRow> for SharedInterval {
    fn from(row: IntervalRow) -> Self {
        Self {
            device: row.device,
            key: row.key,
            ts_ms: row.ts_ms,
            values: row.values.into_iter().map(SharedValue::from).collect(),
        }
    }
}

impl From<SharedInterval> for IntervalRow {
    fn from(row: SharedInterval) -> Self {
        Self {
            device: row.device,
            key: row.key,
            ts_ms: row.ts_ms,
            values: row.values.into_iter().map(Value::from).collect(),
        }
    }
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

/// Answers with the telemetry of this node. May block.
pub(crate) fn answer(
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
        TelemetryQuestion::Intervals(query) => {
            let query = query.into_query()?;
            let intervals = intervals_of_known(telemetry, query).map_err(to_reason)?;
            let intervals = intervals.into_iter().map(SharedInterval::from);
            serde_json::to_vec(&intervals.collect::<Vec<_>>())
        }
    };
    json.map_err(|error| error.to_string())
}

/// The intervals of those of the devices that exist.
fn intervals_of_known(
    telemetry: &dyn TelemetryReader,
    mut query: IntervalQuery,
) -> Result<Vec<IntervalRow>, TelemetryBackendError> {
    loop {
        match telemetry.intervals(&query) {
            Err(TelemetryBackendError::NoDevice(absent)) if query.devices.contains(&absent) => {
                query.devices.retain(|device| *device != absent);
                if query.devices.is_empty() {
                    return Ok(Vec::new());
                }
            }
            intervals => return intervals,
        }
    }
}

pub(crate) fn to_reason(error: TelemetryBackendError) -> String {
    match error {
        TelemetryBackendError::NoDevice(device) => format!("it has no device {device:?}"),
        TelemetryBackendError::Parameter { name, detail } => format!("{name}: {detail}"),
        TelemetryBackendError::Unavailable(detail) => detail,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_the_same_at_the_other_node() {
        let numbers = [0.1 + 0.2, 1.0, 5e-324, 1.7976931348623157e308, -0.0];
        let numbers = numbers.iter().map(|number| json!(number));
        let others = [
            json!(i64::MIN),
            json!(true),
            json!("1"),
            json!(null),
            json!({"a": [1, 2.5]}),
        ];
        for value in numbers.chain(others) {
            let sent = serde_json::to_vec(&SharedValue::from(value.clone())).unwrap();
            let received: SharedValue = serde_json::from_slice(&sent).unwrap();
            assert_eq!(Value::from(received).to_string(), value.to_string());
        }
    }

    #[test]
    fn lengths_are_the_same_at_the_other_node() {
        for length in [
            IntervalLength::All,
            IntervalLength::Ms(7),
            IntervalLength::Calendar(CalendarUnit::WeekFromSunday),
            IntervalLength::Calendar(CalendarUnit::Year),
        ] {
            let sent = serde_json::to_vec(&SharedLength::from(length)).unwrap();
            let received: SharedLength = serde_json::from_slice(&sent).unwrap();
            assert_eq!(IntervalLength::from(received), length);
        }
    }
}
