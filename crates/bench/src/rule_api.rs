//! Rules of a node under load, over its HTTP API.

use load_client::node_api::NodeApi;
use serde_json::Value;

use crate::worker::RuleCounts;

/// Makes a rule, or puts it in the place of one.
pub(crate) fn put_rule(node: &NodeApi, name: &str, rule: &Value) -> anyhow::Result<()> {
    let path = format!("/api/v1/rules/{name}");
    node.request_json("PUT", &path, Some(rule)).map(|_| ())
}

pub(crate) fn delete_rule(node: &NodeApi, name: &str) -> anyhow::Result<()> {
    let path = format!("/api/v1/rules/{name}");
    node.request_json("DELETE", &path, None).map(|_| ())
}

/// What a rule has counted since it was made.
pub(crate) fn rule_counts(node: &NodeApi, name: &str) -> anyhow::Result<RuleCounts> {
    let status = node.request_json("GET", &format!("/api/v1/rules/{name}/status"), None)?;
    let count = |counter: &str| status["counters"][counter].as_u64().unwrap_or(0);
    Ok(RuleCounts {
        evaluated: count("matched"),
        failures: ["failed", "actions_failed", "actions_dropped"]
            .into_iter()
            .map(count)
            .sum(),
    })
}
