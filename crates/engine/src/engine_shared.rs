//! What all shards and the control plane share of the engine.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use broker::BrokerHandle;
use broker::hooks::{Interest, MessageView, OutgoingMessages};
use rules::EventKind;
use rules::index::RuleIndex;

use crate::device_events::ShardDeviceEvents;
use crate::ports::{DevicePort, SinkPort};
use crate::running_rule::{RuleLineage, RunningRule};
use crate::settings::RuleEngineSettings;
use crate::window_queue::WindowQueue;

/// The rules as shards read them; never changed, only replaced.
#[derive(Default)]
pub(crate) struct RuleSnapshot {
    pub(crate) index: RuleIndex<Arc<RunningRule>>,
    pub(crate) interest: Interest,
}

pub(crate) struct EngineShared {
    pub(crate) settings: RuleEngineSettings,
    /// The node's address, of events that came over no connection.
    pub(crate) node_ip: String,
    /// Bits 32 to 79 of the ids of messages: messages of nodes with different names have different ids.
    pub(crate) node_id_bits: u128,
    pub(crate) snapshot: Arc<ArcSwap<RuleSnapshot>>,
    pub(crate) rows: WindowQueue,
    pub(crate) outlet: OnceLock<Arc<dyn SinkPort>>,
    /// The broker, once it runs.
    pub(crate) handle: OnceLock<BrokerHandle>,
    /// Whether a rule wants events of devices.
    pub(crate) wants_devices: AtomicBool,
    /// For events of devices on each shard.
    pub(crate) device_lanes: Box<[ShardDeviceEvents]>,
    /// What rules do with devices goes there.
    pub(crate) devices: OnceLock<Arc<dyn DevicePort>>,
    /// What `getenv` may read.
    pub(crate) environment: rules::Environment,
    /// Rules that run, by their serials.
    pub(crate) by_serial: Mutex<HashMap<u64, Weak<RunningRule>>>,
    /// Shards, one for windows and one for what comes in through bridges.
    pub(crate) lanes: usize,
}

/// A shard that has not published what it was handed in this time is not waited for any longer.
pub(crate) const PUBLISH_TIMEOUT: Duration = Duration::from_secs(5);

/// The address of this host towards others; nothing is sent to find it out.
pub(crate) fn node_ip() -> String {
    let outward = || {
        let socket = std::net::UdpSocket::bind(("0.0.0.0", 0))?;
        // A documentation address: only the routing table is asked.
        socket.connect(("192.0.2.1", 9))?;
        socket.local_addr()
    };
    match outward() {
        Ok(address) if !address.ip().is_unspecified() => address.ip().to_string(),
        _ => "127.0.0.1".to_owned(),
    }
}

/// A hash of the node's name, at its place in the id of a message.
pub(crate) fn node_id_bits(name: &str) -> u128 {
    let digest = ring::digest::digest(&ring::digest::SHA256, name.as_bytes());
    let hash = digest.as_ref()[..6].iter();
    hash.fold(0, |bits, &byte| bits << 8 | u128::from(byte)) << 32
}

impl EngineShared {
    /// The identity of a message, for the `id` of all events about it: 48 bits of the time it was received, 48 of the node, 32 of
    /// its number among the messages of that millisecond.
    #[inline]
    pub(crate) fn message_id(&self, message: &MessageView<'_>) -> u128 {
        u128::from(message.received_ms) << 80 | self.node_id_bits | u128::from(message.number)
    }

    fn lock_serials(&self) -> MutexGuard<'_, HashMap<u64, Weak<RunningRule>>> {
        self.by_serial
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// A rule begins to run.
    pub(crate) fn register_serial(&self, bound: &Arc<RunningRule>) {
        let mut serials = self.lock_serials();
        if serials.len() == serials.capacity() {
            serials.retain(|_, bound| bound.strong_count() > 0);
        }
        serials.insert(bound.serial, Arc::downgrade(bound));
    }

    /// The rule that a message comes of, if it still runs. Takes a lock: not for every message.
    pub(crate) fn find_by_lineage(&self, lineage: RuleLineage) -> Option<Arc<RunningRule>> {
        self.lock_serials().get(&lineage.serial())?.upgrade()
    }

    /// Hands messages to a shard, always the same for one number, so that they keep their order; `done` is called when they are
    /// published. False: there is no broker (yet).
    pub(crate) fn publish_on_shard(
        &self,
        number: u64,
        outgoing: OutgoingMessages,
        done: impl FnOnce() + Send + 'static,
    ) -> bool {
        let Some(handle) = self.handle.get() else {
            return false;
        };
        let shard = (number % handle.shard_count().max(1) as u64) as u16;
        handle.publish_outgoing(shard, outgoing, done);
        true
    }

    pub(crate) fn window_lane(&self) -> usize {
        self.lanes - 2
    }

    pub(crate) fn bridge_lane(&self) -> usize {
        self.lanes - 1
    }
}

/// Which points of the broker the events of rules come from.
pub(crate) fn hooks_interest(index: &RuleIndex<Arc<RunningRule>>) -> Interest {
    let points = |kind: EventKind| match kind {
        EventKind::Publish => Interest::PUBLISH,
        EventKind::Delivered => Interest::DELIVER,
        EventKind::Acked | EventKind::MessageAcked => Interest::ACK,
        EventKind::Dropped | EventKind::MessageDropped | EventKind::DeliveryDropped => {
            Interest::DROP
        }
        EventKind::Offline => Interest::QUEUE | Interest::DROP,
        EventKind::Connected => Interest::CONNECT,
        EventKind::Connack | EventKind::AuthnComplete => {
            Interest::CONNECT | Interest::CONNECT_REFUSED
        }
        EventKind::AuthzComplete => Interest::AUTHORIZATION_DECIDED,
        EventKind::Disconnected => Interest::DISCONNECT,
        EventKind::Subscribed => Interest::SUBSCRIBE,
        EventKind::Unsubscribed => Interest::UNSUBSCRIBE,
        EventKind::Ping => Interest::PING,
        // Told by whoever keeps devices, and by the engine itself.
        EventKind::Device | EventKind::RuleFailed => Interest::NONE,
    };
    let wanted = EventKind::ALL
        .into_iter()
        .filter(|&kind| index.has_rules_for(kind));
    wanted.fold(Interest::NONE, |all, kind| all | points(kind))
}
