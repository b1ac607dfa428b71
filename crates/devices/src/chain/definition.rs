//! How a chain is written.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Chain, ChainCompileError, MAX_NODES};

/// Relations of one chain.
const MAX_RELATIONS: usize = 256;
const MAX_TEXT_CHARS: usize = 16_384;

/// What happens to a row, node by node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChainDefinition {
    #[serde(default)]
    #[schemars(length(max = 1000))]
    pub description: String,
    #[schemars(length(min = 1, max = 64))]
    pub nodes: Vec<NodeDefinition>,
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub relations: Vec<ChainRelation>,
    /// Where a row begins; without it, at the first node of the list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeDefinition {
    /// Unique in the chain.
    #[schemars(length(min = 1, max = 128))]
    pub id: String,
    #[serde(flatten)]
    pub kind: NodeKind,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum NodeKind {
    /// Values are checked against the thing model before a chain begins; here it only says so.
    Validate,
    /// Goes on with `true` or `false`.
    Filter {
        #[schemars(length(max = 16384))]
        condition: String,
    },
    /// The columns of a SELECT become the row.
    Transform {
        #[schemars(length(max = 16384))]
        select: String,
    },
    SaveTelemetry,
    /// Lets the product's alarm rules look at the row.
    Alarm,
    /// Writes a line with placeholders to the node's log.
    Log {
        #[schemars(length(max = 16384))]
        message: String,
    },
    /// Publishes a message.
    Republish {
        #[schemars(length(max = 16384))]
        topic: String,
        #[serde(default = "whole_row")]
        #[schemars(length(max = 16384))]
        payload: String,
        #[serde(default)]
        #[schemars(range(max = 2))]
        qos: u8,
        #[serde(default)]
        retain: bool,
    },
    /// Hands the row to a sink.
    Sink {
        #[schemars(length(min = 1, max = 256))]
        sink: String,
    },
}

fn whole_row() -> String {
    "${.}".to_owned()
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChainRelation {
    pub from: String,
    pub to: String,
    #[serde(default)]
    pub on: RelationOutcome,
}

/// On which outcome of a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RelationOutcome {
    #[default]
    Success,
    Failure,
    True,
    False,
}

impl NodeKind {
    pub fn name(&self) -> &'static str {
        match self {
            NodeKind::Validate => "validate",
            NodeKind::Filter { .. } => "filter",
            NodeKind::Transform { .. } => "transform",
            NodeKind::SaveTelemetry => "save_telemetry",
            NodeKind::Alarm => "alarm",
            NodeKind::Log { .. } => "log",
            NodeKind::Republish { .. } => "republish",
            NodeKind::Sink { .. } => "sink",
        }
    }

    /// The field of a text that stands in it, and the text.
    fn texts(&self) -> [Option<(&'static str, &str)>; 2] {
        match self {
            NodeKind::Filter { condition } => [Some(("condition", condition)), None],
            NodeKind::Transform { select } => [Some(("select", select)), None],
            NodeKind::Log { message } => [Some(("message", message)), None],
            NodeKind::Republish { topic, payload, .. } => {
                [Some(("topic", topic)), Some(("payload", payload))]
            }
            NodeKind::Sink { .. }
            | NodeKind::Validate
            | NodeKind::SaveTelemetry
            | NodeKind::Alarm => [None, None],
        }
    }
}

/// What of a written chain is not as it has to be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {detail}")]
pub struct ChainDefinitionError {
    /// Its path, such as `nodes[2].topic`; empty: the chain as a whole.
    pub field: String,
    pub detail: String,
}

impl ChainDefinitionError {
    fn new(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            detail: detail.into(),
        }
    }
}

impl ChainDefinition {
    /// Reads a chain and compiles it.
    ///
    /// # Errors
    /// What is wrong, with the path of the field.
    pub fn read(value: &Value) -> Result<(Self, Chain), ChainDefinitionError> {
        let read: Result<Self, _> = serde_path_to_error::deserialize(value);
        let definition = read.map_err(|error| {
            let path = error.path().to_string();
            let field = if path == "." { String::new() } else { path };
            ChainDefinitionError::new(field, error.into_inner().to_string())
        })?;
        definition.check_bounds(value)?;
        let chain = Chain::compile(&definition).map_err(|error| {
            ChainDefinitionError::new(definition.field_of(&error), error.to_string())
        })?;
        Ok((definition, chain))
    }

    fn check_bounds(&self, value: &Value) -> Result<(), ChainDefinitionError> {
        let length = |field: String, text: &str, most: usize| match text.chars().count() {
            0 if most == 128 => Err(ChainDefinitionError::new(field, "expected a text")),
            count if count > most => {
                let detail = format!("expected at most {most} characters, found {count}");
                Err(ChainDefinitionError::new(field, detail))
            }
            _ => Ok(()),
        };
        length("description".to_owned(), &self.description, 1000)?;
        if self.relations.len() > MAX_RELATIONS {
            let detail = format!("expected at most {MAX_RELATIONS}");
            return Err(ChainDefinitionError::new("relations", detail));
        }
        // More are refused when they are compiled; errors shall not be told for each of a million.
        for (at, node) in self.nodes.iter().enumerate().take(MAX_NODES) {
            let place = format!("nodes[{at}]");
            length(format!("{place}.id"), &node.id, 128)?;
            for (field, text) in node.kind.texts().into_iter().flatten() {
                length(format!("{place}.{field}"), text, MAX_TEXT_CHARS)?;
            }
            // What a node does not have would be lost in silence.
            let known = serde_json::to_value(node).unwrap_or_default();
            let written = value["nodes"][at].as_object().into_iter().flatten();
            for (name, _) in written {
                if known.get(name).is_none() {
                    let detail = format!("a {} has no such field", node.kind.name());
                    return Err(ChainDefinitionError::new(format!("{place}.{name}"), detail));
                }
            }
        }
        Ok(())
    }

    /// Where the sinks of its nodes stand, and their names.
    pub fn sinks(&self) -> impl Iterator<Item = (String, &str)> {
        let nodes = self.nodes.iter().enumerate();
        nodes.filter_map(|(at, node)| match &node.kind {
            NodeKind::Sink { sink } => Some((format!("nodes[{at}].sink"), sink.as_str())),
            _ => None,
        })
    }

    /// The path of what an error is about.
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
