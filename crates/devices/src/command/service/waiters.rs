//! Callers that wait for the end of a command, and devices that wait for commands.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use series::DeviceNo;
use tokio::sync::oneshot;

use super::super::record::{Command, CommandId};
use super::commands_inner::{CommandsInner, lock};

/// Waits for the end of a command.
#[derive(Debug)]
pub struct CommandWaiter {
    end: oneshot::Receiver<Command>,
    _place: WaiterPermit,
}

impl CommandWaiter {
    /// Returns the finished command. `None`: the node stops.
    pub async fn end(&mut self) -> Option<Command> {
        (&mut self.end).await.ok()
    }
}

/// A device that waits for a command.
#[derive(Debug)]
pub struct CommandPoller {
    wake: oneshot::Receiver<()>,
    _place: WaiterPermit,
}

impl CommandPoller {
    pub async fn wait(&mut self) {
        // A stopping node wakes the waiter as well.
        let _ = (&mut self.wake).await;
    }
}

/// A permit of the limited number of waiters.
#[derive(Debug)]
pub(super) struct WaiterPermit(Arc<AtomicUsize>);

impl Drop for WaiterPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl CommandsInner {
    pub(super) fn acquire_permit(&self) -> Option<WaiterPermit> {
        let most = self.config.max_waiting_requests;
        let taken = self
            .free_waiter_slots
            .fetch_update(Relaxed, Relaxed, |count| (count < most).then(|| count + 1));
        taken
            .ok()
            .map(|_| WaiterPermit(Arc::clone(&self.free_waiter_slots)))
    }

    /// Returns `None` if the maximum number of callers is waiting.
    pub(super) fn poller(&self, device: DeviceNo) -> Option<CommandPoller> {
        let place = self.acquire_permit()?;
        let (wake, woken) = oneshot::channel();
        let mut pollers = lock(&self.pollers);
        let of_device = pollers.entry(device).or_default();
        of_device.retain(|poller| !poller.is_closed());
        of_device.push(wake);
        Some(CommandPoller {
            wake: woken,
            _place: place,
        })
    }

    /// Creates a waiter for the end of a command.
    pub(super) fn wait_for(&self, command: CommandId, place: WaiterPermit) -> CommandWaiter {
        let (ended, end) = oneshot::channel();
        let mut waiting = lock(&self.waiters);
        waiting.entry(command).or_default().push(ended);
        CommandWaiter { end, _place: place }
    }

    pub(super) fn has_waiter(&self, command: CommandId) -> bool {
        let waiters = lock(&self.waiters);
        let mut of_command = waiters.get(&command).into_iter().flatten();
        of_command.any(|waiter| !waiter.is_closed())
    }

    pub(super) fn notify_waiters(&self, command: &Command) {
        for ended in lock(&self.waiters)
            .remove(&command.id)
            .into_iter()
            .flatten()
        {
            // The caller may be gone.
            let _ = ended.send(command.clone());
        }
    }

    /// Whether a device polls for a command.
    pub(super) fn has_poller(&self, device: DeviceNo) -> bool {
        let pollers = lock(&self.pollers);
        let mut of_device = pollers.get(&device).into_iter().flatten();
        of_device.any(|poller| !poller.is_closed())
    }

    pub(super) fn wake_all_pollers(&self) {
        let pollers = std::mem::take(&mut *lock(&self.pollers));
        for poller in pollers.into_values().flatten() {
            // The caller may be gone.
            let _ = poller.send(());
        }
    }

    pub(super) fn wake_pollers(&self, device: DeviceNo) {
        for poller in lock(&self.pollers).remove(&device).into_iter().flatten() {
            // The caller may be gone.
            let _ = poller.send(());
        }
    }
}
