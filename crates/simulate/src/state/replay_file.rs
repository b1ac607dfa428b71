//! A column of a CSV file, read once and shared by all devices.

use std::path::Path;

use crate::definition::Scalar;

/// A larger file is refused before it is read.
const MAX_FILE_BYTES: u64 = 256 << 20;

#[derive(Debug)]
pub(super) struct ReplayColumn(Vec<Scalar>);

impl ReplayColumn {
    /// Reads the column with this name in the header line.
    pub(super) fn read(file: &Path, column: &str) -> Result<Self, String> {
        let shown = file.display();
        let size = std::fs::metadata(file)
            .map_err(|error| format!("cannot read {shown}: {error}"))?
            .len();
        if size > MAX_FILE_BYTES {
            return Err(format!(
                "{shown} has {size} bytes; at most {MAX_FILE_BYTES} are read"
            ));
        }
        let mut reader = csv::Reader::from_path(file)
            .map_err(|error| format!("cannot read {shown}: {error}"))?;
        let header = reader
            .headers()
            .map_err(|error| format!("{shown}: {error}"))?;
        let Some(at) = header.iter().position(|name| name.trim() == column) else {
            let names: Vec<&str> = header.iter().map(str::trim).collect();
            return Err(format!(
                "{shown} has no column `{column}`; it has {}",
                names.join(", ")
            ));
        };
        let mut values = Vec::new();
        for row in reader.records() {
            let row = row.map_err(|error| format!("{shown}: {error}"))?;
            values.extend(row.get(at).map(scalar));
        }
        if values.is_empty() {
            return Err(format!("{shown} has no rows"));
        }
        Ok(Self(values))
    }

    pub(super) fn rows(&self) -> usize {
        self.0.len()
    }

    /// A row; the first follows the last.
    #[inline]
    pub(super) fn value(&self, row: usize) -> &Scalar {
        &self.0[row % self.0.len()]
    }
}

fn scalar(text: &str) -> Scalar {
    let text = text.trim();
    if let Ok(number) = text.parse::<i64>() {
        return Scalar::Integer(number);
    }
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() => Scalar::Number(number),
        _ => match text {
            "true" => Scalar::Boolean(true),
            "false" => Scalar::Boolean(false),
            _ => Scalar::Text(text.to_owned()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_the_types_of_their_text_and_go_round() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.csv");
        std::fs::write(&file, "time,x\n1,5\n2,2.5\n3,\"a, b\"\n4,true\n").unwrap();
        let column = ReplayColumn::read(&file, "x").unwrap();
        let found: Vec<Scalar> = (0..5).map(|row| column.value(row).clone()).collect();
        assert_eq!(
            found,
            [
                Scalar::Integer(5),
                Scalar::Number(2.5),
                Scalar::Text("a, b".to_owned()),
                Scalar::Boolean(true),
                Scalar::Integer(5)
            ]
        );
        assert!(
            ReplayColumn::read(&file, "y")
                .unwrap_err()
                .contains("it has time, x")
        );
        assert!(
            ReplayColumn::read(Path::new("/none"), "y")
                .unwrap_err()
                .contains("/none")
        );
    }
}
