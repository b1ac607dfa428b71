//! Deletions that the standby does not have on disk yet, in a file, so that they are not lost when the node restarts.
//!
//! The file has lines: CRC-32C of the rest in eight hexadecimal digits, a space, JSON. The first one has the number of the
//! last deletion before the file. Numbers ascend and are never used again.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// More deletions are not kept: the copy is then made anew.
const MAX_DELETIONS: usize = 10_000;
const FILE: &str = "deletions";

/// A deletion of the values of some keys, or of all, in [`from_ms`, `to_ms`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RecordedDeletion {
    pub(crate) number: u64,
    /// Numbers of this node.
    pub(crate) device: u32,
    pub(crate) keys: Option<Vec<u32>>,
    pub(crate) from_ms: i64,
    pub(crate) to_ms: i64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum JournalLine {
    Last(u64),
    Deletion(RecordedDeletion),
    /// Some deletions are not in the file.
    Incomplete,
}

pub(crate) struct DeletionJournal {
    directory: PathBuf,
    file: File,
    entries: VecDeque<RecordedDeletion>,
    last: u64,
    is_incomplete: bool,
}

fn encode(line: &JournalLine) -> Vec<u8> {
    let json = serde_json::to_string(line).expect("the line can be written as JSON");
    format!("{:08x} {json}\n", crc32c::crc32c(json.as_bytes())).into_bytes()
}

fn decode(line: &str) -> Option<JournalLine> {
    let (crc, json) = line.split_at_checked(8)?;
    let json = json.strip_prefix(' ')?;
    if u32::from_str_radix(crc, 16).ok()? != crc32c::crc32c(json.as_bytes()) {
        return None;
    }
    serde_json::from_str(json).ok()
}

impl DeletionJournal {
    /// Opens the file in this directory; creates it if it does not exist.
    ///
    /// # Errors
    /// If the file system returns an error.
    pub(crate) fn open(directory: &Path) -> io::Result<Self> {
        let bytes = match std::fs::read(directory.join(FILE)) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        let text = String::from_utf8_lossy(&bytes);
        let (mut entries, mut last, mut is_incomplete) = (VecDeque::new(), 0, false);
        for (at, line) in text.split_inclusive('\n').enumerate() {
            match line.strip_suffix('\n').map(decode) {
                Some(Some(JournalLine::Last(number))) if at == 0 => last = number,
                Some(Some(JournalLine::Deletion(deletion))) if deletion.number > last => {
                    last = deletion.number;
                    entries.push_back(deletion);
                }
                Some(Some(JournalLine::Incomplete)) => is_incomplete = true,
                // The end of the file after a crash: the deletion was not made.
                None => {}
                Some(_) => is_incomplete = true,
            }
        }
        // Numbers of a file that was lost are not used again either.
        last = last.max(match entries.is_empty() && at_start(&text) {
            true => wall_clock::now_ms(),
            false => 0,
        });
        let file = write_file(directory, &entries, last, is_incomplete)?;
        Ok(Self {
            directory: directory.to_owned(),
            file,
            entries,
            last,
            is_incomplete,
        })
    }

    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// Whether deletions are missing, so that the copy has to be made anew.
    pub(crate) fn is_incomplete(&self) -> bool {
        self.is_incomplete
    }

    /// Records a deletion before it is made, and returns its number.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn add(
        &mut self,
        device: u32,
        keys: Option<Vec<u32>>,
        (from_ms, to_ms): (i64, i64),
    ) -> io::Result<u64> {
        let number = self.last + 1;
        if self.is_incomplete {
            self.last = number;
            return Ok(number);
        }
        if self.entries.len() >= MAX_DELETIONS {
            self.append(&JournalLine::Incomplete)?;
            self.entries.clear();
            (self.is_incomplete, self.last) = (true, number);
            return Ok(number);
        }
        let deletion = RecordedDeletion {
            number,
            device,
            keys,
            from_ms,
            to_ms,
        };
        self.append(&JournalLine::Deletion(deletion.clone()))?;
        self.entries.push_back(deletion);
        self.last = number;
        Ok(number)
    }

    fn append(&mut self, line: &JournalLine) -> io::Result<()> {
        let written = self.file.write_all(&encode(line));
        let written = written.and_then(|()| self.file.sync_data());
        if written.is_err() {
            // A part of the line may be there, and another one must not follow it.
            self.rewrite()?;
        }
        written
    }

    /// Takes back the last deletion, which was not made.
    pub(crate) fn retract(&mut self, number: u64) {
        if self
            .entries
            .pop_back_if(|last| last.number == number)
            .is_some()
            && let Err(error) = self.rewrite()
        {
            tracing::error!(%error, "a deletion that was not made stays in the list for the copy of the telemetry");
        }
    }

    /// Deletions with higher numbers than `after`, up to `last`.
    pub(crate) fn after(&self, after: u64, last: u64) -> VecDeque<RecordedDeletion> {
        let wanted = |deletion: &&RecordedDeletion| (after + 1..=last).contains(&deletion.number);
        self.entries.iter().filter(wanted).cloned().collect()
    }

    /// The standby has the deletions up to this number.
    pub(crate) fn confirm(&mut self, number: u64) -> io::Result<()> {
        let before = self.entries.len();
        self.entries.retain(|deletion| deletion.number > number);
        match before == self.entries.len() {
            true => Ok(()),
            false => self.rewrite(),
        }
    }

    /// A new copy begins, to which no deletion applies.
    pub(crate) fn clear(&mut self) -> io::Result<()> {
        self.entries.clear();
        self.is_incomplete = false;
        self.rewrite()
    }

    fn rewrite(&mut self) -> io::Result<()> {
        let (entries, last) = (&self.entries, self.last);
        self.file = write_file(&self.directory, entries, last, self.is_incomplete)?;
        Ok(())
    }
}

fn at_start(text: &str) -> bool {
    let first = text.split('\n').next().unwrap_or_default();
    !matches!(decode(first), Some(JournalLine::Last(_)))
}

fn write_file(
    directory: &Path,
    entries: &VecDeque<RecordedDeletion>,
    last: u64,
    is_incomplete: bool,
) -> io::Result<File> {
    let before = entries.front().map_or(last, |first| first.number - 1);
    let mut bytes = encode(&JournalLine::Last(before));
    for deletion in entries {
        bytes.extend(encode(&JournalLine::Deletion(deletion.clone())));
    }
    if is_incomplete {
        bytes.extend(encode(&JournalLine::Incomplete));
    }
    disk::replace_file(directory, FILE, &bytes)?;
    let mut options = OpenOptions::new();
    options.append(true).mode(0o600);
    options.open(directory.join(FILE))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(journal: &DeletionJournal) -> Vec<u64> {
        let all = journal.after(0, u64::MAX - 1);
        all.iter().map(|deletion| deletion.number).collect()
    }

    #[test]
    fn deletions_survive_a_restart_until_they_are_confirmed() {
        let directory = tempfile::tempdir().unwrap();
        let mut journal = DeletionJournal::open(directory.path()).unwrap();
        let first = journal.add(1, None, (i64::MIN, i64::MAX)).unwrap();
        let second = journal.add(2, Some(vec![3, 4]), (5, 6)).unwrap();
        let third = journal.add(3, None, (7, 8)).unwrap();
        assert_eq!([second, third], [first + 1, first + 2]);
        journal.retract(third);
        drop(journal);
        let path = directory.path().join(FILE);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.extend_from_slice(b"0000");
        std::fs::write(&path, bytes).unwrap();
        let mut journal = DeletionJournal::open(directory.path()).unwrap();
        assert!(!journal.is_incomplete());
        assert_eq!(numbers(&journal), [first, second]);
        assert_eq!(journal.after(first, second)[0].keys, Some(vec![3, 4]));
        journal.confirm(first).unwrap();
        assert_eq!(numbers(&journal), [second]);
        journal.confirm(second).unwrap();
        drop(journal);
        let mut journal = DeletionJournal::open(directory.path()).unwrap();
        assert!(journal.add(1, None, (0, 1)).unwrap() > second);
    }

    #[test]
    fn a_damaged_or_overflowing_file_is_incomplete_until_it_is_cleared() {
        let directory = tempfile::tempdir().unwrap();
        let mut journal = DeletionJournal::open(directory.path()).unwrap();
        for device in 0..3 {
            journal.add(device, None, (0, 1)).unwrap();
        }
        let path = directory.path().join(FILE);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace("\"device\":1", "\"device\":7")).unwrap();
        let mut journal = DeletionJournal::open(directory.path()).unwrap();
        assert!(journal.is_incomplete());
        let last = journal.last();
        journal.clear().unwrap();
        let mut journal = DeletionJournal::open(directory.path()).unwrap();
        assert!(!journal.is_incomplete());
        assert_eq!(journal.add(0, None, (0, 1)).unwrap(), last + 1);
        for device in 0..MAX_DELETIONS as u32 {
            journal.entries.push_back(RecordedDeletion {
                number: last + 2 + u64::from(device),
                device,
                keys: None,
                from_ms: 0,
                to_ms: 1,
            });
        }
        journal.add(0, None, (0, 1)).unwrap();
        assert!(journal.is_incomplete());
        let journal = DeletionJournal::open(directory.path()).unwrap();
        assert!(journal.is_incomplete());
    }
}
