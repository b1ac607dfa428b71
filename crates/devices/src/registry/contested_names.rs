//! Names that two devices have, because two nodes of a cluster have assigned them at the same moment. The name belongs to
//! the device that was created first, on all nodes; the other one gets it when that device gives it up.

use std::collections::HashMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

use foldhash::fast::RandomState;
use series::DeviceNo;
use store::{StoreError, Table};

use super::keys::{CONTESTED_PREFIX, no_at_end};
use crate::device::Device;

/// Devices that have a name without owning it, by the name's key.
pub(super) type Losers = HashMap<Vec<u8>, Vec<DeviceNo>, RandomState>;

#[derive(Default)]
pub(super) struct ContestedNames {
    is_any: AtomicBool,
    losers: RwLock<Losers>,
}

impl ContestedNames {
    pub(super) fn load(&self, index: &Table) -> Result<(), StoreError> {
        let mut losers = Losers::default();
        index.scan(&[CONTESTED_PREFIX], Bound::Unbounded, &mut |row, _| {
            if let Some(no) = no_at_end(row) {
                let name = row[1..row.len() - 4].to_vec();
                losers.entry(name).or_default().push(no);
            }
            true
        })?;
        let mut all = self.losers.write().unwrap_or_else(PoisonError::into_inner);
        self.is_any.store(!losers.is_empty(), Ordering::Release);
        *all = losers;
        Ok(())
    }

    /// Whether there is any; cheap.
    pub(super) fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Acquire)
    }

    /// Whether the name belongs to another device.
    pub(super) fn is_loser(&self, name: &[u8], no: DeviceNo) -> bool {
        self.is_any() && self.losers(name).contains(&no)
    }

    pub(super) fn losers(&self, name: &[u8]) -> Vec<DeviceNo> {
        let losers = self.losers.read().unwrap_or_else(PoisonError::into_inner);
        losers.get(name).cloned().unwrap_or_default()
    }

    /// Replaces the losers of some names.
    pub(super) fn update(&self, changed: Losers) {
        if changed.is_empty() {
            return;
        }
        let mut all = self.losers.write().unwrap_or_else(PoisonError::into_inner);
        for (name, losers) in changed {
            match losers.is_empty() {
                true => all.remove(&name),
                false => all.insert(name, losers),
            };
        }
        self.is_any.store(!all.is_empty(), Ordering::Release);
    }
}

/// Which of two devices a name belongs to: the same on all nodes.
pub(super) fn owner_of_name<'a>(one: &'a Device, other: &'a Device) -> &'a Device {
    std::cmp::min_by_key(one, other, |device| (device.created_ms, device.id.as_str()))
}
