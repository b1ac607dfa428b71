//! Errors of the system that connects the nodes of a cluster.

use thiserror::Error;

/// Why a request to the system that connects the nodes failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ClusterError {
    /// There is no connection, or no answer in time. The request may have been carried out.
    #[error("the cluster's NATS servers cannot be reached: {0}")]
    Unreachable(String),
    /// The servers answered that the request is not possible.
    #[error("the cluster's NATS servers rejected the request: {0}")]
    Rejected(String),
    /// Something stored in the cluster cannot be read, for example because a newer version has written it.
    #[error("{what} in the cluster cannot be read: {detail}")]
    Unreadable { what: String, detail: String },
}

/// Why an object was not stored.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PutError {
    /// The object has another revision than expected: somebody else has changed it.
    #[error("the object was changed by someone else")]
    Conflict,
    #[error(transparent)]
    Cluster(#[from] ClusterError),
}
