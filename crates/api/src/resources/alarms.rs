//! Alarms: lists, one by one, acknowledging and clearing them, and the rules of those about the node itself. What raises the alarms of
//! devices stands in their products.

use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::alarm_feed;
use crate::access::Role;
use crate::alarm_backend::{AlarmBackend, AlarmBackendError, AlarmQuery};
use crate::audit;
use crate::call::{self, ApiCall};
use crate::endpoint::{ApiResult, Endpoint, delete, get, post, put};
use crate::problem_details::ProblemDetails;
use crate::query_parameters::{Parameter, ParameterType, text_parameter, time_parameter};
use crate::state::ApiState;

pub(super) const DEVICE: Parameter = text_parameter(
    "device",
    "Alarms of this device, and those of devices behind it that are propagated.",
);
pub(super) const PRODUCT: Parameter = text_parameter(
    "product",
    "Alarms of devices of this product; `$platform`: of the node itself.",
);
pub(super) const TYPE: Parameter = text_parameter("type", "Alarms of this type.");
const STATE: Parameter = Parameter {
    name: "state",
    description: "Alarms in these states.",
    shape: ParameterType::Words(&["ACTIVE_UNACK", "ACTIVE_ACK", "CLEARED_UNACK", "CLEARED_ACK"]),
};
pub(super) const SEVERITY: Parameter = Parameter {
    name: "severity",
    description: "Alarms of these severities.",
    shape: ParameterType::Words(&["CRITICAL", "MAJOR", "MINOR", "WARNING", "INDETERMINATE"]),
};
const FROM: Parameter = time_parameter(
    "from_ms",
    "Raised at or after this time, in milliseconds since 1970.",
);
const TO: Parameter = time_parameter("to_ms", "Raised before this time.");

/// Something that is, or was, wrong with a device.
#[derive(Serialize, JsonSchema)]
#[allow(dead_code, reason = "it only describes what the alarms answer")]
pub(super) struct Alarm {
    /// Later ones have larger numbers.
    id: u64,
    /// What is wrong: the id of the product's rule, or the name that an SQL rule gave.
    #[serde(rename = "type")]
    kind: String,
    /// `CRITICAL`, `MAJOR`, `MINOR`, `WARNING` or `INDETERMINATE`.
    severity: String,
    /// `ACTIVE_UNACK`, `ACTIVE_ACK`, `CLEARED_UNACK` or `CLEARED_ACK`.
    state: String,
    /// `$node`: the node itself.
    #[serde(rename = "deviceId")]
    device: String,
    #[serde(rename = "productId")]
    product: String,
    /// For people.
    details: String,
    /// What the conditions speak of, as it was when the severity last changed.
    values: Map<String, Value>,
    /// The SQL rule that raised it; empty: a rule of the product.
    rule: String,
    /// Notifications that its rule names.
    notify: Vec<String>,
    /// By the device's time, in milliseconds since 1970.
    raised_ms: u64,
    /// When its severity last changed.
    changed_ms: u64,
    cleared_ms: Option<u64>,
    /// Who cleared it; `null`: a condition did, or it is not cleared.
    cleared_by: Option<String>,
    acknowledged_ms: Option<u64>,
    acknowledged_by: Option<String>,
}

/// How many alarms there are.
#[derive(Serialize, JsonSchema)]
#[allow(dead_code, reason = "it only describes what the alarms answer")]
struct AlarmCounts {
    alarms: u64,
    /// Not cleared.
    active: u64,
    unacknowledged: u64,
    by_state: BTreeMap<String, u64>,
    /// Of those that are not cleared.
    active_by_severity: BTreeMap<String, u64>,
}

/// How often a notification was sent, since the node started.
#[derive(Serialize, JsonSchema)]
#[allow(dead_code, reason = "it only describes what the alarms answer")]
struct NotificationStatus {
    name: String,
    /// Handed to its sink or published.
    sent: u64,
    /// Not sent because of `at_most_every_s`.
    suppressed: u64,
    /// Its sink is not there or takes nothing.
    failed: u64,
}

/// Rules of the alarms of the node about itself.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PlatformAlarmRulesInput {
    /// As the `alarms` of products.
    #[schemars(length(max = 64))]
    rules: Vec<Map<String, Value>>,
    /// As they are shown; they are left aside.
    #[serde(default, rename = "enabled")]
    _enabled: Option<bool>,
    #[serde(default, rename = "is_changed")]
    _is_changed: Option<bool>,
}

/// Rules of the alarms of the node about itself.
#[derive(Serialize, JsonSchema)]
#[allow(dead_code, reason = "it only describes what the alarms answer")]
struct PlatformAlarmRules {
    rules: Vec<Map<String, Value>>,
    /// Whether they are looked at: the setting `alarms.platform`.
    enabled: bool,
    /// `false`: they are those of the program.
    is_changed: bool,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    let one = |endpoint: Endpoint| {
        endpoint
            .tag("alarms")
            .path_parameter("id", "The alarm's number.")
    };
    vec![
        get("/api/v1/alarms", "listAlarms", list)
            .role(Role::Viewer)
            .tag("alarms")
            .summary("List alarms")
            .description(
                "The newest first. A page may be short or empty and still have a next one: the node looks at a bounded number of \
                 alarms for each.",
            )
            .parameters(&[DEVICE, PRODUCT, TYPE, STATE, SEVERITY, FROM, TO])
            .paged::<Alarm>(),
        get("/api/v1/alarm-counts", "countAlarms", counts)
            .role(Role::Viewer)
            .tag("alarms")
            .summary("Count alarms")
            .response::<AlarmCounts>(200, "Now."),
        get("/api/v1/alarm-events", "watchAlarms", alarm_feed::stream_alarms)
            .role(Role::Viewer)
            .tag("alarms")
            .summary("What becomes of alarms, as it happens")
            .description(
                "Server-Sent Events; with `Upgrade: websocket` a WebSocket whose text messages are the same JSON objects. Each has \
                 `event` (raised, severity_changed, acknowledged, cleared, removed), `at_ms` and `alarm`, or is lost if this listener \
                 was too slow for `count` others. The stream ends when the credentials do.",
            )
            .parameters(&[DEVICE, PRODUCT, TYPE, SEVERITY])
            .raw_response(200, "The stream.", &["text/event-stream"])
            .empty_response(101, "A WebSocket.")
            .problem_response(404, "There is no such device.")
            .problem_response(429, "Too many streams are open."),
        one(get("/api/v1/alarms/{id}", "getAlarm", read))
            .role(Role::Viewer)
            .summary("Look at an alarm")
            .response::<Alarm>(200, "It, as it is now."),
        one(post("/api/v1/alarms/{id}/acknowledge", "acknowledgeAlarm", acknowledge))
            .role(Role::Operator)
            .summary("Say that somebody has seen an alarm")
            .response::<Alarm>(200, "It, as it is now.")
            .problem_response(409, "It is acknowledged already."),
        one(post("/api/v1/alarms/{id}/clear", "clearAlarm", clear))
            .role(Role::Operator)
            .summary("Clear an alarm")
            .description(
                "Whatever its conditions say. If what is wrong still is, the device's next message raises another one.",
            )
            .response::<Alarm>(200, "It, as it is now.")
            .problem_response(409, "It is cleared already."),
        one(delete("/api/v1/alarms/{id}", "deleteAlarm", remove))
            .role(Role::Operator)
            .summary("Delete an alarm")
            .description("One that is not cleared is as if it had been.")
            .empty_response(204, "Deleted."),
        get(
            "/api/v1/notification-status",
            "listNotificationStatus",
            notification_status,
        )
        .role(Role::Viewer)
        .tag("alarms")
        .summary("How often notifications were sent")
        .unpaged::<NotificationStatus>(),
        post(
            "/api/v1/notifications/{name}/test",
            "testNotification",
            test_notification,
        )
        .role(Role::Operator)
        .tag("alarms")
        .path_parameter("name", "Its name, percent-encoded.")
        .summary("Send a notification to try it")
        .description(
            "About an alarm of the type `test` that is none. Whether it arrives, its sink tells; disabled ones are sent, too.",
        )
        .empty_response(204, "Handed to its sink, or published.")
        .problem_response(409, "It cannot be sent now; it says why."),
        get("/api/v1/platform-alarms", "getPlatformAlarms", platform)
            .role(Role::Viewer)
            .tag("alarms")
            .summary("Rules of the alarms about the node itself")
            .description("As rules of products have them; keys are figures of the node.")
            .response::<PlatformAlarmRules>(200, "Those that hold."),
        put("/api/v1/platform-alarms", "putPlatformAlarms", set_platform)
            .role(Role::Operator)
            .tag("alarms")
            .summary("Replace the rules of the alarms about the node itself")
            .request_body::<PlatformAlarmRulesInput>()
            .response::<PlatformAlarmRules>(200, "Those that hold from now on."),
        delete(
            "/api/v1/platform-alarms",
            "resetPlatformAlarms",
            reset_platform,
        )
        .role(Role::Operator)
        .tag("alarms")
        .summary("Have the rules of the program hold again")
        .response::<PlatformAlarmRules>(200, "Those that hold from now on."),
    ]
}

pub(super) fn to_problem(error: AlarmBackendError) -> ProblemDetails {
    match error {
        AlarmBackendError::NotFound(detail) => ProblemDetails::not_found(detail),
        AlarmBackendError::Conflict(detail) => ProblemDetails::conflict(detail),
        AlarmBackendError::Field { field, detail } if field.is_empty() => {
            ProblemDetails::unprocessable(detail)
        }
        AlarmBackendError::Field { field, detail } => {
            ProblemDetails::invalid_field(&field, format!("{field}: {detail}."))
        }
        AlarmBackendError::Unavailable(detail) => ProblemDetails::unavailable(detail),
    }
}

/// Asks on a thread that may read the disk.
pub(super) async fn run_blocking<T: Send + 'static>(
    app: &ApiState,
    question: impl FnOnce(&dyn AlarmBackend) -> Result<T, AlarmBackendError> + Send + 'static,
) -> Result<T, ProblemDetails> {
    let tools = Arc::clone(&app.alarm_backend);
    let asked =
        call::run_blocking(move || question(&*tools), "The alarms cannot be read now.").await?;
    asked.map_err(to_problem)
}

pub(super) fn alarm_not_found(id: &str) -> ProblemDetails {
    ProblemDetails::not_found(format!("There is no alarm {id}."))
}

/// The number of the alarm in the path.
pub(super) fn alarm_id(call: &ApiCall) -> Result<u64, ProblemDetails> {
    let id = call.path("id");
    id.parse().map_err(|_| alarm_not_found(id))
}

async fn list(call: ApiCall) -> ApiResult {
    let query = AlarmQuery {
        device: call.query.owned_text(DEVICE),
        product: call.query.owned_text(PRODUCT),
        kind: call.query.owned_text(TYPE),
        states: call.query.comma_separated(STATE),
        severities: call.query.comma_separated(SEVERITY),
        from_ms: call.query.number_value(FROM),
        to_ms: call.query.number_value(TO),
        before: call.query.after_number("alarms")?,
        limit: call.query.limit(),
    };
    let page = run_blocking(&call.app, move |tools| tools.list(&query)).await?;
    call::page_of(page.rows, page.next)
}

async fn counts(call: ApiCall) -> ApiResult {
    call::json_response(run_blocking(&call.app, |tools| Ok(tools.counts())).await?)
}

async fn read(call: ApiCall) -> ApiResult {
    let id = alarm_id(&call)?;
    let alarm = run_blocking(&call.app, move |tools| tools.get(id)).await?;
    call::json_response(alarm.ok_or_else(|| alarm_not_found(call.path("id")))?)
}

async fn acknowledge(call: ApiCall) -> ApiResult {
    let (id, who) = (alarm_id(&call)?, call.identity.name.clone());
    let alarm = run_blocking(&call.app, move |tools| tools.acknowledge(id, &who)).await?;
    audit::record_action(&call, "alarm.acknowledge", Some(call.path("id")), None).await;
    call::json_response(alarm)
}

async fn clear(call: ApiCall) -> ApiResult {
    let (id, who) = (alarm_id(&call)?, call.identity.name.clone());
    let alarm = run_blocking(&call.app, move |tools| tools.clear(id, &who)).await?;
    audit::record_action(&call, "alarm.clear", Some(call.path("id")), None).await;
    call::json_response(alarm)
}

async fn remove(call: ApiCall) -> ApiResult {
    let id = alarm_id(&call)?;
    run_blocking(&call.app, move |tools| tools.remove(id)).await?;
    audit::record_action(&call, "alarm.delete", Some(call.path("id")), None).await;
    call::no_content()
}

async fn notification_status(call: ApiCall) -> ApiResult {
    let status = run_blocking(&call.app, |tools| Ok(tools.notification_status())).await?;
    call::unpaged_list(status)
}

async fn test_notification(call: ApiCall) -> ApiResult {
    let name = call.path("name").to_owned();
    run_blocking(&call.app, move |tools| tools.test_notification(&name)).await?;
    audit::record_action(&call, "notification.test", Some(call.path("name")), None).await;
    call::no_content()
}

async fn platform(call: ApiCall) -> ApiResult {
    call::json_response(run_blocking(&call.app, |tools| tools.platform_rules()).await?)
}

async fn set_platform(mut call: ApiCall) -> ApiResult {
    let PlatformAlarmRulesInput { rules, .. } = call.body_json().await?;
    let rules: Vec<_> = rules.into_iter().map(Value::Object).collect();
    let told = json!(rules);
    // What they name shall not go meanwhile.
    let changing = call.app.changing.lock().await;
    let answer = run_blocking(&call.app, move |tools| {
        tools.set_platform_rules(Some(rules))
    })
    .await?;
    drop(changing);
    audit::record_action(&call, "platform_alarms.change", None, Some(told)).await;
    call::json_response(answer)
}

async fn reset_platform(call: ApiCall) -> ApiResult {
    let answer = run_blocking(&call.app, |tools| tools.set_platform_rules(None)).await?;
    audit::record_action(&call, "platform_alarms.reset", None, None).await;
    call::json_response(answer)
}
