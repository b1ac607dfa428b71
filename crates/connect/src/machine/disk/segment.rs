//! One file of a disk queue.

use std::fs::File;
use std::io::{self, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use crate::row::Row;

const MAGIC: &[u8; 4] = b"TGCQ";
const VERSION: u32 = 1;
pub(super) const HEAD_BYTES: usize = 28;
const RECORD_HEAD: usize = 8;
/// Nothing longer was ever appended; what says so is damaged.
const MAX_RECORD_BYTES: usize = 1 << 30;

pub(super) struct Segment {
    pub(super) path: PathBuf,
    pub(super) epoch: u64,
    pub(super) first: u64,
    pub(super) rows: u64,
    pub(super) bytes: u64,
    /// For appending; opened when it is needed.
    file: Option<File>,
}

pub(super) fn put_record(out: &mut Vec<u8>, row: &[u8]) {
    // A row is no longer than a queue in memory, whose lengths have 4 bytes.
    out.extend_from_slice(&(row.len() as u32).to_le_bytes());
    out.extend_from_slice(&crc32c::crc32c(row).to_le_bytes());
    out.extend_from_slice(row);
}

impl Segment {
    pub(super) fn make(directory: &Path, epoch: u64, first: u64) -> io::Result<Self> {
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
            file: Some(file),
        })
    }

    /// Counts its rows and cuts off what is no whole row at its end. `None`: it has no head.
    pub(super) fn open(path: &Path) -> io::Result<Option<Self>> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        let mut head = [0; HEAD_BYTES];
        match file.read_exact(&mut head) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        }
        let number = |at: usize| {
            let bytes = head[at..at + 8].try_into().expect("it is 8 bytes long");
            u64::from_le_bytes(bytes)
        };
        let crc = u32::from_le_bytes(head[24..].try_into().expect("it is 4 bytes long"));
        if &head[..4] != MAGIC || crc != crc32c::crc32c(&head[..24]) {
            return Ok(None);
        }
        let version = u32::from_le_bytes(head[4..8].try_into().expect("it is 4 bytes long"));
        if version != VERSION {
            let why = format!(
                "{}: written by another version ({version}, this one reads {VERSION})",
                path.display()
            );
            return Err(io::Error::other(why));
        }
        let first = number(16);
        let mut reader = Reader::new(file, first);
        let mut rows = 0;
        while reader.next()?.is_some() {
            rows += 1;
        }
        let bytes = reader.position;
        if bytes < length {
            tracing::warn!(
                path = %path.display(),
                bytes = length - bytes,
                "the end of a disk queue's file is no whole row; it is cut off"
            );
            File::options().write(true).open(path)?.set_len(bytes)?;
        }
        Ok(Some(Self {
            path: path.to_owned(),
            epoch: number(8),
            first,
            rows,
            bytes,
            file: None,
        }))
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
            // What was written of it must not stand before what comes next.
            file.set_len(self.bytes)?;
            file.seek(SeekFrom::Start(self.bytes))?;
            self.file = Some(file);
            return Err(error);
        }
        self.file = Some(file);
        self.bytes += records.len() as u64;
        self.rows += count;
        Ok(())
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        match &self.file {
            Some(file) => file.sync_data(),
            None => Ok(()),
        }
    }

    pub(super) fn reader(&self) -> io::Result<Reader> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(HEAD_BYTES as u64))?;
        Ok(Reader::new(file, self.first))
    }
}

pub(super) struct Reader {
    file: BufReader<File>,
    first: u64,
    /// Behind the last whole record.
    position: u64,
    row: Vec<u8>,
}

impl Reader {
    fn new(file: File, first: u64) -> Self {
        Self {
            file: BufReader::with_capacity(256 << 10, file),
            first,
            position: HEAD_BYTES as u64,
            row: Vec::new(),
        }
    }

    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// The next row; `None` where the file ends, or what follows is damaged.
    pub(super) fn next(&mut self) -> io::Result<Option<Row<'_>>> {
        let mut head = [0; RECORD_HEAD];
        if !self.fill(|file| file.read_exact(&mut head))? {
            return Ok(None);
        }
        let word = |at: usize| {
            let bytes = head[at..at + 4].try_into().expect("it is 4 bytes long");
            u32::from_le_bytes(bytes)
        };
        let length = word(0) as usize;
        if length > MAX_RECORD_BYTES {
            return Ok(None);
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
        if !is_whole || crc32c::crc32c(&self.row) != word(4) {
            return Ok(None);
        }
        self.position += (RECORD_HEAD + length) as u64;
        Ok(Some(Row::from_bytes(&self.row)))
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
