//! From a definition to a chain, or to what is wrong with it.

use mqtt::TopicLimits;
use rules::{Form, Options, Template};

use super::condition::Condition;
use super::definition::{Definition, NodeKind, On, Relation};
use super::{Chain, MAX_NODES, Node, Republish, Work};

/// What is wrong with a chain, and at which node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    #[error("a chain has 1 to {MAX_NODES} nodes, not {0}")]
    Size(usize),
    #[error("there are two nodes {0:?}")]
    Twice(String),
    #[error("{place} names the node {name:?}, which is not there")]
    Unknown { place: String, name: String },
    #[error("node {node:?} leads back to itself over {over:?}")]
    Cycle { node: String, over: String },
    #[error("node {node:?} is a {kind} and has no outcome \"{on}\"; expected {expected}")]
    Outcome {
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
    /// What is wrong, with the name of the node.
    pub fn compile(definition: &Definition) -> Result<Self, ChainError> {
        let nodes = &definition.nodes;
        if nodes.is_empty() || nodes.len() > MAX_NODES {
            return Err(ChainError::Size(nodes.len()));
        }
        for (at, node) in nodes.iter().enumerate() {
            if nodes[..at].iter().any(|other| other.id == node.id) {
                return Err(ChainError::Twice(node.id.clone()));
            }
        }
        let mut keys = Vec::new();
        let mut compiled = Vec::with_capacity(nodes.len());
        for node in nodes {
            compiled.push(Node {
                id: node.id.as_str().into(),
                work: work(&node.id, &node.kind, &mut keys)?,
                on_success: follow(definition, &node.id, &[On::Success, On::True])?,
                on_false: follow(definition, &node.id, &[On::False])?,
                on_failure: follow(definition, &node.id, &[On::Failure])?,
            });
        }
        for relation in &definition.relations {
            check(definition, relation)?;
        }
        let first = match &definition.first {
            None => 0,
            Some(name) => number(definition, name, || "\"first\"".to_owned())?,
        };
        refuse_cycles(&compiled)?;
        Ok(Self {
            nodes: compiled.into(),
            first: [first].into(),
            keys: keys.into(),
            only_saves: false,
        })
    }
}

fn number(
    definition: &Definition,
    name: &str,
    place: impl FnOnce() -> String,
) -> Result<u16, ChainError> {
    let found = definition.nodes.iter().position(|node| node.id == name);
    found
        .map(|at| at as u16)
        .ok_or_else(|| ChainError::Unknown {
            place: place(),
            name: name.to_owned(),
        })
}

fn follow(definition: &Definition, from: &str, on: &[On]) -> Result<Box<[u16]>, ChainError> {
    let relations = definition.relations.iter();
    relations
        .filter(|relation| relation.from == from && on.contains(&relation.on))
        .map(|relation| {
            number(definition, &relation.to, || {
                format!("a relation of {from:?}")
            })
        })
        .collect()
}

fn check(definition: &Definition, relation: &Relation) -> Result<(), ChainError> {
    let place = || format!("a relation to {:?}", relation.to);
    let from = number(definition, &relation.from, place)?;
    let node = &definition.nodes[usize::from(from)];
    let is_filter = matches!(node.kind, NodeKind::Filter { .. });
    let (on, fits) = match relation.on {
        On::Success => ("success", !is_filter),
        On::Failure => ("failure", true),
        On::True => ("true", is_filter),
        On::False => ("false", is_filter),
    };
    if fits {
        return Ok(());
    }
    Err(ChainError::Outcome {
        node: node.id.clone(),
        kind: node.kind.name(),
        on,
        expected: match is_filter {
            true => "true, false or failure",
            false => "success or failure",
        },
    })
}

fn refuse_cycles(nodes: &[Node]) -> Result<(), ChainError> {
    /// Whether a node was gone through: not yet, on the way now, done.
    #[derive(Clone, Copy, PartialEq)]
    enum Seen {
        No,
        Open,
        Done,
    }
    fn visit(nodes: &[Node], at: usize, seen: &mut [Seen]) -> Result<(), ChainError> {
        seen[at] = Seen::Open;
        let node = &nodes[at];
        let outcomes = [&node.on_success, &node.on_false, &node.on_failure];
        for next in outcomes
            .into_iter()
            .flatten()
            .map(|next| usize::from(*next))
        {
            match seen[next] {
                Seen::Open => {
                    return Err(ChainError::Cycle {
                        node: nodes[next].id.to_string(),
                        over: node.id.to_string(),
                    });
                }
                // At most as deep as there are nodes.
                Seen::No => visit(nodes, next, seen)?,
                Seen::Done => {}
            }
        }
        seen[at] = Seen::Done;
        Ok(())
    }
    let mut seen = vec![Seen::No; nodes.len()];
    for at in 0..nodes.len() {
        if seen[at] == Seen::No {
            visit(nodes, at, &mut seen)?;
        }
    }
    Ok(())
}

fn work(id: &str, kind: &NodeKind, keys: &mut Vec<Box<str>>) -> Result<Work, ChainError> {
    let wrong = |field, reason: String| ChainError::Field {
        node: id.to_owned(),
        field,
        reason,
    };
    let template = |field, text: &str, form| {
        let compiled = Template::compile(text, form, &Options::default());
        compiled.map_err(|error| wrong(field, error.to_string()))
    };
    Ok(match kind {
        NodeKind::Validate => Work::Validate,
        NodeKind::Filter { condition } => {
            let condition = Condition::compile(condition, keys);
            Work::Filter(condition.map_err(|reason| wrong("condition", reason))?)
        }
        NodeKind::Transform { select } => {
            let rule = statement("SELECT", select, "FROM \"$EVENT.DEVICE\"");
            Work::Transform(Box::new(rule.map_err(|reason| wrong("select", reason))?))
        }
        NodeKind::SaveTelemetry => Work::SaveTelemetry,
        NodeKind::Alarm => Work::Alarm,
        NodeKind::Log { message } => Work::Log(template("message", message, Form::Text)?),
        NodeKind::Republish {
            topic,
            payload,
            qos,
            retain,
        } => {
            if *qos > 2 {
                return Err(wrong("qos", format!("expected 0, 1 or 2, not {qos}")));
            }
            let topic = template("topic", topic, Form::Text)?;
            if let Some(topic) = topic.constant()
                && let Err(error) = mqtt::validate_topic_name(topic, &TopicLimits::NONE)
            {
                return Err(wrong("topic", format!("{topic:?} is no topic: {error}")));
            }
            Work::Republish(Box::new(Republish {
                topic,
                payload: template("payload", payload, Form::Json)?,
                qos: *qos,
                retain: *retain,
            }))
        }
        NodeKind::Sink { sink } if sink.is_empty() => {
            return Err(wrong("sink", "expected the name of a sink".to_owned()));
        }
        NodeKind::Sink { sink } => Work::Sink(sink.as_str().into()),
    })
}

/// A statement that gives at most one output for each row. `text` is what somebody wrote; errors name lines and columns of it.
pub(super) fn statement(before: &str, text: &str, behind: &str) -> Result<rules::Rule, String> {
    let sql = format!("{before}\n{text}\n{behind}");
    let rule = rules::compile(&sql, &Options::default()).map_err(|mut error| {
        let lines = text.lines().count().max(1) as u32;
        error.line = error.line.saturating_sub(1).max(1);
        if error.line > lines {
            // What is missing is missed behind it.
            error.line = lines;
            error.column = text.lines().last().unwrap_or_default().chars().count() as u32 + 1;
        }
        error.to_string()
    })?;
    match rule.window() {
        Some(_) => Err("a chain has no windows: use a rule on $EVENT.DEVICE".to_owned()),
        None => Ok(rule),
    }
}
