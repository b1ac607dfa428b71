//! Whether the files of the keyed state are what was written, which the LSM library does not tell.
//!
//! The library cuts its journal off at the first batch it cannot read, removes a keyspace whose version file is missing, and
//! panics at some kinds of damage. So its files are examined before it opens them:
//!
//! - `journal.rs` reads the batches of journals.
//! - `tree.rs` reads which tables a keyspace has, and their checksums.
//! - `mark.rs` is the file `state.mark` outside the directory: what it must contain at least.
//! - `examine.rs` compares the directory with the mark.

pub(crate) mod examination;
pub(crate) mod journal;
mod journal_salvage;
pub(crate) mod keyspace_files;
pub(crate) mod state_mark;

pub(crate) use journal_salvage::salvage_journal;

#[cfg(test)]
mod tests;
