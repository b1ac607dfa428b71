//! Rows that others bring on behalf of devices: pull sources, and whoever else knows something of a device.

use std::sync::{Mutex, PoisonError};

use serde_json::{Map, Value, json};

use super::Platform;
use crate::ingest::{Lane, Message};
use crate::now_ms;
use crate::pull::{Intake, Reading, Taken};
use crate::registry::RegistryError;

/// Gives rows to the pipeline as if their device had said them on Tidegate's own topics, whatever dialect its product speaks.
pub struct Reporter {
    platform: Platform,
    lane: Mutex<Lane>,
}

impl Platform {
    /// `None`: before [`Platform::begin`].
    #[must_use]
    pub fn reporter(&self) -> Option<Reporter> {
        let pipeline = self.inner.pipeline.get()?;
        Some(Reporter {
            platform: self.clone(),
            lane: Mutex::new(pipeline.reporting_lane()),
        })
    }
}

impl Reporter {
    /// The row is in the store when this returns, as far as it fits. May wait for the disk. `false`: there is no such device.
    ///
    /// # Errors
    /// If the registry cannot be read.
    pub fn report(
        &self,
        device: &str,
        ts_ms: Option<i64>,
        values: &Map<String, Value>,
    ) -> Result<bool, RegistryError> {
        let platform = &self.platform;
        let Some(device) = platform.registry().device(device)? else {
            return Ok(false);
        };
        let Some(pipeline) = platform.inner.pipeline.get() else {
            return Ok(false);
        };
        let now_ms = now_ms();
        let ts_ms = ts_ms.unwrap_or(now_ms as i64);
        let payload = json!({"ts": ts_ms, "values": values}).to_string();
        let speaker = platform.speaker_of(&device);
        let topic = format!("tg/{}/up/telemetry", device.id);
        let message = Message {
            by: speaker.voice(),
            topic: &topic,
            payload: payload.as_bytes(),
            received_ms: now_ms as i64,
        };
        let mut lane = self.lane.lock().unwrap_or_else(PoisonError::into_inner);
        pipeline.work(&mut lane, &message);
        drop(lane);
        platform.inner.parts.states.heard(&device, now_ms);
        Ok(true)
    }
}

impl Intake for Reporter {
    fn take(&self, readings: &[Reading], _now_ms: i64) -> Taken {
        let mut taken = Taken::default();
        for reading in readings {
            let is_known = self.report(&reading.device, reading.ts_ms, &reading.values);
            let is_known = is_known.unwrap_or_else(|error| {
                tracing::error!(%error, "a device cannot be read; what was pulled for it is lost");
                false
            });
            match is_known {
                true => {
                    taken.rows += 1;
                    taken.values += reading.values.len() as u64;
                }
                false => {
                    taken.unknown += 1;
                    let device = || reading.device.clone();
                    taken.unknown_device.get_or_insert_with(device);
                }
            }
        }
        taken
    }

    fn is_full(&self) -> bool {
        let pipeline = self.platform.inner.pipeline.get();
        pipeline.is_some_and(|pipeline| pipeline.is_saturated())
    }
}
