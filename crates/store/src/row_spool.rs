//! Table rows in a backup: their encoding as lines, and a temporary file that holds them during an import.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek as _, SeekFrom, Write};

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use wall_clock::now_ms;

use crate::error::StoreError;
use crate::keyed_state::KeyedDatabase;
use crate::tables::is_table_name;

/// Prefix of a row's line.
pub(crate) const LINE_START: &str = "{\"table\":";
/// Rows written in one batch.
const ROWS_PER_PORTION: usize = 5_000;
const MAX_PART_BYTES: usize = 32 << 20;

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct TableRowLine<'a> {
    table: &'a str,
    key: &'a str,
    value: &'a str,
}

pub(crate) fn write_line(table: &str, key: &[u8], value: &[u8], line: &mut String) {
    line.clear();
    // Writing to a String cannot fail.
    let _ = write!(line, "{LINE_START}\"{table}\",\"key\":\"");
    HEXLOWER.encode_append(key, line);
    line.push_str("\",\"value\":\"");
    HEXLOWER.encode_append(value, line);
    line.push_str("\"}\n");
}

pub(crate) fn hex(text: &str) -> Result<Vec<u8>, String> {
    let bytes = HEXLOWER_PERMISSIVE.decode(text.as_bytes());
    bytes.map_err(|_| "expected pairs of hexadecimal digits".to_owned())
}

/// Parsed rows in an unnamed temporary file.
pub(crate) struct RowSpool {
    file: Option<BufWriter<File>>,
    rows: u64,
}

/// A [`RowSpool`] ready for reading.
pub(crate) struct RowSpoolReader {
    file: BufReader<File>,
    rows: u64,
}

impl RowSpool {
    pub(crate) fn new() -> Self {
        Self {
            file: None,
            rows: 0,
        }
    }

    /// The outer error is a disk error, the inner one an invalid line.
    pub(crate) fn add(&mut self, line: &str) -> io::Result<Result<(), String>> {
        let parsed = match serde_json::from_str::<TableRowLine<'_>>(line.trim_end()) {
            Err(error) => Err(format!("expected a row as exported: {error}")),
            Ok(line) if !is_table_name(line.table) => {
                Err(format!("{:?} is not a valid table name", line.table))
            }
            Ok(line) => hex(line.key).and_then(|key| Ok((line.table, key, hex(line.value)?))),
        };
        let (table, key, value) = match parsed {
            Ok(row) => row,
            Err(detail) => return Ok(Err(detail)),
        };
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(BufWriter::new(create_unnamed_file()?)),
        };
        for part in [table.as_bytes(), &key, &value] {
            file.write_all(&(part.len() as u32).to_le_bytes())?;
            file.write_all(part)?;
        }
        self.rows += 1;
        Ok(Ok(()))
    }

    pub(crate) fn finish(self) -> io::Result<Option<RowSpoolReader>> {
        let Some(file) = self.file else {
            return Ok(None);
        };
        let mut file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.seek(SeekFrom::Start(0))?;
        Ok(Some(RowSpoolReader {
            file: BufReader::new(file),
            rows: self.rows,
        }))
    }
}

/// Creates a file without a name, which the system removes with its last handle.
fn create_unnamed_file() -> io::Result<File> {
    let number = std::process::id();
    let time = now_ms();
    let path = std::env::temp_dir().join(format!("tidegate-import-{number}-{time}"));
    let mut options = File::options();
    let options = options.read(true).write(true).create_new(true);
    let file = std::os::unix::fs::OpenOptionsExt::mode(options, 0o600).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

impl RowSpoolReader {
    pub(crate) fn write_to(&mut self, db: &KeyedDatabase) -> Result<u64, StoreError> {
        let unreadable = |error: io::Error| StoreError::Damaged {
            what: "the file of an import".to_owned(),
            detail: error.to_string(),
        };
        let mut batch = db.database.batch();
        for _ in 0..self.rows {
            let table = self.read_portion().map_err(unreadable)?;
            let (key, value) = (
                self.read_portion().map_err(unreadable)?,
                self.read_portion().map_err(unreadable)?,
            );
            let table = String::from_utf8_lossy(&table);
            batch.insert(&db.tables.get_or_create(&db.database, &table)?, key, value);
            if batch.len() >= ROWS_PER_PORTION {
                let full = std::mem::replace(&mut batch, db.database.batch());
                full.commit()
                    .map_err(StoreError::keyed_error("write a table"))?;
            }
        }
        batch
            .commit()
            .map_err(StoreError::keyed_error("write a table"))?;
        Ok(self.rows)
    }

    fn read_portion(&mut self) -> io::Result<Vec<u8>> {
        let mut len = [0; 4];
        self.file.read_exact(&mut len)?;
        let len = u32::from_le_bytes(len) as usize;
        if len > MAX_PART_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut part = vec![0; len];
        self.file.read_exact(&mut part)?;
        Ok(part)
    }
}

/// Clears all tables; returns their approximate number of rows.
pub(crate) fn clear_tables(db: &KeyedDatabase) -> Result<u64, StoreError> {
    let mut removed = 0;
    for (_, keyspace) in db.tables.list() {
        removed += keyspace.approximate_len() as u64;
        keyspace
            .clear()
            .map_err(StoreError::keyed_error("empty a table"))?;
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use crate::tables::Durability;
    use crate::{ImportMode, Store, StoreConfig};

    #[test]
    fn tables_are_part_of_a_backup() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (from, _) = Store::open(one.path(), StoreConfig::default()).unwrap();
        let table = from.tables().table("things");
        let mut batch = from.tables().batch().unwrap();
        for number in 0..7_000_u32 {
            batch
                .put(&table, &number.to_be_bytes(), &[0xff; 3])
                .unwrap();
        }
        batch.commit(Durability::Buffered).unwrap();
        let mut file = Vec::new();
        assert_eq!(from.objects().export_to(&mut file).unwrap(), 7_000);

        let (to, _) = Store::open(two.path(), StoreConfig::default()).unwrap();
        let table = to.tables().table("things");
        let mut batch = to.tables().batch().unwrap();
        batch.put(&table, b"old", b"1").unwrap();
        batch.commit(Durability::Buffered).unwrap();
        let damaged = [
            &file[..],
            b"{\"table\":\"things\",\"key\":\"0\",\"value\":\"\"}\n",
        ]
        .concat();
        let refused = to
            .objects()
            .import_from(&mut &damaged[..], ImportMode::Replace);
        let refused = refused.unwrap_err().to_string();
        assert_eq!(refused, "line 7002: expected pairs of hexadecimal digits");
        assert!(table.has(b"old").unwrap());

        let imported = to
            .objects()
            .import_from(&mut &file[..], ImportMode::Replace);
        assert_eq!(imported.unwrap().written, 7_000);
        assert!(!table.has(b"old").unwrap());
        let value = table.get(&6_999_u32.to_be_bytes()).unwrap();
        assert_eq!(value.as_deref(), Some(&[0xff; 3][..]));
    }
}
