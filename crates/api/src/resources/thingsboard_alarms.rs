//! Alarms on ThingsBoard's paths.

use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use devices::alarm::Alarm;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeSet;

use super::alarm_query::run_blocking;
use super::alarms::{alarm_id, alarm_not_found};
use super::thingsboard_devices::EntityId;
use super::thingsboard_paging::{PAGING, PageData, PageNumber};
use crate::access::Role;
use crate::alarm_service::{AlarmQuery, AlarmService, AlarmServiceError};
use crate::audit;
use crate::call::{self, ApiCall};
use crate::cluster_lists::newest_alarms;
use crate::endpoint::{Endpoint, EndpointScope, delete, get, post};
use crate::endpoint_place::EndpointPlace;
use crate::problem_details::ApiResult;
use crate::query_parameters::{NODE, Parameter, ParameterType, text_parameter, time_parameter};

const SEARCH_STATUS: Parameter = Parameter {
    name: "searchStatus",
    shape: ParameterType::Words(&["ANY", "ACTIVE", "CLEARED", "ACK", "UNACK"]),
    description: "Kind of state.",
};
const STATUS: Parameter = Parameter {
    name: "status",
    shape: ParameterType::Words(&["ACTIVE_UNACK", "ACTIVE_ACK", "CLEARED_UNACK", "CLEARED_ACK"]),
    description: "Alarm states.",
};
const START: Parameter = time_parameter("startTime", "Earliest time of raising.");
const END: Parameter = time_parameter("endTime", "Latest time of raising, exclusive.");
const IGNORED: [Parameter; 3] = [
    text_parameter("textSearch", "Ignored."),
    text_parameter("assigneeId", "Ignored: alarms have no assignee."),
    text_parameter(
        "fetchOriginator",
        "Ignored: the name of the device is always returned.",
    ),
];

/// An alarm in ThingsBoard's form. Times are milliseconds since 1970; 0: not yet.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "ThingsboardAlarm")]
struct ThingsboardAlarm {
    id: EntityId,
    created_time: u64,
    #[serde(rename = "type")]
    kind: String,
    name: String,
    originator: EntityId,
    originator_name: String,
    severity: String,
    /// `ACTIVE_UNACK`, `ACTIVE_ACK`, `CLEARED_UNACK` or `CLEARED_ACK`.
    status: String,
    acknowledged: bool,
    cleared: bool,
    start_ts: u64,
    end_ts: u64,
    ack_ts: u64,
    clear_ts: u64,
    /// `text`, and `values`: the values used by the conditions.
    details: Value,
    propagate: bool,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    let one = |endpoint: Endpoint| {
        endpoint
            .tag("alarms")
            .path_parameter("id", "Number of the alarm.")
            .place(EndpointPlace::Alarm)
            .parameters(&[NODE])
    };
    let of_device = |endpoint: Endpoint| {
        endpoint
            .tag("alarms")
            .role(Role::Viewer, EndpointScope::device("device"))
            .path_parameter("device", "The device's id, percent-encoded.")
    };
    let listed = |endpoint: Endpoint| {
        endpoint
            .role(Role::Viewer, EndpointScope::Selected)
            .tag("alarms")
            .summary("List alarms (ThingsBoard)")
            .parameters(&[SEARCH_STATUS, STATUS, START, END])
            .parameters(&IGNORED)
            .parameters(&PAGING)
            .response::<PageData<ThingsboardAlarm>>(200, "A page, newest first.")
    };
    vec![
        listed(get("/api/alarms", "thingsboardAlarms", list)),
        of_device(listed(get(
            "/api/alarm/DEVICE/{device}",
            "thingsboardDeviceAlarms",
            list,
        ))),
        of_device(get(
            "/api/alarm/highestSeverity/DEVICE/{device}",
            "thingsboardHighestSeverity",
            highest_severity,
        ))
        .summary("Read the highest severity (ThingsBoard)")
        .parameters(&[SEARCH_STATUS, STATUS])
        .response::<Option<String>>(200, "The severity, or `null`."),
        one(get("/api/alarm/{id}", "thingsboardAlarm", read))
            .role(Role::Viewer, EndpointScope::alarm("id"))
            .summary("Read an alarm (ThingsBoard)")
            .response::<ThingsboardAlarm>(200, "The alarm."),
        one(get("/api/alarm/info/{id}", "thingsboardAlarmInfo", read))
            .role(Role::Viewer, EndpointScope::alarm("id"))
            .summary("Read alarm details (ThingsBoard)")
            .response::<ThingsboardAlarm>(200, "The alarm."),
        one(post(
            "/api/alarm/{id}/ack",
            "thingsboardAcknowledgeAlarm",
            acknowledge,
        ))
        .role(Role::Operator, EndpointScope::alarm("id"))
        .summary("Acknowledge an alarm (ThingsBoard)")
        .response::<ThingsboardAlarm>(200, "The alarm after the change."),
        one(post(
            "/api/alarm/{id}/clear",
            "thingsboardClearAlarm",
            clear,
        ))
        .role(Role::Operator, EndpointScope::alarm("id"))
        .summary("Clear an alarm (ThingsBoard)")
        .response::<ThingsboardAlarm>(200, "The alarm after the change."),
        one(delete("/api/alarm/{id}", "thingsboardDeleteAlarm", remove))
            .role(Role::Operator, EndpointScope::alarm("id"))
            .summary("Delete an alarm (ThingsBoard)")
            .response::<bool>(200, "`true`: deleted."),
    ]
}

fn to_thingsboard(alarm: &Alarm) -> ThingsboardAlarm {
    let status = alarm.state.as_str();
    ThingsboardAlarm {
        id: EntityId::new("ALARM", alarm.id.0.to_string()),
        created_time: alarm.raised_at_ms,
        name: alarm.kind.clone(),
        kind: alarm.kind.clone(),
        originator: EntityId::new("DEVICE", alarm.device.clone()),
        originator_name: alarm.device.clone(),
        severity: alarm.severity.as_str().to_owned(),
        acknowledged: status.ends_with("_ACK"),
        cleared: alarm.state.is_cleared(),
        status: status.to_owned(),
        start_ts: alarm.raised_at_ms,
        end_ts: alarm.changed_at_ms,
        ack_ts: alarm.acknowledged_at_ms.unwrap_or_default(),
        clear_ts: alarm.cleared_at_ms.unwrap_or_default(),
        details: json!({"text": alarm.details, "values": alarm.values}),
        propagate: false,
    }
}

fn requested_states(call: &ApiCall) -> Vec<String> {
    let given = call.query.comma_separated(STATUS);
    if !given.is_empty() {
        return given;
    }
    let states: &[&str] = match call.query.text_value(SEARCH_STATUS.name) {
        Some("ACTIVE") => &["ACTIVE_UNACK", "ACTIVE_ACK"],
        Some("CLEARED") => &["CLEARED_UNACK", "CLEARED_ACK"],
        Some("ACK") => &["ACTIVE_ACK", "CLEARED_ACK"],
        Some("UNACK") => &["ACTIVE_UNACK", "CLEARED_UNACK"],
        _ => &[],
    };
    states.iter().map(|state| (*state).to_owned()).collect()
}

fn alarm_query(call: &ApiCall) -> AlarmQuery {
    AlarmQuery {
        device: Some(call.path("device").to_owned()).filter(|device| !device.is_empty()),
        states: requested_states(call),
        from_ms: call.query.number_value(START),
        to_ms: call.query.number_value(END),
        namespaces: call.namespaces(),
        ..AlarmQuery::default()
    }
}

async fn list(call: ApiCall) -> ApiResult {
    let mut query = alarm_query(&call);
    let page = PageNumber::from_call(&call);
    let (skip, limit) = page.range();
    query.limit = limit;
    let newest = newest_alarms(&call.app, query, skip).await?;
    let shown = page.to_page_data(newest.rows, newest.has_more, to_thingsboard);
    call::with_missing_nodes(call::json_response(shown), &newest.missing_nodes)
}

/// From the highest to the lowest.
const SEVERITIES: [&str; 5] = ["CRITICAL", "MAJOR", "MINOR", "WARNING", "INDETERMINATE"];

async fn highest_severity(call: ApiCall) -> ApiResult {
    let mut missing_nodes = BTreeSet::new();
    for severity in SEVERITIES {
        let query = AlarmQuery {
            severities: vec![severity.to_owned()],
            limit: 1,
            ..alarm_query(&call)
        };
        let newest = newest_alarms(&call.app, query, 0).await?;
        missing_nodes.extend(newest.missing_nodes);
        if !newest.rows.is_empty() {
            return call::with_missing_nodes(
                call::json_response(severity),
                &Vec::from_iter(missing_nodes),
            );
        }
    }
    call::with_missing_nodes(
        call::json_response(Value::Null),
        &Vec::from_iter(missing_nodes),
    )
}

async fn read(call: ApiCall) -> ApiResult {
    let id = alarm_id(&call)?;
    let alarm = run_blocking(&call.app, move |alarms| alarms.get(id)).await?;
    call::json_response(to_thingsboard(
        &alarm.ok_or_else(|| alarm_not_found(call.path("id")))?,
    ))
}

async fn acknowledge(call: ApiCall) -> ApiResult {
    change_state(call, "alarm.acknowledge", |alarms, id, who| {
        alarms.acknowledge(id, who)
    })
    .await
}

async fn clear(call: ApiCall) -> ApiResult {
    change_state(call, "alarm.clear", |alarms, id, who| alarms.clear(id, who)).await
}

/// Changes the state of an alarm. If it already has the state, the alarm is returned, as in
/// ThingsBoard.
async fn change_state(
    call: ApiCall,
    action: &'static str,
    change: fn(&AlarmService, u64, &str) -> Result<Alarm, AlarmServiceError>,
) -> ApiResult {
    let (id, who) = (alarm_id(&call)?, call.identity.name.clone());
    let changed = run_blocking(&call.app, move |alarms| match change(alarms, id, &who) {
        Err(AlarmServiceError::Conflict(detail)) => {
            let alarm = alarms.get(id)?.ok_or(AlarmServiceError::NotFound(detail))?;
            Ok((alarm, false))
        }
        outcome => Ok((outcome?, true)),
    });
    let (alarm, is_changed) = changed.await?;
    if is_changed {
        audit::record_action(&call, action, Some(call.path("id")), None).await;
    }
    call::json_response(to_thingsboard(&alarm))
}

async fn remove(call: ApiCall) -> ApiResult {
    let id = alarm_id(&call)?;
    run_blocking(&call.app, move |alarms| alarms.remove(id)).await?;
    audit::record_action(&call, "alarm.delete", Some(call.path("id")), None).await;
    Ok((StatusCode::OK, axum::Json(true)).into_response())
}
