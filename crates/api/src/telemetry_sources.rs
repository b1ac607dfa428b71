//! Where a query of the telemetry of all nodes gets its answers: nodes, and copies that answer for them.

use std::collections::{BTreeMap, BTreeSet};

use crate::cluster_backend::TelemetryCopyPlace;

/// What is known of the sources of a query: nodes by name, and copies of nodes that are gone by [`gone_source`].
#[derive(Default)]
pub(crate) struct SourceStates {
    /// Sources that did not answer.
    pub(crate) failed: BTreeSet<String>,
    /// Nodes whose telemetry is missing, or may be.
    pub(crate) missing_nodes: BTreeSet<String>,
    /// Copies that answer for sources.
    pub(crate) copies: BTreeMap<String, TelemetryCopyPlace>,
}

/// The name of a copy among the sources. Names of nodes have no spaces.
pub(crate) fn gone_source(copy: &TelemetryCopyPlace) -> String {
    format!("copy {}", copy.key)
}

/// Whether a copy has what no node has: its node is no member any more, or has begun with other time series.
pub(crate) fn is_of_gone_node(copy: &TelemetryCopyPlace, own: &str, others: &[String]) -> bool {
    copy.is_orphan || copy.node != own && !others.contains(&copy.node)
}
