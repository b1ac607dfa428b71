//! Rule chains: processing steps of telemetry rows, assigned by product.
//!
//! A chain is validated and compiled once. Running it takes a bounded number of steps and does not block. The root
//! chain, which only saves rows and evaluates alarms, has no cost.

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

/// Maximum number of nodes of a chain.
pub const MAX_NODES: usize = 64;
/// Maximum number of nodes that a row passes, counting repetitions.
pub(crate) const MAX_STEPS: u32 = 256;

/// A compiled chain.
pub struct Chain {
    nodes: Box<[ChainNode]>,
    first: Box<[u16]>,
    /// Keys used by conditions that need no expression evaluator.
    keys: Box<[Box<str>]>,
    only_saves: bool,
}

struct ChainNode {
    id: Box<str>,
    work: NodeOperation,
    /// Indexes of the next nodes, which are visited in order.
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

/// A row that passes through a chain.
#[derive(Clone, Copy)]
pub struct ChainRow<'r, 'a> {
    pub device: &'r str,
    pub product: &'r str,
    pub ts_ms: i64,
    pub points: &'r [Point<'a>],
    /// Names of the points after a transform; empty: [`ChainEffects::key_name`] returns them.
    pub names: &'r [&'a str],
}

/// The effects of nodes, and the data that nodes need.
pub trait ChainEffects<'a> {
    /// Arena for data that must live until the row is stored.
    fn arena(&self) -> &'a Bump;
    fn key_name(&self, key: KeyId) -> &str;
    /// Returns the number of a key, which is created if necessary; `None`: the key dictionary is full.
    fn register_key(&self, name: &str) -> Option<KeyId>;
    fn save_row(&mut self, points: &[Point<'a>]);
    fn evaluate_alarms(&mut self, ts_ms: i64, points: &[Point<'a>]);
    fn republish(&mut self, topic: &str, payload: &[u8], qos: u8, retain: bool);
    fn outputs(&self) -> &dyn PipelineOutputs;
}

impl Chain {
    /// The built-in chain: validates, saves and evaluates alarms.
    pub fn root() -> Self {
        Self {
            nodes: Box::default(),
            first: Box::default(),
            keys: Box::default(),
            only_saves: true,
        }
    }

    /// Whether rows are saved unchanged and the chain does nothing else.
    #[inline]
    pub fn only_saves(&self) -> bool {
        self.only_saves
    }

    /// Names of the sinks that the chain writes to.
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
