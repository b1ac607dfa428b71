//! What the service reports: the status of connectors and sinks, and dead letters.

use std::sync::Arc;

use super::ConnectorService;
use super::sink::ManagedSink;
use super::status::{ConnectorStatus, SinkStatus};
use crate::sink_machine::circuit_breaker::CircuitState;
use crate::sink_machine::dead_letters::DeadLetter;

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

    fn find(&self, name: &str) -> Option<Arc<ManagedSink>> {
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
