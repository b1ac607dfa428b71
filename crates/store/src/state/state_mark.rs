//! The minimum content of the keyed state, in a file outside its directory: `state.mark`, a line of JSON and its checksum.
//!
//! Invariant: it records only what was on disk before it was written. It therefore never demands what a crash or a power
//! failure may take. It is written about a second after a change, and when the store is closed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use disk::CheckedLineState;
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
        match disk::read_checked_line(&path).map_err(io_error("read", &path))? {
            CheckedLineState::Intact(line) => Ok(match serde_json::from_str(&line) {
                Ok(mark) => StateMarkReading {
                    mark: Some(mark),
                    problem: None,
                },
                Err(_) => unknown("is damaged"),
            }),
            CheckedLineState::Damaged => Ok(unknown("is damaged")),
            CheckedLineState::Missing => Ok(unknown("is missing")),
        }
    }

    pub(crate) fn write(&self, dir: &Path) -> Result<(), StoreError> {
        let line = serde_json::to_string(self).expect("numbers and lists of them");
        disk::write_checked_line(dir, FILE, &line).map_err(io_error("write", &dir.join(FILE)))
    }
}
