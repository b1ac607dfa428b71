//! Options and credentials of connections.

use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use schemars::JsonSchema;
use serde::Deserialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
pub enum SaslMechanism {
    #[serde(rename = "plain")]
    Plain,
    #[serde(rename = "scram-sha-256")]
    ScramSha256,
    #[serde(rename = "scram-sha-512")]
    ScramSha512,
}

impl SaslMechanism {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
        }
    }
}

/// Credentials; without `Debug`, so that no log contains the password.
pub struct SaslCredentials {
    pub mechanism: SaslMechanism,
    pub username: String,
    pub password: String,
}

/// Options of all connections.
pub struct KafkaConnectionOptions {
    /// Client id in logs and quotas of the brokers.
    pub client_id: String,
    pub sasl: Option<SaslCredentials>,
    pub tls: Option<Arc<ClientConfig>>,
    pub request_timeout: Duration,
    /// Maximum age of cached metadata; it is refreshed earlier if the leader of a partition changes.
    pub metadata_max_age: Duration,
}
