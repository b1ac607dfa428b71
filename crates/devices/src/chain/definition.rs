//! The JSON definition of a rule chain.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Maximum number of nodes of a chain.
pub const MAX_NODES: usize = 64;
/// Maximum number of relations of a chain.
const MAX_RELATIONS: usize = 256;
const MAX_TEXT_CHARS: usize = 16_384;

/// A rule chain: the processing steps of a telemetry row.
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
    /// Id of the node where a row starts; default: the first node of the list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeDefinition {
    /// Id, unique in the chain.
    #[schemars(length(min = 1, max = 128))]
    pub id: String,
    #[serde(flatten)]
    pub kind: NodeKind,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum NodeKind {
    /// No operation: values are validated against the thing model before a chain starts.
    Validate,
    /// Continues with `true` or `false`.
    Filter {
        #[schemars(length(max = 16384))]
        condition: String,
    },
    /// Replaces the row by the columns of a SELECT.
    Transform {
        #[schemars(length(max = 16384))]
        select: String,
    },
    SaveTelemetry,
    /// Evaluates the alarm rules of the product.
    Alarm,
    /// Writes a line with placeholders to the log of the node.
    Log {
        #[schemars(length(max = 16384))]
        message: String,
    },
    /// Publishes a message.
    Republish {
        #[schemars(length(max = 16384))]
        topic: String,
        #[serde(default = "default_payload")]
        #[schemars(length(max = 16384))]
        payload: String,
        #[serde(default)]
        #[schemars(range(max = 2))]
        qos: u8,
        #[serde(default)]
        retain: bool,
    },
    /// Passes the row to a sink.
    Sink {
        #[schemars(length(min = 1, max = 256))]
        sink: String,
    },
}

fn default_payload() -> String {
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

/// The outcome of a node that a relation follows.
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

    /// The texts of the node with placeholders or SQL, each with its field name.
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

/// An invalid field of a chain definition.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {detail}")]
pub struct ChainDefinitionError {
    /// Path of the field, such as `nodes[2].topic`; empty: the chain as a whole.
    pub field: String,
    pub detail: String,
}

impl ChainDefinitionError {
    pub(super) fn new(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            detail: detail.into(),
        }
    }
}

impl ChainDefinition {
    pub(super) fn check_bounds(&self, value: &Value) -> Result<(), ChainDefinitionError> {
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
            let detail = format!("expected at most {MAX_RELATIONS} relations");
            return Err(ChainDefinitionError::new("relations", detail));
        }
        // Compilation rejects more nodes; this limit avoids an error for each of a million.
        for (at, node) in self.nodes.iter().enumerate().take(MAX_NODES) {
            let place = format!("nodes[{at}]");
            length(format!("{place}.id"), &node.id, 128)?;
            for (field, text) in node.kind.texts().into_iter().flatten() {
                length(format!("{place}.{field}"), text, MAX_TEXT_CHARS)?;
            }
            // Unknown fields of a node would otherwise be ignored silently.
            let known = serde_json::to_value(node).unwrap_or_default();
            let written = value["nodes"][at].as_object().into_iter().flatten();
            for (name, _) in written {
                if known.get(name).is_none() {
                    let detail = format!("unknown field of the node type {}", node.kind.name());
                    return Err(ChainDefinitionError::new(format!("{place}.{name}"), detail));
                }
            }
        }
        Ok(())
    }

    /// The paths of the sinks in the nodes, and their names.
    pub fn sinks(&self) -> impl Iterator<Item = (String, &str)> {
        let nodes = self.nodes.iter().enumerate();
        nodes.filter_map(|(at, node)| match &node.kind {
            NodeKind::Sink { sink } => Some((format!("nodes[{at}].sink"), sink.as_str())),
            _ => None,
        })
    }
}
