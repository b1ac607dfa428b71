//! Passes what happens at other nodes of the cluster to the parts of this node, and the messages of the broker to them.

use std::sync::{Arc, OnceLock};

use api::NodeCallHandler;
use broker::{
    BrokerHandle, PeerLoss, PeerNodeConnection, PeerNodeInbox, PeerNodeIx, PeerNodeTransport,
};
use bytes::Bytes;
use cluster::{
    ClusterNode, DownReason, FIRST_REQUEST_KIND, NodeLoad, NodeName, NodeRequests, PeerNodeId,
    PeerNodeObserver,
};
use devices::platform::Reporter;
use standby::{SESSION_COPY_KIND, SessionCopies};
use telemetry_copy::TelemetryCopies;

use super::cluster_alarms::ClusterAlarms;
use super::cluster_commands::ClusterCommands;
use super::cluster_drain::NodeDrain;
use super::cluster_firmware::ClusterFirmware;
use super::node_rebalance::NodeRebalance;
use super::replicated_records::ReplicatedRecords;

/// Received messages between nodes that wait for the router of the broker; no more are read above this size.
const MAX_RECEIVED_BYTES: usize = 64 << 20;

/// Passes what happens at other nodes to the broker, and requests of other nodes to those who answer them.
pub(super) struct BrokerObserver {
    pub(super) inbox: PeerNodeInbox,
    pub(super) requests: Arc<NodeRequests>,
    pub(super) records: ReplicatedRecords,
    pub(super) session_copies: SessionCopies,
    pub(super) drain: Arc<NodeDrain>,
    pub(super) rebalance: Arc<NodeRebalance>,
    pub(super) reporter: OnceLock<Arc<Reporter>>,
    pub(super) broker: OnceLock<BrokerHandle>,
    pub(super) api: OnceLock<Arc<dyn NodeCallHandler>>,
    pub(super) commands: OnceLock<Arc<ClusterCommands>>,
    pub(super) images: OnceLock<Arc<ClusterFirmware>>,
    pub(super) device_places: OnceLock<Arc<ClusterAlarms>>,
    pub(super) telemetry_copies: OnceLock<TelemetryCopies>,
}

fn loss_of(reason: DownReason) -> PeerLoss {
    match reason {
        DownReason::Left | DownReason::Drained => PeerLoss::Left,
        DownReason::Silent => PeerLoss::Silent,
        DownReason::Restarted
        | DownReason::Reopened
        | DownReason::TooSlow
        | DownReason::MessageTooLarge
        | DownReason::Requested => PeerLoss::Reconnecting,
    }
}

impl PeerNodeObserver for BrokerObserver {
    fn peer_up(&self, peer: PeerNodeId, node: &NodeName, protocol: u32) {
        self.inbox
            .peer_up(connection(peer), node.as_str(), protocol);
        self.requests.peer_up(peer, node);
        self.records.peer_up(peer);
        self.session_copies.peer_up(peer, node);
    }

    fn peer_down(&self, peer: PeerNodeId, reason: DownReason) {
        self.inbox.peer_down(index_of(peer), loss_of(reason));
        self.requests.peer_down(peer);
        self.records.peer_down(peer);
        self.session_copies.peer_down(peer, reason);
    }

    fn message(&self, peer: PeerNodeId, message: Bytes) {
        let kind = message.first().copied().unwrap_or_default();
        match kind {
            ..FIRST_REQUEST_KIND => self.inbox.message(index_of(peer), message),
            SESSION_COPY_KIND => self.session_copies.receive(peer, message),
            kind => {
                if let Some(message) = self.records.receive(kind, peer, message) {
                    self.requests.receive(peer, &message);
                }
            }
        }
    }

    fn members_known(&self) {
        self.inbox.members_known();
    }

    fn is_full(&self) -> bool {
        self.inbox.queued_bytes() > MAX_RECEIVED_BYTES
    }

    fn load(&self) -> NodeLoad {
        let load = self.broker.get().map(BrokerHandle::load);
        let (connections, sessions) = load.unwrap_or_default();
        NodeLoad {
            connections,
            sessions,
            is_draining: self.drain.is_draining(),
            rebalance_target: self.rebalance.target(),
        }
    }
}

/// There are less than 256 peers.
fn index_of(peer: PeerNodeId) -> PeerNodeIx {
    PeerNodeIx::new(peer.index() as u8)
}

fn connection(peer: PeerNodeId) -> PeerNodeConnection {
    PeerNodeConnection {
        index: index_of(peer),
        channel: peer.channel(),
    }
}

fn peer_id(peer: PeerNodeConnection) -> PeerNodeId {
    PeerNodeId::new(peer.index.get(), peer.channel)
}

/// Carries the messages of the broker.
pub(super) struct ClusterTransport(pub(super) Arc<ClusterNode>);

impl PeerNodeTransport for ClusterTransport {
    fn send(&self, peer: PeerNodeConnection, message: Bytes) {
        self.0.send(peer_id(peer), message);
    }

    fn queued_bytes(&self, peer: PeerNodeConnection) -> usize {
        self.0.queued_bytes(peer_id(peer))
    }

    fn reconnect(&self, peer: PeerNodeConnection) {
        self.0.reconnect(peer_id(peer));
    }
}
