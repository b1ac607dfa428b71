//! Digests of whole contents, computed piece by piece.

use std::fmt;

use ring::digest::{Context, SHA256};

/// How a digest is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DigestAlgorithm {
    /// For exchange with other systems.
    Sha256 = 1,
    /// Several times faster on most machines.
    Blake3 = 2,
}

impl DigestAlgorithm {
    /// The algorithm with this number in protocols and files.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Sha256,
            2 => Self::Blake3,
            _ => return None,
        })
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "SHA-256",
            Self::Blake3 => "BLAKE3",
        }
    }
}

/// A digest with its algorithm.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ContentDigest {
    pub algorithm: DigestAlgorithm,
    pub bytes: [u8; 32],
}

impl fmt::Display for ContentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ContentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={self}", self.algorithm.name())
    }
}

/// Computes a digest incrementally.
#[derive(Clone)]
pub struct ContentHasher(HasherState);

#[derive(Clone)]
enum HasherState {
    Sha256(Context),
    Blake3(Box<blake3::Hasher>),
}

impl ContentHasher {
    /// The digest of bytes that are in memory.
    pub fn digest(algorithm: DigestAlgorithm, bytes: &[u8]) -> ContentDigest {
        let mut hasher = Self::new(algorithm);
        hasher.update(bytes);
        hasher.finish()
    }

    pub fn new(algorithm: DigestAlgorithm) -> Self {
        Self(match algorithm {
            DigestAlgorithm::Sha256 => HasherState::Sha256(Context::new(&SHA256)),
            DigestAlgorithm::Blake3 => HasherState::Blake3(Box::default()),
        })
    }

    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            HasherState::Sha256(hasher) => hasher.update(bytes),
            HasherState::Blake3(hasher) => {
                hasher.update(bytes);
            }
        }
    }

    /// The digest of all bytes so far.
    pub fn finish(&self) -> ContentDigest {
        match &self.0 {
            HasherState::Sha256(hasher) => ContentDigest {
                algorithm: DigestAlgorithm::Sha256,
                bytes: hasher
                    .clone()
                    .finish()
                    .as_ref()
                    .try_into()
                    .expect("a SHA-256 digest has 32 bytes"),
            },
            HasherState::Blake3(hasher) => ContentDigest {
                algorithm: DigestAlgorithm::Blake3,
                bytes: hasher.finalize().into(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_the_published_ones_in_pieces_of_any_size() {
        let cases = [
            (
                DigestAlgorithm::Sha256,
                "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
            ),
            (
                DigestAlgorithm::Blake3,
                "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85",
            ),
        ];
        for (algorithm, expected) in cases {
            for cut in 0..=3 {
                let mut hasher = ContentHasher::new(algorithm);
                hasher.update(&b"abc"[..cut]);
                hasher.update(&b"abc"[cut..]);
                assert_eq!(hasher.finish().to_string(), expected);
            }
        }
    }
}
