//! Where the files of sinks are, and the inventory that shows whether a whole disk queue or file of dead letters was lost.
//!
//! `queues/NAME` is the directory of a disk queue; `dead-letters/NAME.jsonl` and `NAME.marks` are dead letters. The file
//! `inventory` is a [line of JSON with a checksum](disk::write_checked_line): the names of both kinds that must exist.
//!
//! Invariant: a name is added after its files are durable, and removed before they are deleted. Therefore neither a crash nor a
//! power failure makes sound files look lost.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use disk::CheckedLineState;
use serde::{Deserialize, Serialize};

use super::{dead_letters, disk_queue};

const INVENTORY: &str = "inventory";
const QUEUES: &str = "queues";
const DEAD_LETTERS: &str = "dead-letters";

/// Names, encoded as file names, of the sinks whose files exist.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct InventoryRecord {
    queues: BTreeSet<String>,
    dead_letters: BTreeSet<String>,
}

/// The inventory of a node's sinks.
pub(crate) struct SinkInventory {
    directory: PathBuf,
    written: Mutex<WrittenInventory>,
}

/// The record in the file; `None` if writing it failed.
type WrittenInventory = Option<InventoryRecord>;

/// The files of one sink.
#[derive(Clone)]
pub(crate) struct SinkFiles {
    inventory: Arc<SinkInventory>,
    /// Name of the sink, encoded as a file name.
    name: String,
}

/// Reports queues and dead letters of the sinks in a directory that are missing as a whole. Changes nothing.
///
/// # Errors
/// I/O errors of the file system.
pub fn check_sink_inventory(directory: &Path) -> io::Result<Vec<String>> {
    Ok(examine(directory)?.problems)
}

struct InventoryExamination {
    recorded: Option<InventoryRecord>,
    present: InventoryRecord,
    problems: Vec<String>,
}

fn examine(directory: &Path) -> io::Result<InventoryExamination> {
    let present = InventoryRecord::of_directory(directory)?;
    let path = directory.join(INVENTORY);
    let (recorded, what): (Option<InventoryRecord>, _) = match disk::read_checked_line(&path)? {
        CheckedLineState::Intact(line) => (serde_json::from_str(&line).ok(), "is damaged"),
        CheckedLineState::Damaged => (None, "is damaged"),
        CheckedLineState::Missing => (None, "is missing"),
    };
    let mut problems = Vec::new();
    match &recorded {
        Some(recorded) => recorded.report_missing(&present, directory, &mut problems),
        // Nothing was stored yet.
        None if what == "is missing" && present == InventoryRecord::default() => {}
        None => problems.push(format!(
            "{} {what}: lost disk queues and dead letters of sinks cannot be detected. The next start writes it anew",
            path.display()
        )),
    }
    Ok(InventoryExamination {
        recorded,
        present,
        problems,
    })
}

impl InventoryRecord {
    fn of_directory(directory: &Path) -> io::Result<Self> {
        let mut found = Self::default();
        let queues = directory.join(QUEUES);
        let entries = match fs::read_dir(&queues) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            entries => Some(entries?),
        };
        for entry in entries.into_iter().flatten() {
            let entry = entry?;
            if entry.file_type()?.is_dir() && disk_queue::has_files(&entry.path())? {
                let name = entry.file_name().to_string_lossy().into_owned();
                found.queues.insert(name);
            }
        }
        for path in dead_letters::files_in(&directory.join(DEAD_LETTERS))? {
            let name = path.file_stem().unwrap_or_default();
            found
                .dead_letters
                .insert(name.to_string_lossy().into_owned());
        }
        Ok(found)
    }

    fn report_missing(&self, present: &Self, directory: &Path, problems: &mut Vec<String>) {
        for name in self.queues.difference(&present.queues) {
            let path = queue_directory(directory, name);
            problems.push(format!(
                "{} is missing or empty, although it was the disk queue of a sink: rows that waited in it are lost",
                path.display()
            ));
        }
        for name in self.dead_letters.difference(&present.dead_letters) {
            let path = dead_letters_path(directory, name);
            problems.push(format!(
                "{} and its marks are missing: dead letters in it are lost",
                path.display()
            ));
        }
    }
}

impl SinkInventory {
    /// Opens the inventory in the directory of the sinks, which is created if needed. Logs what is missing.
    pub(crate) fn open(directory: &Path) -> Arc<Self> {
        let path = directory.join(INVENTORY);
        let opening = disk::create_private_dir(directory).and_then(|()| examine(directory));
        let (recorded, present) = match opening {
            Ok(examined) => {
                for problem in examined.problems {
                    tracing::error!(problem, "files of sinks are lost or damaged");
                }
                (examined.recorded, Some(examined.present))
            }
            Err(error) => {
                tracing::error!(
                    path = %path.display(),
                    %error,
                    "sink inventory could not be read; lost disk queues and dead letters of sinks are not detected"
                );
                (None, None)
            }
        };
        let inventory = Self {
            directory: directory.to_owned(),
            written: Mutex::new(recorded),
        };
        if let Some(present) = present
            && let Err(error) = inventory.change(|record| *record = present)
        {
            tracing::error!(path = %path.display(), %error, "sink inventory could not be written");
        }
        Arc::new(inventory)
    }

    /// The files of the sink with this name.
    pub(crate) fn files(self: &Arc<Self>, sink: &str) -> SinkFiles {
        SinkFiles {
            inventory: self.clone(),
            name: file_name(sink),
        }
    }

    /// Changes the record, durably.
    fn change(&self, change: impl FnOnce(&mut InventoryRecord)) -> io::Result<()> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let mut record = match &*written {
            Some(record) => record.clone(),
            None => InventoryRecord::of_directory(&self.directory)?,
        };
        change(&mut record);
        if written.as_ref() == Some(&record) {
            return Ok(());
        }
        *written = None;
        // The record must not be durable before the directories that it requires.
        disk::sync_dir(&self.directory)?;
        let line = serde_json::to_string(&record).expect("its fields are texts");
        disk::write_checked_line(&self.directory, INVENTORY, &line)?;
        *written = Some(record);
        Ok(())
    }

    /// Removes names from the record, then deletes their files. On a full disk, only the deletion makes room for the record.
    fn change_and_delete(
        &self,
        deleting: impl FnOnce() -> io::Result<()>,
        change: impl Fn(&mut InventoryRecord),
    ) -> io::Result<()> {
        let changed = self.change(&change);
        deleting()?;
        changed.or_else(|_| self.change(&change))
    }
}

impl SinkFiles {
    pub(crate) fn queue_directory(&self) -> PathBuf {
        queue_directory(&self.inventory.directory, &self.name)
    }

    pub(crate) fn dead_letters_path(&self) -> PathBuf {
        dead_letters_path(&self.inventory.directory, &self.name)
    }

    /// Records that the disk queue exists. Its own directory must be synced.
    pub(crate) fn record_queue(&self) -> io::Result<()> {
        disk::sync_dir(&self.inventory.directory.join(QUEUES))?;
        self.inventory.change(|record| {
            record.queues.insert(self.name.clone());
        })
    }

    /// Deletes the disk queue, if there is one.
    pub(crate) fn remove_queue(&self) -> io::Result<()> {
        let deleting = || match fs::remove_dir_all(self.queue_directory()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
        self.inventory.change_and_delete(deleting, |record| {
            record.queues.remove(&self.name);
        })
    }

    /// Records that the file of dead letters exists. Its directory must be synced.
    pub(crate) fn record_dead_letters(&self) -> io::Result<()> {
        self.inventory.change(|record| {
            record.dead_letters.insert(self.name.clone());
        })
    }

    /// Deletes the file of dead letters, if there is one.
    pub(crate) fn remove_dead_letters(&self) -> io::Result<()> {
        let deleting = || dead_letters::remove(&self.dead_letters_path());
        self.inventory.change_and_delete(deleting, |record| {
            record.dead_letters.remove(&self.name);
        })
    }
}

fn queue_directory(directory: &Path, name: &str) -> PathBuf {
    directory.join(QUEUES).join(name)
}

fn dead_letters_path(directory: &Path, name: &str) -> PathBuf {
    directory.join(DEAD_LETTERS).join(format!("{name}.jsonl"))
}

/// Encodes the name of a sink as a file name.
fn file_name(name: &str) -> String {
    let mut file = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => file.push(byte.into()),
            _ => file.push_str(&format!("%{byte:02x}")),
        }
    }
    // File systems take no names longer than 255 bytes.
    if file.len() > 200 {
        let sum = crc32c::crc32c(name.as_bytes());
        file.truncate(180);
        file.push_str(&format!("-{sum:08x}"));
    }
    file
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{DeadLetterSettings, DiskQueueSettings};

    /// Creates the files of two sinks: one has a disk queue.
    fn make(directory: &Path) -> (SinkFiles, SinkFiles) {
        let inventory = SinkInventory::open(directory);
        let (orders, audit) = (inventory.files("or/ders"), inventory.files("audit"));
        for files in [&orders, &audit] {
            let path = files.dead_letters_path();
            let settings = DeadLetterSettings::default();
            drop(dead_letters::DeadLetters::open(Some(&path), &settings).unwrap());
            files.record_dead_letters().unwrap();
        }
        let settings = DiskQueueSettings::default();
        drop(disk_queue::DiskQueue::open(&orders.queue_directory(), &settings).unwrap());
        orders.record_queue().unwrap();
        (orders, audit)
    }

    fn check(directory: &Path) -> Vec<String> {
        check_sink_inventory(directory).unwrap()
    }

    #[test]
    fn a_missing_queue_or_file_is_reported_until_a_start() {
        type Removal = fn(&SinkFiles);
        let removals: [(&str, Removal, usize); 5] = [
            (
                "queues/or%2fders is missing or empty",
                |files| fs::remove_dir_all(files.queue_directory()).unwrap(),
                1,
            ),
            (
                "queues/or%2fders is missing or empty",
                |files| {
                    let directory = files.queue_directory();
                    fs::remove_dir_all(&directory).unwrap();
                    fs::create_dir(&directory).unwrap();
                },
                1,
            ),
            (
                "dead-letters/or%2fders.jsonl and its marks are missing",
                |files| dead_letters::remove(&files.dead_letters_path()).unwrap(),
                1,
            ),
            (
                "dead-letters/audit.jsonl and its marks are missing",
                |files| {
                    let path = files.dead_letters_path();
                    fs::remove_dir_all(path.parent().unwrap()).unwrap();
                },
                2,
            ),
            (
                "inventory is missing",
                |files| fs::remove_file(files.inventory.directory.join(INVENTORY)).unwrap(),
                1,
            ),
        ];
        for (expected, remove, count) in removals {
            let directory = tempfile::tempdir().unwrap();
            let (orders, _) = make(directory.path());
            assert_eq!(check(directory.path()), Vec::<String>::new());
            remove(&orders);
            let problems = check(directory.path());
            assert_eq!(problems.len(), count, "{problems:?}");
            assert!(
                problems.iter().any(|problem| problem.contains(expected)),
                "{problems:?}"
            );
            // A start reports it as well, and records what is left.
            drop(SinkInventory::open(directory.path()));
            assert_eq!(check(directory.path()), Vec::<String>::new());
        }
    }

    #[test]
    fn deleted_files_and_files_that_never_were_are_not_missed() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(check(directory.path()), Vec::<String>::new());
        let (orders, audit) = make(directory.path());
        audit.remove_queue().unwrap();
        audit.remove_dead_letters().unwrap();
        assert!(!audit.dead_letters_path().exists());
        assert_eq!(check(directory.path()), Vec::<String>::new());
        orders.remove_queue().unwrap();
        assert!(!orders.queue_directory().exists() && orders.dead_letters_path().exists());
        assert_eq!(check(directory.path()), Vec::<String>::new());
        let left = InventoryRecord::of_directory(directory.path()).unwrap();
        let reopened = SinkInventory::open(directory.path());
        assert_eq!(reopened.written.lock().unwrap().as_ref(), Some(&left));
    }

    #[test]
    fn the_inventory_lists_files_again_after_a_failed_write() {
        let directory = tempfile::tempdir().unwrap();
        let (orders, audit) = make(directory.path());
        // A directory of this name prevents writing the file.
        let obstacle = directory.path().join("inventory.new");
        fs::create_dir(&obstacle).unwrap();
        orders.remove_queue().unwrap_err();
        assert!(!orders.queue_directory().exists(), "it makes room");
        fs::remove_dir(&obstacle).unwrap();
        audit.remove_dead_letters().unwrap();
        assert_eq!(check(directory.path()), Vec::<String>::new());
        dead_letters::remove(&orders.dead_letters_path()).unwrap();
        assert_eq!(check(directory.path()).len(), 1);
    }
}
