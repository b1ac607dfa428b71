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
mod read_job;
pub(crate) mod reader;
mod reclaim;
pub(crate) mod record;
pub(crate) mod recovery;
pub(crate) mod segment_repair;
pub(crate) mod segments;
mod session_queue;
mod session_queues;
pub(crate) mod shared;
pub(crate) mod writer;
pub(crate) mod writer_loop;

#[cfg(test)]
mod tests;
