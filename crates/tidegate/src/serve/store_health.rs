//! Metrics and health messages of the store.

use std::time::Duration;

use hooks::{MetricFamily, MetricKind};
use store::{Store, StoreHealth};

const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A metric with one sample per state, 1 for the current state.
fn health_family(now: StoreHealth) -> MetricFamily {
    let states = [
        ("ok", StoreHealth::Ok),
        ("full", StoreHealth::Full),
        ("failed", StoreHealth::Failed),
    ];
    MetricFamily::by_label(
        "store_health",
        "1 for the current state of the store. Unless it is ok, QoS 1 and 2 messages are rejected.",
        MetricKind::Gauge,
        "state",
        states.map(|(name, state)| (name, f64::from(u8::from(state == now)))),
    )
}

pub(super) fn metrics(store: &Store) -> Vec<MetricFamily> {
    let stats = store.stats();
    let gauge = |name, help, value: u64| MetricFamily::gauge(name, help, value as f64);
    let counter = MetricFamily::counter;
    vec![
        health_family(store.health()),
        gauge(
            "store_segments",
            "Files of the message log.",
            stats.segments,
        ),
        gauge(
            "store_log_bytes",
            "Bytes in the message log, including garbage.",
            stats.log_bytes,
        ),
        gauge(
            "store_live_bytes",
            "Bytes in the message log that are still needed.",
            stats.live_bytes,
        ),
        gauge(
            "store_messages",
            "Messages in the log, counted once per session that waits for them.",
            stats.live_messages,
        ),
        gauge(
            "store_queued_sessions",
            "Sessions with messages in the log.",
            stats.queued_sessions,
        ),
        gauge(
            "store_pending_bytes",
            "Bytes waiting to be written to the log.",
            stats.pending_bytes,
        ),
        gauge(
            "store_keyed_state_bytes",
            "Disk space of sessions, subscriptions, retained messages and objects.",
            stats.keyed_bytes,
        ),
        gauge(
            "store_free_bytes",
            "Free bytes of the store's file system.",
            stats.free_bytes,
        ),
        counter(
            "store_batches_total",
            "Turns of shards written to the log.",
            stats.batches,
        ),
        counter(
            "store_group_commits_total",
            "Group writes to the log; each contains the pending turns of all shards.",
            stats.groups,
        ),
        counter(
            "store_written_bytes_total",
            "Bytes written to the log.",
            stats.written_bytes,
        ),
        counter(
            "store_compacted_bytes_total",
            "Bytes rewritten by compaction of the log.",
            stats.copied_bytes,
        ),
        counter("store_fsyncs_total", "Syncs of the log.", stats.fsyncs),
        MetricFamily::gauge(
            "store_last_fsync_duration_seconds",
            "Duration of the last sync of the log.",
            stats.last_fsync_us as f64 / 1e6,
        ),
        counter(
            "store_write_errors_total",
            "Failed writes to the log, which are retried.",
            stats.write_errors,
        ),
    ]
}

/// Logs every change of the store's health until the task is aborted.
pub(super) async fn log_health_changes(store: Store) {
    let mut before = StoreHealth::Ok;
    let mut interval = tokio::time::interval(CHECK_INTERVAL);
    loop {
        interval.tick().await;
        let now = store.health();
        if now == before {
            continue;
        }
        before = now;
        match now {
            StoreHealth::Ok => tracing::info!("store accepts new messages again"),
            StoreHealth::Full => tracing::error!(
                free_bytes = store.stats().free_bytes,
                "store is full; QoS 1 and 2 messages are rejected (0x97) until there is space. Free disk space, or \
                 see store.min_free_bytes and store.max_log_bytes"
            ),
            StoreHealth::Failed => tracing::error!(
                "store writes fail; QoS 1 and 2 messages are rejected (0x97) until they succeed. Accepted messages are \
                 kept in memory and written again"
            ),
        }
    }
}
