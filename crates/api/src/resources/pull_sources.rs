//! Pull sources beyond their objects: states and tests.

use devices::pull::PullSourceStatus;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::access::Role;
use crate::call::{self, ApiCall};
use crate::endpoint::{Endpoint, EndpointScope, get, post};
use crate::problem_details::{ApiResult, ProblemDetails};

use super::connectors::page_by_name;

/// Result of a test query.
#[derive(Serialize, JsonSchema)]
struct PullTestOutcome {
    is_ok: bool,
    /// Reason why there are no rows.
    error: Option<String>,
    rows: u64,
    values: u64,
    skipped_values: u64,
    /// Error in a part of the response.
    problem: Option<String>,
    /// The first hundred rows: `{"device", "ts_ms", "values"}`.
    data: Vec<Map<String, Value>>,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    let one = |endpoint: Endpoint| {
        endpoint
            .tag("devices")
            .path_parameter("name", "The source's name, percent-encoded.")
    };
    vec![
        get("/api/v1/pull-source-status", "listPullSourceStatus", list)
            .role(Role::Viewer, EndpointScope::Node)
            .tag("devices")
            .summary("List pull source states")
            .paged::<PullSourceStatus>(),
        one(get(
            "/api/v1/pull-sources/{name}/status",
            "pullSourceStatus",
            status,
        ))
        .role(Role::Viewer, EndpointScope::Node)
        .summary("Read the state of a pull source")
        .response::<PullSourceStatus>(
            200,
            "The state since the node started or the source was changed.",
        ),
        one(post(
            "/api/v1/pull-sources/{name}/test",
            "testPullSource",
            test,
        ))
        .role(Role::Operator, EndpointScope::Node)
        .summary("Test a pull source")
        .description("Queries the system as on schedule, but stores nothing.")
        .response::<PullTestOutcome>(200, "The result of the query."),
    ]
}

fn pull_source_not_found(name: &str) -> ProblemDetails {
    ProblemDetails::not_found(format!("There is no pull source {name:?}."))
}

async fn list(call: ApiCall) -> ApiResult {
    let statuses = call.app.pulls.statuses();
    page_by_name(&call, statuses, |status| &status.name)
}

async fn status(call: ApiCall) -> ApiResult {
    let name = call.path("name");
    let status = call.app.pulls.status(name);
    call::json_response(status.ok_or_else(|| pull_source_not_found(name))?)
}

async fn test(call: ApiCall) -> ApiResult {
    let name = call.path("name");
    let pulled = call.app.pulls.test(name).await;
    let pulled = pulled.ok_or_else(|| pull_source_not_found(name))?;
    let number = |value: &Value, name: &str| value[name].as_u64().unwrap_or(0);
    call::json_response(match pulled {
        Err(error) => PullTestOutcome {
            is_ok: false,
            error: Some(error),
            rows: 0,
            values: 0,
            skipped_values: 0,
            problem: None,
            data: Vec::new(),
        },
        Ok(value) => PullTestOutcome {
            is_ok: true,
            error: None,
            rows: number(&value, "rows"),
            values: number(&value, "values"),
            skipped_values: number(&value, "skipped_values"),
            problem: value["problem"].as_str().map(str::to_owned),
            data: match value["data"].as_array() {
                Some(rows) => rows
                    .iter()
                    .filter_map(|row| row.as_object().cloned())
                    .collect(),
                None => Vec::new(),
            },
        },
    })
}
