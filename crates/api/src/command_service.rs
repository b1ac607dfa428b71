//! The commands of devices as the routes use them.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use devices::command::{
    Command, CommandError, CommandFilter, CommandId, CommandPage, CommandState, Commands,
    NewCommand,
};
use namespaces::NamespaceSelection;

use crate::device_service::{DeviceService, DeviceServiceError};

/// Tolerance for the clock of a waiting request.
const WAIT_GRACE: Duration = Duration::from_millis(250);

/// Resolves with the result of a command; `None`: the wait timed out.
pub(crate) type CommandCompletion = Pin<Box<dyn Future<Output = Option<Command>> + Send>>;

/// A command that was accepted.
pub(crate) struct CommandReceipt {
    pub(crate) command: Command,
    /// `None`: the device is not connected, or the caller does not wait.
    pub(crate) end: Option<CommandCompletion>,
}

/// Selects commands of a list, newest first.
#[derive(Debug, Clone, Default)]
pub(crate) struct CommandQuery {
    /// The id of a device.
    pub(crate) device: Option<String>,
    pub(crate) states: Vec<String>,
    /// Only commands of this job.
    pub(crate) batch: Option<String>,
    /// Only commands older than this one.
    pub(crate) before: Option<u64>,
    pub(crate) limit: usize,
    pub(crate) namespaces: NamespaceSelection,
}

/// The commands of devices. Methods may block. Clones share the same state.
#[derive(Clone)]
pub struct CommandService {
    commands: Commands,
    devices: DeviceService,
}

impl CommandService {
    pub fn new(commands: Commands, devices: DeviceService) -> Self {
        Self { commands, devices }
    }

    /// Sends a command. With `waits`, the receipt contains its end if the device is connected.
    pub(crate) fn send_command(
        &self,
        device: &str,
        command: NewCommand,
        waits: bool,
    ) -> Result<CommandReceipt, DeviceServiceError> {
        let device = self.devices.require_device(device)?;
        let waits = waits && self.devices.is_online(&device);
        let accepted = self.commands.request(&device, command, waits);
        let accepted = accepted.map_err(to_service_error)?;
        let most = Duration::from_millis(accepted.command.timeout_ms) + WAIT_GRACE;
        let end = accepted.waiter.map(|mut waiter| -> CommandCompletion {
            Box::pin(async move {
                let ended = tokio::time::timeout(most, waiter.end()).await;
                ended.ok().flatten()
            })
        });
        Ok(CommandReceipt {
            command: accepted.command,
            end,
        })
    }

    pub(crate) fn get(&self, id: u64) -> Result<Option<Command>, DeviceServiceError> {
        let found = self.commands.get(CommandId(id));
        found.map_err(|error| to_service_error(error.into()))
    }

    pub(crate) fn list(&self, query: &CommandQuery) -> Result<CommandPage, DeviceServiceError> {
        let device = query.device.as_deref();
        let device = device.map(|id| self.devices.require_device(id));
        let states = query.states.iter();
        let filter = CommandFilter {
            device: device.transpose()?.map(|device| device.no),
            states: states
                .filter_map(|state| CommandState::parse(state))
                .collect(),
            namespaces: query.namespaces.clone(),
            batch: query.batch.clone(),
        };
        let before = query.before.map(CommandId);
        let page = self.commands.list(&filter, before, query.limit);
        page.map_err(|error| to_service_error(error.into()))
    }

    pub(crate) fn cancel(&self, id: u64, who: &str) -> Result<Command, DeviceServiceError> {
        let cancelled = self.commands.cancel(CommandId(id), who);
        cancelled.map_err(to_service_error)
    }
}

fn to_service_error(error: CommandError) -> DeviceServiceError {
    match error {
        CommandError::NotAccepted(rejected) if rejected.is_unknown_function => {
            let detail = rejected.detail;
            DeviceServiceError::NotFound(format!("The function does not exist: {detail}."))
        }
        CommandError::NotAccepted(rejected) => DeviceServiceError::Field {
            field: rejected.field,
            detail: rejected.detail,
        },
        CommandError::NotFound(id) => {
            DeviceServiceError::NotFound(format!("There is no command {}.", id.0))
        }
        CommandError::Full(why) => DeviceServiceError::Conflict(format!("{why}.")),
        CommandError::Ended(state) => {
            let state = state.as_str();
            DeviceServiceError::Conflict(format!("The command has already ended: {state}."))
        }
        CommandError::HandedOver => DeviceServiceError::Conflict(
            "The command is being handed over to the node where its device is connected. Repeat the request in a few seconds.".to_owned(),
        ),
        CommandError::Registry(error) => error.into(),
        CommandError::Store(error) => DeviceServiceError::Unavailable(format!("{error}.")),
    }
}
