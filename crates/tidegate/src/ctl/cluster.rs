//! `tidegate ctl cluster`: the cluster that the node is a member of.

use clap::Subcommand;
use outbound::url_encoding::url_encode;
use serde_json::Value;

use super::cluster_rebalance::RebalanceArgs;
use super::error::CtlError;
use super::http::ApiClient;
use super::output::{CtlOutput, OutputFormat, format_date, print_text};

#[derive(Subcommand)]
pub(super) enum ClusterCommand {
    /// Show the members of the cluster and the state of NATS, as this node sees them
    Status,
    /// Disconnect the clients of a member, so that they connect to other nodes, before it is stopped
    Drain {
        /// Name of the node; default: the node that answers
        node: Option<String>,
        /// Accept clients again
        #[arg(long)]
        cancel: bool,
    },
    /// Disconnect clients of members with more connections than others, so that they connect to those
    Rebalance(RebalanceArgs),
    /// Remove a member that has ended and does not come back
    Evict {
        /// Name of the node
        node: String,
    },
}

impl ClusterCommand {
    pub(super) async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        match self {
            Self::Status => {
                let mut status = client.get("/api/v1/cluster").await?;
                if output.format == OutputFormat::Json {
                    return print_text(&format!("{status:#}\n"));
                }
                let servers = servers_line(client.get("/api/v1/cluster/servers").await);
                print_text(&format!("{}{}\n", summary(&status), servers))?;
                let columns = [
                    ("NODE", "node"),
                    ("STATE", "state"),
                    ("VERSION", "version"),
                    ("CONNECTIONS", "connections"),
                    ("SESSIONS", "sessions"),
                    ("ROUND TRIP", "round_trip"),
                    ("QUEUED", "queued"),
                ];
                let members = status["members"].take();
                let members = members.as_array().into_iter().flatten();
                output.print_rows((members.map(row).collect(), false), &columns)
            }
            Self::Drain { node, cancel } => {
                let node = match node {
                    Some(node) => node,
                    None => {
                        let status = client.get("/api/v1/cluster").await?;
                        status["node"].as_str().unwrap_or_default().to_owned()
                    }
                };
                let path = format!("/api/v1/cluster/members/{}/drain", url_encode(&node));
                if cancel {
                    let answer = client.delete(&path).await?;
                    return output.print_done(&format!("{node} accepts clients"), &answer);
                }
                let answer = client.post_empty(&path).await?;
                let done = format!(
                    "{node} disconnects its clients; ctl cluster status shows how many it has"
                );
                output.print_done(&done, &answer)
            }
            Self::Rebalance(arguments) => arguments.run(client, output).await,
            Self::Evict { node } => {
                let path = format!("/api/v1/cluster/members/{}", url_encode(&node));
                let answer = client.delete(&path).await?;
                output.print_done(&format!("{node} was removed from the cluster"), &answer)
            }
        }
    }
}

/// The lines above the members.
fn summary(status: &Value) -> String {
    let text = |value: &Value| clean(value.as_str().unwrap_or("-"));
    let nats = &status["nats"];
    let mut lines = vec![format!(
        "cluster   {}, seen by {}",
        text(&status["name"]),
        text(&status["node"])
    )];
    let mut state = text(&nats["state"]);
    if let Some(ms) = nats["since_ms"].as_u64() {
        state.push_str(&format!(" since {}", format_date(ms)));
    }
    if let (Some(name), Some(version)) = (
        nats["server_name"].as_str(),
        nats["server_version"].as_str(),
    ) {
        state.push_str(&format!(", server {} {}", clean(name), clean(version)));
    }
    if let Some(ms) = nats["round_trip_ms"].as_f64() {
        state.push_str(&format!(", round trip {ms:.1} ms"));
    }
    lines.push(format!("nats      {state}"));
    let server = &nats["managed"];
    if server.is_object() {
        let is_running = server["is_running"] == true;
        let mut state = match (is_running, server["pid"].as_u64()) {
            (true, Some(pid)) => format!("runs with pid {pid}"),
            (true, None) => "runs".to_owned(),
            (false, _) => "does not run".to_owned(),
        };
        if let Some(restarts) = server["restarts"].as_u64().filter(|count| *count > 0) {
            state.push_str(&format!(", restarts {restarts}"));
        }
        if let Some(error) = server["last_error"].as_str().filter(|_| !is_running) {
            state.push_str(&format!(": {}", clean(error)));
        }
        lines.push(format!("server    {state}"));
    }
    let is_ready = nats["state"] == "ready";
    if let Some(error) = nats["last_error"].as_str().filter(|_| !is_ready) {
        lines.push(format!("error     {}", clean(error)));
    }
    if let Some(problem) = status["problem"].as_str() {
        lines.push(format!("problem   {}", clean(problem)));
    }
    let objects = &status["objects"];
    if objects["is_synchronized"] == true {
        lines.push(format!(
            "objects   {}, the same on all nodes",
            objects["count"]
        ));
    } else if objects.is_object() {
        let reason = objects["error"].as_str().map(clean).unwrap_or_default();
        let text =
            format!("objects   not those of the cluster yet; they cannot be changed now: {reason}");
        lines.push(text.trim_end().to_owned());
    }
    for (field, text) in [
        ("conflicts", "replaced by that of the cluster"),
        ("local_only", "only on this node, because it is too large"),
    ] {
        for name in objects[field].as_array().into_iter().flatten() {
            lines.push(format!(
                "object    {} {text}",
                clean(name.as_str().unwrap_or("?"))
            ));
        }
    }
    if let Some(disconnected) = status["drain"]["disconnected"].as_u64() {
        lines.push(format!(
            "drain     {disconnected} clients of this node were disconnected"
        ));
    }
    lines.extend(standby_lines(&status["standby"]));
    lines.extend(telemetry_copy_lines(&status["telemetry_copy"]));
    if status["is_complete"] == false {
        lines.push("problem   the subscriptions of some members are not known yet".to_owned());
    }
    lines.join("\n") + "\n"
}

/// The servers that count for the majority; nothing if the nodes run none.
fn servers_line(servers: Result<Value, CtlError>) -> String {
    let servers = match servers {
        Ok(servers) => servers,
        Err(CtlError::Rejected { status: 404, .. }) => return String::new(),
        Err(CtlError::Rejected { detail, .. }) => {
            return format!("servers   {}\n", clean(&detail));
        }
        Err(error) => return format!("servers   {}\n", clean(&error.to_string())),
    };
    let servers: Vec<&Value> = servers["data"].as_array().into_iter().flatten().collect();
    let is_connected = |server: &&&Value| server["is_connected"] == true;
    let connected = servers.iter().filter(is_connected).count();
    let texts: Vec<String> = servers.iter().map(|server| server_text(server)).collect();
    format!(
        "servers   {connected} of {} connected: {}\n",
        servers.len(),
        texts.join(", ")
    )
}

fn server_text(server: &Value) -> String {
    let mut text = clean(server["name"].as_str().unwrap_or("?"));
    let mut notes = Vec::new();
    if server["is_leader"] == true {
        notes.push("leader".to_owned());
    }
    if server["has_node"] == false {
        notes.push("without a node".to_owned());
    }
    if server["is_connected"] == false {
        let seconds = server["silent_ms"].as_u64().unwrap_or_default() / 1000;
        notes.push(format!("silent for {seconds} s"));
    } else if server["is_current"] == false {
        notes.push(format!("{} changes behind", server["missing_changes"]));
    }
    if !notes.is_empty() {
        text.push_str(&format!(" ({})", notes.join(", ")));
    }
    text
}

/// The copy of the sessions of the node, and those of other nodes that it adopts.
fn standby_lines(standby: &Value) -> Vec<String> {
    let node = clean(standby["node"].as_str().unwrap_or("?"));
    let state = match standby["state"].as_str() {
        Some("no_standby") => {
            "none; nobody adopts the sessions of this node when it fails".to_owned()
        }
        Some("copying") => format!("{node} is receiving the sessions of this node"),
        Some("current") => format!("{node} adopts the sessions of this node when it fails"),
        Some("removing_standby") => {
            "lost; answers to clients wait until the cluster knows that".to_owned()
        }
        Some("examining") => {
            "not known; answers to clients wait until the cluster can be asked".to_owned()
        }
        Some("adopted") => format!("{node} has adopted the sessions of this node"),
        _ => return Vec::new(),
    };
    let mut lines = vec![format!("standby   {state}")];
    if let Some(error) = standby["last_error"].as_str() {
        lines.push(format!("standby   {}", clean(error)));
    }
    for copy in standby["copies"].as_array().into_iter().flatten() {
        let of = clean(copy["node"].as_str().unwrap_or("?"));
        let adoption = &copy["adoption"];
        if let (Some(done), Some(all)) = (
            adoption["processed_sessions"].as_u64(),
            adoption["sessions"].as_u64(),
        ) {
            lines.push(format!(
                "adoption  {done} of {all} sessions of {of} are processed"
            ));
        }
    }
    lines
}

/// The copy of the telemetry of the node, and those of other nodes that it keeps.
fn telemetry_copy_lines(copy: &Value) -> Vec<String> {
    let node = clean(copy["node"].as_str().unwrap_or("?"));
    let state = match copy["state"].as_str() {
        Some("no_standby") => Some("none; there is no other node".to_owned()),
        Some("interrupted") => Some(format!("{node} has the copy and cannot be reached")),
        Some("completing") => Some(format!("{node} is receiving the telemetry of this node")),
        Some("complete") => Some(format!("{node} has the telemetry of this node")),
        _ => None,
    };
    let mut lines = Vec::new();
    if let Some(state) = state {
        lines.push(format!("telemetry {state}"));
    }
    if let Some(error) = copy["last_error"].as_str() {
        lines.push(format!("telemetry {}", clean(error)));
    }
    for kept in copy["copies"].as_array().into_iter().flatten() {
        let of = clean(kept["node"].as_str().unwrap_or("?"));
        let completeness = match (&kept["is_orphan"], &kept["is_complete"]) {
            (Value::Bool(true), _) => "which has begun with empty time series since",
            (_, Value::Bool(true)) => "complete",
            _ => "incomplete",
        };
        let megabytes = kept["bytes"].as_u64().unwrap_or_default() >> 20;
        lines.push(format!(
            "kept      copy of {of}, {completeness}, {megabytes} MiB"
        ));
    }
    lines
}

fn row(member: &Value) -> Value {
    let mut row = member.clone();
    let target = member["rebalance_target"].as_u64();
    row["state"] = match target {
        _ if member["is_reachable"] != true => "not reachable".into(),
        _ if member["is_draining"] == true => "draining".into(),
        Some(target) => format!("rebalancing to {target}").into(),
        None => "reachable".into(),
    };
    row["round_trip"] = match member["round_trip_ms"].as_u64() {
        Some(ms) => format!("{ms} ms").into(),
        None => Value::Null,
    };
    row["queued"] = match member["queued_bytes"].as_u64() {
        _ if member["is_self"] == true => Value::Null,
        Some(bytes) => format!("{bytes} B").into(),
        None => Value::Null,
    };
    row
}

/// Text of other nodes and servers must not move the cursor.
fn clean(text: &str) -> String {
    let chars = text.chars();
    chars
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn status() -> Value {
        json!({
            "name": "tidegate", "node": "node-1", "is_complete": true, "problem": null,
            "nats": {
                "state": "ready", "since_ms": 0, "server_name": "node-1", "server_version": "2.12.15",
                "last_error": "an old one", "round_trip_ms": 0.44, "managed": {"is_running": true, "pid": 7, "restarts": 0}
            },
            "objects": {"is_synchronized": true, "count": 12, "conflicts": ["rule/r1"], "local_only": [], "error": null},
        })
    }

    #[test]
    fn the_summary_shows_what_is_wrong_and_only_that() {
        assert_eq!(
            summary(&status()),
            "cluster   tidegate, seen by node-1\n\
             nats      ready since 1970-01-01T00:00:00Z, server node-1 2.12.15, round trip 0.4 ms\n\
             server    runs with pid 7\n\
             objects   12, the same on all nodes\n\
             object    rule/r1 replaced by that of the cluster\n"
        );
        let mut broken = status();
        broken["is_complete"] = json!(false);
        broken["problem"] = json!("no\nlease");
        broken["nats"]["state"] = json!("disconnected");
        broken["nats"]["managed"] =
            json!({"is_running": false, "last_error": "ended", "restarts": 2});
        broken["standby"] = json!({
            "state": "removing_standby", "node": null, "last_error": "it cannot\nbe reached",
            "copies": [{"node": "node-3", "adoption": {"processed_sessions": 10, "sessions": 20}}]
        });
        broken["telemetry_copy"] = json!({
            "state": "completing", "node": "node-2", "last_error": "too\nslow",
            "copies": [
                {"node": "node-3", "is_complete": false, "is_orphan": false, "bytes": 3_500_000},
                {"node": "node-4", "is_complete": true, "is_orphan": true, "bytes": 0}
            ]
        });
        broken["drain"] = json!({"since_ms": 0, "disconnected": 3});
        broken["objects"] = json!({"is_synchronized": false, "error": "no majority"});
        let text = summary(&broken);
        for part in [
            "server    does not run, restarts 2: ended\n",
            "error     an old one\n",
            "problem   no\u{fffd}lease\n",
            "subscriptions of some members",
            "cannot be changed now: no majority\n",
            "drain     3 clients of this node were disconnected\n",
            "standby   lost; answers to clients wait until the cluster knows that\n",
            "standby   it cannot\u{fffd}be reached\n",
            "adoption  10 of 20 sessions of node-3 are processed\n",
            "telemetry node-2 is receiving the telemetry of this node\n",
            "telemetry too\u{fffd}slow\n",
            "kept      copy of node-3, incomplete, 3 MiB\n",
            "kept      copy of node-4, which has begun with empty time series since, 0 MiB\n",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn the_servers_are_one_line() {
        let server = |name: &str, is_leader: bool, has_node: bool, silent_ms: u64| {
            json!({
                "name": name, "has_node": has_node, "is_leader": is_leader, "is_connected": silent_ms < 5000,
                "is_current": silent_ms == 0, "missing_changes": 7, "silent_ms": silent_ms
            })
        };
        let servers = json!({"data": [
            server("node-1", true, true, 0),
            server("node-2", false, true, 900),
            server("node-3", false, true, 0),
            server("witness\u{1b}", false, false, 12_345),
        ]});
        assert_eq!(
            servers_line(Ok(servers)),
            "servers   3 of 4 connected: node-1 (leader), node-2 (7 changes behind), node-3, witness\u{fffd} (without a node, silent for 12 s)\n"
        );
        let rejected = |status: u16| CtlError::Rejected {
            status,
            detail: "no leader".to_owned(),
        };
        assert_eq!(servers_line(Err(rejected(404))), "");
        assert_eq!(servers_line(Err(rejected(503))), "servers   no leader\n");
    }

    #[test]
    fn the_own_node_has_no_queue() {
        let row = row(&json!({"is_self": true, "queued_bytes": 0, "round_trip_ms": null}));
        assert_eq!(
            (&row["queued"], &row["round_trip"]),
            (&Value::Null, &Value::Null)
        );
        let row = super::row(&json!({"is_self": false, "queued_bytes": 10, "round_trip_ms": 3}));
        assert_eq!(
            (&row["queued"], &row["round_trip"]),
            (&json!("10 B"), &json!("3 ms"))
        );
    }

    #[test]
    fn the_state_of_a_member_is_one_text() {
        let mut member =
            json!({"is_reachable": true, "is_draining": false, "rebalance_target": null});
        assert_eq!(row(&member)["state"], "reachable");
        member["rebalance_target"] = json!(70);
        assert_eq!(row(&member)["state"], "rebalancing to 70");
        member["is_draining"] = json!(true);
        assert_eq!(row(&member)["state"], "draining");
        member["is_reachable"] = json!(false);
        assert_eq!(row(&member)["state"], "not reachable");
    }
}
