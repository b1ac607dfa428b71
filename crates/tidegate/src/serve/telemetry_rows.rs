//! Telemetry rows as JSON text, written without intermediate values, so that a day of one row per
//! second takes milliseconds.

use std::io::Write as _;
use std::ops::ControlFlow;

use series::{KeyId, PointValue, Series, SeriesRow};

/// Buffer size after which the text is passed on, in bytes.
const BATCH_BYTES: usize = 64 << 10;

/// Writes `{"ts_ms", "values"}` for each row, followed by a separator byte.
pub(super) struct JsonRowWriter<'a> {
    series: &'a Series,
    separator: u8,
    pub(super) rows: usize,
    /// Names of keys as JSON with a trailing colon, in the order of their first use.
    names: Vec<(KeyId, Box<[u8]>)>,
    /// The keys of the last row, with the positions of their names: most rows have the same keys.
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

    /// Writes a row. Calls `full` with each complete piece; `full` may stop the export.
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
        // Values that JSON cannot represent as a number become null.
        PointValue::Float(value) => write_json(out, &value),
        PointValue::Text(text) => write_json(out, text),
        // The JSON was checked when it was stored, but a line must not end inside it.
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
