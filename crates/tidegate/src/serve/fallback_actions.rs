//! Runs the fallback actions of rules for rows that a sink finally failed to write.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use connect::{DeadLetterObserver, SinkRow};
use engine::{Engine, FailedRow, OutputRowOrigin};
use serde_json::Value;
use tokio::sync::mpsc;

/// Maximum number of rows waiting for fallback actions; further rows become dead letters only.
const MAX_QUEUED_ROWS: usize = 10_000;
/// One in this many skipped rows is logged.
const LOG_INTERVAL_ROWS: u64 = 1000;

/// Encodes the origin of a row: `ACTION DEPTH RULE`.
pub(super) fn encode_origin(rule: &str, origin: OutputRowOrigin) -> String {
    format!("{} {} {rule}", origin.action, origin.depth)
}

fn decode_origin(origin: &str) -> Option<(&str, OutputRowOrigin)> {
    let mut parts = origin.splitn(3, ' ');
    let (action, depth) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    Some((parts.next()?, OutputRowOrigin { action, depth }))
}

struct FailedRowJob {
    sink: String,
    origin: String,
    row: Value,
    error: String,
    attempts: u32,
}

struct FallbackObserver {
    failed: mpsc::Sender<FailedRowJob>,
    skipped: AtomicU64,
}

impl DeadLetterObserver for FallbackObserver {
    fn on_dead_letter(
        &self,
        sink: &str,
        row: SinkRow<'_>,
        origin: &str,
        error: &str,
        attempts: u32,
    ) {
        let failed = FailedRowJob {
            sink: sink.to_owned(),
            origin: origin.to_owned(),
            row: row.to_json(),
            error: error.to_owned(),
            attempts,
        };
        if self.failed.try_send(failed).is_err() {
            let left_out = self.skipped.fetch_add(1, Relaxed);
            if left_out.is_multiple_of(LOG_INTERVAL_ROWS) {
                tracing::warn!(
                    sink,
                    left_out = left_out + 1,
                    "fallback action queue is full; failed rows become dead letters only"
                );
            }
        }
    }
}

/// Runs the fallback actions of failed rows in order, until the runtime stops.
pub(super) fn start(engine: Engine) -> Arc<dyn DeadLetterObserver> {
    let (failed, mut rows) = mpsc::channel::<FailedRowJob>(MAX_QUEUED_ROWS);
    tokio::spawn(async move {
        while let Some(failed) = rows.recv().await {
            let (Some((rule, origin)), Value::Object(columns)) =
                (decode_origin(&failed.origin), &failed.row)
            else {
                continue;
            };
            let failed = FailedRow {
                rule,
                origin,
                columns,
                sink: &failed.sink,
                error: &failed.error,
                attempts: failed.attempts,
            };
            engine.run_fallback(failed).await;
        }
    });
    Arc::new(FallbackObserver {
        failed,
        skipped: AtomicU64::new(0),
    })
}
