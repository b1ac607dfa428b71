//! Rows that a sink could not write for good, on their way to the fallback actions of their rule.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use connect::{DeadLetterObserver, SinkRow};
use engine::{Engine, FailedRow, OutputRowOrigin};
use serde_json::Value;
use tokio::sync::mpsc;

/// Rows that wait for their fallback actions; those beyond are dead letters only.
const MAX_QUEUED_ROWS: usize = 10_000;
/// One in so many rows left out is told.
const LOG_INTERVAL_ROWS: u64 = 1000;

/// How a row remembers where it comes from: `ACTION DEPTH RULE`.
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
                    "rows fail faster than their fallback actions are done; these are dead letters only"
                );
            }
        }
    }
}

/// Does the fallback actions of failed rows one after the other, as long as the runtime runs.
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
