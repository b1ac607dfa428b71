//! Under which client ids devices are connected, and with which credentials.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use series::DeviceNo;

use crate::directory::Admission;
use crate::{Device, ProductId};

const SHARDS: usize = 16;

type Shard = HashMap<DeviceNo, Vec<Connection>, RandomState>;

/// By the device's number; the youngest connection of a device last. A device may be connected more than once.
#[derive(Default)]
pub(super) struct Connections([Mutex<Shard>; SHARDS]);

struct Connection {
    client_id: Box<str>,
    /// As it was when the connection was made.
    admission: Admission,
}

impl Connections {
    fn of(&self, no: DeviceNo) -> MutexGuard<'_, Shard> {
        let shard = &self.0[no.spread() as usize % SHARDS];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, admission: Admission, client_id: &str) {
        let mut shard = self.of(admission.device.no);
        let connections = shard.entry(admission.device.no).or_default();
        connections.push(Connection {
            client_id: client_id.into(),
            admission,
        });
    }

    /// The device whose connection this was.
    pub(super) fn remove(&self, no: DeviceNo, client_id: &str) -> Option<Arc<Device>> {
        let mut shard = self.of(no);
        let connections = shard.get_mut(&no)?;
        let at = (connections.iter()).position(|known| *known.client_id == *client_id)?;
        let removed = connections.remove(at);
        if connections.is_empty() {
            shard.remove(&no);
        }
        Some(removed.admission.device)
    }

    /// The youngest connection of a device.
    pub(super) fn last(&self, no: DeviceNo) -> Option<Box<str>> {
        let shard = self.of(no);
        Some(shard.get(&no)?.last()?.client_id.clone())
    }

    /// The client ids of a device's connections that `ends` chooses.
    pub(super) fn of_device(
        &self,
        no: DeviceNo,
        ends: impl Fn(&Admission) -> bool,
    ) -> Vec<Box<str>> {
        let shard = self.of(no);
        let connections = shard.get(&no).into_iter().flatten();
        chosen(connections, &ends).collect()
    }

    /// The same for all devices of a product.
    pub(super) fn of_product(
        &self,
        product: &ProductId,
        ends: impl Fn(&Admission) -> bool,
    ) -> Vec<Box<str>> {
        let mut found = Vec::new();
        for shard in &self.0 {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let of_product = shard.values().flatten().filter(|connection| {
                let device = &connection.admission.device;
                device.product.id() == product
            });
            found.extend(chosen(of_product, &ends));
        }
        found
    }
}

fn chosen<'a>(
    connections: impl Iterator<Item = &'a Connection>,
    ends: impl Fn(&Admission) -> bool,
) -> impl Iterator<Item = Box<str>> {
    connections
        .filter(move |connection| ends(&connection.admission))
        .map(|connection| connection.client_id.clone())
}
