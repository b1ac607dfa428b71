//! Telemetry as a Parquet table with one line per value, so that the columns do not depend on the
//! keys.

use std::io;
use std::ops::ControlFlow;

use api::TelemetryBackendError;
use connect::columns::{ColumnSchema, ColumnType, ParquetLayout, ParquetWriter};
use series::{Series, SeriesRow};

const COLUMNS: [(&str, ColumnType); 8] = [
    ("time", ColumnType::TimestampMs),
    ("device", ColumnType::Text),
    ("key", ColumnType::Text),
    // Every number, so that an average also includes whole numbers of a key.
    ("number", ColumnType::Float),
    // Whole numbers again, with all their digits.
    ("integer", ColumnType::Int),
    ("boolean", ColumnType::Bool),
    ("text", ColumnType::Text),
    ("json", ColumnType::Json),
];

/// Number of rows that an export buffers before it writes a group.
const GROUP_ROWS: usize = 50_000;
const GROUP_BYTES: usize = 8 << 20;

pub(super) struct ParquetTable<'a> {
    series: &'a Series,
    file: ParquetWriter<&'a mut (dyn io::Write + Send)>,
    failure: Option<io::Error>,
}

impl<'a> ParquetTable<'a> {
    pub(super) fn new(
        series: &'a Series,
        out: &'a mut (dyn io::Write + Send),
    ) -> Result<Self, TelemetryBackendError> {
        let layout = ParquetLayout::new(GROUP_ROWS, GROUP_BYTES);
        let file = ParquetWriter::new(out, &ColumnSchema::new(&COLUMNS), layout);
        Ok(Self {
            series,
            file: file.map_err(to_backend_error)?,
            failure: None,
        })
    }

    /// Adds the values of a row. Breaks after a write error, which `check` reports.
    pub(super) fn add(&mut self, device: &str, row: &SeriesRow<'_>) -> ControlFlow<()> {
        for point in row.points {
            let key = self.series.key_name(point.key).unwrap_or_default();
            let line = row_columns(row.ts_ms, device, key, point.value);
            if let Err(error) = self.file.put_row(&line) {
                self.failure = Some(error);
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    /// Adds one value.
    pub(super) fn add_value(
        &mut self,
        ts_ms: i64,
        device: &str,
        key: &str,
        value: series::PointValue<'_>,
    ) -> Result<(), TelemetryBackendError> {
        let line = row_columns(ts_ms, device, key, value);
        self.file.put_row(&line).map_err(to_backend_error)
    }

    /// Reports a write error of the rows that were added.
    pub(super) fn check(&mut self) -> Result<(), TelemetryBackendError> {
        self.failure
            .take()
            .map_or(Ok(()), |error| Err(to_backend_error(error)))
    }

    pub(super) fn finish(self) -> Result<(), TelemetryBackendError> {
        self.file.finish().map(drop).map_err(to_backend_error)
    }
}

fn to_backend_error(error: io::Error) -> TelemetryBackendError {
    TelemetryBackendError::Unavailable(format!("the Parquet file cannot be written: {error}"))
}

fn row_columns<'v>(
    ts_ms: i64,
    device: &'v str,
    key: &'v str,
    value: series::PointValue<'v>,
) -> [connect::SinkValue<'v>; 8] {
    use connect::SinkValue as Cell;
    let mut line = [Cell::Null; 8];
    line[0] = Cell::Int(ts_ms);
    line[1] = Cell::Text(device);
    line[2] = Cell::Text(key);
    match value {
        series::PointValue::Int(value) => {
            line[3] = Cell::Int(value);
            line[4] = Cell::Int(value);
        }
        series::PointValue::Float(value) => line[3] = Cell::Float(value),
        series::PointValue::Bool(value) => line[5] = Cell::Bool(value),
        series::PointValue::Text(text) => line[6] = Cell::Text(text),
        series::PointValue::Json(json) => line[7] = Cell::Json(json),
    }
    line
}
