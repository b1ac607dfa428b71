//! Health checks, metrics, and the landing page.

use axum::Json;
use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use schemars::JsonSchema;
use serde::Serialize;

use super::node::VERSION;
use crate::access::EndpointAccess;
use crate::call::{ApiCall, text_response};
use crate::console_page;
use crate::endpoint::{Endpoint, get};
use crate::landing_page;
use crate::problem_details::ApiResult;
use crate::process_metrics;
use crate::prometheus;

#[derive(Serialize, JsonSchema)]
struct Readiness {
    ready: bool,
    /// Reason, starting with `starting`, `stopping` or `stalled`.
    reason: Option<&'static str>,
    /// What works only in part although the node accepts clients, starting with `cluster`.
    degraded: Option<&'static str>,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        get("/", "index", index)
            .access(EndpointAccess::Open)
            .summary("Show the web console or an overview")
            .raw_response(200, "HTML.", &["text/html"]),
        get("/healthz", "health", async |_| {
            Ok(text_response("text/plain; charset=utf-8", "ok\n"))
        })
        .access(EndpointAccess::Open)
        .summary("Check that the process is running")
        .raw_response(200, "It does.", &["text/plain"]),
        get("/readyz", "readiness", readyz)
            .access(EndpointAccess::Open)
            .summary("Check that the node accepts traffic")
            .response::<Readiness>(200, "It does.")
            .response::<Readiness>(503, "The node is not ready; `reason` contains the cause."),
        get("/metrics", "metrics", metrics)
            .access(EndpointAccess::Metrics)
            .summary("Read metrics for Prometheus")
            .description(
                "Needs no credentials if `http.metrics_access` allows it; by default on loopback.",
            )
            .raw_response(200, "Text in the exposition format 0.0.4.", &["text/plain"]),
    ]
}

async fn index(call: ApiCall) -> ApiResult {
    let is_registration_enabled = call.app.config.get().registration_enabled;
    if let Some(page) = console_page::page(&*call.app.console, is_registration_enabled) {
        return Ok(page);
    }
    // Listeners are shown only to callers with a node-wide role.
    let listeners = match call.identity.node_role() {
        Some(_) => call.app.node.listeners(),
        None => Vec::new(),
    };
    let page = landing_page::render(
        VERSION,
        call.app.node.not_ready(),
        &listeners,
        call.app.console.missing_reason(),
    );
    Ok(text_response("text/html; charset=utf-8", page))
}

async fn readyz(call: ApiCall) -> ApiResult {
    let not_ready = call.app.node.not_ready();
    let status = match not_ready {
        Some(_) => StatusCode::SERVICE_UNAVAILABLE,
        None => StatusCode::OK,
    };
    let readiness = Readiness {
        ready: not_ready.is_none(),
        reason: not_ready.map(crate::node_backend::not_ready_reason),
        degraded: call.app.program.degradation(),
    };
    Ok((status, Json(readiness)).into_response())
}

async fn metrics(call: ApiCall) -> ApiResult {
    let app = &call.app;
    let mut written = String::with_capacity(16 * 1024);
    prometheus::write_families(&app.node.metrics().await, "tidegate_", &mut written);
    prometheus::write_families(&app.program.metrics(), "tidegate_", &mut written);
    prometheus::write_families(&app.connections.families(), "tidegate_", &mut written);
    prometheus::write_families(&app.program.rule_metrics(), "", &mut written);
    // Runs on a blocking thread: before Linux 6.2 the open files are counted one by one.
    let process = tokio::task::spawn_blocking(process_metrics::families)
        .await
        .unwrap_or_default();
    prometheus::write_families(&process, "", &mut written);
    Ok(text_response(prometheus::CONTENT_TYPE, written))
}
