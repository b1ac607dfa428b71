//! A column of a CSV file, or what a node has stored of a device, read once and shared by all devices.

use std::path::Path;

use outbound::url_encoding::url_encode;
use wall_clock::now_ms;

use crate::definition::{ReplayDefinition, Scalar, TargetDefinition};
use crate::target_api::node_api;

/// A larger file is refused before it is read.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// Where values to replay are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplaySources<'a> {
    /// That of the simulation file.
    pub(crate) folder: &'a Path,
    pub(crate) target: &'a TargetDefinition,
}

impl ReplaySources<'_> {
    /// Reads the values of a file or of a device.
    pub(super) fn read(&self, replay: &ReplayDefinition) -> Result<ReplayColumn, String> {
        let ReplayDefinition {
            file,
            column,
            device,
            key,
            last,
            start: _,
        } = replay;
        match (file, column, device, key, last) {
            (Some(file), Some(column), None, None, None) => {
                ReplayColumn::read_file(&self.folder.join(file), column)
            }
            (None, None, Some(device), Some(key), _) => {
                let mut path = format!(
                    "/api/v1/devices/{}/telemetry/export?format=csv&keys={}",
                    url_encode(device),
                    url_encode(key)
                );
                if let Some(last) = last {
                    let from_ms = now_ms().saturating_sub(last.ns / 1_000_000);
                    path += &format!("&from_ms={from_ms}");
                }
                let node = node_api(self.target, self.folder);
                let text = node.and_then(|node| node.download(&path));
                let text = text.map_err(|error| format!("{error:#}"))?;
                let shown = format!("the stored telemetry of `{device}`");
                ReplayColumn::read_csv(text.as_bytes(), &shown, key)
            }
            _ => Err(
                "expected `file` and `column`, or `device` and `key` of stored telemetry with an optional `last`"
                    .to_owned(),
            ),
        }
    }
}

#[derive(Debug)]
pub(super) struct ReplayColumn(Vec<Scalar>);

impl ReplayColumn {
    /// Reads the column with this name in the header line.
    fn read_file(file: &Path, column: &str) -> Result<Self, String> {
        let shown = file.display();
        let cannot_read = |error| format!("cannot read {shown}: {error}");
        let size = std::fs::metadata(file).map_err(cannot_read)?.len();
        if size > MAX_FILE_BYTES {
            return Err(format!(
                "{shown} has {size} bytes; at most {MAX_FILE_BYTES} are read"
            ));
        }
        let content = std::fs::File::open(file).map_err(cannot_read)?;
        Self::read_csv(content, &shown.to_string(), column)
    }

    /// Reads a column of CSV; `shown` is its place, for errors.
    fn read_csv(content: impl std::io::Read, shown: &str, column: &str) -> Result<Self, String> {
        let mut reader = csv::Reader::from_reader(content);
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
    use serde_json::json;

    use super::*;

    #[test]
    fn rows_have_the_types_of_their_text_and_go_round() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.csv");
        std::fs::write(&file, "time,x\n1,5\n2,2.5\n3,\"a, b\"\n4,true\n").unwrap();
        let column = ReplayColumn::read_file(&file, "x").unwrap();
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
            ReplayColumn::read_file(&file, "y")
                .unwrap_err()
                .contains("it has time, x")
        );
        assert!(
            ReplayColumn::read_file(Path::new("/none"), "y")
                .unwrap_err()
                .contains("/none")
        );
    }

    #[test]
    fn stored_telemetry_is_read_from_the_node() {
        use std::io::{Read as _, Write as _};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let target = format!("http://{}", listener.local_addr().unwrap());
        let node = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = vec![0; 4096];
            let length = stream.read(&mut request).unwrap();
            stream
                .write_all(b"HTTP/1.0 200 OK\r\n\r\nts_ms,x\n1000,5\n2000,7\n")
                .unwrap();
            String::from_utf8_lossy(&request[..length]).into_owned()
        });
        let target: TargetDefinition = serde_json::from_value(json!({"api": target})).unwrap();
        let sources = ReplaySources {
            folder: Path::new(""),
            target: &target,
        };
        let replay = |definition| sources.read(&serde_json::from_value(definition).unwrap());
        let column = replay(json!({"device": "a/b", "key": "x", "last": "1h"})).unwrap();
        assert_eq!(column.rows(), 2);
        assert_eq!(*column.value(1), Scalar::Integer(7));
        let request = node.join().unwrap();
        let path = "GET /api/v1/devices/a%2Fb/telemetry/export?format=csv&keys=x&from_ms=1";
        assert!(request.starts_with(path), "{request}");
        for wrong in [
            json!({"device": "a"}),
            json!({"file": "a", "key": "x"}),
            json!({}),
        ] {
            assert!(replay(wrong).unwrap_err().contains("`device` and `key`"));
        }
    }
}
