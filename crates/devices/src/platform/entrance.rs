//! Messages of devices that come by other ways than a connection of theirs.

use std::sync::Arc;
use std::sync::mpsc;

use bumpalo::Bump;

use super::Platform;
use crate::dialect::{self, Ears, Raw, RowInfo, Said, Slot};
use crate::ingest::{Admission, Lane, Message, Pipeline};
use crate::{Device, now_ms};

/// A way in for one thread at a time.
pub struct Entrance {
    platform: Platform,
    pipeline: Arc<Pipeline>,
    lane: Lane,
}

/// Why a message is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotTaken {
    /// It cannot be read: where and why.
    #[error("{0}")]
    Malformed(String),
    /// The device's product does not allow the dialect.
    #[error("the product's devices speak another dialect")]
    Dialect,
    /// The telemetry store has no room.
    #[error("the telemetry store has no room")]
    NoRoom,
    /// There is too much to do.
    #[error("there is too much to do")]
    Busy,
}

impl Platform {
    /// `None`: the platform has not begun.
    pub fn entrance(&self) -> Option<Entrance> {
        let pipeline = self.inner.pipeline.get()?.clone();
        Some(Entrance {
            platform: self.clone(),
            lane: pipeline.lane(),
            pipeline,
        })
    }
}

impl Entrance {
    /// Takes a message as if the device had sent it on this topic of a dialect, and lets the device count as seen. When it returns,
    /// that is as safe as after an acknowledgement over MQTT. May wait.
    ///
    /// # Errors
    /// If it is not taken.
    pub fn take(
        &mut self,
        device: &Arc<Device>,
        topic: &str,
        payload: &[u8],
    ) -> Result<(), NotTaken> {
        let parts = &self.platform.inner.parts;
        if self.pipeline.is_saturated() {
            return Err(NotTaken::Busy);
        }
        let Some(route) = dialect::route(topic) else {
            let reason = format!("{topic} is no topic of devices");
            return Err(NotTaken::Malformed(reason));
        };
        if !device.product.get().speaks(route.dialect.into()) {
            return Err(NotTaken::Dialect);
        }
        let read = dialect::read(&route, payload, &Bump::new(), &mut Deaf);
        read.map_err(|error| NotTaken::Malformed(error.to_string()))?;
        let now_ms = now_ms();
        parts.states.heard(device, now_ms);
        let speaker = self.platform.speaker_of(device);
        let message = Message {
            by: speaker.voice(),
            topic,
            payload,
            received_ms: now_ms as i64,
        };
        let admission = self.pipeline.take(&mut self.lane, &message);
        if self.lane.take_left() {
            let (done, is_done) = mpsc::channel::<()>();
            self.pipeline.settle(Box::new(move || drop(done)));
            // It ends when the other side has gone.
            let _ = is_done.recv();
        }
        match admission {
            Admission::Taken => Ok(()),
            Admission::NoRoom => Err(NotTaken::NoRoom),
        }
    }
}

/// Only looks whether a message can be read.
struct Deaf;

impl<'a> Ears<'a> for Deaf {
    fn about(&mut self, _: Option<&'a str>) -> bool {
        true
    }

    fn key(&mut self, _: usize, _: &[u8], _: &str) -> Slot {
        0
    }

    fn value(&mut self, _: Slot, _: Raw<'a>) {}

    fn row(&mut self, _: RowInfo) {}

    fn discard(&mut self) {}

    fn said(&mut self, _: Said<'a>) {}
}
