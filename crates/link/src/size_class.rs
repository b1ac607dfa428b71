//! The table of size classes: how a message travels depends only on its size.
//!
//! | class | default sizes | treatment |
//! |---|---|---|
//! | tiny | below 1 KiB | many in one frame |
//! | small | below 16 KiB | one frame; the receiver slices it from a shared buffer |
//! | medium | below 128 KiB | one frame with a buffer of its own, not copied |
//! | large | below 1 MiB | fragments between which other priorities are sent; collected within the message window |
//! | huge | 1 MiB and more | a stream, never in the receiver's memory as a whole |

use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SizeClass {
    Tiny = 0,
    Small = 1,
    Medium = 2,
    Large = 3,
    Huge = 4,
}

impl SizeClass {
    pub const ALL: [Self; 5] = [
        Self::Tiny,
        Self::Small,
        Self::Medium,
        Self::Large,
        Self::Huge,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Tiny => "tiny",
            Self::Small => "small",
            Self::Medium => "medium",
            Self::Large => "large",
            Self::Huge => "huge",
        }
    }
}

impl fmt::Display for SizeClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The limits of the classes: each is the first size of the next class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeClassTable {
    pub tiny_limit_bytes: usize,
    pub small_limit_bytes: usize,
    /// At most [`SizeClassTable::MAX_MEDIUM_LIMIT_BYTES`].
    pub medium_limit_bytes: usize,
    pub large_limit_bytes: usize,
}

impl Default for SizeClassTable {
    fn default() -> Self {
        Self {
            tiny_limit_bytes: 1024,
            small_limit_bytes: 16 * 1024,
            medium_limit_bytes: 128 * 1024,
            large_limit_bytes: 1024 * 1024,
        }
    }
}

/// Limits of size classes that are not ascending, or too large.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "size classes: expected limits that do not descend, with medium_limit_bytes of at most 131072, not {0:?}"
)]
pub struct SizeClassError(pub SizeClassTable);

impl SizeClassTable {
    /// Every peer accepts frames of this size.
    pub const MAX_MEDIUM_LIMIT_BYTES: usize = 128 * 1024;

    pub const fn classify(&self, bytes: usize) -> SizeClass {
        if bytes < self.tiny_limit_bytes {
            SizeClass::Tiny
        } else if bytes < self.small_limit_bytes {
            SizeClass::Small
        } else if bytes < self.medium_limit_bytes {
            SizeClass::Medium
        } else if bytes < self.large_limit_bytes {
            SizeClass::Large
        } else {
            SizeClass::Huge
        }
    }

    pub fn validate(self) -> Result<Self, SizeClassError> {
        let limits = [
            self.tiny_limit_bytes,
            self.small_limit_bytes,
            self.medium_limit_bytes,
            self.large_limit_bytes,
        ];
        if limits.is_sorted() && self.medium_limit_bytes <= Self::MAX_MEDIUM_LIMIT_BYTES {
            Ok(self)
        } else {
            Err(SizeClassError(self))
        }
    }
}

/// Messages and bytes of each class in one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SizeClassCounters {
    pub messages: [u64; 5],
    pub bytes: [u64; 5],
}

impl SizeClassCounters {
    pub(crate) fn count(&mut self, class: SizeClass, messages: u64, bytes: u64) {
        self.messages[class as usize] += messages;
        self.bytes[class as usize] += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_the_first_size_of_the_next_class() {
        let table = SizeClassTable::default().validate().unwrap();
        let cases = [
            (0, SizeClass::Tiny),
            (1023, SizeClass::Tiny),
            (1024, SizeClass::Small),
            (16_383, SizeClass::Small),
            (16_384, SizeClass::Medium),
            (131_071, SizeClass::Medium),
            (131_072, SizeClass::Large),
            (1_048_575, SizeClass::Large),
            (1_048_576, SizeClass::Huge),
            (usize::MAX, SizeClass::Huge),
        ];
        for (bytes, class) in cases {
            assert_eq!(table.classify(bytes), class, "{bytes}");
        }
    }

    #[test]
    fn limits_must_ascend_and_fit_into_a_frame() {
        let descending = SizeClassTable {
            tiny_limit_bytes: 20_000,
            ..Default::default()
        };
        let too_large = SizeClassTable {
            medium_limit_bytes: 200_000,
            ..Default::default()
        };
        for table in [descending, too_large] {
            let error = table.validate().unwrap_err().to_string();
            assert!(error.contains("at most 131072"), "{error}");
        }
    }
}
