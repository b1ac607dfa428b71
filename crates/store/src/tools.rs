//! What an operator does to the data directory of a node that does not run: look at it, mend it, make it small.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::batch::Space;
use crate::config::Config;
use crate::directory;
use crate::error::OpenError;
use crate::handle::{Owner, Store};
use crate::keyed::Keyed;
use crate::log::files::RealFiles;
use crate::log::recover::{io_error, recover};
use crate::log::rewrite::rewrite_damaged;
use crate::objects::decode;
use crate::queue::Page;

/// Says what is being done, in words for people.
pub type Progress<'a> = dyn FnMut(&str) + 'a;

/// What is in a store, and what is wrong with it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checked {
    pub segments: u64,
    pub log_bytes: u64,
    /// Of these, roughly what is still wanted.
    pub live_bytes: u64,
    pub queued_messages: u64,
    pub queued_sessions: u64,
    /// Keys of each space, in the order of [`Space::ALL`].
    pub keys: [u64; 4],
    pub objects: u64,
    /// Rows of each table.
    pub rows: Vec<(String, u64)>,
    pub keyed_bytes: u64,
    /// A torn end, which the next start cuts off.
    pub torn_end: Option<String>,
    /// What cannot be read.
    pub problems: Vec<String>,
}

/// What a repair did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Repaired {
    /// What could not be read, segment by segment.
    pub lost: Vec<String>,
    /// The damaged files, kept beside the repaired ones.
    pub kept: Vec<PathBuf>,
}

/// Reads everything. The message log is not changed; the keyed state is brought up to its own journal, as by a start.
pub fn check(dir: &Path, progress: &mut Progress<'_>) -> Result<Checked, OpenError> {
    let _lock = directory::take_existing(dir)?;
    let mut checked = Checked::default();
    progress("reading the message log");
    match recover(&dir.join(directory::LOG), &RealFiles, &mut |_, _| Ok(())) {
        Ok(recovered) => {
            checked.segments = recovered.segments.len() as u64;
            checked.log_bytes = recovered.segments.iter().map(|segment| segment.used).sum();
            checked.live_bytes = recovered.index.live().bytes;
            checked.queued_messages = recovered.index.messages();
            checked.queued_sessions = recovered.index.sessions() as u64;
            checked.torn_end = recovered.cut.map(|cut| cut.to_string());
        }
        Err(error) => checked.problems.push(error.to_string()),
    }
    progress("reading the keyed state and the configuration objects");
    if let Err(error) = check_keyed(dir, &mut checked) {
        checked.problems.push(error.to_string());
    }
    Ok(checked)
}

fn check_keyed(dir: &Path, checked: &mut Checked) -> Result<(), OpenError> {
    let keyed = Keyed::open(dir.join(directory::STATE), Config::default().cache_bytes)?;
    let db = keyed.db()?;
    for (space, count) in Space::ALL.iter().zip(&mut checked.keys) {
        for item in db.space(*space).iter() {
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
    for (name, keyspace) in db.tables.all() {
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

/// Keeps of a damaged log what can be read. Damaged files stay under another name until somebody removes them.
pub fn repair(dir: &Path, progress: &mut Progress<'_>) -> Result<Repaired, OpenError> {
    let _lock = directory::take_existing(dir)?;
    let log = dir.join(directory::LOG);
    progress("reading the message log");
    match recover(&log, &RealFiles, &mut |_, _| Ok(())) {
        Ok(_) => return Ok(Repaired::default()),
        Err(error @ OpenError::Version { .. }) => return Err(error),
        Err(_) => {}
    }
    progress("writing damaged segments anew");
    let repaired = rewrite_damaged(&log)?;
    progress("reading the message log again");
    recover(&log, &RealFiles, &mut |_, _| Ok(()))?;
    Ok(repaired)
}

/// Writes log and keyed state anew without what nobody wants any more; returns the bytes on disk before and after.
pub fn compact(
    dir: &Path,
    config: Config,
    progress: &mut Progress<'_>,
) -> Result<(u64, u64), OpenError> {
    drop(directory::take_existing(dir)?);
    let before = disk_bytes(dir).map_err(io_error("look at", dir))?;
    let (store, _) = Store::open_with(dir, config, Arc::new(RealFiles))?;
    store
        .start(Arc::new(Nobody))
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

struct Nobody;

impl Owner for Nobody {
    fn logged(&self, _shard: u16, _batch: u64) {}
    fn fetched(&self, _shard: u16, _page: Page) {}
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
