//! The setting `store.on_damage`.

/// What a start does with damaged files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum DamagePolicy {
    /// The node does not start.
    #[default]
    Refuse,
    /// It continues with what can be read.
    Quarantine,
}
