//! Comma-separated values [RFC 4180].

use crate::row::SinkRow;
use crate::settings::SettingsError;
use crate::template::Template;

const MAX_COLUMNS: usize = 1024;

pub(super) struct CsvColumns(Vec<(String, Template)>);

impl CsvColumns {
    pub(super) fn new<'c>(
        columns: impl Iterator<Item = (&'c str, &'c str)>,
    ) -> Result<Self, SettingsError> {
        let mut parsed = Vec::new();
        for (at, (name, value)) in columns.enumerate() {
            let template = Template::parse(&format!("columns[{at}].value"), value)?;
            parsed.push((name.to_owned(), template));
        }
        match parsed.len() {
            1..=MAX_COLUMNS => Ok(Self(parsed)),
            count => {
                let detail = format!("expected 1 to {MAX_COLUMNS} of them, found {count}");
                Err(SettingsError::new("columns", detail))
            }
        }
    }

    /// The header line with its line break.
    pub(super) fn head(&self) -> Vec<u8> {
        let mut line = Vec::new();
        for (at, (name, _)) in self.0.iter().enumerate() {
            if at > 0 {
                line.push(b',');
            }
            put(name.as_bytes(), &mut line);
        }
        line.push(b'\n');
        line
    }

    pub(super) fn add(&self, row: SinkRow<'_>, out: &mut Vec<u8>) {
        let (mut value, mut scratch) = (Vec::new(), Vec::new());
        for (at, (_, template)) in self.0.iter().enumerate() {
            if at > 0 {
                out.push(b',');
            }
            value.clear();
            // A null is an empty cell.
            template.value(row, &mut scratch).write_text(&mut value);
            put(&value, out);
        }
    }
}

fn put(value: &[u8], out: &mut Vec<u8>) {
    let is_quoted = value
        .iter()
        .any(|byte| matches!(byte, b',' | b'"' | b'\n' | b'\r'));
    if !is_quoted {
        out.extend_from_slice(value);
        return;
    }
    out.push(b'"');
    for byte in value {
        if *byte == b'"' {
            out.push(b'"');
        }
        out.push(*byte);
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::SinkRowWriter;

    #[test]
    fn values_are_quoted_where_they_must_be() {
        let columns = [("a", "${a}"), ("b, c", "x ${b}"), ("d", "${none}")];
        let columns = CsvColumns::new(columns.into_iter()).unwrap();
        assert_eq!(columns.head(), b"a,\"b, c\",d\n");
        let mut bytes = Vec::new();
        let mut row = SinkRowWriter::new(&mut bytes);
        row.text("a", "say \"x\"\nand");
        row.int("b", 5);
        let mut line = Vec::new();
        columns.add(SinkRow::from_bytes(&bytes), &mut line);
        assert_eq!(line, b"\"say \"\"x\"\"\nand\",x 5,");
        assert!(CsvColumns::new(std::iter::empty()).is_err());
    }
}
