//! The pipeline: from a message of a device to its stored rows, and to all who want to know.
//!
//! ```text
//!                  sync: on the thread that has the message
//! message ─ route ┬───────────────────────────────▶ Lane: read, validate ─ chain ─ store ─ tell
//!                 └▶ mailbox (a mapped file) ─ worker ▶  (the same, many at once)
//!                  actor
//! ```
//!
//! In both modes the messages of one device are stored in the order of their arrival: a sync device is worked for on the
//! thread of its connection, an actor's device always has the same mailbox, which one worker empties.
//!
//! What holds when [`Pipeline::take`] has returned: in sync mode the rows are in the store. In actor mode the message is in its
//! mailbox, which is a file mapped into memory: `kill -9` does not touch it, and the next start works it off before anything
//! else ([`Pipeline::open`]). A power failure loses what the operating system had not yet written of it, at most the bytes of
//! the mailboxes; products whose devices may not lose even that are to be `sync`, with the store's fsync policy.
//!
//! What takes longer than a shard may wait, which is syncs of the store and what devices say besides telemetry, is left behind
//! ([`Lane::take_left`]), and [`Pipeline::settle`] says when it is safe: acknowledgements wait for that. A mailbox keeps its messages
//! for as long.

mod guard;
mod hearing;
mod lane;
mod mailbox;
mod metrics;
mod outside;
mod pipeline;
mod profile;
mod segment;
mod stored;
mod trouble;

#[cfg(test)]
mod tests;

pub use lane::Lane;
pub use metrics::{Counters, Histogram, Snapshot, Times};
pub use outside::{Family, NoOutside, Outside, Storage, StorageError, StorageErrorKind, StoredRow};
pub use pipeline::{Admission, Config, Message, Pipeline, StartError, check_mailboxes};
pub use profile::{KeyRule, Mode, Model, OpenModel, ProductNo, Profile, Speaker, Voice};
pub use trouble::{DeviceTrouble, Trouble};
