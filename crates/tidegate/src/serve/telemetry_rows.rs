//! Rows of telemetry as JSON text, without values in between: a day of one second each is a question of milliseconds.

use std::io::Write as _;
use std::ops::ControlFlow;

use series::{KeyId, PointValue, Series, SeriesRow};

/// Bytes after which what was written is handed on.
const BATCH_BYTES: usize = 64 << 10;

/// Writes `{"ts_ms", "values"}` for each row, with a byte behind it.
pub(super) struct JsonRowWriter<'a> {
    series: &'a Series,
    separator: u8,
    pub(super) rows: usize,
    /// Names of keys as JSON, with the colon behind them, in the order in which they were met.
    names: Vec<(KeyId, Box<[u8]>)>,
    /// The keys of the last row, and their places in it by the names of the keys: most rows have the same.
    shape: Vec<KeyId>,
    order: Vec<(usize, usize)>,
}

impl<'a> JsonRowWriter<'a> {
    pub(super) fn new(series: &'a Series, separator: u8) -> Self {
        Self {
            series,
            separator,
            rows: 0,
            names: Vec::new(),
            shape: Vec::new(),
            order: Vec::new(),
        }
    }

    /// Writes a row; ends when `full`, which is told of a full piece, says so.
    pub(super) fn write(
        &mut self,
        row: &SeriesRow<'_>,
        out: &mut Vec<u8>,
        full: &mut dyn FnMut(&mut Vec<u8>) -> bool,
    ) -> ControlFlow<()> {
        let keys = row.points.iter().map(|point| point.key);
        if !keys.eq(self.shape.iter().copied()) {
            self.update_row_shape(row);
        }
        out.extend_from_slice(b"{\"ts_ms\":");
        write_json(out, &row.ts_ms);
        out.extend_from_slice(b",\"values\":{");
        for (at, &(place, name)) in self.order.iter().enumerate() {
            if at > 0 {
                out.push(b',');
            }
            out.extend_from_slice(&self.names[name].1);
            put_value(out, row.points[place].value);
        }
        out.extend_from_slice(b"}}");
        out.push(self.separator);
        self.rows += 1;
        match out.len() < BATCH_BYTES || full(out) {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    }

    fn update_row_shape(&mut self, row: &SeriesRow<'_>) {
        self.shape.clear();
        self.order.clear();
        for (place, point) in row.points.iter().enumerate() {
            self.shape.push(point.key);
            let name = self.key_name_index(point.key);
            self.order.push((place, name));
        }
        let names = &self.names;
        (self.order).sort_unstable_by(|one, other| names[one.1].1.cmp(&names[other.1].1));
    }

    fn key_name_index(&mut self, key: KeyId) -> usize {
        if let Some(known) = self.names.iter().position(|(known, _)| *known == key) {
            return known;
        }
        let mut name = Vec::new();
        write_json(&mut name, self.series.key_name(key).unwrap_or_default());
        name.push(b':');
        self.names.push((key, name.into()));
        self.names.len() - 1
    }
}

fn write_json<T: serde::Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    serde_json::to_writer(out, value).expect("numbers and texts can be written to memory");
}

fn put_value(out: &mut Vec<u8>, value: PointValue<'_>) {
    match value {
        PointValue::Bool(value) => write_json(out, &value),
        PointValue::Int(value) => write_json(out, &value),
        // What is no number in JSON is null.
        PointValue::Float(value) => write_json(out, &value),
        PointValue::Text(text) => write_json(out, text),
        // It was checked when it came; a line must not end in it.
        PointValue::Json(json) if !json.contains(['\n', '\r']) => {
            out.write_all(json.as_bytes())
                .expect("memory can be written");
        }
        PointValue::Json(json) => {
            let value: serde_json::Value = serde_json::from_str(json).unwrap_or_default();
            write_json(out, &value);
        }
    }
}
