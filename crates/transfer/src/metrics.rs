//! Counters of file transfers.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use hooks::{MetricFamily, MetricKind};

use crate::error::TransferErrorKind;
use crate::usage::Usage;

#[derive(Default)]
pub(crate) struct TransferMetrics {
    pub(crate) begun: AtomicU64,
    pub(crate) resumed: AtomicU64,
    pub(crate) completed: AtomicU64,
    pub(crate) aborted: AtomicU64,
    /// Transfers and files that were removed because of their age.
    pub(crate) expired: AtomicU64,
    pub(crate) received_bytes: AtomicU64,
    pub(crate) repeated_bytes: AtomicU64,
    pub(crate) sent_bytes: AtomicU64,
    pub(crate) failed: [AtomicU64; TransferErrorKind::ALL.len()],
}

impl TransferMetrics {
    pub(crate) fn count_failure(&self, kind: TransferErrorKind) {
        self.failed[kind as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn families(&self, usage: Usage, queued_bytes: u64) -> Vec<MetricFamily> {
        let counter =
            |name, help, value: &AtomicU64| MetricFamily::counter(name, help, value.load(Relaxed));
        let gauge = |name, help, value: u64| MetricFamily::gauge(name, help, value as f64);
        let failed = TransferErrorKind::ALL.iter().map(|kind| {
            let count = self.failed[*kind as usize].load(Relaxed);
            (kind.name(), count as f64)
        });
        vec![
            gauge("files", "Complete files and transfers.", usage.files),
            gauge(
                "files_bytes",
                "Bytes of complete files, and of transfers by their announced size or, without one, by what was received.",
                usage.bytes,
            ),
            gauge(
                "file_transfers",
                "Transfers that are not complete.",
                usage.transfers,
            ),
            gauge(
                "file_queued_bytes",
                "Bytes of segments that wait to be written.",
                queued_bytes,
            ),
            counter(
                "file_transfers_begun_total",
                "Transfers begun.",
                &self.begun,
            ),
            counter(
                "file_transfers_resumed_total",
                "Transfers that were continued after a start of the node, or begun again by their sender.",
                &self.resumed,
            ),
            counter(
                "file_transfers_completed_total",
                "Transfers whose file is complete and verified.",
                &self.completed,
            ),
            counter(
                "file_transfers_aborted_total",
                "Transfers that were aborted or deleted before they were complete.",
                &self.aborted,
            ),
            counter(
                "files_expired_total",
                "Files and transfers removed because they had expired.",
                &self.expired,
            ),
            counter(
                "file_received_bytes_total",
                "Bytes of segments that were written.",
                &self.received_bytes,
            ),
            counter(
                "file_repeated_bytes_total",
                "Bytes of segments that were received before.",
                &self.repeated_bytes,
            ),
            counter(
                "file_sent_bytes_total",
                "Bytes of files that were downloaded.",
                &self.sent_bytes,
            ),
            MetricFamily::by_label(
                "file_transfer_failures_total",
                "Failed steps of transfers.",
                MetricKind::Counter,
                "reason",
                failed,
            ),
        ]
    }
}
