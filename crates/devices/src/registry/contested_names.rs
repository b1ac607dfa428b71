//! Names that two devices have, because two nodes of a cluster have assigned them at the same moment. On all
//! nodes, the device that was created first holds the name; the other one waits for it until that device gives it up.

use std::collections::HashMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

use foldhash::fast::RandomState;
use series::DeviceNo;
use store::{StoreError, Table};

use super::keys::{CONTESTED_PREFIX, no_at_end};
use crate::device::Device;

/// Devices that wait for a name that another one holds, by the name's key.
pub(super) type WaitingDevices = HashMap<Vec<u8>, Vec<DeviceNo>, RandomState>;

#[derive(Default)]
pub(super) struct ContestedNames {
    is_any: AtomicBool,
    waiting: RwLock<WaitingDevices>,
}

impl ContestedNames {
    pub(super) fn load(&self, index: &Table) -> Result<(), StoreError> {
        let mut waiting = WaitingDevices::default();
        index.scan(&[CONTESTED_PREFIX], Bound::Unbounded, &mut |row, _| {
            if let Some(no) = no_at_end(row) {
                let name = row[1..row.len() - 4].to_vec();
                waiting.entry(name).or_default().push(no);
            }
            true
        })?;
        let mut all = self.waiting.write().unwrap_or_else(PoisonError::into_inner);
        self.is_any.store(!waiting.is_empty(), Ordering::Release);
        *all = waiting;
        Ok(())
    }

    /// Whether there is any; cheap.
    pub(super) fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Acquire)
    }

    /// Whether another device holds the name that this one waits for.
    pub(super) fn is_waiting(&self, name: &[u8], no: DeviceNo) -> bool {
        self.is_any() && self.waiting_for(name).contains(&no)
    }

    pub(super) fn waiting_for(&self, name: &[u8]) -> Vec<DeviceNo> {
        let waiting = self.waiting.read().unwrap_or_else(PoisonError::into_inner);
        waiting.get(name).cloned().unwrap_or_default()
    }

    /// Replaces the devices that wait for some names.
    pub(super) fn update(&self, changed: WaitingDevices) {
        if changed.is_empty() {
            return;
        }
        let mut all = self.waiting.write().unwrap_or_else(PoisonError::into_inner);
        for (name, waiting) in changed {
            match waiting.is_empty() {
                true => all.remove(&name),
                false => all.insert(name, waiting),
            };
        }
        self.is_any.store(!all.is_empty(), Ordering::Release);
    }
}

/// Which of two devices holds a name of both: the same one on all nodes, also if they were created at the same time.
pub(super) fn created_first<'a>(one: &'a Device, other: &'a Device) -> &'a Device {
    std::cmp::min_by_key(one, other, |device| (device.created_ms, device.id.as_str()))
}
