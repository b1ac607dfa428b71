//! Under which client ids devices are connected.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use series::DeviceNo;

use crate::Device;

const SHARDS: usize = 16;

type Shard = HashMap<DeviceNo, Connected, RandomState>;

/// By the device's number.
#[derive(Default)]
pub(super) struct Connections([Mutex<Shard>; SHARDS]);

struct Connected {
    /// As it was when it connected first.
    device: Arc<Device>,
    /// The youngest last. A device may be connected more than once.
    client_ids: Vec<Box<str>>,
}

impl Connections {
    fn of(&self, no: DeviceNo) -> MutexGuard<'_, Shard> {
        let shard = &self.0[no.spread() as usize % SHARDS];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, device: Arc<Device>, client_id: &str) {
        let mut shard = self.of(device.no);
        let connected = shard.entry(device.no).or_insert_with(|| Connected {
            device,
            client_ids: Vec::with_capacity(1),
        });
        connected.client_ids.push(client_id.into());
    }

    /// The device whose connection this was.
    pub(super) fn remove(&self, no: DeviceNo, client_id: &str) -> Option<Arc<Device>> {
        let mut shard = self.of(no);
        let connected = shard.get_mut(&no)?;
        let ids = &mut connected.client_ids;
        if let Some(at) = ids.iter().position(|known| **known == *client_id) {
            ids.remove(at);
        }
        match ids.is_empty() {
            true => shard.remove(&no).map(|connected| connected.device),
            false => Some(connected.device.clone()),
        }
    }

    /// The youngest connection of a device.
    pub(super) fn last(&self, no: DeviceNo) -> Option<Box<str>> {
        self.of(no).get(&no)?.client_ids.last().cloned()
    }

    pub(super) fn all(&self, no: DeviceNo) -> Vec<Box<str>> {
        let shard = self.of(no);
        shard
            .get(&no)
            .map_or_else(Vec::new, |connected| connected.client_ids.clone())
    }

    /// Which product the device had when it connected.
    pub(super) fn product(&self, no: DeviceNo) -> Option<crate::ProductId> {
        let shard = self.of(no);
        Some(shard.get(&no)?.device.product.id().clone())
    }
}
