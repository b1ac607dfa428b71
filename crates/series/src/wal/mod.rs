//! The write-ahead log: what is in no segment file yet.
//!
//! A file has blocks of 256 KiB. Each partition writes into a block of its own, mapped into memory, so that partitions need no
//! common lock, appending is a copy without a system call, and one sync of one file covers them all. Files are allocated
//! before they are mapped: a full disk is an error when a block is claimed. See docs/telemetry-storage.md for the bytes.

pub(crate) mod block;
pub(crate) mod files;
pub(crate) mod recovery;

pub(crate) use block::{BLOCK_BYTES, BlockWriter};
pub(crate) use files::Wal;

/// Parts of the store that are written apart from each other; see [`partition_of`](crate::partition_of).
pub(crate) const PARTITIONS: usize = 8;
const _: () = assert!(PARTITIONS.is_power_of_two());
