//! Answers the requests of devices at relay endpoints: `config_query`, `status_sync` and `data_sync`.

use api::{IntervalLength, IntervalQuery, RowQuery, TelemetryBackendError, TelemetryReader as _};
use devices::platform::Platform;
use devices::{AttributeScope, Device, DeviceStates};
use relay::{DeviceRequest, RequestError};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use series::Aggregate;
use wall_clock::now_ms;

use super::telemetry::TelemetryService;

const DEFAULT_HISTORY_ROWS: usize = 10;
const MAX_HISTORY_ROWS: usize = 100;
const MAX_POINTS: usize = 1000;
const DEFAULT_RANGE_MS: i64 = 24 * 3600 * 1000;
/// Approximate size of a response from which no further values are added.
const MAX_RESPONSE_BYTES: usize = 256 << 10;
const SUPPORTED: &str = "config_query, status_sync or data_sync";

pub(super) struct RelayRequestHandler {
    pub(super) platform: Platform,
    pub(super) states: DeviceStates,
    pub(super) telemetry: TelemetryService,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ConfigQuery {
    config_keys: Vec<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct StatusSync {
    include_history: bool,
    history_limit: Option<usize>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DataSync {
    data_key: String,
    start_time: Option<i64>,
    end_time: Option<i64>,
    aggregation: Option<DataAggregation>,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "snake_case")]
enum DataAggregation {
    None,
    Minute,
    Hour,
    Day,
}

impl DataAggregation {
    fn interval_ms(self) -> Option<i64> {
        Some(match self {
            Self::None => return None,
            Self::Minute => 60_000,
            Self::Hour => 3_600_000,
            Self::Day => 86_400_000,
        })
    }
}

fn invalid_params(detail: impl std::fmt::Display) -> RequestError {
    RequestError {
        code: "INVALID_PARAMS",
        message: format!("params: {detail}"),
    }
}

fn unavailable(error: impl std::fmt::Display) -> RequestError {
    RequestError {
        code: "INTERNAL_ERROR",
        message: error.to_string(),
    }
}

fn telemetry_error(error: TelemetryBackendError) -> RequestError {
    match error {
        TelemetryBackendError::Parameter { detail, .. } => invalid_params(detail),
        TelemetryBackendError::Unavailable(reason) => unavailable(reason),
        TelemetryBackendError::NoDevice(_) => unavailable("the device was removed"),
    }
}

fn read_params<T: DeserializeOwned>(params: &Value) -> Result<T, RequestError> {
    let params = match params {
        Value::Null => Value::Object(Map::new()),
        params => params.clone(),
    };
    serde_json::from_value(params).map_err(invalid_params)
}

/// Counts the size of values, so that a response stays small.
#[derive(Default)]
struct ResponseBudget(usize);

impl ResponseBudget {
    /// Whether a value still fits.
    fn add(&mut self, key: &str, value: &Value) -> bool {
        let text = value.as_str().map_or(24, str::len);
        self.0 += key.len() + text + 32;
        self.0 <= MAX_RESPONSE_BYTES
    }
}

impl RelayRequestHandler {
    pub(super) fn platform(&self) -> &Platform {
        &self.platform
    }

    /// Answers a request. May wait.
    pub(super) fn answer(
        &self,
        device: &Device,
        request: &DeviceRequest,
    ) -> Result<Value, RequestError> {
        let params = &request.params;
        match &*request.request_type {
            "config_query" => self.query_config(device, &read_params(params)?),
            "status_sync" => self.sync_status(device, &read_params(params)?),
            "data_sync" => self.sync_data(device, &read_params(params)?),
            other => {
                let other: String = other.chars().take(64).collect();
                Err(RequestError {
                    code: "INVALID_REQUEST_TYPE",
                    message: format!("requestType: expected {SUPPORTED}, found {other:?}"),
                })
            }
        }
    }

    /// The configuration of a device is its shared attributes.
    fn query_config(&self, device: &Device, query: &ConfigQuery) -> Result<Value, RequestError> {
        let registry = &self.telemetry.registry;
        let attributes = registry
            .attributes(device, AttributeScope::Shared)
            .map_err(unavailable)?;
        let is_wanted =
            |key: &String| query.config_keys.is_empty() || query.config_keys.contains(key);
        let values: Map<String, Value> = (attributes.into_iter())
            .filter(|attribute| is_wanted(&attribute.key))
            .map(|attribute| (attribute.key, attribute.value))
            .collect();
        Ok(Value::Object(values))
    }

    fn sync_status(&self, device: &Device, query: &StatusSync) -> Result<Value, RequestError> {
        let limit = query.history_limit.unwrap_or(DEFAULT_HISTORY_ROWS);
        if limit > MAX_HISTORY_ROWS {
            let detail =
                format!("historyLimit: expected at most {MAX_HISTORY_ROWS}, found {limit}");
            return Err(invalid_params(detail));
        }
        let presence = self.states.presence(device.no).map_err(unavailable)?;
        let id = device.id.as_str();
        let samples = self.telemetry.latest(id, None).map_err(telemetry_error)?;
        let mut budget = ResponseBudget::default();
        let mut values = Map::new();
        for sample in samples {
            if !budget.add(&sample.key, &sample.value) {
                break;
            }
            let value =
                json!({"value": sample.value, "unit": sample.unit, "timestamp": sample.ts_ms});
            values.insert(sample.key, value);
        }
        let mut data = json!({
            "status": presence.state,
            "customName": device.name(),
            "lastSeenAt": presence.last_seen_ms,
            "values": values,
        });
        if query.include_history && limit > 0 {
            let rows = RowQuery {
                device: id.to_owned(),
                keys: None,
                from_ms: i64::MIN,
                to_ms: i64::MAX,
                limit,
                newest_first: true,
            };
            let mut history = Vec::new();
            let read = self.telemetry.rows(&rows, &mut |ts_ms, values| {
                let has_room = values.iter().all(|(key, value)| budget.add(key, value));
                if has_room {
                    let values: Map<String, Value> = values.into_iter().collect();
                    history.push(json!({"timestamp": ts_ms, "values": values}));
                }
                has_room
            });
            read.map_err(telemetry_error)?;
            data["history"] = history.into();
        }
        Ok(data)
    }

    fn sync_data(&self, device: &Device, query: &DataSync) -> Result<Value, RequestError> {
        let now_ms = now_ms() as i64;
        let end_ms = query.end_time.unwrap_or(now_ms);
        let start_ms = query
            .start_time
            .unwrap_or_else(|| end_ms.saturating_sub(DEFAULT_RANGE_MS));
        if start_ms >= end_ms {
            return Err(invalid_params("startTime: expected a time before endTime"));
        }
        let key = &query.data_key;
        let points = match query.aggregation.and_then(DataAggregation::interval_ms) {
            None => self.raw_points(device, key, start_ms, end_ms)?,
            Some(interval_ms) => self.averages(device, key, (start_ms, end_ms), interval_ms)?,
        };
        let unit = self.telemetry.unit_of(device, key);
        Ok(json!({"dataKey": key, "unit": unit, "points": points}))
    }

    /// The newest points of a range, in the order of time.
    fn raw_points(
        &self,
        device: &Device,
        key: &str,
        start_ms: i64,
        end_ms: i64,
    ) -> Result<Vec<Value>, RequestError> {
        let rows = RowQuery {
            device: device.id.as_str().to_owned(),
            keys: Some(vec![key.to_owned()]),
            from_ms: start_ms,
            to_ms: end_ms,
            limit: MAX_POINTS,
            newest_first: true,
        };
        let mut budget = ResponseBudget::default();
        let mut points = Vec::new();
        let read = self.telemetry.rows(&rows, &mut |ts_ms, values| {
            let Some((_, value)) = values.into_iter().next() else {
                return true;
            };
            let has_room = budget.add("", &value);
            if has_room {
                points.push(json!({"timestamp": ts_ms, "value": value}));
            }
            has_room
        });
        read.map_err(telemetry_error)?;
        points.reverse();
        Ok(points)
    }

    fn averages(
        &self,
        device: &Device,
        key: &str,
        (start_ms, end_ms): (i64, i64),
        interval_ms: i64,
    ) -> Result<Vec<Value>, RequestError> {
        if end_ms.saturating_sub(start_ms) / interval_ms >= MAX_POINTS as i64 {
            let detail = format!(
                "aggregation: the range has more than {MAX_POINTS} intervals; expected a shorter range or longer intervals"
            );
            return Err(invalid_params(detail));
        }
        let query = IntervalQuery {
            devices: vec![device.id.as_str().to_owned()],
            keys: vec![key.to_owned()],
            from_ms: Some(start_ms),
            to_ms: end_ms,
            length: IntervalLength::Ms(interval_ms),
            origin_ms: None,
            time_zone: None,
            functions: vec![Aggregate::Avg],
            merged: false,
        };
        let rows = self.telemetry.intervals(&query).map_err(telemetry_error)?;
        let points = rows.into_iter().filter_map(|row| {
            let value = row.values.into_iter().next()?;
            (!value.is_null()).then(|| json!({"timestamp": row.ts_ms, "value": value}))
        });
        Ok(points.collect())
    }
}
