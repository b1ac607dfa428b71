//! Entries of members in a bucket whose keys expire.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::stream::StorageType;
use bytes::Bytes;
use cluster::{
    BoxFuture, ClusterError, ExpectedRevision, Member, MemberChange, MemberEntries, NodeName,
    PutError,
};
use tokio::sync::mpsc;
use tracing::warn;

use crate::bucket::{Bucket, BucketSettings};
use crate::bucket_watch::{BucketChange, BucketWatch, WatchKind};
use crate::connection::Connection;

/// Of all entries together; one has less than a kilobyte.
const MAX_BYTES: u64 = 16 << 20;
/// How much longer than the servers a watch waits for the renewal of an entry.
const EXPIRY_TOLERANCE: Duration = Duration::from_secs(2);

/// Members in the bucket `{prefix}-members`. It is kept in memory, since entries are renewed every second.
#[derive(Debug, Clone)]
pub struct NatsMembers {
    bucket: Arc<Bucket>,
}

impl NatsMembers {
    pub(crate) fn new(connection: &Arc<Connection>) -> Self {
        let settings = BucketSettings {
            name: "members",
            description: "members of a Tidegate cluster",
            storage: StorageType::Memory,
            max_age: Some(connection.settings.member_max_age),
            max_bytes: MAX_BYTES,
        };
        Self {
            bucket: Arc::new(Bucket::new(connection, settings)),
        }
    }
}

/// Entries are written and removed unconditionally.
fn without_conflict(error: PutError) -> ClusterError {
    match error {
        PutError::Cluster(error) => error,
        PutError::Conflict => ClusterError::Rejected(error.to_string()),
    }
}

impl MemberEntries for NatsMembers {
    fn renew<'a>(&'a self, member: &'a Member) -> BoxFuture<'a, Result<(), ClusterError>> {
        Box::pin(async move {
            let entry = Bytes::from(member.to_json());
            let put = self
                .bucket
                .put(member.node.as_str(), entry, ExpectedRevision::Any);
            put.await.map(drop).map_err(without_conflict)
        })
    }

    fn remove<'a>(&'a self, node: &'a NodeName) -> BoxFuture<'a, Result<(), ClusterError>> {
        Box::pin(async move {
            let delete = self.bucket.delete(node.as_str(), ExpectedRevision::Any);
            delete.await.map(drop).map_err(without_conflict)
        })
    }

    fn watch(&self) -> mpsc::Receiver<MemberChange> {
        let expiry = self.bucket.connection.settings.member_max_age + EXPIRY_TOLERANCE;
        let kind = WatchKind::Members { expiry };
        BucketWatch::start(Arc::clone(&self.bucket), kind, convert)
    }
}

fn convert(change: BucketChange) -> Option<MemberChange> {
    match change {
        BucketChange::Complete => Some(MemberChange::Complete),
        BucketChange::Deleted { key, deletion } => {
            let node = NodeName::new(&key).ok()?;
            Some(match deletion.is_requested {
                true => MemberChange::Left(node),
                false => MemberChange::Expired(node),
            })
        }
        BucketChange::Put { key, entry } => match Member::from_json(&entry.value) {
            Ok(member) if member.node.as_str() == key => Some(MemberChange::Renewed(member)),
            Ok(_) => None,
            // It may be from a later version of the program.
            Err(error) => {
                warn!(node = key, %error, "the entry of a cluster member cannot be read; ignoring it");
                None
            }
        },
    }
}
