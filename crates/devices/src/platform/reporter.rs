//! Appends rows on behalf of devices, for pull sources and other producers.

use std::fmt::Display;
use std::sync::{Arc, Mutex, PoisonError};

use hooks::DurableCallback;
use serde_json::{Map, Value};
use wall_clock::now_ms;

use super::platform_state::Platform;
use crate::device::Device;
use crate::ingest::{DeviceMessage, Pipeline, SettleScope, TelemetryProcessor};
use crate::pull::{IntakeOutcome, Reading, ReadingIntake};
use crate::registry::RegistryError;

/// Passes rows to the pipeline as if their device had sent them on Tidegate's own topics, whatever its
/// product's protocol.
pub struct Reporter {
    platform: Platform,
    pipeline: Arc<Pipeline>,
    processor: Mutex<TelemetryProcessor>,
}

impl Platform {
    /// `None` before [`Platform::attach_pipeline`].
    #[must_use]
    pub fn reporter(&self) -> Option<Reporter> {
        let pipeline = self.inner.pipeline.get()?;
        Some(Reporter {
            platform: self.clone(),
            pipeline: Arc::clone(pipeline),
            processor: Mutex::new(pipeline.report_processor()),
        })
    }
}

impl Reporter {
    /// Like [`Reporter::append_row`], and marks the device as active. Returns `false` if the device does not
    /// exist.
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
        let now_ms = now_ms();
        let values = serde_json::to_string(values).unwrap_or_default();
        self.append_row(&device, ts_ms.unwrap_or(now_ms as i64), &values);
        platform.inner.parts.states.mark_active(&device, now_ms);
        Ok(true)
    }

    /// Returns a function that calls its argument when everything reported until then is safe, like
    /// [`Pipeline::settle`].
    pub fn settle_function(&self) -> impl Fn(DurableCallback) + Send + Sync + 'static {
        let pipeline = Arc::clone(&self.pipeline);
        move |done| pipeline.settle(SettleScope::Published, done)
    }

    /// On return, the row is in the store as far as it is valid. May wait for the disk. `values`: a JSON
    /// object.
    pub fn append_row(&self, device: &Device, ts_ms: impl Display, values: &str) {
        let payload = format!("{{\"ts\":{ts_ms},\"values\":{values}}}");
        let sender = self.platform.handle_of(device);
        let topic = format!("tg/{}/up/telemetry", device.id);
        let message = DeviceMessage {
            sender: sender.as_device_ref(),
            topic: &topic,
            payload: payload.as_bytes(),
            received_ms: now_ms() as i64,
        };
        let mut processor = self
            .processor
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        self.pipeline.process(&mut processor, &message);
    }
}

impl ReadingIntake for Reporter {
    fn store_readings(&self, readings: &[Reading], _now_ms: i64) -> IntakeOutcome {
        let mut taken = IntakeOutcome::default();
        for reading in readings {
            let is_known = self.report(&reading.device, reading.ts_ms, &reading.values);
            let is_known = is_known.unwrap_or_else(|error| {
                tracing::error!(%error, "device lookup failed; the pulled row is lost");
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
        self.pipeline.is_saturated()
    }
}
