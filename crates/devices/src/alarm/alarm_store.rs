//! Stores all alarms in tables of the store.
//!
//! `alarm`: number -> record. `alarm_index`: see [`alarm_index`](super::alarm_index). In a cluster, each change of a device's alarm has
//! its version in the same batch, see [`sharing`](super::sharing).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use foldhash::fast::RandomState;
use namespaces::NamespaceSelection;
use series::DeviceNo;
use store::{Durability, StoreError, Table, TableBatch, Tables};

use super::alarm_index::{
    AlarmPosition, IndexRange, NEXT_ID_KEY, OpenAlarm, decode_u64, link, scan_cleared, scan_open,
    scan_states, unlink, upgrade,
};
use super::definition::Severity;
use super::event::AlarmChange;
use super::pending_notifications::PendingNotifications;
use super::record::{Alarm, AlarmId, AlarmState};
use super::sharing::{AlarmSharing, AlarmStamps};

/// Maximum number of records that one request examines; the response then contains the position to continue from.
const MAX_SCANNED: usize = 10_000;
/// Number of alarms removed in one batch.
pub(super) const PURGE_BATCH: usize = 1000;

pub(super) struct AlarmStore {
    pub(super) tables: Tables,
    pub(super) alarms: Table,
    index: Table,
    pub(super) pending_notifications: Arc<PendingNotifications>,
    /// Set once in a cluster.
    pub(super) sharing: OnceLock<AlarmSharing>,
    state: Mutex<AlarmStoreState>,
}

pub(super) struct AlarmStoreState {
    next: u64,
    pub(super) open: HashMap<DeviceNo, Vec<(Box<str>, OpenAlarm)>, RandomState>,
    /// Number of alarms of devices and of the node itself.
    counts: [AlarmNumbers; 2],
}

/// Number of alarms by state and severity.
type AlarmNumbers = [[u64; Severity::ALL.len()]; AlarmState::ALL.len()];

/// Selects alarms; the result starts with the newest.
#[derive(Debug, Clone, Default)]
pub struct AlarmFilter {
    /// Alarms of this device and alarms propagated to it.
    pub device: Option<DeviceNo>,
    pub product: Option<String>,
    pub kind: Option<String>,
    /// Any of these states; empty: all.
    pub states: Vec<AlarmState>,
    pub severities: Vec<Severity>,
    pub from_ms: Option<u64>,
    pub to_ms: Option<u64>,
    pub namespaces: NamespaceSelection,
}

/// One page of alarms.
#[derive(Debug, Clone, Default)]
pub struct AlarmPage {
    pub alarms: Vec<Alarm>,
    /// Position of the next page; `None`: this is the last one.
    pub next: Option<AlarmPosition>,
}

impl AlarmStore {
    pub(super) fn open(tables: &Tables) -> Result<Self, StoreError> {
        let book = Self {
            alarms: tables.table("alarm"),
            index: tables.table("alarm_index"),
            pending_notifications: PendingNotifications::open(tables)?,
            tables: tables.clone(),
            sharing: OnceLock::new(),
            state: Mutex::new(AlarmStoreState::new()),
        };
        book.load_open()?;
        Ok(book)
    }

    /// Loads the state kept in memory: the alarms that are not cleared, and the counts.
    pub(super) fn load_open(&self) -> Result<(), StoreError> {
        upgrade(&self.tables, &self.alarms, &self.index)?;
        let mut read = AlarmStoreState::new();
        scan_open(&self.index, &mut |device, kind, open| {
            read.open
                .entry(device)
                .or_default()
                .push((kind.into(), open));
        })?;
        scan_states(&self.index, &mut |state, severity, is_of_node| {
            read.adjust_count((state, severity, is_of_node), 1);
        })?;
        if let Some(next) = self.index.get_with(NEXT_ID_KEY, decode_u64)? {
            read.next = next;
        }
        *self.lock() = read;
        Ok(())
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, AlarmStoreState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, id: AlarmId) -> Result<Option<Alarm>, StoreError> {
        let found = self.alarms.get_with(&id.0.to_be_bytes(), Alarm::decode)?;
        Ok(found.flatten())
    }

    pub(super) fn stamps(&self) -> AlarmStamps<'_> {
        AlarmStamps::new(self.sharing.get())
    }

    /// Writes an alarm that replaces `before`. Returns the number of the change for [`PendingNotifications`]. `is_urgent`: the
    /// other nodes of a cluster learn of it at once.
    pub(super) fn put(
        &self,
        state: &mut AlarmStoreState,
        (before, alarm): (Option<&Alarm>, &Alarm),
        change: AlarmChange,
        is_urgent: bool,
    ) -> Result<u64, StoreError> {
        let mut batch = self.tables.batch()?;
        let mut stamps = self.stamps();
        let encoded = self.write(&mut batch, state, before, alarm)?;
        stamps.change(&mut batch, alarm, &encoded)?;
        let no = self.pending_notifications.mark(&mut batch, change, alarm)?;
        batch.commit(Durability::Buffered)?;
        stamps.finish(is_urgent);
        state.replace(before, alarm);
        Ok(no)
    }

    /// Adds the rows of an alarm that replaces `before` to a batch; returns the stored form. After the batch is committed, the
    /// alarm has to be [replaced](AlarmStoreState::replace) in memory.
    pub(super) fn write(
        &self,
        batch: &mut TableBatch,
        state: &AlarmStoreState,
        before: Option<&Alarm>,
        alarm: &Alarm,
    ) -> Result<Vec<u8>, StoreError> {
        if let Some(before) = before {
            unlink(batch, &self.index, before)?;
        }
        let encoded = alarm.encode();
        batch.put(&self.alarms, &alarm.id.0.to_be_bytes(), &encoded)?;
        link(batch, &self.index, alarm)?;
        batch.put(&self.index, NEXT_ID_KEY, &state.next.to_be_bytes())?;
        Ok(encoded)
    }

    /// Writes an alarm whose comments have changed; its state, severity and devices are the same.
    pub(super) fn put_comments(
        &self,
        _state: &mut AlarmStoreState,
        alarm: &Alarm,
    ) -> Result<(), StoreError> {
        let mut batch = self.tables.batch()?;
        let mut stamps = self.stamps();
        let encoded = alarm.encode();
        batch.put(&self.alarms, &alarm.id.0.to_be_bytes(), &encoded)?;
        stamps.change(&mut batch, alarm, &encoded)?;
        batch.commit(Durability::Buffered)?;
        stamps.finish(true);
        Ok(())
    }

    /// Removes one alarm with a notification. Returns the number of the change for [`PendingNotifications`].
    pub(super) fn remove_one(
        &self,
        state: &mut AlarmStoreState,
        alarm: &Alarm,
    ) -> Result<u64, StoreError> {
        let mut batch = self.tables.batch()?;
        let mut stamps = self.stamps();
        let no = self
            .pending_notifications
            .mark(&mut batch, AlarmChange::Removed, alarm)?;
        stamps.remove(&mut batch, alarm)?;
        self.erase(&mut batch, alarm)?;
        batch.commit(Durability::Buffered)?;
        stamps.finish(true);
        state.remove_from_memory(alarm);
        Ok(no)
    }

    /// Removes alarms that the other nodes of a cluster remove for themselves.
    pub(super) fn expire(
        &self,
        state: &mut AlarmStoreState,
        alarms: &[Alarm],
    ) -> Result<(), StoreError> {
        let mut batch = self.tables.batch()?;
        let mut stamps = self.stamps();
        for alarm in alarms {
            stamps.expire(&mut batch, alarm)?;
            self.erase(&mut batch, alarm)?;
        }
        batch.commit(Durability::Buffered)?;
        stamps.finish(false);
        alarms
            .iter()
            .for_each(|alarm| state.remove_from_memory(alarm));
        Ok(())
    }

    /// Adds the removal of an alarm to a batch.
    pub(super) fn erase(&self, batch: &mut TableBatch, alarm: &Alarm) -> Result<(), StoreError> {
        unlink(batch, &self.index, alarm)?;
        batch.remove(&self.alarms, &alarm.id.0.to_be_bytes())
    }

    /// Returns up to `limit` alarms behind `before`, the newest first.
    pub(super) fn list(
        &self,
        filter: &AlarmFilter,
        before: Option<AlarmPosition>,
        limit: usize,
    ) -> Result<AlarmPage, StoreError> {
        let mut page = AlarmPage::default();
        let latest = filter.to_ms.map(|to_ms| AlarmPosition {
            raised_at_ms: to_ms,
            id: AlarmId(0),
        });
        let mut after = match (before, latest) {
            (Some(before), Some(latest)) => Some(before.min(latest)),
            (before, latest) => before.or(latest),
        };
        let mut looked_at = 0;
        loop {
            let positions = self.positions(filter, after, limit.min(MAX_SCANNED))?;
            let Some(last) = positions.last().copied() else {
                return Ok(page);
            };
            for position in positions {
                looked_at += 1;
                let alarm = self.get(position.id)?;
                if let Some(alarm) = alarm.filter(|alarm| filter.matches(alarm)) {
                    page.alarms.push(alarm);
                }
                if page.alarms.len() == limit || looked_at == MAX_SCANNED {
                    page.next = Some(position);
                    return Ok(page);
                }
            }
            after = Some(last);
        }
    }

    /// Returns places, the newest first, of an index that contains all alarms of the filter.
    fn positions(
        &self,
        filter: &AlarmFilter,
        before: Option<AlarmPosition>,
        limit: usize,
    ) -> Result<Vec<AlarmPosition>, StoreError> {
        let earliest_ms = filter.from_ms.unwrap_or(0);
        let mut positions = Vec::new();
        let mut take = |range: IndexRange| {
            let mut left = limit;
            range.scan(&self.index, before, &mut |position| {
                if position.raised_at_ms < earliest_ms {
                    return false;
                }
                positions.push(position);
                left -= 1;
                left > 0
            })
        };
        match filter.device {
            Some(device) => take(IndexRange::Device(device))?,
            None => {
                let is_selected =
                    |state: &AlarmState| filter.states.is_empty() || filter.states.contains(state);
                for state in AlarmState::ALL.into_iter().filter(is_selected) {
                    take(IndexRange::State(state))?;
                }
            }
        }
        positions.sort_unstable_by(|a, b| b.cmp(a));
        positions.truncate(limit);
        Ok(positions)
    }

    /// Removes alarms cleared before the given time and, while there are more than `max_alarms`, those that were cleared first.
    /// Returns the number of removed alarms, at most [`PURGE_BATCH`]; with as many, there may be more.
    pub(super) fn purge(
        &self,
        cleared_before_ms: u64,
        max_alarms: u64,
    ) -> Result<usize, StoreError> {
        let mut state = self.lock();
        let above = state.total().saturating_sub(max_alarms);
        let mut ids = Vec::new();
        scan_cleared(&self.index, &mut |cleared_at_ms, id| {
            let is_purged = cleared_at_ms < cleared_before_ms || (ids.len() as u64) < above;
            if is_purged {
                ids.push(id);
            }
            is_purged && ids.len() < PURGE_BATCH
        })?;
        let alarms = ids.iter().map(|id| self.get(*id));
        let alarms: Vec<_> = alarms
            .filter_map(Result::transpose)
            .collect::<Result<_, _>>()?;
        if !alarms.is_empty() {
            self.expire(&mut state, &alarms)?;
        }
        Ok(alarms.len())
    }
}

impl AlarmStoreState {
    fn new() -> Self {
        Self {
            next: 1,
            open: HashMap::default(),
            counts: Default::default(),
        }
    }

    pub(super) fn number_from(&mut self, first: u64) {
        self.next = self.next.max(first);
    }

    /// The number of the next alarm.
    pub(super) fn first_new_id(&self) -> AlarmId {
        AlarmId(self.next)
    }

    pub(super) fn next_id(&mut self) -> AlarmId {
        self.next += 1;
        AlarmId(self.next - 1)
    }

    /// The alarms of a type that are not cleared, the first one first. The others are duplicates that nodes of a cluster have
    /// raised while they were separated.
    pub(super) fn open(&self, device: DeviceNo, kind: &str) -> Vec<OpenAlarm> {
        let alarms = self.open.get(&device).into_iter().flatten();
        let found = alarms.filter(|(known, _)| **known == *kind);
        let mut found: Vec<_> = found.map(|(_, open)| *open).collect();
        found.sort_unstable_by_key(OpenAlarm::rank);
        found
    }

    /// The number of alarms of the node itself, and unless `only_of_node` also of devices.
    pub(super) fn counts(
        &self,
        only_of_node: bool,
    ) -> impl Iterator<Item = (AlarmState, Severity, u64)> {
        let counted = &self.counts[usize::from(only_of_node)..];
        AlarmState::ALL.into_iter().flat_map(move |state| {
            Severity::ALL.into_iter().map(move |severity| {
                let counts = counted.iter();
                let counts = counts.map(|numbers| numbers[state as usize][severity as usize]);
                (state, severity, counts.sum())
            })
        })
    }

    fn total(&self) -> u64 {
        self.counts.iter().flatten().flatten().sum()
    }

    fn adjust_count(&mut self, (state, severity, is_of_node): (usize, usize, bool), by: i64) {
        let count = self.counts[usize::from(is_of_node)]
            .get_mut(state)
            .and_then(|of| of.get_mut(severity));
        if let Some(count) = count {
            *count = count.saturating_add_signed(by);
        }
    }

    pub(super) fn replace(&mut self, before: Option<&Alarm>, alarm: &Alarm) {
        if let Some(before) = before {
            self.remove_from_memory(before);
        }
        self.add_to_memory(alarm);
    }

    pub(super) fn remove_from_memory(&mut self, alarm: &Alarm) {
        let (state, severity) = (alarm.state as usize, alarm.severity as usize);
        self.adjust_count((state, severity, alarm.is_of_node()), -1);
        let Some(device) = alarm.device_no.0.first() else {
            return;
        };
        if let Some(alarms) = self.open.get_mut(device) {
            alarms.retain(|(_, open)| open.id != alarm.id);
            if alarms.is_empty() {
                self.open.remove(device);
            }
        }
    }

    fn add_to_memory(&mut self, alarm: &Alarm) {
        let (state, severity) = (alarm.state as usize, alarm.severity as usize);
        self.adjust_count((state, severity, alarm.is_of_node()), 1);
        if alarm.is_cleared() {
            return;
        }
        if let Some(device) = alarm.device_no.0.first() {
            let alarms = self.open.entry(*device).or_default();
            alarms.push((alarm.kind.as_str().into(), OpenAlarm::new(alarm)));
        }
    }
}

impl AlarmFilter {
    fn matches(&self, alarm: &Alarm) -> bool {
        let is_in = |wanted: &Option<String>, found: &str| {
            wanted.as_deref().is_none_or(|wanted| wanted == found)
        };
        (self.states.is_empty() || self.states.contains(&alarm.state))
            && (self.severities.is_empty() || self.severities.contains(&alarm.severity))
            && is_in(&self.product, &alarm.product)
            && is_in(&self.kind, &alarm.kind)
            && self.namespaces.contains(&alarm.namespace)
            && self
                .from_ms
                .is_none_or(|from_ms| alarm.raised_at_ms >= from_ms)
            && self.to_ms.is_none_or(|to_ms| alarm.raised_at_ms < to_ms)
    }
}
