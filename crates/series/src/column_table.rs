//! Rows of one device as columns: the form of segment files and queries.

use std::collections::HashMap;
use std::ops::Range;

use crate::cell::{self, Cell, RawCell};
use crate::column_values::ColumnValues;
use crate::memtable::DeviceRows;
use crate::point::{KeyId, Point};

/// What a column contains for its key: the value itself, or an aggregate of a downsampled interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum ColumnFacet {
    Value = 0,
    /// Number of values in the interval, of any kind.
    Count = 1,
    /// Number of numeric values: numbers and bools that are not NaN.
    Numbers = 2,
    Sum = 3,
    Min = 4,
    Max = 5,
    First = 6,
    Last = 7,
}

impl ColumnFacet {
    pub(crate) fn from_byte(byte: u8) -> Option<Self> {
        use ColumnFacet::{Count, First, Last, Max, Min, Numbers, Sum, Value};
        let all = [Value, Count, Numbers, Sum, Min, Max, First, Last];
        all.get(usize::from(byte)).copied()
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Column {
    pub(crate) key: KeyId,
    pub(crate) facet: ColumnFacet,
    /// The rows that have a value; `None`: all.
    pub(crate) rows: Option<Vec<u32>>,
    pub(crate) values: ColumnValues,
}

impl Column {
    /// The index of a row's value.
    pub(crate) fn value_index(&self, row: usize) -> Option<usize> {
        match &self.rows {
            None => (row < self.values.len()).then_some(row),
            Some(rows) => rows.binary_search(&(row as u32)).ok(),
        }
    }

    #[inline]
    fn push(&mut self, row: usize, cell: Cell<'_>) {
        match &mut self.rows {
            Some(rows) => rows.push(row as u32),
            None if self.values.len() == row => {}
            None => {
                let mut rows: Vec<u32> = (0..self.values.len() as u32).collect();
                rows.push(row as u32);
                self.rows = Some(rows);
            }
        }
        self.values.push(cell);
    }
}

/// Steps through a column row by row, without searching for indexes.
struct ColumnCursor<'a> {
    column: &'a Column,
    /// Forwards the next index; backwards the one behind it.
    place: usize,
    backwards: bool,
}

impl<'a> ColumnCursor<'a> {
    fn new(column: &'a Column, range: &Range<usize>, backwards: bool) -> Self {
        let at = if backwards { range.end } else { range.start };
        let place = match &column.rows {
            None => 0,
            Some(rows) => rows.partition_point(|&row| (row as usize) < at),
        };
        Self {
            column,
            place,
            backwards,
        }
    }

    /// The index of this row's value; the row is adjacent to the previous one.
    #[inline]
    fn step(&mut self, row: usize) -> Option<usize> {
        let Some(rows) = &self.column.rows else {
            return (row < self.column.values.len()).then_some(row);
        };
        let place = match self.backwards {
            true => self.place.checked_sub(1)?,
            false => self.place,
        };
        if *rows.get(place)? as usize != row {
            return None;
        }
        self.place = if self.backwards { place } else { place + 1 };
        Some(place)
    }
}

/// Reusable buffers for reading rows from memory.
#[derive(Default)]
pub(crate) struct RowReadBuffers {
    numbers: Vec<u32>,
    of_shapes: HashMap<u32, Range<usize>, foldhash::fast::RandomState>,
    /// For each key of a shape its column, or [`UNWANTED`].
    columns: Vec<u32>,
}

const UNWANTED: u32 = u32::MAX;
/// Rows whose memory is prefetched together.
const ROWS_AHEAD: usize = 16;

/// Rows of one device.
#[derive(Debug, Clone)]
pub(crate) struct ColumnTable {
    pub(crate) ts: Vec<i64>,
    pub(crate) columns: Vec<Column>,
    /// Each row is later than the previous one.
    pub(crate) is_sorted: bool,
}

impl Default for ColumnTable {
    fn default() -> Self {
        Self {
            ts: Vec::new(),
            columns: Vec::new(),
            is_sorted: true,
        }
    }
}

impl ColumnTable {
    pub(crate) fn is_empty(&self) -> bool {
        self.ts.is_empty()
    }

    #[inline]
    pub(crate) fn begin_row(&mut self, ts_ms: i64) {
        self.is_sorted &= self.ts.last().is_none_or(|&last| last < ts_ms);
        self.ts.push(ts_ms);
    }

    pub(crate) fn column(&mut self, key: KeyId, facet: ColumnFacet) -> usize {
        let is_it = |column: &Column| column.key == key && column.facet == facet;
        if let Some(at) = self.columns.iter().position(is_it) {
            return at;
        }
        self.columns.push(Column {
            key,
            facet,
            rows: None,
            values: ColumnValues::default(),
        });
        self.columns.len() - 1
    }

    /// Adds a value to the last row.
    #[inline]
    pub(crate) fn put(&mut self, column: usize, cell: Cell<'_>) {
        let row = self.ts.len() - 1;
        self.columns[column].push(row, cell);
    }

    /// Completes columns that end early: they get lists of their rows.
    pub(crate) fn finish(&mut self) {
        let rows = self.ts.len();
        for column in &mut self.columns {
            if column.rows.is_none() && column.values.len() < rows {
                column.rows = Some((0..column.values.len() as u32).collect());
            }
        }
        self.columns.retain(|column| column.values.len() > 0);
    }

    /// Adds rows from memory, limited to a time range and the wanted keys; `None` if the encoding is invalid.
    pub(crate) fn read_rows(
        &mut self,
        rows: &DeviceRows<'_>,
        (from_ms, to_ms): (i64, i64),
        wanted: Option<&[KeyId]>,
        reading: &mut RowReadBuffers,
    ) -> Option<()> {
        reading.of_shapes.clear();
        reading.columns.clear();
        for column in &mut self.columns {
            column.values.reset_known_word();
        }
        rows.numbers(from_ms, to_ms, &mut reading.numbers);
        // Consecutive rows of one shape: the columns of that shape, and the begin of the run.
        let (mut shape, mut columns, mut start) = (None, 0..0, 0);
        for (at, &number) in reading.numbers.iter().enumerate() {
            if at % ROWS_AHEAD == 0 {
                rows.prefetch(&reading.numbers[at..][..ROWS_AHEAD.min(reading.numbers.len() - at)]);
            }
            let (ts_ms, of_row, mut reader) = rows.row(number)?;
            if shape != Some(of_row) {
                self.end_columns(&reading.columns[columns], start);
                start = self.ts.len();
                shape = Some(of_row);
                columns = match reading.of_shapes.get(&of_row) {
                    Some(columns) => columns.clone(),
                    None => {
                        let from = reading.columns.len();
                        for key in rows.keys(of_row)?.iter() {
                            let is_wanted = wanted.is_none_or(|wanted| wanted.contains(key));
                            let column =
                                is_wanted.then(|| self.column(*key, ColumnFacet::Value) as u32);
                            reading.columns.push(column.unwrap_or(UNWANTED));
                        }
                        let columns = from..reading.columns.len();
                        reading.of_shapes.insert(of_row, columns.clone());
                        columns
                    }
                };
                self.begin_columns(&reading.columns[columns.clone()]);
            }
            self.begin_row(ts_ms);
            for &column in &reading.columns[columns.clone()] {
                let cell = cell::read_raw(&mut reader)?;
                let Some(column) = self.columns.get_mut(column as usize) else {
                    continue;
                };
                match cell {
                    RawCell::Word(word) => column.values.push_word(word, rows.word(word)?),
                    cell => column.values.push_raw(cell)?,
                }
            }
        }
        self.end_columns(&reading.columns[columns], start);
        Some(())
    }

    /// The following rows have values in these columns.
    fn begin_columns(&mut self, columns: &[u32]) {
        let rows = self.ts.len();
        for &column in columns {
            if let Some(column) = self.columns.get_mut(column as usize)
                && column.rows.is_none()
                && column.values.len() < rows
            {
                column.rows = Some((0..column.values.len() as u32).collect());
            }
        }
    }

    fn end_columns(&mut self, columns: &[u32], start: usize) {
        let run = start as u32..self.ts.len() as u32;
        for &column in columns {
            if let Some(column) = self.columns.get_mut(column as usize)
                && let Some(rows) = &mut column.rows
            {
                rows.extend(run.clone());
            }
        }
    }

    /// Empties the table and keeps its memory.
    pub(crate) fn clear(&mut self) {
        self.ts.clear();
        self.is_sorted = true;
        for column in &mut self.columns {
            column.rows = None;
            column.values.clear();
        }
    }

    /// Passes the rows of [from, to) with the values of these facets to the visitor, forwards or backwards,
    /// until it stops.
    pub(crate) fn for_each_row(
        &self,
        range: Range<usize>,
        backwards: bool,
        each: &mut dyn FnMut(i64, &[Point<'_>]) -> std::ops::ControlFlow<()>,
    ) -> std::ops::ControlFlow<()> {
        debug_assert!(self.is_sorted, "rows are given when they are in order");
        let mut cursors: Vec<ColumnCursor<'_>> = self
            .columns
            .iter()
            .map(|column| ColumnCursor::new(column, &range, backwards))
            .collect();
        let mut points = Vec::with_capacity(self.columns.len());
        for step in 0..range.len() {
            let row = if backwards {
                range.end - 1 - step
            } else {
                range.start + step
            };
            points.clear();
            for cursor in &mut cursors {
                if let Some(place) = cursor.step(row) {
                    points.push(Point {
                        key: cursor.column.key,
                        value: cursor.column.values.get(place),
                    });
                }
            }
            if !points.is_empty() {
                each(self.ts[row], &points)?;
            }
        }
        std::ops::ControlFlow::Continue(())
    }

    pub(crate) fn points(&self) -> u64 {
        self.columns
            .iter()
            .map(|column| column.values.len() as u64)
            .sum()
    }

    /// Appends rows that are all later.
    pub(crate) fn append(&mut self, other: &ColumnTable) {
        let before = self.ts.len();
        self.is_sorted &= other.is_sorted
            && !matches!((self.ts.last(), other.ts.first()), (Some(last), Some(first)) if last >= first);
        self.ts.extend_from_slice(&other.ts);
        for column in &other.columns {
            let at = self.column(column.key, column.facet);
            let own = &mut self.columns[at];
            let is_dense =
                own.rows.is_none() && own.values.len() == before && column.rows.is_none();
            if !is_dense {
                let len = own.values.len() as u32;
                let rows = own.rows.get_or_insert_with(|| (0..len).collect());
                let offset = before as u32;
                match &column.rows {
                    Some(of) => rows.extend(of.iter().map(|row| row + offset)),
                    None => rows.extend(offset..offset + column.values.len() as u32),
                }
            }
            own.values.extend(&column.values);
        }
    }

    /// A range of the rows.
    pub(crate) fn slice(&self, range: Range<usize>) -> ColumnTable {
        let mut part = ColumnTable {
            ts: self.ts[range.clone()].to_vec(),
            columns: Vec::with_capacity(self.columns.len()),
            is_sorted: true,
        };
        for column in &self.columns {
            let (rows, places) = match &column.rows {
                None => (None, range.clone()),
                Some(rows) => {
                    let start = rows.partition_point(|&row| (row as usize) < range.start);
                    let end = rows.partition_point(|&row| (row as usize) < range.end);
                    let of_part = rows[start..end].iter().map(|row| row - range.start as u32);
                    (Some(of_part.collect()), start..end)
                }
            };
            if !places.is_empty() {
                part.columns.push(Column {
                    key: column.key,
                    facet: column.facet,
                    rows,
                    values: column.values.slice(places),
                });
            }
        }
        part
    }

    /// Removes the values of a key, or of all keys, in [from, to).
    pub(crate) fn remove(&mut self, key: Option<KeyId>, from_ms: i64, to_ms: i64) {
        let is_gone = |column: &Column| key.is_none_or(|key| key == column.key);
        if !self.ts.iter().any(|ts_ms| (from_ms..to_ms).contains(ts_ms))
            || !self.columns.iter().any(is_gone)
        {
            return;
        }
        let mut kept = ColumnTable::default();
        for (row, &ts_ms) in self.ts.iter().enumerate() {
            let is_hit = (from_ms..to_ms).contains(&ts_ms);
            let mut has_begun = false;
            for column in &self.columns {
                if is_hit && is_gone(column) {
                    continue;
                }
                if let Some(place) = column.value_index(row) {
                    if !has_begun {
                        kept.begin_row(ts_ms);
                        has_begun = true;
                    }
                    let at = kept.column(column.key, column.facet);
                    kept.put(at, Cell::Plain(column.values.get(place)));
                }
            }
        }
        kept.finish();
        *self = kept;
    }

    /// The rows within a time range, if the table is sorted.
    pub(crate) fn rows_between(&self, from_ms: i64, to_ms: i64) -> Range<usize> {
        let start = self.ts.partition_point(|&ts_ms| ts_ms < from_ms);
        start..self.ts.partition_point(|&ts_ms| ts_ms < to_ms).max(start)
    }

    /// Merges tables, each younger than the one before: of two values of a key and a time, the younger one
    /// wins.
    pub(crate) fn merge(tables: &[ColumnTable]) -> ColumnTable {
        let rows = tables.iter().map(|table| table.ts.len()).sum();
        let mut order: Vec<(i64, u32, u32)> = Vec::with_capacity(rows);
        for (age, table) in tables.iter().enumerate() {
            let rows = table.ts.iter().enumerate();
            order.extend(rows.map(|(row, &ts_ms)| (ts_ms, age as u32, row as u32)));
        }
        order.sort_unstable();
        let mut merged = ColumnTable::default();
        let columns: Vec<Vec<usize>> = tables
            .iter()
            .map(|table| {
                table
                    .columns
                    .iter()
                    .map(|column| merged.column(column.key, column.facet))
                    .collect()
            })
            .collect();
        // For each column of the result, the source of its value in this row.
        let mut winners: Vec<Option<(usize, usize, usize)>> = vec![None; merged.columns.len()];
        for same in order.chunk_by(|left, right| left.0 == right.0) {
            merged.begin_row(same[0].0);
            for &(_, age, row) in same {
                let age = age as usize;
                for (at, column) in tables[age].columns.iter().enumerate() {
                    if let Some(place) = column.value_index(row as usize) {
                        winners[columns[age][at]] = Some((age, at, place));
                    }
                }
            }
            for (column, winner) in winners.iter_mut().enumerate() {
                if let Some((age, at, place)) = winner.take() {
                    let value = tables[age].columns[at].values.get(place);
                    merged.put(column, Cell::Plain(value));
                }
            }
        }
        merged.finish();
        merged
    }

    /// Sorts rows by time; each time occurs once.
    pub(crate) fn sort(&mut self) {
        self.finish();
        if !self.is_sorted {
            *self = ColumnTable::merge(std::slice::from_ref(self));
        }
    }
}
