//! The connections of devices: client ids and the credentials used.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use series::DeviceNo;

use crate::authenticator::DeviceAdmission;
use crate::device::Device;
use crate::id::ProductId;

const STRIPES: usize = 16;

type ConnectionTable = HashMap<DeviceNo, Vec<DeviceConnection>, RandomState>;

/// By device number; the youngest connection of a device last. A device may have several connections.
#[derive(Default)]
pub(super) struct DeviceConnections([Mutex<ConnectionTable>; STRIPES]);

struct DeviceConnection {
    client_id: Box<str>,
    /// The id that the device uses on this connection, if it is not its id in the registry.
    alias: Option<Box<str>>,
    /// The device as admitted when the connection was made.
    admission: DeviceAdmission,
}

impl DeviceConnections {
    fn stripe_of(&self, no: DeviceNo) -> MutexGuard<'_, ConnectionTable> {
        let shard = &self.0[no.spread() as usize % STRIPES];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, admission: DeviceAdmission, client_id: &str, alias: Option<&str>) {
        let mut shard = self.stripe_of(admission.device.no);
        let connections = shard.entry(admission.device.no).or_default();
        connections.push(DeviceConnection {
            client_id: client_id.into(),
            alias: alias.map(Into::into),
            admission,
        });
    }

    /// Removes a connection and returns its device.
    pub(super) fn remove(&self, no: DeviceNo, client_id: &str) -> Option<Arc<Device>> {
        let mut shard = self.stripe_of(no);
        let connections = shard.get_mut(&no)?;
        let at = (connections.iter()).position(|known| *known.client_id == *client_id)?;
        let removed = connections.remove(at);
        if connections.is_empty() {
            shard.remove(&no);
        }
        Some(removed.admission.device)
    }

    /// The client id of the newest connection of a device.
    pub(super) fn newest_client_id(&self, no: DeviceNo) -> Option<Box<str>> {
        let shard = self.stripe_of(no);
        Some(shard.get(&no)?.last()?.client_id.clone())
    }

    /// The id that a device uses on its newest connection, if it is not its id in the registry.
    pub(super) fn newest_alias(&self, no: DeviceNo) -> Option<Box<str>> {
        let shard = self.stripe_of(no);
        shard.get(&no)?.last()?.alias.clone()
    }

    /// The client ids of a device's connections that satisfy `ends`.
    pub(super) fn select_for_device(
        &self,
        no: DeviceNo,
        ends: impl Fn(&DeviceAdmission) -> bool,
    ) -> Vec<Box<str>> {
        let shard = self.stripe_of(no);
        let connections = shard.get(&no).into_iter().flatten();
        selected(connections, &ends).collect()
    }

    /// The same for all devices of a product.
    pub(super) fn select_for_product(
        &self,
        product: &ProductId,
        ends: impl Fn(&DeviceAdmission) -> bool,
    ) -> Vec<Box<str>> {
        let mut found = Vec::new();
        for shard in &self.0 {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let of_product = shard.values().flatten().filter(|connection| {
                let device = &connection.admission.device;
                device.product.id() == product
            });
            found.extend(selected(of_product, &ends));
        }
        found
    }
}

fn selected<'a>(
    connections: impl Iterator<Item = &'a DeviceConnection>,
    ends: impl Fn(&DeviceAdmission) -> bool,
) -> impl Iterator<Item = Box<str>> {
    connections
        .filter(move |connection| ends(&connection.admission))
        .map(|connection| connection.client_id.clone())
}
