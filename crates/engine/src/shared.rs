//! What all shards and the control plane share of the engine.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use broker::Handle;
use broker::hooks::Interest;
use rules::EventKind;
use rules::index::Index;

use crate::bound::Bound;
use crate::devices::DeviceLane;
use crate::outlet::{DeviceOutlet, Outlet};
use crate::rows::Rows;
use crate::settings::Settings;

/// The rules as shards read them; never changed, only replaced.
#[derive(Default)]
pub(crate) struct Snapshot {
    pub(crate) index: Index<Arc<Bound>>,
    pub(crate) interest: Interest,
}

pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) snapshot: Arc<ArcSwap<Snapshot>>,
    pub(crate) rows: Rows,
    pub(crate) outlet: OnceLock<Arc<dyn Outlet>>,
    /// The broker, once it runs.
    pub(crate) handle: OnceLock<Handle>,
    /// Whether a rule wants events of devices.
    pub(crate) wants_devices: AtomicBool,
    /// For events of devices on each shard.
    pub(crate) device_lanes: Box<[DeviceLane]>,
    /// What rules do with devices goes there.
    pub(crate) devices: OnceLock<Arc<dyn DeviceOutlet>>,
    /// Shards, one for windows and one for what comes in through bridges.
    pub(crate) lanes: usize,
}

impl Shared {
    pub(crate) fn window_lane(&self) -> usize {
        self.lanes - 2
    }

    pub(crate) fn bridge_lane(&self) -> usize {
        self.lanes - 1
    }
}

/// Which points of the broker the events of rules come from.
pub(crate) fn interest_of(index: &Index<Arc<Bound>>) -> Interest {
    let points = |kind: EventKind| match kind {
        EventKind::Publish => Interest::PUBLISH,
        EventKind::Delivered => Interest::DELIVER,
        EventKind::Acked => Interest::ACK,
        EventKind::Dropped => Interest::DROP,
        EventKind::Offline => Interest::KEEP | Interest::DROP,
        EventKind::Connected => Interest::CONNECT,
        EventKind::Connack | EventKind::AuthnComplete => Interest::CONNECT | Interest::REFUSE,
        EventKind::AuthzComplete => Interest::AUTHORIZED,
        EventKind::Disconnected => Interest::DISCONNECT,
        EventKind::Subscribed => Interest::SUBSCRIBE,
        EventKind::Unsubscribed => Interest::UNSUBSCRIBE,
        EventKind::Ping => Interest::PING,
        // Told by whoever keeps devices.
        EventKind::Device => Interest::NONE,
    };
    let wanted = EventKind::ALL.into_iter().filter(|&kind| index.wants(kind));
    wanted.fold(Interest::NONE, |all, kind| all | points(kind))
}
