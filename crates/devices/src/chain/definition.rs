//! How a chain is written.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    pub nodes: Vec<NodeDefinition>,
    #[serde(default)]
    pub relations: Vec<Relation>,
    /// Where a row begins; without it, at the first node of the list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeDefinition {
    pub id: String,
    #[serde(flatten)]
    pub kind: NodeKind,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum NodeKind {
    /// Values are checked against the thing model before a chain begins; here it only says so.
    Validate,
    /// Goes on with `true` or `false`.
    Filter {
        condition: String,
    },
    /// The columns of a SELECT become the row.
    Transform {
        select: String,
    },
    SaveTelemetry,
    /// Lets the product's alarm rules look at the row.
    Alarm,
    /// Writes a line with placeholders to the node's log.
    Log {
        message: String,
    },
    Republish {
        topic: String,
        #[serde(default = "whole_row")]
        payload: String,
        #[serde(default)]
        qos: u8,
        #[serde(default)]
        retain: bool,
    },
    Sink {
        sink: String,
    },
}

fn whole_row() -> String {
    "${.}".to_owned()
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Relation {
    pub from: String,
    pub to: String,
    #[serde(default)]
    pub on: On,
}

/// On which outcome of a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum On {
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
}
