//! Names of devices and products. They stand in topics and paths, which is why they may not hold everything.

use std::fmt;

const MAX_ID_BYTES: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{found:?} is not an id: expected 1 to {MAX_ID_BYTES} bytes without '/', '+', '#', blanks and control characters, and neither \".\" nor \"..\""
)]
pub struct InvalidId {
    found: String,
}

fn check(text: &str) -> Result<Box<str>, InvalidId> {
    let may_be_in =
        |c: char| !matches!(c, '/' | '+' | '#') && !c.is_control() && !c.is_whitespace();
    // "." and ".." are taken out of URL paths.
    let is_step = matches!(text, "." | "..");
    if is_step || text.is_empty() || text.len() > MAX_ID_BYTES || !text.chars().all(may_be_in) {
        return Err(InvalidId {
            found: text.chars().take(MAX_ID_BYTES).collect(),
        });
    }
    Ok(text.into())
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Box<str>);

        impl $name {
            pub fn new(text: &str) -> Result<Self, InvalidId> {
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
    /// A device's id, unique in the node.
    DeviceId
);
id!(
    /// A product's id, unique in the node.
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
}
