//! The interface between the API and the commands of devices. Commands are opaque JSON here.

use std::future::Future;
use std::pin::Pin;

use serde_json::{Map, Value};

use crate::device_backend::DeviceBackendError;

/// What a command does.
#[derive(Debug, Clone, PartialEq)]
pub enum CommandOperation {
    Call {
        method: String,
        params: Value,
    },
    /// Calls a function of the thing model.
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
    /// The caller that requested the command.
    pub requested_by: String,
    /// Whether the caller waits for the result if the device is connected.
    pub waits: bool,
}

/// Resolves with the result of a command; `None`: the wait timed out.
pub type CommandCompletion = Pin<Box<dyn Future<Output = Option<Value>> + Send>>;

/// A command that was accepted.
pub struct CommandReceipt {
    pub id: u64,
    pub value: Value,
    /// `None`: the device is not connected, or the caller does not wait.
    pub end: Option<CommandCompletion>,
}

/// Selects commands of a list, newest first.
#[derive(Debug, Clone, Default)]
pub struct CommandQuery {
    /// The id of a device.
    pub device: Option<String>,
    pub states: Vec<String>,
    /// Only commands older than this one.
    pub before: Option<u64>,
    pub limit: usize,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct CommandPage {
    pub rows: Vec<Value>,
    pub next: Option<u64>,
}

/// The commands of devices. Methods are called on threads that may block.
pub trait CommandBackend: Send + Sync + 'static {
    fn send_command(&self, request: CommandRequest) -> Result<CommandReceipt, DeviceBackendError>;

    fn get(&self, id: u64) -> Result<Option<Value>, DeviceBackendError>;

    fn list(&self, query: &CommandQuery) -> Result<CommandPage, DeviceBackendError>;

    fn cancel(&self, id: u64, who: &str) -> Result<Value, DeviceBackendError>;
}

/// The backend of a node without devices.
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
