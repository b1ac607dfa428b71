//! Telemetry as a table in a Parquet file: a line for each value, so that the columns are the same whatever keys there are.

use std::io;
use std::ops::ControlFlow;

use api::TelemetryProblem;
use connect::columns::{Layout, Shape, Type, Writer};
use series::{Row, Series};

const COLUMNS: [(&str, Type); 8] = [
    ("time", Type::TimestampMs),
    ("device", Type::Text),
    ("key", Type::Text),
    // Every number, so that an average takes in the whole ones of a key, too.
    ("number", Type::Float),
    // Whole numbers again, with all their digits.
    ("integer", Type::Int),
    ("boolean", Type::Bool),
    ("text", Type::Text),
    ("json", Type::Json),
];

/// What an export has in memory before it is written.
const GROUP_ROWS: usize = 50_000;
const GROUP_BYTES: usize = 8 << 20;

pub(super) struct Table<'a> {
    device: &'a str,
    series: &'a Series,
    file: Writer<&'a mut (dyn io::Write + Send)>,
    failure: Option<io::Error>,
}

impl<'a> Table<'a> {
    pub(super) fn new(
        device: &'a str,
        series: &'a Series,
        out: &'a mut (dyn io::Write + Send),
    ) -> Result<Self, TelemetryProblem> {
        let layout = Layout::new(GROUP_ROWS, GROUP_BYTES);
        let file = Writer::new(out, &Shape::new(&COLUMNS), layout);
        Ok(Self {
            device,
            series,
            file: file.map_err(problem)?,
            failure: None,
        })
    }

    pub(super) fn add(&mut self, row: &Row<'_>) -> ControlFlow<()> {
        for point in row.points {
            let key = self.series.key_name(point.key).unwrap_or_default();
            let line = line(row.ts_ms, self.device, key, point.value);
            if let Err(error) = self.file.put(&line) {
                self.failure = Some(error);
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    pub(super) fn finish(self) -> Result<(), TelemetryProblem> {
        match self.failure {
            Some(error) => Err(problem(error)),
            None => self.file.finish().map(drop).map_err(problem),
        }
    }
}

fn problem(error: io::Error) -> TelemetryProblem {
    TelemetryProblem::Unavailable(format!("the Parquet file cannot be written: {error}"))
}

fn line<'v>(
    ts_ms: i64,
    device: &'v str,
    key: &'v str,
    value: series::Value<'v>,
) -> [connect::Value<'v>; 8] {
    use connect::Value as Cell;
    let mut line = [Cell::Null; 8];
    line[0] = Cell::Int(ts_ms);
    line[1] = Cell::Text(device);
    line[2] = Cell::Text(key);
    match value {
        series::Value::Int(value) => {
            line[3] = Cell::Int(value);
            line[4] = Cell::Int(value);
        }
        series::Value::Float(value) => line[3] = Cell::Float(value),
        series::Value::Bool(value) => line[5] = Cell::Bool(value),
        series::Value::Text(text) => line[6] = Cell::Text(text),
        series::Value::Json(json) => line[7] = Cell::Json(json),
    }
    line
}
