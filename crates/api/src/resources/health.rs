//! What supervisors, Prometheus and browsers ask first.

use axum::Json;
use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use schemars::JsonSchema;
use serde::Serialize;

use super::node::VERSION;
use crate::call::{Call, text};
use crate::endpoint::{Access, Endpoint, Outcome, get};
use crate::{exposition, landing, process};

#[derive(Serialize, JsonSchema)]
struct Readiness {
    ready: bool,
    /// Begins with `starting`, `stopping` or `stalled`.
    reason: Option<&'static str>,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        get("/", "index", index)
            .access(Access::Open)
            .summary("A page for people")
            .answers_raw(200, "HTML.", &["text/html"]),
        get("/healthz", "health", async |_| Ok(text("text/plain; charset=utf-8", "ok\n")))
            .access(Access::Open)
            .summary("Whether the process lives")
            .answers_raw(200, "It does.", &["text/plain"]),
        get("/readyz", "readiness", readyz)
            .access(Access::Open)
            .summary("Whether the node takes traffic")
            .answers::<Readiness>(200, "It does.")
            .answers::<Readiness>(503, "It does not, for this reason."),
        get("/metrics", "metrics", metrics)
            .access(Access::Metrics)
            .summary("Metrics for Prometheus")
            .description("Without credentials where `http.metrics_access` says so: on loopback, unless set otherwise.")
            .answers_raw(200, "Text in the exposition format 0.0.4.", &["text/plain"]),
    ]
}

async fn index(call: Call) -> Outcome {
    // Who is not known to be allowed to look sees no listeners.
    let listeners = match call.who.role_or_none() {
        Some(_) => call.app.node.listeners(),
        None => Vec::new(),
    };
    let page = landing::render(VERSION, call.app.node.not_ready(), &listeners);
    Ok(text("text/html; charset=utf-8", page))
}

async fn readyz(call: Call) -> Outcome {
    let not_ready = call.app.node.not_ready();
    let status = match not_ready {
        Some(_) => StatusCode::SERVICE_UNAVAILABLE,
        None => StatusCode::OK,
    };
    let readiness = Readiness {
        ready: not_ready.is_none(),
        reason: not_ready.map(crate::node::reason),
    };
    Ok((status, Json(readiness)).into_response())
}

async fn metrics(call: Call) -> Outcome {
    let app = &call.app;
    let mut written = String::with_capacity(16 * 1024);
    exposition::write(&app.node.metrics().await, "tidegate_", &mut written);
    exposition::write(&app.program.metrics(), "tidegate_", &mut written);
    exposition::write(&app.connections.families(), "tidegate_", &mut written);
    exposition::write(&app.program.rule_metrics(), "", &mut written);
    // Not on a runtime thread: before Linux 6.2 the open files are counted one by one.
    let process = tokio::task::spawn_blocking(process::families)
        .await
        .unwrap_or_default();
    exposition::write(&process, "", &mut written);
    Ok(text(exposition::CONTENT_TYPE, written))
}
