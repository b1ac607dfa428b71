//! Alarms: list, read, acknowledge, clear and delete them, and the rules of node alarms. The
//! alarm rules of devices are part of their products.

use devices::alarm::{Alarm, AlarmId, AlarmPosition, MAX_COMMENT_CHARS, NODE_PRODUCT, Severity};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::alarm_feed;
use super::alarm_query::{DEVICE, PRODUCT, SEVERITY, TYPE, run_blocking, to_problem};
use crate::access::Role;
use crate::alarm_service::{
    AlarmCounts, AlarmQuery, AlarmService, NodeAlarmRules, NotificationStatus,
};
use crate::audit;
use crate::call::{self, ApiCall};
use crate::endpoint::{Endpoint, EndpointScope, delete, get, post, put};
use crate::endpoint_place::{EndpointPlace, MergedAnswer, MergedRows};
use crate::objects::{
    BackendObjectKind, changed_content_response, check_content, content_response,
};
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::query_parameters::{
    AFTER, MAX_LIMIT, NAMESPACE, NODE, PageCursor, Parameter, ParameterType, QueryParameters,
    time_parameter,
};
use crate::sorted_list::{SortOrder, SortValue, SortedPage, sort_parameter};

const STATE: Parameter = Parameter {
    name: "state",
    description: "Alarm states, separated by commas.",
    shape: ParameterType::Words(&["ACTIVE_UNACK", "ACTIVE_ACK", "CLEARED_UNACK", "CLEARED_ACK"]),
};
const FROM: Parameter = time_parameter(
    "from_ms",
    "Earliest time of raising, in milliseconds since 1970.",
);
const TO: Parameter = time_parameter("to_ms", "Latest time of raising, exclusive.");

/// The field by which the newest alarms come first.
const TIME_FIELD: &str = "raised_at_ms";
const OF_NODE: Parameter = Parameter {
    name: "product",
    description: "`$node`: only alarms of nodes about themselves.",
    shape: ParameterType::Words(&[NODE_PRODUCT]),
};

const SORT: Parameter = sort_parameter(&[
    "raised_at_ms",
    "changed_at_ms",
    "cleared_at_ms",
    "acknowledged_at_ms",
    "severity",
    "state",
    "type",
    "deviceId",
    "productId",
]);

/// Rules of the node alarms.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NodeAlarmRulesInput {
    /// Rules in the form of `alarms` of products.
    #[schemars(length(max = 64))]
    rules: Vec<Map<String, Value>>,
    /// Accepted and ignored, so that the response of a GET can be sent back.
    #[serde(default, rename = "enabled")]
    _enabled: Option<bool>,
    #[serde(default, rename = "is_changed")]
    _is_changed: Option<bool>,
}

/// A comment about an alarm.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CommentInput {
    /// 1 to 1000 characters, at least one of which is not a space.
    #[schemars(length(min = 1, max = 1000), regex(pattern = r"\S"))]
    text: String,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    let one = |endpoint: Endpoint| {
        endpoint
            .tag("alarms")
            .path_parameter("id", "The alarm's number.")
            .place(EndpointPlace::Alarm)
            .parameters(&[NODE])
    };
    vec![
        get("/api/v1/alarms", "listAlarms", list)
            .role(Role::Viewer, EndpointScope::Selected)
            .tag("alarms")
            .summary("List alarms")
            .description(
                "Newest first. A page may be short or empty and still have a next one: the node reads a bounded number of \
                 alarms for each.",
            )
            .parameters(&[DEVICE, PRODUCT, TYPE, STATE, SEVERITY, FROM, TO, NAMESPACE, SORT])
            .place(EndpointPlace::AllNodes(MergedAnswer::Alarms(MergedRows {
                time_field: TIME_FIELD,
                sort_value: json_sort_value,
            })))
            .node_paged::<Alarm>(),
        get("/api/v1/alarm-counts", "countAlarms", counts)
            .role(Role::Viewer, EndpointScope::Node)
            .tag("alarms")
            .parameters(&[OF_NODE])
            .place(EndpointPlace::AllNodes(MergedAnswer::AlarmCounts))
            .summary("Count alarms")
            .response::<AlarmCounts>(200, "Now."),
        get("/api/v1/alarm-events", "watchAlarms", alarm_feed::stream_alarms)
            .role(Role::Viewer, EndpointScope::Selected)
            .tag("alarms")
            .summary("Stream alarm changes")
            .description(
                "Server-Sent Events; with `Upgrade: websocket` a WebSocket whose text messages are the same JSON objects. Each has \
                 `event` (raised, severity_changed, acknowledged, cleared, removed), `at_ms` and `alarm`, or is `lost` if this client \
                 was too slow for `count` others. In a cluster, the changes at all nodes are sent; `missing_nodes` names those that do not answer, \
                 whenever they change. The stream ends when the credentials are revoked.",
            )
            .parameters(&[DEVICE, PRODUCT, TYPE, SEVERITY, NAMESPACE])
            .raw_response(200, "The stream.", &["text/event-stream"])
            .empty_response(101, "A WebSocket.")
            .problem_response(404, "The device does not exist.")
            .problem_response(429, "Too many streams are open."),
        one(get("/api/v1/alarms/{id}", "getAlarm", read))
            .role(Role::Viewer, EndpointScope::alarm("id"))
            .summary("Read an alarm")
            .response::<Alarm>(200, "The alarm."),
        one(post("/api/v1/alarms/{id}/acknowledge", "acknowledgeAlarm", acknowledge))
            .role(Role::Operator, EndpointScope::alarm("id"))
            .summary("Acknowledge an alarm")
            .response::<Alarm>(200, "The alarm after the change.")
            .problem_response(409, "The alarm is already acknowledged."),
        one(post("/api/v1/alarms/{id}/clear", "clearAlarm", clear))
            .role(Role::Operator, EndpointScope::alarm("id"))
            .summary("Clear an alarm")
            .description(
                "Clears the alarm regardless of its conditions. If the condition still holds, the device's next message raises a new alarm.",
            )
            .response::<Alarm>(200, "The alarm after the change.")
            .problem_response(409, "The alarm is already cleared."),
        one(post("/api/v1/alarms/{id}/comments", "commentAlarm", comment))
            .role(Role::Operator, EndpointScope::alarm("id"))
            .summary("Comment an alarm")
            .description("Comments are stored with the alarm, at most 50, and cause no notifications.")
            .request_body::<CommentInput>()
            .response::<Alarm>(200, "The alarm with its comments.")
            .problem_response(409, "The alarm has as many comments as possible."),
        one(delete("/api/v1/alarms/{id}", "deleteAlarm", remove))
            .role(Role::Operator, EndpointScope::alarm("id"))
            .summary("Delete an alarm")
            .description("An alarm that is not cleared counts as cleared.")
            .empty_response(204, "Deleted."),
        get(
            "/api/v1/notification-status",
            "listNotificationStatus",
            notification_status,
        )
        .role(Role::Viewer, EndpointScope::Node)
        .tag("alarms")
        .summary("List notification counters")
        .unpaged::<NotificationStatus>(),
        post(
            "/api/v1/notifications/{name}/test",
            "testNotification",
            test_notification,
        )
        .role(Role::Operator, EndpointScope::object(BackendObjectKind::Notification, "name"))
        .tag("alarms")
        .path_parameter("name", "Its name, percent-encoded.")
        .summary("Send a test notification")
        .description(
            "The notification is about a fictitious alarm of the type `test`. The sink's state shows whether it arrived. Disabled notifications are sent too.",
        )
        .empty_response(204, "The notification was handed to its sink or published.")
        .problem_response(409, "The notification cannot be sent now; `detail` contains the reason."),
        get("/api/v1/node-alarm-rules", "getNodeAlarmRules", node_alarm_rules)
            .role(Role::Viewer, EndpointScope::Node)
            .tag("alarms")
            .summary("Read the rules of node alarms")
            .description("Rules as in products; keys are metrics of the node.")
            .response::<NodeAlarmRules>(200, "The rules in effect.")
            .with_etag(),
        put("/api/v1/node-alarm-rules", "putNodeAlarmRules", set_node_alarm_rules)
            .role(Role::Operator, EndpointScope::Node)
            .tag("alarms")
            .summary("Replace the rules of node alarms")
            .request_body::<NodeAlarmRulesInput>()
            .response::<NodeAlarmRules>(200, "The rules in effect.")
            .with_etag(),
        delete(
            "/api/v1/node-alarm-rules",
            "resetNodeAlarmRules",
            reset_node_alarm_rules,
        )
        .role(Role::Operator, EndpointScope::Node)
        .tag("alarms")
        .summary("Restore the default rules of node alarms")
        .response::<NodeAlarmRules>(200, "The rules in effect.")
        .with_etag(),
    ]
}

pub(super) fn alarm_not_found(id: &str) -> ProblemDetails {
    ProblemDetails::not_found(format!("There is no alarm {id}."))
}

/// The alarm number in the path.
pub(super) fn alarm_id(call: &ApiCall) -> Result<u64, ProblemDetails> {
    let id = call.path("id");
    id.parse().map_err(|_| alarm_not_found(id))
}

async fn list(call: ApiCall) -> ApiResult {
    let order = SortOrder::read(&call.query)?;
    let query = AlarmQuery {
        device: call.query.owned_text(DEVICE),
        product: call.query.owned_text(PRODUCT),
        kind: call.query.owned_text(TYPE),
        states: call.query.comma_separated(STATE),
        severities: call.query.comma_separated(SEVERITY),
        from_ms: call.query.number_value(FROM),
        to_ms: call.query.number_value(TO),
        before: match order {
            Some(_) => None,
            None => position_after(&call.query)?,
        },
        limit: call.query.limit(),
        namespaces: call.namespaces(),
    };
    let Some(order) = order else {
        let page = run_blocking(&call.app, move |alarms| alarms.list(&query)).await?;
        let next = page.next.map(position_cursor);
        return call::page_before(page.rows, next);
    };
    let limit = call.query.limit();
    let sorting = run_blocking(&call.app, move |alarms| {
        Ok(sorted_page(alarms, query, order, limit))
    });
    sorting.await??.into_response()
}

/// The place in the cursor of a list without `sort`.
fn position_after(query: &QueryParameters) -> Result<Option<AlarmPosition>, ProblemDetails> {
    let Some(cursor) = query.after() else {
        return Ok(None);
    };
    let (raised_at_ms, id) = (cursor.first.parse(), cursor.second.parse());
    let (Ok(raised_at_ms), Ok(id)) = (raised_at_ms, id) else {
        let detail = "after must be a cursor from the list of alarms without sort.";
        return Err(ProblemDetails::invalid_parameter(AFTER.name, detail));
    };
    Ok(Some(AlarmPosition {
        raised_at_ms,
        id: AlarmId(id),
    }))
}

/// As the cursor of [`SortOrder::newest`](crate::sorted_list::SortOrder::newest).
fn position_cursor(position: AlarmPosition) -> PageCursor {
    let id = format!("{:020}", position.id.0);
    PageCursor::new(&position.raised_at_ms.to_string(), &id)
}

fn sort_value(alarm: &Alarm, field: &str) -> SortValue {
    match field {
        "type" => SortValue::text(&alarm.kind),
        // In ascending order, the most severe comes first.
        "severity" => SortValue::number(alarm.severity as u64),
        "state" => SortValue::text(alarm.state.as_str()),
        "deviceId" => SortValue::text(&alarm.device),
        "productId" => SortValue::text(&alarm.product),
        "changed_at_ms" => SortValue::number(alarm.changed_at_ms),
        "cleared_at_ms" => SortValue::optional_number(alarm.cleared_at_ms),
        "acknowledged_at_ms" => SortValue::optional_number(alarm.acknowledged_at_ms),
        _ => SortValue::number(alarm.raised_at_ms),
    }
}

/// The same of an alarm in JSON.
fn json_sort_value(alarm: &Value, field: &str) -> SortValue {
    match field {
        "severity" => {
            let severity = alarm[field].as_str().and_then(Severity::parse);
            severity.map_or(SortValue::Missing, |severity| {
                SortValue::number(severity as u64)
            })
        }
        _ => SortValue::json(&alarm[field]),
    }
}

/// A page of all selected alarms in an order.
fn sorted_page(
    alarms: &AlarmService,
    query: AlarmQuery,
    order: SortOrder,
    limit: usize,
) -> Result<SortedPage<Alarm>, ProblemDetails> {
    let mut page = SortedPage::new(order, limit);
    let mut before = None;
    loop {
        let chunk = AlarmQuery {
            before,
            limit: MAX_LIMIT,
            ..query.clone()
        };
        let found = alarms.list(&chunk).map_err(to_problem)?;
        for alarm in found.rows {
            let value = sort_value(&alarm, page.field());
            // With leading zeros, so that equal values are in the order of the numbers.
            let id = format!("{:020}", alarm.id.0);
            page.offer(value, &id, alarm)?;
        }
        match found.next {
            Some(next) => before = Some(next),
            None => return Ok(page),
        }
    }
}

async fn counts(call: ApiCall) -> ApiResult {
    let only_of_node = call.query.text_value(OF_NODE.name).is_some();
    let counting = run_blocking(&call.app, move |alarms| Ok(alarms.counts(only_of_node)));
    call::json_response(counting.await?)
}

async fn read(call: ApiCall) -> ApiResult {
    let id = alarm_id(&call)?;
    let alarm = run_blocking(&call.app, move |alarms| alarms.get(id)).await?;
    call::json_response(alarm.ok_or_else(|| alarm_not_found(call.path("id")))?)
}

async fn acknowledge(call: ApiCall) -> ApiResult {
    let (id, who) = (alarm_id(&call)?, call.identity.name.clone());
    let alarm = run_blocking(&call.app, move |alarms| alarms.acknowledge(id, &who)).await?;
    audit::record_action(&call, "alarm.acknowledge", Some(call.path("id")), None).await;
    call::json_response(alarm)
}

async fn clear(call: ApiCall) -> ApiResult {
    let (id, who) = (alarm_id(&call)?, call.identity.name.clone());
    let alarm = run_blocking(&call.app, move |alarms| alarms.clear(id, &who)).await?;
    audit::record_action(&call, "alarm.clear", Some(call.path("id")), None).await;
    call::json_response(alarm)
}

async fn comment(mut call: ApiCall) -> ApiResult {
    let CommentInput { text } = call.body_json().await?;
    let count = text.chars().count();
    if text.trim().is_empty() || count > MAX_COMMENT_CHARS {
        let detail = format!(
            "text: expected 1 to {MAX_COMMENT_CHARS} characters that are not only spaces, found {count}."
        );
        return Err(ProblemDetails::invalid_field("text", detail));
    }
    let (id, who) = (alarm_id(&call)?, call.identity.name.clone());
    let after = json!({"text": text});
    let alarm = run_blocking(&call.app, move |alarms| alarms.comment(id, &who, &text)).await?;
    audit::record_action(&call, "alarm.comment", Some(call.path("id")), Some(after)).await;
    call::json_response(alarm)
}

async fn remove(call: ApiCall) -> ApiResult {
    let id = alarm_id(&call)?;
    run_blocking(&call.app, move |alarms| alarms.remove(id)).await?;
    audit::record_action(&call, "alarm.delete", Some(call.path("id")), None).await;
    call::no_content()
}

async fn notification_status(call: ApiCall) -> ApiResult {
    let status = run_blocking(&call.app, |alarms| Ok(alarms.notification_status())).await?;
    call::unpaged_list(status)
}

async fn test_notification(call: ApiCall) -> ApiResult {
    let name = call.path("name").to_owned();
    run_blocking(&call.app, move |alarms| alarms.test_notification(&name)).await?;
    audit::record_action(&call, "notification.test", Some(call.path("name")), None).await;
    call::no_content()
}

async fn node_alarm_rules(call: ApiCall) -> ApiResult {
    content_response(call.headers(), &node_rules(&call).await?)
}

async fn node_rules(call: &ApiCall) -> Result<NodeAlarmRules, ProblemDetails> {
    run_blocking(&call.app, |alarms| alarms.node_alarm_rules()).await
}

async fn set_node_alarm_rules(mut call: ApiCall) -> ApiResult {
    let NodeAlarmRulesInput { rules, .. } = call.body_json().await?;
    let rules: Vec<_> = rules.into_iter().map(Value::Object).collect();
    let recorded = json!(rules);
    // Prevents that objects named by the rules are deleted meanwhile.
    let changing = call.app.changing.lock().await;
    check_content(call.headers(), &node_rules(&call).await?)?;
    let references = call.app.object_backend.clone();
    let answer = run_blocking(&call.app, move |alarms| {
        alarms.set_node_alarm_rules(rules, &*references)
    })
    .await?;
    drop(changing);
    audit::record_action(&call, "node_alarm_rules.change", None, Some(recorded)).await;
    Ok(changed_content_response(&answer))
}

async fn reset_node_alarm_rules(call: ApiCall) -> ApiResult {
    let changing = call.app.changing.lock().await;
    check_content(call.headers(), &node_rules(&call).await?)?;
    let answer = run_blocking(&call.app, |alarms| alarms.reset_node_alarm_rules()).await?;
    drop(changing);
    audit::record_action(&call, "node_alarm_rules.reset", None, None).await;
    Ok(changed_content_response(&answer))
}
