//! What the HTTP API for devices asks of the device platform. A device is who shows its access token.

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;

use serde_json::Value;

/// What a device posts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DevicePost {
    Telemetry,
    Attributes,
}

/// Why a device is not served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DoorProblem {
    /// There is no such device, or it is not let in.
    Nobody,
    /// What it says cannot be read.
    Malformed(String),
    /// Not now: it takes no more.
    Busy,
    /// There is no room to store it.
    NoRoom,
    Unavailable(String),
}

/// Who knocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Knock {
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
pub trait DeviceDoor: Send + Sync + 'static {
    /// Takes what a device says. When it returns, that is as safe as after the acknowledgement of a message over MQTT.
    fn post(&self, knock: &Knock, what: DevicePost, body: &[u8]) -> Result<(), DoorProblem>;

    /// Stores telemetry for the device with this id, as if it had reported it. [`DoorProblem::Nobody`]: there is none.
    fn report(&self, device: &str, body: &[u8]) -> Result<(), DoorProblem>;

    /// Attributes of the device: of keys separated by commas. `None`: none of this scope; both `None`: all of both.
    fn attributes(
        &self,
        knock: &Knock,
        client: Option<&str>,
        shared: Option<&str>,
    ) -> Result<Value, DoorProblem>;

    /// Waits from now on for a change of the device's shared attributes.
    fn attribute_update(&self, knock: &Knock) -> Result<AttributeUpdate, DoorProblem>;

    /// The command that the device gets next, which counts as sent then.
    fn next_command(&self, knock: &Knock) -> Result<NextCommand, DoorProblem>;

    /// What came of a command: JSON or text.
    fn answer(&self, knock: &Knock, id: &str, body: &[u8]) -> Result<(), DoorProblem>;

    /// The device calls the platform: `method` and `params`.
    fn call(&self, knock: &Knock, body: &[u8]) -> Result<Value, DoorProblem>;

    /// The device offers to be claimed: `secretKey` and `durationMs`.
    fn offer(&self, knock: &Knock, body: &[u8]) -> Result<(), DoorProblem>;

    /// A device wants to be registered: what it is told. `Err`: it was not, and what it is told.
    fn provision(&self, from: IpAddr, body: &[u8]) -> Result<Value, Value>;
}

/// A node without devices.
pub struct NoDeviceDoor;

impl DeviceDoor for NoDeviceDoor {
    fn post(&self, _: &Knock, _: DevicePost, _: &[u8]) -> Result<(), DoorProblem> {
        Err(DoorProblem::Nobody)
    }

    fn report(&self, _: &str, _: &[u8]) -> Result<(), DoorProblem> {
        Err(DoorProblem::Nobody)
    }

    fn attributes(
        &self,
        _: &Knock,
        _: Option<&str>,
        _: Option<&str>,
    ) -> Result<Value, DoorProblem> {
        Err(DoorProblem::Nobody)
    }

    fn attribute_update(&self, _: &Knock) -> Result<AttributeUpdate, DoorProblem> {
        Err(DoorProblem::Nobody)
    }

    fn next_command(&self, _: &Knock) -> Result<NextCommand, DoorProblem> {
        Err(DoorProblem::Nobody)
    }

    fn answer(&self, _: &Knock, _: &str, _: &[u8]) -> Result<(), DoorProblem> {
        Err(DoorProblem::Nobody)
    }

    fn call(&self, _: &Knock, _: &[u8]) -> Result<Value, DoorProblem> {
        Err(DoorProblem::Nobody)
    }

    fn offer(&self, _: &Knock, _: &[u8]) -> Result<(), DoorProblem> {
        Err(DoorProblem::Nobody)
    }

    fn provision(&self, _: IpAddr, _: &[u8]) -> Result<Value, Value> {
        Err(serde_json::json!({"status": "FAILURE", "errorMsg": "this node has no devices"}))
    }
}
