//! Ids of devices and products. Ids appear in topics and URL paths, which restricts their characters.

use std::borrow::Cow;
use std::fmt;

use data_encoding::HEXLOWER;

const MAX_ID_BYTES: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{found:?} is not an id: expected 1 to {MAX_ID_BYTES} bytes without '/', '+', '#', blanks and control characters, and not \".\" or \"..\""
)]
pub struct IdError {
    found: String,
}

fn is_allowed(c: char) -> bool {
    !matches!(c, '/' | '+' | '#') && !c.is_control() && !c.is_whitespace()
}

fn check(text: &str) -> Result<Box<str>, IdError> {
    // "." and ".." are removed from URL paths.
    let is_step = matches!(text, "." | "..");
    if is_step || text.is_empty() || text.len() > MAX_ID_BYTES || !text.chars().all(is_allowed) {
        return Err(IdError {
            found: text.chars().take(MAX_ID_BYTES).collect(),
        });
    }
    Ok(text.into())
}

/// Derives an id from a name that a device or its gateway has chosen. A name that is a valid id is returned
/// unchanged. Otherwise the id consists of the allowed characters and a digest of the whole name. The same name
/// always has the same id, and different names have different ids.
#[must_use]
pub fn id_for_name(name: &str) -> Cow<'_, str> {
    const DIGEST_BYTES: usize = 5;
    if check(name).is_ok() {
        return Cow::Borrowed(name);
    }
    let mut id = String::with_capacity(MAX_ID_BYTES);
    for c in name.chars() {
        let kept = if is_allowed(c) { c } else { '-' };
        if id.len() + kept.len_utf8() > MAX_ID_BYTES - 1 - 2 * DIGEST_BYTES {
            break;
        }
        if kept != '-' || !id.ends_with('-') {
            id.push(kept);
        }
    }
    id.push('-');
    let digest = ring::digest::digest(&ring::digest::SHA256, name.as_bytes());
    HEXLOWER.encode_append(&digest.as_ref()[..DIGEST_BYTES], &mut id);
    Cow::Owned(id)
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Box<str>);

        impl $name {
            pub fn new(text: &str) -> Result<Self, IdError> {
                check(text).map(Self)
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

id!(
    /// Id of a device, unique in the node.
    DeviceId
);
id!(
    /// Id of a product, unique in the node.
    ProductId
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_can_stand_in_a_topic() {
        for text in ["a", "demo-0:1", "Zähler", &"x".repeat(64)] {
            assert_eq!(
                DeviceId::new(text).map(|id| id.as_str().to_owned()),
                Ok(text.to_owned())
            );
        }
        for text in [
            "",
            ".",
            "..",
            "a/b",
            "a+",
            "#",
            "a b",
            "a\0",
            &"x".repeat(65),
        ] {
            assert!(ProductId::new(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn every_name_has_an_id_of_its_own() {
        assert_eq!(id_for_name("kitchen"), "kitchen");
        let long = "x ".repeat(200);
        let names = [
            "Device A",
            "Device-A",
            "Device  A",
            "a/b",
            "+",
            "..",
            "",
            "Zähler 1",
            &long,
        ];
        let ids: Vec<_> = names.map(id_for_name).into_iter().collect();
        for (at, id) in ids.iter().enumerate() {
            assert!(DeviceId::new(id).is_ok(), "{id:?}");
            assert!(!ids[..at].contains(id), "{id:?}");
        }
        assert!(ids[0].starts_with("Device-A-"), "{}", ids[0]);
        assert_eq!(id_for_name("Device A"), ids[0]);
    }
}
