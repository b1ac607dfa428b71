//! The format of backup files: named entries of any size with checksums, and an end that shows that the file is complete.
//! See docs/internals/backups.md.

use std::io::{self, Read, Write};

const MAGIC: &[u8; 8] = b"TGBACKUP";
const VERSION: u32 = 1;
const ENTRY: u8 = 1;
const END: u8 = 2;
const CHUNK_BYTES: usize = 256 << 10;
const MAX_NAME_BYTES: usize = 256;

/// Why a file is not a complete backup.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BackupFileError {
    #[error("it is not a backup of a node; expected a file that `tidegate ctl backups` has made")]
    NotABackup,
    #[error(
        "it has format {0}, and this program reads format {VERSION}; use the program that wrote it, or a newer one"
    )]
    Version(u32),
    #[error("it ends in the middle: the backup or its transmission was interrupted")]
    Incomplete,
    #[error("it is damaged in {entry}: {detail}")]
    Damaged { entry: String, detail: &'static str },
    #[error("cannot be read: {0}")]
    Read(io::Error),
}

impl From<io::Error> for BackupFileError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Incomplete,
            _ => Self::Read(error),
        }
    }
}

/// Writes a backup.
pub(crate) struct BackupFileWriter<W> {
    out: W,
    entries: u32,
    bytes: u64,
    /// CRC32C of the checksums of all entries.
    whole: u32,
}

impl<W: Write> BackupFileWriter<W> {
    pub(crate) fn new(mut out: W) -> io::Result<Self> {
        out.write_all(MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        Ok(Self {
            out,
            entries: 0,
            bytes: 0,
            whole: 0,
        })
    }

    /// Begins an entry; its content is written to the returned value.
    pub(crate) fn entry(&mut self, name: &str) -> io::Result<EntryWriter<'_, W>> {
        assert!(name.len() <= MAX_NAME_BYTES, "names are short");
        self.out.write_all(&[ENTRY])?;
        self.out.write_all(&(name.len() as u16).to_le_bytes())?;
        self.out.write_all(name.as_bytes())?;
        Ok(EntryWriter {
            crc: crc32c::crc32c(name.as_bytes()),
            chunk: Vec::with_capacity(CHUNK_BYTES),
            file: self,
        })
    }

    /// Ends the file.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.out.write_all(&[END])?;
        self.out.write_all(&self.entries.to_le_bytes())?;
        self.out.write_all(&self.bytes.to_le_bytes())?;
        self.out.write_all(&self.whole.to_le_bytes())?;
        self.out.flush()?;
        Ok(self.out)
    }
}

/// Writes the content of an entry. Without [`EntryWriter::finish`] the file is not a backup.
pub(crate) struct EntryWriter<'f, W: Write> {
    file: &'f mut BackupFileWriter<W>,
    chunk: Vec<u8>,
    crc: u32,
}

impl<W: Write> EntryWriter<'_, W> {
    fn write_chunk(&mut self) -> io::Result<()> {
        if self.chunk.is_empty() {
            return Ok(());
        }
        self.crc = crc32c::crc32c_append(self.crc, &self.chunk);
        self.file.bytes += self.chunk.len() as u64;
        let len = self.chunk.len() as u32;
        self.file.out.write_all(&len.to_le_bytes())?;
        self.file.out.write_all(&self.chunk)?;
        self.chunk.clear();
        Ok(())
    }

    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.write_chunk()?;
        self.file.out.write_all(&0_u32.to_le_bytes())?;
        self.file.out.write_all(&self.crc.to_le_bytes())?;
        self.file.entries += 1;
        self.file.whole = crc32c::crc32c_append(self.file.whole, &self.crc.to_le_bytes());
        Ok(())
    }
}

impl<W: Write> Write for EntryWriter<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(CHUNK_BYTES - self.chunk.len());
        self.chunk.extend_from_slice(&bytes[..taken]);
        if self.chunk.len() == CHUNK_BYTES {
            self.write_chunk()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads a backup.
pub(crate) struct BackupFileReader<R> {
    input: R,
    entries: u32,
    bytes: u64,
    whole: u32,
}

impl<R: Read> BackupFileReader<R> {
    pub(crate) fn new(mut input: R) -> Result<Self, BackupFileError> {
        let mut magic = [0; MAGIC.len()];
        input
            .read_exact(&mut magic)
            .map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => BackupFileError::NotABackup,
                _ => BackupFileError::Read(error),
            })?;
        if magic != *MAGIC {
            return Err(BackupFileError::NotABackup);
        }
        let version = u32::from_le_bytes(read_array(&mut input)?);
        if version != VERSION {
            return Err(BackupFileError::Version(version));
        }
        Ok(Self {
            input,
            entries: 0,
            bytes: 0,
            whole: 0,
        })
    }

    /// The next entry, whose content has to be read to its end; `None` at the end of a complete file.
    pub(crate) fn next_entry(&mut self) -> Result<Option<EntryReader<'_, R>>, BackupFileError> {
        let [kind] = read_array(&mut self.input)?;
        let damaged = |detail| BackupFileError::Damaged {
            entry: "its structure".to_owned(),
            detail,
        };
        match kind {
            ENTRY => {
                let len = usize::from(u16::from_le_bytes(read_array(&mut self.input)?));
                if len > MAX_NAME_BYTES {
                    return Err(damaged("the name of an entry is too long"));
                }
                let mut name = vec![0; len];
                self.input.read_exact(&mut name)?;
                let crc = crc32c::crc32c(&name);
                let name = String::from_utf8(name);
                let name = name.map_err(|_| damaged("the name of an entry is not text"))?;
                Ok(Some(EntryReader {
                    name,
                    crc,
                    chunk: Vec::new(),
                    at: 0,
                    is_at_end: false,
                    file: self,
                }))
            }
            END => {
                let entries = u32::from_le_bytes(read_array(&mut self.input)?);
                let bytes = u64::from_le_bytes(read_array(&mut self.input)?);
                let whole = u32::from_le_bytes(read_array(&mut self.input)?);
                if (entries, bytes, whole) != (self.entries, self.bytes, self.whole) {
                    return Err(damaged("its end does not match its content"));
                }
                if self.input.read(&mut [0])? > 0 {
                    return Err(damaged("there is something behind its end"));
                }
                Ok(None)
            }
            _ => Err(damaged("an entry has an unknown kind")),
        }
    }
}

/// Reads the content of an entry; checks it at the end.
pub(crate) struct EntryReader<'f, R> {
    pub(crate) name: String,
    file: &'f mut BackupFileReader<R>,
    crc: u32,
    chunk: Vec<u8>,
    at: usize,
    is_at_end: bool,
}

impl<R: Read> EntryReader<'_, R> {
    fn read_chunk(&mut self) -> Result<(), BackupFileError> {
        let input = &mut self.file.input;
        let len = u32::from_le_bytes(read_array(input)?) as usize;
        let damaged = |detail| BackupFileError::Damaged {
            entry: self.name.clone(),
            detail,
        };
        if len > CHUNK_BYTES {
            return Err(damaged("a part is too long"));
        }
        if len == 0 {
            let crc = u32::from_le_bytes(read_array(input)?);
            if crc != self.crc {
                return Err(damaged("its checksum is wrong"));
            }
            self.is_at_end = true;
            self.file.entries += 1;
            self.file.whole = crc32c::crc32c_append(self.file.whole, &crc.to_le_bytes());
            return Ok(());
        }
        self.chunk.resize(len, 0);
        input.read_exact(&mut self.chunk)?;
        self.at = 0;
        self.crc = crc32c::crc32c_append(self.crc, &self.chunk);
        self.file.bytes += len as u64;
        Ok(())
    }

    /// Reads the rest without using it.
    pub(crate) fn skip(mut self) -> Result<(), BackupFileError> {
        while !self.is_at_end {
            self.read_chunk()?;
        }
        Ok(())
    }
}

impl<R: Read> Read for EntryReader<'_, R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        while self.at == self.chunk.len() && !self.is_at_end {
            self.chunk.clear();
            self.at = 0;
            self.read_chunk().map_err(io::Error::other)?;
        }
        let taken = bytes.len().min(self.chunk.len() - self.at);
        bytes[..taken].copy_from_slice(&self.chunk[self.at..self.at + taken]);
        self.at += taken;
        Ok(taken)
    }
}

fn read_array<const N: usize>(input: &mut impl Read) -> Result<[u8; N], BackupFileError> {
    let mut bytes = [0; N];
    input.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<u8> {
        let mut file = BackupFileWriter::new(Vec::new()).unwrap();
        for (name, len) in [("a", 3), ("empty", 0), ("large", CHUNK_BYTES * 2 + 5)] {
            let mut entry = file.entry(name).unwrap();
            entry.write_all(&vec![7; len]).unwrap();
            entry.finish().unwrap();
        }
        file.finish().unwrap()
    }

    fn read(bytes: &[u8]) -> Result<Vec<(String, usize)>, BackupFileError> {
        let mut file = BackupFileReader::new(bytes)?;
        let mut found = Vec::new();
        while let Some(mut entry) = file.next_entry()? {
            let mut content = Vec::new();
            let read = entry.read_to_end(&mut content);
            read.map_err(|error| match error.downcast::<BackupFileError>() {
                Ok(error) => error,
                Err(error) => error.into(),
            })?;
            found.push((entry.name.clone(), content.len()));
        }
        Ok(found)
    }

    #[test]
    fn entries_round_trip() {
        let found = read(&sample()).unwrap();
        let expected = [("a", 3), ("empty", 0), ("large", CHUNK_BYTES * 2 + 5)];
        assert_eq!(found, expected.map(|(name, len)| (name.to_owned(), len)));
    }

    #[test]
    fn every_change_and_every_cut_is_found() {
        let whole = sample();
        for at in (0..60).chain(whole.len() - 60..whole.len()) {
            let mut changed = whole.clone();
            changed[at] ^= 0x10;
            assert!(read(&changed).is_err(), "byte {at}");
            let cut = read(&whole[..at]).unwrap_err();
            let is_known = matches!(
                cut,
                BackupFileError::Incomplete | BackupFileError::NotABackup
            );
            assert!(is_known, "cut at {at}: {cut}");
        }
        let mut newer = whole.clone();
        newer[8] = 2;
        assert!(matches!(read(&newer), Err(BackupFileError::Version(2))));
        assert!(matches!(read(b"{}"), Err(BackupFileError::NotABackup)));
        assert!(read(&[&whole[..], b"x"].concat()).is_err());
    }
}
