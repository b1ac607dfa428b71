//! Rows of one partition that are in no segment file yet, encoded in order of arrival.
//!
//! A row is the number of its shape and its values (`cell.rs`). Rows are appended to chunks. The index of a
//! chunk has for each row its time, its offset, and the device's previous row. Adding a row therefore touches
//! little memory however many devices there are, and a device's rows are found backwards from its last one. A
//! shape is a list of keys, shared by devices of the same kind. Full chunks do not change any more: a reader
//! copies only the last one, and later memtables reuse their memory ([`ChunkPool`]).

mod chunk;

use std::collections::HashMap;
use std::sync::Arc;

use disk::varint;

use crate::cell;
use crate::encoding_hint::EncodingHint;
use crate::point::{KeyId, OwnedValue, Point};
use crate::text_dictionary::TextDictionary;

pub(crate) use chunk::{ChunkPool, DeviceRows, RowChunk};
use chunk::{NONE, RowPosition};

/// Maximum numbers of rows in a chunk and of chunks in a memtable: a row number contains both.
const MAX_CHUNK_ROWS: usize = 1 << 16;
const MAX_CHUNKS: usize = (1 << 16) - 2;
const PAGE: usize = 1024;
/// A row that is in no segment file yet has the size of its encoded values and this. That is about what its record
/// takes in the write-ahead log.
const WAITING_ROW_BYTES: u32 = 16;
/// Memory per device apart from its rows.
const SLOT_BYTES: usize = size_of::<DeviceSlot>() + 8;

/// A list of keys with encoding hints for their values.
pub(crate) struct RowShape {
    pub(crate) keys: Arc<[KeyId]>,
    pub(crate) hints: Box<[EncodingHint]>,
    /// The block of the write-ahead log that last defined this shape.
    pub(crate) defined_in: u64,
}

struct DeviceSlot {
    device: u32,
    /// The number of its last row, or [`NONE`].
    last: u32,
    rows: u32,
    /// The shape of the last row.
    shape: u32,
    min_ts: i64,
    max_ts: i64,
    /// Size of the rows, see [`WAITING_ROW_BYTES`].
    bytes: u32,
    /// Who owns the device; 0 until [`Memtable::set_owners`], and if nobody does.
    owner: u16,
    /// Each row is later than the previous one.
    is_sorted: bool,
    /// All rows have the keys of the last one.
    has_same_keys: bool,
}

impl DeviceSlot {
    fn new(device: u32) -> Self {
        Self {
            device,
            last: NONE,
            rows: 0,
            shape: 0,
            min_ts: i64::MAX,
            max_ts: i64::MIN,
            bytes: 0,
            owner: 0,
            is_sorted: true,
            has_same_keys: true,
        }
    }
}

/// Rows of one device, readable without the lock.
pub(crate) enum DeviceView {
    Frozen(Arc<Memtable>, u32),
    Active {
        full: Arc<Vec<Arc<RowChunk>>>,
        open: RowChunk,
        keys: Arc<Vec<Arc<[KeyId]>>>,
        words: Arc<Vec<Arc<str>>>,
        last: u32,
    },
}

impl DeviceView {
    pub(crate) fn rows(&self) -> DeviceRows<'_> {
        match self {
            DeviceView::Frozen(memtable, slot) => memtable.rows_of(memtable.at(*slot)),
            DeviceView::Active {
                full,
                open,
                keys,
                words,
                last,
            } => DeviceRows {
                full,
                open,
                keys,
                words,
                last: *last,
            },
        }
    }
}

/// The newest data of a device.
pub(crate) enum NewestRow {
    /// The values of its last row.
    Row(i64, Vec<(KeyId, OwnedValue)>),
    /// Any of its rows may contain the newest value.
    Any(DeviceView),
}

/// Rows of one partition.
pub(crate) struct Memtable {
    shapes: Vec<RowShape>,
    /// The keys of each shape, for readers.
    keys: Arc<Vec<Arc<[KeyId]>>>,
    words: TextDictionary,
    by_keys: HashMap<Arc<[KeyId]>, u32, foldhash::fast::RandomState>,
    /// Slot numbers by the device's index in its partition, in pages.
    places: Vec<Option<Box<[u32; PAGE]>>>,
    slots: Vec<Vec<DeviceSlot>>,
    full: Arc<Vec<Arc<RowChunk>>>,
    open: RowChunk,
    bytes: usize,
    /// Size of the rows by owner of their device, for devices whose owner is set.
    bytes_by_owner: Vec<u64>,
    /// The owners of this many devices, in the order of their slots, are set.
    owners_set: usize,
    pub(crate) rows: u64,
    pub(crate) points: u64,
    /// The number of the next row.
    pub(crate) next_lsn: u64,
    /// When the first row arrived, by the store's clock.
    pub(crate) since_ms: i64,
}

impl Default for Memtable {
    fn default() -> Self {
        Self::new(1)
    }
}

impl Memtable {
    pub(crate) fn new(next_lsn: u64) -> Self {
        Self {
            shapes: Vec::new(),
            keys: Arc::default(),
            words: TextDictionary::default(),
            by_keys: HashMap::default(),
            places: Vec::new(),
            slots: Vec::new(),
            full: Arc::default(),
            open: RowChunk::default(),
            bytes: 0,
            bytes_by_owner: Vec::new(),
            owners_set: 0,
            rows: 0,
            points: 0,
            next_lsn,
            since_ms: 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Whether it has to be frozen, whatever its size in bytes.
    pub(crate) fn is_full(&self) -> bool {
        self.full.len() >= MAX_CHUNKS
    }

    #[inline]
    fn find(&self, place: u32) -> Option<u32> {
        let page = self.places.get(place as usize / PAGE)?.as_ref()?;
        Some(page[place as usize % PAGE]).filter(|&slot| slot != NONE)
    }

    /// Returns the slot of the device at this index of the partition; creates it if it does not exist.
    #[inline]
    pub(crate) fn slot_or_insert(&mut self, place: u32, device: u32) -> u32 {
        match self.find(place) {
            Some(slot) => slot,
            None => self.insert_slot(place, device),
        }
    }

    #[cold]
    fn insert_slot(&mut self, place: u32, device: u32) -> u32 {
        let page = place as usize / PAGE;
        if page >= self.places.len() {
            self.places.resize_with(page + 1, || None);
        }
        if self.places[page].is_none() {
            self.bytes += PAGE * 4;
        }
        let page = self.places[page].get_or_insert_with(|| Box::new([NONE; PAGE]));
        if self.slots.last().is_none_or(|last| last.len() == PAGE) {
            // The first page grows on demand, so that few devices take little memory.
            let capacity = if self.slots.is_empty() { 8 } else { PAGE };
            self.slots.push(Vec::with_capacity(capacity));
        }
        let at = (self.slots.len() - 1) * PAGE;
        let last = self
            .slots
            .last_mut()
            .expect("a chunk was just pushed if there was none");
        let slot = (at + last.len()) as u32;
        last.push(DeviceSlot::new(device));
        page[place as usize % PAGE] = slot;
        self.bytes += SLOT_BYTES;
        slot
    }

    #[inline]
    fn at(&self, slot: u32) -> &DeviceSlot {
        &self.slots[slot as usize / PAGE][slot as usize % PAGE]
    }

    /// The shape of this row, if the device's previous row had the same keys.
    #[inline]
    pub(crate) fn last_shape_if_same(&self, slot: u32, points: &[Point<'_>]) -> Option<u32> {
        // A device without rows has an arbitrary shape.
        let shape = self.at(slot).shape;
        let keys = &self.shapes.get(shape as usize)?.keys;
        let is_it = keys.len() == points.len()
            && keys
                .iter()
                .zip(points)
                .all(|(key, point)| *key == point.key);
        is_it.then_some(shape)
    }

    pub(crate) fn find_shape(&self, keys: &[KeyId]) -> Option<u32> {
        self.by_keys.get(keys).copied()
    }

    /// Adds a list of distinct keys as a new shape.
    pub(crate) fn insert_shape(&mut self, keys: Arc<[KeyId]>) -> u32 {
        let shape = self.shapes.len() as u32;
        self.bytes += 128 + keys.len() * (size_of::<KeyId>() + size_of::<EncodingHint>());
        self.by_keys.insert(Arc::clone(&keys), shape);
        Arc::make_mut(&mut self.keys).push(Arc::clone(&keys));
        self.shapes.push(RowShape {
            hints: vec![EncodingHint::default(); keys.len()].into(),
            keys,
            defined_in: 0,
        });
        shape
    }

    /// The shape and the text dictionary with which its rows are encoded.
    #[inline]
    pub(crate) fn shape_and_words(&mut self, shape: u32) -> (&mut RowShape, &mut TextDictionary) {
        (&mut self.shapes[shape as usize], &mut self.words)
    }

    /// Memory of the rows.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes + self.words.bytes
    }

    /// Adds a row whose values were encoded with the hints of its shape.
    #[inline]
    pub(crate) fn push(
        &mut self,
        slot: u32,
        ts_ms: i64,
        shape: u32,
        points: usize,
        values: &[u8],
        spare: &ChunkPool,
    ) {
        let needed = values.len() + 5;
        let room = self.open.bytes.capacity() - self.open.bytes.len();
        if room < needed || self.open.rows.len() == MAX_CHUNK_ROWS {
            self.next_chunk(needed, spare);
        }
        let slot = &mut self.slots[slot as usize / PAGE][slot as usize % PAGE];
        let open = &mut self.open;
        let number = (self.full.len() << 16 | open.rows.len()) as u32;
        open.rows.push(RowPosition {
            ts_ms,
            at: open.bytes.len() as u32,
            before: slot.last,
        });
        if shape < 0x80 {
            open.bytes.push(shape as u8);
        } else {
            varint::put(&mut open.bytes, u64::from(shape));
        }
        open.bytes.extend_from_slice(values);
        slot.is_sorted &= ts_ms > slot.max_ts;
        slot.has_same_keys &= slot.rows == 0 || slot.shape == shape;
        slot.min_ts = slot.min_ts.min(ts_ms);
        slot.max_ts = slot.max_ts.max(ts_ms);
        (slot.last, slot.shape) = (number, shape);
        slot.rows += 1;
        let row_bytes = values.len() as u32 + WAITING_ROW_BYTES;
        slot.bytes = slot.bytes.saturating_add(row_bytes);
        if slot.owner != 0 {
            self.bytes_by_owner[usize::from(slot.owner)] += u64::from(row_bytes);
        }
        self.bytes += size_of::<RowPosition>();
        self.rows += 1;
        self.points += points as u64;
        self.next_lsn += 1;
    }

    #[cold]
    fn next_chunk(&mut self, needed: usize, spare: &ChunkPool) {
        let mut next = match needed <= spare.chunk_bytes {
            true => spare.take_chunk().unwrap_or_default(),
            false => RowChunk::default(),
        };
        if next.bytes.capacity() < needed {
            next.bytes = Vec::with_capacity(needed.max(spare.chunk_bytes));
        }
        self.bytes += next.bytes.capacity();
        let full = std::mem::replace(&mut self.open, next);
        if !full.rows.is_empty() {
            Arc::make_mut(&mut self.full).push(Arc::new(full));
        }
    }

    fn rows_of(&self, slot: &DeviceSlot) -> DeviceRows<'_> {
        DeviceRows {
            full: &self.full,
            open: &self.open,
            keys: &self.keys,
            words: &self.words.texts,
            last: slot.last,
        }
    }

    /// Returns the memory of the rows to the pool, unless a reader still uses it.
    pub(crate) fn recycle(self: Arc<Self>, spare: &ChunkPool) {
        let Some(memtable) = Arc::into_inner(self) else {
            return;
        };
        let full = Arc::into_inner(memtable.full).unwrap_or_default();
        let chunks = full.into_iter().filter_map(Arc::into_inner);
        spare.recycle(chunks.chain([memtable.open]));
    }

    /// The rows of a device.
    pub(crate) fn device_rows(&self, place: u32) -> Option<DeviceRows<'_>> {
        self.non_empty_slot(place)
            .map(|slot| self.rows_of(self.at(slot)))
    }

    fn non_empty_slot(&self, place: u32) -> Option<u32> {
        self.find(place).filter(|&slot| self.at(slot).rows > 0)
    }

    fn view_of(&self, slot: &DeviceSlot) -> DeviceView {
        let is_open = slot.last as usize >> 16 == self.full.len();
        DeviceView::Active {
            full: Arc::clone(&self.full),
            open: if is_open {
                self.open.clone()
            } else {
                RowChunk::default()
            },
            keys: Arc::clone(&self.keys),
            words: Arc::clone(&self.words.texts),
            last: slot.last,
        }
    }

    /// A device's rows, if any may lie within these times.
    pub(crate) fn view(&self, place: u32, from_ms: i64, to_ms: i64) -> Option<DeviceView> {
        let slot = self.at(self.non_empty_slot(place)?);
        (slot.max_ts >= from_ms && slot.min_ts < to_ms).then(|| self.view_of(slot))
    }

    /// Like [`Memtable::view`], without copying.
    pub(crate) fn frozen_view(
        self: &Arc<Self>,
        place: u32,
        from_ms: i64,
        to_ms: i64,
    ) -> Option<DeviceView> {
        let number = self.non_empty_slot(place)?;
        let slot = self.at(number);
        let is_wanted = slot.max_ts >= from_ms && slot.min_ts < to_ms;
        is_wanted.then(|| DeviceView::Frozen(Arc::clone(self), number))
    }

    /// The newest data of a device.
    pub(crate) fn newest(&self, place: u32) -> Option<NewestRow> {
        let slot = self.at(self.non_empty_slot(place)?);
        if !slot.is_sorted || !slot.has_same_keys {
            return Some(NewestRow::Any(self.view_of(slot)));
        }
        let rows = self.rows_of(slot);
        let (ts_ms, shape, mut reader) = rows.row(slot.last)?;
        let keys = rows.keys(shape)?;
        let mut values = Vec::with_capacity(keys.len());
        for key in keys.iter() {
            let cell = cell::read(&mut reader, |number| rows.word(number))?;
            values.push((*key, OwnedValue::new(cell.value())));
        }
        Some(NewestRow::Row(ts_ms, values))
    }

    /// Whether the device at this index has rows.
    pub(crate) fn has_device(&self, place: u32) -> bool {
        self.non_empty_slot(place).is_some()
    }

    /// The devices in the memtable, ascending.
    pub(crate) fn devices(&self) -> Vec<u32> {
        let slots = self.slots.iter().flatten();
        let mut devices: Vec<u32> = slots
            .filter(|slot| slot.rows > 0)
            .map(|slot| slot.device)
            .collect();
        devices.sort_unstable();
        devices
    }

    /// The first and the last time of each device with rows.
    pub(crate) fn times_of_devices(&self) -> impl Iterator<Item = (i64, i64)> {
        let slots = self.slots.iter().flatten();
        let with_rows = slots.filter(|slot| slot.rows > 0);
        with_rows.map(|slot| (slot.min_ts, slot.max_ts))
    }

    /// Removes all rows of a device; their memory is released with the memtable.
    pub(crate) fn remove_device(&mut self, place: u32) {
        let Some(at) = self.find(place) else { return };
        let slot = &mut self.slots[at as usize / PAGE][at as usize % PAGE];
        self.rows -= u64::from(slot.rows);
        if slot.owner != 0 {
            self.bytes_by_owner[usize::from(slot.owner)] -= u64::from(slot.bytes);
        }
        *slot = DeviceSlot {
            owner: slot.owner,
            ..DeviceSlot::new(slot.device)
        };
    }

    /// Devices without an owner so far, with the size of their rows.
    pub(crate) fn devices_without_owner(&self) -> Vec<(u32, u32)> {
        let slots = self.slots.iter().flatten();
        slots
            .skip(self.owners_set)
            .map(|slot| (slot.device, slot.bytes))
            .collect()
    }

    /// The devices with their owners, as far as they are set, and the size of their rows.
    pub(crate) fn device_bytes(&self) -> impl Iterator<Item = (u32, u16, u32)> {
        let slots = self.slots.iter().flatten();
        slots.map(|slot| (slot.device, slot.owner, slot.bytes))
    }

    /// Size of the rows by owner, for devices whose owner is set.
    pub(crate) fn bytes_by_owner(&self) -> &[u64] {
        &self.bytes_by_owner
    }

    /// Sets the owners of the devices that [`Memtable::devices_without_owner`] has returned. Does nothing if they are those
    /// of an earlier memtable.
    pub(crate) fn set_owners(&mut self, owners: &[(u32, u16)]) {
        for (device, owner) in owners {
            let at = self.owners_set;
            let slot = self.slots.get_mut(at / PAGE);
            let Some(slot) = slot.and_then(|page| page.get_mut(at % PAGE)) else {
                return;
            };
            if slot.device != *device {
                return;
            }
            slot.owner = *owner;
            self.owners_set += 1;
            if *owner != 0 {
                let number = usize::from(*owner);
                if number >= self.bytes_by_owner.len() {
                    self.bytes_by_owner.resize(number + 1, 0);
                }
                self.bytes_by_owner[number] += u64::from(slot.bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests;
