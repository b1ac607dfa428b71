//! The members of a cluster.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use xxhash_rust::xxh3::xxh3_64;

/// The name of a node, unique in its cluster: 1 to 64 of the characters `a-z`, `0-9` and `-`. It is part of keys and
/// subjects of NATS.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeName(Arc<str>);

const MAX_NAME_BYTES: usize = 64;
/// Bits of the numbers of one node.
pub const NUMBER_BITS: u32 = 40;
/// The first range is that of nodes outside a cluster.
const NUMBER_RANGES: u64 = 1 << 13;
/// The same for numbers of 32 bits.
pub const SHORT_NUMBER_BITS: u32 = 19;

#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{0:?} is not a valid node name: expected 1 to {MAX_NAME_BYTES} of the characters a-z, 0-9 and '-'"
)]
pub struct NodeNameError(String);

impl NodeName {
    pub fn new(name: &str) -> Result<Self, NodeNameError> {
        let is_valid =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.bytes().all(is_valid) {
            return Err(NodeNameError(
                name.chars().take(2 * MAX_NAME_BYTES).collect(),
            ));
        }
        Ok(Self(name.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The first of the numbers that this node gives to objects which other nodes number as well, such as alarms. Different
    /// for nodes with different names, but for an accident, and below 2^53, so that JSON can contain the numbers.
    pub fn first_number(&self) -> u64 {
        let range = 1 + xxh3_64(self.0.as_bytes()) % (NUMBER_RANGES - 1);
        range << NUMBER_BITS
    }

    /// The same for numbers of 32 bits, of which a node gives up to 2^19.
    pub fn first_short_number(&self) -> u32 {
        ((self.first_number() >> NUMBER_BITS) as u32) << SHORT_NUMBER_BITS
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for NodeName {
    type Err = NodeNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::new(text)
    }
}

impl TryFrom<String> for NodeName {
    type Error = NodeNameError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::new(&text)
    }
}

impl From<NodeName> for String {
    fn from(name: NodeName) -> Self {
        name.0.as_ref().to_owned()
    }
}

/// What a node tells the others about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    pub node: NodeName,
    /// Differs in each run of a node.
    pub run_id: u64,
    /// The version of the program.
    pub version: String,
    /// The latest version of the messages between nodes that it speaks.
    pub protocol: u32,
    /// The oldest version that it speaks, so that nodes can be upgraded one after the other.
    pub oldest_protocol: u32,
    /// When the node started, in milliseconds since 1970 by its own clock.
    pub started_ms: u64,
    /// Where the HTTP API of the node can be reached by the other nodes and people, if that is configured.
    #[serde(default)]
    pub api_url: Option<String>,
    /// `host:port` where clients can reach the node, for redirections.
    #[serde(default)]
    pub server_reference: Option<String>,
    /// Connections of the node when it renewed its entry.
    #[serde(default)]
    pub connections: u64,
    /// Sessions of the node when it renewed its entry.
    #[serde(default)]
    pub sessions: u64,
    /// Whether the node refers its clients to others, because it is to be stopped.
    #[serde(default)]
    pub is_draining: bool,
    /// The number of connections down to which the node disconnects clients, because it has more than others.
    #[serde(default)]
    pub rebalance_target: Option<u64>,
}

impl Member {
    /// A node without connections that starts now. `protocols` are the versions of the messages between nodes that it speaks.
    pub fn new(node: NodeName, run_id: u64, version: &str, protocols: RangeInclusive<u32>) -> Self {
        Self {
            node,
            run_id,
            version: version.to_owned(),
            protocol: *protocols.end(),
            oldest_protocol: *protocols.start(),
            started_ms: wall_clock::now_ms(),
            api_url: None,
            server_reference: None,
            connections: 0,
            sessions: 0,
            is_draining: false,
            rebalance_target: None,
        }
    }

    /// The latest version of the messages between nodes that both speak. `None`: they exchange no messages.
    pub fn common_protocol(&self, other: &Member) -> Option<u32> {
        let latest = self.protocol.min(other.protocol);
        let oldest = self.oldest_protocol.max(other.oldest_protocol);
        (latest >= oldest).then_some(latest)
    }

    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("names, numbers and texts can be written as JSON")
    }

    pub fn from_json(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(oldest_protocol: u32, protocol: u32) -> Member {
        let node = NodeName::new("node-1").unwrap();
        Member::new(node, 1, "1", oldest_protocol..=protocol)
    }

    #[test]
    fn nodes_use_the_latest_version_that_both_speak() {
        let common = |one: (u32, u32), other: (u32, u32)| {
            let (one, other) = (member(one.0, one.1), member(other.0, other.1));
            assert_eq!(one.common_protocol(&other), other.common_protocol(&one));
            one.common_protocol(&other)
        };
        assert_eq!(common((5, 5), (5, 5)), Some(5));
        assert_eq!(common((4, 5), (5, 6)), Some(5));
        assert_eq!(common((4, 6), (3, 7)), Some(6));
        assert_eq!(common((4, 5), (6, 7)), None);
    }

    #[test]
    fn entries_of_earlier_versions_have_no_target() {
        let member = Member {
            rebalance_target: Some(7),
            ..member(5, 5)
        };
        assert_eq!(Member::from_json(&member.to_json()).unwrap(), member);
        let mut entry: serde_json::Value = serde_json::from_slice(&member.to_json()).unwrap();
        entry.as_object_mut().unwrap().remove("rebalance_target");
        let earlier = Member::from_json(entry.to_string().as_bytes()).unwrap();
        assert_eq!(earlier.rebalance_target, None);
    }
}
