//! Digests of images as devices verify them: the algorithms of ThingsBoard.

use std::hash::Hasher as _;

use data_encoding::HEXLOWER;
use md5::{Digest as _, Md5};
use ring::digest::{Context, SHA256, SHA384, SHA512};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Algorithm of the digest that devices verify.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DigestAlgorithm {
    #[default]
    Sha256,
    Sha384,
    Sha512,
    /// Not secure; for devices that know nothing else.
    Md5,
    /// Not secure; for devices that know nothing else. The least significant byte is first, as in ThingsBoard.
    Crc32,
    /// MurmurHash3, 32 bits with seed 0. Not secure; for devices that know nothing else. The least significant byte is
    /// first, as in ThingsBoard.
    Murmur3_32,
    /// MurmurHash3 for x64, 128 bits with seed 0. Not secure; for devices that know nothing else. The least significant byte
    /// of each half is first, as in ThingsBoard.
    Murmur3_128,
}

impl DigestAlgorithm {
    /// The name in ThingsBoard's attributes.
    #[must_use]
    pub fn thingsboard_name(self) -> &'static str {
        match self {
            Self::Sha256 => "SHA256",
            Self::Sha384 => "SHA384",
            Self::Sha512 => "SHA512",
            Self::Md5 => "MD5",
            Self::Crc32 => "CRC32",
            Self::Murmur3_32 => "MURMUR3_32",
            Self::Murmur3_128 => "MURMUR3_128",
        }
    }
}

/// A digest that is computed piece by piece.
pub(crate) enum ImageDigest {
    Sha(Context),
    Md5(Md5),
    Crc32(crc32fast::Hasher),
    Murmur3_32(mur3::Hasher32),
    Murmur3_128(mur3::Hasher128),
}

impl ImageDigest {
    pub(crate) fn new(algorithm: DigestAlgorithm) -> Self {
        match algorithm {
            DigestAlgorithm::Sha256 => Self::Sha(Context::new(&SHA256)),
            DigestAlgorithm::Sha384 => Self::Sha(Context::new(&SHA384)),
            DigestAlgorithm::Sha512 => Self::Sha(Context::new(&SHA512)),
            DigestAlgorithm::Md5 => Self::Md5(Md5::new()),
            DigestAlgorithm::Crc32 => Self::Crc32(crc32fast::Hasher::new()),
            DigestAlgorithm::Murmur3_32 => Self::Murmur3_32(mur3::Hasher32::with_seed(0)),
            DigestAlgorithm::Murmur3_128 => Self::Murmur3_128(mur3::Hasher128::with_seed(0)),
        }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha(context) => context.update(bytes),
            Self::Md5(context) => context.update(bytes),
            Self::Crc32(context) => context.update(bytes),
            Self::Murmur3_32(context) => context.write(bytes),
            Self::Murmur3_128(context) => context.write(bytes),
        }
    }

    /// In hexadecimal digits.
    pub(crate) fn finish(self) -> String {
        match self {
            Self::Sha(context) => HEXLOWER.encode(context.finish().as_ref()),
            Self::Md5(context) => HEXLOWER.encode(&context.finalize()),
            Self::Crc32(context) => HEXLOWER.encode(&context.finalize().to_le_bytes()),
            Self::Murmur3_32(context) => HEXLOWER.encode(&context.finish32().to_le_bytes()),
            Self::Murmur3_128(context) => {
                let (low, high) = context.finish128();
                HEXLOWER.encode(&[low.to_le_bytes(), high.to_le_bytes()].concat())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_of_abc() {
        for (algorithm, expected) in [
            (DigestAlgorithm::Md5, "900150983cd24fb0d6963f7d28e17f72"),
            // 0x352441c2, the least significant byte first.
            (DigestAlgorithm::Crc32, "c2412435"),
            (
                DigestAlgorithm::Sha256,
                "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
            ),
        ] {
            let mut digest = ImageDigest::new(algorithm);
            digest.update(b"a");
            digest.update(b"bc");
            assert_eq!(digest.finish(), expected);
        }
    }

    /// The vectors of Guava's `HashingTest`, with which ThingsBoard computes its digests.
    #[test]
    fn murmur3_is_that_of_guava() {
        const SENTENCE: &[u8] = b"The quick brown fox jumps over the lazy dog";
        for (algorithm, content, expected) in [
            (DigestAlgorithm::Murmur3_32, &b""[..], "00000000"),
            (DigestAlgorithm::Murmur3_32, SENTENCE, "23f74f2e"),
            (
                DigestAlgorithm::Murmur3_128,
                b"",
                "00000000000000000000000000000000",
            ),
            (
                DigestAlgorithm::Murmur3_128,
                SENTENCE,
                "6c1b07bc7bbc4be347939ac4a93c437a",
            ),
        ] {
            for piece_bytes in [1, 3, 7, 16, 64] {
                let mut digest = ImageDigest::new(algorithm);
                content
                    .chunks(piece_bytes)
                    .for_each(|piece| digest.update(piece));
                assert_eq!(digest.finish(), expected, "{algorithm:?} {piece_bytes}");
            }
        }
    }
}
