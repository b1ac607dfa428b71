//! The latest values of devices that were asked for: what segment files have, kept up when more rows go there.

use std::collections::HashMap;
use std::sync::Arc;

use crate::memtable::Newest;
use crate::point::{KeyId, Point, Value};
use crate::table::{Reading, Table};

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Owned {
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Box<str>),
    Json(Box<str>),
}

impl Owned {
    pub(crate) fn new(value: Value<'_>) -> Self {
        match value {
            Value::Bool(value) => Owned::Bool(value),
            Value::Int(value) => Owned::Int(value),
            Value::Float(value) => Owned::Float(value),
            Value::Text(text) => Owned::Text(text.into()),
            Value::Json(text) => Owned::Json(text.into()),
        }
    }

    pub(crate) fn value(&self) -> Value<'_> {
        match self {
            Owned::Bool(value) => Value::Bool(*value),
            Owned::Int(value) => Value::Int(*value),
            Owned::Float(value) => Value::Float(*value),
            Owned::Text(text) => Value::Text(text),
            Owned::Json(text) => Value::Json(text),
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Latest {
    pub(crate) key: KeyId,
    pub(crate) ts_ms: i64,
    pub(crate) value: Owned,
}

/// Latest values of one device, by key.
#[derive(Debug, Clone, Default)]
pub(crate) struct List(pub(crate) Vec<Latest>);

impl List {
    /// Takes a value that was appended after those that are there.
    pub(crate) fn put(&mut self, key: KeyId, ts_ms: i64, value: Value<'_>) {
        match self.0.iter_mut().find(|latest| latest.key == key) {
            Some(latest) if latest.ts_ms <= ts_ms => {
                latest.ts_ms = ts_ms;
                latest.value = Owned::new(value);
            }
            Some(_) => {}
            None => self.0.push(Latest {
                key,
                ts_ms,
                value: Owned::new(value),
            }),
        }
    }

    pub(crate) fn get(&self, key: KeyId) -> Option<&Latest> {
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

    /// Takes the latest values of a sorted table.
    pub(crate) fn put_table(&mut self, table: &Table) {
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

    /// Takes the latest values of rows in memory.
    pub(crate) fn put_newest(&mut self, newest: &Newest) {
        let view = match newest {
            Newest::Row(ts_ms, values) => {
                for (key, value) in values {
                    self.put(*key, *ts_ms, value.value());
                }
                return;
            }
            Newest::Any(view) => view,
        };
        let mut table = Table::default();
        let all = (i64::MIN, i64::MAX);
        table
            .read_rows(&view.rows(), all, None, &mut Reading::default())
            .expect("what was encoded in this process can be read");
        table.sort();
        self.put_table(&table);
    }

    fn bytes(&self) -> usize {
        let text = |latest: &Latest| match &latest.value {
            Owned::Text(text) | Owned::Json(text) => text.len(),
            _ => 0,
        };
        self.0
            .iter()
            .map(|latest| size_of::<Latest>() + text(latest))
            .sum::<usize>()
            + 128
    }
}

/// Lists of some devices of a partition.
#[derive(Default)]
pub(crate) struct Cache {
    of: HashMap<u32, Arc<List>, foldhash::fast::RandomState>,
    bytes: usize,
}

impl Cache {
    pub(crate) fn get(&self, device: u32) -> Option<Arc<List>> {
        self.of.get(&device).cloned()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    pub(crate) fn put(&mut self, device: u32, list: Arc<List>, max_bytes: usize) {
        self.remove(device);
        self.bytes += list.bytes();
        self.of.insert(device, list);
        while self.bytes > max_bytes {
            // Any one: who is asked for often is back soon.
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

    /// Rows of this device go to segment files.
    pub(crate) fn fold(&mut self, device: u32, newest: &Newest) {
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
