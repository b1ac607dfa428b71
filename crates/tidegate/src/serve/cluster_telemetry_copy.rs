//! What copies of telemetry between nodes need of this one, and what operators see of them.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::{ClusterKeptTelemetry, ClusterTelemetryCopy, TelemetryCopyState};
use cluster::{NodeName, NodeRequests};
use devices::Registry;
use hooks::MetricFamily;
use series::{DeviceNo, PolicyAssignment, SeriesConfig};
use telemetry_copy::{CopiedDevices, CopyPeers, CopyState, TelemetryCopies};
use tokio::runtime::Handle;

use super::cluster_requests::{TELEMETRY_COPIES, TELEMETRY_COPY_TIMEOUT};
use crate::config::IngestSettings;

/// Memory for rows of a copy that are not in files yet. A node has its own rows besides.
const MAX_COPY_MEMTABLE_BYTES: usize = 16 << 20;
/// Memory for the latest values of the devices of a copy.
const MAX_COPY_LATEST_BYTES: usize = 4 << 20;

/// The settings of the time series of a copy.
pub(super) fn copy_config(settings: &IngestSettings, assignment: PolicyAssignment) -> SeriesConfig {
    let config = settings.series(assignment);
    SeriesConfig {
        memtable_bytes: config.memtable_bytes.min(MAX_COPY_MEMTABLE_BYTES),
        latest_cache_bytes: config.latest_cache_bytes.min(MAX_COPY_LATEST_BYTES),
        ..config
    }
}

/// The devices of the registry.
pub(super) struct RegisteredDevices(pub(super) Registry);

impl CopiedDevices for RegisteredDevices {
    fn products(&self) -> BTreeSet<String> {
        let products = self.0.products().into_iter();
        let copied = products.filter(|slot| {
            let product = slot.get();
            product.storage().enabled && product.storage().replicated
        });
        copied.map(|slot| slot.id().as_str().to_owned()).collect()
    }

    fn device(&self, number: DeviceNo) -> Result<Option<(String, String)>, String> {
        let device = self.0.by_no(number).map_err(|error| error.to_string())?;
        Ok(device.map(|device| {
            let product = device.product.id().as_str().to_owned();
            (device.id.as_str().to_owned(), product)
        }))
    }

    fn by_id(&self, id: &str) -> Result<Option<(DeviceNo, String)>, String> {
        let device = self.0.device(id).map_err(|error| error.to_string())?;
        Ok(device.map(|device| (device.no, device.product.id().as_str().to_owned())))
    }
}

/// Sends requests between nodes from threads that may wait.
pub(super) struct RequestPeers {
    pub(super) requests: Arc<NodeRequests>,
    pub(super) runtime: Handle,
}

impl CopyPeers for RequestPeers {
    fn reachable(&self) -> Vec<String> {
        let nodes = self.requests.reachable();
        nodes.iter().map(ToString::to_string).collect()
    }

    fn request(&self, node: &str, request: &[u8]) -> Result<Vec<u8>, String> {
        let node = NodeName::new(node).map_err(|error| error.to_string())?;
        let timeout = TELEMETRY_COPY_TIMEOUT;
        let answer = (self.requests).request_within(timeout, &node, TELEMETRY_COPIES, request);
        let answer = self.runtime.block_on(answer);
        answer
            .map(|answer| answer.to_vec())
            .map_err(|error| error.to_string())
    }

    fn notify(&self, node: &str, request: &[u8]) {
        let Ok(node) = NodeName::new(node) else {
            return;
        };
        let timeout = TELEMETRY_COPY_TIMEOUT;
        let answer = (self.requests).request_within(timeout, &node, TELEMETRY_COPIES, request);
        self.runtime.spawn(async move {
            if let Err(error) = answer.await {
                tracing::debug!(node = %node, %error, "the copies of telemetry are not announced; tried again");
            }
        });
    }
}

/// What the API shows; `None`: the node is starting.
pub(super) fn telemetry_copy_status(copies: Option<&TelemetryCopies>) -> ClusterTelemetryCopy {
    let Some(status) = copies.map(TelemetryCopies::status) else {
        return ClusterTelemetryCopy {
            state: TelemetryCopyState::NoStandby,
            node: None,
            queued_bytes: 0,
            lag_ms: 0,
            sent_rows: 0,
            last_error: None,
            copies: Vec::new(),
        };
    };
    let own = status.own;
    let kept = status.kept.into_iter().map(|kept| ClusterKeptTelemetry {
        key: kept.key,
        node: kept.node,
        is_complete: kept.is_complete,
        is_orphan: kept.is_orphan,
        bytes: kept.bytes,
        sent_ms: kept.sent_ms,
    });
    ClusterTelemetryCopy {
        state: match own.state {
            CopyState::NotWanted => TelemetryCopyState::NotWanted,
            CopyState::NoStandby => TelemetryCopyState::NoStandby,
            CopyState::Interrupted => TelemetryCopyState::Interrupted,
            CopyState::Completing => TelemetryCopyState::Completing,
            CopyState::Complete => TelemetryCopyState::Complete,
        },
        node: own.standby,
        queued_bytes: own.queued_bytes,
        lag_ms: own.lag_ms,
        sent_rows: own.sent_rows,
        last_error: own.last_error,
        copies: kept.collect(),
    }
}

pub(super) fn telemetry_copy_metrics(copies: &TelemetryCopies) -> Vec<MetricFamily> {
    let status = copies.status();
    let own = &status.own;
    let kept_bytes: u64 = status.kept.iter().map(|kept| kept.bytes).sum();
    let complete = status.kept.iter().filter(|kept| kept.is_complete).count();
    vec![
        MetricFamily::gauge(
            "cluster_telemetry_copy_complete",
            "1 while another node has the telemetry of this one that is to be copied, except what was stored in the last moments.",
            f64::from(u8::from(own.state == CopyState::Complete)),
        ),
        MetricFamily::gauge(
            "cluster_telemetry_copy_queued_bytes",
            "Bytes of telemetry that wait to be sent to another node.",
            own.queued_bytes as f64,
        ),
        MetricFamily::gauge(
            "cluster_telemetry_copy_lag_seconds",
            "Age of the first row that waits to be sent to another node.",
            own.lag_ms as f64 / 1000.0,
        ),
        MetricFamily::counter(
            "cluster_telemetry_copy_sent_rows_total",
            "Rows sent to another node for its copy since the start.",
            own.sent_rows,
        ),
        MetricFamily::counter(
            "cluster_telemetry_copy_sent_bytes_total",
            "Bytes sent to another node for its copy since the start.",
            own.sent_bytes,
        ),
        MetricFamily::gauge(
            "cluster_telemetry_kept_copies",
            "Copies of the telemetry of other nodes at this one.",
            status.kept.len() as f64,
        ),
        MetricFamily::gauge(
            "cluster_telemetry_kept_complete_copies",
            "Copies of the telemetry of other nodes at this one that are complete.",
            complete as f64,
        ),
        MetricFamily::gauge(
            "cluster_telemetry_kept_bytes",
            "Size of the files of the copies of the telemetry of other nodes at this one.",
            kept_bytes as f64,
        ),
    ]
}
