//! The write-ahead log: rows that are in no segment file yet.
//!
//! A file consists of blocks of 256 KiB. Each partition writes into its own block, mapped into memory.
//! Partitions therefore need no common lock, appending is a copy without a system call, and one sync of a
//! file covers them all. Files are allocated before they are mapped: a full disk is an error when a block is
//! claimed. docs/internals/series.md describes the format.
//!
//! The code is not shared with the message log of `store`. There, one thread orders the batches of all shards and
//! writes each with one system call. Here every partition appends at the same time to a block of its own, and an order
//! exists only within a partition.

pub(crate) mod block;
mod block_writer;
mod files;
pub(crate) mod recovery;
mod wal_file;

pub(crate) use block_writer::{BlockWriter, max_shape_bytes};
pub(crate) use files::Wal;
