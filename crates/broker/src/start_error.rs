//! Why a broker did not start.

use crate::net::tls::TlsError;

/// Why a broker did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("listener {listener}: cannot listen on {address}: {source}")]
    Listen {
        listener: String,
        address: String,
        source: std::io::Error,
    },
    #[error("listener {listener}: {source}")]
    Tls { listener: String, source: TlsError },
    #[error("listener {listener}: QUIC cannot use the socket or the certificate: {source}")]
    Quic {
        listener: String,
        source: std::io::Error,
    },
    #[error(
        "user {username}: the credential is not of the form scram-sha-256$ITERATIONS$SALT$STORED_KEY$SERVER_KEY"
    )]
    Credential { username: String },
    #[error("{shards} shards requested; at most {most} are supported")]
    TooManyShards { shards: usize, most: usize },
    #[error("the system provides no random bytes")]
    NoRandomness,
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    #[error("cannot read the store: {0}")]
    Store(#[from] store::StoreError),
}
