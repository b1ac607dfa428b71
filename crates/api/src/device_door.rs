//! What the HTTP API for devices asks of the device platform. A device is who shows its access token.

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
    Unavailable(String),
}

/// Who knocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Knock {
    /// The device's access token.
    pub token: String,
    /// Too many from there had tokens that nobody knows: only devices that are in memory are looked for.
    pub is_suspect: bool,
}

/// The device platform. Called on threads that may block.
pub trait DeviceDoor: Send + Sync + 'static {
    /// Takes what a device says. When it returns, that is as safe as after the acknowledgement of a message over MQTT.
    fn post(&self, knock: &Knock, what: DevicePost, body: &[u8]) -> Result<(), DoorProblem>;

    /// Attributes of the device: of keys separated by commas. `None`: none of this scope; both `None`: all of both.
    fn attributes(
        &self,
        knock: &Knock,
        client: Option<&str>,
        shared: Option<&str>,
    ) -> Result<Value, DoorProblem>;
}

/// A node without devices.
pub struct NoDeviceDoor;

impl DeviceDoor for NoDeviceDoor {
    fn post(&self, _: &Knock, _: DevicePost, _: &[u8]) -> Result<(), DoorProblem> {
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
}
