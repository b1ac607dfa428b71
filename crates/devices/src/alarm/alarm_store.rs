//! Stores all alarms in tables of the store.
//!
//! `alarm`: number -> record. `alarm_index`: one row per access path. Each key ends with the inverted number, so that
//! the newest alarm comes first:
//!
//! | begins with | then | value |
//! |---|---|---|
//! | `a` | device, type | number and severity; only of alarms that are not cleared |
//! | `d` | device, number | state |
//! | `s` | state, number | severity |
//! | `n` | | the next number: none is given twice |

use std::collections::HashMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;
use namespaces::NamespaceSelection;
use series::DeviceNo;
use store::{Durability, StoreError, Table, TableBatch, Tables};

use super::definition::Severity;
use super::event::AlarmChange;
use super::pending_notifications::PendingNotifications;
use super::record::{Alarm, AlarmId, AlarmState};

/// Maximum number of records that one request examines; the response then contains the position to continue from.
const MAX_SCANNED: usize = 10_000;
const NEXT_ID_KEY: &[u8] = b"n";
/// Number of alarms removed in one batch.
const PURGE_BATCH: usize = 1000;

pub(super) struct AlarmStore {
    tables: Tables,
    alarms: Table,
    index: Table,
    pub(super) pending_notifications: Arc<PendingNotifications>,
    state: Mutex<AlarmStoreState>,
}

/// An alarm that is not cleared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OpenAlarm {
    pub(super) id: AlarmId,
    pub(super) severity: Severity,
}

pub(super) struct AlarmStoreState {
    next: u64,
    purged_to: u64,
    pub(super) open: HashMap<DeviceNo, Vec<(Box<str>, OpenAlarm)>, RandomState>,
    /// Number of alarms by state and severity.
    counts: [[u64; Severity::ALL.len()]; AlarmState::ALL.len()],
}

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
    pub next: Option<AlarmId>,
}

impl AlarmStore {
    pub(super) fn open(tables: &Tables) -> Result<Self, StoreError> {
        let book = Self {
            alarms: tables.table("alarm")?,
            index: tables.table("alarm_index")?,
            pending_notifications: PendingNotifications::open(tables)?,
            tables: tables.clone(),
            state: Mutex::new(AlarmStoreState::new()),
        };
        book.load_open()?;
        Ok(book)
    }

    /// Loads the state kept in memory: the alarms that are not cleared, and the counts.
    pub(super) fn load_open(&self) -> Result<(), StoreError> {
        let mut read = AlarmStoreState::new();
        self.index.scan(b"a", Bound::Unbounded, &mut |key, value| {
            if let Some((device, kind, open)) = decode_open(key, value) {
                read.open
                    .entry(device)
                    .or_default()
                    .push((kind.into(), open));
            }
            true
        })?;
        self.index.scan(b"s", Bound::Unbounded, &mut |key, value| {
            if let (Some(state), Some(severity)) = (key.get(1), value.first()) {
                read.adjust_count(usize::from(*state), usize::from(*severity), 1);
            }
            true
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

    /// Writes an alarm that replaces `before`. Returns the number of the change for [`PendingNotifications`].
    pub(super) fn put(
        &self,
        state: &mut AlarmStoreState,
        before: Option<&Alarm>,
        alarm: &Alarm,
        change: AlarmChange,
    ) -> Result<u64, StoreError> {
        let mut batch = self.tables.batch()?;
        if let Some(before) = before {
            self.unlink(&mut batch, before)?;
        }
        batch.put(&self.alarms, &alarm.id.0.to_be_bytes(), &alarm.encode())?;
        let severity = [alarm.severity as u8];
        for device in &alarm.device_no.0 {
            batch.put(
                &self.index,
                &device_key(*device, alarm.id),
                &[alarm.state as u8],
            )?;
        }
        batch.put(&self.index, &state_key(alarm.state, alarm.id), &severity)?;
        batch.put(&self.index, NEXT_ID_KEY, &state.next.to_be_bytes())?;
        if !alarm.is_cleared()
            && let Some(device) = alarm.device_no.0.first()
        {
            let mut value = alarm.id.0.to_be_bytes().to_vec();
            value.extend_from_slice(&severity);
            batch.put(&self.index, &open_key(*device, &alarm.kind), &value)?;
        }
        let no = self.pending_notifications.mark(&mut batch, change, alarm)?;
        batch.commit(Durability::Buffered)?;
        if let Some(before) = before {
            state.remove_from_memory(before);
        }
        state.add_to_memory(alarm);
        Ok(no)
    }

    /// Writes an alarm whose comments have changed; its state, severity and devices are the same.
    pub(super) fn put_comments(
        &self,
        _state: &mut AlarmStoreState,
        alarm: &Alarm,
    ) -> Result<(), StoreError> {
        let mut batch = self.tables.batch()?;
        batch.put(&self.alarms, &alarm.id.0.to_be_bytes(), &alarm.encode())?;
        batch.commit(Durability::Buffered)
    }

    /// Removes one alarm with a notification. Returns the number of the change for [`PendingNotifications`].
    pub(super) fn remove_one(
        &self,
        state: &mut AlarmStoreState,
        alarm: &Alarm,
    ) -> Result<u64, StoreError> {
        let mut batch = self.tables.batch()?;
        let no = self
            .pending_notifications
            .mark(&mut batch, AlarmChange::Removed, alarm)?;
        self.remove_with(batch, state, std::slice::from_ref(alarm))?;
        Ok(no)
    }

    pub(super) fn remove(
        &self,
        state: &mut AlarmStoreState,
        alarms: &[Alarm],
    ) -> Result<(), StoreError> {
        self.remove_with(self.tables.batch()?, state, alarms)
    }

    fn remove_with(
        &self,
        mut batch: TableBatch,
        state: &mut AlarmStoreState,
        alarms: &[Alarm],
    ) -> Result<(), StoreError> {
        for alarm in alarms {
            self.unlink(&mut batch, alarm)?;
            batch.remove(&self.alarms, &alarm.id.0.to_be_bytes())?;
        }
        batch.commit(Durability::Buffered)?;
        alarms
            .iter()
            .for_each(|alarm| state.remove_from_memory(alarm));
        Ok(())
    }

    fn unlink(&self, batch: &mut TableBatch, alarm: &Alarm) -> Result<(), StoreError> {
        for device in &alarm.device_no.0 {
            batch.remove(&self.index, &device_key(*device, alarm.id))?;
        }
        batch.remove(&self.index, &state_key(alarm.state, alarm.id))?;
        match alarm.device_no.0.first() {
            Some(device) if !alarm.is_cleared() => {
                batch.remove(&self.index, &open_key(*device, &alarm.kind))
            }
            _ => Ok(()),
        }
    }

    /// Returns up to `limit` alarms older than `before`, the newest first.
    pub(super) fn list(
        &self,
        filter: &AlarmFilter,
        before: Option<AlarmId>,
        limit: usize,
    ) -> Result<AlarmPage, StoreError> {
        let mut page = AlarmPage::default();
        let mut after = before;
        let mut looked_at = 0;
        loop {
            let ids = self.ids(filter, after, limit.min(MAX_SCANNED))?;
            let Some(last) = ids.last().copied() else {
                return Ok(page);
            };
            for id in ids {
                looked_at += 1;
                if let Some(alarm) = self.get(id)?.filter(|alarm| filter.matches(alarm)) {
                    page.alarms.push(alarm);
                }
                if page.alarms.len() == limit || looked_at == MAX_SCANNED {
                    page.next = Some(id);
                    return Ok(page);
                }
            }
            after = Some(last);
        }
    }

    /// Returns alarm numbers, the newest first, from an index that contains all alarms of the filter.
    fn ids(
        &self,
        filter: &AlarmFilter,
        before: Option<AlarmId>,
        limit: usize,
    ) -> Result<Vec<AlarmId>, StoreError> {
        let mut ids = Vec::new();
        let mut take = |prefix: &[u8]| {
            let from = before.map(|id| [prefix, &descending_key(id)].concat());
            let from = from.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            let mut left = limit;
            self.index.scan(prefix, from, &mut |key, _| {
                ids.push(AlarmId(!decode_u64(&key[prefix.len()..])));
                left -= 1;
                left > 0
            })
        };
        match filter.device {
            Some(device) => take(&[b"d", &device.0.to_be_bytes()[..]].concat())?,
            None => {
                let is_selected =
                    |state: &AlarmState| filter.states.is_empty() || filter.states.contains(state);
                for state in AlarmState::ALL.iter().filter(|state| is_selected(state)) {
                    take(&[b's', *state as u8])?;
                }
            }
        }
        ids.sort_unstable_by(|a, b| b.cmp(a));
        ids.truncate(limit);
        Ok(ids)
    }

    /// Purges one section of the alarms; the next call continues with the next section. Removes alarms cleared before
    /// the given time and, while there are more than `max_alarms`, the oldest cleared ones. Returns the number of
    /// removed alarms.
    pub(super) fn purge(
        &self,
        cleared_before_ms: u64,
        max_alarms: u64,
    ) -> Result<usize, StoreError> {
        let mut state = self.lock();
        let mut above = state.total().saturating_sub(max_alarms);
        let from = if above > 0 { 0 } else { state.purged_to };
        let (mut alarms, mut looked_at, mut next) = (Vec::new(), 0, 0);
        let from = from.to_be_bytes();
        self.alarms
            .scan(b"", Bound::Included(&from), &mut |key, bytes| {
                looked_at += 1;
                if looked_at > MAX_SCANNED || alarms.len() == PURGE_BATCH {
                    next = decode_u64(key);
                    return false;
                }
                if let Some(alarm) = Alarm::decode(bytes) {
                    let is_old = alarm
                        .cleared_at_ms
                        .is_some_and(|at_ms| at_ms < cleared_before_ms);
                    if is_old || (above > 0 && alarm.is_cleared()) {
                        above = above.saturating_sub(1);
                        alarms.push(alarm);
                    }
                }
                true
            })?;
        // Starts over after the last alarm.
        state.purged_to = next;
        self.remove(&mut state, &alarms)?;
        Ok(alarms.len())
    }
}

impl AlarmStoreState {
    fn new() -> Self {
        Self {
            next: 1,
            purged_to: 0,
            open: HashMap::default(),
            counts: Default::default(),
        }
    }

    pub(super) fn number_from(&mut self, first: u64) {
        self.next = self.next.max(first);
    }

    pub(super) fn next_id(&mut self) -> AlarmId {
        self.next += 1;
        AlarmId(self.next - 1)
    }

    pub(super) fn open(&self, device: DeviceNo, kind: &str) -> Option<OpenAlarm> {
        let alarms = self.open.get(&device)?;
        let found = alarms.iter().find(|(known, _)| **known == *kind);
        found.map(|(_, open)| *open)
    }

    pub(super) fn counts(&self) -> impl Iterator<Item = (AlarmState, Severity, u64)> {
        AlarmState::ALL.into_iter().flat_map(move |state| {
            Severity::ALL.into_iter().map(move |severity| {
                (
                    state,
                    severity,
                    self.counts[state as usize][severity as usize],
                )
            })
        })
    }

    fn total(&self) -> u64 {
        self.counts.iter().flatten().sum()
    }

    fn adjust_count(&mut self, state: usize, severity: usize, by: i64) {
        let count = self
            .counts
            .get_mut(state)
            .and_then(|of| of.get_mut(severity));
        if let Some(count) = count {
            *count = count.saturating_add_signed(by);
        }
    }

    fn remove_from_memory(&mut self, alarm: &Alarm) {
        self.adjust_count(alarm.state as usize, alarm.severity as usize, -1);
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
        self.adjust_count(alarm.state as usize, alarm.severity as usize, 1);
        if alarm.is_cleared() {
            return;
        }
        if let Some(device) = alarm.device_no.0.first() {
            let open = OpenAlarm {
                id: alarm.id,
                severity: alarm.severity,
            };
            let alarms = self.open.entry(*device).or_default();
            alarms.push((alarm.kind.as_str().into(), open));
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

fn descending_key(id: AlarmId) -> [u8; 8] {
    (!id.0).to_be_bytes()
}

fn decode_u64(bytes: &[u8]) -> u64 {
    bytes
        .first_chunk()
        .map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

fn open_key(device: DeviceNo, kind: &str) -> Vec<u8> {
    [b"a", &device.0.to_be_bytes()[..], kind.as_bytes()].concat()
}

fn device_key(device: DeviceNo, id: AlarmId) -> Vec<u8> {
    [b"d", &device.0.to_be_bytes()[..], &descending_key(id)].concat()
}

fn state_key(state: AlarmState, id: AlarmId) -> Vec<u8> {
    [&[b's', state as u8][..], &descending_key(id)].concat()
}

fn decode_open<'a>(key: &'a [u8], value: &[u8]) -> Option<(DeviceNo, &'a str, OpenAlarm)> {
    let (device, kind) = key.get(1..)?.split_first_chunk::<4>()?;
    let severity = Severity::ALL.get(usize::from(*value.get(8)?))?;
    let open = OpenAlarm {
        id: AlarmId(decode_u64(value)),
        severity: *severity,
    };
    let device = DeviceNo(u32::from_be_bytes(*device));
    Some((device, std::str::from_utf8(kind).ok()?, open))
}
