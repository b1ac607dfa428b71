//! Integrity checks of the keyed state's files, which the LSM library does not make itself.
//!
//! The library truncates its journal at the first unreadable batch, removes a keyspace whose version file is missing, and
//! panics at some kinds of damage. Its files are therefore examined before it opens them:
//!
//! - `journal.rs` reads the batches of journals.
//! - `journal_salvage.rs` rewrites a damaged journal.
//! - `keyspace_files.rs` reads which tables a keyspace has, and their checksums.
//! - `state_mark.rs` is the file `state.mark` outside the directory: the minimum content of the directory.
//! - `examination.rs` compares the directory with the mark.
//! - `lost_journals.rs` compares missing journals with the tables.

pub(crate) mod examination;
pub(crate) mod journal;
mod journal_salvage;
pub(crate) mod keyspace_files;
pub(crate) mod lost_journals;
pub(crate) mod state_mark;

pub(crate) use journal_salvage::salvage_journal;

#[cfg(test)]
mod tests;
