//! Rule chains: processing steps of telemetry rows, assigned by product.
//!
//! A chain is validated and compiled once. Running it takes a bounded number of steps and does not block. The root
//! chain, which only saves rows and evaluates alarms, has no cost.

mod compile;
mod compiled_chain;
mod condition;
mod definition;
mod effects;
mod registry;
mod run;
mod statement;

#[cfg(test)]
mod tests;

pub use compile::ChainCompileError;
pub use compiled_chain::Chain;
pub use definition::{
    ChainDefinition, ChainDefinitionError, ChainRelation, MAX_NODES, NodeDefinition, NodeKind,
    RelationOutcome,
};
pub use effects::{ChainEffects, ChainRow};
pub use registry::{Chains, KIND, MAX_CHAINS, ROOT};
pub use run::ChainRunError;
