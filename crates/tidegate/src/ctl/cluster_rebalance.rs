//! `tidegate ctl cluster rebalance`: clients of nodes with too many connections are disconnected, so that they connect to others.

use std::time::Duration;

use anyhow::bail;
use clap::Args;
use serde_json::Value;

use super::http::ApiClient;
use super::output::{CtlOutput, OutputFormat, print_text};

const PATH: &str = "/api/v1/cluster/rebalance";
/// Time between two looks at the progress.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Args)]
pub(super) struct RebalanceArgs {
    /// Show what would be done, and do nothing
    #[arg(long, conflicts_with_all = ["cancel", "wait"])]
    dry_run: bool,
    /// Stop disconnecting clients at all nodes
    #[arg(long, conflicts_with = "wait")]
    cancel: bool,
    /// Show the progress until the end; fails if a node does not reach its number of connections
    #[arg(long)]
    wait: bool,
}

impl RebalanceArgs {
    pub(super) async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        if self.cancel {
            let answer = client.delete(PATH).await?;
            return output.print_done("no node disconnects clients to rebalance", &answer);
        }
        let rebalance = match self.dry_run {
            true => client.get(PATH).await?,
            false => client.post_empty(PATH).await?,
        };
        if !self.wait {
            return print(&rebalance, output);
        }
        if output.format == OutputFormat::Table {
            print(&rebalance, output)?;
        }
        let since = runs(&rebalance);
        wait(client, output, &since).await
    }
}

fn print(rebalance: &Value, output: &CtlOutput) -> anyhow::Result<()> {
    if output.format == OutputFormat::Json {
        return print_text(&format!("{rebalance:#}\n"));
    }
    let columns = [
        ("NODE", "node"),
        ("CONNECTIONS", "connections"),
        ("STAY", "bound"),
        ("AFTER", "after"),
        ("DISCONNECTED", "disconnected"),
        ("STATE", "state"),
    ];
    let nodes = rebalance["nodes"].as_array().into_iter().flatten();
    output.print_rows((nodes.map(row).collect(), false), &columns)?;
    match rebalance["obstacle"].as_str() {
        Some(obstacle) if rebalance["is_running"] != true => print_text(&format!("{obstacle}\n")),
        _ => Ok(()),
    }
}

fn row(node: &Value) -> Value {
    let mut row = node.clone();
    row["disconnected"] = node["run"]["disconnected"].clone();
    row["state"] = state(node).into();
    row
}

/// What a node does, or why it does nothing.
fn state(node: &Value) -> String {
    match node["exclusion"].as_str() {
        Some("draining") => return "is drained".to_owned(),
        Some("unreachable") => return "not reachable".to_owned(),
        _ => {}
    }
    if let Some(error) = node["error"].as_str() {
        return error.to_owned();
    }
    let run = &node["run"];
    let target = &run["target"];
    let surplus = node["connections"].as_u64().zip(node["target"].as_u64());
    match (run["state"].as_str(), surplus) {
        (Some("running"), _) => format!("rebalancing to {target}"),
        (_, Some((connections, target))) => {
            format!("{} too many", connections.saturating_sub(target))
        }
        (Some("reached"), _) => format!("reached {target}"),
        (Some("only_bound"), _) => "only connections are left that stay".to_owned(),
        (Some("clients_returned"), _) => "ended, because clients return to it".to_owned(),
        (Some("cancelled"), _) => "cancelled".to_owned(),
        (Some("drained"), _) => "ended by a drain".to_owned(),
        _ => "takes clients".to_owned(),
    }
}

/// Nodes with the start of the rebalancing that is running there.
fn runs(rebalance: &Value) -> Vec<(String, u64)> {
    let nodes = rebalance["nodes"].as_array().into_iter().flatten();
    let running = nodes.filter(|node| node["run"]["state"] == "running");
    let runs = running.filter_map(|node| {
        let name = node["node"].as_str()?.to_owned();
        Some((name, node["run"]["since_ms"].as_u64()?))
    });
    runs.collect()
}

async fn wait(
    client: &ApiClient,
    output: &CtlOutput,
    started: &[(String, u64)],
) -> anyhow::Result<()> {
    let mut shown = String::new();
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        let rebalance = client.get(PATH).await?;
        let text = progress(&rebalance, started);
        if text != shown && output.format == OutputFormat::Table {
            print_text(&text)?;
            shown = text;
        }
        if !is_running(&rebalance, started) {
            if output.format == OutputFormat::Json {
                print(&rebalance, output)?;
            }
            let failures = failures(&rebalance, started);
            if !failures.is_empty() {
                bail!("not all nodes have reached their number of connections: {failures}");
            }
            return Ok(());
        }
    }
}

fn find<'a>(rebalance: &'a Value, node: &str) -> &'a Value {
    let mut nodes = rebalance["nodes"].as_array().into_iter().flatten();
    nodes
        .find(|one| one["node"] == node)
        .unwrap_or(&Value::Null)
}

fn progress(rebalance: &Value, started: &[(String, u64)]) -> String {
    let line = |(name, _): &(String, u64)| {
        let node = find(rebalance, name);
        let run = &node["run"];
        format!(
            "{name}: {} connections, {} disconnected, {}\n",
            node["connections"],
            run["disconnected"].as_u64().unwrap_or_default(),
            state(node)
        )
    };
    started.iter().map(line).collect()
}

fn is_running(rebalance: &Value, started: &[(String, u64)]) -> bool {
    let mut started = started.iter();
    started.any(|(name, _)| {
        let node = find(rebalance, name);
        // One that does not answer now may continue.
        node["run"]["state"] == "running" || node["error"].is_string()
    })
}

/// The nodes that ended for another reason than that they have what they should have, or all that they can.
fn failures(rebalance: &Value, started: &[(String, u64)]) -> String {
    let failed = started.iter().filter_map(|(name, since_ms)| {
        let node = find(rebalance, name);
        let run = &node["run"];
        let is_same = run["since_ms"].as_u64() == Some(*since_ms);
        let has_done = matches!(run["state"].as_str(), Some("reached" | "only_bound"));
        match (is_same, has_done) {
            (true, true) => None,
            (true, false) => Some(format!("{name} ({})", state(node))),
            (false, _) => Some(format!("{name} (was stopped or cannot be reached)")),
        }
    });
    failed.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(state: Option<&str>, target: Option<u64>) -> Value {
        let run = state
            .map(|state| json!({"since_ms": 5, "target": 70, "disconnected": 30, "state": state}));
        json!({
            "node": "node-1", "connections": 100, "bound": 10, "target": target, "after": 70, "exclusion": null,
            "error": null, "run": run
        })
    }

    #[test]
    fn each_node_has_a_state() {
        assert_eq!(state(&node(None, None)), "takes clients");
        assert_eq!(state(&node(None, Some(70))), "30 too many");
        assert_eq!(state(&node(Some("running"), Some(70))), "rebalancing to 70");
        assert_eq!(state(&node(Some("reached"), None)), "reached 70");
        assert_eq!(state(&node(Some("reached"), Some(60))), "40 too many");
        let mut other = node(None, None);
        other["error"] = json!("the node did not answer in time");
        assert_eq!(state(&other), "the node did not answer in time");
        other["exclusion"] = json!("draining");
        assert_eq!(state(&other), "is drained");
        assert_eq!(row(&node(Some("running"), None))["disconnected"], 30);
    }

    #[test]
    fn the_end_of_all_nodes_is_waited_for_and_failures_are_named() {
        let with = |node: Value| json!({"nodes": [node]});
        let running = with(node(Some("running"), Some(70)));
        let started = runs(&running);
        assert_eq!(started, [("node-1".to_owned(), 5)]);
        assert!(is_running(&running, &started));
        assert_eq!(
            progress(&running, &started),
            "node-1: 100 connections, 30 disconnected, rebalancing to 70\n"
        );
        for end in ["reached", "only_bound"] {
            let ended = with(node(Some(end), None));
            assert!(!is_running(&ended, &started));
            assert_eq!(failures(&ended, &started), "");
        }
        let returned = with(node(Some("clients_returned"), None));
        assert_eq!(
            failures(&returned, &started),
            "node-1 (ended, because clients return to it)"
        );
        let mut restarted = node(None, None);
        restarted["exclusion"] = json!("unreachable");
        let restarted = with(restarted);
        assert!(!is_running(&restarted, &started));
        assert!(failures(&restarted, &started).contains("cannot be reached"));
    }
}
