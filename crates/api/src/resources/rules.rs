//! Rules beyond their objects: tests, states and traces.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

use engine::{
    RuleCondition, RuleCounter, RuleDefinitionError, RuleStatus, RuleTestOutcome, TestEvent,
    TestEventInput, TraceRecord,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::sync::broadcast::{Receiver, error::RecvError};
use wall_clock::now_ms;

use super::events;
use super::stream_connection::{ItemStream, StreamConnection, StreamItem};
use crate::access::Role;
use crate::blocking::run_blocking;
use crate::call::{self, ApiCall};
use crate::endpoint::{Endpoint, EndpointScope, get, post};
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::query_parameters::PageCursor;

/// A rule and an event to test it on. Nothing is published, and sinks receive nothing.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RuleTestInput {
    /// Rule object; `sql` is enough.
    rule: Map<String, Value>,
    #[serde(default)]
    event: TestEventInput,
}

/// State of a rule since the node started.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "RuleStatus")]
struct RuleStatusView {
    name: String,
    /// `running`, `disabled` or `invalid`.
    state: &'static str,
    /// Error of an invalid rule.
    problem: Option<String>,
    /// Whether it is declared in the configuration and cannot be changed over the API.
    is_declared: bool,
    /// Counters by name: matched, passed, no_result, failed and others.
    counters: BTreeMap<&'static str, u64>,
    /// Median of the evaluations that were timed, in nanoseconds.
    p50_ns: Option<u64>,
    p99_ns: Option<u64>,
    last_error: Option<RuleLastError>,
    /// Probable mistakes, such as placeholders that are always null.
    warnings: Vec<String>,
}

/// Last failure of a rule.
#[derive(Serialize, JsonSchema)]
struct RuleLastError {
    at_ms: u64,
    /// `value`, `limit` or `other` for an evaluation; `action` for an action.
    kind: &'static str,
    text: String,
    /// Index of the action that failed, from 0.
    action: Option<usize>,
}

impl From<RuleStatus> for RuleStatusView {
    fn from(status: RuleStatus) -> Self {
        let (state, problem) = match &status.state {
            RuleCondition::Running => ("running", None),
            RuleCondition::Disabled => ("disabled", None),
            RuleCondition::Broken(problem) => ("invalid", Some(problem.to_string())),
        };
        let counters = RuleCounter::ALL.map(|(count, name)| (name, status.totals.get(count)));
        Self {
            name: status.name,
            state,
            problem,
            is_declared: status.is_declared,
            counters: BTreeMap::from(counters),
            p50_ns: status.totals.quantile_ns(0.5),
            p99_ns: status.totals.quantile_ns(0.99),
            last_error: status.last_error.map(|error| RuleLastError {
                at_ms: error.at_ms,
                kind: error.kind,
                text: error.text,
                action: error.action,
            }),
            warnings: status.warnings,
        }
    }
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        post("/api/v1/rules/test", "testRule", test)
            .role(Role::Viewer, EndpointScope::Node)
            .tag("rules")
            .summary("Test a rule on an event")
            .description("The rule need not be stored. Nothing is published, and sinks receive nothing.")
            .request_body::<RuleTestInput>()
            .response::<RuleTestOutcome>(200, "The result of the test."),
        get("/api/v1/rule-status", "listRuleStatus", statuses)
            .role(Role::Viewer, EndpointScope::Node)
            .tag("rules")
            .summary("List rule states")
            .description("Includes declared rules; sorted by name.")
            .paged::<RuleStatusView>(),
        get("/api/v1/rules/{name}/status", "ruleStatus", status)
            .role(Role::Viewer, EndpointScope::Node)
            .tag("rules")
            .summary("Read the state of a rule")
            .path_parameter("name", "Its name, percent-encoded.")
            .response::<RuleStatusView>(200, "The state since the node started."),
        get("/api/v1/rules/{name}/trace", "traceRule", trace)
            .role(Role::Operator, EndpointScope::Node)
            .tag("rules")
            .summary("Trace a rule")
            .description(
                "Server-Sent Events named `trace`: events of the rule and their results, at most 200 per second; `omitted` is the number of omitted ones. `lost` is sent if this client was too slow. Traces contain payloads of clients.",
            )
            .path_parameter("name", "Its name, percent-encoded.")
            .raw_response(200, "The stream.", &["text/event-stream"])
            .problem_response(429, "Too many streams are open."),
    ]
}

/// An error in a part of the request.
fn validation_problem(part: &str, error: &RuleDefinitionError) -> ProblemDetails {
    let field = match error.field.as_str() {
        "" => part.to_owned(),
        field => format!("{part}.{field}"),
    };
    let detail = format!("{field}: {}", error.detail);
    ProblemDetails::invalid_field(&field, detail)
}

fn rule_not_found(name: &str) -> ProblemDetails {
    ProblemDetails::not_found(format!("There is no rule {name:?}."))
}

async fn test(mut call: ApiCall) -> ApiResult {
    let RuleTestInput { rule, event } = call.body_json_in_order().await?;
    let event = TestEvent::try_from(event).map_err(|error| validation_problem("event", &error))?;
    let engine = call.app.engine.clone();
    let test = move || engine.test_rule(&Value::Object(rule), &event);
    let tested = run_blocking(test, "The rule cannot be tested now.").await?;
    call::json_response(tested.map_err(|error| validation_problem("rule", &error))?)
}

async fn status(call: ApiCall) -> ApiResult {
    let name = call.path("name");
    let status = call.app.engine.status(name);
    let status = status.ok_or_else(|| rule_not_found(name))?;
    call::json_response(RuleStatusView::from(status))
}

async fn statuses(call: ApiCall) -> ApiResult {
    let limit = call.query.limit();
    let after = call.query.after().map(|cursor| cursor.first);
    let statuses = call.app.engine.statuses(after.as_deref(), limit + 1);
    let statuses = statuses.into_iter().map(RuleStatusView::from).collect();
    call::paged_rows(statuses, limit, |status| PageCursor::new(&status.name, ""))
}

struct RuleTraceFeed {
    listener: StreamConnection,
    records: Receiver<Arc<TraceRecord>>,
}

impl ItemStream for RuleTraceFeed {
    fn next(&mut self) -> impl Future<Output = Option<StreamItem>> + Send {
        self.next_item()
    }
}

impl RuleTraceFeed {
    async fn next_item(&mut self) -> Option<StreamItem> {
        let received = tokio::select! {
            biased;
            silence = self.listener.wait_for_keep_alive() => {
                silence?;
                return self.listener.check_and_keep_alive().await;
            }
            received = self.records.recv() => received,
        };
        match received {
            Ok(record) => {
                let record = serde_json::to_string(&*record).unwrap_or_default();
                Some(StreamItem::Event("trace".into(), record))
            }
            Err(RecvError::Lagged(count)) => {
                let lost = json!({"at_ms": now_ms(), "count": count});
                Some(StreamItem::Event("lost".into(), lost.to_string()))
            }
            // The rule was deleted.
            Err(RecvError::Closed) => None,
        }
    }
}

async fn trace(call: ApiCall) -> ApiResult {
    let name = call.path("name");
    let records = call.app.engine.watch(name);
    let records = records.ok_or_else(|| rule_not_found(name))?;
    let place = events::begin_stream(&call)?;
    let feed = RuleTraceFeed {
        listener: StreamConnection::new(&call, place),
        records,
    };
    events::sse_response(&call, feed)
}
