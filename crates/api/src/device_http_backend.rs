//! The interface between the HTTP API for devices and the device platform. Devices authenticate
//! with their access token.

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use devices::Device;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

/// The kind of data a device posts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DevicePostKind {
    Telemetry,
    Attributes,
}

/// Why a device request failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceHttpError {
    /// The device is unknown or may not connect.
    UnknownDevice,
    /// The body cannot be parsed.
    Malformed(String),
    /// The node is overloaded; the device should retry.
    Busy,
    /// The telemetry store has no space.
    StorageFull,
    /// The namespace has stored as much telemetry as it may.
    QuotaReached,
    Unavailable(String),
}

/// The caller of a device request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceCaller {
    /// The device's access token.
    pub token: String,
}

/// A command for the device.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct PendingDeviceCommand {
    pub id: u64,
    pub method: String,
    pub params: Value,
}

/// Attributes of the device in the requested scopes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct RequestedAttributes {
    /// Omitted if it was not requested or is empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<Map<String, Value>>,
    /// Omitted if it was not requested or is empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared: Option<Map<String, Value>>,
}

/// The next command of a device.
pub enum NextCommand {
    Command(PendingDeviceCommand),
    /// No command is pending; when the future resolves, there may be one.
    None(Pin<Box<dyn Future<Output = ()> + Send>>),
}

/// Resolves at the next change of a device's shared attributes: values by key, and the keys of
/// removed ones as `deleted`. `None`: the token must be checked again.
pub type AttributeUpdate = Pin<Box<dyn Future<Output = Option<Value>> + Send>>;

/// The device platform. A trait, because requests enter the outputs of the telemetry pipeline, which the program connects to
/// sinks, rules and commands. Methods are called on threads that may block.
pub trait DeviceHttpBackend: Send + Sync + 'static {
    /// Processes data of a device. On return it is as durable as after the acknowledgement of an
    /// MQTT message.
    fn post_data(
        &self,
        caller: &DeviceCaller,
        what: DevicePostKind,
        body: &[u8],
    ) -> Result<(), DeviceHttpError>;

    /// The device that has the token.
    fn device(&self, caller: &DeviceCaller) -> Result<Arc<Device>, DeviceHttpError>;

    /// Stores telemetry for the device with this id, as if it had reported it. Fails with
    /// [`DeviceHttpError::UnknownDevice`] if there is none.
    fn store_telemetry(&self, device: &str, body: &[u8]) -> Result<(), DeviceHttpError>;

    /// The device's attributes of the given comma-separated keys. `None`: none of this scope; both
    /// `None`: all of both scopes.
    fn attributes(
        &self,
        caller: &DeviceCaller,
        client: Option<&str>,
        shared: Option<&str>,
    ) -> Result<RequestedAttributes, DeviceHttpError>;

    /// Waits from now on for a change of the device's shared attributes.
    fn attribute_update(&self, caller: &DeviceCaller) -> Result<AttributeUpdate, DeviceHttpError>;

    /// The device's next command. It counts as sent.
    fn next_command(&self, caller: &DeviceCaller) -> Result<NextCommand, DeviceHttpError>;

    /// Processes the device's response to a command: JSON or text.
    fn answer_command(
        &self,
        caller: &DeviceCaller,
        id: &str,
        body: &[u8],
    ) -> Result<(), DeviceHttpError>;

    /// A call from the device to the platform: `method` and `params`.
    fn call_platform(&self, caller: &DeviceCaller, body: &[u8]) -> Result<Value, DeviceHttpError>;

    /// The device allows itself to be claimed: `secretKey` and `durationMs`.
    fn offer_claim(&self, caller: &DeviceCaller, body: &[u8]) -> Result<(), DeviceHttpError>;

    /// Registers a device. Both results are the JSON of the response; `Err`: the registration was
    /// rejected.
    fn provision_device(&self, from: IpAddr, body: &[u8]) -> Result<Value, Value>;
}
