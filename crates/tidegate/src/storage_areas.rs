//! The storage areas of a data directory beside the store: telemetry, mailboxes of devices, disk
//! queues and dead letters of sinks, files of devices and people.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::area_record::AreaRecord;

/// The directories of the areas.
pub(crate) struct StorageAreas {
    record: AreaRecord,
    telemetry: PathBuf,
    mailboxes: PathBuf,
    sinks: PathBuf,
    queues: PathBuf,
    dead_letters: PathBuf,
    files: PathBuf,
    settings: series::SeriesConfig,
}

/// The contents of the areas and their damage.
#[derive(Default)]
pub(crate) struct AreasCheckReport {
    /// Contents, one line per area; `problems` describes damage.
    pub(crate) contents: Vec<String>,
    pub(crate) problems: Vec<String>,
}

impl StorageAreas {
    pub(crate) fn new(data_dir: &Path, telemetry: Option<PathBuf>) -> Self {
        Self {
            record: AreaRecord::new(data_dir, telemetry.as_deref()),
            telemetry: telemetry.unwrap_or_else(|| data_dir.join("telemetry")),
            mailboxes: data_dir.join("mailboxes"),
            sinks: data_dir.join("sinks"),
            queues: data_dir.join("sinks").join("queues"),
            dead_letters: data_dir.join("sinks").join("dead-letters"),
            files: data_dir.join("files"),
            settings: series::SeriesConfig::default(),
        }
    }

    /// Reads everything and changes nothing.
    pub(crate) fn check(&self, progress: &mut dyn FnMut(&str)) -> anyhow::Result<AreasCheckReport> {
        let mut all = AreasCheckReport {
            problems: self.record.check()?,
            ..AreasCheckReport::default()
        };
        if self.telemetry.is_dir() {
            progress("reading the telemetry");
            self.check_telemetry(&mut all)?;
        }
        if self.mailboxes.is_dir() {
            progress("reading the mailboxes of devices");
            let checked = devices::ingest::check_mailboxes(&self.mailboxes);
            let cannot = || format!("cannot read {}", self.mailboxes.display());
            let (messages, problems) = checked.with_context(cannot)?;
            all.contents
                .push(format!("mailboxes: {messages} messages wait"));
            all.problems.extend(problems);
        }
        // Without the directory, all of it is missing.
        if self.sinks.is_dir() {
            let checked = connect::check_sink_inventory(&self.sinks);
            let cannot = || format!("cannot read {}", self.sinks.display());
            all.problems.extend(checked.with_context(cannot)?);
        }
        for directory in directories(&self.queues)? {
            progress("reading the disk queues of sinks");
            let cannot = || format!("cannot read {}", directory.display());
            let (rows, problems) = connect::check_disk_queue(&directory).with_context(cannot)?;
            let name = directory.file_name().unwrap_or_default().to_string_lossy();
            all.contents.push(format!("sink {name}: {rows} rows wait"));
            all.problems.extend(problems);
        }
        if self.dead_letters.is_dir() {
            progress("reading the dead letters of sinks");
            let cannot = || format!("cannot read {}", self.dead_letters.display());
            let checked = connect::check_dead_letters(&self.dead_letters);
            let (letters, problems) = checked.with_context(cannot)?;
            all.contents.push(format!("dead letters: {letters}"));
            all.problems.extend(problems);
        }
        if self.files.is_dir() {
            progress("reading the files of devices and people");
            let cannot = || format!("cannot read {}", self.files.display());
            let (files, problems) = transfer::check_files(&self.files).with_context(cannot)?;
            all.contents.push(format!("files: {files}"));
            all.problems.extend(problems);
        }
        Ok(all)
    }

    fn check_telemetry(&self, all: &mut AreasCheckReport) -> anyhow::Result<()> {
        match series::check(&self.telemetry, &self.settings) {
            Ok(checked) => {
                all.contents.push(format!(
                    "telemetry: {} keys, {} rows in {} files, {} rows in the log",
                    checked.keys, checked.rows, checked.segments, checked.log_rows
                ));
                all.problems.extend(checked.problems);
                Ok(())
            }
            Err(error @ series::SeriesOpenError::Version { .. }) => {
                all.problems.push(error.to_string());
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Keeps the readable part of the telemetry. Mailboxes and queues are repaired by the next
    /// start.
    pub(crate) fn repair(
        &self,
        progress: &mut dyn FnMut(&str),
    ) -> anyhow::Result<series::SeriesRepairReport> {
        let mut repaired = series::SeriesRepairReport::default();
        if self.telemetry.is_dir() {
            progress("reading the telemetry");
            repaired = series::repair(&self.telemetry, &self.settings)?;
        }
        repaired.lost.extend(self.record.repair()?);
        Ok(repaired)
    }
}

/// The subdirectories of a directory that may be missing.
fn directories(parent: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    if parent.is_dir() {
        let entries = fs::read_dir(parent);
        for entry in entries.with_context(|| format!("cannot read {}", parent.display()))? {
            found.push(entry?.path());
        }
    }
    found.retain(|path| path.is_dir());
    found.sort();
    Ok(found)
}
