//! Preconditions of changes of configuration objects.

/// Precondition of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpectedVersion {
    /// No precondition.
    Any,
    /// The object must not exist.
    Absent,
    /// The object must have this version.
    Version(u64),
}
