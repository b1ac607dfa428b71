//! Digests of images as devices verify them: the algorithms of ThingsBoard that are in common use.

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
        }
    }
}

/// A digest that is computed piece by piece.
pub(crate) enum ImageDigest {
    Sha(Context),
    Md5(Md5),
    Crc32(crc32fast::Hasher),
}

impl ImageDigest {
    pub(crate) fn new(algorithm: DigestAlgorithm) -> Self {
        match algorithm {
            DigestAlgorithm::Sha256 => Self::Sha(Context::new(&SHA256)),
            DigestAlgorithm::Sha384 => Self::Sha(Context::new(&SHA384)),
            DigestAlgorithm::Sha512 => Self::Sha(Context::new(&SHA512)),
            DigestAlgorithm::Md5 => Self::Md5(Md5::new()),
            DigestAlgorithm::Crc32 => Self::Crc32(crc32fast::Hasher::new()),
        }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha(context) => context.update(bytes),
            Self::Md5(context) => context.update(bytes),
            Self::Crc32(context) => context.update(bytes),
        }
    }

    /// In hexadecimal digits.
    pub(crate) fn finish(self) -> String {
        match self {
            Self::Sha(context) => HEXLOWER.encode(context.finish().as_ref()),
            Self::Md5(context) => HEXLOWER.encode(&context.finalize()),
            Self::Crc32(context) => HEXLOWER.encode(&context.finalize().to_le_bytes()),
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
}
