//! Rejected messages and values with their reasons, for the devices with the most recent rejections.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use series::DeviceNo;

/// Maximum number of devices with recorded rejections.
const MAX_DEVICES: usize = 4096;
/// Maximum number of reasons per device; the latest are kept.
const MAX_REASONS: usize = 8;
const MAX_TEXT_BYTES: usize = 256;

/// A rejected message or value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IngestRejection {
    pub at_ms: i64,
    /// The key, or the topic if the whole message was rejected.
    pub subject: Box<str>,
    pub reason: Box<str>,
    /// Number of rejections with the same subject and reason.
    pub count: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceRejections {
    /// Rejections since the process started, or since the device was evicted here by others.
    pub count: u64,
    /// The latest is last.
    pub last: Vec<IngestRejection>,
}

#[derive(Default)]
pub(super) struct RejectionLog(Mutex<HashMap<DeviceNo, DeviceRejections>>);

fn truncated(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_TEXT_BYTES)]
}

impl RejectionLog {
    fn lock(&self) -> MutexGuard<'_, HashMap<DeviceNo, DeviceRejections>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn record(&self, device: DeviceNo, at_ms: i64, subject: &str, reason: &str) {
        let mut devices = self.lock();
        if devices.len() >= MAX_DEVICES && !devices.contains_key(&device) {
            let oldest = devices
                .iter()
                .min_by_key(|(_, rejections)| rejections.last.last().map(|last| last.at_ms));
            if let Some(oldest) = oldest.map(|(device, _)| *device) {
                devices.remove(&oldest);
            }
        }
        let rejections = devices.entry(device).or_default();
        rejections.count += 1;
        let (subject, reason) = (truncated(subject), truncated(reason));
        let known = rejections
            .last
            .iter()
            .position(|known| *known.subject == *subject && *known.reason == *reason);
        if let Some(at) = known {
            let mut known = rejections.last.remove(at);
            known.count += 1;
            known.at_ms = at_ms;
            rejections.last.push(known);
            return;
        }
        if rejections.last.len() == MAX_REASONS {
            rejections.last.remove(0);
        }
        rejections.last.push(IngestRejection {
            at_ms,
            subject: subject.into(),
            reason: reason.into(),
            count: 1,
        });
    }

    pub(super) fn rejections_of(&self, device: DeviceNo) -> DeviceRejections {
        self.lock().get(&device).cloned().unwrap_or_default()
    }

    pub(super) fn forget(&self, device: DeviceNo) {
        self.lock().remove(&device);
    }
}
