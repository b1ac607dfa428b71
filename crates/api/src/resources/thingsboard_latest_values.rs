//! The latest telemetry and attributes of many devices, for queries in ThingsBoard's form.

use std::collections::BTreeMap;
use std::sync::Arc;

use ::devices::AttributeScope;
use serde::Deserialize;
use serde_json::Value;

use super::thingsboard_history::{ValueSpace, to_text};
use super::{devices, telemetry_query};
use crate::device_service::{DeviceService, DeviceServiceError};
use crate::problem_details::ProblemDetails;
use crate::state::ApiState;
use crate::telemetry_backend::{TelemetryBackendError, TelemetryReader, TelemetrySample};

/// Number of devices that are read at once; other work gets the thread in between.
const BATCH: usize = 500;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(super) enum KeyType {
    EntityField,
    TimeSeries,
    /// An attribute of any scope: the one that changed last.
    Attribute,
    ClientAttribute,
    SharedAttribute,
    ServerAttribute,
}

/// A field, telemetry key or attribute.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct EntityKey {
    #[serde(rename = "type")]
    pub(super) kind: KeyType,
    pub(super) key: String,
}

impl KeyType {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::EntityField => "ENTITY_FIELD",
            Self::TimeSeries => "TIME_SERIES",
            Self::Attribute => "ATTRIBUTE",
            Self::ClientAttribute => "CLIENT_ATTRIBUTE",
            Self::SharedAttribute => "SHARED_ATTRIBUTE",
            Self::ServerAttribute => "SERVER_ATTRIBUTE",
        }
    }

    /// Its scopes.
    pub(super) fn scopes(self) -> &'static [AttributeScope] {
        match self {
            Self::EntityField | Self::TimeSeries => &[],
            Self::Attribute => &AttributeScope::ALL,
            Self::ClientAttribute => &[AttributeScope::Client],
            Self::SharedAttribute => &[AttributeScope::Shared],
            Self::ServerAttribute => &[AttributeScope::Server],
        }
    }
}

/// The latest value of a key of a device.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LatestValue {
    /// Position of the key in the request.
    pub(super) key: usize,
    pub(super) ts_ms: i64,
    /// Text, or null.
    pub(super) value: Value,
}

/// Reads the latest values of devices; keys without a value are absent. A device that does not exist
/// has none.
pub(super) async fn read_latest(
    app: &Arc<ApiState>,
    ids: Vec<String>,
    keys: Vec<EntityKey>,
) -> Result<Vec<Vec<LatestValue>>, ProblemDetails> {
    let (ids, keys) = (Arc::<[String]>::from(ids), Arc::<[EntityKey]>::from(keys));
    let mut latest = vec![Vec::new(); ids.len()];
    let mut space = ValueSpace::new();
    for from in (0..ids.len()).step_by(BATCH) {
        let batch = from..ids.len().min(from + BATCH);
        if keys.iter().any(|key| key.kind == KeyType::TimeSeries) {
            let (ids, keys, batch) = (ids.clone(), keys.clone(), batch.clone());
            let read = telemetry_query::run_on_all_nodes(app, move |telemetry| {
                read_latest_telemetry(telemetry, &ids[batch], &keys)
            });
            for (of_device, read) in latest[from..].iter_mut().zip(read.await?.0) {
                of_device.extend(read);
            }
        }
        if keys.iter().any(|key| !key.kind.scopes().is_empty()) {
            let (ids, keys) = (ids.clone(), keys.clone());
            let read = devices::run_blocking(app, move |tools| {
                let read = ids[batch]
                    .iter()
                    .map(|id| read_attributes(tools, id, &keys));
                read.collect::<Result<Vec<_>, _>>()
            });
            for (of_device, read) in latest[from..].iter_mut().zip(read.await?) {
                of_device.extend(read);
            }
        }
        let read = latest[from..].iter().take(BATCH).flatten();
        if !read.into_iter().all(|latest| space.take(&latest.value)) {
            return Err(telemetry_query::to_problem(ValueSpace::error()));
        }
    }
    Ok(latest)
}

/// The latest values of each device.
fn read_latest_telemetry(
    telemetry: &dyn TelemetryReader,
    ids: &[String],
    keys: &[EntityKey],
) -> Result<Vec<Vec<LatestValue>>, TelemetryBackendError> {
    let wanted = |key: &&EntityKey| key.kind == KeyType::TimeSeries;
    let names: Vec<String> = keys
        .iter()
        .filter(wanted)
        .map(|key| key.key.clone())
        .collect();
    let value_of = |sample: TelemetrySample| {
        let is_key = |key: &EntityKey| key.kind == KeyType::TimeSeries && key.key == sample.key;
        Some(LatestValue {
            key: keys.iter().position(is_key)?,
            ts_ms: sample.ts_ms,
            value: to_text(sample.value),
        })
    };
    let latest = telemetry.latest_of_devices(ids, Some(&names))?.into_iter();
    let latest = latest.map(|samples| samples.unwrap_or_default());
    Ok(latest
        .map(|samples| samples.into_iter().filter_map(value_of).collect())
        .collect())
}

fn read_attributes(
    tools: &DeviceService,
    id: &str,
    keys: &[EntityKey],
) -> Result<Vec<LatestValue>, DeviceServiceError> {
    let mut newest: BTreeMap<usize, LatestValue> = BTreeMap::new();
    for scope in KeyType::Attribute.scopes() {
        if !keys.iter().any(|key| key.kind.scopes().contains(scope)) {
            continue;
        }
        let attributes = match tools.attributes(id, *scope) {
            Err(DeviceServiceError::NotFound(_)) => return Ok(Vec::new()),
            attributes => attributes?,
        };
        for attribute in attributes {
            let ts_ms = attribute.updated_at_ms as i64;
            for (at, key) in keys.iter().enumerate() {
                let is_key = key.kind.scopes().contains(scope) && attribute.key == key.key;
                if is_key && newest.get(&at).is_none_or(|other| other.ts_ms < ts_ms) {
                    let value = to_text(attribute.value.clone());
                    newest.insert(
                        at,
                        LatestValue {
                            key: at,
                            ts_ms,
                            value,
                        },
                    );
                }
            }
        }
    }
    Ok(newest.into_values().collect())
}
