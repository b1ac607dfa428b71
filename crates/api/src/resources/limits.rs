//! All limits of the node with their use, in one list.

use hooks::MetricFamily;
use schemars::JsonSchema;
use serde::Serialize;

use crate::access::Role;
use crate::call::{self, ApiCall};
use crate::endpoint::{Endpoint, EndpointScope, get};
use crate::problem_details::ApiResult;

/// How much of a limit is in use.
#[derive(Serialize, JsonSchema)]
struct LimitUsage {
    /// The setting: `limits.max_connections`, `listener.mqtt.max_connections`.
    setting: String,
    used: f64,
    /// `null`: no limit.
    limit: Option<f64>,
    /// `used / limit`, from 0 to 1; `null` without a limit.
    utilisation: Option<f64>,
    /// `bytes`, or `null` for a number of things.
    unit: Option<&'static str>,
    help: String,
}

/// A setting, the metric of its use, and what the setting is multiplied with.
struct LimitRow {
    setting: &'static str,
    metric: &'static str,
    /// Whether each shard has this limit.
    is_per_shard: bool,
    unit: Option<&'static str>,
}

const fn row(setting: &'static str, metric: &'static str) -> LimitRow {
    LimitRow {
        setting,
        metric,
        is_per_shard: false,
        unit: None,
    }
}

const fn bytes(setting: &'static str, metric: &'static str) -> LimitRow {
    LimitRow {
        unit: Some("bytes"),
        ..row(setting, metric)
    }
}

const fn bytes_per_shard(setting: &'static str, metric: &'static str) -> LimitRow {
    LimitRow {
        is_per_shard: true,
        ..bytes(setting, metric)
    }
}

const ROWS: [LimitRow; 14] = [
    row("limits.max_connections", "connections"),
    row("limits.max_sessions", "sessions"),
    bytes_per_shard(
        "limits.max_subscription_bytes_per_shard",
        "subscription_bytes",
    ),
    bytes_per_shard("limits.max_queued_bytes_per_shard", "session_queue_bytes"),
    bytes_per_shard("limits.max_buffered_bytes_per_shard", "outbox_bytes"),
    bytes_per_shard(
        "limits.max_relay_backlog_bytes_per_shard",
        "relay_backlog_bytes",
    ),
    bytes_per_shard(
        "limits.max_partial_packet_bytes_per_shard",
        "partial_packet_bytes",
    ),
    bytes("limits.max_partial_packet_bytes", "partial_packet_bytes"),
    row("limits.max_retained_messages", "retained_messages"),
    bytes("limits.max_retained_bytes", "retained_bytes"),
    row("limits.max_delayed_messages", "delayed_messages"),
    row("telemetry.max_keys", "telemetry_keys"),
    bytes("telemetry.memtable_bytes", "telemetry_memtable_bytes"),
    bytes("telemetry.max_wal_bytes", "telemetry_wal_bytes"),
];

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        get("/api/v1/limits", "listLimits", list)
            .role(Role::Viewer, EndpointScope::Node)
            .tag("configuration")
            .summary("List limits and their utilisation")
            .description(
                "Limits of the node as a whole and of its listeners; a limit of each shard is multiplied by their number. \
                 `GET /api/v1/namespaces/{id}/usage` lists the quotas of a namespace.",
            )
            .unpaged::<LimitUsage>(),
    ]
}

/// The sum of a family, and its number of samples.
fn sum_of(families: &[MetricFamily], name: &str) -> Option<(f64, usize)> {
    let family = families.iter().find(|family| family.name == name)?;
    Some((family.numbers().sum(), family.samples.len()))
}

fn usage(
    (setting, help): (String, String),
    used: f64,
    limit: f64,
    unit: Option<&'static str>,
) -> LimitUsage {
    // 0 means that there is no limit.
    let limit = (limit > 0.0).then_some(limit);
    LimitUsage {
        setting,
        used,
        limit,
        utilisation: limit.map(|limit| (used / limit * 10_000.0).round() / 10_000.0),
        unit,
        help,
    }
}

async fn list(call: ApiCall) -> ApiResult {
    let mut families = call.app.node.counters();
    families.extend(call.app.program.metrics());
    // One sample per shard.
    let shards = sum_of(&families, "shard_inbox_bytes").map_or(1, |(_, samples)| samples.max(1));
    let settings = call.app.program.settings();
    let mut rows = Vec::new();
    for row in &ROWS {
        let setting = settings.iter().find(|setting| setting.key == row.setting);
        let limit = setting.and_then(|setting| setting.value.as_f64());
        let used = sum_of(&families, row.metric);
        if let (Some(setting), Some(limit), Some((used, _))) = (setting, limit, used) {
            let factor = match row.is_per_shard {
                true => shards as f64,
                false => 1.0,
            };
            let named = (setting.key.clone(), setting.help.clone());
            rows.push(usage(named, used, limit * factor, row.unit));
        }
    }
    for listener in call.app.node.listeners() {
        let key = format!("listener.{}.max_connections", listener.name);
        let help = "Maximum number of connections of the listener.".to_owned();
        let limit = f64::from(listener.max_connections);
        rows.push(usage((key, help), listener.connections as f64, limit, None));
    }
    call::unpaged_list(rows)
}
