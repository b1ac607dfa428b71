//! Access keys of endpoints, stored as hashes.

use ring::digest::{SHA256, digest};

/// The SHA-256 hash of an access key. Keys are random, or long, so that a slow hash is not needed; the broker's threads
/// check it.
#[derive(Clone, PartialEq, Eq)]
pub struct AccessKeyHash(String);

impl AccessKeyHash {
    pub fn new(key: &str) -> Self {
        let hash = digest(&SHA256, key.as_bytes());
        Self(
            hash.as_ref()
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect(),
        )
    }

    /// A hash in hexadecimal digits.
    pub(crate) fn from_hex(hex: &str) -> Option<Self> {
        let is_hex = hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_hex.then(|| Self(hex.to_ascii_lowercase()))
    }

    pub fn as_hex(&self) -> &str {
        &self.0
    }

    pub(crate) fn matches(&self, key: &str) -> bool {
        // The time of the comparison reveals parts of a hash, from which no key can be derived.
        Self::new(key) == *self
    }
}

impl std::fmt::Debug for AccessKeyHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AccessKeyHash(***)")
    }
}
