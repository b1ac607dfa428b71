//! When devices were at the nodes of a cluster.

use std::collections::BTreeMap;

use devices::{DevicePresence, DeviceState};
use serde::{Deserialize, Serialize};

use crate::blocking::run_blocking;
use crate::device_service::DeviceService;

/// When a device was at a node.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct NodePresence {
    pub(crate) is_online: bool,
    pub(crate) activated_ms: Option<u64>,
    pub(crate) last_seen_ms: Option<u64>,
}

impl NodePresence {
    pub(crate) fn state(&self) -> DeviceState {
        match self.is_online {
            true => DeviceState::Online,
            false => DeviceState::Offline,
        }
    }
}

/// When devices were at each node, and the nodes that did not answer.
pub(crate) struct ClusterPresences {
    /// By node; in the order of the devices.
    pub(crate) nodes: BTreeMap<String, Vec<Option<NodePresence>>>,
    pub(crate) missing_nodes: Vec<String>,
}

impl ClusterPresences {
    /// The node at which a device is online, or was last.
    pub(crate) fn latest(&self, device: usize) -> Option<(&str, NodePresence)> {
        let presences = self.nodes.iter().filter_map(|(node, presences)| {
            let presence = (*presences.get(device)?)?;
            (presence.is_online || presence.last_seen_ms.is_some())
                .then_some((node.as_str(), presence))
        });
        presences.max_by_key(|(_, presence)| (presence.is_online, presence.last_seen_ms))
    }

    /// When a device was connected for the first time.
    pub(crate) fn activated_ms(&self, device: usize) -> Option<u64> {
        let presences = self.nodes.values();
        let presences = presences.filter_map(|presences| *presences.get(device)?);
        presences.filter_map(|presence| presence.activated_ms).min()
    }
}

/// When the devices were at this node.
pub(crate) async fn presence_here(
    devices: DeviceService,
    ids: Vec<String>,
) -> Result<Vec<Option<NodePresence>>, String> {
    let read = move || {
        let presences = ids.iter().map(|id| devices.presence(id));
        presences.collect::<Result<Vec<_>, _>>()
    };
    let presences = run_blocking(read, "The devices cannot be read now.").await;
    let presences = presences.map_err(|problem| problem.detail)?;
    let presences = presences.map_err(|error| error.to_string())?;
    let shared = |presence: DevicePresence| NodePresence {
        is_online: presence.state == DeviceState::Online,
        activated_ms: presence.activated_ms,
        last_seen_ms: presence.last_seen_ms,
    };
    Ok(presences.into_iter().map(|one| one.map(shared)).collect())
}
