//! The copies of other nodes' sessions in the data directory of a node that does not run, for the recovery of a cluster.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use cluster::NodeName;

use crate::kept_copy;

/// A copy of the sessions of another node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredCopy {
    pub node: NodeName,
    pub directory: PathBuf,
    /// Whether it has the sessions as they were at some moment. Otherwise it was interrupted before it had all of them.
    pub is_complete: bool,
    /// Whether the sessions are adopted already.
    pub is_adopted: bool,
    /// When a file of it was changed last.
    pub changed: Option<SystemTime>,
}

/// The copies in the directory of [`SessionCopiesParts`](crate::SessionCopiesParts), by name of their node.
///
/// # Errors
/// If the directory exists and cannot be read.
pub fn stored_copies(directory: &Path) -> std::io::Result<Vec<StoredCopy>> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut copies = Vec::new();
    for entry in entries {
        let (name, directory) = {
            let entry = entry?;
            (entry.file_name(), entry.path())
        };
        let node = name.to_str().and_then(|name| NodeName::new(name).ok());
        let Some(node) = node.filter(|_| kept_copy::read_origin(&directory).is_some()) else {
            continue;
        };
        copies.push(StoredCopy {
            node,
            is_complete: kept_copy::is_complete(&directory),
            is_adopted: kept_copy::is_adopted(&directory),
            changed: last_change(&kept_copy::store_directory(&directory)),
            directory,
        });
    }
    copies.sort_by(|a, b| a.node.cmp(&b.node));
    Ok(copies)
}

/// Lets the sessions in a copy be adopted at the next start, if the cluster has no record of its node by then, and the node
/// does not appear. For a node that is lost for good, in a cluster whose records are lost.
///
/// # Errors
/// If that cannot be written.
pub fn request_adoption(copy: &StoredCopy) -> std::io::Result<()> {
    kept_copy::request_adoption(&copy.directory)
}

/// The latest change of a file in a directory and those below it.
fn last_change(directory: &Path) -> Option<SystemTime> {
    let entries = std::fs::read_dir(directory).ok()?;
    let changes = entries.flatten().filter_map(|entry| {
        let metadata = entry.metadata().ok()?;
        match metadata.is_dir() {
            true => last_change(&entry.path()),
            false => metadata.modified().ok(),
        }
    });
    changes.max()
}
