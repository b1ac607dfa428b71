//! What is said about connectors, sinks and dead letters.

use schemars::JsonSchema;
use serde::Serialize;

use super::ConnectorService;
use crate::sink_machine::circuit_breaker::{CircuitState, SinkHealth};
use crate::sink_machine::dead_letters::DeadLetter;
use crate::sink_machine::metrics::SinkMetrics;

/// How a sink is.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct SinkStatus {
    pub name: String,
    pub connector: String,
    /// The type of its connector, if there is one.
    #[serde(rename = "type")]
    pub kind: Option<&'static str>,
    pub state: SinkState,
    /// Why it does not run.
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
    /// It cannot write at the moment: `last_error` says why, `failing_since_ms` since when.
    Failing,
    /// It opens its disk queue; what is in that is not counted yet.
    Starting,
    /// It refuses rows, and writes those it has.
    Disabled,
    /// It keeps its rows until there is a connector of that name.
    NoConnector,
    /// Its settings do not fit its connector; it keeps its rows.
    Invalid,
}

/// How a connector is.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ConnectorStatus {
    pub name: String,
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub description: String,
    /// Sinks that use it.
    pub sinks: Vec<String>,
    /// Whether one of these cannot write at the moment.
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

    fn find(&self, name: &str) -> Option<std::sync::Arc<super::ManagedSink>> {
        self.inner.control().sinks.get(name).cloned()
    }

    /// Up to `limit` dead letters of a sink from the oldest on, beginning behind an id. `None`: no such sink.
    pub fn dead_letters(&self, sink: &str, after: u64, limit: usize) -> Option<Vec<DeadLetter>> {
        Some(self.find(sink)?.dead_letters(after, limit))
    }

    pub fn dead_letter(&self, sink: &str, id: u64) -> Option<DeadLetter> {
        self.find(sink)?.dead_letter(id)
    }

    /// Queues dead letters again, all of them if no ids are given; says how many. There may be no room for all.
    pub async fn replay(&self, sink: &str, ids: Option<Vec<u64>>) -> Option<usize> {
        Some(self.find(sink)?.replay(ids).await)
    }

    /// Throws dead letters away, all of them if no ids are given; says how many.
    pub async fn discard(&self, sink: &str, ids: Option<Vec<u64>>) -> Option<usize> {
        Some(self.find(sink)?.discard(ids).await)
    }
}
