//! The port to the rules: events of connections.

use std::sync::Arc;
use std::sync::OnceLock;

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
#[derive(Clone)]
pub(crate) struct ConnectionEvents {
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) connection: Arc<EndpointConnection>,
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
            port,
        }
    }

    /// The broker's client id of the connection.
    pub(crate) fn client_id(&self) -> String {
        self.endpoint.client_id(self.connection.id())
    }

    /// Passes an event to the rules. `device` is the device that the connection is.
    pub(crate) fn emit(
        &self,
        kind: RelayEventKind,
        at_ms: u64,
        device: Option<Arc<RelayDeviceIdentity>>,
    ) {
        let Some(port) = self.port.get().filter(|port| port.is_wanted()) else {
            return;
        };
        port.push(RelayEvent {
            kind,
            endpoint_id: self.endpoint.id.clone(),
            namespace: self.endpoint.active().definition.namespace.clone(),
            topic: self.endpoint.topic().to_owned(),
            connection_id: self.connection.id().to_owned(),
            client_id: self.client_id(),
            peer: self.connection.peer,
            at_ms,
            connected_ms: self.connection.connected_ms,
            device,
        });
    }
}
