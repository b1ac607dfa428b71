//! Entries of members in a bucket whose keys expire.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

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
/// Renewals that have failed for so long do so for another reason than an election, which takes up to 9 s.
const STALLED_AFTER: Duration = Duration::from_secs(15);

/// Members in the bucket `{prefix}-members`. It is kept in memory, since entries are renewed every second.
#[derive(Debug, Clone)]
pub struct NatsMembers {
    bucket: Arc<Bucket>,
    /// Since when renewals fail, or when something was last done about it.
    failing_since: Arc<Mutex<Option<Instant>>>,
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
            failing_since: Arc::default(),
        }
    }

    /// Whether renewals have failed for a long time; then again after the same time.
    fn is_stalled(&self, has_failed: bool) -> bool {
        let now = Instant::now();
        let mut since = (self.failing_since.lock()).unwrap_or_else(PoisonError::into_inner);
        if !has_failed {
            *since = None;
            return false;
        }
        let is_stalled = now.duration_since(*since.get_or_insert(now)) >= STALLED_AFTER;
        if is_stalled {
            *since = Some(now);
        }
        is_stalled
    }

    /// Removes the list of members if no server can store anything in it any more. All nodes that run are in the next one within
    /// a second, and watches report those that are not as lost, not as having left.
    async fn remove_without_leader(&self) {
        let bucket = &self.bucket;
        match bucket
            .connection
            .perform(bucket.remove_without_leader())
            .await
        {
            Ok(true) => warn!(
                "the list of members had no leader any more, because the NATS servers with it were started again; it is created anew"
            ),
            Ok(false) => {}
            Err(error) => {
                warn!(%error, "the list of members, which has no leader, cannot be created anew; trying again")
            }
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
            let outcome = put.await.map(drop).map_err(without_conflict);
            if self.is_stalled(outcome.is_err()) {
                self.remove_without_leader().await;
            }
            outcome
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
