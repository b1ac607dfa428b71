//! Status of connectors and sinks.

use schemars::JsonSchema;
use serde::Serialize;

use crate::sink_machine::circuit_breaker::SinkHealth;
use crate::sink_machine::metrics::SinkMetrics;

/// Status of a sink.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct SinkStatus {
    pub name: String,
    pub connector: String,
    /// Type of its connector, if that exists.
    #[serde(rename = "type")]
    pub kind: Option<&'static str>,
    pub state: SinkState,
    /// Why the sink does not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    #[serde(flatten)]
    pub health: SinkHealth,
    pub metrics: SinkMetrics,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SinkState {
    Running,
    /// Writes fail at present: `last_error` is the reason, `failing_since_ms` the start.
    Failing,
    /// Opens its disk queue, whose rows are not counted yet.
    Starting,
    /// Rejects new rows and writes those it has.
    Disabled,
    /// Keeps its rows until a connector of that name exists.
    NoConnector,
    /// Settings do not match the connector; keeps its rows.
    Invalid,
}

/// Status of a connector.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ConnectorStatus {
    pub name: String,
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub description: String,
    /// Names of the sinks that use it.
    pub sinks: Vec<String>,
    /// Whether writes of one of these sinks fail at present.
    pub is_failing: bool,
}
