//! What an action receives: an output, its event and its rule.

use rules::{EventView, RuleOutput};

use crate::rule_lineage::RuleLineage;

/// The rule whose action runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ActingRule<'a> {
    pub(crate) name: &'a str,
    /// [`RunningRule::serial`](crate::running_rule::RunningRule::serial).
    pub(crate) serial: u64,
    pub(crate) max_republish_depth: u8,
}

/// An output and the event it was computed from.
pub(crate) struct ActionInput<'o, 'a> {
    pub(crate) rule: ActingRule<'a>,
    pub(crate) output: RuleOutput<'a>,
    pub(crate) view: &'o EventView<'a>,
    pub(crate) lineage: RuleLineage,
    pub(crate) now_ms: u64,
}
