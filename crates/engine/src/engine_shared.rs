//! State of the engine that all shards and the control plane share.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use hooks::{Interest, OutgoingMessages};
use rules::EventKind;
use rules::index::RuleIndex;

use crate::definition::RuleDefinition;
use crate::definition_error::RuleDefinitionError;
use crate::evaluation_context::EvaluationContext;
use crate::ports::EnginePorts;
use crate::producer_context::ProducerContext;
use crate::rule_lineage::RuleLineage;
use crate::running_rule::{RuleMonitor, RunningRule, compile_rule};
use crate::settings::RuleEngineSettings;
use crate::window_queue::WindowQueue;

/// The rules as the shards see them. A snapshot is immutable and replaced as a whole.
#[derive(Default)]
pub(crate) struct RuleSnapshot {
    pub(crate) index: RuleIndex<Arc<RunningRule>>,
    pub(crate) interest: Interest,
}

pub(crate) struct EngineShared {
    pub(crate) settings: RuleEngineSettings,
    /// The node's address, for events without a connection.
    pub(crate) node_ip: String,
    /// Bits 32 to 79 of message ids. Nodes with different names create different message ids.
    pub(crate) node_id_bits: u128,
    pub(crate) snapshot: Arc<ArcSwap<RuleSnapshot>>,
    pub(crate) rows: WindowQueue,
    pub(crate) ports: Arc<EnginePorts>,
    /// Whether any rule selects device events.
    pub(crate) wants_devices: AtomicBool,
    /// Whether any rule selects events of relay endpoints.
    pub(crate) wants_relay: AtomicBool,
    /// The environment variables that `getenv` may read.
    pub(crate) environment: rules::Environment,
    /// Running rules by serial.
    pub(crate) by_serial: Mutex<HashMap<u64, Weak<RunningRule>>>,
    /// Number of producers: the shards, one for windows and one for events outside the shards.
    pub(crate) producers: usize,
}

/// The kinds of events of relay endpoints.
pub(crate) const RELAY_EVENTS: [EventKind; 3] = [
    EventKind::RelayConnected,
    EventKind::RelayIdentified,
    EventKind::RelayDisconnected,
];

/// Maximum time to wait until a shard has published the messages handed to it.
pub(crate) const PUBLISH_TIMEOUT: Duration = Duration::from_secs(5);

/// The outward address of this host. Nothing is sent to determine it.
pub(crate) fn node_ip() -> String {
    let outward = || {
        let socket = std::net::UdpSocket::bind(("0.0.0.0", 0))?;
        // A documentation address: connecting a UDP socket only consults the routing table.
        socket.connect(("192.0.2.1", 9))?;
        socket.local_addr()
    };
    match outward() {
        Ok(address) if !address.ip().is_unspecified() => address.ip().to_string(),
        _ => "127.0.0.1".to_owned(),
    }
}

/// A hash of the node name, shifted to its position in a message id.
pub(crate) fn node_id_bits(name: &str) -> u128 {
    let digest = ring::digest::digest(&ring::digest::SHA256, name.as_bytes());
    let hash = digest.as_ref()[..6].iter();
    hash.fold(0, |bits, &byte| bits << 8 | u128::from(byte)) << 32
}

impl EngineShared {
    /// The identity of a message, the `id` of all events about it. It has 48 bits for the time of receipt, 48 for the
    /// node and 32 for the number of the message within that millisecond.
    #[inline]
    pub(crate) fn message_id(&self, received_ms: u64, number: u32) -> u128 {
        u128::from(received_ms) << 80 | self.node_id_bits | u128::from(number)
    }

    /// Creates the context in which a producer evaluates events.
    pub(crate) fn evaluation_context(&self, producer: usize) -> EvaluationContext {
        let console_lines_per_s = self.settings.console_lines_per_s;
        let (ports, level) = (self.ports.clone(), self.rows.level().clone());
        let stage = ProducerContext::new(producer, console_lines_per_s, ports, level);
        EvaluationContext::new(stage, self.environment.clone())
    }

    /// Compiles a rule with the settings and ports of this engine.
    pub(crate) fn compile_rule(
        &self,
        name: &str,
        definition: &RuleDefinition,
        monitor: Arc<RuleMonitor>,
    ) -> Result<RunningRule, RuleDefinitionError> {
        let has_devices = self.ports.devices.get().is_some();
        compile_rule(name, definition, &self.settings, has_devices, monitor)
    }

    fn lock_serials(&self) -> MutexGuard<'_, HashMap<u64, Weak<RunningRule>>> {
        self.by_serial
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a rule that starts to run.
    pub(crate) fn register_serial(&self, bound: &Arc<RunningRule>) {
        let mut serials = self.lock_serials();
        if serials.len() == serials.capacity() {
            serials.retain(|_, bound| bound.strong_count() > 0);
        }
        serials.insert(bound.serial, Arc::downgrade(bound));
    }

    /// The rule that published a message, if it still runs. Takes a lock, so it must not be called for every
    /// message.
    pub(crate) fn find_by_lineage(&self, lineage: RuleLineage) -> Option<Arc<RunningRule>> {
        self.lock_serials().get(&lineage.serial())?.upgrade()
    }

    /// Hands messages to a shard; those with the same number keep their order. Calls `done` when they are
    /// published. Returns false if there is no broker (yet).
    pub(crate) fn publish_on_shard(
        &self,
        number: u64,
        outgoing: OutgoingMessages,
        done: impl FnOnce() + Send + 'static,
    ) -> bool {
        let Some(broker) = self.ports.broker.get() else {
            return false;
        };
        broker.publish_outgoing(number, outgoing, Box::new(done));
        true
    }

    pub(crate) fn window_producer(&self) -> usize {
        self.producers - 2
    }

    pub(crate) fn bridge_producer(&self) -> usize {
        self.producers - 1
    }
}

/// The hooks that the events of the rules come from.
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
            Interest::CONNECT | Interest::CONNECT_REJECTED
        }
        EventKind::AuthzComplete => Interest::AUTHORIZATION_DECIDED,
        EventKind::Disconnected => Interest::DISCONNECT,
        EventKind::Subscribed => Interest::SUBSCRIBE,
        EventKind::Unsubscribed => Interest::UNSUBSCRIBE,
        EventKind::Ping => Interest::PING,
        // Emitted by the device platform, by relay endpoints, by the file service, and by the engine itself.
        EventKind::Device
        | EventKind::RelayConnected
        | EventKind::RelayIdentified
        | EventKind::RelayDisconnected
        | EventKind::FileReceived
        | EventKind::RuleFailed => Interest::NONE,
    };
    let wanted = EventKind::ALL
        .into_iter()
        .filter(|&kind| index.has_rules_for(kind));
    wanted.fold(Interest::NONE, |all, kind| all | points(kind))
}
