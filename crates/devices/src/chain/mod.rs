//! Rule chains: what happens to a row of telemetry on its way, node by node, as a product says.
//!
//! A chain is checked and compiled once. Running it takes a bounded number of steps, waits for nothing, and costs nothing at
//! all for the root chain, which only saves and lets alarms look.

mod compile;
mod condition;
mod definition;
mod registry;
mod run;

#[cfg(test)]
mod tests;

use bumpalo::Bump;
use rules::{Rule, Template};
use series::{KeyId, Point};

use condition::ChainCondition;

pub use compile::ChainCompileError;
pub use definition::{
    ChainDefinition, ChainDefinitionError, ChainRelation, NodeDefinition, NodeKind, RelationOutcome,
};
pub use registry::{Chains, KIND, MAX_CHAINS, ROOT};
pub use run::ChainRunError;

use crate::ingest::PipelineOutputs;

/// Nodes of one chain.
pub const MAX_NODES: usize = 64;
/// Nodes that one row may pass, counting each time.
pub(crate) const MAX_STEPS: u32 = 256;

/// A compiled chain.
pub struct Chain {
    nodes: Box<[ChainNode]>,
    first: Box<[u16]>,
    /// Keys that conditions look for without evaluating expressions.
    keys: Box<[Box<str>]>,
    only_saves: bool,
}

struct ChainNode {
    id: Box<str>,
    work: NodeOperation,
    /// Where to go on: all of them, one after the other.
    on_success: Box<[u16]>,
    on_false: Box<[u16]>,
    on_failure: Box<[u16]>,
}

enum NodeOperation {
    Validate,
    Filter(ChainCondition),
    Transform(Box<Rule>),
    SaveTelemetry,
    Alarm,
    Log(Template),
    Republish(Box<RepublishNode>),
    Sink(Box<str>),
}

struct RepublishNode {
    topic: Template,
    payload: Template,
    qos: u8,
    retain: bool,
}

/// A row on its way through a chain.
#[derive(Clone, Copy)]
pub struct ChainRow<'r, 'a> {
    pub device: &'r str,
    pub product: &'r str,
    pub ts_ms: i64,
    pub points: &'r [Point<'a>],
    /// The names of the points, where a transform has made them; empty: [`ChainEffects::key_name`] knows them.
    pub names: &'r [&'a str],
}

/// What nodes do, and what they need to know.
pub trait ChainEffects<'a> {
    /// For what must live until the row is stored.
    fn arena(&self) -> &'a Bump;
    fn key_name(&self, key: KeyId) -> &str;
    /// The number of a key, made if need be; `None`: there can be no more.
    fn register_key(&self, name: &str) -> Option<KeyId>;
    fn save_row(&mut self, points: &[Point<'a>]);
    fn evaluate_alarms(&mut self, ts_ms: i64, points: &[Point<'a>]);
    fn outputs(&self) -> &dyn PipelineOutputs;
}

impl Chain {
    /// Validates, saves, and lets alarms look.
    pub fn root() -> Self {
        Self {
            nodes: Box::default(),
            first: Box::default(),
            keys: Box::default(),
            only_saves: true,
        }
    }

    /// Whether every row is saved as it is and nothing else happens here.
    #[inline]
    pub fn only_saves(&self) -> bool {
        self.only_saves
    }

    /// Names of the sinks that rows go to.
    pub fn sinks(&self) -> impl Iterator<Item = &str> {
        let nodes = self.nodes.iter();
        nodes.filter_map(|node| match &node.work {
            NodeOperation::Sink(name) => Some(&**name),
            _ => None,
        })
    }

    pub fn keys(&self) -> &[Box<str>] {
        &self.keys
    }
}
