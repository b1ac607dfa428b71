//! The digest of an image, computed while it is downloaded.

use md5::Md5;
use sha2::{Digest as _, Sha256, Sha384, Sha512};

/// A digest of the bytes so far.
#[derive(Clone, Debug)]
pub(crate) enum ImageDigest {
    Sha256(Sha256),
    Sha384(Sha384),
    Sha512(Sha512),
    Md5(Md5),
    Crc32(crc32fast::Hasher),
}

impl ImageDigest {
    /// A digest by the name that ThingsBoard and JetLinks use; upper and lower case are the same.
    pub(crate) fn new(algorithm: &str) -> Option<Self> {
        Some(match algorithm.to_ascii_uppercase().as_str() {
            "SHA256" => Self::Sha256(Sha256::new()),
            "SHA384" => Self::Sha384(Sha384::new()),
            "SHA512" => Self::Sha512(Sha512::new()),
            "MD5" => Self::Md5(Md5::new()),
            "CRC32" => Self::Crc32(crc32fast::Hasher::new()),
            _ => return None,
        })
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(digest) => digest.update(bytes),
            Self::Sha384(digest) => digest.update(bytes),
            Self::Sha512(digest) => digest.update(bytes),
            Self::Md5(digest) => digest.update(bytes),
            Self::Crc32(digest) => digest.update(bytes),
        }
    }

    /// Whether the digest is `expected`, in hexadecimal.
    pub(crate) fn matches(self, expected: &str) -> bool {
        let is_hex_of = |bytes: &[u8]| {
            expected.len() == 2 * bytes.len()
                && bytes.iter().enumerate().all(|(at, byte)| {
                    expected
                        .get(2 * at..2 * at + 2)
                        .and_then(|digits| u8::from_str_radix(digits, 16).ok())
                        == Some(*byte)
                })
        };
        match self {
            Self::Sha256(digest) => is_hex_of(&digest.finalize()),
            Self::Sha384(digest) => is_hex_of(&digest.finalize()),
            Self::Sha512(digest) => is_hex_of(&digest.finalize()),
            Self::Md5(digest) => is_hex_of(&digest.finalize()),
            Self::Crc32(digest) => {
                let crc = digest.finalize();
                // ThingsBoard's server writes the bytes in reverse.
                is_hex_of(&crc.to_le_bytes()) || is_hex_of(&crc.to_be_bytes())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_of_all_algorithms_are_compared() {
        // printf abc | sha256sum, and so on.
        for (algorithm, expected) in [
            (
                "SHA256",
                "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
            ),
            (
                "sha384",
                "cb00753f45a35e8bb5a03d699ac65007272c32ab0eded1631a8b605a43ff5bed\
                 8086072ba1e7cc2358baeca134c825a7",
            ),
            (
                "SHA512",
                "DDAF35A193617ABACC417349AE20413112E6FA4E89A97EA20A9EEEE64B55D39A\
                 2192992A274FC1A836BA3C23A3FEEBBD454D4423643CE80E2A9AC94FA54CA49F",
            ),
            ("MD5", "900150983cd24fb0d6963f7d28e17f72"),
            ("CRC32", "c2412435"),
            ("CRC32", "352441c2"),
        ] {
            let mut digest = ImageDigest::new(algorithm).expect("a known algorithm");
            digest.update(b"a");
            digest.update(b"bc");
            assert!(digest.clone().matches(expected), "{algorithm}");
            assert!(!digest.clone().matches(&expected[1..]), "{algorithm}");
            digest.update(b"d");
            assert!(!digest.matches(expected), "{algorithm}");
        }
        assert!(ImageDigest::new("SHA1").is_none());
    }
}
