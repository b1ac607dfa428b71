//! Entry point for device messages that do not arrive over the device's own MQTT connection.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use bumpalo::Bump;
use wall_clock::now_ms;

use super::platform_state::Platform;
use crate::device::Device;
use crate::ingest::{DeviceMessage, Pipeline, SubmitOutcome, TelemetryProcessor};
use crate::protocol::{self, ControlMessage, KeySlot, MessageVisitor, RawValue, RowInfo};

/// An entry point, used by one thread at a time.
pub struct DeviceIngress {
    platform: Platform,
    pipeline: Arc<Pipeline>,
    processor: TelemetryProcessor,
}

/// Why a message was not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IngressError {
    /// The payload is invalid: position and reason.
    #[error("{0}")]
    Malformed(String),
    /// The device's product does not allow the protocol.
    #[error("the product does not allow this protocol")]
    ProtocolNotAllowed,
    /// The telemetry store has no room.
    #[error("the telemetry store has no room")]
    StorageFull,
    /// The namespace has stored as much telemetry as it may.
    #[error("the quota telemetry_megabytes of the namespace is reached")]
    QuotaReached,
    /// The node is overloaded.
    #[error("the node is overloaded")]
    Busy,
    /// The node stops before the results are safe.
    #[error("the node is stopping")]
    Stopping,
}

impl Platform {
    /// `None` before the pipeline is attached.
    pub fn ingress(&self) -> Option<DeviceIngress> {
        let pipeline = self.inner.pipeline.get()?.clone();
        Some(DeviceIngress {
            platform: self.clone(),
            processor: pipeline.processor(),
            pipeline,
        })
    }
}

impl DeviceIngress {
    /// Processes a message as if the device had sent it on this topic of a protocol, and marks the device as
    /// active. On return the message is as safe as after an MQTT acknowledgement. May wait.
    ///
    /// # Errors
    /// If the message is not accepted.
    pub fn submit(
        &mut self,
        device: &Arc<Device>,
        topic: &str,
        payload: &[u8],
    ) -> Result<(), IngressError> {
        let parts = &self.platform.inner.parts;
        if self.pipeline.is_saturated() {
            return Err(IngressError::Busy);
        }
        let Some(route) = protocol::parse_device_topic(topic) else {
            let reason = format!("{topic} is not a device topic");
            return Err(IngressError::Malformed(reason));
        };
        if !device.product.get().allows_protocol(route.protocol) {
            return Err(IngressError::ProtocolNotAllowed);
        }
        let read = protocol::decode_message(&route, payload, &Bump::new(), &mut PayloadValidator);
        read.map_err(|error| IngressError::Malformed(error.to_string()))?;
        let now_ms = now_ms();
        parts.states.mark_active(device, now_ms);
        let sender = self.platform.handle_of(device);
        let message = DeviceMessage {
            sender: sender.as_device_ref(),
            topic,
            payload,
            received_ms: now_ms as i64,
        };
        let admission = self.pipeline.submit(&mut self.processor, &message);
        if let Some(scope) = self.processor.take_unsettled() {
            let (done, is_done) = mpsc::channel();
            let done = move || _ = done.send(());
            self.pipeline.settle(scope, Box::new(done));
            if is_done.recv().is_err() {
                return Err(IngressError::Stopping);
            }
        }
        match admission {
            SubmitOutcome::Accepted => Ok(()),
            SubmitOutcome::StorageFull => Err(IngressError::StorageFull),
            SubmitOutcome::QuotaReached => Err(IngressError::QuotaReached),
        }
    }
}

impl DeviceIngress {
    /// Processes a message of a connected device as [`DeviceIngress::submit`] does, but neither checks it beforehand nor
    /// waits until its results are safe: reasons not to store it are recorded as rejections of the device.
    pub fn pass(
        &mut self,
        device: &Arc<Device>,
        topic: &str,
        payload: &[u8],
        received_ms: u64,
    ) -> SubmitOutcome {
        let states = &self.platform.inner.parts.states;
        states.record_activity(device.no, received_ms);
        let sender = self.platform.handle_of(device);
        let message = DeviceMessage {
            sender: sender.as_device_ref(),
            topic,
            payload,
            received_ms: received_ms as i64,
        };
        let outcome = self.pipeline.submit(&mut self.processor, &message);
        // No caller waits until the results are durable.
        let _ = self.processor.take_unsettled();
        outcome
    }

    /// Whether senders have to wait before the next message.
    pub fn is_saturated(&self) -> bool {
        self.pipeline.is_saturated()
    }

    /// Waits while senders have to wait, at most for `limit`. Never called on shards, see [`Pipeline::wait_for_room`].
    pub fn wait_for_room(&self, limit: Duration) {
        self.pipeline.wait_for_room(limit);
    }
}

/// Only checks that a message can be decoded.
struct PayloadValidator;

impl<'a> MessageVisitor<'a> for PayloadValidator {
    fn enter_device(&mut self, _: Option<&'a str>) -> bool {
        true
    }

    fn resolve_key(&mut self, _: usize, _: &[u8], _: &str) -> KeySlot {
        0
    }

    fn visit_value(&mut self, _: KeySlot, _: RawValue<'a>) {}

    fn finish_row(&mut self, _: RowInfo) {}

    fn discard_row(&mut self) {}

    fn visit_control_message(&mut self, _: ControlMessage<'a>) {}
}
