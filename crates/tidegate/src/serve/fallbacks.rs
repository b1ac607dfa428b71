//! Rows that a sink could not write for good, on their way to the fallback actions of their rule.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use connect::{Mourner, Row};
use engine::{Engine, FailedRow, RowOrigin};
use serde_json::Value;
use tokio::sync::mpsc;

/// Rows that wait for their fallback actions; those beyond are dead letters only.
const MAX_WAITING: usize = 10_000;
/// One in so many rows left out is told.
const TOLD_ONE_IN: u64 = 1000;

/// How a row remembers where it comes from: `ACTION DEPTH RULE`.
pub(super) fn written(rule: &str, origin: RowOrigin) -> String {
    format!("{} {} {rule}", origin.action, origin.depth)
}

fn read(origin: &str) -> Option<(&str, RowOrigin)> {
    let mut parts = origin.splitn(3, ' ');
    let (action, depth) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    Some((parts.next()?, RowOrigin { action, depth }))
}

struct Failed {
    sink: String,
    origin: String,
    row: Value,
    error: String,
    attempts: u32,
}

struct Fallbacks {
    failed: mpsc::Sender<Failed>,
    left_out: AtomicU64,
}

impl Mourner for Fallbacks {
    fn failed(&self, sink: &str, row: Row<'_>, origin: &str, error: &str, attempts: u32) {
        let failed = Failed {
            sink: sink.to_owned(),
            origin: origin.to_owned(),
            row: row.to_json(),
            error: error.to_owned(),
            attempts,
        };
        if self.failed.try_send(failed).is_err() {
            let left_out = self.left_out.fetch_add(1, Relaxed);
            if left_out.is_multiple_of(TOLD_ONE_IN) {
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
pub(super) fn start(engine: Engine) -> Arc<dyn Mourner> {
    let (failed, mut rows) = mpsc::channel::<Failed>(MAX_WAITING);
    tokio::spawn(async move {
        while let Some(failed) = rows.recv().await {
            let (Some((rule, origin)), Value::Object(columns)) =
                (read(&failed.origin), &failed.row)
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
            engine.fall_back(failed).await;
        }
    });
    Arc::new(Fallbacks {
        failed,
        left_out: AtomicU64::new(0),
    })
}
