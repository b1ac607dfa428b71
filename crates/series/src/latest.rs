//! Cache of latest values for queried devices: the values in segment files, updated when more rows are
//! flushed.

use std::collections::HashMap;
use std::sync::Arc;

use crate::column_table::{ColumnTable, RowReadBuffers};
use crate::memtable::NewestRow;
use crate::point::{KeyId, OwnedValue, Point, PointValue};

#[derive(Debug, Clone)]
pub(crate) struct LatestValue {
    pub(crate) key: KeyId,
    pub(crate) ts_ms: i64,
    pub(crate) value: OwnedValue,
}

/// Latest values of one device, by key.
#[derive(Debug, Clone, Default)]
pub(crate) struct LatestValues(pub(crate) Vec<LatestValue>);

impl LatestValues {
    /// Adds a value that was appended after the present ones.
    pub(crate) fn put(&mut self, key: KeyId, ts_ms: i64, value: PointValue<'_>) {
        match self.0.iter_mut().find(|latest| latest.key == key) {
            Some(latest) if latest.ts_ms <= ts_ms => {
                latest.ts_ms = ts_ms;
                latest.value = OwnedValue::new(value);
            }
            Some(_) => {}
            None => self.0.push(LatestValue {
                key,
                ts_ms,
                value: OwnedValue::new(value),
            }),
        }
    }

    pub(crate) fn get(&self, key: KeyId) -> Option<&LatestValue> {
        self.0.iter().find(|latest| latest.key == key)
    }

    pub(crate) fn points(&self) -> impl Iterator<Item = (i64, Point<'_>)> {
        self.0.iter().map(|latest| {
            let point = Point {
                key: latest.key,
                value: latest.value.value(),
            };
            (latest.ts_ms, point)
        })
    }

    /// Adds the latest values of a sorted table.
    pub(crate) fn put_table(&mut self, table: &ColumnTable) {
        for column in &table.columns {
            let Some(place) = column.values.len().checked_sub(1) else {
                continue;
            };
            let row = column
                .rows
                .as_ref()
                .map_or(place, |rows| rows[place] as usize);
            self.put(column.key, table.ts[row], column.values.get(place));
        }
    }

    /// Adds the latest values of rows in memory.
    pub(crate) fn put_newest(&mut self, newest: &NewestRow) {
        let view = match newest {
            NewestRow::Row(ts_ms, values) => {
                for (key, value) in values {
                    self.put(*key, *ts_ms, value.value());
                }
                return;
            }
            NewestRow::Any(view) => view,
        };
        let mut table = ColumnTable::default();
        let all = (i64::MIN, i64::MAX);
        table
            .read_rows(&view.rows(), all, None, &mut RowReadBuffers::default())
            .expect("values encoded by this process are readable");
        table.sort();
        self.put_table(&table);
    }

    fn bytes(&self) -> usize {
        let text = |latest: &LatestValue| match &latest.value {
            OwnedValue::Text(text) | OwnedValue::Json(text) => text.len(),
            _ => 0,
        };
        self.0
            .iter()
            .map(|latest| size_of::<LatestValue>() + text(latest))
            .sum::<usize>()
            + 128
    }
}

/// Latest values of some devices of a partition.
#[derive(Default)]
pub(crate) struct LatestCache {
    of: HashMap<u32, Arc<LatestValues>, foldhash::fast::RandomState>,
    bytes: usize,
}

impl LatestCache {
    pub(crate) fn get(&self, device: u32) -> Option<Arc<LatestValues>> {
        self.of.get(&device).cloned()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    pub(crate) fn put(&mut self, device: u32, list: Arc<LatestValues>, max_bytes: usize) {
        self.remove(device);
        self.bytes += list.bytes();
        self.of.insert(device, list);
        while self.bytes > max_bytes {
            // Evicts any entry: a frequently queried device soon returns.
            let Some(&victim) = self.of.keys().next() else {
                break;
            };
            self.remove(victim);
        }
    }

    pub(crate) fn remove(&mut self, device: u32) {
        if let Some(list) = self.of.remove(&device) {
            self.bytes -= list.bytes();
        }
    }

    pub(crate) fn clear(&mut self) {
        self.of.clear();
        self.bytes = 0;
    }

    /// Updates the entry of a device whose rows are flushed to segment files.
    pub(crate) fn merge_newest(&mut self, device: u32, newest: &NewestRow) {
        let Some(list) = self.of.get_mut(&device) else {
            return;
        };
        self.bytes -= list.bytes();
        let changed = Arc::make_mut(list);
        changed.put_newest(newest);
        self.bytes += list.bytes();
    }

    pub(crate) fn devices(&self) -> impl Iterator<Item = u32> {
        self.of.keys().copied()
    }
}
