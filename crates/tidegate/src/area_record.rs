//! The record of storage areas: the directories beside the store in which the node has stored data,
//! so that the loss of a whole directory is detected.
//!
//! The file `store/areas` is a line of JSON, `{"areas":{"telemetry":"PATH",...}}`, and a line with
//! the CRC-32C of the first in hexadecimal digits. It is created before the store, and an area is
//! added after its directory was created. The record never requires a directory that a crash may have prevented.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use disk::CheckedLineState;
use serde::{Deserialize, Serialize};

const FILE: &str = "areas";

/// The directories that belong to the store.
pub(crate) struct AreaRecord {
    store: PathBuf,
    areas: [(&'static str, PathBuf); 4],
}

#[derive(Default, Serialize, Deserialize)]
struct RecordedAreas {
    /// The recorded directory of each area.
    areas: BTreeMap<String, PathBuf>,
}

enum AreaRecordState {
    Missing,
    Damaged,
    Whole(RecordedAreas),
}

impl AreaRecord {
    pub(crate) fn new(data_dir: &Path, telemetry: Option<&Path>) -> Self {
        let beside = |name: &str| data_dir.join(name);
        let telemetry = telemetry.map_or_else(|| beside("telemetry"), Path::to_owned);
        Self {
            store: beside("store"),
            areas: [
                ("telemetry", telemetry),
                ("mailboxes", beside("mailboxes")),
                ("sinks", beside("sinks")),
                ("files", beside("files")),
            ],
        }
    }

    fn path(&self) -> PathBuf {
        self.store.join(FILE)
    }

    fn read(&self) -> anyhow::Result<AreaRecordState> {
        let path = self.path();
        let read = disk::read_checked_line(&path);
        let read = read.with_context(|| format!("cannot read {}", path.display()))?;
        Ok(match read {
            CheckedLineState::Missing => AreaRecordState::Missing,
            CheckedLineState::Damaged => AreaRecordState::Damaged,
            CheckedLineState::Intact(line) => {
                serde_json::from_str(&line).map_or(AreaRecordState::Damaged, AreaRecordState::Whole)
            }
        })
    }

    fn write(&self, recorded: &RecordedAreas) -> anyhow::Result<()> {
        let line = serde_json::to_string(recorded).context("cannot encode a path")?;
        disk::create_private_dir(&self.store)
            .and_then(|()| disk::write_checked_line(&self.store, FILE, &line))
            .with_context(|| format!("cannot write {}", self.path().display()))
    }

    /// Checks for missing areas before a node opens its store.
    ///
    /// # Errors
    /// If a whole area is missing.
    pub(crate) fn verify(&self) -> anyhow::Result<()> {
        if !self.store.join("version").exists() && !self.store.join("state").exists() {
            if let Some((_, path)) = self.areas.iter().find(|(_, path)| has_files(path)) {
                bail!(
                    "{} is missing or empty, although {} contains data that belongs to it; restore a backup of the data \
                     directory, or move {} away to begin anew",
                    self.store.display(),
                    path.display(),
                    path.display()
                );
            }
            return self.write(&RecordedAreas::default());
        }
        match self.read()? {
            AreaRecordState::Whole(recorded) => match self.missing(&recorded).first() {
                Some(problem) => bail!(
                    "{problem}. Restore a backup, or accept the loss: run `tidegate store repair`, which lists what is lost"
                ),
                None => Ok(()),
            },
            reading => {
                let problem = self.problem_of(&reading).unwrap_or_default();
                tracing::error!(problem, "the record of storage areas is damaged");
                Ok(())
            }
        }
    }

    /// Records the areas that exist now.
    pub(crate) fn update(&self) -> anyhow::Result<()> {
        let present = self.areas.iter().filter(|(_, path)| has_files(path));
        let areas = present.map(|(name, path)| ((*name).to_owned(), path.clone()));
        let areas: BTreeMap<_, _> = areas.collect();
        if let AreaRecordState::Whole(recorded) = self.read()?
            && recorded.areas == areas
        {
            return Ok(());
        }
        self.write(&RecordedAreas { areas })
    }

    /// Describes missing areas.
    pub(crate) fn check(&self) -> anyhow::Result<Vec<String>> {
        let reading = self.read()?;
        let problems = match &reading {
            AreaRecordState::Whole(recorded) => self.missing(recorded),
            _ => Vec::from_iter(self.problem_of(&reading)),
        };
        Ok(problems)
    }

    /// Accepts that areas are missing, and describes them.
    pub(crate) fn repair(&self) -> anyhow::Result<Vec<String>> {
        let problems = self.check()?;
        if !problems.is_empty() {
            self.update()?;
        }
        Ok(problems)
    }

    fn problem_of(&self, reading: &AreaRecordState) -> Option<String> {
        let what = match reading {
            AreaRecordState::Missing => "is missing",
            AreaRecordState::Damaged => "is damaged",
            AreaRecordState::Whole(_) => return None,
        };
        Some(format!(
            "{} {what}: whether a whole directory of telemetry, mailboxes, sinks or files was lost is unknown. The next \
             start, or `tidegate store repair`, writes it anew",
            self.path().display()
        ))
    }

    fn missing(&self, recorded: &RecordedAreas) -> Vec<String> {
        let mut problems = Vec::new();
        for (name, path) in &self.areas {
            let Some(before) = recorded.areas.get(*name) else {
                continue;
            };
            // Each area always contains files.
            if has_files(path) {
                continue;
            }
            let lost = match *name {
                "telemetry" => "the telemetry of all devices is lost with it",
                "mailboxes" => "acknowledged messages of devices that waited in it are lost",
                "files" => "the files that devices and people sent are lost with it",
                _ => "rows in disk queues and dead letters are lost with it",
            };
            let moved = match before == path {
                true => String::new(),
                false => format!(" (in {})", before.display()),
            };
            problems.push(format!(
                "{} is missing or empty, although this node has stored data in it{moved}: {lost}",
                path.display()
            ));
        }
        problems
    }
}

/// Whether a directory or its subdirectories contain a file.
fn has_files(directory: &Path) -> bool {
    let Ok(entries) = fs::read_dir(directory) else {
        return false;
    };
    entries.filter_map(Result::ok).any(|entry| {
        let path = entry.path();
        !path.is_dir() || has_files(&path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(dir: &Path) -> AreaRecord {
        let record = AreaRecord::new(dir, None);
        record.verify().unwrap();
        fs::write(record.store.join("version"), "").unwrap();
        for (_, path) in &record.areas {
            fs::create_dir_all(path).unwrap();
        }
        for name in [
            "telemetry/version",
            "mailboxes/marks",
            "sinks/inventory",
            "files/version",
        ] {
            fs::write(dir.join(name), "").unwrap();
        }
        record.update().unwrap();
        record
    }

    #[test]
    fn a_missing_area_is_refused_until_the_loss_is_accepted() {
        for name in ["telemetry", "mailboxes", "sinks", "files"] {
            let dir = tempfile::tempdir().unwrap();
            let record = node(dir.path());
            record.verify().unwrap();
            assert!(record.check().unwrap().is_empty());
            fs::remove_dir_all(dir.path().join(name)).unwrap();
            let error = record.verify().unwrap_err().to_string();
            assert!(error.contains(&format!("/{name} is missing")), "{error}");
            assert!(error.contains("tidegate store repair"), "{error}");
            assert_eq!(record.check().unwrap().len(), 1);
            assert_eq!(record.repair().unwrap().len(), 1);
            record.verify().unwrap();
            assert!(record.check().unwrap().is_empty());
        }
    }

    #[test]
    fn a_missing_store_is_refused_beside_its_areas() {
        let dir = tempfile::tempdir().unwrap();
        let record = node(dir.path());
        fs::remove_dir_all(dir.path().join("store")).unwrap();
        let error = record.verify().unwrap_err().to_string();
        assert!(
            error.contains("/store is missing") && error.contains("restore a backup"),
            "{error}"
        );
        assert!(!dir.path().join("store").exists(), "nothing is changed");
    }

    #[test]
    fn every_changed_byte_of_the_record_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let record = node(dir.path());
        let path = record.path();
        let bytes = fs::read(&path).unwrap();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 4;
            fs::write(&path, &changed).unwrap();
            assert_eq!(record.check().unwrap().len(), 1, "byte {at}");
            fs::write(&path, &bytes[..at]).unwrap();
            assert_eq!(record.check().unwrap().len(), 1, "cut at {at}");
        }
        fs::remove_file(&path).unwrap();
        assert_eq!(record.check().unwrap().len(), 1);
        record.verify().unwrap();
        record.update().unwrap();
        assert!(record.check().unwrap().is_empty());
    }
}
