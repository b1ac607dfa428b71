//! Status reports of connectors and sinks, and access to dead letters.

use schemars::JsonSchema;
use serde::Serialize;

use super::ConnectorService;
use crate::sink_machine::circuit_breaker::{CircuitState, SinkHealth};
use crate::sink_machine::dead_letters::DeadLetter;
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
    /// Refuses new rows and writes those it has.
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

impl ConnectorService {
    pub fn sinks(&self) -> Vec<SinkStatus> {
        let sinks = self.inner.control().sinks.clone();
        sinks.values().map(|sink| sink.status()).collect()
    }

    pub fn sink_status(&self, name: &str) -> Option<SinkStatus> {
        let sink = self.find(name)?;
        Some(sink.status())
    }

    pub fn connectors(&self) -> Vec<ConnectorStatus> {
        let sinks = self.sinks();
        let control = self.inner.control();
        let connectors = control.connectors.iter().map(|(name, opened)| {
            let own = || sinks.iter().filter(|sink| sink.connector == *name);
            ConnectorStatus {
                name: name.clone(),
                kind: opened.kind.name,
                description: opened.description.clone(),
                sinks: own().map(|sink| sink.name.clone()).collect(),
                is_failing: own().any(|sink| sink.health.circuit != CircuitState::Closed),
            }
        });
        connectors.collect()
    }

    fn find(&self, name: &str) -> Option<std::sync::Arc<crate::service::sink::ManagedSink>> {
        self.inner.control().sinks.get(name).cloned()
    }

    /// Up to `limit` dead letters of a sink, oldest first, beginning after an id. `None`: no such sink.
    pub fn dead_letters(&self, sink: &str, after: u64, limit: usize) -> Option<Vec<DeadLetter>> {
        Some(self.find(sink)?.dead_letters(after, limit))
    }

    pub fn dead_letter(&self, sink: &str, id: u64) -> Option<DeadLetter> {
        self.find(sink)?.dead_letter(id)
    }

    /// Queues dead letters again, all of them if no ids are given; returns how many. The queue may not have room for all.
    pub async fn replay(&self, sink: &str, ids: Option<Vec<u64>>) -> Option<usize> {
        Some(self.find(sink)?.replay(ids).await)
    }

    /// Deletes dead letters, all of them if no ids are given; returns how many.
    pub async fn discard(&self, sink: &str, ids: Option<Vec<u64>>) -> Option<usize> {
        Some(self.find(sink)?.discard(ids).await)
    }
}
