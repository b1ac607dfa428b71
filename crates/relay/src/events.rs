//! The port to the rules: events of connections.

use std::sync::Arc;
use std::sync::OnceLock;

use arc_swap::ArcSwapOption;
use hooks::relay::{RelayDeviceIdentity, RelayEndpoint as _, RelayEvent, RelayEventKind};

use crate::endpoint::{Endpoint, EndpointConnection};

/// Passes events to the rules. Called on the shards' threads and by the device platform; it must not block.
pub trait RelayEvents: Send + Sync {
    /// Whether any rule wants these events; checked before an event is built.
    fn is_wanted(&self) -> bool;

    fn push(&self, event: RelayEvent);
}

/// The port, once it is connected.
pub(crate) type RelayEventsPort = Arc<OnceLock<Arc<dyn RelayEvents>>>;

/// What the events of one connection have in common.
pub(crate) struct ConnectionEvents {
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) connection: Arc<EndpointConnection>,
    device: ArcSwapOption<RelayDeviceIdentity>,
    port: RelayEventsPort,
}

impl ConnectionEvents {
    pub(crate) fn new(
        endpoint: Arc<Endpoint>,
        connection: Arc<EndpointConnection>,
        port: RelayEventsPort,
    ) -> Self {
        Self {
            endpoint,
            connection,
            device: ArcSwapOption::empty(),
            port,
        }
    }

    /// The connection is this device from now on.
    pub(crate) fn set_device(&self, device: RelayDeviceIdentity) {
        self.device.store(Some(Arc::new(device)));
    }

    /// The connection is no device any more.
    pub(crate) fn clear_device(&self) {
        self.device.store(None);
    }

    pub(crate) fn emit(&self, kind: RelayEventKind, at_ms: u64) {
        let Some(port) = self.port.get().filter(|port| port.is_wanted()) else {
            return;
        };
        port.push(RelayEvent {
            kind,
            endpoint_id: self.endpoint.id.clone(),
            namespace: self.endpoint.active().definition.namespace.clone(),
            topic: self.endpoint.topic().to_owned(),
            connection_id: self.connection.id().to_owned(),
            client_id: self.connection.client_id().to_owned(),
            peer: self.connection.peer,
            at_ms,
            connected_ms: self.connection.connected_ms,
            device: self.device.load_full(),
        });
    }
}
