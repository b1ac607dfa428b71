//! A file that is being received: its content, and which of it is durable.
//!
//! The content is in `NAME.part`. `NAME.state` names the transfer and the durable ranges; it is replaced after the
//! content has been synced, so that an acknowledged range survives the end of the process and of the system. `NAME`
//! appears when the content is complete and verified.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use content::{ContentDigest, DigestAlgorithm, PrefixDigest, RangeSet};
use disk::CheckedLineState;

use crate::core::Chunk;
use crate::wire::control::{Done, TransferId};

const STATE_VERSION: &str = "tidegate-partial-1";

/// Why a file could not be completed.
#[derive(Debug, thiserror::Error)]
pub enum FinishError {
    #[error("{missing_bytes} of {size} bytes are missing; resume the transfer")]
    Incomplete { missing_bytes: u64, size: u64 },
    /// The content was removed; the transfer begins anew.
    #[error(
        "the digest of the content is {actual:?}, the sender's is {expected:?}; send the file again"
    )]
    DigestMismatch {
        expected: ContentDigest,
        actual: ContentDigest,
    },
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Receives one file into a directory.
///
/// [`write`](Self::write) chunks, [`sync`](Self::sync) now and then and acknowledge the ranges that it returns, and
/// [`finish`](Self::finish).
#[derive(Debug)]
pub struct PartialFile {
    dir: PathBuf,
    name: String,
    transfer_id: TransferId,
    file: File,
    written: RangeSet,
    durable: RangeSet,
    /// Digests the content while it arrives.
    digest: Option<PrefixDigest>,
}

impl PartialFile {
    /// Continues the transfer of a file, or begins it if nothing of this transfer is stored under this name.
    ///
    /// `name` is a name in `dir` that the caller has checked; it contains no separator.
    ///
    /// # Errors
    /// If the name is not that of a file in `dir`, or a file operation fails.
    pub fn open(
        dir: &Path,
        name: &str,
        transfer_id: TransferId,
        digest: Option<DigestAlgorithm>,
    ) -> io::Result<Self> {
        let is_plain = Path::new(name).file_name().is_some_and(|file| file == name);
        if !is_plain || name.contains('\0') {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("file name: expected one without a path, not {name:?}"),
            ));
        }
        let state = disk::read_checked_line(&dir.join(format!("{name}.state")))?;
        let durable = match state {
            CheckedLineState::Intact(line) => parse_state(&line, transfer_id),
            CheckedLineState::Missing | CheckedLineState::Damaged => None,
        };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(durable.is_none())
            .mode(0o600)
            .open(dir.join(format!("{name}.part")))?;
        let mut durable = durable.unwrap_or_default();
        // The file may have been removed by somebody.
        let len = file.metadata()?.len();
        if durable.end() > len {
            durable = durable
                .iter()
                .map(|range| range.start.min(len)..range.end.min(len))
                .collect();
        }
        Ok(Self {
            dir: dir.to_owned(),
            name: name.to_owned(),
            transfer_id,
            file,
            written: durable.clone(),
            durable,
            digest: digest.map(PrefixDigest::new),
        })
    }

    /// What is durable, for [`LinkCore::accept_stream`](crate::core::LinkCore::accept_stream).
    pub fn durable(&self) -> &RangeSet {
        &self.durable
    }

    pub fn write(&mut self, chunk: &Chunk) -> io::Result<()> {
        self.file.write_all_at(&chunk.bytes, chunk.offset)?;
        self.written.insert(chunk.range());
        if let Some(digest) = &mut self.digest {
            digest.append(chunk.offset, &chunk.bytes);
        }
        Ok(())
    }

    /// Makes everything written durable. Returns all durable ranges, which may then be acknowledged.
    pub fn sync(&mut self) -> io::Result<&RangeSet> {
        if self.written != self.durable {
            self.file.sync_data()?;
            let line = state_line(self.transfer_id, &self.written);
            disk::write_checked_line(&self.dir, &format!("{}.state", self.name), &line)?;
            self.durable = self.written.clone();
        }
        Ok(&self.durable)
    }

    /// Verifies the whole content, gives the file its name and returns its path. Content that was received before a
    /// restart, or out of order, is read from the disk for that.
    ///
    /// # Errors
    /// See [`FinishError`]. After a wrong digest, nothing of the content remains.
    pub fn finish(mut self, done: Done) -> Result<PathBuf, FinishError> {
        let missing_bytes = self.written.missing(0..done.size).count();
        if missing_bytes > 0 {
            return Err(FinishError::Incomplete {
                missing_bytes,
                size: done.size,
            });
        }
        if let Some(expected) = done.digest {
            let actual = self.digest(expected.algorithm, done.size)?;
            if actual != expected {
                self.discard()?;
                return Err(FinishError::DigestMismatch { expected, actual });
            }
        }
        self.file.set_len(done.size)?;
        self.file.sync_all()?;
        let path = self.dir.join(&self.name);
        fs::rename(self.part_path(), &path)?;
        disk::sync_dir(&self.dir)?;
        remove_if_present(&self.state_path())?;
        Ok(path)
    }

    fn digest(&mut self, algorithm: DigestAlgorithm, size: u64) -> io::Result<ContentDigest> {
        let digest = self
            .digest
            .take_if(|digest| digest.algorithm() == algorithm);
        let mut digest = digest.unwrap_or_else(|| PrefixDigest::new(algorithm));
        digest.advance(&self.file, size, u64::MAX)?;
        Ok(digest.finish())
    }

    /// Removes what was received.
    pub fn discard(&self) -> io::Result<()> {
        remove_if_present(&self.state_path())?;
        remove_if_present(&self.part_path())?;
        disk::sync_dir(&self.dir)
    }

    fn part_path(&self) -> PathBuf {
        self.dir.join(format!("{}.part", self.name))
    }

    fn state_path(&self) -> PathBuf {
        self.dir.join(format!("{}.state", self.name))
    }
}

fn remove_if_present(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn state_line(transfer_id: TransferId, ranges: &RangeSet) -> String {
    let ranges: Vec<String> = ranges
        .iter()
        .map(|range| format!("{}-{}", range.start, range.end))
        .collect();
    format!("{STATE_VERSION} {transfer_id} {}", ranges.join(","))
}

/// The ranges of a state; `None`: it is that of another transfer.
fn parse_state(line: &str, transfer_id: TransferId) -> Option<RangeSet> {
    let rest = line.strip_prefix(&format!("{STATE_VERSION} {transfer_id} "))?;
    let parse_range = |text: &str| {
        let (start, end) = text.split_once('-')?;
        Some(start.parse().ok()?..end.parse().ok()?)
    };
    rest.split(',')
        .filter(|text| !text.is_empty())
        .map(parse_range)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use content::ContentHasher;

    const ID: TransferId = TransferId([1; 16]);

    fn chunk(all: &Bytes, range: std::ops::Range<usize>) -> Chunk {
        Chunk {
            offset: range.start as u64,
            bytes: all.slice(range),
        }
    }

    fn done(all: &Bytes, algorithm: DigestAlgorithm) -> Done {
        Done {
            size: all.len() as u64,
            digest: Some(ContentHasher::digest(algorithm, all)),
        }
    }

    fn content() -> Bytes {
        (0..1_000_003_u32).map(|n| (n ^ n >> 8) as u8).collect()
    }

    #[test]
    fn synced_content_survives_and_the_digest_covers_all_of_it() {
        for algorithm in [DigestAlgorithm::Sha256, DigestAlgorithm::Blake3] {
            let dir = tempfile::tempdir().unwrap();
            let all = content();
            let open = || PartialFile::open(dir.path(), "file.bin", ID, Some(algorithm)).unwrap();
            let mut file = open();
            assert!(file.durable().is_empty());
            file.write(&chunk(&all, 0..400_000)).unwrap();
            file.write(&chunk(&all, 500_000..600_000)).unwrap();
            let synced = file.sync().unwrap().clone();
            file.write(&chunk(&all, 600_000..700_000)).unwrap();
            // Without a sync: the content may be on disk, but it is not counted.
            drop(file);
            let mut file = open();
            assert_eq!(*file.durable(), synced);
            let error = open().finish(done(&all, algorithm)).unwrap_err();
            assert!(matches!(
                error,
                FinishError::Incomplete {
                    missing_bytes: 500_003,
                    ..
                }
            ));
            file.write(&chunk(&all, 600_000..all.len())).unwrap();
            file.write(&chunk(&all, 400_000..500_000)).unwrap();
            let path = file.finish(done(&all, algorithm)).unwrap();
            assert!(fs::read(&path).unwrap() == all);
            let names: Vec<_> = fs::read_dir(dir.path()).unwrap().collect();
            assert_eq!(names.len(), 1, "{names:?}");
        }
    }

    #[test]
    fn wrong_content_never_gets_the_name_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let all = content();
        let mut wrong = all.to_vec();
        wrong[500_000] ^= 1;
        let mut file = PartialFile::open(dir.path(), "file", ID, None).unwrap();
        file.write(&chunk(&wrong.into(), 0..all.len())).unwrap();
        file.sync().unwrap();
        let error = file
            .finish(done(&all, DigestAlgorithm::Blake3))
            .unwrap_err();
        assert!(
            matches!(error, FinishError::DigestMismatch { .. }),
            "{error}"
        );
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn another_transfer_of_the_same_name_begins_anew() {
        let dir = tempfile::tempdir().unwrap();
        let all = content();
        let mut file = PartialFile::open(dir.path(), "file", ID, None).unwrap();
        file.write(&chunk(&all, 0..1000)).unwrap();
        file.sync().unwrap();
        drop(file);
        let other = TransferId([2; 16]);
        let file = PartialFile::open(dir.path(), "file", other, None).unwrap();
        assert!(file.durable().is_empty());
    }

    #[test]
    fn names_with_a_path_are_rejected() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["", ".", "..", "a/b", "/a", "../a", "a\0b"] {
            let error = PartialFile::open(dir.path(), name, ID, None).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{name:?}");
        }
    }
}
