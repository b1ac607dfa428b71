//! The message log: queued messages in segments of records, written by one thread.

pub(crate) mod applier;
pub(crate) mod files;
pub(crate) mod frame;
pub(crate) mod index;
pub(crate) mod keeper;
pub(crate) mod mark;
pub(crate) mod outside;
mod queues;
pub(crate) mod reader;
pub(crate) mod reclaim;
pub(crate) mod record;
pub(crate) mod recover;
pub(crate) mod rescue;
pub(crate) mod rewrite;
pub(crate) mod segments;
pub(crate) mod shared;
mod spans;
pub(crate) mod writer;

#[cfg(test)]
mod tests;
