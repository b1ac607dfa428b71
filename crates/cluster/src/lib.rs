//! Several nodes as one cluster: who is a member, and reliable channels between members.
//!
//! - [`MemberEntries`], [`ClusterObjects`] and [`NodeLinks`] are what a cluster needs from the system that connects its nodes. The crate
//!   `cluster_nats` implements them over NATS; tests implement them in memory.
//! - A channel to each other member turns the lossy frames of [`NodeLinks`] into an ordered, reliable sequence of messages.
//! - [`ClusterMembership`] decides which members are reachable, and owns their channels.
//!
//! - [`ClusterNode`] joins these: it runs the membership of this node over the links.
//! - [`NodeRequests`] exchanges requests and their answers with other nodes.
//! - [`ClusterLease`] chooses one node for work that is done once per cluster.
//! - [`ReplicatedObjects`] keeps the configuration objects of this node equal to those of the cluster.
//! - [`RecordSync`] keeps records of this node, of which there may be millions, equal to those of the other nodes.
//!
//! Except for [`ClusterNode`], [`NodeRequests`], [`ClusterLease`], [`ReplicatedObjects`] and [`RecordReplication`], nothing here uses a clock: the caller passes frames and the time.

mod channel;
mod cluster_node;
mod error;
mod fabric;
mod frame;
mod lease;
mod member;
mod membership;
mod objects;
mod records;
mod requests;

pub use channel::ChannelLimits;
pub use cluster_node::{ClusterNode, NodeLoad, PeerNodeObserver};
pub use error::{ClusterError, PutError};
pub use fabric::{
    BoxFuture, ClusterObjects, ExpectedRevision, LinkSendError, MAX_OBJECT_BYTES, MemberChange,
    MemberEntries, NodeLinks, ObjectChange, ObjectEntry,
};
pub use frame::{FRAME_HEAD_BYTES, FrameError};
pub use lease::{ClusterLease, LeaseStatus};
pub use member::{Member, NUMBER_BITS, NodeName, NodeNameError, SHORT_NUMBER_BITS};
pub use membership::{
    ClusterMembership, DownReason, MAX_PEER_NODES, MembershipConfig, MembershipEvent, PeerNodeId,
    PeerNodeInfo,
};
pub use objects::{
    LocalObject, LocalObjects, LocalObjectsError, ObjectName, ObjectNameError, ObjectReplica,
    ReplicaEvent, ReplicaPhase, ReplicaRecord, ReplicaRequest, ReplicatedObjects,
    ReplicatedObjectsError, ReplicatedObjectsStatus,
};
pub use records::{
    ALARM_RECORDS_KIND, ATTRIBUTE_RECORDS_KIND, DEVICE_RECORDS_KIND, FIRMWARE_RECORDS_KIND,
    RECORD_BUCKETS, Record, RecordChanges, RecordDigests, RecordReplication, RecordSync,
    RecordVersion, SharedRecords, SharedRecordsError, record_bucket,
};
pub use requests::{
    FIRST_REQUEST_KIND, NodeRequests, RequestError, RequestHandler, RequestLimits, SendMessage,
};
