//! What the API asks of the commands of devices. Commands are JSON here; what becomes of them is known elsewhere.

use std::future::Future;
use std::pin::Pin;

use serde_json::{Map, Value};

use crate::device_backend::DeviceBackendError;

/// What a device shall do.
#[derive(Debug, Clone, PartialEq)]
pub enum CommandOperation {
    Call {
        method: String,
        params: Value,
    },
    /// A function of its thing model.
    Invoke {
        function: String,
        params: Value,
    },
    Read(Vec<String>),
    Write(Map<String, Value>),
}

#[derive(Debug, Clone, PartialEq)]
pub struct CommandRequest {
    pub device: String,
    pub operation: CommandOperation,
    pub one_way: bool,
    pub timeout_ms: Option<u64>,
    pub expires_in_s: Option<u64>,
    pub retries: u32,
    /// Who asks.
    pub requested_by: String,
    /// Whether its end is waited for, where the device is here.
    pub waits: bool,
}

/// The end of a command; `None`: it was not waited for long enough.
pub type CommandCompletion = Pin<Box<dyn Future<Output = Option<Value>> + Send>>;

/// A command that was taken.
pub struct CommandReceipt {
    pub id: u64,
    pub value: Value,
    /// `None`: its device is not here, or nobody wants to wait.
    pub end: Option<CommandCompletion>,
}

/// Which commands of a list, the newest first.
#[derive(Debug, Clone, Default)]
pub struct CommandQuery {
    /// The id of a device.
    pub device: Option<String>,
    pub states: Vec<String>,
    /// Those older than this one.
    pub before: Option<u64>,
    pub limit: usize,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct CommandPage {
    pub rows: Vec<Value>,
    pub next: Option<u64>,
}

/// The commands of devices. Called on threads that may block.
pub trait CommandBackend: Send + Sync + 'static {
    fn send_command(&self, request: CommandRequest) -> Result<CommandReceipt, DeviceBackendError>;

    fn get(&self, id: u64) -> Result<Option<Value>, DeviceBackendError>;

    fn list(&self, query: &CommandQuery) -> Result<CommandPage, DeviceBackendError>;

    fn cancel(&self, id: u64, who: &str) -> Result<Value, DeviceBackendError>;
}

/// A node without devices.
pub struct NoCommandBackend;

impl CommandBackend for NoCommandBackend {
    fn send_command(&self, request: CommandRequest) -> Result<CommandReceipt, DeviceBackendError> {
        let device = request.device;
        Err(DeviceBackendError::NotFound(format!(
            "There is no device {device:?}."
        )))
    }

    fn get(&self, _: u64) -> Result<Option<Value>, DeviceBackendError> {
        Ok(None)
    }

    fn list(&self, _: &CommandQuery) -> Result<CommandPage, DeviceBackendError> {
        Ok(CommandPage::default())
    }

    fn cancel(&self, id: u64, _: &str) -> Result<Value, DeviceBackendError> {
        Err(DeviceBackendError::NotFound(format!(
            "There is no command {id}."
        )))
    }
}
