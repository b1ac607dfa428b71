//! Which node of the cluster a device is at, or was last. That node evaluates the alarm rules for what happens without a message,
//! such as silence, see [`DevicePlaces`].

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use cluster::NodeRequests;
use devices::alarm::{DevicePlaces, FoundElsewhere};
use devices::{DeviceNo, DeviceState, DeviceStates, Registry, RegistryError};
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;

/// Asks the other nodes for devices, and answers them.
pub(super) struct ClusterAlarms {
    pub(super) registry: Registry,
    pub(super) states: DeviceStates,
    pub(super) requests: Arc<NodeRequests>,
    /// Subject of the requests.
    pub(super) subject: u8,
    pub(super) runtime: Handle,
}

/// A request to another node. It is answered with an optional [`Presence`] for each device.
#[derive(Debug, Serialize, Deserialize)]
struct PlacesRequest {
    /// At most 1000 ids.
    devices: Vec<String>,
}

/// When a device was at a node. Ordered: the largest one is that of the node which has the device, or had it last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Presence {
    /// A device whose connection was taken over is online for some time without one.
    has_connection: bool,
    is_online: bool,
    last_seen_ms: Option<u64>,
}

impl ClusterAlarms {
    fn presence(&self, device: DeviceNo) -> Result<Presence, RegistryError> {
        let presence = self.states.presence(device)?;
        Ok(Presence {
            has_connection: self.states.has_connection(device),
            is_online: presence.state == DeviceState::Online,
            last_seen_ms: presence.last_seen_ms,
        })
    }

    /// The devices by their ids, with when they were here.
    fn presences_here(
        &self,
        devices: &[DeviceNo],
    ) -> Result<HashMap<String, (DeviceNo, Presence)>, RegistryError> {
        let mut here = HashMap::new();
        for no in devices {
            if let Some(device) = self.registry.by_no(*no)? {
                let id = device.id.as_str().to_owned();
                here.insert(id, (*no, self.presence(*no)?));
            }
        }
        Ok(here)
    }

    async fn ask_all(self: Arc<Self>, devices: Vec<DeviceNo>) -> Result<Vec<DeviceNo>, String> {
        let this = self.clone();
        let reading = tokio::task::spawn_blocking(move || this.presences_here(&devices));
        let here = reading.await.map_err(|error| error.to_string())?;
        let here = here.map_err(|error| error.to_string())?;
        let request = PlacesRequest {
            devices: here.keys().cloned().collect(),
        };
        let body = serde_json::to_vec(&request).map_err(|error| error.to_string())?;
        let nodes = self.requests.reachable();
        let asked = nodes
            .iter()
            .map(|node| self.requests.request(node, self.subject, &body));
        let mut elsewhere = Vec::new();
        for (node, answer) in nodes.iter().zip(join_all(asked).await) {
            let answer = answer
                .map_err(|error| error.to_string())
                .and_then(|answer| {
                    serde_json::from_slice::<Vec<Option<Presence>>>(&answer)
                        .map_err(|error| error.to_string())
                });
            let presences = answer.unwrap_or_else(|reason| {
                tracing::debug!(node = %node, reason, "another node does not say which devices it has");
                Vec::new()
            });
            for (id, presence) in request.devices.iter().zip(presences) {
                let (no, own) = here[id];
                // Of two nodes at the same moment, either may evaluate the device: alarms of both become one.
                if presence.is_some_and(|presence| presence > own) {
                    elsewhere.push(no);
                }
            }
        }
        Ok(elsewhere)
    }

    /// Answers a request of another node.
    pub(super) async fn answer(self: Arc<Self>, body: Bytes) -> Result<Bytes, String> {
        let request: PlacesRequest =
            serde_json::from_slice(&body).map_err(|error| error.to_string())?;
        let reading = tokio::task::spawn_blocking(move || {
            let presences = request.devices.iter().map(|id| {
                let device = self.registry.device(id)?;
                device.map(|device| self.presence(device.no)).transpose()
            });
            presences.collect::<Result<Vec<_>, RegistryError>>()
        });
        let presences = reading.await.map_err(|error| error.to_string())?;
        let presences = presences.map_err(|error| error.to_string())?;
        let answer = serde_json::to_vec(&presences).map_err(|error| error.to_string())?;
        Ok(answer.into())
    }
}

/// [`ClusterAlarms`] for the alarms of this node.
pub(super) struct SharedClusterAlarms(pub(super) Arc<ClusterAlarms>);

impl DevicePlaces for SharedClusterAlarms {
    fn is_here(&self, device: DeviceNo) -> bool {
        self.0.states.has_connection(device)
    }

    fn find_elsewhere(&self, devices: Vec<DeviceNo>, found: FoundElsewhere) {
        let this = self.0.clone();
        self.0.runtime.spawn(async move {
            let elsewhere = this.ask_all(devices).await;
            found(elsewhere.unwrap_or_else(|reason| {
                tracing::warn!(
                    reason,
                    "the places of devices cannot be read; alarm rules are evaluated here"
                );
                Vec::new()
            }));
        });
    }
}
