//! Parser for journals of the LSM library, which are sequences of batches.
//!
//! A batch is a start, its items and an end. The start is tag 1, number of items (4) and sequence number (8); the end
//! is tag 3, XXH3 of the items (8) and a magic of four bytes. An item is a tag 2, type, compression, keyspace (8),
//! lengths of key (2), value (4) and stored value (4), key and stored value; or a tag 4 and the number of a cleared
//! keyspace (8). Numbers are little-endian. A new journal has preallocated zeros behind its last batch.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

const START: usize = 13;
const ITEM: usize = 21;
const CLEAR: usize = 9;
const END: usize = 13;
const MAGIC: &[u8; 4] = b"FJL\x03";
const FIRST_READ: usize = 64 << 10;
/// Upper limit on a batch; a larger length is damage.
const MAX_BATCH_BYTES: usize = 2 << 30;

/// Result of parsing the beginning of some bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ParsedBatch {
    Batch(JournalBatch),
    /// The beginning of a batch; more bytes may complete it.
    Incomplete,
    Damaged(&'static str),
}

/// A complete batch.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct JournalBatch {
    pub(super) len: usize,
    seqno: u64,
    keyspaces: BTreeSet<u64>,
    cleared: BTreeSet<u64>,
}

pub(super) fn parse_batch(bytes: &[u8]) -> ParsedBatch {
    let Some(start) = bytes.get(..START) else {
        return match bytes.first() {
            None | Some(1) => ParsedBatch::Incomplete,
            Some(_) => ParsedBatch::Damaged("no batch begins there"),
        };
    };
    if start[0] != 1 {
        return ParsedBatch::Damaged("no batch begins there");
    }
    let (count, seqno) = (u32_at(start, 1), u64_at(start, 5));
    let (mut keyspaces, mut cleared) = (BTreeSet::new(), BTreeSet::new());
    let mut at = START;
    for _ in 0..count {
        let Some(&tag) = bytes.get(at) else {
            return ParsedBatch::Incomplete;
        };
        match tag {
            2 => {
                let Some(item) = bytes.get(at..at + ITEM) else {
                    return ParsedBatch::Incomplete;
                };
                if item[1] > 2 || item[2] > 1 {
                    return ParsedBatch::Damaged("the batch there has an item of unknown type");
                }
                keyspaces.insert(u64_at(item, 3));
                let key = usize::from(u16::from_le_bytes([item[11], item[12]]));
                let stored = u32_at(item, 17) as usize;
                at += ITEM + key + stored;
            }
            4 => {
                let Some(item) = bytes.get(at..at + CLEAR) else {
                    return ParsedBatch::Incomplete;
                };
                cleared.insert(u64_at(item, 1));
                at += CLEAR;
            }
            _ => return ParsedBatch::Damaged("the batch there has an unknown item"),
        }
        if at > MAX_BATCH_BYTES {
            return ParsedBatch::Damaged("the batch there is too large");
        }
        if at > bytes.len() {
            return ParsedBatch::Incomplete;
        }
    }
    let Some(end) = bytes.get(at..at + END) else {
        return ParsedBatch::Incomplete;
    };
    if end[0] != 3 || end[9..] != *MAGIC {
        return ParsedBatch::Damaged("the batch there has no end");
    }
    if u64_at(end, 1) != xxh3_64(&bytes[START..at]) {
        return ParsedBatch::Damaged("the checksum of the batch there is wrong");
    }
    ParsedBatch::Batch(JournalBatch {
        len: at + END,
        seqno,
        keyspaces,
        cleared,
    })
}

/// How far a journal was read, and what it contains up to there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JournalScan {
    pub(crate) id: u64,
    /// End of its last complete batch.
    pub(crate) end: u64,
    /// CRC32C of the bytes up to `end`.
    pub(crate) crc: u32,
    /// The highest sequence number of each keyspace.
    pub(crate) highest: BTreeMap<u64, u64>,
    /// Cleared keyspaces.
    pub(crate) cleared: BTreeSet<u64>,
}

impl JournalScan {
    pub(crate) fn new(id: u64) -> Self {
        Self {
            id,
            end: 0,
            crc: 0,
            highest: BTreeMap::new(),
            cleared: BTreeSet::new(),
        }
    }

    /// Continues reading at `end`, up to `limit`; returns why it stopped before, `None` at the regular end.
    pub(crate) fn read_further(
        &mut self,
        file: &File,
        limit: u64,
        each: &mut dyn FnMut(&Self),
    ) -> io::Result<Option<&'static str>> {
        let mut buffer = Vec::new();
        let mut wanted = FIRST_READ;
        // Offset of the buffer in the file.
        let mut at = self.end;
        loop {
            let start = (self.end - at) as usize;
            match parse_batch(&buffer[start..]) {
                ParsedBatch::Batch(batch) if self.end + batch.len as u64 > limit => {
                    return Ok(None);
                }
                ParsedBatch::Batch(batch) => {
                    let bytes = &buffer[start..start + batch.len];
                    self.crc = crc32c::crc32c_append(self.crc, bytes);
                    self.end += batch.len as u64;
                    for &keyspace in batch.keyspaces.iter().chain(&batch.cleared) {
                        self.highest.insert(keyspace, batch.seqno);
                    }
                    self.cleared.extend(&batch.cleared);
                    each(self);
                }
                ParsedBatch::Damaged(detail) => return Ok(Some(detail)),
                ParsedBatch::Incomplete => {
                    let rest = buffer.len() - start;
                    if rest * 2 > wanted {
                        wanted = rest * 2;
                    }
                    at = self.end;
                    let room = limit.saturating_sub(at).min(wanted as u64) as usize;
                    if room <= rest {
                        return Ok((rest > 0).then_some("the batch there is incomplete"));
                    }
                    buffer.drain(..start);
                    buffer.resize(room, 0);
                    let read = read_full(file, &mut buffer[rest..], at + rest as u64)?;
                    buffer.truncate(rest + read);
                    if read == 0 {
                        return Ok((rest > 0).then_some("the batch there is incomplete"));
                    }
                }
            }
        }
    }
}

pub(super) fn read_full(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// End of the last non-zero byte, `from` if there is none behind it.
pub(super) fn last_written(file: &File, from: u64) -> io::Result<u64> {
    let mut chunk = vec![0; 1 << 20];
    let (mut at, mut last) = (from, from);
    loop {
        let read = read_full(file, &mut chunk, at)?;
        if read == 0 {
            return Ok(last);
        }
        if let Some(place) = chunk[..read].iter().rposition(|&byte| byte != 0) {
            last = at + place as u64 + 1;
        }
        at += read as u64;
    }
}

/// The journals of a directory with their numbers, ascending.
pub(crate) fn list_journals(dir: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut journals = Vec::new();
    for file in std::fs::read_dir(dir)? {
        let file = file?;
        let name = file.file_name();
        let id = name.to_str().and_then(|name| name.strip_suffix(".jnl"));
        if let Some(id) = id.and_then(|id| id.parse().ok()) {
            journals.push((id, file.path()));
        }
    }
    journals.sort_unstable();
    Ok(journals)
}

pub(crate) fn journal_path(dir: &Path, id: u64) -> PathBuf {
    dir.join(format!("{id}.jnl"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let field = bytes[at..].first_chunk::<4>();
    u32::from_le_bytes(*field.expect("the caller has checked the length"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let field = bytes[at..].first_chunk::<8>();
    u64::from_le_bytes(*field.expect("the caller has checked the length"))
}
