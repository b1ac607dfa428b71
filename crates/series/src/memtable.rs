//! Rows of one partition that are in no segment file yet: per device, in the order they came, as bytes.
//!
//! A row is one number, its distance in time to the row before (zigzag, shifted by one; the low bit says that the number of
//! another shape follows), and then its values (`cell.rs`). A shape is a list of keys; devices of a kind share theirs. Bytes of
//! a device are in pieces, so that growing copies little and a reader copies only the last one.

use std::collections::HashMap;
use std::sync::Arc;

use crate::cell::Hint;
use crate::point::{KeyId, RowPoints};
use crate::varint::{self, Reader};

/// A piece is closed at this size.
const PIECE_BYTES: usize = 64 << 10;
/// Shapes in one piece.
const MAX_PIECE_SHAPES: usize = 64;
const FIRST_BYTES: usize = 48;
const PAGE: usize = 1024;
/// What a device takes apart from its rows.
const SLOT_BYTES: usize = size_of::<Slot>() + 8;
const NONE: u32 = u32::MAX;

/// A list of keys and what is known about their values.
pub(crate) struct Shape {
    pub(crate) keys: Arc<[KeyId]>,
    pub(crate) hints: Box<[Hint]>,
    /// The block of the write-ahead log that has said what this shape is.
    pub(crate) defined_in: u64,
}

/// Rows of one device and about the same time.
#[derive(Clone, Default)]
pub(crate) struct Piece {
    pub(crate) bytes: Vec<u8>,
    pub(crate) rows: u32,
    /// Where the last row begins, behind its time.
    last_at: u32,
    shape: u32,
    first_shape: u32,
    more_shapes: Vec<u32>,
    pub(crate) min_ts: i64,
    pub(crate) max_ts: i64,
    last_ts: i64,
    /// Each row is later than the one before.
    pub(crate) is_sorted: bool,
}

impl Piece {
    fn local(&mut self, shape: u32) -> Option<u32> {
        if self.rows == 0 {
            self.first_shape = shape;
            return Some(0);
        }
        if shape == self.first_shape {
            return Some(0);
        }
        if let Some(at) = self.more_shapes.iter().position(|&known| known == shape) {
            return Some(at as u32 + 1);
        }
        if self.more_shapes.len() + 1 >= MAX_PIECE_SHAPES {
            return None;
        }
        self.more_shapes.push(shape);
        Some(self.more_shapes.len() as u32)
    }

    /// `false` if another piece has to be begun.
    #[inline]
    fn push(&mut self, ts_ms: i64, shape: u32, values: &[u8]) -> bool {
        let is_other = self.rows == 0 || shape != self.shape;
        let local = match is_other {
            true => match self.local(shape) {
                Some(local) => local,
                None => return false,
            },
            false => 0,
        };
        let distance = varint::zigzag(ts_ms.wrapping_sub(self.last_ts));
        let mut head = [0; 20];
        // Two numbers where the shifted one would not fit: times are below 2^60.
        let mut at = varint::write(&mut head, 0, (distance << 1) | u64::from(is_other));
        if is_other {
            at = varint::write(&mut head, at, u64::from(local));
        }
        self.bytes.extend_from_slice(&head[..at]);
        self.last_at = self.bytes.len() as u32;
        self.bytes.extend_from_slice(values);
        if self.rows == 0 {
            (self.min_ts, self.max_ts, self.is_sorted) = (ts_ms, ts_ms, true);
        } else {
            self.is_sorted &= ts_ms > self.last_ts;
            self.min_ts = self.min_ts.min(ts_ms);
            self.max_ts = self.max_ts.max(ts_ms);
        }
        self.last_ts = ts_ms;
        self.shape = shape;
        self.rows += 1;
        true
    }
}

/// A piece with the keys of its shapes: what a reader works on.
pub(crate) struct PieceView {
    pub(crate) piece: Arc<Piece>,
    pub(crate) shapes: Vec<Arc<[KeyId]>>,
}

impl PieceView {
    /// Gives each row: its time, which of the shapes it has, and a reader that stands at its values and is left behind them.
    #[inline]
    pub(crate) fn rows<'a>(
        &'a self,
        mut each: impl FnMut(i64, usize, &mut Reader<'a>) -> Option<()>,
    ) -> Option<()> {
        let mut reader = Reader::new(&self.piece.bytes);
        let (mut ts_ms, mut shape) = (0_i64, 0);
        for _ in 0..self.piece.rows {
            let head = reader.number()?;
            if head & 1 == 1 {
                shape = reader.number()? as usize;
            }
            ts_ms = ts_ms.wrapping_add(varint::unzigzag(head >> 1));
            each(ts_ms, shape, &mut reader)?;
        }
        Some(())
    }

    /// The last row, if it is the latest of all and all have its keys: its time, keys and values.
    pub(crate) fn latest(&self) -> Option<(i64, &Arc<[KeyId]>, Reader<'_>)> {
        let piece = &*self.piece;
        (piece.is_sorted && self.shapes.len() == 1).then(|| {
            let mut reader = Reader::new(&piece.bytes);
            reader.at = piece.last_at as usize;
            (piece.last_ts, &self.shapes[0], reader)
        })
    }
}

struct Slot {
    device: u32,
    open: Piece,
    full: Vec<Arc<Piece>>,
}

/// Rows of one partition.
pub(crate) struct Memtable {
    shapes: Vec<Shape>,
    by_keys: HashMap<Arc<[KeyId]>, u32, foldhash::fast::RandomState>,
    /// By a device's place in its partition: pages of slot numbers.
    places: Vec<Option<Box<[u32; PAGE]>>>,
    slots: Vec<Vec<Slot>>,
    pub(crate) bytes: usize,
    pub(crate) rows: u64,
    pub(crate) points: u64,
    /// The number of the row to come.
    pub(crate) next_lsn: u64,
    /// When the first row came, by the store's clock.
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
            by_keys: HashMap::default(),
            places: Vec::new(),
            slots: Vec::new(),
            bytes: 0,
            rows: 0,
            points: 0,
            next_lsn,
            since_ms: 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows == 0
    }

    #[inline]
    fn find(&self, place: u32) -> Option<u32> {
        let page = self.places.get(place as usize / PAGE)?.as_ref()?;
        Some(page[place as usize % PAGE]).filter(|&slot| slot != NONE)
    }

    /// The slot of the device at this place of the partition, made if it is not there.
    #[inline]
    pub(crate) fn slot(&mut self, place: u32, device: u32) -> u32 {
        match self.find(place) {
            Some(slot) => slot,
            None => self.make_slot(place, device),
        }
    }

    #[cold]
    fn make_slot(&mut self, place: u32, device: u32) -> u32 {
        let page = place as usize / PAGE;
        if page >= self.places.len() {
            self.places.resize_with(page + 1, || None);
        }
        if self.places[page].is_none() {
            self.bytes += PAGE * 4;
        }
        let page = self.places[page].get_or_insert_with(|| Box::new([NONE; PAGE]));
        if self.slots.last().is_none_or(|last| last.len() == PAGE) {
            // The first page grows as it is needed, so that few devices take little.
            let capacity = if self.slots.is_empty() { 8 } else { PAGE };
            self.slots.push(Vec::with_capacity(capacity));
        }
        let at = (self.slots.len() - 1) * PAGE;
        let last = self
            .slots
            .last_mut()
            .expect("one was just pushed if there was none");
        let slot = (at + last.len()) as u32;
        last.push(Slot {
            device,
            open: Piece::default(),
            full: Vec::new(),
        });
        page[place as usize % PAGE] = slot;
        self.bytes += SLOT_BYTES;
        slot
    }

    #[inline]
    fn at(&self, slot: u32) -> &Slot {
        &self.slots[slot as usize / PAGE][slot as usize % PAGE]
    }

    /// The shape of this row, if the row before had the same keys.
    #[inline]
    pub(crate) fn shape_of(&self, slot: u32, points: impl RowPoints) -> Option<u32> {
        let open = &self.at(slot).open;
        if open.rows > 0 {
            let keys = &self.shapes[open.shape as usize].keys;
            if keys.len() == points.len()
                && (0..keys.len()).all(|at| keys[at] == points.get(at).key)
            {
                return Some(open.shape);
            }
        }
        None
    }

    pub(crate) fn find_shape(&self, keys: &[KeyId]) -> Option<u32> {
        self.by_keys.get(keys).copied()
    }

    /// Takes a new list of keys in, none of which is there twice.
    pub(crate) fn make_shape(&mut self, keys: Arc<[KeyId]>) -> u32 {
        let shape = self.shapes.len() as u32;
        self.bytes += 128 + keys.len() * (size_of::<KeyId>() + size_of::<Hint>());
        self.by_keys.insert(Arc::clone(&keys), shape);
        self.shapes.push(Shape {
            hints: vec![Hint::default(); keys.len()].into(),
            keys,
            defined_in: 0,
        });
        shape
    }

    #[inline]
    pub(crate) fn shape(&mut self, shape: u32) -> &mut Shape {
        &mut self.shapes[shape as usize]
    }

    /// Adds a row whose values were written with the hints of its shape.
    #[inline]
    pub(crate) fn push(&mut self, slot: u32, ts_ms: i64, shape: u32, points: usize, values: &[u8]) {
        let slot = &mut self.slots[slot as usize / PAGE][slot as usize % PAGE];
        let open = &mut slot.open;
        let before = open.bytes.capacity();
        if open.bytes.len() + values.len() > PIECE_BYTES || !open.push(ts_ms, shape, values) {
            // Later than checked, as a piece takes one row of any length.
            if open.rows > 0 {
                let capacity = PIECE_BYTES.max(values.len() + FIRST_BYTES);
                let next = Piece {
                    bytes: Vec::with_capacity(capacity),
                    ..Piece::default()
                };
                self.bytes += capacity;
                slot.full.push(Arc::new(std::mem::replace(open, next)));
            }
            let before = open.bytes.capacity();
            let pushed = open.push(ts_ms, shape, values);
            debug_assert!(pushed, "an empty piece takes any shape");
            self.bytes += open.bytes.capacity() - before;
        } else {
            self.bytes += open.bytes.capacity() - before;
        }
        self.rows += 1;
        self.points += points as u64;
        self.next_lsn += 1;
    }

    fn view(&self, piece: Arc<Piece>) -> PieceView {
        let shapes = std::iter::once(&piece.first_shape).chain(&piece.more_shapes);
        let keys = |&shape: &u32| Arc::clone(&self.shapes[shape as usize].keys);
        PieceView {
            shapes: shapes.map(keys).collect(),
            piece,
        }
    }

    fn views(&self, slot: &Slot, from_ms: i64, to_ms: i64, each: &mut dyn FnMut(PieceView)) {
        let is_wanted =
            |piece: &Piece| piece.rows > 0 && piece.max_ts >= from_ms && piece.min_ts < to_ms;
        for piece in slot.full.iter().filter(|piece| is_wanted(piece)) {
            each(self.view(Arc::clone(piece)));
        }
        if is_wanted(&slot.open) {
            each(self.view(Arc::new(slot.open.clone())));
        }
    }

    /// Pieces of a device that may hold rows of this time, oldest first.
    pub(crate) fn pieces(
        &self,
        place: u32,
        from_ms: i64,
        to_ms: i64,
        each: &mut dyn FnMut(PieceView),
    ) {
        if let Some(slot) = self.find(place) {
            self.views(self.at(slot), from_ms, to_ms, each);
        }
    }

    /// Whether the device at this place has rows.
    pub(crate) fn has(&self, place: u32) -> bool {
        self.find(place)
            .is_some_and(|slot| self.at(slot).open.rows > 0)
    }

    /// Devices in it, ascending.
    pub(crate) fn devices(&self) -> Vec<u32> {
        let mut devices: Vec<u32> = self
            .slots
            .iter()
            .flatten()
            .filter(|slot| slot.open.rows > 0)
            .map(|slot| slot.device)
            .collect();
        devices.sort_unstable();
        devices
    }

    /// Takes all rows of a device out.
    pub(crate) fn take(&mut self, place: u32) -> Vec<PieceView> {
        let mut views = Vec::new();
        let Some(at) = self.find(place) else {
            return views;
        };
        let slot = &mut self.slots[at as usize / PAGE][at as usize % PAGE];
        let open = std::mem::take(&mut slot.open);
        let mut pieces = std::mem::take(&mut slot.full);
        if open.rows > 0 {
            pieces.push(Arc::new(open));
        }
        for piece in pieces {
            self.rows -= u64::from(piece.rows);
            self.bytes -= piece.bytes.capacity().min(self.bytes);
            views.push(self.view(piece));
        }
        views
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell;
    use crate::point::{Point, Value};

    fn append(table: &mut Memtable, device: u32, ts_ms: i64, points: &[Point<'_>]) {
        let slot = table.slot(device, device);
        let keys: Arc<[KeyId]> = points.iter().map(|point| point.key).collect();
        let known = table
            .shape_of(slot, points)
            .or_else(|| table.find_shape(&keys));
        let shape = known.unwrap_or_else(|| table.make_shape(keys));
        let mut values = vec![0; 1 << 17];
        let mut end = 0;
        for (at, point) in points.iter().enumerate() {
            end = cell::write(
                &mut values,
                end,
                point.value,
                &mut table.shape(shape).hints[at],
            );
        }
        table.push(slot, ts_ms, shape, points.len(), &values[..end]);
    }

    type Found = Vec<(i64, Vec<(u32, i64)>)>;

    fn read(table: &Memtable, device: u32) -> Found {
        let mut found = Vec::new();
        table.pieces(device, i64::MIN, i64::MAX, &mut |view| {
            view.rows(|ts_ms, shape, reader| {
                let mut points = Vec::new();
                for key in view.shapes[shape].iter() {
                    let Value::Int(number) = cell::read(reader)?.value() else {
                        panic!("only integers were written");
                    };
                    points.push((key.0, number));
                }
                found.push((ts_ms, points));
                Some(())
            })
            .expect("what was written can be read");
        });
        found
    }

    #[test]
    fn rows_come_back_whatever_their_keys_and_times() {
        let mut table = Memtable::new(1);
        let mut expected: HashMap<u32, Found> = HashMap::new();
        for number in 0..30_000_i64 {
            let device = (number % 7 * 1000) as u32;
            let ts_ms = if number % 100 == 0 {
                number * -977
            } else {
                1_700_000_000_000 + number
            };
            // More shapes than a piece takes.
            let first = if number % 3 == 0 {
                (number % 500) as u32
            } else {
                1
            };
            let keys = [first, 1000, 1001];
            let points = keys.map(|key| Point {
                key: KeyId(key),
                value: Value::Int(number * i64::from(key)),
            });
            append(&mut table, device, ts_ms, &points);
            let row = (
                ts_ms,
                keys.map(|key| (key, number * i64::from(key))).to_vec(),
            );
            expected.entry(device).or_default().push(row);
        }
        assert_eq!(table.devices(), [0, 1000, 2000, 3000, 4000, 5000, 6000]);
        for (device, expected) in expected {
            assert_eq!(read(&table, device), expected);
        }
        assert_eq!(table.rows, 30_000);
        let before = table.rows;
        let taken: u32 = table.take(1000).iter().map(|view| view.piece.rows).sum();
        assert_eq!(before - u64::from(taken), table.rows);
        assert!(read(&table, 1000).is_empty());
    }

    #[test]
    fn a_large_row_gets_a_piece_of_its_own_size() {
        let mut table = Memtable::new(1);
        let text = "x".repeat(100_000);
        let point = |value| {
            [Point {
                key: KeyId(1),
                value,
            }]
        };
        append(&mut table, 1, 1, &point(Value::Int(1)));
        append(&mut table, 1, 2, &point(Value::Text(&text)));
        append(&mut table, 1, 3, &point(Value::Int(1)));
        let mut rows = 0;
        table.pieces(1, 0, 10, &mut |view| rows += view.piece.rows);
        assert_eq!(rows, 3);
        assert!(table.bytes > 100_000);
    }
}
