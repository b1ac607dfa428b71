//! Events reported by devices: the newest events of each device, in the store.
//!
//! The key of a row in the table `device_event` is the device's number and the event's number counted down, so that
//! the newest event comes first.

use std::ops::Bound;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use series::DeviceNo;
use store::Durability;

use super::{Registry, RegistryError, RegistryInner};

/// Maximum size of the data of an event; a larger event is rejected.
const MAX_DATA_BYTES: usize = 64 << 10;

/// An event of a device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceEvent {
    /// Number of the event; increases with each event of the device.
    #[serde(default)]
    pub number: u64,
    /// Time in milliseconds since 1970, as reported by the device or, without one, when the message arrived.
    pub ts_ms: i64,
    /// Id of the event in the thing model.
    pub event: String,
    pub data: Value,
}

/// Selects events of a device.
#[derive(Debug, Clone, Default)]
pub struct DeviceEventFilter {
    /// Event id; `None`: any.
    pub event: Option<String>,
    pub from_ms: Option<i64>,
    /// Exclusive end.
    pub to_ms: Option<i64>,
    /// Only events with a smaller number.
    pub before: Option<u64>,
    pub limit: usize,
}

fn event_key(device: DeviceNo, number: u64) -> [u8; 12] {
    let mut key = [0; 12];
    key[..4].copy_from_slice(&device.0.to_be_bytes());
    key[4..].copy_from_slice(&(u64::MAX - number).to_be_bytes());
    key
}

fn decode(key: &[u8], value: &[u8]) -> Option<DeviceEvent> {
    let (_, number) = key.split_last_chunk::<8>()?;
    let mut event: DeviceEvent = serde_json::from_slice(value).ok()?;
    event.number = u64::MAX - u64::from_be_bytes(*number);
    Some(event)
}

impl Registry {
    /// Appends an event of a device and removes the oldest one above the limit. Must be called by one thread at a
    /// time.
    pub fn append_event(
        &self,
        device: DeviceNo,
        event: &str,
        ts_ms: i64,
        data_json: &str,
    ) -> Result<(), RegistryError> {
        let inner = &self.inner;
        let max = u64::from(inner.config.max_events_per_device);
        if max == 0 {
            return Ok(());
        }
        if data_json.len() > MAX_DATA_BYTES {
            return Err(RegistryError::Invalid {
                field: format!("event {event:?}"),
                message: format!(
                    "expected at most {MAX_DATA_BYTES} bytes of data, found {}",
                    data_json.len()
                ),
            });
        }
        let event = DeviceEvent {
            number: inner.last_event(device)?.map_or(1, |last| last + 1),
            ts_ms,
            event: event.to_owned(),
            data: serde_json::from_str(data_json).unwrap_or_default(),
        };
        let value = serde_json::to_vec(&event).expect("an event has string keys only");
        let mut batch = inner.table_batch()?;
        batch.put(&inner.events, &event_key(device, event.number), &value)?;
        if let Some(oldest) = event.number.checked_sub(max) {
            batch.remove(&inner.events, &event_key(device, oldest))?;
        }
        Ok(batch.commit(Durability::Buffered)?)
    }

    /// Returns events, the newest first.
    pub fn events(
        &self,
        device: DeviceNo,
        query: &DeviceEventFilter,
    ) -> Result<Vec<DeviceEvent>, RegistryError> {
        let mut found = Vec::new();
        let is_wanted = |event: &DeviceEvent| {
            query.event.as_ref().is_none_or(|id| *id == event.event)
                && query.from_ms.is_none_or(|from_ms| event.ts_ms >= from_ms)
                && query.to_ms.is_none_or(|to_ms| event.ts_ms < to_ms)
                && query.before.is_none_or(|before| event.number < before)
        };
        let events = &self.inner.events;
        let prefix = device.0.to_be_bytes();
        events.scan(&prefix, Bound::Unbounded, &mut |key, value| {
            found.extend(decode(key, value).filter(&is_wanted));
            found.len() < query.limit
        })?;
        Ok(found)
    }
}

impl RegistryInner {
    fn last_event(&self, device: DeviceNo) -> Result<Option<u64>, RegistryError> {
        let mut last = None;
        let prefix = device.0.to_be_bytes();
        self.events
            .scan(&prefix, Bound::Unbounded, &mut |key, value| {
                last = decode(key, value).map(|event| event.number);
                false
            })?;
        Ok(last)
    }
}
