//! A compiled chain: its nodes and what follows each of them.

use rules::{Rule, Template};

use super::condition::ChainCondition;

/// A compiled chain.
pub struct Chain {
    pub(super) nodes: Box<[ChainNode]>,
    pub(super) first: Box<[u16]>,
    /// Keys used by conditions that need no expression evaluator.
    pub(super) keys: Box<[Box<str>]>,
    pub(super) only_saves: bool,
}

pub(super) struct ChainNode {
    pub(super) id: Box<str>,
    pub(super) work: NodeOperation,
    /// Indexes of the next nodes, which are visited in order.
    pub(super) on_success: Box<[u16]>,
    pub(super) on_false: Box<[u16]>,
    pub(super) on_failure: Box<[u16]>,
}

pub(super) enum NodeOperation {
    Validate,
    Filter(ChainCondition),
    Transform(Box<Rule>),
    SaveTelemetry,
    Alarm,
    Log(Template),
    Republish(Box<RepublishNode>),
    Sink(Box<str>),
}

pub(super) struct RepublishNode {
    pub(super) topic: Template,
    pub(super) payload: Template,
    pub(super) qos: u8,
    pub(super) retain: bool,
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
