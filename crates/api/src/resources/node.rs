//! A summary of the node.

use std::time::UNIX_EPOCH;

use schemars::JsonSchema;
use serde::Serialize;

use crate::access::Role;
use crate::blocking::run_blocking;
use crate::call::{self, ApiCall};
use crate::endpoint::{Endpoint, EndpointScope, get};
use crate::problem_details::ApiResult;

pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

#[derive(Serialize, JsonSchema)]
struct NodeInfo {
    version: &'static str,
    pid: u32,
    started_at_ms: u64,
    uptime_s: u64,
    /// Whether it accepts traffic.
    ready: bool,
    /// Reason why it does not.
    not_ready_reason: Option<&'static str>,
    /// Number of connections of all listeners.
    connections: u64,
    /// Number of entries of `GET /api/v1/quarantine`: damaged data that the node was started without. `null`: unknown.
    quarantined: Option<usize>,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        get("/api/v1/node", "getNode", node)
            .role(Role::Viewer, EndpointScope::Node)
            .summary("Read version, process and uptime")
            .response::<NodeInfo>(200, "The node."),
    ]
}

async fn node(call: ApiCall) -> ApiResult {
    let app = &call.app;
    let started = app.started.duration_since(UNIX_EPOCH).unwrap_or_default();
    let not_ready = app.node.not_ready();
    let listeners = app.node.listeners();
    let program = app.program.clone();
    let quarantined = run_blocking(move || program.quarantine().ok(), "Not known.").await;
    call::json_response(NodeInfo {
        version: VERSION,
        pid: std::process::id(),
        started_at_ms: u64::try_from(started.as_millis()).unwrap_or(u64::MAX),
        uptime_s: app.started.elapsed().unwrap_or_default().as_secs(),
        ready: not_ready.is_none(),
        not_ready_reason: not_ready.map(crate::node_backend::not_ready_reason),
        connections: listeners.iter().map(|listener| listener.connections).sum(),
        quarantined: quarantined.ok().flatten().map(|parts| parts.len()),
    })
}
