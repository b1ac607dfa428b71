//! The broker and how to reach it.

use std::path::PathBuf;

use serde::Deserialize;

use super::quantity::TimeSpan;

/// The broker that is a node in this process, and whose connections are in memory.
const MEMORY: &str = "memory:";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) enum ProtocolVersion {
    #[default]
    #[serde(rename = "3.1.1")]
    V3_1_1,
    #[serde(rename = "5")]
    V5,
}

impl From<ProtocolVersion> for mqtt::Version {
    fn from(version: ProtocolVersion) -> Self {
        match version {
            ProtocolVersion::V3_1_1 => Self::V311,
            ProtocolVersion::V5 => Self::V5,
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct TargetDefinition {
    /// `mqtt://`, `mqtts://`, `ws://`, `wss://` or `quic://` with host, port and path, or `memory:`.
    pub(crate) broker: String,
    /// The node of `memory:`.
    pub(crate) node: NodeDefinition,
    pub(crate) version: ProtocolVersion,
    /// Server of fleets with `transport = "http"`.
    pub(crate) http: String,
    /// Server of fleets with `transport = "relay"`; its path is the prefix of endpoints.
    pub(crate) relay: String,
    /// Server of fleets with `transport = "link"`.
    pub(crate) link: String,
    /// HTTP API of the node, for products to create.
    pub(crate) api: String,
    pub(crate) token_file: Option<PathBuf>,
    /// PEM files. Without the first, the authorities of the system are trusted.
    pub(crate) ca_file: Option<PathBuf>,
    pub(crate) certificate: Option<PathBuf>,
    pub(crate) private_key: Option<PathBuf>,
    /// Accept any certificate of the broker.
    pub(crate) insecure: bool,
    /// Name in the broker's certificate; default: the host.
    pub(crate) server_name: Option<String>,
    /// Addresses to connect from, such as `10.0.0.1-10.0.0.9`.
    pub(crate) source_addresses: Option<String>,
    /// Time for a connection until CONNACK and SUBACK.
    pub(crate) connect_timeout: TimeSpan,
    pub(crate) threads: u16,
    /// Images that are downloaded by URL at a time.
    pub(crate) downloads: u32,
}

/// The node in this process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct NodeDefinition {
    /// Where its data stays; without it, the data is temporary.
    pub(crate) data_dir: Option<PathBuf>,
    /// 0: one for each core.
    pub(crate) shards: u16,
}

impl TargetDefinition {
    /// Whether the broker is a node in this process.
    pub(crate) fn is_in_memory(&self) -> bool {
        self.broker == MEMORY
    }
}

impl Default for TargetDefinition {
    fn default() -> Self {
        Self {
            broker: "mqtt://127.0.0.1:1883".to_owned(),
            node: NodeDefinition::default(),
            http: "http://127.0.0.1:8080".to_owned(),
            relay: "ws://127.0.0.1:8083/ws".to_owned(),
            link: "tcp://127.0.0.1:7600".to_owned(),
            version: ProtocolVersion::default(),
            api: "http://127.0.0.1:8080".to_owned(),
            token_file: None,
            ca_file: None,
            certificate: None,
            private_key: None,
            insecure: false,
            server_name: None,
            source_addresses: None,
            connect_timeout: TimeSpan::from_seconds(30),
            threads: 1,
            downloads: 100,
        }
    }
}
