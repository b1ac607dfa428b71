//! Telemetry as a file: rows are read and written in pieces, so that a long time costs little memory.

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use futures_util::stream;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

use super::telemetry::problem;
use super::telemetry_question::{keys, times};
use crate::call::{Call, text};
use crate::endpoint::Outcome;
use crate::parameters::{Parameter, Shape};
use crate::problem::Problem;
use crate::telemetry_tools::{RowQuery, TelemetryProblem};

pub(super) const FORMAT: Parameter = Parameter {
    name: "format",
    shape: Shape::Words(&["jsonl", "csv"]),
    about: "`jsonl`, which is the default, or `csv`.",
};

const PIECE_BYTES: usize = 64 << 10;
/// Pieces that wait for a slow reader.
const MAX_PIECES: usize = 4;

type Piece = Result<Bytes, std::io::Error>;

pub(super) async fn export(call: Call) -> Outcome {
    let (from_ms, to_ms) = times(&call)?;
    let columns = match call.query.text(FORMAT.name) {
        Some("csv") => match keys(&call) {
            Some(keys) => Some(keys),
            None => {
                let detail = "keys: expected the columns of the CSV.";
                return Err(Problem::parameter("keys", detail));
            }
        },
        _ => None,
    };
    let query = RowQuery {
        device: call.path("id").to_owned(),
        keys: keys(&call),
        from_ms,
        to_ms,
        limit: usize::MAX,
        newest_first: false,
    };
    let tools = call.app.telemetry_tools.clone();
    let (pieces, mut written) = mpsc::channel::<Result<Bytes, TelemetryProblem>>(MAX_PIECES);
    let is_csv = columns.is_some();
    tokio::task::spawn_blocking(move || {
        let mut piece = String::new();
        if let Some(columns) = &columns {
            csv_line(
                ["ts_ms"]
                    .into_iter()
                    .chain(columns.iter().map(String::as_str)),
                &mut piece,
            );
        }
        let send = |piece: &mut String| {
            let bytes = Bytes::from(std::mem::take(piece));
            pieces.blocking_send(Ok(bytes)).is_ok()
        };
        let read = tools.rows(&query, &mut |ts_ms, values| {
            match &columns {
                Some(columns) => csv_row(ts_ms, columns, &values, &mut piece),
                None => {
                    let values: Map<String, Value> = values.into_iter().collect();
                    piece.push_str(&json!({"ts_ms": ts_ms, "values": values}).to_string());
                    piece.push('\n');
                }
            }
            piece.len() < PIECE_BYTES || send(&mut piece)
        });
        // Whoever reads may have gone.
        let _ = match read {
            Ok(()) => send(&mut piece),
            Err(error) => pieces.blocking_send(Err(error)).is_ok(),
        };
    });
    // What is wrong with the question shows at once, and has an answer of its own.
    let first = match written.recv().await {
        Some(Err(error)) => return Err(problem(error)),
        Some(Ok(first)) => first,
        None => return Err(Problem::unavailable("The telemetry cannot be read now.")),
    };
    call.keep_connection();
    let rest = stream::unfold((Some(first), written), |(first, mut written)| async move {
        let piece: Piece = match first {
            Some(first) => Ok(first),
            None => written
                .recv()
                .await?
                .map_err(|error| std::io::Error::other(format!("reading telemetry: {error:?}"))),
        };
        Some((piece, (None, written)))
    });
    let media_type = if is_csv {
        "text/csv; charset=utf-8"
    } else {
        "application/jsonl"
    };
    let mut response = text(media_type, Body::from_stream(rest));
    let name = if is_csv {
        "telemetry.csv"
    } else {
        "telemetry.jsonl"
    };
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

/// RFC 4180.
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
