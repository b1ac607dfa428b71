//! Who waits: callers for the end of a command, devices for a command they may ask for.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use series::DeviceNo;
use tokio::sync::oneshot;

use super::super::record::{Command, CommandId};
use super::{CommandsInner, lock};

/// Waits for the end of a command.
#[derive(Debug)]
pub struct CommandWaiter {
    end: oneshot::Receiver<Command>,
    _place: WaiterPermit,
}

impl CommandWaiter {
    /// The command at its end. `None`: the node stops.
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
        // To be woken by the end of the node is to be woken.
        let _ = (&mut self.wake).await;
    }
}

/// One of the places for those who wait.
#[derive(Debug)]
pub(super) struct WaiterPermit(Arc<AtomicUsize>);

impl Drop for WaiterPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl CommandsInner {
    pub(super) fn acquire_permit(&self) -> Option<WaiterPermit> {
        let most = self.config.max_waiting;
        let taken = self
            .free_waiter_slots
            .fetch_update(Relaxed, Relaxed, |count| (count < most).then(|| count + 1));
        taken
            .ok()
            .map(|_| WaiterPermit(Arc::clone(&self.free_waiter_slots)))
    }

    /// `None`: too many wait.
    pub(super) fn poller(&self, device: DeviceNo) -> Option<CommandPoller> {
        let place = self.acquire_permit()?;
        let (wake, woken) = oneshot::channel();
        let mut askers = lock(&self.pollers);
        let of_device = askers.entry(device).or_default();
        of_device.retain(|asker| !asker.is_closed());
        of_device.push(wake);
        Some(CommandPoller {
            wake: woken,
            _place: place,
        })
    }

    /// Waits for the end of a command.
    pub(super) fn wait_for(&self, command: CommandId, place: WaiterPermit) -> CommandWaiter {
        let (ended, end) = oneshot::channel();
        let mut waiting = lock(&self.waiters);
        waiting.entry(command).or_default().push(ended);
        CommandWaiter { end, _place: place }
    }

    pub(super) fn notify_waiters(&self, command: &Command) {
        for ended in lock(&self.waiters)
            .remove(&command.id)
            .into_iter()
            .flatten()
        {
            // Whoever waited may have gone.
            let _ = ended.send(command.clone());
        }
    }

    /// Whether a device waits for a command.
    pub(super) fn has_poller(&self, device: DeviceNo) -> bool {
        let askers = lock(&self.pollers);
        let mut of_device = askers.get(&device).into_iter().flatten();
        of_device.any(|asker| !asker.is_closed())
    }

    pub(super) fn wake_all_pollers(&self) {
        let askers = std::mem::take(&mut *lock(&self.pollers));
        for asker in askers.into_values().flatten() {
            // It may have gone.
            let _ = asker.send(());
        }
    }

    pub(super) fn wake_pollers(&self, device: DeviceNo) {
        for asker in lock(&self.pollers).remove(&device).into_iter().flatten() {
            // It may have gone.
            let _ = asker.send(());
        }
    }
}
