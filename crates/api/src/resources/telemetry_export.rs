//! Telemetry export. Rows are read and written in pieces, so a long time range needs little memory.

use std::io;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use futures_util::stream;
use serde_json::Value;
use tokio::sync::mpsc;

use super::telemetry_query::{keys, time_range, to_problem};
use crate::call::{ApiCall, text_response};
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::query_parameters::{Parameter, ParameterType};
use crate::telemetry_backend::{RowQuery, TelemetryBackend, TelemetryBackendError};

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

enum ExportFormat {
    Lines,
    /// CSV with these columns after the time.
    Csv(Vec<String>),
    Parquet,
}

/// Sends the written text to the response body.
struct ExportWriter {
    buffer: Vec<u8>,
    sender: mpsc::Sender<Result<Bytes, TelemetryBackendError>>,
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

    fn write(
        &self,
        tools: &dyn TelemetryBackend,
        query: &RowQuery,
        pieces: &mut ExportWriter,
    ) -> Result<(), TelemetryBackendError> {
        match self {
            Self::Lines => {
                let ExportWriter {
                    buffer: piece,
                    sender,
                } = pieces;
                let full = &mut |piece: &mut Vec<u8>| {
                    let full = Bytes::from(std::mem::take(piece));
                    sender.blocking_send(Ok(full)).is_ok()
                };
                tools.write_rows(query, b'\n', piece, full).map(drop)
            }
            Self::Csv(columns) => {
                let mut line = String::new();
                let names = columns.iter().map(String::as_str);
                csv_line(["ts_ms"].into_iter().chain(names), &mut line);
                let _ = pieces.append(&line);
                tools.rows(query, &mut |ts_ms, values| {
                    line.clear();
                    csv_row(ts_ms, columns, &values, &mut line);
                    pieces.append(&line)
                })
            }
            Self::Parquet => tools.write_parquet(query, pieces),
        }
    }
}

impl ExportWriter {
    /// Appends text; false if the client has disconnected.
    fn append(&mut self, text: &str) -> bool {
        self.buffer.extend_from_slice(text.as_bytes());
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
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= BUFFER_BYTES && !self.flush_piece() {
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
    let (from_ms, to_ms) = time_range(&call)?;
    let format = ExportFormat::from_call(&call)?;
    let (media_type, name) = (format.media_type(), format.file_name());
    let query = RowQuery {
        device: call.path("id").to_owned(),
        keys: keys(&call)?,
        from_ms,
        to_ms,
        limit: usize::MAX,
        newest_first: false,
    };
    let tools = call.app.telemetry_backend.clone();
    let (sender, mut written) = mpsc::channel(MAX_PENDING_BUFFERS);
    tokio::task::spawn_blocking(move || {
        let mut pieces = ExportWriter {
            buffer: Vec::new(),
            sender,
        };
        // The client may have disconnected.
        let _ = match format.write(&*tools, &query, &mut pieces) {
            Ok(()) => pieces.flush_piece(),
            Err(error) => pieces.sender.blocking_send(Err(error)).is_ok(),
        };
    });
    // An invalid query fails before the first piece, and gets an error response.
    let first = match written.recv().await {
        Some(Err(error)) => return Err(to_problem(error)),
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
                .map_err(|error| io::Error::other(format!("reading telemetry: {error:?}"))),
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

fn csv_row(ts_ms: i64, columns: &[String], values: &[(String, Value)], out: &mut String) {
    let cells = columns.iter().map(|column| {
        let value = values.iter().find(|(key, _)| key == column);
        match value.map(|(_, value)| value) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
        }
    });
    let cells: Vec<String> = std::iter::once(ts_ms.to_string()).chain(cells).collect();
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
        csv_row(7, &columns, &values, &mut out);
        assert_eq!(out, "7,\"x,\"\"y\"\"\",1.5,,\"{\"\"k\"\":[1]}\"\r\n");
    }
}
