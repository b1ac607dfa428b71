//! Stored telemetry for ThingsBoard's WebSocket: the latest values of a device, or those of a period.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use series::Aggregate;

use super::thingsboard::parse_aggregation;
use crate::query_parameters::MAX_TIME_MS;
use crate::telemetry_backend::{
    CalendarUnit, IntervalLength, IntervalQuery, RowQuery, TelemetryBackendError, TelemetryReader,
};

/// Default number of values per key in one response.
const DEFAULT_LIMIT: usize = 100;
const MAX_LIMIT: usize = 10_000;
/// Maximum number of keys per command.
pub(super) const MAX_KEYS: usize = 256;
/// Maximum size of the values in one response.
const MAX_VALUE_BYTES: usize = 8 << 20;
/// Size of a value in JSON without its text: time and punctuation.
const BYTES_PER_VALUE: usize = 32;
/// How far before a period `fetchLatestPreviousPoint` looks, as in ThingsBoard.
const PREVIOUS_POINT_WITHIN_MS: i64 = 365 * 24 * 3_600_000;

/// The period of a command.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PeriodFields {
    start_ts: i64,
    end_ts: i64,
    pub(super) time_window: i64,
    interval: Option<i64>,
    interval_type: Option<String>,
    time_zone_id: Option<String>,
    limit: Option<usize>,
    agg: Option<String>,
    fetch_latest_previous_point: bool,
}

/// The stored telemetry that is sent first.
#[derive(Debug, Clone)]
pub(super) enum TelemetryHistory {
    Latest,
    Range {
        from_ms: i64,
        to_ms: i64,
        limit: usize,
        has_previous_point: bool,
        aggregation: Option<Aggregation>,
    },
}

#[derive(Debug, Clone)]
pub(super) struct Aggregation {
    aggregate: Aggregate,
    length: IntervalLength,
    time_zone: Option<String>,
}

/// Values of each key, newest first, or ascending if they are aggregated. Values are text, as in
/// ThingsBoard, or null.
pub(super) type KeyValues = BTreeMap<String, Vec<(i64, Value)>>;

/// ThingsBoard sends every value as text.
pub(super) fn to_text(value: Value) -> Value {
    match value {
        Value::String(_) | Value::Null => value,
        other => Value::String(other.to_string()),
    }
}

/// The space for values that is left in one response.
pub(super) struct ValueSpace {
    free_bytes: usize,
}

impl ValueSpace {
    pub(super) fn new() -> Self {
        Self {
            free_bytes: MAX_VALUE_BYTES,
        }
    }

    /// `false`: the value has no space.
    pub(super) fn take(&mut self, value: &Value) -> bool {
        let bytes = BYTES_PER_VALUE + value.as_str().map_or(0, str::len);
        let free = self.free_bytes.checked_sub(bytes);
        self.free_bytes = free.unwrap_or(0);
        free.is_some()
    }

    pub(super) fn error() -> TelemetryBackendError {
        TelemetryBackendError::Parameter {
            name: "keys",
            detail: format!(
                "the answer has more than {MAX_VALUE_BYTES} bytes; expected fewer devices or keys, a shorter period, a smaller limit or longer intervals"
            ),
        }
    }
}

impl PeriodFields {
    /// The period that ends at `endTs`.
    pub(super) fn until_end(&self) -> Result<TelemetryHistory, String> {
        self.until(self.end_ts)
    }

    /// The period that is `timeWindow` long.
    pub(super) fn of_time_window(&self) -> Result<TelemetryHistory, String> {
        self.until(self.start_ts.saturating_add(self.time_window))
    }

    fn until(&self, to_ms: i64) -> Result<TelemetryHistory, String> {
        let from_ms = self.start_ts;
        if from_ms < 0 || to_ms < from_ms || to_ms > MAX_TIME_MS as i64 {
            return Err(format!(
                "startTs: {from_ms}, endTs: {to_ms}; expected times from 0 to {MAX_TIME_MS} in this order."
            ));
        }
        Ok(TelemetryHistory::Range {
            from_ms,
            to_ms,
            limit: match self.limit {
                None | Some(0) => DEFAULT_LIMIT,
                Some(limit) => limit.min(MAX_LIMIT),
            },
            has_previous_point: self.fetch_latest_previous_point,
            aggregation: self.aggregation(to_ms - from_ms)?,
        })
    }

    fn aggregation(&self, period_ms: i64) -> Result<Option<Aggregation>, String> {
        let Some(aggregate) = parse_aggregation(self.agg.as_deref())? else {
            return Ok(None);
        };
        let unit = match self.interval_type.as_deref() {
            None | Some("" | "MILLISECONDS") => None,
            Some("WEEK") => Some(CalendarUnit::WeekFromSunday),
            Some("WEEK_ISO") => Some(CalendarUnit::Week),
            Some("MONTH") => Some(CalendarUnit::Month),
            Some("QUARTER") => Some(CalendarUnit::Quarter),
            Some(other) => {
                return Err(format!(
                    "intervalType: {other:?} is unknown; expected MILLISECONDS, WEEK, WEEK_ISO, MONTH or QUARTER."
                ));
            }
        };
        let given_ms = self.interval.filter(|ms| *ms > 0);
        let fixed_ms = given_ms.unwrap_or_else(|| period_ms.max(1));
        Ok(Some(Aggregation {
            aggregate,
            length: unit.map_or(IntervalLength::Ms(fixed_ms), IntervalLength::Calendar),
            time_zone: unit.and_then(|_| self.time_zone_id.clone()),
        }))
    }
}

impl TelemetryHistory {
    pub(super) fn is_aggregated(&self) -> bool {
        matches!(
            self,
            Self::Range {
                aggregation: Some(_),
                ..
            }
        )
    }

    /// Reads the values of one device; `None`: of all its keys.
    pub(super) fn read(
        &self,
        telemetry: &dyn TelemetryReader,
        device: &str,
        keys: Option<&[String]>,
        space: &mut ValueSpace,
    ) -> Result<KeyValues, TelemetryBackendError> {
        let mut values = KeyValues::new();
        let mut has_space = true;
        let mut put = |key: String, ts_ms, value| {
            let value = to_text(value);
            has_space = has_space && space.take(&value);
            if has_space {
                let of_key: &mut Vec<_> = values.entry(key).or_default();
                of_key.push((ts_ms, value));
            }
            has_space
        };
        match self {
            Self::Latest => {
                for sample in telemetry.latest(device, keys)? {
                    put(sample.key, sample.ts_ms, sample.value);
                }
            }
            Self::Range {
                from_ms,
                to_ms,
                aggregation: Some(aggregation),
                ..
            } => {
                let query = IntervalQuery {
                    devices: vec![device.to_owned()],
                    keys: keys.unwrap_or_default().to_vec(),
                    from_ms: Some(*from_ms),
                    to_ms: *to_ms,
                    length: aggregation.length,
                    origin_ms: Some(*from_ms),
                    time_zone: aggregation.time_zone.clone(),
                    functions: vec![aggregation.aggregate],
                    merged: false,
                };
                // Intervals of fixed length are dated at their middle, as on the HTTP paths.
                let middle_ms = match aggregation.length {
                    IntervalLength::Ms(length_ms) => length_ms / 2,
                    _ => 0,
                };
                for row in telemetry.intervals(&query)? {
                    let value = row.values.into_iter().next();
                    if let Some(value) = value.filter(|value| !value.is_null()) {
                        put(row.key, row.ts_ms + middle_ms, value);
                    }
                }
            }
            Self::Range {
                from_ms,
                to_ms,
                limit,
                has_previous_point,
                aggregation: None,
            } => {
                let keys = match keys {
                    Some(keys) => keys.to_vec(),
                    None => {
                        let latest = telemetry.latest(device, None)?.into_iter();
                        latest.map(|sample| sample.key).take(MAX_KEYS).collect()
                    }
                };
                for key in keys {
                    let mut query = RowQuery {
                        device: device.to_owned(),
                        keys: Some(vec![key]),
                        from_ms: *from_ms,
                        to_ms: *to_ms,
                        limit: *limit,
                        newest_first: true,
                    };
                    let mut each = |ts_ms, row: Vec<(String, Value)>| {
                        (row.into_iter()).all(|(key, value)| put(key, ts_ms, value))
                    };
                    telemetry.rows(&query, &mut each)?;
                    if *has_previous_point {
                        query.from_ms = from_ms.saturating_sub(PREVIOUS_POINT_WITHIN_MS).max(0);
                        (query.to_ms, query.limit) = (*from_ms, 1);
                        telemetry.rows(&query, &mut each)?;
                    }
                }
            }
        }
        match has_space {
            true => Ok(values),
            false => Err(ValueSpace::error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_response_has_space_for_a_bounded_amount_of_values() {
        let mut space = ValueSpace::new();
        let text = Value::String("x".repeat(MAX_VALUE_BYTES / 4));
        let taken = (0..10).take_while(|_| space.take(&text)).count();
        assert_eq!(taken, 3);
        assert!(
            !space.take(&json!("1")),
            "nothing is left after a rejection"
        );
        let mut space = ValueSpace::new();
        let taken = (0..1_000_000)
            .take_while(|_| space.take(&json!("1")))
            .count();
        assert_eq!(taken, MAX_VALUE_BYTES / (BYTES_PER_VALUE + 1));
    }

    #[test]
    fn periods_are_checked() {
        let period = |fields: Value| PeriodFields::deserialize(fields).unwrap();
        for (fields, expected) in [
            (json!({"startTs": 5, "endTs": 1}), "startTs: 5, endTs: 1"),
            (json!({"startTs": -1}), "startTs: -1"),
            (
                json!({"endTs": 1, "agg": "MEAN"}),
                "agg: \"MEAN\" is unknown",
            ),
            (
                json!({"endTs": 1, "agg": "FIRST"}),
                "agg: \"FIRST\" is unknown; expected one of NONE, AVG, MIN, MAX, SUM, COUNT.",
            ),
            (
                json!({"endTs": 1, "agg": "AVG", "intervalType": "DAY"}),
                "intervalType: \"DAY\" is unknown; expected MILLISECONDS, WEEK",
            ),
        ] {
            let error = period(fields.clone()).until_end().unwrap_err();
            assert!(error.starts_with(expected), "{fields}: {error}");
        }
        let calendar =
            json!({"endTs": 1, "agg": "SUM", "intervalType": "MONTH", "timeZoneId": "Europe/Kyiv"});
        let Ok(TelemetryHistory::Range {
            aggregation: Some(aggregation),
            ..
        }) = period(calendar).until_end()
        else {
            panic!("an aggregation is given");
        };
        assert_eq!(
            aggregation.length,
            IntervalLength::Calendar(CalendarUnit::Month)
        );
        assert_eq!(aggregation.time_zone.as_deref(), Some("Europe/Kyiv"));
    }
}
