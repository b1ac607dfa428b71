//! Compares the directory of the keyed state with its mark, without changing anything.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::journal::{self, JournalScan, last_written};
use super::keyspace_files::{self, FileDamage, KEYSPACES, TableFile};
use super::lost_journals::{LostJournal, find_lost_journals};
use super::state_mark::{JournalMark, StateMark};

const VERSION: &str = "version";
const VERSION_BYTES: &[u8] = b"FJL\x03";

/// The end of the youngest journal, torn by a crash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TornEnd {
    pub(crate) path: PathBuf,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) detail: &'static str,
}

impl std::fmt::Display for TornEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} bytes from byte {} of {} on: {}",
            self.bytes,
            self.offset,
            self.path.display(),
            self.detail
        )
    }
}

/// Result of an examination.
#[derive(Debug, Default)]
pub(crate) struct StateExamination {
    /// Journals that differ from what was written.
    pub(crate) damaged_journals: Vec<FileDamage>,
    /// Other files that differ from what was written.
    pub(crate) other_damage: Vec<FileDamage>,
    pub(crate) torn_end: Option<TornEnd>,
    pub(crate) scans: Vec<JournalScan>,
    pub(crate) tables: Vec<TableFile>,
    /// Removed journals; tables must contain their content.
    removed_journals: Vec<JournalMark>,
    /// Those of them whose content no table has; found by [`compare_with_tables`](Self::compare_with_tables).
    pub(crate) lost_journals: Vec<LostJournal>,
}

impl StateExamination {
    /// The first damage, and whether a repair can fix it.
    pub(crate) fn first_damage(&self) -> Option<(&FileDamage, bool)> {
        let journal = self.damaged_journals.first().map(|damage| (damage, true));
        let lost = self.lost_journals.first().map(|lost| (&lost.damage, true));
        let other = self.other_damage.first().map(|damage| (damage, false));
        other.or(journal).or(lost)
    }

    /// All damage that was found.
    pub(crate) fn damage(&self) -> impl Iterator<Item = &FileDamage> {
        let lost = self.lost_journals.iter().map(|lost| &lost.damage);
        self.other_damage
            .iter()
            .chain(&self.damaged_journals)
            .chain(lost)
    }

    /// Finds lost journals, if nothing but journals is damaged.
    pub(crate) fn compare_with_tables(&mut self, state: &Path) {
        if !self.other_damage.is_empty() {
            return;
        }
        let cleared = self.scans.iter().flat_map(|scan| &scan.cleared);
        let cleared: BTreeSet<u64> = cleared.copied().collect();
        match find_lost_journals(state, &self.removed_journals, &cleared) {
            Ok(lost) => self.lost_journals = lost,
            Err(damage) => self.other_damage.push(damage),
        }
    }
}

/// Examines everything except tables. `mark`: `None` if the required content is unknown.
pub(crate) fn examine_state(
    state: &Path,
    mark: Option<&StateMark>,
) -> io::Result<StateExamination> {
    let mut examined = StateExamination::default();
    let is_made = mark.is_none_or(|mark| !mark.keyspaces.is_empty());
    if !state.exists() {
        if is_made {
            let detail = "the directory is missing";
            examined
                .other_damage
                .push(FileDamage::new(state.to_owned(), detail));
        }
        return Ok(examined);
    }
    let version = state.join(VERSION);
    match fs::read(&version) {
        Ok(bytes) if bytes == VERSION_BYTES => {}
        Ok(_) => examined.other_damage.push(FileDamage::new(
            version,
            "it does not say which layout the files have",
        )),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if is_made {
                examined
                    .other_damage
                    .push(FileDamage::new(version, "the file is missing"));
            }
        }
        Err(error) => return Err(error),
    }
    if is_made {
        examine_keyspaces(&state.join(KEYSPACES), mark, &mut examined)?;
    }
    let none = StateMark::default();
    examine_journals(state, mark.unwrap_or(&none), &mut examined)?;
    Ok(examined)
}

/// The keyspaces in a directory, without those whose creation was interrupted.
pub(crate) fn list_keyspaces(state: &Path) -> io::Result<BTreeSet<u64>> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(state.join(KEYSPACES))? {
        let entry = entry?;
        let id = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        if let Some(id) = id
            && entry.path().join(keyspace_files::CURRENT).exists()
        {
            found.insert(id);
        }
    }
    Ok(found)
}

/// Makes the directory entries of keyspaces durable.
pub(crate) fn sync_keyspaces(state: &Path, ids: &BTreeSet<u64>) -> io::Result<()> {
    let folder = state.join(KEYSPACES);
    for id in ids {
        disk::sync_dir(&folder.join(id.to_string()))?;
    }
    disk::sync_dir(&folder)
}

fn examine_keyspaces(
    folder: &Path,
    mark: Option<&StateMark>,
    examined: &mut StateExamination,
) -> io::Result<()> {
    let found = match folder.parent().map(list_keyspaces) {
        Some(Ok(found)) => found,
        Some(Err(error)) if error.kind() == io::ErrorKind::NotFound => {
            examined.other_damage.push(FileDamage::new(
                folder.to_owned(),
                "the directory is missing",
            ));
            return Ok(());
        }
        Some(Err(error)) => return Err(error),
        None => BTreeSet::new(),
    };
    let mut wanted = found;
    // Keyspaces without a file `current` are included; reading it then reports the missing file.
    wanted.extend(mark.iter().flat_map(|mark| &mark.keyspaces));
    if mark.is_none() {
        wanted.insert(0);
    }
    for id in wanted {
        match keyspace_files::list_tables(&folder.join(id.to_string())) {
            Ok(tables) => examined.tables.extend(tables),
            Err(damage) => examined.other_damage.push(damage),
        }
    }
    Ok(())
}

fn examine_journals(
    state: &Path,
    mark: &StateMark,
    examined: &mut StateExamination,
) -> io::Result<()> {
    let found = journal::list_journals(state)?;
    let youngest = found.last().map(|(id, _)| *id);
    for marked in &mark.journals {
        if found.iter().any(|(id, _)| *id == marked.id) {
            continue;
        }
        // A journal is removed only after a newer one was begun.
        if youngest.is_some_and(|youngest| youngest > marked.id) {
            examined.removed_journals.push(marked.clone());
        } else {
            let path = journal::journal_path(state, marked.id);
            examined
                .damaged_journals
                .push(FileDamage::new(path, "the file is missing"));
        }
    }
    if found.is_empty() && mark.journals.is_empty() && !mark.keyspaces.is_empty() {
        let path = journal::journal_path(state, 0);
        examined
            .damaged_journals
            .push(FileDamage::new(path, "the directory has no journal"));
    }
    for (id, path) in found {
        let file = File::open(&path)?;
        let len = file.metadata()?.len();
        let marked = mark.journals.iter().find(|marked| marked.id == id);
        let marked_bytes = marked.map_or(0, |marked| marked.bytes);
        let mut scan = JournalScan::new(id);
        let mut crc_at_mark = (marked_bytes == 0).then_some(0);
        let stop = scan.read_further(&file, len, &mut |scan| {
            if scan.end == marked_bytes {
                crc_at_mark = Some(scan.crc);
            }
        })?;
        let last = last_written(&file, scan.end)?;
        let bytes = last - scan.end;
        let detail = stop.unwrap_or("batches are missing from there on");
        if scan.end < marked_bytes {
            let detail = format!(
                "from byte {} on, of {marked_bytes} that were on disk: {detail}",
                scan.end
            );
            examined
                .damaged_journals
                .push(FileDamage::new(path, detail));
        } else if marked.is_some_and(|marked| crc_at_mark != Some(marked.crc)) {
            let detail = format!("the checksum of its first {marked_bytes} bytes is wrong");
            examined
                .damaged_journals
                .push(FileDamage::new(path, detail));
        } else if bytes > 0 && Some(id) != youngest {
            let detail = format!("from byte {} on: {detail}", scan.end);
            examined
                .damaged_journals
                .push(FileDamage::new(path, detail));
        } else if bytes > 0 {
            let offset = scan.end;
            examined.torn_end = Some(TornEnd {
                path,
                offset,
                bytes,
                detail,
            });
        }
        examined.scans.push(scan);
    }
    Ok(())
}
