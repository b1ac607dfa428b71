//! The port to the device platform: connections of endpoints that identify themselves as devices.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use arc_swap::ArcSwapOption;
use hooks::relay::{RelayClose, RelayConnection, RelayDeviceIdentity, RelayEventKind};
use serde_json::{Value, json};
use wall_clock::now_ms;

use crate::device_messages::{DeviceRequest, Identity, RequestError, response};
use crate::events::ConnectionEvents;
use crate::system_message::{policy_close, system_message};

/// Requests of one connection that may wait for their responses.
pub(crate) const MAX_PENDING_REQUESTS: u32 = 16;

/// Minimum interval between two warnings that data were not stored.
const WARNING_INTERVAL_MS: u64 = 1000;

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

/// A connection of an endpoint that is a device, as the device platform sees it.
pub struct DeviceConnection {
    events: ConnectionEvents,
    client_id: String,
    /// `None` until the platform has confirmed it.
    identity: ArcSwapOption<RelayDeviceIdentity>,
    /// The sender of its messages in the history, once it is a device.
    device_name: ArcSwapOption<String>,
    pending_requests: AtomicU32,
    not_stored: NotStoredWarnings,
}

/// Data messages that were not stored, and when the device was last told so.
#[derive(Default)]
struct NotStoredWarnings {
    messages: AtomicU64,
    warned_ms: AtomicU64,
}

impl NotStoredWarnings {
    fn count(&self, reason: &str, now_ms: u64) -> Option<String> {
        self.messages.fetch_add(1, Relaxed);
        if now_ms < self.warned_ms.load(Relaxed) + WARNING_INTERVAL_MS {
            return None;
        }
        self.warned_ms.store(now_ms, Relaxed);
        let count = self.messages.swap(0, Relaxed);
        let message = format!("{reason}: {count} data messages were not stored.");
        Some(system_message(
            "warning",
            "DATA_NOT_STORED",
            &message,
            now_ms,
        ))
    }
}

impl DeviceConnection {
    pub(crate) fn new(events: ConnectionEvents) -> Self {
        Self {
            client_id: events.client_id(),
            identity: ArcSwapOption::empty(),
            device_name: ArcSwapOption::empty(),
            events,
            pending_requests: AtomicU32::new(0),
            not_stored: NotStoredWarnings::default(),
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

    /// The broker's client id of the connection.
    #[must_use]
    pub fn client_id(&self) -> &str {
        &self.client_id
    }

    fn handle(&self) -> &dyn RelayConnection {
        &*self.events.connection.handle
    }

    /// Passes an event of the connection to the rules.
    pub(crate) fn emit(&self, kind: RelayEventKind, at_ms: u64) {
        self.events.emit(kind, at_ms, self.identity.load_full());
    }

    /// The name of the device; `None`: the client has not identified itself.
    pub(crate) fn device_name(&self) -> arc_swap::Guard<Option<Arc<String>>> {
        self.device_name.load()
    }

    /// Tells the client that it is this device now. `registry_id` is the id of the device in the API.
    pub fn confirm_identity(&self, device_id: &str, device_name: &str, registry_id: &str) {
        self.device_name
            .store(Some(Arc::new(device_name.to_owned())));
        let identity = RelayDeviceIdentity {
            device_id: device_id.to_owned(),
            registry_id: registry_id.to_owned(),
        };
        self.identity.store(Some(Arc::new(identity)));
        self.emit(RelayEventKind::Identified, now_ms());
        let message = json!({
            "type": "identified",
            "deviceId": device_id,
            "customName": device_name,
            "dbDeviceId": registry_id,
        });
        self.handle().send_text(message.to_string());
    }

    /// The client could not identify itself: the connection is no device any more, whatever it was before.
    pub fn reject_identity(&self, message: &str) {
        self.device_name.store(None);
        self.identity.store(None);
        let text = system_message("error", "IDENTIFY_FAILED", message, now_ms());
        self.handle().send_text(text);
    }

    /// Counts a data message that is not stored, and tells the client so at most once a second. `reason` is a sentence
    /// without its full stop.
    pub fn warn_not_stored(&self, reason: &str) {
        if let Some(text) = self.not_stored.count(reason, now_ms()) {
            self.handle().send_text(text);
        }
    }

    /// Like [`DeviceConnection::warn_not_stored`], but returns the text to send.
    pub(crate) fn not_stored_warning(&self, reason: &str, now_ms: u64) -> Option<String> {
        self.not_stored.count(reason, now_ms)
    }

    /// Answers a request.
    pub fn respond(&self, request_id: &Value, result: Result<Value, RequestError>) {
        self.pending_requests.fetch_sub(1, Relaxed);
        self.handle()
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
