//! Spools: rows on their way into a Parquet file. Such a file is unreadable before its footer is written. Rows are
//! therefore kept in a spool, from which they can be read again after a crash.
//!
//! `NAME.parquet.rows` is the current spool, `NAME-TIME.parquet.rows` a full one, `NAME-TIME.parquet.tmp` the file being
//! converted from it, and `NAME-TIME.parquet` the complete file; its spool is then removed. A crash in between
//! leaves the spool, and the file is written again under the same name: no row is lost or duplicated.
//!
//! A spool is a head (`tidegate rows 1` and a line break) and frames: length and CRC-32C of 4 bytes each, little-endian, then
//! the bytes. The first frame contains the columns as JSON, every other frame a record.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::directory::make_directory;
use super::file_names::{FileNames, with_suffix};
use super::rotating_file::RotationLimits;
use crate::columns::{ColumnSchema, MAX_RECORD_BYTES, ParquetLayout, ParquetWriter};

const HEAD: &[u8] = b"tidegate rows 1\n";
const ROWS: &str = ".rows";
const UNFINISHED: &str = ".tmp";
/// Suffix of unreadable spools.
const DAMAGED: &str = ".damaged";

pub(super) fn put_frame(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(&crc32c::crc32c(bytes).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// Full spools, and the files converted from them.
#[derive(Clone)]
pub(super) struct SpoolFiles {
    names: std::sync::Arc<FileNames>,
    layout: ParquetLayout,
    max_files: usize,
}

/// The current spool.
pub(super) struct Spool {
    spools: SpoolFiles,
    schema: ColumnSchema,
    rotation: RotationLimits,
    sync: bool,
    /// Number of the open spool; unique.
    number: u64,
    open: Option<OpenSpool>,
}

struct OpenSpool {
    file: File,
    bytes: u64,
    /// Size of the head and the columns.
    head_bytes: u64,
    since: SystemTime,
}

/// Result of an append.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct AppendOutcome {
    /// The number of a spool that was begun, or that an earlier process had left.
    pub(super) begun_spool: Option<u64>,
    /// Whether there is a full spool.
    pub(super) has_full_spool: bool,
}

impl Spool {
    pub(super) fn new(
        spools: SpoolFiles,
        shape: ColumnSchema,
        rotation: RotationLimits,
        sync: bool,
    ) -> Self {
        Self {
            spools,
            schema: shape,
            rotation,
            sync,
            number: 0,
            open: None,
        }
    }

    /// Appends frames: all of them or none.
    pub(super) fn append(&mut self, frames: &[u8]) -> io::Result<AppendOutcome> {
        let mut appended = AppendOutcome::default();
        if frames.is_empty() {
            return Ok(appended);
        }
        if self.open.is_none() {
            // Full spools that an earlier process left behind.
            appended.has_full_spool = self.open()?;
            appended.begun_spool = Some(self.number);
        }
        if self.is_full(frames.len() as u64) {
            self.close_spool(None)?;
            self.open()?;
            appended = AppendOutcome {
                begun_spool: Some(self.number),
                has_full_spool: true,
            };
        }
        let Some(mut open) = self.open.take() else {
            return Err(io::Error::other("no spool is open"));
        };
        let written = open.file.write_all(frames).and_then(|()| match self.sync {
            true => open.file.sync_data(),
            false => Ok(()),
        });
        match written {
            Ok(()) => {
                open.bytes += frames.len() as u64;
                self.open = Some(open);
                Ok(appended)
            }
            Err(error) => {
                // A partial write must not precede the retry.
                let _ = open.file.set_len(open.bytes);
                Err(error)
            }
        }
    }

    fn is_full(&self, more: u64) -> bool {
        let Some(open) = &self.open else {
            return false;
        };
        let is_old = self
            .rotation
            .max_age
            .is_some_and(|max| open.since.elapsed().unwrap_or_default() >= max);
        let is_large = open.bytes + more > self.rotation.max_bytes;
        open.bytes > open.head_bytes && (is_old || is_large)
    }

    /// Opens the existing spool if it has these columns, otherwise a new one; returns whether there are full spools.
    fn open(&mut self) -> io::Result<bool> {
        let names = self.spools.names.clone();
        make_directory(names.directory())?;
        let path = names.current_path(ROWS);
        let kept = match SpoolReader::open(&path) {
            Ok(mut frames) if frames.schema == self.schema => {
                let head_bytes = frames.at;
                while frames.next()?.is_some() {}
                Some((head_bytes, frames.at))
            }
            // It has other columns and becomes a file of its own. Without a complete head it contains nothing.
            Ok(_) => {
                fs::rename(
                    &path,
                    with_suffix(&names.unused_rotated_path(&[ROWS]), ROWS),
                )?;
                None
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                self.spools.quarantine(&path, &error)?;
                None
            }
            Err(error) => return Err(error),
        };
        let mut file = File::options()
            .create(true)
            .write(true)
            .truncate(false)
            .open(&path)?;
        let (head_bytes, bytes) = match kept {
            Some(kept) => kept,
            None => {
                let mut head = HEAD.to_vec();
                put_frame(&serde_json::to_vec(&self.schema)?, &mut head);
                file.write_all(&head)?;
                (head.len() as u64, head.len() as u64)
            }
        };
        // Removes what a crash left after the last complete frame.
        file.set_len(bytes)?;
        file.seek(io::SeekFrom::End(0))?;
        if self.sync {
            // Otherwise a power failure may take the new file with its synced rows.
            disk::sync_dir(names.directory())?;
        }
        let since = file.metadata()?.created();
        self.number += 1;
        self.open = Some(OpenSpool {
            file,
            bytes,
            head_bytes,
            since: since.unwrap_or_else(|_| SystemTime::now()),
        });
        Ok(!names.rotated_paths(ROWS)?.is_empty())
    }

    /// Closes the open spool, if it has this number and contains rows; returns whether there is a full one now.
    pub(super) fn close_spool(&mut self, number: Option<u64>) -> io::Result<bool> {
        if number.is_some_and(|number| number != self.number) {
            return Ok(false);
        }
        let Some(open) = self.open.take() else {
            return Ok(false);
        };
        let names = &self.spools.names;
        let path = names.current_path(ROWS);
        if open.bytes == open.head_bytes {
            fs::remove_file(path)?;
            return Ok(false);
        }
        open.file.sync_data()?;
        fs::rename(path, with_suffix(&names.unused_rotated_path(&[ROWS]), ROWS))?;
        Ok(true)
    }
}

impl SpoolFiles {
    pub(super) fn new(
        directory: &Path,
        name: &str,
        layout: ParquetLayout,
        max_files: usize,
    ) -> Self {
        Self {
            names: std::sync::Arc::new(FileNames::new(directory, name)),
            layout,
            max_files,
        }
    }

    pub(super) fn path(&self) -> PathBuf {
        self.names.current_path("")
    }

    /// Converts each full spool to a file.
    pub(super) fn convert_all(&self) -> io::Result<()> {
        for rows in self.names.rotated_paths(ROWS)? {
            match self.convert(&rows) {
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    self.quarantine(&rows, &error)?;
                }
                finished => finished?,
            }
        }
        self.names.remove_oldest(self.max_files)
    }

    fn convert(&self, rows: &Path) -> io::Result<()> {
        let path = rows.with_extension("");
        let unfinished = with_suffix(&path, UNFINISHED);
        let mut frames = SpoolReader::open(rows)?;
        let out = BufWriter::new(File::create(&unfinished)?);
        let mut file = ParquetWriter::new(out, &frames.schema, self.layout)?;
        while let Some(record) = frames.next()? {
            file.add_record(record)?;
        }
        let out = file.finish()?.into_inner().map_err(|e| e.into_error())?;
        disk::apply_original_umask(&unfinished)?;
        out.sync_all()?;
        fs::rename(&unfinished, &path)?;
        // The new name must be durable before the rows are removed from the spool.
        disk::sync_dir(self.names.directory())?;
        fs::remove_file(rows)
    }

    /// Renames an unreadable spool, so that an operator can inspect it.
    fn quarantine(&self, rows: &Path, error: &io::Error) -> io::Result<()> {
        let aside = with_suffix(&self.names.unused_rotated_path(&[DAMAGED]), DAMAGED);
        tracing::error!(path = %aside.display(), %error, "spool of a Parquet file is damaged; keeping it under this name");
        fs::rename(rows, aside)
    }
}

/// Reads the frames of a spool, up to its end or to where a crash truncated it.
struct SpoolReader {
    file: BufReader<File>,
    schema: ColumnSchema,
    /// Offset after the last complete frame.
    at: u64,
    frame: Vec<u8>,
}

impl SpoolReader {
    fn open(path: &Path) -> io::Result<Self> {
        let mut frames = Self {
            file: BufReader::new(File::open(path)?),
            schema: ColumnSchema::default(),
            at: 0,
            frame: Vec::new(),
        };
        let wrong = || {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "the file does not begin with a spool head",
            )
        };
        let mut head = [0; HEAD.len()];
        if !read_whole(&mut frames.file, &mut head)? || head != HEAD {
            return Err(wrong());
        }
        frames.at = HEAD.len() as u64;
        let shape = frames.next()?.map(serde_json::from_slice::<ColumnSchema>);
        match shape {
            Some(Ok(shape)) => frames.schema = shape,
            _ => return Err(wrong()),
        }
        Ok(frames)
    }

    fn next(&mut self) -> io::Result<Option<&[u8]>> {
        let mut head = [0; 8];
        if !read_whole(&mut self.file, &mut head)? {
            return Ok(None);
        }
        let [a, b, c, d, sum @ ..] = head;
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        if length > MAX_RECORD_BYTES {
            return Ok(None);
        }
        self.frame.resize(length, 0);
        let is_whole = read_whole(&mut self.file, &mut self.frame)?;
        if !is_whole || crc32c::crc32c(&self.frame) != u32::from_le_bytes(sum) {
            return Ok(None);
        }
        self.at += (head.len() + length) as u64;
        Ok(Some(&self.frame))
    }
}

/// Fills a buffer; `false` if fewer bytes are left.
fn read_whole(file: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    match file.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::{ColumnMapping, ColumnSetting};
    use crate::row::{SinkRow, SinkRowWriter};
    use parquet::file::reader::{FileReader as _, SerializedFileReader};
    use parquet::record::RowAccessor as _;
    use serde_json::{Value, json};

    fn columns(names: &[&str]) -> ColumnMapping {
        let settings: Vec<ColumnSetting> = names
            .iter()
            .map(|name| json!({"name": name, "value": "${n}", "type": "int"}))
            .map(|column: Value| serde_json::from_value(column).unwrap())
            .collect();
        ColumnMapping::new(&settings).unwrap()
    }

    fn spool(directory: &Path, columns: &ColumnMapping, max_bytes: u64) -> Spool {
        let spools = SpoolFiles::new(directory, "t.parquet", ParquetLayout::default(), 100);
        let rotation = RotationLimits {
            max_bytes,
            max_age: None,
            max_files: 100,
        };
        Spool::new(spools, columns.shape().clone(), rotation, false)
    }

    fn append(spool: &mut Spool, columns: &ColumnMapping, n: i64) -> AppendOutcome {
        let (mut bytes, mut record, mut frames) = (Vec::new(), Vec::new(), Vec::new());
        SinkRowWriter::new(&mut bytes).int("n", n);
        columns
            .add(SinkRow::from_bytes(&bytes), &mut record)
            .unwrap();
        put_frame(&record, &mut frames);
        spool.append(&frames).unwrap()
    }

    /// The numbers in all files, oldest first.
    fn read_all(directory: &Path) -> Vec<i64> {
        let names = FileNames::new(directory, "t.parquet");
        let files = names.rotated_paths("").unwrap().into_iter();
        let numbers = files.flat_map(|path| {
            let reader = SerializedFileReader::new(File::open(path).unwrap()).unwrap();
            let rows = reader.get_row_iter(None).unwrap();
            rows.map(|row| row.unwrap().get_long(0).unwrap())
                .collect::<Vec<_>>()
        });
        numbers.collect()
    }

    #[test]
    fn spools_become_files_as_they_are_full() {
        let directory = tempfile::tempdir().unwrap();
        let columns = columns(&["n"]);
        let mut spool = spool(directory.path(), &columns, 200);
        for n in 0..20 {
            append(&mut spool, &columns, n);
        }
        spool.close_spool(None).unwrap();
        assert!(read_all(directory.path()).is_empty());
        spool.spools.convert_all().unwrap();
        assert_eq!(read_all(directory.path()), (0..20).collect::<Vec<_>>());
        // No other files are left.
        for entry in fs::read_dir(directory.path()).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            assert!(name.ends_with(".parquet"), "{name}");
        }
        let number = append(&mut spool, &columns, 20).begun_spool.unwrap();
        assert!(!spool.close_spool(Some(number - 1)).unwrap());
        assert!(spool.close_spool(Some(number)).unwrap());
    }

    #[test]
    fn a_crash_costs_no_row_and_doubles_none() {
        let directory = tempfile::tempdir().unwrap();
        let columns = columns(&["n"]);
        let mut first = spool(directory.path(), &columns, 1000);
        for n in 0..5 {
            append(&mut first, &columns, n);
        }
        drop(first);
        // A crash in the middle of a row.
        let rows = directory.path().join("t.parquet.rows");
        let mut file = File::options().append(true).open(&rows).unwrap();
        file.write_all(&[9, 0, 0, 0, 1, 2]).unwrap();
        let mut second = spool(directory.path(), &columns, 1000);
        assert_eq!(append(&mut second, &columns, 5).begun_spool, Some(1));
        second.close_spool(None).unwrap();
        // A crash when the file was complete and its spool not yet removed.
        let full = second.spools.names.rotated_paths(ROWS).unwrap().remove(0);
        let copy = fs::read(&full).unwrap();
        second.spools.convert_all().unwrap();
        fs::write(&full, copy).unwrap();
        let mut third = spool(directory.path(), &columns, 1000);
        assert!(append(&mut third, &columns, 6).has_full_spool);
        third.spools.convert_all().unwrap();
        third.close_spool(None).unwrap();
        third.spools.convert_all().unwrap();
        assert_eq!(read_all(directory.path()), (0..7).collect::<Vec<_>>());
    }

    #[test]
    fn other_columns_are_another_file() {
        let directory = tempfile::tempdir().unwrap();
        let (old, new) = (columns(&["n"]), columns(&["n", "m"]));
        append(&mut spool(directory.path(), &old, 1000), &old, 1);
        let mut second = spool(directory.path(), &new, 1000);
        assert!(append(&mut second, &new, 2).has_full_spool);
        second.close_spool(None).unwrap();
        second.spools.convert_all().unwrap();
        assert_eq!(read_all(directory.path()), [1, 2]);
        // Other files are not mistaken for a spool.
        fs::write(directory.path().join("t.parquet.rows"), b"something").unwrap();
        let mut third = spool(directory.path(), &new, 1000);
        append(&mut third, &new, 3);
        third.close_spool(None).unwrap();
        third.spools.convert_all().unwrap();
        assert_eq!(read_all(directory.path()), [1, 2, 3]);
    }
}
