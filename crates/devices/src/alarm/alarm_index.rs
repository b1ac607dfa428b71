//! Keys of the table `alarm_index`, one row per access path:
//!
//! | begins with | then | value |
//! |---|---|---|
//! | `O` | device, number | severity, time of raising and type; only of alarms that are not cleared |
//! | `D` | device, place | state |
//! | `S` | state, place | severity, and whether the alarm is one of the node itself |
//! | `C` | time of clearing, number | empty; only of cleared alarms |
//! | `n` | | the next number: none is given twice |
//! | `v` | | version of this layout |
//!
//! A place is the time of raising and the number, both inverted, so that the newest alarm comes first. It is the same at all nodes
//! of a cluster, whose numbers are not in the order of time.

use std::ops::Bound;

use series::DeviceNo;
use store::{Durability, StoreError, Table, TableBatch, Tables};

use super::definition::Severity;
use super::node_subject::NODE_NO;
use super::record::{Alarm, AlarmId, AlarmState};

pub(super) const NEXT_ID_KEY: &[u8] = b"n";
const LAYOUT_KEY: &[u8] = b"v";
const LAYOUT: &[u8] = &[2];
/// First letters of the rows of earlier layouts.
const FORMER_LETTERS: [&[u8]; 3] = [b"a", b"d", b"s"];
const BATCH_ROWS: usize = 1000;

/// The place of an alarm in lists, which begin with the newest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct AlarmPosition {
    pub raised_at_ms: u64,
    pub id: AlarmId,
}

/// An alarm that is not cleared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OpenAlarm {
    pub(super) id: AlarmId,
    pub(super) severity: Severity,
    pub(super) raised_at_ms: u64,
}

impl AlarmPosition {
    fn key(self) -> [u8; 16] {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&(!self.raised_at_ms).to_be_bytes());
        key[8..].copy_from_slice(&(!self.id.0).to_be_bytes());
        key
    }

    /// The place at the end of a key.
    fn of_key(key: &[u8]) -> Option<Self> {
        let (_, place) = key.split_last_chunk::<16>()?;
        Some(Self {
            raised_at_ms: !decode_u64(&place[..8]),
            id: AlarmId(!decode_u64(&place[8..])),
        })
    }
}

impl OpenAlarm {
    pub(super) fn new(alarm: &Alarm) -> Self {
        Self {
            id: alarm.id,
            severity: alarm.severity,
            raised_at_ms: alarm.raised_at_ms,
        }
    }

    /// Orders the open alarms of one type of a device: the first one is the alarm, others are duplicates.
    pub(super) fn rank(&self) -> (u64, AlarmId) {
        (self.raised_at_ms, self.id)
    }
}

/// Which alarms a range of the index contains.
#[derive(Clone, Copy)]
pub(super) enum IndexRange {
    Device(DeviceNo),
    State(AlarmState),
}

impl IndexRange {
    fn prefix(self) -> Vec<u8> {
        match self {
            Self::Device(device) => [b"D", &device.0.to_be_bytes()[..]].concat(),
            Self::State(state) => vec![b'S', state as u8],
        }
    }

    fn key(self, position: AlarmPosition) -> Vec<u8> {
        [&self.prefix()[..], &position.key()].concat()
    }

    /// The places behind one, the newest first, until `each` returns `false`.
    pub(super) fn scan(
        self,
        index: &Table,
        after: Option<AlarmPosition>,
        each: &mut dyn FnMut(AlarmPosition) -> bool,
    ) -> Result<(), StoreError> {
        let from = after.map(|position| self.key(position));
        let from = from.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        index.scan(&self.prefix(), from, &mut |key, _| {
            AlarmPosition::of_key(key).is_none_or(&mut *each)
        })
    }
}

/// Adds the rows of an alarm.
pub(super) fn link(batch: &mut TableBatch, index: &Table, alarm: &Alarm) -> Result<(), StoreError> {
    let position = alarm.position();
    let severity = alarm.severity as u8;
    for device in alarm.devices() {
        let key = IndexRange::Device(*device).key(position);
        batch.put(index, &key, &[alarm.state as u8])?;
    }
    let value = [severity, u8::from(alarm.is_of_node())];
    batch.put(index, &IndexRange::State(alarm.state).key(position), &value)?;
    match alarm.devices().first() {
        Some(device) if !alarm.is_cleared() => {
            let mut value = vec![severity];
            value.extend_from_slice(&alarm.raised_at_ms.to_be_bytes());
            value.extend_from_slice(alarm.kind.as_bytes());
            batch.put(index, &open_key(*device, alarm.id), &value)?;
        }
        _ => {}
    }
    if let Some(at_ms) = alarm.cleared_at_ms {
        batch.put(index, &cleared_key(at_ms, alarm.id), &[])?;
    }
    Ok(())
}

/// Removes the rows of an alarm.
pub(super) fn unlink(
    batch: &mut TableBatch,
    index: &Table,
    alarm: &Alarm,
) -> Result<(), StoreError> {
    let position = alarm.position();
    for device in alarm.devices() {
        batch.remove(index, &IndexRange::Device(*device).key(position))?;
    }
    batch.remove(index, &IndexRange::State(alarm.state).key(position))?;
    match alarm.devices().first() {
        Some(device) if !alarm.is_cleared() => {
            batch.remove(index, &open_key(*device, alarm.id))?;
        }
        _ => {}
    }
    if let Some(at_ms) = alarm.cleared_at_ms {
        batch.remove(index, &cleared_key(at_ms, alarm.id))?;
    }
    Ok(())
}

/// Calls `each` with the alarms that are not cleared, with their devices and types.
pub(super) fn scan_open(
    index: &Table,
    each: &mut dyn FnMut(DeviceNo, &str, OpenAlarm),
) -> Result<(), StoreError> {
    index.scan(b"O", Bound::Unbounded, &mut |key, value| {
        if let Some((device, kind, open)) = decode_open(key, value) {
            each(device, kind, open);
        }
        true
    })
}

/// Calls `each` with the state and severity of each alarm, and whether it is one of the node itself.
pub(super) fn scan_states(
    index: &Table,
    each: &mut dyn FnMut(usize, usize, bool),
) -> Result<(), StoreError> {
    index.scan(b"S", Bound::Unbounded, &mut |key, value| {
        if let (Some(state), [severity, is_of_node]) = (key.get(1), value) {
            each(
                usize::from(*state),
                usize::from(*severity),
                *is_of_node != 0,
            );
        }
        true
    })
}

/// Calls `each` with cleared alarms and the times at which they were cleared, the oldest first, until it returns `false`.
pub(super) fn scan_cleared(
    index: &Table,
    each: &mut dyn FnMut(u64, AlarmId) -> bool,
) -> Result<(), StoreError> {
    index.scan(b"C", Bound::Unbounded, &mut |key, _| {
        let Some((_, [at @ .., _, _, _, _, _, _, _, _])) = key.split_first() else {
            return true;
        };
        each(decode_u64(at), AlarmId(decode_u64(&key[1 + at.len()..])))
    })
}

/// Writes the index of a store that has that of an earlier version. May be interrupted at any moment.
pub(super) fn upgrade(tables: &Tables, alarms: &Table, index: &Table) -> Result<(), StoreError> {
    if index.has(LAYOUT_KEY)? {
        return Ok(());
    }
    let mut from = Vec::new();
    loop {
        let (mut found, mut last) = (Vec::new(), None);
        alarms.scan(b"", Bound::Excluded(&from), &mut |key, bytes| {
            found.extend(Alarm::decode(bytes));
            last = Some(key.to_vec());
            found.len() < BATCH_ROWS
        })?;
        let Some(last) = last else {
            break;
        };
        from = last;
        let mut batch = tables.batch()?;
        for alarm in &found {
            link(&mut batch, index, alarm)?;
        }
        batch.commit(Durability::Buffered)?;
    }
    for letter in FORMER_LETTERS {
        loop {
            let mut keys = Vec::new();
            index.scan(letter, Bound::Unbounded, &mut |key, _| {
                keys.push(key.to_vec());
                keys.len() < BATCH_ROWS
            })?;
            if keys.is_empty() {
                break;
            }
            let mut batch = tables.batch()?;
            for key in keys {
                batch.remove(index, &key)?;
            }
            batch.commit(Durability::Buffered)?;
        }
    }
    let mut batch = tables.batch()?;
    batch.put(index, LAYOUT_KEY, LAYOUT)?;
    batch.commit(Durability::Buffered)
}

pub(super) fn decode_u64(bytes: &[u8]) -> u64 {
    bytes
        .first_chunk()
        .map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

fn open_key(device: DeviceNo, id: AlarmId) -> Vec<u8> {
    [b"O", &device.0.to_be_bytes()[..], &id.0.to_be_bytes()].concat()
}

fn cleared_key(at_ms: u64, id: AlarmId) -> Vec<u8> {
    [b"C", &at_ms.to_be_bytes()[..], &id.0.to_be_bytes()].concat()
}

fn decode_open<'a>(key: &[u8], value: &'a [u8]) -> Option<(DeviceNo, &'a str, OpenAlarm)> {
    let (device, number) = key.get(1..)?.split_first_chunk::<4>()?;
    let (severity, value) = value.split_first()?;
    let (raised_at_ms, kind) = value.split_first_chunk::<8>()?;
    let open = OpenAlarm {
        id: AlarmId(decode_u64(number)),
        severity: *Severity::ALL.get(usize::from(*severity))?,
        raised_at_ms: u64::from_be_bytes(*raised_at_ms),
    };
    let device = DeviceNo(u32::from_be_bytes(*device));
    Some((device, str::from_utf8(kind).ok()?, open))
}

impl Alarm {
    pub fn position(&self) -> AlarmPosition {
        AlarmPosition {
            raised_at_ms: self.raised_at_ms,
            id: self.id,
        }
    }

    /// Whether this is an alarm of the node about itself.
    pub fn is_of_node(&self) -> bool {
        self.devices().first() == Some(&NODE_NO)
    }
}
