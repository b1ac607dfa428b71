//! Compiles the definition of a chain.

use mqtt::TopicLimits;
use rules::{CompileOptions, Template, TemplateFormat};
use serde_json::Value;

use super::compiled_chain::{Chain, ChainNode, NodeOperation, RepublishNode};
use super::condition::ChainCondition;
use super::definition::{
    ChainDefinition, ChainDefinitionError, ChainRelation, MAX_NODES, NodeKind, RelationOutcome,
};
use super::statement::statement;

/// What is wrong with a chain, and at which node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChainCompileError {
    #[error("expected 1 to {MAX_NODES} nodes, found {0}")]
    NodeCount(usize),
    #[error("there are two nodes with the id {0:?}")]
    DuplicateNode(String),
    #[error("{place} refers to the node {name:?}, which does not exist")]
    UnknownNode { place: String, name: String },
    #[error("node {node:?} is part of a cycle through {over:?}")]
    Cycle { node: String, over: String },
    #[error("node {node:?} of type {kind} has no outcome \"{on}\"; expected {expected}")]
    UnsupportedOutcome {
        node: String,
        kind: &'static str,
        on: &'static str,
        expected: &'static str,
    },
    #[error("node {node:?}, {field}: {reason}")]
    Field {
        node: String,
        field: &'static str,
        reason: String,
    },
}

impl Chain {
    /// # Errors
    /// Returns what is wrong and the id of the node.
    pub fn compile(definition: &ChainDefinition) -> Result<Self, ChainCompileError> {
        let nodes = &definition.nodes;
        if nodes.is_empty() || nodes.len() > MAX_NODES {
            return Err(ChainCompileError::NodeCount(nodes.len()));
        }
        for (at, node) in nodes.iter().enumerate() {
            if nodes[..at].iter().any(|other| other.id == node.id) {
                return Err(ChainCompileError::DuplicateNode(node.id.clone()));
            }
        }
        let mut keys = Vec::new();
        let mut compiled = Vec::with_capacity(nodes.len());
        for node in nodes {
            compiled.push(ChainNode {
                id: node.id.as_str().into(),
                work: compile_node(&node.id, &node.kind, &mut keys)?,
                on_success: successors(
                    definition,
                    &node.id,
                    &[RelationOutcome::Success, RelationOutcome::True],
                )?,
                on_false: successors(definition, &node.id, &[RelationOutcome::False])?,
                on_failure: successors(definition, &node.id, &[RelationOutcome::Failure])?,
            });
        }
        for relation in &definition.relations {
            check(definition, relation)?;
        }
        let first = match &definition.first {
            None => 0,
            Some(name) => node_index(definition, name, || "\"first\"".to_owned())?,
        };
        check_acyclic(&compiled)?;
        Ok(Self {
            nodes: compiled.into(),
            first: [first].into(),
            keys: keys.into(),
            only_saves: false,
        })
    }
}

impl ChainDefinition {
    /// Parses and compiles a chain.
    ///
    /// # Errors
    /// Returns the path of the invalid field and what is wrong with it.
    pub fn read(value: &Value) -> Result<(Self, Chain), ChainDefinitionError> {
        let read: Result<Self, _> = definition::read_definition(value);
        let definition =
            read.map_err(|error| ChainDefinitionError::new(error.field, error.detail))?;
        definition.check_bounds(value)?;
        let chain = Chain::compile(&definition).map_err(|error| {
            ChainDefinitionError::new(definition.field_of(&error), error.to_string())
        })?;
        Ok((definition, chain))
    }

    /// The path of the field that an error refers to.
    fn field_of(&self, error: &ChainCompileError) -> String {
        let node = |id: &str| self.nodes.iter().position(|node| node.id == id);
        let relation =
            |is_it: &dyn Fn(&ChainRelation) -> bool| self.relations.iter().position(is_it);
        match error {
            ChainCompileError::NodeCount(_)
            | ChainCompileError::DuplicateNode(_)
            | ChainCompileError::Cycle { .. } => "nodes".to_owned(),
            ChainCompileError::UnknownNode { name, .. } if self.first.as_ref() == Some(name) => {
                "first".to_owned()
            }
            ChainCompileError::UnknownNode { name, .. } => {
                let to = relation(&|relation| relation.to == *name);
                let from = relation(&|relation| relation.from == *name);
                match (to, from) {
                    (Some(at), _) => format!("relations[{at}].to"),
                    (None, Some(at)) => format!("relations[{at}].from"),
                    (None, None) => "relations".to_owned(),
                }
            }
            ChainCompileError::UnsupportedOutcome { node, on, .. } => {
                let name = |on: RelationOutcome| match on {
                    RelationOutcome::Success => "success",
                    RelationOutcome::Failure => "failure",
                    RelationOutcome::True => "true",
                    RelationOutcome::False => "false",
                };
                let at = relation(&|relation| relation.from == *node && name(relation.on) == *on);
                at.map_or_else(
                    || "relations".to_owned(),
                    |at| format!("relations[{at}].on"),
                )
            }
            ChainCompileError::Field {
                node: id, field, ..
            } => match node(id) {
                Some(at) => format!("nodes[{at}].{field}"),
                None => "nodes".to_owned(),
            },
        }
    }
}

fn node_index(
    definition: &ChainDefinition,
    name: &str,
    place: impl FnOnce() -> String,
) -> Result<u16, ChainCompileError> {
    let found = definition.nodes.iter().position(|node| node.id == name);
    found
        .map(|at| at as u16)
        .ok_or_else(|| ChainCompileError::UnknownNode {
            place: place(),
            name: name.to_owned(),
        })
}

fn successors(
    definition: &ChainDefinition,
    from: &str,
    on: &[RelationOutcome],
) -> Result<Box<[u16]>, ChainCompileError> {
    let relations = definition.relations.iter();
    relations
        .filter(|relation| relation.from == from && on.contains(&relation.on))
        .map(|relation| {
            node_index(definition, &relation.to, || {
                format!("a relation from {from:?}")
            })
        })
        .collect()
}

fn check(definition: &ChainDefinition, relation: &ChainRelation) -> Result<(), ChainCompileError> {
    let place = || format!("a relation to {:?}", relation.to);
    let from = node_index(definition, &relation.from, place)?;
    let node = &definition.nodes[usize::from(from)];
    let is_filter = matches!(node.kind, NodeKind::Filter { .. });
    let (on, fits) = match relation.on {
        RelationOutcome::Success => ("success", !is_filter),
        RelationOutcome::Failure => ("failure", true),
        RelationOutcome::True => ("true", is_filter),
        RelationOutcome::False => ("false", is_filter),
    };
    if fits {
        return Ok(());
    }
    Err(ChainCompileError::UnsupportedOutcome {
        node: node.id.clone(),
        kind: node.kind.name(),
        on,
        expected: match is_filter {
            true => "true, false or failure",
            false => "success or failure",
        },
    })
}

fn check_acyclic(nodes: &[ChainNode]) -> Result<(), ChainCompileError> {
    /// Whether a node was not visited yet, is being visited, or is done.
    #[derive(Clone, Copy, PartialEq)]
    enum VisitState {
        No,
        Open,
        Done,
    }
    fn visit(
        nodes: &[ChainNode],
        at: usize,
        seen: &mut [VisitState],
    ) -> Result<(), ChainCompileError> {
        seen[at] = VisitState::Open;
        let node = &nodes[at];
        let outcomes = [&node.on_success, &node.on_false, &node.on_failure];
        for next in outcomes
            .into_iter()
            .flatten()
            .map(|next| usize::from(*next))
        {
            match seen[next] {
                VisitState::Open => {
                    return Err(ChainCompileError::Cycle {
                        node: nodes[next].id.to_string(),
                        over: node.id.to_string(),
                    });
                }
                // The recursion is at most as deep as the number of nodes.
                VisitState::No => visit(nodes, next, seen)?,
                VisitState::Done => {}
            }
        }
        seen[at] = VisitState::Done;
        Ok(())
    }
    let mut seen = vec![VisitState::No; nodes.len()];
    for at in 0..nodes.len() {
        if seen[at] == VisitState::No {
            visit(nodes, at, &mut seen)?;
        }
    }
    Ok(())
}

fn compile_node(
    id: &str,
    kind: &NodeKind,
    keys: &mut Vec<Box<str>>,
) -> Result<NodeOperation, ChainCompileError> {
    let wrong = |field, reason: String| ChainCompileError::Field {
        node: id.to_owned(),
        field,
        reason,
    };
    let template = |field, text: &str, form| {
        let compiled = Template::compile(text, form, &CompileOptions::default());
        compiled.map_err(|error| wrong(field, error.to_string()))
    };
    Ok(match kind {
        NodeKind::Validate => NodeOperation::Validate,
        NodeKind::Filter { condition } => {
            let condition = ChainCondition::compile(condition, keys);
            NodeOperation::Filter(condition.map_err(|reason| wrong("condition", reason))?)
        }
        NodeKind::Transform { select } => {
            let rule = statement("SELECT", select, "FROM \"$EVENT.DEVICE\"");
            NodeOperation::Transform(Box::new(rule.map_err(|reason| wrong("select", reason))?))
        }
        NodeKind::SaveTelemetry => NodeOperation::SaveTelemetry,
        NodeKind::Alarm => NodeOperation::Alarm,
        NodeKind::Log { message } => {
            NodeOperation::Log(template("message", message, TemplateFormat::Text)?)
        }
        NodeKind::Republish {
            topic,
            payload,
            qos,
            retain,
        } => {
            if *qos > 2 {
                return Err(wrong("qos", format!("expected 0, 1 or 2, not {qos}")));
            }
            let topic = template("topic", topic, TemplateFormat::Text)?;
            if let Some(topic) = topic.constant()
                && let Err(error) = mqtt::validate_topic_name(topic, &TopicLimits::NONE)
            {
                return Err(wrong("topic", format!("{topic:?} is not a topic: {error}")));
            }
            NodeOperation::Republish(Box::new(RepublishNode {
                topic,
                payload: template("payload", payload, TemplateFormat::Json)?,
                qos: *qos,
                retain: *retain,
            }))
        }
        NodeKind::Sink { sink } if sink.is_empty() => {
            return Err(wrong("sink", "expected the name of a sink".to_owned()));
        }
        NodeKind::Sink { sink } => NodeOperation::Sink(sink.as_str().into()),
    })
}
