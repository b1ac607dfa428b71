//! One segment file of a disk queue.

use std::fs::File;
use std::io::{self, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use crate::row::SinkRow;

const MAGIC: &[u8; 4] = b"TGCQ";
const VERSION: u32 = 2;
pub(super) const HEAD_BYTES: usize = 28;
const RECORD_HEAD: usize = 12;
/// Upper limit on the length of a record; a larger length is damage.
const MAX_RECORD_BYTES: usize = 1 << 30;

pub(super) struct QueueSegment {
    pub(super) path: PathBuf,
    pub(super) epoch: u64,
    pub(super) first: u64,
    pub(super) rows: u64,
    pub(super) bytes: u64,
    /// Unreadable rows before the last readable one.
    pub(super) lost: u64,
    /// Bytes after the last row.
    pub(super) torn: u64,
    /// File handle for appending; opened on demand.
    file: Option<File>,
    /// Records were written since the last sync.
    is_dirty: bool,
}

/// Result of opening a segment file.
pub(super) enum SegmentOpening {
    Segment(QueueSegment),
    /// The head is invalid. `true`: the file is shorter than a head, as after a crash during its creation.
    NoHead(bool),
}

/// Appends a record. The checksum covers the number, so a row after a damaged one can still be identified.
pub(super) fn put_record(out: &mut Vec<u8>, number: u64, row: &[u8]) {
    // A row is no longer than a memory queue allows, whose lengths have 4 bytes.
    out.extend_from_slice(&(row.len() as u32).to_le_bytes());
    out.extend_from_slice(&(number as u32).to_le_bytes());
    out.extend_from_slice(&checksum(number, row).to_le_bytes());
    out.extend_from_slice(row);
}

fn checksum(number: u64, row: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&number.to_le_bytes()), row)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let bytes = bytes[at..at + 4].try_into().expect("it is 4 bytes long");
    u32::from_le_bytes(bytes)
}

impl QueueSegment {
    pub(super) fn create(directory: &Path, epoch: u64, first: u64) -> io::Result<Self> {
        let path = directory.join(format!("{first:020}.rows"));
        let mut head = Vec::with_capacity(HEAD_BYTES);
        head.extend_from_slice(MAGIC);
        head.extend_from_slice(&VERSION.to_le_bytes());
        head.extend_from_slice(&epoch.to_le_bytes());
        head.extend_from_slice(&first.to_le_bytes());
        head.extend_from_slice(&crc32c::crc32c(&head).to_le_bytes());
        let mut file = File::create(&path)?;
        file.write_all(&head)?;
        Ok(Self {
            path,
            epoch,
            first,
            rows: 0,
            bytes: HEAD_BYTES as u64,
            lost: 0,
            torn: 0,
            file: Some(file),
            is_dirty: false,
        })
    }

    /// Reads a file without changing it: its rows are those up to the last complete one.
    pub(super) fn open(path: &Path) -> io::Result<SegmentOpening> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        let mut head = [0; HEAD_BYTES];
        match file.read_exact(&mut head) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Ok(SegmentOpening::NoHead(true));
            }
            Err(error) => return Err(error),
        }
        let number = |at: usize| {
            let bytes = head[at..at + 8].try_into().expect("it is 8 bytes long");
            u64::from_le_bytes(bytes)
        };
        if &head[..4] != MAGIC || u32_at(&head, 24) != crc32c::crc32c(&head[..24]) {
            return Ok(SegmentOpening::NoHead(false));
        }
        let version = u32_at(&head, 4);
        if version != VERSION {
            let why = format!(
                "{}: written by another version ({version}, this one reads {VERSION})",
                path.display()
            );
            return Err(io::Error::other(why));
        }
        let first = number(16);
        Self::with_rows(path, file, length, number(8), first).map(SegmentOpening::Segment)
    }

    /// Opens a file with a lost head, given the content of that head.
    pub(super) fn open_without_head(path: &Path, epoch: u64, first: u64) -> io::Result<Self> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(HEAD_BYTES as u64))?;
        Self::with_rows(path, file, length, epoch, first)
    }

    fn with_rows(path: &Path, file: File, length: u64, epoch: u64, first: u64) -> io::Result<Self> {
        let mut reader = SegmentReader::new(file, first);
        while reader.next()?.is_some() {}
        Ok(Self {
            path: path.to_owned(),
            epoch,
            first,
            rows: reader.number - first,
            bytes: reader.position,
            lost: reader.lost,
            torn: length.saturating_sub(reader.position),
            file: None,
            is_dirty: false,
        })
    }

    /// Cuts off an incomplete row at the end.
    pub(super) fn truncate_torn_end(&mut self) -> io::Result<()> {
        if self.torn > 0 {
            let file = File::options().write(true).open(&self.path)?;
            file.set_len(self.bytes)?;
            self.torn = 0;
        }
        Ok(())
    }

    /// The number after its last row.
    pub(super) fn end(&self) -> u64 {
        self.first + self.rows
    }

    pub(super) fn write(&mut self, records: &[u8], count: u64) -> io::Result<()> {
        let mut file = match self.file.take() {
            Some(file) => file,
            None => {
                let mut file = File::options().write(true).open(&self.path)?;
                file.seek(SeekFrom::Start(self.bytes))?;
                file
            }
        };
        if let Err(error) = file.write_all(records) {
            // A partial write must not precede the next one.
            file.set_len(self.bytes)?;
            file.seek(SeekFrom::Start(self.bytes))?;
            self.file = Some(file);
            return Err(error);
        }
        self.file = Some(file);
        self.is_dirty = true;
        self.bytes += records.len() as u64;
        self.rows += count;
        Ok(())
    }

    pub(super) fn sync(&mut self) -> io::Result<()> {
        if let Some(file) = self.file.as_ref().filter(|_| self.is_dirty) {
            file.sync_data()?;
            self.is_dirty = false;
        }
        Ok(())
    }

    /// Reads from this number on.
    pub(super) fn reader(&self, from: u64) -> io::Result<SegmentReader> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(HEAD_BYTES as u64))?;
        let mut reader = SegmentReader::new(file, self.first);
        while reader.number < from && reader.next()?.is_some() {}
        Ok(reader)
    }
}

pub(super) struct SegmentReader {
    file: BufReader<File>,
    first: u64,
    /// Number of the next row.
    number: u64,
    /// Damaged rows that were skipped.
    lost: u64,
    /// Offset after the last complete record.
    position: u64,
    row: Vec<u8>,
}

impl SegmentReader {
    fn new(file: File, first: u64) -> Self {
        Self {
            file: BufReader::with_capacity(256 << 10, file),
            first,
            number: first,
            lost: 0,
            position: HEAD_BYTES as u64,
            row: Vec::new(),
        }
    }

    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// The next row and its number; `None` at the end of the file. Damaged rows are skipped.
    pub(super) fn next(&mut self) -> io::Result<Option<(u64, SinkRow<'_>)>> {
        let is_read = self.read_record()? || (self.skip_damage()? && self.read_record()?);
        if !is_read {
            return Ok(None);
        }
        self.position += (RECORD_HEAD + self.row.len()) as u64;
        self.number += 1;
        Ok(Some((self.number - 1, SinkRow::from_bytes(&self.row))))
    }

    /// Reads the record with the expected number. `false`: there is none here.
    fn read_record(&mut self) -> io::Result<bool> {
        let mut head = [0; RECORD_HEAD];
        if !self.fill(|file| file.read_exact(&mut head))? {
            return Ok(false);
        }
        let length = u32_at(&head, 0) as usize;
        if length > MAX_RECORD_BYTES || u32_at(&head, 4) != self.number as u32 {
            return Ok(false);
        }
        let mut row = std::mem::take(&mut self.row);
        row.clear();
        let wanted = length as u64;
        let is_whole = self.fill(|file| {
            let read = file.by_ref().take(wanted).read_to_end(&mut row)?;
            match read == length {
                true => Ok(()),
                false => Err(io::ErrorKind::UnexpectedEof.into()),
            }
        })?;
        self.row = row;
        Ok(is_whole && checksum(self.number, &self.row) == u32_at(&head, 8))
    }

    /// Skips to the next complete record. `false`: there is none.
    fn skip_damage(&mut self) -> io::Result<bool> {
        self.file.seek(SeekFrom::Start(self.position))?;
        // A segment is only a few megabytes large.
        let mut rest = Vec::new();
        self.file.read_to_end(&mut rest)?;
        let found = (1..rest.len()).find_map(|at| {
            let number = number_at(&rest[at..], self.number)?;
            Some((at, number))
        });
        let Some((at, number)) = found else {
            return Ok(false);
        };
        self.lost += number - self.number;
        self.number = number;
        self.position += at as u64;
        self.file.seek(SeekFrom::Start(self.position))?;
        Ok(true)
    }

    fn fill(
        &mut self,
        read: impl FnOnce(&mut BufReader<File>) -> io::Result<()>,
    ) -> io::Result<bool> {
        match read(&mut self.file) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// The number of the complete record that begins here, which must follow `number`.
fn number_at(bytes: &[u8], number: u64) -> Option<u64> {
    let (head, rest) = bytes.split_first_chunk::<RECORD_HEAD>()?;
    let row = rest.get(..u32_at(head, 0) as usize)?;
    // Numbers within a segment are close to each other.
    let ahead = u64::from(u32_at(head, 4).wrapping_sub(number as u32));
    let found = (1..1 << 24).contains(&ahead).then_some(number + ahead)?;
    (checksum(found, row) == u32_at(head, 8)).then_some(found)
}
