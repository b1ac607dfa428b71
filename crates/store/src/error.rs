//! Errors of the store, by how callers react to them.

use std::io;
use std::path::{Path, PathBuf};

use crate::backend::BackendError;

/// The store could not perform an operation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The LSM library returned an error.
    #[error("the store cannot {what}: {}", describe_keyed_error(source))]
    Keyed {
        what: &'static str,
        #[source]
        source: fjall::Error,
    },
    /// A file operation failed.
    #[error("the store cannot {what} {}: {source}", path.display())]
    Io {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The keyed state is being reopened after a write error.
    #[error("the store is recovering from a write error; try again in a moment")]
    Recovering,
    /// Objects that all nodes of a cluster have cannot be changed now.
    #[error("the configuration objects of the cluster cannot be changed now: {0}")]
    Cluster(String),
    /// The frame after this log sequence number is no longer in the log.
    #[error(
        "the message log no longer has the batch after number {lsn}; copy the store again from its beginning"
    )]
    LogPositionGone { lsn: u64 },
    /// The queues cannot be read directly.
    #[error(
        "queued messages can be read only before the store is started, and only from the embedded log"
    )]
    QueueUnavailable,
    /// Stored data cannot be decoded.
    #[error("{what} in the store is damaged: {detail}")]
    Damaged { what: String, detail: String },
}

impl StoreError {
    pub(crate) fn keyed_error<E: Into<fjall::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |source| StoreError::Keyed {
            what,
            source: source.into(),
        }
    }
}

/// The library formats its errors for debugging. Those of a full or failing disk reach users.
fn describe_keyed_error(error: &fjall::Error) -> String {
    match error {
        fjall::Error::Io(error) => error.to_string(),
        fjall::Error::Poisoned => {
            "an earlier write failed, as on a full disk; it is being reopened, try again in a moment"
                .to_owned()
        }
        other => other.to_string(),
    }
}

/// A data directory that cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreOpenError {
    /// Another process has the directory open.
    #[error("another process is using the store {}; stop it first", path.display())]
    Locked { path: PathBuf },
    /// The directory is not a store.
    #[error("{} is not a store; expected the `store` directory of a node's data directory", path.display())]
    Missing { path: PathBuf },
    /// The directory was written by a version with another layout.
    #[error(
        "the store {} has layout version {found}, and this program reads version {expected}; use the program \
         that wrote it, or export there and import here",
        path.display()
    )]
    Version {
        path: PathBuf,
        found: String,
        expected: u32,
    },
    /// Damage other than a torn end.
    #[error(
        "{} is damaged at byte {offset}: {detail}. Nothing was changed. Restore a backup, or run `tidegate store \
         repair` to keep what can be read",
        path.display()
    )]
    Damaged {
        path: PathBuf,
        offset: u64,
        detail: String,
    },
    /// A file of the keyed state differs from what was written.
    #[error("{} is damaged: {detail}. Nothing was changed. {remedy}", path.display())]
    StateDamaged {
        path: PathBuf,
        detail: String,
        remedy: &'static str,
    },
    /// A setting is out of range.
    #[error("{field} is {found}; expected {expected}")]
    Setting {
        field: &'static str,
        found: String,
        expected: String,
    },
    /// The server that holds the queues cannot be used.
    #[error("the queued messages in {server} cannot be used: {source}")]
    Queues {
        server: String,
        #[source]
        source: BackendError,
    },
    /// Queued messages exist in a place that the present configuration does not read.
    #[error("{found}; {advice}")]
    QueuesElsewhere { found: String, advice: String },
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// An object was not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// The object has another version than expected; `current` is its version now, `None` if it does not exist.
    #[error("the object has been changed: {}", match current {
        Some(version) => format!("its version is now {version}"),
        None => "it no longer exists".to_owned(),
    })]
    Conflict { current: Option<u64> },
    /// The object is not valid.
    #[error("{field} of an object is {found}; expected {expected}")]
    Invalid {
        field: &'static str,
        found: String,
        expected: &'static str,
    },
    #[error(transparent)]
    Storage(#[from] StoreError),
}

/// Wraps the error of a file operation with the operation and the file.
pub(crate) fn io_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Io { what, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_a_full_disk_are_described_in_words() {
        let described = |error: fjall::Error| {
            StoreError::keyed_error("write configuration objects")(error).to_string()
        };
        let full = fjall::Error::Io(io::ErrorKind::StorageFull.into());
        assert_eq!(
            described(full),
            "the store cannot write configuration objects: no storage space"
        );
        let poisoned = described(fjall::Error::Poisoned);
        assert!(
            poisoned.contains("an earlier write failed") && poisoned.contains("try again"),
            "{poisoned}"
        );
    }
}
