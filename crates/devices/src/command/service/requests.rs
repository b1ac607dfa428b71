//! Accepts commands: validates the action and checks the limits.

use std::sync::atomic::Ordering::Relaxed;

use super::super::record::{Command, CommandId, CommandState};
use super::super::validation::{CommandAction, CommandValidationError, check};
use super::commands_inner::{CommandError, CommandJob, CommandsInner, lock};
use super::waiters::CommandWaiter;
use crate::device::Device;

/// A request to send a command.
#[derive(Debug, Clone, PartialEq)]
pub struct NewCommand {
    pub action: CommandAction,
    pub one_way: bool,
    /// `None`: the default of the node.
    pub timeout_ms: Option<u64>,
    /// Seconds for which the command waits for its device; 0: it is sent at once or not at all.
    pub expires_in_s: Option<u64>,
    pub retries: u32,
    /// Who requests the command.
    pub created_by: String,
    /// Id of a request to several devices.
    pub batch: Option<String>,
}

/// An accepted command.
#[derive(Debug)]
pub struct AcceptedCommand {
    pub command: Command,
    /// Present if the caller asked to wait.
    pub waiter: Option<CommandWaiter>,
}

impl CommandsInner {
    pub(super) fn request(
        &self,
        device: &Device,
        request: NewCommand,
        waits: bool,
    ) -> Result<AcceptedCommand, CommandError> {
        let config = &self.config;
        let bounded = |field: &str, value: u64, most: u64| match value <= most {
            true => Ok(value),
            false => Err(CommandValidationError {
                field: field.to_owned(),
                detail: format!("expected at most {most}"),
                is_unknown_function: false,
            }),
        };
        let timeout_ms = request.timeout_ms.unwrap_or(config.timeout_ms);
        let timeout_ms = bounded("timeout_ms", timeout_ms.max(1), config.max_timeout_ms)?;
        let expires_in_s = request.expires_in_s.unwrap_or(config.expiry_s);
        let expires_in_s = bounded("expires_in_s", expires_in_s, config.max_expiry_s)?;
        let checked = {
            let product = device.product.get();
            check(request.action, &product.model, config.max_params_bytes)?
        };
        let place = match waits {
            true => Some(self.acquire_permit().ok_or_else(|| {
                let most = config.max_waiting_requests;
                CommandError::Full(format!(
                    "{most} callers already wait for replies, which is the maximum; send the command without waiting and query it later"
                ))
            })?),
            false => None,
        };
        let now_ms = self.now_ms();
        // Long enough to send the command to a device that is online.
        let expires_ms = match expires_in_s {
            0 => timeout_ms.min(config.timeout_ms),
            s => s.saturating_mul(1000),
        };
        // A device that polls over HTTP receives the command at once.
        let immediate = expires_in_s == 0 && !self.has_poller(device.no);
        let notify_guard = lock(&self.notify_lock);
        // Shards check the number of open commands, so the lock is not held during writes.
        let next = {
            let open = lock(&self.open);
            if open.count() >= config.max_open {
                let most = config.max_open;
                return Err(CommandError::Full(format!(
                    "{most} commands are open, which is the maximum; retry after one has ended"
                )));
            }
            if open.count_of(device.no) >= config.max_open_per_device {
                let most = config.max_open_per_device;
                return Err(CommandError::Full(format!(
                    "{most} commands are open for this device, which is the maximum; retry after one has ended"
                )));
            }
            open.next
        };
        let command = Command {
            id: CommandId(next),
            device: device.id.to_string(),
            product: device.product.id().to_string(),
            namespace: device.product.get().namespace().to_owned(),
            kind: checked.kind,
            method: checked.method,
            params: checked.params,
            one_way: request.one_way,
            state: CommandState::Pending,
            timeout_ms,
            retries: request.retries,
            attempts: 0,
            created_at_ms: now_ms,
            expires_at_ms: now_ms.saturating_add(expires_ms),
            immediate,
            sent_at_ms: None,
            acknowledged_at_ms: None,
            finished_at_ms: None,
            result: None,
            code: None,
            message: None,
            created_by: request.created_by,
            batch: request.batch,
            device_no: device.no,
        };
        self.store.put_new(&command, Some(next + 1))?;
        {
            let mut open = lock(&self.open);
            open.next = next + 1;
            open.update(&command);
            self.open_count.store(open.count(), Relaxed);
        }
        let waiting = place.map(|place| self.wait_for(command.id, place));
        self.taken.fetch_add(1, Relaxed);
        self.notify_observers(&command);
        drop(notify_guard);
        self.wake_pollers(device.no);
        self.queue.push(CommandJob::ResumeDevice(device.no));
        Ok(AcceptedCommand {
            command,
            waiter: waiting,
        })
    }
}
