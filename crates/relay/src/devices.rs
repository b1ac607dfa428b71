//! The port to the device platform: connections of endpoints that identify themselves as devices.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use arc_swap::ArcSwap;
use hooks::relay::{RelayClose, RelayConnection, RelayDeviceIdentity, RelayEventKind};
use serde_json::{Value, json};
use wall_clock::now_ms;

use crate::device_messages::{DeviceRequest, Identity, RequestError, response};
use crate::events::ConnectionEvents;
use crate::system_message::{policy_close, system_message};
use crate::units::unit_of;

/// Requests of one connection that may wait for their responses.
pub(crate) const MAX_PENDING_REQUESTS: u32 = 16;

/// The device platform. Called on the shards' threads; it must not block.
pub trait RelayDevices: Send + Sync {
    /// Takes a message. The messages of a connection are handled in their order. Returns `false` if too many messages
    /// wait; then this one is dropped.
    fn submit(&self, connection: &Arc<DeviceConnection>, message: DeviceMessage) -> bool;

    /// A connection that has submitted messages has closed. Handled after its messages.
    fn closed(&self, connection: &Arc<DeviceConnection>, reason: &'static str);
}

/// A message of a device.
#[derive(Debug)]
pub enum DeviceMessage {
    Identify(Identity),
    /// Values in one of the three forms of data.
    Data {
        payload: Box<[u8]>,
        received_ms: u64,
    },
    /// The reply to a command.
    ControlAck {
        payload: Box<[u8]>,
        received_ms: u64,
    },
    /// Answer it with [`DeviceConnection::respond`].
    Request(DeviceRequest),
}

impl DeviceMessage {
    /// Bytes of the payload; 0 for the small ones.
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        match self {
            Self::Data { payload, .. } | Self::ControlAck { payload, .. } => payload.len(),
            Self::Identify(_) | Self::Request(_) => 0,
        }
    }
}

/// A connection of an endpoint, as the device platform sees it.
pub struct DeviceConnection {
    events: ConnectionEvents,
    client_id: String,
    handle: Arc<dyn RelayConnection>,
    /// The sender of its messages in the history.
    sender: ArcSwap<String>,
    pending_requests: AtomicU32,
}

impl DeviceConnection {
    pub(crate) fn new(events: ConnectionEvents, handle: Arc<dyn RelayConnection>) -> Self {
        let id = &events.connection_id;
        Self {
            client_id: events.endpoint.client_id(id),
            sender: ArcSwap::from_pointee(format!("connection {id}")),
            events,
            handle,
            pending_requests: AtomicU32::new(0),
        }
    }

    /// Id of the endpoint.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.events.endpoint.id
    }

    /// Namespace of the endpoint.
    #[must_use]
    pub fn namespace(&self) -> String {
        (self.events.endpoint.active().definition.namespace).clone()
    }

    /// Product of the endpoint's devices; `None`: its own.
    #[must_use]
    pub fn product(&self) -> Option<String> {
        (self.events.endpoint.active().definition.product).clone()
    }

    /// The unit of a key that the thing model does not tell.
    #[must_use]
    pub fn unit_of(&self, key: &str) -> Option<String> {
        let active = self.events.endpoint.active();
        unit_of(&active.definition.units, key).map(str::to_owned)
    }

    /// The broker's client id of the connection.
    #[must_use]
    pub fn client_id(&self) -> &str {
        &self.client_id
    }

    pub(crate) fn events(&self) -> &ConnectionEvents {
        &self.events
    }

    pub(crate) fn sender(&self) -> arc_swap::Guard<Arc<String>> {
        self.sender.load()
    }

    /// Tells the client that it is this device now. `registry_id` is the id of the device in the API.
    pub fn confirm_identity(&self, device_id: &str, device_name: &str, registry_id: &str) {
        self.sender.store(Arc::new(device_name.to_owned()));
        self.events.set_device(RelayDeviceIdentity {
            device_id: device_id.to_owned(),
            registry_id: registry_id.to_owned(),
        });
        self.events.emit(RelayEventKind::Identified, now_ms());
        let message = json!({
            "type": "identified",
            "deviceId": device_id,
            "customName": device_name,
            "dbDeviceId": registry_id,
        });
        self.handle.send_text(message.to_string());
    }

    /// Tells the client of an error. `code` is such as `IDENTIFY_FAILED`.
    pub fn send_error(&self, code: &str, message: &str) {
        let text = system_message("error", code, message, now_ms());
        self.handle.send_text(text);
    }

    /// Answers a request.
    pub fn respond(&self, request_id: &Value, result: Result<Value, RequestError>) {
        self.pending_requests.fetch_sub(1, Relaxed);
        self.handle
            .send_text(response(request_id, result, now_ms()));
    }

    /// Whether a further request may wait; it is counted then.
    pub(crate) fn try_add_request(&self) -> bool {
        let may_wait = self.pending_requests.load(Relaxed) < MAX_PENDING_REQUESTS;
        if may_wait {
            self.pending_requests.fetch_add(1, Relaxed);
        }
        may_wait
    }

    /// A request that was counted was not submitted.
    pub(crate) fn remove_request(&self) {
        self.pending_requests.fetch_sub(1, Relaxed);
    }
}

/// Closes the connection of a device that may no longer use it.
pub(crate) fn device_close() -> RelayClose {
    policy_close(
        "DEVICE_CHANGED",
        "The device was removed, disabled or moved to another product.",
        "Device changed",
        now_ms(),
    )
}
