//! Tools for the data directory of a stopped node: check, repair, compact.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::batch::StateKind;
use crate::config::StoreConfig;
use crate::directory;
use crate::error::{StoreOpenError, io_error};
use crate::handle::Store;
use crate::keyed_state::{KeyedState, REPLACE_ADVICE};
use crate::log::file_system::OsFileSystem;
use crate::log::log_mark::{self, LogMark, LogMarksFile};
use crate::log::recovery::{RecoveredLog, open_segment_files, recover_log};
use crate::log::segment_repair::repair_segments;
use crate::log::segments::segment_path;
use crate::objects::decode;
use crate::observer::StoreObserver;
use crate::queue::QueuePage;
pub use crate::repair_report::StoreRepairReport;
use crate::state::examination::{StateExamination, examine_state, list_keyspaces};
use crate::state::salvage_journal;
use crate::state::state_mark::StateMark;

/// Receives a description of each step, as text for people.
pub type ProgressObserver<'a> = dyn FnMut(&str) + 'a;

/// Content and problems of a store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreCheckReport {
    pub segments: u64,
    pub log_bytes: u64,
    /// Approximate live part of the log.
    pub live_bytes: u64,
    pub queued_messages: u64,
    pub queued_sessions: u64,
    /// Number of keys in each space, in the order of [`StateKind::ALL`].
    pub keys: [u64; StateKind::ALL.len()],
    pub objects: u64,
    /// Number of rows in each table, with its name.
    pub rows: Vec<(String, u64)>,
    pub keyed_bytes: u64,
    /// A torn end, which the next start cuts off.
    pub torn_end: Option<String>,
    /// Descriptions of unreadable data.
    pub problems: Vec<String>,
}

const NEXT_START_ADVICE: &str = "The next start, or `tidegate store repair`, writes it anew";

/// Reads and checks everything. The message log is not changed; the keyed state applies its own journal, as at a start.
pub fn check(
    dir: &Path,
    progress: &mut ProgressObserver<'_>,
) -> Result<StoreCheckReport, StoreOpenError> {
    let _lock = directory::lock_existing(dir)?;
    let mut checked = StoreCheckReport::default();
    progress("reading the message log");
    let log_mark = log_mark::read(dir)?;
    checked.problems.extend(
        log_mark
            .problem
            .map(|problem| format!("{problem}. {NEXT_START_ADVICE}")),
    );
    if let Err(error) = directory::check_queues_owner(dir, log_mark.queues_owner) {
        checked.problems.push(error.to_string());
    }
    let log = dir.join(directory::LOG);
    match recover_log(&log, &OsFileSystem, &log_mark.mark, &mut |_, _| Ok(())) {
        Ok(recovered) => {
            checked.segments = recovered.segments.len() as u64;
            checked.log_bytes = recovered.segments.iter().map(|segment| segment.used).sum();
            checked.live_bytes = recovered.index.live().bytes;
            checked.queued_messages = recovered.index.messages();
            checked.queued_sessions = recovered.index.sessions() as u64;
            checked.torn_end = recovered.truncation.map(|cut| cut.to_string());
        }
        Err(error) => checked.problems.push(error.to_string()),
    }
    progress("reading the keyed state and the configuration objects");
    if check_state_files(dir, &mut checked)?
        && let Err(error) = check_keyed(dir, &mut checked)
    {
        checked.problems.push(error.to_string());
    }
    Ok(checked)
}

/// Compares the files of the keyed state with their required content; `false` if they must not be opened.
fn check_state_files(dir: &Path, checked: &mut StoreCheckReport) -> Result<bool, StoreOpenError> {
    let state = dir.join(directory::STATE);
    let read = StateMark::read(dir)?;
    let unmarked = read
        .problem
        .map(|problem| format!("{problem}. {NEXT_START_ADVICE}"));
    checked.problems.extend(unmarked);
    let examined = examine_all(&state, read.mark.as_ref())?;
    let is_sound = examined.first_damage().is_none();
    for damage in examined.damage() {
        let path = damage.path.display();
        checked
            .problems
            .push(format!("{path} is damaged: {}", damage.detail));
    }
    if let Some(torn) = examined.torn_end {
        let before = checked.torn_end.take().map(|torn| format!("{torn}; "));
        checked.torn_end = Some(format!("{}{torn}", before.unwrap_or_default()));
    }
    Ok(is_sound)
}

/// Examines every file and reads all tables.
fn examine_all(state: &Path, mark: Option<&StateMark>) -> Result<StateExamination, StoreOpenError> {
    let mut examined = examine_state(state, mark).map_err(io_error("look at", state))?;
    let damaged = examined.tables.iter().map(|table| table.verify());
    examined
        .other_damage
        .extend(damaged.filter_map(Result::err));
    examined.compare_with_tables(state);
    Ok(examined)
}

fn check_keyed(dir: &Path, checked: &mut StoreCheckReport) -> Result<(), StoreOpenError> {
    let (keyed, _) = KeyedState::open(dir, StoreConfig::default().cache_bytes)?;
    let db = keyed.db()?;
    for (space, count) in StateKind::ALL.iter().zip(&mut checked.keys) {
        for item in db.keyspace(*space).iter() {
            match item.into_inner() {
                Ok(_) => *count += 1,
                Err(error) => {
                    checked.problems.push(format!("{space:?}: {error}"));
                    break;
                }
            }
        }
    }
    for item in db.objects.iter() {
        let object = match item.into_inner() {
            Ok((key, value)) => decode(&key, &value).map_err(|error| error.to_string()),
            Err(error) => Err(format!("configuration objects: {error}")),
        };
        match object {
            Ok(_) => checked.objects += 1,
            Err(problem) => checked.problems.push(problem),
        }
    }
    for (name, keyspace) in db.tables.list() {
        let mut count = 0;
        for item in keyspace.iter() {
            match item.into_inner() {
                Ok(_) => count += 1,
                Err(error) => {
                    checked.problems.push(format!("table {name}: {error}"));
                    break;
                }
            }
        }
        checked.rows.push((name.into(), count));
    }
    checked.keyed_bytes = db.disk_bytes();
    Ok(())
}

/// Keeps what is readable of a damaged log and of damaged journals of the keyed state. Damaged files stay under another name until
/// an operator removes them.
pub fn repair(
    dir: &Path,
    progress: &mut ProgressObserver<'_>,
) -> Result<StoreRepairReport, StoreOpenError> {
    let _lock = directory::lock_existing(dir)?;
    let mut repaired = repair_log(dir, progress)?;
    repair_state(dir, &mut repaired, progress)?;
    Ok(repaired)
}

/// Damage that [`repair`] leaves, or after which a node would run without users, permissions or devices, or with an empty message
/// log. Changes nothing.
pub fn find_unrepairable(dir: &Path) -> Result<Vec<String>, StoreOpenError> {
    let _lock = directory::lock_existing(dir)?;
    let mut found = Vec::new();
    let state = dir.join(directory::STATE);
    let examined = examine_all(&state, StateMark::read(dir)?.mark.as_ref())?;
    for damage in &examined.other_damage {
        let path = damage.path.display();
        found.push(format!("{path} is damaged: {}", damage.detail));
    }
    let log = dir.join(directory::LOG);
    let log_mark = log_mark::read(dir)?;
    if log_mark.mark.last_lsn > 0 && open_segment_files(&log, &OsFileSystem)?.is_empty() {
        found.push(format!("{} has no segment left", log.display()));
    }
    if let Err(error) = directory::check_queues_owner(dir, log_mark.queues_owner) {
        found.push(error.to_string());
    }
    Ok(found)
}

fn repair_log(
    dir: &Path,
    progress: &mut ProgressObserver<'_>,
) -> Result<StoreRepairReport, StoreOpenError> {
    let log = dir.join(directory::LOG);
    progress("reading the message log");
    let log_mark = log_mark::read(dir)?;
    let damage = match recover_log(&log, &OsFileSystem, &log_mark.mark, &mut |_, _| Ok(())) {
        Ok(recovered) => {
            let mut repaired = StoreRepairReport::default();
            if let Some(problem) = log_mark.problem {
                write_log_marks(dir, &recovered)?;
                repaired
                    .lost
                    .push(format!("{problem}; it was written anew"));
            }
            repair_queues_owner(dir, &recovered, log_mark.queues_owner, &mut repaired)?;
            return Ok(repaired);
        }
        Err(error @ StoreOpenError::Version { .. }) => return Err(error),
        Err(error) => error,
    };
    progress("writing damaged segments anew");
    let mut repaired = repair_segments(&log)?;
    progress("reading the message log again");
    let recovered = recover_log(&log, &OsFileSystem, &LogMark::default(), &mut |_, _| Ok(()))?;
    let (last, marked) = (recovered.last_lsn, log_mark.mark.last_lsn);
    if last < marked {
        let count = marked - last;
        repaired.lost.push(format!(
            "the end of the message log: {count} batches, {} to {marked}",
            last + 1
        ));
    } else if repaired.lost.is_empty() {
        let detail = match damage {
            StoreOpenError::Damaged { path, detail, .. } => format!("{}: {detail}", path.display()),
            other => other.to_string(),
        };
        repaired.lost.push(detail);
    }
    write_log_marks(dir, &recovered)?;
    repair_queues_owner(dir, &recovered, log_mark.queues_owner, &mut repaired)?;
    Ok(repaired)
}

/// Gives up queues in another server whose owner is unknown. A damaged owner file is left to the operator.
fn repair_queues_owner(
    dir: &Path,
    recovered: &RecoveredLog,
    marked: Option<u32>,
    repaired: &mut StoreRepairReport,
) -> Result<(), StoreOpenError> {
    let Err(error) = directory::check_queues_owner(dir, marked) else {
        return Ok(());
    };
    if directory::queues_owner(dir)?.is_some() {
        repaired.unrepaired.push(error.to_string());
        // The owner stays recorded.
        return Ok(LogMarksFile::create(dir, recovered.log_mark(), marked).map(drop)?);
    }
    write_log_marks(dir, recovered)?;
    repaired.lost.push(format!(
        "the messages that wait in another server: the file {} is missing",
        dir.join("queues").display()
    ));
    Ok(())
}

/// Rewrites damaged journals of the keyed state and continues without missing ones. Their lost content is then taken from the message log as
/// far as possible.
fn repair_state(
    dir: &Path,
    repaired: &mut StoreRepairReport,
    progress: &mut ProgressObserver<'_>,
) -> Result<(), StoreOpenError> {
    let state = dir.join(directory::STATE);
    progress("reading the keyed state");
    let read = StateMark::read(dir)?;
    let examined = examine_all(&state, read.mark.as_ref())?;
    if !state.exists() && examined.first_damage().is_some() {
        StateMark::default().write(dir)?;
        repaired.lost.push(format!(
            "{}: the directory is missing; sessions, subscriptions, retained messages, configuration objects and \
             devices begin anew",
            state.display()
        ));
        return Ok(());
    }
    if !examined.other_damage.is_empty() {
        for damage in &examined.other_damage {
            let path = damage.path.display();
            let detail = &damage.detail;
            repaired
                .unrepaired
                .push(format!("{path} is damaged: {detail}. {REPLACE_ADVICE}"));
        }
        return Ok(());
    }
    if let Some(problem) = &read.problem {
        repaired
            .lost
            .push(format!("{problem}; it was written anew"));
    }
    let mut damaged: Vec<PathBuf> = Vec::new();
    for damage in &examined.damaged_journals {
        damaged.push(damage.path.clone());
        repaired
            .lost
            .push(format!("{}: {}", damage.path.display(), damage.detail));
    }
    let lost = &examined.lost_journals;
    if damaged.is_empty() && lost.is_empty() && read.problem.is_none() {
        return Ok(());
    }
    progress("writing damaged journals of the keyed state anew");
    for path in &damaged {
        if !path.exists() {
            // With a journal, even an empty one, sequence numbers continue behind those in tables.
            disk::replace_file(&state, &file_name(path), b"").map_err(io_error("make", path))?;
            continue;
        }
        let salvaged = salvage_journal(path).map_err(io_error("write anew", path))?;
        for (from, to) in salvaged.lost_ranges {
            let path = path.display();
            repaired.lost.push(format!("{path}: bytes {from} to {to}"));
        }
        repaired.damaged_copies.push(salvaged.damaged_copy);
    }
    let ids = list_keyspaces(&state).map_err(io_error("list the keyspaces in", &state))?;
    StateMark::from_scans(&[], ids).write(dir)?;
    let (keyed, _) = KeyedState::open(dir, StoreConfig::default().cache_bytes)?;
    for journal in lost {
        let names = keyed.db()?.describe_keyspaces(&journal.keyspaces);
        repaired.lost.push(format!(
            "{}: {}: {} bytes of changes of {}",
            journal.damage.path.display(),
            journal.damage.detail,
            journal.bytes,
            names.join(", ")
        ));
    }
    if !damaged.is_empty() || !lost.is_empty() {
        // Makes the next start apply the whole message log.
        keyed.db()?.write().commit(0)?;
    }
    Ok(())
}

fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// Resets the marks of the log to its present content.
fn write_log_marks(dir: &Path, recovered: &RecoveredLog) -> Result<(), StoreOpenError> {
    let log = dir.join(directory::LOG);
    for segment in &recovered.segments {
        let path = segment_path(&log, segment.id);
        segment
            .file
            .sync()
            .map_err(io_error("force to disk", &path))?;
    }
    LogMarksFile::create(
        dir,
        recovered.log_mark(),
        directory::queues_owner_mark(dir)?,
    )?;
    Ok(())
}

/// Rewrites log and keyed state without garbage; returns the bytes on disk before and after.
pub fn compact(
    dir: &Path,
    config: StoreConfig,
    progress: &mut ProgressObserver<'_>,
) -> Result<(u64, u64), StoreOpenError> {
    drop(directory::lock_existing(dir)?);
    let before = disk_bytes(dir).map_err(io_error("look at", dir))?;
    let (store, _) = Store::open_with(dir, config, Arc::new(OsFileSystem))?;
    store
        .start(Arc::new(NoopObserver))
        .map_err(io_error("start writing to", dir))?;
    progress("compacting the message log");
    store.compact();
    while store.is_compacting() {
        std::thread::sleep(Duration::from_millis(5));
    }
    store.close();
    progress("compacting the keyed state");
    store.compact_keyed()?;
    drop(store);
    let after = disk_bytes(dir).map_err(io_error("look at", dir))?;
    Ok((before, after))
}

struct NoopObserver;

impl StoreObserver for NoopObserver {
    fn on_logged(&self, _shard: u16, _batch: u64) {}
    fn on_fetched(&self, _shard: u16, _page: QueuePage) {}
}

fn disk_bytes(dir: &Path) -> io::Result<u64> {
    use std::os::unix::fs::MetadataExt as _;
    let mut bytes = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += if metadata.is_dir() {
            disk_bytes(&entry.path())?
        } else {
            metadata.blocks() * 512
        };
    }
    Ok(bytes)
}
