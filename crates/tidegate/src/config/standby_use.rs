//! The setting `cluster.standby`.

use super::setting_kind::NamedChoice;

/// When another node keeps a copy of the durable sessions of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StandbyUse {
    /// If there are three or more NATS servers, so that one of them can fail as well.
    Auto,
    Always,
    Never,
}

impl NamedChoice for StandbyUse {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("auto", Self::Auto),
        ("always", Self::Always),
        ("never", Self::Never),
    ];
}
