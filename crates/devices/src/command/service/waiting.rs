//! Who waits: callers for the end of a command, devices for a command they may ask for.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use series::DeviceNo;
use tokio::sync::oneshot;

use super::super::record::{Command, CommandId};
use super::{Inner, lock};

/// Waits for the end of a command.
#[derive(Debug)]
pub struct Waiting {
    end: oneshot::Receiver<Command>,
    _place: Place,
}

impl Waiting {
    /// The command at its end. `None`: the node stops.
    pub async fn end(&mut self) -> Option<Command> {
        (&mut self.end).await.ok()
    }
}

/// A device that waits for a command.
#[derive(Debug)]
pub struct Asker {
    woken: oneshot::Receiver<()>,
    _place: Place,
}

impl Asker {
    pub async fn woken(&mut self) {
        // To be woken by the end of the node is to be woken.
        let _ = (&mut self.woken).await;
    }
}

/// One of the places for those who wait.
#[derive(Debug)]
pub(super) struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Inner {
    pub(super) fn place(&self) -> Option<Place> {
        let most = self.config.max_waiting;
        let taken = self
            .places
            .fetch_update(Relaxed, Relaxed, |count| (count < most).then(|| count + 1));
        taken.ok().map(|_| Place(Arc::clone(&self.places)))
    }

    /// `None`: too many wait.
    pub(super) fn asker(&self, device: DeviceNo) -> Option<Asker> {
        let place = self.place()?;
        let (wake, woken) = oneshot::channel();
        let mut askers = lock(&self.askers);
        let of_device = askers.entry(device).or_default();
        of_device.retain(|asker| !asker.is_closed());
        of_device.push(wake);
        Some(Asker {
            woken,
            _place: place,
        })
    }

    /// Waits for the end of a command.
    pub(super) fn wait_for(&self, command: CommandId, place: Place) -> Waiting {
        let (ended, end) = oneshot::channel();
        let mut waiting = lock(&self.waiting);
        waiting.entry(command).or_default().push(ended);
        Waiting { end, _place: place }
    }

    pub(super) fn tell_end(&self, command: &Command) {
        for ended in lock(&self.waiting)
            .remove(&command.id)
            .into_iter()
            .flatten()
        {
            // Whoever waited may have gone.
            let _ = ended.send(command.clone());
        }
    }

    /// Whether a device waits for a command.
    pub(super) fn has_asker(&self, device: DeviceNo) -> bool {
        let askers = lock(&self.askers);
        let mut of_device = askers.get(&device).into_iter().flatten();
        of_device.any(|asker| !asker.is_closed())
    }

    pub(super) fn wake_all_askers(&self) {
        let askers = std::mem::take(&mut *lock(&self.askers));
        for asker in askers.into_values().flatten() {
            // It may have gone.
            let _ = asker.send(());
        }
    }

    pub(super) fn wake_askers(&self, device: DeviceNo) {
        for asker in lock(&self.askers).remove(&device).into_iter().flatten() {
            // It may have gone.
            let _ = asker.send(());
        }
    }
}
