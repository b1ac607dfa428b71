//! What a cluster needs from the system that connects its nodes.

use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use thiserror::Error;
use tokio::sync::mpsc;

use crate::error::{ClusterError, PutError};
use crate::member::{Member, NodeName};

/// A future that a trait object returns.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A change of the members of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberChange {
    /// A member has written or renewed its entry.
    Renewed(Member),
    /// A member has removed its entry, or somebody else has.
    Left(NodeName),
    /// The entry of a member was not renewed in time, or the servers have lost it. The member may be reachable.
    Expired(NodeName),
    /// All entries that existed when the watch began, or when it was resumed after an interruption, have been reported.
    Complete,
}

/// The list of members. Each member renews its own entry every second; an entry that is not renewed is removed after
/// some time. Readers decide by the time of renewal, not by removal, whether a member is alive.
pub trait MemberEntries: Send + Sync + 'static {
    /// Writes or renews the entry of this node.
    fn renew<'a>(&'a self, member: &'a Member) -> BoxFuture<'a, Result<(), ClusterError>>;

    /// Removes the entry of a node.
    fn remove<'a>(&'a self, node: &'a NodeName) -> BoxFuture<'a, Result<(), ClusterError>>;

    /// All entries, [`MemberChange::Complete`], then changes. The sequence survives interruptions: after one, entries that
    /// were renewed or removed meanwhile are reported, then [`MemberChange::Complete`]. An entry that was not renewed since
    /// its last report is not reported again, because readers judge by the time of the report whether its member is alive.
    /// It ends when the receiver is dropped.
    fn watch(&self) -> mpsc::Receiver<MemberChange>;
}

/// An object and its revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectEntry {
    pub value: Bytes,
    /// Larger than the revisions of all changes of any object before.
    pub revision: u64,
}

/// The state of an object that a change requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpectedRevision {
    Any,
    Absent,
    Revision(u64),
}

/// A change of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObjectChange {
    Put {
        key: String,
        entry: ObjectEntry,
    },
    /// Somebody has deleted it.
    Deleted {
        key: String,
        revision: u64,
    },
    /// The servers do not have it any more and do not know why: somebody has deleted it long ago, or they have lost it. Is
    /// followed by [`ObjectChange::Complete`].
    Lost {
        key: String,
    },
    /// Everything that existed when the watch began, or when it was resumed after an interruption, has been reported.
    Complete,
}

/// Largest value of an object in bytes: servers of NATS accept messages of 1 MiB with headers unless they are configured
/// otherwise.
pub const MAX_OBJECT_BYTES: usize = 1_000_000;

/// Objects that all nodes share, with compare-and-set. Keys consist of `[A-Za-z0-9_=/.-]`, at most 512 bytes; values have
/// at most [`MAX_OBJECT_BYTES`].
pub trait ClusterObjects: Send + Sync + 'static {
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<ObjectEntry>, ClusterError>>;

    /// Stores an object and returns its revision.
    fn put<'a>(
        &'a self,
        key: &'a str,
        value: Bytes,
        expected: ExpectedRevision,
    ) -> BoxFuture<'a, Result<u64, PutError>>;

    /// Deletes an object and returns the revision of the deletion.
    fn delete<'a>(
        &'a self,
        key: &'a str,
        expected: ExpectedRevision,
    ) -> BoxFuture<'a, Result<u64, PutError>>;

    /// All objects, [`ObjectChange::Complete`], then changes in the order of their revisions. The sequence survives
    /// interruptions: after one, all objects are reported again, also those that were deleted or lost meanwhile, then
    /// [`ObjectChange::Complete`]. It ends when the receiver is dropped.
    fn watch(&self) -> mpsc::Receiver<ObjectChange>;
}

/// Why a frame was not sent. [`NodeLinks`] may lose frames anyway, so that callers treat it as a lost frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum LinkSendError {
    #[error("there is no connection to the cluster's NATS servers")]
    Disconnected,
    #[error("too many frames wait to be sent")]
    Full,
    /// The frame is larger than [`NodeLinks::max_frame_bytes`], which can become smaller when another server is connected.
    #[error("the frame is larger than the cluster's NATS servers accept")]
    TooLarge,
}

/// Frames from node to node. Frames from one node to another arrive in the order in which they were sent, apart from
/// those that are lost; after an interruption frames may also arrive twice.
pub trait NodeLinks: Send + Sync + 'static {
    /// Largest frame in bytes.
    fn max_frame_bytes(&self) -> usize;

    /// Passes a frame on without waiting.
    fn send(&self, to: &NodeName, frame: Bytes) -> Result<(), LinkSendError>;

    /// The frames to this node. The sequence survives interruptions, and ends when the receiver is dropped. To be called
    /// once.
    fn receive(&self) -> mpsc::Receiver<Bytes>;
}
