//! Names of configuration objects, and their keys in the cluster.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The key of the record about all objects.
pub(crate) const SET_KEY: &str = "config";
const KEY_PREFIX: &str = "config.";
const MAX_KEY_BYTES: usize = 512;

/// The kind and id of a configuration object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ObjectName {
    pub kind: String,
    pub id: String,
}

/// A name that has no key.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "the id of this {kind} cannot be used in a cluster: its key has {bytes} bytes, and at most {MAX_KEY_BYTES} are possible; \
     characters other than letters, digits, '-', '_' and '/' count three to twelve times"
)]
pub struct ObjectNameError {
    kind: String,
    bytes: usize,
}

impl ObjectName {
    pub fn new(kind: &str, id: &str) -> Self {
        Self {
            kind: kind.to_owned(),
            id: id.to_owned(),
        }
    }

    /// The kind, which has only letters, digits and `_`, and the id, with bytes other than `A-Z a-z 0-9 - _ /` as `=` and two
    /// hexadecimal digits.
    pub(crate) fn key(&self) -> Result<String, ObjectNameError> {
        let mut key = format!("{KEY_PREFIX}{}.", self.kind);
        for byte in self.id.bytes() {
            if is_plain(byte) {
                key.push(char::from(byte));
            } else {
                key.push_str(&format!("={byte:02X}"));
            }
        }
        match key.len() <= MAX_KEY_BYTES {
            true => Ok(key),
            false => Err(ObjectNameError {
                kind: self.kind.clone(),
                bytes: key.len(),
            }),
        }
    }

    /// The name of a key; `None` if it is the key of something else.
    pub(crate) fn from_key(key: &str) -> Option<Self> {
        let (kind, id) = key.strip_prefix(KEY_PREFIX)?.split_once('.')?;
        let mut bytes = Vec::with_capacity(id.len());
        let mut rest = id.bytes();
        while let Some(byte) = rest.next() {
            if byte != b'=' {
                bytes.push(byte);
                continue;
            }
            let digits = [rest.next()?, rest.next()?];
            let digits = std::str::from_utf8(&digits).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
        }
        let name = Self {
            kind: kind.to_owned(),
            id: String::from_utf8(bytes).ok()?,
        };
        // Each name has one key.
        (name.key().ok()? == key).then_some(name)
    }
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'/')
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.kind, self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_has_one_key_and_each_key_one_name() {
        for (id, key) in [
            ("a", "config.rule.a"),
            ("a/b-c_D", "config.rule.a/b-c_D"),
            ("a.b", "config.rule.a=2Eb"),
            ("=", "config.rule.=3D"),
            ("ä*> ", "config.rule.=C3=A4=2A=3E=20"),
            ("..", "config.rule.=2E=2E"),
        ] {
            let name = ObjectName::new("rule", id);
            assert_eq!(name.key().as_deref(), Ok(key));
            assert_eq!(ObjectName::from_key(key), Some(name));
        }
        for key in [
            "config",
            "config.rule",
            "other.rule.a",
            "config.rule.a.b",
            "config.rule.=2e",
            "config.rule.=2",
            "config.rule.=61",
            "config.rule.=FF",
        ] {
            assert_eq!(ObjectName::from_key(key), None, "{key}");
        }
        let error = ObjectName::new("rule", &"ä".repeat(100)).key();
        let error = error.expect_err("it is too long").to_string();
        assert!(error.contains("612 bytes"), "{error}");
    }
}
