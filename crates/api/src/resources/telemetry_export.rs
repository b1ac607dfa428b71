//! Telemetry export. Rows are read and written in pieces, so a long time range needs little memory.

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use futures_util::stream;
use serde_json::Value;
use tokio::sync::mpsc;

use super::device_groups::DeviceGroups;
use super::devices;
use super::exports::with_device;
use super::telemetry_query::{keys, time_range, to_problem};
use crate::call::{ApiCall, text_response};
use crate::cluster_telemetry::{AbsentNodes, ClusterTelemetry};
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::query_parameters::{Parameter, ParameterType};
use crate::telemetry_backend::{RowQuery, TelemetryBackendError, TelemetryReader, TelemetryTable};

const JSONL: &str = "application/jsonl";
const PARQUET: &str = "application/vnd.apache.parquet";
pub(super) const MEDIA_TYPES: [&str; 3] = [JSONL, "text/csv", PARQUET];

pub(super) const FORMAT: Parameter = Parameter {
    name: "format",
    shape: ParameterType::Words(&["jsonl", "csv", "parquet"]),
    description: "`jsonl` (default), `csv` or `parquet`.",
};

const BUFFER_BYTES: usize = 64 << 10;
/// Maximum number of buffers waiting for a slow client.
const MAX_PENDING_BUFFERS: usize = 4;

/// The devices whose rows are exported, one device after another.
enum ExportedDevices {
    One(String),
    /// Rows contain their device.
    Group {
        id: String,
        groups: DeviceGroups,
    },
}

enum ExportFormat {
    Lines,
    /// CSV with these columns after the time.
    Csv(Vec<String>),
    Parquet,
}

/// A file that is being written.
enum ExportFile<'a> {
    Lines(&'a mut ExportWriter),
    Csv {
        columns: &'a [String],
        out: &'a mut ExportWriter,
    },
    Parquet(Box<dyn TelemetryTable + 'a>),
}

/// Sends the written text to the response body.
struct ExportWriter {
    buffer: Vec<u8>,
    sender: mpsc::Sender<Result<Bytes, ProblemDetails>>,
}

impl ExportFormat {
    fn from_call(call: &ApiCall) -> Result<Self, ProblemDetails> {
        Ok(match call.query.text_value(FORMAT.name) {
            Some("csv") => {
                let columns = keys(call)?;
                Self::Csv(columns.ok_or_else(|| {
                    let detail = "keys: expected the columns of the CSV file.";
                    ProblemDetails::invalid_parameter("keys", detail)
                })?)
            }
            Some("parquet") => Self::Parquet,
            None | Some("jsonl") => Self::Lines,
            Some(_) => {
                let detail = "format: expected one of jsonl, csv, parquet.";
                return Err(ProblemDetails::invalid_parameter(FORMAT.name, detail));
            }
        })
    }

    fn media_type(&self) -> &'static str {
        match self {
            Self::Lines => JSONL,
            Self::Csv(_) => "text/csv; charset=utf-8",
            Self::Parquet => PARQUET,
        }
    }

    fn file_name(&self) -> &'static str {
        match self {
            Self::Lines => "telemetry.jsonl",
            Self::Csv(_) => "telemetry.csv",
            Self::Parquet => "telemetry.parquet",
        }
    }
}

impl ExportedDevices {
    /// Writes the rows of all devices. `query` selects the keys and times.
    fn write(
        &self,
        format: &ExportFormat,
        mut query: RowQuery,
        tools: &dyn TelemetryReader,
        out: &mut ExportWriter,
    ) -> Result<(), ProblemDetails> {
        let sender = out.sender.clone();
        let has_device = matches!(self, Self::Group { .. });
        let mut file = ExportFile::new(format, has_device, tools, out).map_err(to_problem)?;
        match self {
            Self::One(device) => {
                query.device.clone_from(device);
                file.add(&query, has_device, tools).map_err(to_problem)?;
            }
            Self::Group { id, groups } => {
                let ended = groups.for_each_member(id, |device| {
                    // Devices without rows send nothing, which would reveal that the client has disconnected.
                    if sender.is_closed() {
                        return ControlFlow::Break(Ok(()));
                    }
                    device.clone_into(&mut query.device);
                    match file.add(&query, has_device, tools) {
                        // It was deleted after the page of devices was read.
                        Ok(()) | Err(TelemetryBackendError::NoDevice(_)) => {
                            ControlFlow::Continue(())
                        }
                        Err(error) => ControlFlow::Break(Err(to_problem(error))),
                    }
                });
                ended.map_err(devices::to_problem)?.unwrap_or(Ok(()))?;
            }
        }
        file.finish().map_err(to_problem)
    }
}

impl<'a> ExportFile<'a> {
    fn new(
        format: &'a ExportFormat,
        has_device: bool,
        tools: &'a dyn TelemetryReader,
        out: &'a mut ExportWriter,
    ) -> Result<Self, TelemetryBackendError> {
        Ok(match format {
            ExportFormat::Lines => Self::Lines(out),
            ExportFormat::Csv(columns) => {
                let fixed: &[&str] = if has_device {
                    &["device", "ts_ms"]
                } else {
                    &["ts_ms"]
                };
                let names = columns.iter().map(String::as_str);
                let mut line = String::new();
                csv_line(fixed.iter().copied().chain(names), &mut line);
                let _ = out.append(line.as_bytes());
                Self::Csv { columns, out }
            }
            ExportFormat::Parquet => Self::Parquet(tools.parquet_table(out)?),
        })
    }

    /// Adds the rows of one device.
    fn add(
        &mut self,
        query: &RowQuery,
        has_device: bool,
        tools: &dyn TelemetryReader,
    ) -> Result<(), TelemetryBackendError> {
        match self {
            Self::Lines(out) => {
                let name = has_device.then(|| Value::from(query.device.as_str()).to_string());
                let mut append = |lines: &[u8]| match &name {
                    Some(name) => out.append(&with_device(lines, name)),
                    None => out.append(lines),
                };
                let mut lines = Vec::new();
                tools.write_rows(query, b'\n', &mut lines, &mut |lines| {
                    let is_connected = append(lines);
                    lines.clear();
                    is_connected
                })?;
                let _ = append(&lines);
                Ok(())
            }
            Self::Csv { columns, out } => {
                let device = has_device.then_some(query.device.as_str());
                let mut line = String::new();
                tools.rows(query, &mut |ts_ms, values| {
                    line.clear();
                    csv_row(device, ts_ms, columns, &values, &mut line);
                    out.append(line.as_bytes())
                })
            }
            Self::Parquet(table) => table.add(query),
        }
    }

    fn finish(self) -> Result<(), TelemetryBackendError> {
        match self {
            Self::Lines(_) | Self::Csv { .. } => Ok(()),
            Self::Parquet(table) => table.finish(),
        }
    }
}

impl ExportWriter {
    /// Appends text; false if the client has disconnected.
    fn append(&mut self, text: &[u8]) -> bool {
        self.buffer.extend_from_slice(text);
        self.buffer.len() < BUFFER_BYTES || self.flush_piece()
    }

    fn flush_piece(&mut self) -> bool {
        let piece = Bytes::from(std::mem::take(&mut self.buffer));
        self.sender.blocking_send(Ok(piece)).is_ok()
    }
}

impl io::Write for ExportWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let bytes = &bytes[..bytes.len().min(BUFFER_BYTES)];
        if !self.append(bytes) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        Ok(bytes.len())
    }

    /// The rest is sent when everything is written; until then an error gets a response of its own.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(super) async fn export(call: ApiCall) -> ApiResult {
    let device = call.path("id").to_owned();
    respond(call, ExportedDevices::One(device)).await
}

pub(super) async fn export_group(call: ApiCall) -> ApiResult {
    let id = call.path("id").to_owned();
    let groups = DeviceGroups::new(&call.app);
    respond(call, ExportedDevices::Group { id, groups }).await
}

async fn respond(call: ApiCall, devices: ExportedDevices) -> ApiResult {
    let (from_ms, to_ms) = time_range(&call)?;
    let format = ExportFormat::from_call(&call)?;
    let (media_type, name) = (format.media_type(), format.file_name());
    let query = RowQuery {
        device: String::new(),
        keys: keys(&call)?,
        from_ms,
        to_ms,
        limit: usize::MAX,
        newest_first: false,
    };
    // An incomplete file would be taken for a complete one.
    let mut permit = None;
    let tools: Arc<dyn TelemetryReader> =
        match ClusterTelemetry::new(&call.app, AbsentNodes::Refused) {
            Some(telemetry) => {
                permit = Some(call.app.cluster_exports.clone().acquire_owned().await);
                Arc::new(telemetry)
            }
            None => call.app.telemetry_backend.clone(),
        };
    let (sender, mut written) = mpsc::channel(MAX_PENDING_BUFFERS);
    tokio::task::spawn_blocking(move || {
        let _permit = permit;
        let mut pieces = ExportWriter {
            buffer: Vec::new(),
            sender,
        };
        // The client may have disconnected.
        let _ = match devices.write(&format, query, &*tools, &mut pieces) {
            Ok(()) => pieces.flush_piece(),
            Err(error) => pieces.sender.blocking_send(Err(error)).is_ok(),
        };
    });
    // An invalid query fails before the first piece, and gets an error response.
    let first = match written.recv().await {
        Some(Err(problem)) => return Err(problem),
        Some(Ok(first)) => first,
        None => {
            return Err(ProblemDetails::unavailable(
                "The telemetry cannot be read now.",
            ));
        }
    };
    call.mark_long_lived();
    let rest = stream::unfold((Some(first), written), |(first, mut written)| async move {
        let piece: io::Result<Bytes> = match first {
            Some(first) => Ok(first),
            None => written
                .recv()
                .await?
                .map_err(|problem| io::Error::other(problem.detail)),
        };
        Some((piece, (None, written)))
    });
    let mut response = text_response(media_type, Body::from_stream(rest));
    let disposition = HeaderValue::try_from(format!("attachment; filename=\"{name}\""));
    if let Ok(disposition) = disposition {
        response
            .headers_mut()
            .insert(header::CONTENT_DISPOSITION, disposition);
    }
    Ok(response)
}

fn csv_row(
    device: Option<&str>,
    ts_ms: i64,
    columns: &[String],
    values: &[(String, Value)],
    out: &mut String,
) {
    let cells = columns.iter().map(|column| {
        let value = values.iter().find(|(key, _)| key == column);
        match value.map(|(_, value)| value) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
        }
    });
    let fixed = device.map(str::to_owned).into_iter();
    let cells: Vec<String> = fixed.chain([ts_ms.to_string()]).chain(cells).collect();
    csv_line(cells.iter().map(String::as_str), out);
}

/// One CSV line (RFC 4180).
fn csv_line<'c>(cells: impl Iterator<Item = &'c str>, out: &mut String) {
    for (at, cell) in cells.enumerate() {
        if at > 0 {
            out.push(',');
        }
        if cell.contains([',', '"', '\n', '\r']) {
            out.push('"');
            out.push_str(&cell.replace('"', "\"\""));
            out.push('"');
        } else {
            out.push_str(cell);
        }
    }
    out.push_str("\r\n");
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cells_of_csv_are_quoted_where_they_have_to_be() {
        let columns = ["a", "b", "c", "d"].map(str::to_owned);
        let values = [
            ("a".to_owned(), json!("x,\"y\"")),
            ("b".to_owned(), json!(1.5)),
            ("d".to_owned(), json!({"k": [1]})),
        ];
        let mut out = String::new();
        csv_row(None, 7, &columns, &values, &mut out);
        assert_eq!(out, "7,\"x,\"\"y\"\"\",1.5,,\"{\"\"k\"\":[1]}\"\r\n");
        out.clear();
        csv_row(Some("a,b"), 7, &columns[1..2], &values, &mut out);
        assert_eq!(out, "\"a,b\",7,1.5\r\n");
    }
}
