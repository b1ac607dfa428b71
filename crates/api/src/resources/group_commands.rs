//! Commands to all devices of a group, as a job.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::IntoResponse as _;
use devices::command::{CommandAction, NewCommand};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::command_requests::check_options;
use super::device_groups;
use crate::access::Role;
use crate::audit;
use crate::call::ApiCall;
use crate::command_service::CommandService;
use crate::device_service::DeviceServiceError;
use crate::endpoint::{Endpoint, EndpointScope, post};
use crate::jobs::{JobHandle, JobView, NewJob};
use crate::objects::BackendObjectKind;
use crate::problem_details::{ApiResult, ProblemDetails};

/// Maximum length of the name of a method.
const MAX_METHOD_CHARS: usize = 255;

/// A command to all devices of a group.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct GroupCommandInput {
    /// Name of the method to call; alternatively `values`.
    #[serde(default)]
    #[schemars(length(min = 1, max = MAX_METHOD_CHARS))]
    method: Option<String>,
    /// Parameters of the method: any JSON.
    #[serde(default)]
    params: Value,
    /// Values of the properties to write.
    #[serde(default)]
    values: Option<Map<String, Value>>,
    /// `true`: the devices do not respond; a command succeeds when its device has received it.
    #[serde(default)]
    one_way: bool,
    /// Time limit of a response after sending, in milliseconds; default: the setting `commands.timeout_ms`.
    #[serde(default)]
    #[schemars(range(min = 1))]
    timeout_ms: Option<u64>,
    /// Waiting time for a disconnected device, in seconds; 0: no waiting; default: the setting `commands.expiry_s`.
    #[serde(default)]
    expires_in_s: Option<u64>,
    /// Number of retries without a response; a device may execute the command twice.
    #[serde(default)]
    #[schemars(range(max = 10))]
    retries: u32,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        post(
            "/api/v1/device-groups/{id}/commands",
            "sendCommandToGroup",
            send,
        )
        .role(
            Role::Operator,
            EndpointScope::object(BackendObjectKind::DeviceGroup, "id"),
        )
        .tag("commands")
        .path_parameter("id", "The group's id, percent-encoded.")
        .summary("Send a command to a device group")
        .description(
            "Sends the command to each device of the group, at most to 10000, as a job: its progress is that of sending, and its \
             `failures` are devices that do not accept the command. The id of the job is the `batch` of the commands, whose \
             states `GET /api/v1/commands?batch=ID` lists.",
        )
        .request_body::<GroupCommandInput>()
        .response::<JobView>(202, "The job has begun.")
        .with_location()
        .problem_response(409, "Too many jobs are running."),
    ]
}

fn action(input: &mut GroupCommandInput) -> Result<CommandAction, ProblemDetails> {
    match (input.method.take(), input.values.take()) {
        (Some(method), None) if !(1..=MAX_METHOD_CHARS).contains(&method.chars().count()) => {
            let detail = format!("method: expected 1 to {MAX_METHOD_CHARS} characters.");
            Err(ProblemDetails::invalid_field("method", detail))
        }
        (Some(method), None) => Ok(CommandAction::Call {
            method,
            params: input.params.take(),
        }),
        (None, Some(values)) => Ok(CommandAction::Write { values }),
        (Some(_), Some(_)) | (None, None) => {
            let detail = "method: expected either method or values.";
            Err(ProblemDetails::invalid_field("method", detail))
        }
    }
}

async fn send(mut call: ApiCall) -> ApiResult {
    let mut input: GroupCommandInput = call.body_json().await?;
    let action = action(&mut input)?;
    check_options(input.timeout_ms, input.retries)?;
    let group = call.path("id").to_owned();
    let (selection, of_group) = (call.namespaces(), group.clone());
    let members = device_groups::run_blocking(&call.app, move |groups| {
        Ok((
            groups.namespace_of(&of_group)?,
            groups.members(&of_group, &selection)?,
        ))
    });
    let (namespace, devices) = members.await?;
    let created_by = call.identity.name.clone();
    let job = call.app.jobs.start(NewJob {
        kind: "group_command",
        subject: group.clone(),
        namespace: Some(namespace),
        created_by: created_by.clone(),
    });
    let job = job.map_err(|error| ProblemDetails::conflict(format!("{error}.")))?;
    let view = job.view();
    let command = NewCommand {
        action,
        one_way: input.one_way,
        timeout_ms: input.timeout_ms,
        expires_in_s: input.expires_in_s,
        retries: input.retries,
        created_by,
        batch: Some(view.id.clone()),
    };
    let after = json!({"job": view.id, "devices": devices.len()});
    audit::record_action(&call, "command.send_to_group", Some(&group), Some(after)).await;
    let commands = call.app.commands.clone();
    tokio::task::spawn_blocking(move || send_all(&commands, &job, &devices, &command));
    let mut response = (StatusCode::ACCEPTED, axum::Json(&view)).into_response();
    if let Ok(location) = HeaderValue::try_from(format!("/api/v1/jobs/{}", view.id)) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}

/// Sends a command to each device, one after the other.
fn send_all(commands: &CommandService, job: &JobHandle, devices: &[String], command: &NewCommand) {
    job.set_total(devices.len() as u64);
    for device in devices {
        if job.is_cancelled() {
            break;
        }
        match commands.send_command(device, command.clone(), false) {
            Ok(_) => job.advance(),
            Err(error) => job.fail_item(device, reason(error)),
        }
    }
    job.end(Ok(()));
}

fn reason(error: DeviceServiceError) -> String {
    match error {
        DeviceServiceError::NotFound(detail)
        | DeviceServiceError::Conflict(detail)
        | DeviceServiceError::Unavailable(detail) => detail,
        DeviceServiceError::Field { field, detail } => format!("{field}: {detail}"),
        DeviceServiceError::Changed => "the device has changed".to_owned(),
    }
}
