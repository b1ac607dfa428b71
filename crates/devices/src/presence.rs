//! Device presence: counts the connections of devices, notifies observers of state changes, and writes
//! persistent data in batches.
//!
//! A device is online while it has a connection, while it is behind an online gateway that has reported it,
//! or for some time after a message. Every device that was ever connected has a row in the store with the
//! time it was last seen. After a start, no device is online, and every device with a row is offline. A
//! connect writes nothing: `flush` writes the rows of recently seen devices together, every second.
//!
//! A slot takes 8 bytes. Its page is allocated when one of its devices is seen.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use series::DeviceNo;
use store::Durability;

use crate::device::Device;
use crate::registry::{Registry, RegistryError};

const PAGE: usize = 4096;
/// For numbers up to 64 million.
const PAGES: usize = 16_384;

/// Seconds for which a device stays online after its connection was taken over, until the new connection is
/// registered.
const TAKEOVER_S: u32 = 5;

/// Seconds for which further activity of a device behind an online gateway is ignored.
const CHILD_ACTIVITY_INTERVAL_S: u32 = 5;

const COUNT: u32 = 0xffff;
/// Online without a connection of its own.
const IS_TRANSIENT: u32 = 1 << 16;
const IS_DIRTY: u32 = 1 << 17;
/// Observers were notified that the device is online.
const IS_ONLINE: u32 = 1 << 18;

#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase")]
pub enum DeviceState {
    /// Never connected.
    NotActive,
    Online,
    Offline,
}

impl DeviceState {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            DeviceState::NotActive => "notActive",
            DeviceState::Online => "online",
            DeviceState::Offline => "offline",
        }
    }
}

/// When a device was online.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct DevicePresence {
    pub state: DeviceState,
    /// Time of the first connection; known once it is written, within about a second.
    pub activated_ms: Option<u64>,
    pub last_seen_ms: Option<u64>,
}

/// A device has gone online or offline.
#[derive(Debug, Clone, Copy)]
pub struct DeviceStateChange<'a> {
    pub device: &'a Arc<Device>,
    pub is_online: bool,
    /// Such as `connected`, `normal`, `keep_alive_timeout`, `gateway`, `inactive`.
    pub reason: &'static str,
    pub now_ms: u64,
}

#[derive(Default)]
struct DeviceSlot {
    flags: AtomicU32,
    seen_s: AtomicU32,
}

type SlotPages = Box<[OnceLock<Box<[DeviceSlot]>>]>;
type DeviceStateObserver = Box<dyn Fn(&DeviceStateChange<'_>) + Send + Sync>;

/// The states of all devices. Clones share them.
#[derive(Clone)]
pub struct DeviceStates {
    inner: Arc<DeviceStatesInner>,
}

struct DeviceStatesInner {
    registry: Registry,
    pages: SlotPages,
    online: AtomicU32,
    /// Devices with unwritten changes.
    dirty_devices: Mutex<Vec<DeviceNo>>,
    /// Devices that are online without a connection of their own, and until when; checked by
    /// `expire_inactive`.
    transient: Mutex<HashMap<u32, TransientPresence, RandomState>>,
    observers: RwLock<Vec<DeviceStateObserver>>,
    pub(crate) flushed: AtomicU64,
}

struct TransientPresence {
    device: Arc<Device>,
    until_s: u32,
    /// The gateway of the device: both go offline together.
    gateway: Option<DeviceNo>,
}

fn seconds(now_ms: u64) -> u32 {
    u32::try_from(now_ms / 1000).unwrap_or(u32::MAX)
}

impl DeviceStates {
    #[must_use]
    pub fn new(registry: Registry) -> Self {
        Self {
            inner: Arc::new(DeviceStatesInner {
                registry,
                pages: (0..PAGES).map(|_| OnceLock::new()).collect(),
                online: AtomicU32::new(0),
                dirty_devices: Mutex::default(),
                transient: Mutex::default(),
                observers: RwLock::default(),
                flushed: AtomicU64::new(0),
            }),
        }
    }

    /// Calls `listener` when a device goes online or offline, on the thread that noticed it: mostly a
    /// shard's.
    pub fn add_observer(&self, listener: DeviceStateObserver) {
        let listeners = self.inner.observers.write();
        listeners
            .unwrap_or_else(PoisonError::into_inner)
            .push(listener);
    }

    /// Number of devices online.
    #[must_use]
    pub fn online_count(&self) -> u32 {
        self.inner.online.load(Relaxed)
    }

    fn slot(&self, no: DeviceNo) -> Option<&DeviceSlot> {
        let page = self.inner.pages.get(no.0 as usize / PAGE)?;
        Some(&page.get()?[no.0 as usize % PAGE])
    }

    fn slot_or_create(&self, no: DeviceNo) -> Option<&DeviceSlot> {
        let page = self.inner.pages.get(no.0 as usize / PAGE)?;
        let page = page.get_or_init(|| (0..PAGE).map(|_| DeviceSlot::default()).collect());
        Some(&page[no.0 as usize % PAGE])
    }

    /// Counts a further connection of the device.
    pub fn connect(&self, device: &Arc<Device>, now_ms: u64) {
        let Some(slot) = self.slot_or_create(device.no) else {
            return;
        };
        slot.flags.fetch_add(1, Relaxed);
        self.update_last_seen(device.no, slot, now_ms);
        self.remove_transient(device, slot);
        self.publish_state(device, slot, "connected", now_ms);
    }

    /// A connection of its own is stronger evidence than activity: when it ends, the device goes offline.
    fn remove_transient(&self, device: &Arc<Device>, slot: &DeviceSlot) {
        if slot.flags.load(Relaxed) & IS_TRANSIENT == 0 {
            return;
        }
        let mut transient = self.lock_transient();
        if transient
            .get(&device.no.0)
            .is_some_and(|presence| presence.gateway.is_none())
        {
            transient.remove(&device.no.0);
            slot.flags.fetch_and(!IS_TRANSIENT, Relaxed);
        }
    }

    /// A connection of the device has ended. `reason` is that of the broker. A connection that was taken over
    /// does not set the device offline: its successor exists or is about to.
    pub fn disconnect(&self, device: &Arc<Device>, reason: &'static str, now_ms: u64) {
        let Some(slot) = self.slot(device.no) else {
            return;
        };
        let less = slot.flags.fetch_update(Relaxed, Relaxed, |flags| {
            (flags & COUNT > 0).then(|| flags - 1)
        });
        let was_last = less.is_ok_and(|before| before & COUNT == 1);
        self.update_last_seen(device.no, slot, now_ms);
        if was_last && reason == "taken_over" {
            self.set_transient(device, slot, now_ms, TAKEOVER_S, None);
        }
        self.publish_state(device, slot, reason, now_ms);
        if was_last {
            self.expire_children(device.no, now_ms);
        }
    }

    /// Records a message of the device, by whatever transport. Without a connection, the device counts as
    /// online for its product's inactivity time-out.
    pub fn mark_active(&self, device: &Arc<Device>, now_ms: u64) {
        let Some(slot) = self.slot_or_create(device.no) else {
            return;
        };
        self.update_last_seen(device.no, slot, now_ms);
        if slot.flags.load(Relaxed) & COUNT == 0 {
            let for_s = device.product.get().definition.inactivity_timeout_s;
            self.set_transient(device, slot, now_ms, for_s, None);
            self.publish_state(device, slot, "active", now_ms);
        }
    }

    /// Records activity of a connected device. Call this every few seconds at most.
    pub fn record_activity(&self, no: DeviceNo, now_ms: u64) {
        if let Some(slot) = self.slot(no) {
            self.update_last_seen(no, slot, now_ms);
        }
    }

    /// Records a gateway's report about a child device. The child is online as long as its gateway is, or for
    /// its product's inactivity time-out if the gateway is no longer connected. Cheap if called again soon.
    pub fn mark_child_active(&self, device: &Arc<Device>, gateway: DeviceNo, now_ms: u64) {
        if let Some(slot) = self.slot(device.no)
            && slot.flags.load(Relaxed) & IS_ONLINE != 0
            && seconds(now_ms).abs_diff(slot.seen_s.load(Relaxed)) < CHILD_ACTIVITY_INTERVAL_S
        {
            return;
        }
        match self.is_online(gateway) {
            true => self.connect_child(device, gateway, now_ms),
            false => self.mark_active(device, now_ms),
        }
    }

    /// A gateway reports a child device as connected. The child goes offline with the gateway.
    pub fn connect_child(&self, device: &Arc<Device>, gateway: DeviceNo, now_ms: u64) {
        let Some(slot) = self.slot_or_create(device.no) else {
            return;
        };
        self.update_last_seen(device.no, slot, now_ms);
        self.set_transient(device, slot, now_ms, u32::MAX, Some(gateway));
        self.publish_state(device, slot, "connected", now_ms);
    }

    /// A gateway reports a child device as disconnected, or the device does so itself.
    pub fn disconnect_child(&self, device: &Arc<Device>, now_ms: u64) {
        let mut transient = self.lock_transient();
        if transient.remove(&device.no.0).is_some()
            && let Some(slot) = self.slot(device.no)
        {
            slot.flags.fetch_and(!IS_TRANSIENT, Relaxed);
            drop(transient);
            self.update_last_seen(device.no, slot, now_ms);
            self.publish_state(device, slot, "normal", now_ms);
        }
    }

    fn lock_transient(
        &self,
    ) -> std::sync::MutexGuard<'_, HashMap<u32, TransientPresence, RandomState>> {
        let transient = self.inner.transient.lock();
        transient.unwrap_or_else(PoisonError::into_inner)
    }

    fn set_transient(
        &self,
        device: &Arc<Device>,
        slot: &DeviceSlot,
        now_ms: u64,
        for_s: u32,
        gateway: Option<DeviceNo>,
    ) {
        let mut transient = self.lock_transient();
        let until_s = seconds(now_ms).saturating_add(for_s);
        let entry = transient
            .entry(device.no.0)
            .or_insert_with(|| TransientPresence {
                device: Arc::clone(device),
                until_s,
                gateway,
            });
        // A gateway's report extends the time, never shortens it.
        entry.until_s = entry.until_s.max(until_s);
        entry.gateway = entry.gateway.or(gateway);
        slot.flags.fetch_or(IS_TRANSIENT, Relaxed);
    }

    fn expire_children(&self, gateway: DeviceNo, now_ms: u64) {
        let is_here = |slot: &DeviceSlot| slot.flags.load(Relaxed) & (COUNT | IS_TRANSIENT) != 0;
        if self.slot(gateway).is_some_and(is_here) {
            return;
        }
        self.expire_transient("gateway", now_ms, |presence| {
            presence.gateway == Some(gateway)
        });
    }

    /// Sets devices offline whose last activity is too long ago. Call this about every second.
    pub fn expire_inactive(&self, now_ms: u64) {
        let now_s = seconds(now_ms);
        self.expire_transient("inactive", now_ms, |presence| presence.until_s <= now_s);
    }

    fn expire_transient(
        &self,
        reason: &'static str,
        now_ms: u64,
        goes: impl Fn(&TransientPresence) -> bool,
    ) {
        let mut gone = Vec::new();
        {
            let mut transient = self.lock_transient();
            if transient.is_empty() {
                return;
            }
            transient.retain(|_, presence| {
                let goes = goes(presence);
                if goes {
                    gone.push(Arc::clone(&presence.device));
                    if let Some(slot) = self.slot(presence.device.no) {
                        slot.flags.fetch_and(!IS_TRANSIENT, Relaxed);
                    }
                }
                !goes
            });
        }
        for device in gone {
            if let Some(slot) = self.slot(device.no) {
                self.publish_state(&device, slot, reason, now_ms);
                self.expire_children(device.no, now_ms);
            }
        }
    }

    fn update_last_seen(&self, no: DeviceNo, slot: &DeviceSlot, now_ms: u64) {
        slot.seen_s.store(seconds(now_ms), Relaxed);
        if slot.flags.load(Relaxed) & IS_DIRTY == 0
            && slot.flags.fetch_or(IS_DIRTY, Relaxed) & IS_DIRTY == 0
        {
            let dirty = self.inner.dirty_devices.lock();
            dirty.unwrap_or_else(PoisonError::into_inner).push(no);
        }
    }

    /// Notifies the observers if the state has changed since the last notification.
    fn publish_state(
        &self,
        device: &Arc<Device>,
        slot: &DeviceSlot,
        reason: &'static str,
        now_ms: u64,
    ) {
        let mut is_online = false;
        let changed = slot.flags.fetch_update(Relaxed, Relaxed, |flags| {
            is_online = flags & (COUNT | IS_TRANSIENT) != 0;
            (is_online != (flags & IS_ONLINE != 0)).then_some(flags ^ IS_ONLINE)
        });
        if changed.is_err() {
            return;
        }
        match is_online {
            true => self.inner.online.fetch_add(1, Relaxed),
            false => self.inner.online.fetch_sub(1, Relaxed),
        };
        let listeners = self.inner.observers.read();
        for listener in &*listeners.unwrap_or_else(PoisonError::into_inner) {
            listener(&DeviceStateChange {
                device,
                is_online,
                reason,
                now_ms,
            });
        }
    }

    /// Whether the device is online. Cheap.
    #[must_use]
    pub fn is_online(&self, no: DeviceNo) -> bool {
        let slot = self.slot(no);
        slot.is_some_and(|slot| slot.flags.load(Relaxed) & IS_ONLINE != 0)
    }

    /// Whether the device has a connection to this node, or is a child of a gateway that has one. Unlike that, a device is
    /// [online](Self::is_online) also for some time after its activity, or after its connection was taken over.
    #[must_use]
    pub fn has_connection(&self, no: DeviceNo) -> bool {
        let flags_of = |no| self.slot(no).map_or(0, |slot| slot.flags.load(Relaxed));
        let flags = flags_of(no);
        if flags & COUNT > 0 || flags & IS_TRANSIENT == 0 {
            return flags & COUNT > 0;
        }
        let gateway = self.lock_transient().get(&no.0).and_then(|it| it.gateway);
        gateway.is_some_and(|gateway| flags_of(gateway) & COUNT > 0)
    }

    /// The same for the device with this id; reads the disk only if it may be online.
    ///
    /// # Errors
    /// If the store fails.
    pub fn is_online_by_id(&self, id: &str) -> Result<bool, RegistryError> {
        let registry = &self.inner.registry;
        let found = registry.number_of_id_if(id, |no| self.is_online(no))?;
        Ok(found.is_some())
    }

    /// Whether the device was ever connected or active; may read the disk.
    pub fn was_seen(&self, no: DeviceNo) -> Result<bool, RegistryError> {
        let slot = self.slot(no);
        if slot.is_some_and(|slot| slot.seen_s.load(Relaxed) > 0) {
            return Ok(true);
        }
        Ok(self.inner.registry.inner.states.has(&no.0.to_be_bytes())?)
    }

    /// The state of a device; may read the disk.
    pub fn presence(&self, no: DeviceNo) -> Result<DevicePresence, RegistryError> {
        let states = &self.inner.registry.inner.states;
        let row = states.get_with(&no.0.to_be_bytes(), read_row)?.flatten();
        let is_online = self.is_online(no);
        let seen_s = self.slot(no).map(|slot| slot.seen_s.load(Relaxed));
        let seen_s = seen_s.filter(|&seen_s| seen_s > 0).or(row.map(|row| row.1));
        let ms = |seconds: u32| u64::from(seconds) * 1000;
        Ok(DevicePresence {
            state: match (is_online, seen_s) {
                (true, _) => DeviceState::Online,
                (false, Some(_)) => DeviceState::Offline,
                (false, None) => DeviceState::NotActive,
            },
            activated_ms: row.map(|row| ms(row.0)),
            last_seen_ms: seen_s.map(ms),
        })
    }

    /// Writes when devices were last seen, for those seen since the last call. Blocks.
    pub fn flush(&self) -> Result<usize, RegistryError> {
        let mut dirty = {
            let dirty = self.inner.dirty_devices.lock();
            std::mem::take(&mut *dirty.unwrap_or_else(PoisonError::into_inner))
        };
        // Adjacent rows are cheaper to read and write.
        dirty.sort_unstable();
        let inner = &self.inner.registry.inner;
        for portion in dirty.chunks(10_000) {
            let mut batch = inner.table_batch()?;
            let mut activated = Vec::new();
            for &no in portion {
                let Some(slot) = self.slot(no) else {
                    continue;
                };
                slot.flags.fetch_and(!IS_DIRTY, Relaxed);
                // A device that was removed meanwhile leaves no row.
                let key = no.0.to_be_bytes();
                if !inner.has_record(no)? {
                    continue;
                }
                let seen_s = slot.seen_s.load(Relaxed);
                let old = inner.states.get_with(&key, read_row)?.flatten();
                let activated_s = old.map_or(seen_s, |old| old.0);
                activated.extend(old.is_none().then_some(no));
                let mut row = [0; 8];
                row[..4].copy_from_slice(&activated_s.to_be_bytes());
                row[4..].copy_from_slice(&seen_s.to_be_bytes());
                batch.put(&inner.states, &key, &row)?;
            }
            if !batch.is_empty() {
                batch.commit(Durability::Buffered)?;
            }
            for no in activated {
                inner.mark_activated(no)?;
            }
        }
        self.inner.flushed.fetch_add(dirty.len() as u64, Relaxed);
        Ok(dirty.len())
    }
}

fn read_row(row: &[u8]) -> Option<(u32, u32)> {
    let (activated, seen) = row.split_first_chunk::<4>()?;
    let seen = seen.first_chunk::<4>()?;
    Some((u32::from_be_bytes(*activated), u32::from_be_bytes(*seen)))
}
