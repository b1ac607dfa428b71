//! Output for humans (aligned columns, times as dates) and for scripts (JSON).

use std::io::{self, Write as _};

use anyhow::Context as _;
use jiff::Timestamp;
use serde_json::Value;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OutputFormat {
    Table,
    Json,
}

pub(super) struct CtlOutput {
    pub(super) format: OutputFormat,
}

/// The heading of a column and the field it shows.
pub(super) type Column = (&'static str, &'static str);

impl CtlOutput {
    /// Prints a list, and a note on standard error if there are more rows.
    pub(super) fn print_rows(
        &self,
        (rows, has_more): (Vec<Value>, bool),
        columns: &[Column],
    ) -> anyhow::Result<()> {
        match self.format {
            OutputFormat::Json => print_text(&format!("{:#}\n", Value::Array(rows)))?,
            OutputFormat::Table => print_text(&format_table(&rows, columns))?,
        }
        if has_more {
            eprintln!("There are more; --limit 0 shows all.");
        }
        Ok(())
    }

    /// Prints one object, one line per field.
    pub(super) fn print_fields(&self, value: &Value) -> anyhow::Result<()> {
        match (self.format, value) {
            (OutputFormat::Table, Value::Object(fields)) => {
                let width = fields.keys().map(|name| name.len()).max().unwrap_or(0);
                // Not truncated: one object is shown because of its contents, such as its last error.
                let lines = fields
                    .iter()
                    .map(|(name, value)| format!("{name:width$}  {}\n", format_value(name, value)));
                print_text(&lines.collect::<String>())
            }
            (_, value) => print_text(&format!("{value:#}\n")),
        }
    }

    /// Prints what was done; with JSON the response of the node.
    pub(super) fn print_done(&self, what: &str, answer: &Value) -> anyhow::Result<()> {
        match self.format {
            OutputFormat::Table => print_text(&format!("{what}\n")),
            OutputFormat::Json if answer.is_null() => Ok(()),
            OutputFormat::Json => print_text(&format!("{answer:#}\n")),
        }
    }
}

/// Writes to standard output. A closed pipe (`| head`) is not an error.
pub(super) fn print_text(text: &str) -> anyhow::Result<()> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome.context("cannot write to standard output"),
    }
}

fn format_table(rows: &[Value], columns: &[Column]) -> String {
    let mut lines: Vec<Vec<String>> = vec![
        columns
            .iter()
            .map(|(heading, _)| (*heading).to_owned())
            .collect(),
    ];
    for row in rows {
        lines.push(
            columns
                .iter()
                .map(|(_, field)| format_cell(field, &row[*field]))
                .collect(),
        );
    }
    let width = |column: usize| {
        lines
            .iter()
            .map(|line| line[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<_> = (0..columns.len()).map(width).collect();
    let mut text = String::new();
    for line in &lines {
        let cells = line
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// Longer cells are truncated in tables, which have one line per row.
const MAX_CELL_CHARS: usize = 80;

fn format_cell(field: &str, value: &Value) -> String {
    let mut text = format_value(field, value);
    if let Some((end, _)) = text.char_indices().nth(MAX_CELL_CHARS) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// The complete value on one line.
fn format_value(field: &str, value: &Value) -> String {
    let text = match value {
        Value::Null => "-".to_owned(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::Number(number) if is_timestamp(field) => number
            .as_u64()
            .map_or_else(|| number.to_string(), format_date),
        Value::Number(number) => number.to_string(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    // Names chosen by clients must not move the cursor.
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

/// Whether a field in milliseconds is a time since 1970 rather than a duration.
fn is_timestamp(field: &str) -> bool {
    const TIMES: [&str; 6] = [
        "failing_since_ms",
        "not_after_ms",
        "not_before_ms",
        "since_ms",
        "ts_ms",
        "until_ms",
    ];
    field.ends_with("_at_ms") || field == "at_ms" || TIMES.contains(&field)
}

/// Formats milliseconds since 1970 as `2026-11-21T10:02:04Z`.
pub(super) fn format_date(ms: u64) -> String {
    let at = i64::try_from(ms).ok();
    match at.and_then(|ms| Timestamp::from_millisecond(ms).ok()) {
        Some(at) => format!("{at:.0}"),
        None => format!("{ms} ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tables_are_aligned_and_cannot_be_forged() {
        let rows = [
            json!({"id": "a\n\u{1b}[2J", "n": 1, "on": true, "x_at_ms": 0}),
            json!({"id": "ää", "n": null}),
        ];
        let columns = [("ID", "id"), ("N", "n"), ("ON", "on"), ("SINCE", "x_at_ms")];
        let text = format_table(&rows, &columns);
        assert_eq!(
            text,
            "ID      N  ON   SINCE\na\u{fffd}\u{fffd}[2J  1  yes  1970-01-01T00:00:00Z\nää      -  -    -\n"
        );
        let long = json!("x".repeat(100));
        assert_eq!(format_cell("a", &long), format!("{}…", "x".repeat(80)));
        assert_eq!(format_value("a", &long), "x".repeat(100));
        assert_eq!(
            format_cell("cleared_at_ms", &json!(0)),
            "1970-01-01T00:00:00Z"
        );
        assert_eq!(format_cell("timeout_ms", &json!(5000)), "5000");
        for field in ["at_ms", "expires_at_ms", "failing_since_ms"] {
            assert_eq!(format_cell(field, &json!(1000)), "1970-01-01T00:00:01Z");
        }
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(format_date(u64::MAX), "18446744073709551615 ms");
        assert_eq!(format_date(1_767_225_599_999), "2025-12-31T23:59:59Z");
        assert_eq!(format_date(0), "1970-01-01T00:00:00Z");
        assert_eq!(format_date(951_782_400_000), "2000-02-29T00:00:00Z");
        assert_eq!(format_date(1_767_225_599_000), "2025-12-31T23:59:59Z");
        assert_eq!(format_date(4_107_542_400_000), "2100-03-01T00:00:00Z");
    }
}
