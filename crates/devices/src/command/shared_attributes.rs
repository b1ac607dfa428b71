//! Pushes changes of shared attributes to the devices that are online.

use std::sync::Arc;

use serde_json::Value;

use super::downlink::{
    DownlinkCompletion, DownlinkOutcome, DownlinkPlan, DownlinkTransport, plan_downlink,
};
use crate::device::Device;
use crate::protocol::DownlinkMessage;
use crate::registry::{AttributeChange, AttributeScope, Registry};

/// Starts pushing changed shared attributes to devices. A device that is offline or has not subscribed requests them
/// when it connects.
pub fn push_shared_attributes(registry: &Registry, transport: Arc<dyn DownlinkTransport>) {
    let known = registry.clone();
    registry.add_attribute_observer(Box::new(move |change: &AttributeChange<'_>| {
        if change.scope != AttributeScope::Shared {
            return;
        }
        if !change.changed.is_empty() {
            let values = change.changed.iter().cloned().collect();
            let json = Value::Object(values).to_string();
            send_to_device(
                &known,
                &transport,
                change.device,
                &DownlinkMessage::Attributes { json: &json },
            );
        }
        if !change.removed.is_empty() {
            let keys: Vec<_> = change.removed.iter().map(String::as_str).collect();
            let keys = &keys;
            send_to_device(
                &known,
                &transport,
                change.device,
                &DownlinkMessage::AttributesDeleted { keys },
            );
        }
    }));
}

/// Sends a message to a device if it is online, in the first protocol that has the message and that the device has
/// subscribed to. There is no confirmation of its arrival.
pub fn send_to_device(
    registry: &Registry,
    transport: &Arc<dyn DownlinkTransport>,
    device: &Device,
    message: &DownlinkMessage<'_>,
) {
    match plan_downlink(
        registry,
        &**transport,
        device,
        message,
        wall_clock::now_ms(),
    ) {
        Ok(Some(address)) => try_next_encoding(transport, address),
        Ok(None) => {}
        Err(error) => {
            let device = device.id.as_str();
            tracing::warn!(device, %error, "sending a message to a device failed");
        }
    }
}

/// Uses the first protocol that the device has subscribed to.
fn try_next_encoding(transport: &Arc<dyn DownlinkTransport>, mut address: DownlinkPlan) {
    let Some(encoded) = address.encodings.pop_front() else {
        return;
    };
    let (again, client_id) = (Arc::clone(transport), address.client_id.clone());
    let done = DownlinkCompletion::new(move |outcome| match outcome {
        DownlinkOutcome::Unreachable => try_next_encoding(&again, address),
        DownlinkOutcome::Sent { .. } => {}
        DownlinkOutcome::RetryLater(why) | DownlinkOutcome::Rejected(why) => {
            let client_id = &*address.client_id;
            tracing::debug!(client_id, why, "message to a device was not sent");
        }
    });
    transport.send(&client_id, encoded, done, Box::new(|| {}));
}
