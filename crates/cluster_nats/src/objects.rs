//! Objects of the cluster in a bucket.

use std::sync::Arc;

use async_nats::jetstream::stream::StorageType;
use bytes::Bytes;
use cluster::{
    BoxFuture, ClusterError, ClusterObjects, ExpectedRevision, MAX_OBJECT_BYTES, ObjectChange,
    ObjectEntry, PutError,
};
use tokio::sync::mpsc;

use crate::bucket::{Bucket, BucketSettings};
use crate::bucket_watch::{BucketChange, BucketWatch, WatchKind};
use crate::connection::Connection;

/// Objects in the bucket `{prefix}-objects`.
#[derive(Debug, Clone)]
pub struct NatsObjects {
    bucket: Arc<Bucket>,
}

impl NatsObjects {
    pub(crate) fn new(connection: &Arc<Connection>) -> Self {
        let settings = BucketSettings {
            name: "objects",
            description: "configuration that the nodes of a Tidegate cluster share",
            storage: StorageType::File,
            max_age: None,
            max_bytes: connection.settings.objects_max_bytes,
        };
        Self {
            bucket: Arc::new(Bucket::new(connection, settings)),
        }
    }
}

impl ClusterObjects for NatsObjects {
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<ObjectEntry>, ClusterError>> {
        Box::pin(self.bucket.get(key))
    }

    fn put<'a>(
        &'a self,
        key: &'a str,
        value: Bytes,
        expected: ExpectedRevision,
    ) -> BoxFuture<'a, Result<u64, PutError>> {
        Box::pin(async move {
            if value.len() > MAX_OBJECT_BYTES {
                let detail = format!(
                    "the object {key} has {} bytes: at most {MAX_OBJECT_BYTES} are possible",
                    value.len()
                );
                return Err(ClusterError::Rejected(detail).into());
            }
            self.bucket.put(key, value, expected).await
        })
    }

    fn delete<'a>(
        &'a self,
        key: &'a str,
        expected: ExpectedRevision,
    ) -> BoxFuture<'a, Result<u64, PutError>> {
        Box::pin(self.bucket.delete(key, expected))
    }

    fn watch(&self) -> mpsc::Receiver<ObjectChange> {
        BucketWatch::start(Arc::clone(&self.bucket), WatchKind::Objects, |change| {
            Some(convert(change))
        })
    }
}

fn convert(change: BucketChange) -> ObjectChange {
    match change {
        BucketChange::Put { key, entry } => ObjectChange::Put { key, entry },
        BucketChange::Deleted { key, deletion } if deletion.is_requested => ObjectChange::Deleted {
            key,
            revision: deletion.revision,
        },
        BucketChange::Deleted { key, .. } => ObjectChange::Lost { key },
        BucketChange::Complete => ObjectChange::Complete,
    }
}
