//! From which node a session was adopted, as registrations and session records say it.

use xxhash_rust::xxh3::xxh3_64;

/// That a session was adopted from another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SessionAdoption {
    pub(crate) from: OriginNode,
    /// When the adoption began: the session counts as begun then.
    pub(crate) since_ms: u64,
}

/// A few bits of a hash of the name of a node, which fit into the flags of a registration. Nodes with the same bits cannot be told
/// apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OriginNode(u8);

impl OriginNode {
    /// The number of bits.
    pub(crate) const BITS: u32 = 6;
    /// Some builds say only that a session was adopted.
    const UNKNOWN: Self = Self(0);
    const NODES: u64 = (1 << Self::BITS) - 1;

    pub(crate) fn node(name: &str) -> Self {
        Self(1 + (xxh3_64(name.as_bytes()) % Self::NODES) as u8)
    }

    pub(crate) fn from_bits(bits: u8) -> Self {
        Self(bits & Self::NODES as u8)
    }

    pub(crate) fn bits(self) -> u8 {
        self.0
    }

    /// Whether this may be the node with this name.
    pub(crate) fn may_be(self, name: &str) -> bool {
        self == Self::UNKNOWN || self == Self::node(name)
    }
}
