//! What the HTTP API for devices asks of the device platform. A device is who shows its access token.

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;

use serde_json::Value;

/// What a device posts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DevicePostKind {
    Telemetry,
    Attributes,
}

/// Why a device is not served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceHttpError {
    /// There is no such device, or it is not let in.
    UnknownDevice,
    /// What it says cannot be read.
    Malformed(String),
    /// Not now: it takes no more.
    Busy,
    /// There is no room to store it.
    StorageFull,
    Unavailable(String),
}

/// Who knocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceCaller {
    /// The device's access token.
    pub token: String,
}

/// The next command of a device.
pub enum NextCommand {
    /// `id`, `method` and `params`.
    Command(Value),
    /// There is none; when this ends, there may be one.
    None(Pin<Box<dyn Future<Output = ()> + Send>>),
}

/// Ends with the next change of a device's shared attributes: values by key, and the keys of removed ones as `deleted`.
pub type AttributeUpdate = Pin<Box<dyn Future<Output = Value> + Send>>;

/// The device platform. Called on threads that may block.
pub trait DeviceHttpBackend: Send + Sync + 'static {
    /// Takes what a device says. When it returns, that is as safe as after the acknowledgement of a message over MQTT.
    fn post_data(
        &self,
        knock: &DeviceCaller,
        what: DevicePostKind,
        body: &[u8],
    ) -> Result<(), DeviceHttpError>;

    /// Stores telemetry for the device with this id, as if it had reported it. [`DeviceHttpError::UnknownDevice`]: there is none.
    fn store_telemetry(&self, device: &str, body: &[u8]) -> Result<(), DeviceHttpError>;

    /// Attributes of the device: of keys separated by commas. `None`: none of this scope; both `None`: all of both.
    fn attributes(
        &self,
        knock: &DeviceCaller,
        client: Option<&str>,
        shared: Option<&str>,
    ) -> Result<Value, DeviceHttpError>;

    /// Waits from now on for a change of the device's shared attributes.
    fn attribute_update(&self, knock: &DeviceCaller) -> Result<AttributeUpdate, DeviceHttpError>;

    /// The command that the device gets next, which counts as sent then.
    fn next_command(&self, knock: &DeviceCaller) -> Result<NextCommand, DeviceHttpError>;

    /// What came of a command: JSON or text.
    fn answer_command(
        &self,
        knock: &DeviceCaller,
        id: &str,
        body: &[u8],
    ) -> Result<(), DeviceHttpError>;

    /// The device calls the platform: `method` and `params`.
    fn call_platform(&self, knock: &DeviceCaller, body: &[u8]) -> Result<Value, DeviceHttpError>;

    /// The device offers to be claimed: `secretKey` and `durationMs`.
    fn offer_claim(&self, knock: &DeviceCaller, body: &[u8]) -> Result<(), DeviceHttpError>;

    /// A device wants to be registered: what it is told. `Err`: it was not, and what it is told.
    fn provision_device(&self, from: IpAddr, body: &[u8]) -> Result<Value, Value>;
}

/// A node without devices.
pub struct NoDeviceHttpBackend;

impl DeviceHttpBackend for NoDeviceHttpBackend {
    fn post_data(
        &self,
        _: &DeviceCaller,
        _: DevicePostKind,
        _: &[u8],
    ) -> Result<(), DeviceHttpError> {
        Err(DeviceHttpError::UnknownDevice)
    }

    fn store_telemetry(&self, _: &str, _: &[u8]) -> Result<(), DeviceHttpError> {
        Err(DeviceHttpError::UnknownDevice)
    }

    fn attributes(
        &self,
        _: &DeviceCaller,
        _: Option<&str>,
        _: Option<&str>,
    ) -> Result<Value, DeviceHttpError> {
        Err(DeviceHttpError::UnknownDevice)
    }

    fn attribute_update(&self, _: &DeviceCaller) -> Result<AttributeUpdate, DeviceHttpError> {
        Err(DeviceHttpError::UnknownDevice)
    }

    fn next_command(&self, _: &DeviceCaller) -> Result<NextCommand, DeviceHttpError> {
        Err(DeviceHttpError::UnknownDevice)
    }

    fn answer_command(&self, _: &DeviceCaller, _: &str, _: &[u8]) -> Result<(), DeviceHttpError> {
        Err(DeviceHttpError::UnknownDevice)
    }

    fn call_platform(&self, _: &DeviceCaller, _: &[u8]) -> Result<Value, DeviceHttpError> {
        Err(DeviceHttpError::UnknownDevice)
    }

    fn offer_claim(&self, _: &DeviceCaller, _: &[u8]) -> Result<(), DeviceHttpError> {
        Err(DeviceHttpError::UnknownDevice)
    }

    fn provision_device(&self, _: IpAddr, _: &[u8]) -> Result<Value, Value> {
        Err(serde_json::json!({"status": "FAILURE", "errorMsg": "this node has no devices"}))
    }
}
