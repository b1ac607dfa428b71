//! Rewrites a damaged journal from the complete batches that are left in it.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::journal::{ParsedBatch, parse_batch};

/// Result of salvaging a journal.
pub(crate) struct JournalSalvage {
    /// Unreadable byte ranges.
    pub(crate) lost_ranges: Vec<(u64, u64)>,
    /// Path of the damaged file.
    pub(crate) damaged_copy: PathBuf,
}

/// Keeps all complete batches of a journal, in their order. The damaged file is kept under another name.
pub(crate) fn salvage_journal(path: &Path) -> io::Result<JournalSalvage> {
    let bytes = fs::read(path)?;
    let written = bytes
        .iter()
        .rposition(|&byte| byte != 0)
        .map_or(0, |last| last + 1);
    let mut whole = Vec::new();
    let mut lost: Vec<(u64, u64)> = Vec::new();
    let mut at = 0;
    while at < written {
        match parse_batch(&bytes[at..]) {
            ParsedBatch::Batch(batch) => {
                whole.extend_from_slice(&bytes[at..at + batch.len]);
                at += batch.len;
            }
            ParsedBatch::Incomplete | ParsedBatch::Damaged(_) => {
                // The next offset where a batch may begin.
                let next = bytes[at + 1..written].iter().position(|&byte| byte == 1);
                let next = next.map_or(written, |next| at + 1 + next);
                match lost.last_mut() {
                    Some(last) if last.1 == at as u64 => last.1 = next as u64,
                    _ => lost.push((at as u64, next as u64)),
                }
                at = next;
            }
        }
    }
    let damaged_copy = path.with_extension("jnl.damaged");
    let new_path = path.with_extension("jnl.new");
    let dir = path.parent().unwrap_or(Path::new("."));
    fs::write(&new_path, &whole)?;
    File::open(&new_path)?.sync_all()?;
    fs::rename(path, &damaged_copy)?;
    fs::rename(&new_path, path)?;
    disk::sync_dir(dir)?;
    Ok(JournalSalvage {
        lost_ranges: lost,
        damaged_copy,
    })
}
