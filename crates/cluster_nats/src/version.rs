//! Versions of NATS servers.

use std::fmt;

/// The oldest usable version. Earlier ones lose acknowledged messages or lack fixes of replication that a cluster needs.
pub const MIN_SERVER_VERSION: ServerVersion = ServerVersion {
    major: 2,
    minor: 12,
    patch: 15,
};

/// A version of a NATS server, without its suffix for previews.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerVersion {
    pub major: u32,
    pub minor: u32,
    pub patch: u32,
}

impl ServerVersion {
    /// Reads `2.12.15`, `v2.12.15` and `2.14.0-preview.1`. A preview counts as the version before it.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim().trim_start_matches('v');
        let (numbers, suffix) = match text.find(['-', '+']) {
            Some(end) => text.split_at(end),
            None => (text, ""),
        };
        let mut numbers = numbers.split('.').map(str::parse);
        let mut next = || numbers.next()?.ok();
        let (major, minor, patch): (u32, u32, u32) = (next()?, next()?, next()?);
        if numbers.next().is_some() {
            return None;
        }
        let is_preview = suffix.starts_with('-');
        let (minor, patch) = match (is_preview, patch) {
            (false, _) => (minor, patch),
            (true, 0) => (minor.saturating_sub(1), u32::MAX),
            (true, _) => (minor, patch - 1),
        };
        Some(Self {
            major,
            minor,
            patch,
        })
    }
}

impl fmt::Display for ServerVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        let is_new_enough = |text: &str| ServerVersion::parse(text).unwrap() >= MIN_SERVER_VERSION;
        for text in [
            "2.12.15",
            "v2.12.16",
            "2.14.0",
            "3.0.0",
            "2.14.0-preview.1",
            "2.12.15+build",
        ] {
            assert!(is_new_enough(text), "{text}");
        }
        for text in ["2.9.10", "2.12.9", "2.12.15-RC.1", "1.99.99"] {
            assert!(!is_new_enough(text), "{text}");
        }
        for text in ["", "2.12", "2.12.15.1", "two", "2.x.1"] {
            assert_eq!(ServerVersion::parse(text), None, "{text}");
        }
    }
}
