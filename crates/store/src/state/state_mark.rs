//! The minimum content of the keyed state, in a file outside its directory: `state.mark`, a line of JSON and its checksum.
//!
//! Invariant: it records only what was on disk before it was written. It therefore never demands what a crash or a power
//! failure may take. It is written about a second after a change, and when the store is closed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::journal::JournalScan;
use crate::error::{StoreError, io_error};

pub(crate) const FILE: &str = "state.mark";

/// A journal as it was on disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct JournalMark {
    pub(crate) id: u64,
    pub(crate) bytes: u64,
    /// CRC32C of these bytes.
    pub(crate) crc: u32,
    /// The highest sequence number of each keyspace in it. A journal is removed once tables contain all of it.
    pub(crate) highest: BTreeMap<u64, u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StateMark {
    /// Ascending.
    pub(crate) journals: Vec<JournalMark>,
    /// The directories of keyspaces; empty: the state may not exist yet.
    pub(crate) keyspaces: BTreeSet<u64>,
}

/// The content of the file; without a mark, the reason.
#[derive(Debug)]
pub(crate) struct StateMarkReading {
    pub(crate) mark: Option<StateMark>,
    pub(crate) problem: Option<String>,
}

impl StateMark {
    pub(crate) fn from_scans(scans: &[JournalScan], keyspaces: BTreeSet<u64>) -> Self {
        let journal = |scan: &JournalScan| JournalMark {
            id: scan.id,
            bytes: scan.end,
            crc: scan.crc,
            highest: scan.highest.clone(),
        };
        Self {
            journals: scans.iter().map(journal).collect(),
            keyspaces,
        }
    }

    pub(crate) fn read(dir: &Path) -> Result<StateMarkReading, StoreError> {
        let path = dir.join(FILE);
        let unknown = |what: &str| StateMarkReading {
            mark: None,
            problem: Some(format!(
                "{} {what}: losses of the keyed state cannot be detected",
                path.display()
            )),
        };
        match fs::read(&path) {
            Ok(bytes) => Ok(match decode(&bytes) {
                Some(mark) => StateMarkReading {
                    mark: Some(mark),
                    problem: None,
                },
                None => unknown("is damaged"),
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(unknown("is missing")),
            Err(error) => Err(io_error("read", &path)(error)),
        }
    }

    pub(crate) fn write(&self, dir: &Path) -> Result<(), StoreError> {
        let mut text = serde_json::to_string(self).expect("numbers and lists of them");
        text.push('\n');
        let crc = crc32c::crc32c(text.as_bytes());
        text.push_str(&format!("{crc:08x}\n"));
        disk::replace_file(dir, FILE, text.as_bytes()).map_err(io_error("write", &dir.join(FILE)))
    }
}

fn decode(bytes: &[u8]) -> Option<StateMark> {
    let (text, end) = bytes.split_at_checked(bytes.len().checked_sub(9)?)?;
    let crc = crc32c::crc32c(text);
    if end != format!("{crc:08x}\n").as_bytes() {
        return None;
    }
    serde_json::from_slice(text).ok()
}
