//! Missing journals whose content is in no table.
//!
//! The library removes a journal once tables contain it. Whether they do is decided before the library opens the state.
//! It writes younger journals to tables at once, and their sequence numbers would hide the loss from then on.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use lsm_tree::{AbstractTree as _, SequenceNumberCounter};

use super::journal;
use super::keyspace_files::{CURRENT, FileDamage, KEYSPACES};
use super::state_mark::JournalMark;

/// A missing journal.
#[derive(Debug)]
pub(crate) struct LostJournal {
    pub(crate) damage: FileDamage,
    /// Its length on disk.
    pub(crate) bytes: u64,
    /// The keyspaces that lack its changes.
    pub(crate) keyspaces: BTreeSet<u64>,
}

/// Returns those of the removed journals that no table covers. The tables themselves must be intact. `cleared`: keyspaces that were
/// emptied later.
pub(crate) fn find_lost_journals(
    state: &Path,
    removed: &[JournalMark],
    cleared: &BTreeSet<u64>,
) -> Result<Vec<LostJournal>, FileDamage> {
    let mut lost = Vec::new();
    for journal in removed {
        let mut keyspaces = BTreeSet::new();
        for (&id, &highest) in &journal.highest {
            if !cleared.contains(&id) && !has_changes_up_to(state, id, highest)? {
                keyspaces.insert(id);
            }
        }
        if !keyspaces.is_empty() {
            let path = journal::journal_path(state, journal.id);
            let detail = "the file is missing, and no table has what was in it";
            lost.push(LostJournal {
                damage: FileDamage::new(path, detail),
                bytes: journal.bytes,
                keyspaces,
            });
        }
    }
    Ok(lost)
}

/// Whether the tables of a keyspace contain changes up to a sequence number. A keyspace that does not exist any more lacks nothing.
fn has_changes_up_to(state: &Path, keyspace: u64, seqno: u64) -> Result<bool, FileDamage> {
    let path = state.join(KEYSPACES).join(keyspace.to_string());
    if !path.join(CURRENT).exists() {
        return Ok(true);
    }
    // The library panics at some kinds of damage.
    let opening = AssertUnwindSafe(|| {
        let counter = SequenceNumberCounter::default;
        let tree = lsm_tree::Config::new(&path, counter(), counter()).open()?;
        lsm_tree::Result::Ok(tree.get_highest_persisted_seqno())
    });
    match catch_unwind(opening) {
        Ok(Ok(persisted)) => Ok(persisted >= Some(seqno)),
        Ok(Err(error)) => Err(FileDamage::new(path, error.to_string())),
        Err(_) => Err(FileDamage::new(path, "its tables cannot be opened")),
    }
}
