//! Rules beyond their objects: trying one, how they do, watching one at work.

use std::future::Future;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::sync::broadcast::{Receiver, error::RecvError};

use super::events;
use super::listener::{Item, Items, Listener};
use crate::access::{Role, now_ms};
use crate::call::{self, Call};
use crate::endpoint::{Endpoint, Outcome, get, post};
use crate::objects::Invalid;
use crate::parameters::Cursor;
use crate::problem::Problem;

/// A rule and an event to try it on. Nothing is published and no sink is sent anything.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TestInput {
    /// The rule, as its object would be: `sql` is enough.
    rule: Map<String, Value>,
    #[serde(default)]
    event: EventInput,
}

/// What happens. An event of the kind that FROM names first.
#[derive(Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct EventInput {
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
struct TestOutcome {
    /// `fluxmq` or `emqx`.
    dialect: String,
    /// What the statement means, as text.
    plan: String,
    /// Whether there is an output.
    matched: bool,
    /// Why there is none.
    reason: Option<String>,
    /// If there is no output: what WHERE compares, with its values.
    compared: Option<Vec<Compared>>,
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
struct Status {
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
    last_error: Option<LastError>,
    /// Probable mistakes, such as placeholders that are always null.
    warnings: Vec<String>,
}

/// The last failure of a rule.
#[derive(Serialize, JsonSchema)]
#[allow(dead_code, reason = "it only describes what the rule engine answers")]
struct LastError {
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
struct Compared {
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
            .body::<TestInput>()
            .answers::<TestOutcome>(200, "What came of it."),
        get("/api/v1/rule-status", "listRuleStatus", statuses)
            .role(Role::Viewer)
            .tag("rules")
            .summary("How rules do")
            .description("Those of the configuration too, sorted by name.")
            .pages::<Status>(),
        get("/api/v1/rules/{name}/status", "ruleStatus", status)
            .role(Role::Viewer)
            .tag("rules")
            .summary("How a rule does")
            .path_parameter("name", "Its name, percent-encoded.")
            .answers::<Status>(200, "Since the node started."),
        get("/api/v1/rules/{name}/trace", "traceRule", trace)
            .role(Role::Operator)
            .tag("rules")
            .summary("Watch a rule at work")
            .description(
                "Server-Sent Events named `trace`: what met the rule and what came of it, at most 200 a second; `left_out` says how \
                 many others there were. `lost` if this listener was too slow. The payloads of clients are in it.",
            )
            .path_parameter("name", "Its name, percent-encoded.")
            .answers_raw(200, "The stream.", &["text/event-stream"])
            .problem(429, "Too many streams are open."),
    ]
}

fn invalid(part: &str, invalid: &Invalid) -> Problem {
    let field = match invalid.field.as_str() {
        "" => part.to_owned(),
        field => format!("{part}.{field}"),
    };
    let detail = format!("{field}: {}", invalid.detail);
    Problem::field(&field, detail)
}

fn no_rule(name: &str) -> Problem {
    Problem::not_found(format!("There is no rule {name:?}."))
}

async fn test(mut call: Call) -> Outcome {
    let TestInput { rule, event } = call.json().await?;
    let event = serde_json::to_value(event).unwrap_or_default();
    let tools = call.app.rule_tools.clone();
    let test = move || tools.test(&Value::Object(rule), &event);
    let tested = call::blocking(test, "The rule cannot be tried now.").await?;
    call::ok(tested.map_err(|error| invalid("rule", &error))?)
}

async fn status(call: Call) -> Outcome {
    let name = call.path("name");
    call::ok(
        call.app
            .rule_tools
            .status(name)
            .ok_or_else(|| no_rule(name))?,
    )
}

async fn statuses(call: Call) -> Outcome {
    let limit = call.query.limit();
    let after = call.query.after().map(|cursor| cursor.first);
    let statuses = call.app.rule_tools.statuses(after.as_deref(), limit + 1);
    call::page(statuses, limit, |status| {
        Cursor::new(status["name"].as_str().unwrap_or_default(), "")
    })
}

struct Feed {
    listener: Listener,
    records: Receiver<Arc<Value>>,
}

impl Items for Feed {
    fn next(&mut self) -> impl Future<Output = Option<Item>> + Send {
        self.next_item()
    }
}

impl Feed {
    async fn next_item(&mut self) -> Option<Item> {
        let received = tokio::select! {
            biased;
            silence = self.listener.silence() => {
                silence?;
                return self.listener.keep_alive().await;
            }
            received = self.records.recv() => received,
        };
        match received {
            Ok(record) => Some(Item::Event("trace".into(), record.to_string())),
            Err(RecvError::Lagged(count)) => {
                let lost = json!({"at_ms": now_ms(), "count": count});
                Some(Item::Event("lost".into(), lost.to_string()))
            }
            // The rule is gone.
            Err(RecvError::Closed) => None,
        }
    }
}

async fn trace(call: Call) -> Outcome {
    let name = call.path("name");
    let records = call
        .app
        .rule_tools
        .watch(name)
        .ok_or_else(|| no_rule(name))?;
    let place = events::place(&call)?;
    let feed = Feed {
        listener: Listener::new(&call, place),
        records,
    };
    events::sent_events(&call, feed)
}
