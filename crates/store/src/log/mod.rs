//! The message log: queued messages in segments of records, written by one thread.

pub(crate) mod applier;
pub(crate) mod external_queues;
pub(crate) mod file_system;
pub(crate) mod frame;
pub(crate) mod fsync_recovery;
pub(crate) mod index;
pub(crate) mod log_mark;
pub(crate) mod maintenance;
mod range_reads;
pub(crate) mod reader;
pub(crate) mod reclaim;
pub(crate) mod record;
pub(crate) mod recovery;
pub(crate) mod segment_repair;
pub(crate) mod segments;
mod session_queues;
pub(crate) mod shared;
pub(crate) mod writer;

#[cfg(test)]
mod tests;
