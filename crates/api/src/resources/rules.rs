//! Rules beyond their objects: trying one, how they do, watching one at work.

use std::future::Future;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::sync::broadcast::{Receiver, error::RecvError};

use super::events;
use super::stream_connection::{ItemStream, StreamConnection, StreamItem};
use crate::access::{Role, now_ms};
use crate::call::{self, ApiCall};
use crate::endpoint::{ApiResult, Endpoint, get, post};
use crate::objects::ObjectValidationError;
use crate::problem_details::ProblemDetails;
use crate::query_parameters::PageCursor;

/// A rule and an event to try it on. Nothing is published and no sink is sent anything.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RuleTestInput {
    /// The rule, as its object would be: `sql` is enough.
    rule: Map<String, Value>,
    #[serde(default)]
    event: TestEventInput,
}

/// What happens. An event of the kind that FROM names first.
#[derive(Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TestEventInput {
    #[serde(skip_serializing_if = "Option::is_none")]
    topic: Option<String>,
    /// A text, or JSON as it is.
    #[serde(default)]
    payload: Value,
    /// In place of `payload`.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    username: Option<String>,
    #[serde(default)]
    #[schemars(range(max = 2))]
    qos: u8,
    #[serde(default)]
    retain: bool,
    /// Further fields: those of the output of another rule, of a bridge, of a device.
    #[serde(default)]
    fields: Map<String, Value>,
}

/// What came of it.
#[derive(Serialize, JsonSchema)]
#[allow(dead_code, reason = "it only describes what the rule engine answers")]
struct RuleTestOutcome {
    /// `fluxmq` or `emqx`.
    dialect: String,
    /// What the statement means, as text.
    plan: String,
    /// Whether there is an output.
    matched: bool,
    /// Why there is none.
    reason: Option<String>,
    /// If there is no output: what WHERE compares, with its values.
    compared: Option<Vec<ComparedOperand>>,
    /// What is wrong with the payload, if the rule reads fields of it and it is not JSON.
    payload_problem: Option<String>,
    /// Probable mistakes, such as placeholders that are always null.
    warnings: Vec<String>,
    /// Of a rule with a window: how it knows the time, and that of the event.
    window: Option<Value>,
    /// Of a rule with a window: what the window counts of the event.
    counted: Option<Value>,
    /// Of a rule with a window: as if it closed with this one event.
    outputs: Vec<Value>,
    /// What the actions would do.
    actions: Vec<Value>,
    compiled_us: u64,
    took_ns: u64,
}

/// How a rule does, since the node started.
#[derive(Serialize, JsonSchema)]
#[allow(dead_code, reason = "it only describes what the rule engine answers")]
struct RuleStatus {
    name: String,
    /// `running`, `disabled` or `broken`.
    condition: String,
    /// What is wrong with a broken one.
    problem: Option<String>,
    /// It stands in the configuration and cannot be changed over the API.
    is_declared: bool,
    /// Counters by name: matched, passed, no_result, failed and so on.
    counters: Value,
    /// Of the evaluations that were timed, in nanoseconds.
    p50_ns: Option<u64>,
    p99_ns: Option<u64>,
    last_error: Option<RuleLastError>,
    /// Probable mistakes, such as placeholders that are always null.
    warnings: Vec<String>,
}

/// The last failure of a rule.
#[derive(Serialize, JsonSchema)]
#[allow(dead_code, reason = "it only describes what the rule engine answers")]
struct RuleLastError {
    at_ms: u64,
    /// `value`, `limit` or `other` of an evaluation; `action` of an action.
    kind: String,
    text: String,
    /// The action that failed, counted from 0.
    action: Option<u32>,
}

/// An operand of WHERE.
#[derive(Serialize, JsonSchema)]
#[allow(dead_code, reason = "it only describes what the rule engine answers")]
struct ComparedOperand {
    expression: String,
    /// Its value as JSON, or why it cannot be evaluated.
    value: String,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        post("/api/v1/rules/test", "testRule", test)
            .role(Role::Viewer)
            .tag("rules")
            .summary("Try a rule on an event")
            .description("The rule need not be one of the node. Nothing is published and no sink is sent anything.")
            .request_body::<RuleTestInput>()
            .response::<RuleTestOutcome>(200, "What came of it."),
        get("/api/v1/rule-status", "listRuleStatus", statuses)
            .role(Role::Viewer)
            .tag("rules")
            .summary("How rules do")
            .description("Those of the configuration too, sorted by name.")
            .paged::<RuleStatus>(),
        get("/api/v1/rules/{name}/status", "ruleStatus", status)
            .role(Role::Viewer)
            .tag("rules")
            .summary("How a rule does")
            .path_parameter("name", "Its name, percent-encoded.")
            .response::<RuleStatus>(200, "Since the node started."),
        get("/api/v1/rules/{name}/trace", "traceRule", trace)
            .role(Role::Operator)
            .tag("rules")
            .summary("Watch a rule at work")
            .description(
                "Server-Sent Events named `trace`: what met the rule and what came of it, at most 200 a second; `left_out` says how \
                 many others there were. `lost` if this listener was too slow. The payloads of clients are in it.",
            )
            .path_parameter("name", "Its name, percent-encoded.")
            .raw_response(200, "The stream.", &["text/event-stream"])
            .problem_response(429, "Too many streams are open."),
    ]
}

fn validation_problem(part: &str, invalid: &ObjectValidationError) -> ProblemDetails {
    let field = match invalid.field.as_str() {
        "" => part.to_owned(),
        field => format!("{part}.{field}"),
    };
    let detail = format!("{field}: {}", invalid.detail);
    ProblemDetails::invalid_field(&field, detail)
}

fn rule_not_found(name: &str) -> ProblemDetails {
    ProblemDetails::not_found(format!("There is no rule {name:?}."))
}

async fn test(mut call: ApiCall) -> ApiResult {
    let RuleTestInput { rule, event } = call.body_json().await?;
    let event = serde_json::to_value(event).unwrap_or_default();
    let tools = call.app.rule_backend.clone();
    let test = move || tools.test_rule(&Value::Object(rule), &event);
    let tested = call::run_blocking(test, "The rule cannot be tried now.").await?;
    call::json_response(tested.map_err(|error| validation_problem("rule", &error))?)
}

async fn status(call: ApiCall) -> ApiResult {
    let name = call.path("name");
    call::json_response(
        call.app
            .rule_backend
            .rule_status(name)
            .ok_or_else(|| rule_not_found(name))?,
    )
}

async fn statuses(call: ApiCall) -> ApiResult {
    let limit = call.query.limit();
    let after = call.query.after().map(|cursor| cursor.first);
    let statuses = call
        .app
        .rule_backend
        .rule_statuses(after.as_deref(), limit + 1);
    call::paged_rows(statuses, limit, |status| {
        PageCursor::new(status["name"].as_str().unwrap_or_default(), "")
    })
}

struct RuleTraceFeed {
    listener: StreamConnection,
    records: Receiver<Arc<Value>>,
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
            Ok(record) => Some(StreamItem::Event("trace".into(), record.to_string())),
            Err(RecvError::Lagged(count)) => {
                let lost = json!({"at_ms": now_ms(), "count": count});
                Some(StreamItem::Event("lost".into(), lost.to_string()))
            }
            // The rule is gone.
            Err(RecvError::Closed) => None,
        }
    }
}

async fn trace(call: ApiCall) -> ApiResult {
    let name = call.path("name");
    let records = call
        .app
        .rule_backend
        .trace_rule(name)
        .ok_or_else(|| rule_not_found(name))?;
    let place = events::begin_stream(&call)?;
    let feed = RuleTraceFeed {
        listener: StreamConnection::new(&call, place),
        records,
    };
    events::sse_response(&call, feed)
}
