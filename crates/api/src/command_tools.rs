//! What the API asks of the commands of devices. Commands are JSON here; what becomes of them is known elsewhere.

use std::future::Future;
use std::pin::Pin;

use serde_json::{Map, Value};

use crate::device_tools::DeviceProblem;

/// What a device shall do.
#[derive(Debug, Clone, PartialEq)]
pub enum CommandWish {
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
    pub wish: CommandWish,
    pub one_way: bool,
    pub timeout_ms: Option<u64>,
    pub expires_in_s: Option<u64>,
    pub retries: u32,
    /// Who asks.
    pub by: String,
    /// Whether its end is waited for, where the device is here.
    pub waits: bool,
}

/// The end of a command; `None`: it was not waited for long enough.
pub type CommandEnd = Pin<Box<dyn Future<Output = Option<Value>> + Send>>;

/// A command that was taken.
pub struct TakenCommand {
    pub id: u64,
    pub value: Value,
    /// `None`: its device is not here, or nobody wants to wait.
    pub end: Option<CommandEnd>,
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
pub struct CommandRows {
    pub rows: Vec<Value>,
    pub next: Option<u64>,
}

/// The commands of devices. Called on threads that may block.
pub trait CommandTools: Send + Sync + 'static {
    fn request(&self, request: CommandRequest) -> Result<TakenCommand, DeviceProblem>;

    fn get(&self, id: u64) -> Result<Option<Value>, DeviceProblem>;

    fn list(&self, query: &CommandQuery) -> Result<CommandRows, DeviceProblem>;

    fn cancel(&self, id: u64, who: &str) -> Result<Value, DeviceProblem>;
}

/// A node without devices.
pub struct NoCommandTools;

impl CommandTools for NoCommandTools {
    fn request(&self, request: CommandRequest) -> Result<TakenCommand, DeviceProblem> {
        let device = request.device;
        Err(DeviceProblem::NotFound(format!(
            "There is no device {device:?}."
        )))
    }

    fn get(&self, _: u64) -> Result<Option<Value>, DeviceProblem> {
        Ok(None)
    }

    fn list(&self, _: &CommandQuery) -> Result<CommandRows, DeviceProblem> {
        Ok(CommandRows::default())
    }

    fn cancel(&self, id: u64, _: &str) -> Result<Value, DeviceProblem> {
        Err(DeviceProblem::NotFound(format!(
            "There is no command {id}."
        )))
    }
}
