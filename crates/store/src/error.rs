//! What can go wrong, for those who decide what to do about it.

use std::io;
use std::path::PathBuf;

use crate::backend::BackendError;

/// The store could not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The keyed part refused.
    #[error("the store cannot {what}: {source}")]
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
    /// The keyed part is being opened again after a write error.
    #[error("the store is recovering from a write error; try again in a moment")]
    Recovering,
    /// What is stored cannot be read.
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

/// A data directory that cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreOpenError {
    /// Somebody else has it open.
    #[error("another process is using the store {}; stop it first", path.display())]
    Locked { path: PathBuf },
    /// There is none.
    #[error("{} is not a store; expected the `store` directory of a node's data directory", path.display())]
    Missing { path: PathBuf },
    /// Made by a version with another layout.
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
    /// Damage that is not a cut-off end.
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
    /// A file of the keyed state is not what was written.
    #[error("{} is damaged: {detail}. Nothing was changed. {remedy}", path.display())]
    StateDamaged {
        path: PathBuf,
        detail: String,
        remedy: &'static str,
    },
    /// A setting that cannot be.
    #[error("{field} is {found}; expected {expected}")]
    Setting {
        field: &'static str,
        found: String,
        expected: String,
    },
    /// The server that has the queues cannot be used.
    #[error("the queued messages in {server} cannot be used: {source}")]
    Queues {
        server: String,
        #[source]
        source: BackendError,
    },
    /// Queued messages are where they would not be looked for.
    #[error("{found}; {advice}")]
    QueuesElsewhere { found: String, advice: String },
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// An object was not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// It is not what was expected; `current` is its version now, `None` if it is not there.
    #[error("the object was changed meanwhile: {}", match current {
        Some(version) => format!("its version is {version} now"),
        None => "it is not there any more".to_owned(),
    })]
    Conflict { current: Option<u64> },
    /// It cannot be an object.
    #[error("{field} of an object is {found}; expected {expected}")]
    Invalid {
        field: &'static str,
        found: String,
        expected: &'static str,
    },
    #[error(transparent)]
    Storage(#[from] StoreError),
}
