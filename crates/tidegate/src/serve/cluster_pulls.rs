//! Pull sources in a cluster: the node with a lease polls them, and each node stores the readings of its own devices.

use std::sync::Arc;

use bytes::Bytes;
use cluster::{ClusterLease, LeaseStatus, NodeName, NodeRequests};
use devices::platform::Reporter;
use devices::pull::{IntakeOutcome, PollingTurn, Reading, ReadingIntake};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::runtime::Handle;

/// Readings of one request between nodes, in bytes, except that one row may be larger.
const MAX_CHUNK_BYTES: usize = 512 << 10;

/// The turn of this node to poll: while it holds the lease.
pub(super) struct LeasedTurn(pub(super) Arc<ClusterLease>);

impl PollingTurn for LeasedTurn {
    fn check(&self) -> Result<(), String> {
        match self.0.status() {
            LeaseStatus::Held => Ok(()),
            LeaseStatus::HeldBy(node) => {
                Err(format!("node {node} of the cluster polls the sources"))
            }
            LeaseStatus::Unknown(Some(reason)) => Err(format!(
                "no node of the cluster is chosen to poll: {reason}"
            )),
            LeaseStatus::Unknown(None) => {
                Err("no node of the cluster is chosen to poll yet".to_owned())
            }
        }
    }
}

/// A row for the devices of another node.
#[derive(Debug, Serialize, Deserialize)]
struct SentReading {
    device: String,
    ts_ms: i64,
    values: Map<String, Value>,
}

/// The readings that a request contains, encoded, and the rows that they are.
#[derive(Debug)]
struct ReadingChunk {
    body: Vec<u8>,
    rows: Vec<usize>,
}

/// Stores the readings of all nodes' devices.
pub(super) struct ClusterReadings {
    pub(super) reporter: Arc<Reporter>,
    pub(super) requests: Arc<NodeRequests>,
    /// Subject of the requests.
    pub(super) subject: u8,
    pub(super) runtime: Handle,
}

impl ReadingIntake for ClusterReadings {
    fn store_readings(&self, readings: &[Reading], now_ms: i64) -> IntakeOutcome {
        let mut is_stored: Vec<bool> = readings
            .iter()
            .map(|row| store_row(&self.reporter, &row.device, row.ts_ms, &row.values))
            .collect();
        let others = self.requests.reachable();
        if !others.is_empty() {
            for chunk in chunks(readings, &is_stored, now_ms) {
                for row in self.send(&others, &chunk) {
                    is_stored[row] = true;
                }
            }
        }
        outcome(readings, &is_stored)
    }

    fn is_full(&self) -> bool {
        self.reporter.is_full()
    }
}

impl ClusterReadings {
    /// Sends rows to all nodes and returns those that a node has stored.
    fn send(&self, nodes: &[NodeName], chunk: &ReadingChunk) -> Vec<usize> {
        // All are sent before the first answer is waited for.
        let asked: Vec<_> = nodes
            .iter()
            .map(|node| self.requests.request(node, self.subject, &chunk.body))
            .collect();
        let mut stored = Vec::new();
        for (node, answer) in nodes.iter().zip(asked) {
            // The caller is a thread that may block.
            let positions = self
                .runtime
                .block_on(answer)
                .map_err(|error| error.to_string())
                .and_then(|answer| {
                    serde_json::from_slice::<Vec<usize>>(&answer).map_err(|error| error.to_string())
                });
            match positions {
                Ok(positions) => {
                    stored.extend(positions.iter().filter_map(|&at| chunk.rows.get(at)));
                }
                Err(error) => tracing::warn!(
                    node = %node,
                    error,
                    "readings of a pull source for the devices of another node were not stored"
                ),
            }
        }
        stored
    }
}

/// Stores readings that another node has polled, as far as they belong to devices of this node. May block.
pub(super) fn store_sent_readings(reporter: &Reporter, body: &[u8]) -> Result<Bytes, String> {
    if reporter.is_full() {
        return Err("it has no room for more telemetry at the moment".to_owned());
    }
    let rows: Vec<SentReading> = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let stored: Vec<usize> = rows
        .iter()
        .enumerate()
        .filter(|(_, row)| store_row(reporter, &row.device, Some(row.ts_ms), &row.values))
        .map(|(position, _)| position)
        .collect();
    let answer = serde_json::to_vec(&stored).map_err(|error| error.to_string())?;
    Ok(Bytes::from(answer))
}

/// Whether the device is one of this node.
fn store_row(
    reporter: &Reporter,
    device: &str,
    ts_ms: Option<i64>,
    values: &Map<String, Value>,
) -> bool {
    let stored = reporter.report(device, ts_ms, values);
    stored.unwrap_or_else(|error| {
        tracing::error!(%error, "device lookup failed; the pulled row is lost");
        false
    })
}

/// The rows that are not stored yet, in requests of a limited size.
fn chunks(readings: &[Reading], is_stored: &[bool], now_ms: i64) -> Vec<ReadingChunk> {
    let mut chunks: Vec<ReadingChunk> = Vec::new();
    let rows = readings.iter().zip(is_stored).enumerate();
    for (row, (reading, _)) in rows.filter(|(_, (_, is_stored))| !**is_stored) {
        let sent = SentReading {
            device: reading.device.clone(),
            ts_ms: reading.ts_ms.unwrap_or(now_ms),
            values: reading.values.clone(),
        };
        let Ok(json) = serde_json::to_vec(&sent) else {
            continue;
        };
        match chunks.last_mut() {
            Some(chunk) if chunk.body.len() + json.len() < MAX_CHUNK_BYTES => {
                chunk.body.push(b',');
                chunk.body.extend(json);
                chunk.rows.push(row);
            }
            _ => chunks.push(ReadingChunk {
                body: [&b"["[..], &json].concat(),
                rows: vec![row],
            }),
        }
    }
    for chunk in &mut chunks {
        chunk.body.push(b']');
    }
    chunks
}

fn outcome(readings: &[Reading], is_stored: &[bool]) -> IntakeOutcome {
    let mut outcome = IntakeOutcome::default();
    for (reading, is_stored) in readings.iter().zip(is_stored) {
        if *is_stored {
            outcome.rows += 1;
            outcome.values += reading.values.len() as u64;
        } else {
            outcome.unknown += 1;
            let device = || reading.device.clone();
            outcome.unknown_device.get_or_insert_with(device);
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn reading(device: &str, text_bytes: usize) -> Reading {
        let values = json!({"t": "x".repeat(text_bytes)});
        Reading {
            device: device.to_owned(),
            ts_ms: (device == "past").then_some(5),
            values: values.as_object().unwrap().clone(),
        }
    }

    #[test]
    fn rows_that_are_not_stored_are_sent_in_requests_of_limited_size() {
        let readings = [
            reading("a", 1),
            reading("b", 200_000),
            reading("past", 300_000),
            reading("c", 300_000),
            reading("d", 600_000),
            reading("e", 1),
        ];
        let is_stored = [true, false, false, false, false, false];
        let chunks = chunks(&readings, &is_stored, 9);
        let rows: Vec<_> = chunks.iter().map(|chunk| chunk.rows.clone()).collect();
        assert_eq!(rows, [vec![1, 2], vec![3], vec![4], vec![5]]);
        let sent: Vec<SentReading> = serde_json::from_slice(&chunks[0].body).unwrap();
        assert_eq!((sent[0].device.as_str(), sent[0].ts_ms), ("b", 9));
        assert_eq!((sent[1].device.as_str(), sent[1].ts_ms), ("past", 5));
        assert_eq!(sent[1].values, readings[2].values);
    }

    #[test]
    fn rows_that_no_node_has_stored_belong_to_unknown_devices() {
        let readings = [reading("a", 1), reading("b", 1), reading("c", 1)];
        let outcome = outcome(&readings, &[true, false, false]);
        assert_eq!((outcome.rows, outcome.values, outcome.unknown), (1, 1, 2));
        assert_eq!(outcome.unknown_device.as_deref(), Some("b"));
    }
}
