//! Records that all nodes have, such as registered devices and their attributes: many, small, and changed at any node.
//!
//! - A change is stored by the node that makes it, and then sent to all others, many changes in one message.
//! - Nodes that meet compare digests of all records, and fetch what the other one has in a later version. They do so
//!   again from time to time, so that whatever a message has not brought arrives in the end.
//! - Each record has a version. Of two changes of one record, all nodes keep the one with the later version.

mod changes;
mod digests;
mod message;
mod replication;
mod shared;
mod sync;
mod version;

pub use changes::RecordChanges;
pub use digests::{RECORD_BUCKETS, RecordDigests, record_bucket};
pub use message::{
    ALARM_RECORDS_KIND, ATTRIBUTE_RECORDS_KIND, DEVICE_RECORDS_KIND, FIRMWARE_RECORDS_KIND,
};
pub use replication::RecordReplication;
pub use shared::{Record, SharedRecords, SharedRecordsError};
pub use sync::RecordSync;
pub use version::RecordVersion;
