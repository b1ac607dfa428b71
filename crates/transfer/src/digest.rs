//! SHA-256 digests of files, computed while the bytes arrive.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::str::FromStr;

use data_encoding::{BASE64, HEXLOWER, HEXLOWER_PERMISSIVE};
use ring::digest::{Context, SHA256, digest};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes read at once.
const READ_BYTES: usize = 256 << 10;

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
        Self::from_ring(&digest(&SHA256, bytes))
    }

    fn from_ring(digest: &ring::digest::Digest) -> Self {
        let bytes = digest.as_ref().try_into();
        Self(bytes.expect("a SHA-256 digest has 32 bytes"))
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

/// The digest of the beginning of a file that grows.
pub(crate) struct PrefixDigest {
    context: Context,
    /// Number of bytes digested.
    at: u64,
}

impl Default for PrefixDigest {
    fn default() -> Self {
        Self {
            context: Context::new(&SHA256),
            at: 0,
        }
    }
}

impl PrefixDigest {
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// Digests bytes that were written at `offset`, as far as they continue what was digested.
    pub(crate) fn append(&mut self, offset: u64, bytes: &[u8]) {
        let known = self.at.checked_sub(offset);
        let next = known.and_then(|known| bytes.get(usize::try_from(known).ok()?..));
        if let Some(next) = next {
            self.context.update(next);
            self.at += next.len() as u64;
        }
    }

    /// Digests up to `budget` bytes of the file, and not beyond `size`.
    pub(crate) fn advance(&mut self, file: &File, size: u64, budget: u64) -> io::Result<()> {
        let end = size.min(self.at.saturating_add(budget));
        let mut buffer = vec![0; READ_BYTES.min((end - self.at.min(end)) as usize)];
        while self.at < end {
            let wanted = buffer.len().min((end - self.at) as usize);
            file.read_exact_at(&mut buffer[..wanted], self.at)?;
            self.context.update(&buffer[..wanted]);
            self.at += wanted as u64;
        }
        Ok(())
    }

    pub(crate) fn finish(&self) -> FileDigest {
        FileDigest::from_ring(&self.context.clone().finish())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

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

    #[test]
    fn a_digest_follows_the_bytes_and_reads_what_it_did_not_see() {
        let bytes: Vec<u8> = (0..600_000_u32).map(|n| (n % 251) as u8).collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        let mut digest = PrefixDigest::default();
        digest.append(0, &bytes[..10]);
        digest.append(20, &bytes[20..30]);
        assert_eq!(digest.at(), 10, "a gap");
        digest.append(5, &bytes[5..15]);
        assert_eq!(digest.at(), 15, "an overlap");
        digest.append(0, &bytes[..10]);
        assert_eq!(digest.at(), 15, "a repetition");
        let size = bytes.len() as u64;
        digest.advance(&file, size, 100).unwrap();
        assert_eq!(digest.at(), 115);
        digest.advance(&file, size, u64::MAX).unwrap();
        assert_eq!(digest.finish(), FileDigest::of(&bytes));
        digest.advance(&file, 5, 10).unwrap();
        assert_eq!(digest.at(), size, "nothing beyond the size");
    }
}
