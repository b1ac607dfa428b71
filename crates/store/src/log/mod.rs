//! The message log: queued messages in segments of records, written by one thread.
//!
//! The code is not shared with the disk queues of `connect` and the log of `series`. A batch is atomic here. Segments
//! are reclaimed by copying live entries to the end of the log. Damage stops the recovery, because a skipped record
//! would change the meaning of later ones. The other logs give these up for smaller files or for appending from several
//! threads.

pub(crate) mod applier;
pub(crate) mod external_queues;
pub(crate) mod file_system;
pub(crate) mod frame;
pub(crate) mod fsync_recovery;
mod held_notifications;
pub(crate) mod index;
mod locking;
pub(crate) mod log_mark;
pub(crate) mod maintenance;
mod notification_hold;
mod range_reads;
pub(crate) mod read_job;
pub(crate) mod reader;
mod reclaim;
pub(crate) mod record;
pub(crate) mod recovery;
pub(crate) mod segment_repair;
pub(crate) mod segments;
mod session_queue;
mod session_queues;
pub(crate) mod shared;
pub(crate) mod tail;
pub(crate) mod writer;
pub(crate) mod writer_loop;
pub(crate) mod written_log;

#[cfg(test)]
mod tests;
