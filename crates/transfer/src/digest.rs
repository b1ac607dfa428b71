//! SHA-256 digests of files, as requests and records contain them.

use std::fmt;
use std::str::FromStr;

use content::{ContentHasher, DigestAlgorithm};
use data_encoding::{BASE64, HEXLOWER, HEXLOWER_PERMISSIVE};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A SHA-256 digest; as text 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileDigest(pub [u8; 32]);

/// A text that is not a digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected a SHA-256 digest of 64 hexadecimal digits")]
pub struct ParseDigestError;

impl FileDigest {
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(ContentHasher::digest(DigestAlgorithm::Sha256, bytes).bytes)
    }

    #[must_use]
    pub fn from_base64(text: &str) -> Option<Self> {
        let bytes = BASE64.decode(text.as_bytes()).ok()?;
        Some(Self(bytes.try_into().ok()?))
    }

    #[must_use]
    pub fn to_base64(self) -> String {
        BASE64.encode(&self.0)
    }
}

impl FromStr for FileDigest {
    type Err = ParseDigestError;

    fn from_str(text: &str) -> Result<Self, ParseDigestError> {
        let bytes = HEXLOWER_PERMISSIVE.decode(text.as_bytes());
        let bytes: Vec<u8> = bytes.map_err(|_| ParseDigestError)?;
        Ok(Self(bytes.try_into().map_err(|_| ParseDigestError)?))
    }
}

impl fmt::Display for FileDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for FileDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileDigest({self})")
    }
}

impl Serialize for FileDigest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for FileDigest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for FileDigest {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Sha256".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({"type": "string", "pattern": "^[0-9A-Fa-f]{64}$"})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_read_and_written() {
        let abc = FileDigest::of(b"abc");
        let text = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(abc.to_string(), text);
        assert_eq!(text.to_uppercase().parse(), Ok(abc));
        assert_eq!(FileDigest::from_base64(&abc.to_base64()), Some(abc));
        for wrong in [
            "",
            "ba",
            &text[1..],
            &format!("{text}00"),
            &text.replace('b', "g"),
        ] {
            assert_eq!(
                wrong.parse::<FileDigest>(),
                Err(ParseDigestError),
                "{wrong}"
            );
        }
        assert_eq!(FileDigest::from_base64("AAAA"), None);
    }
}
