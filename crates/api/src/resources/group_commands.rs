//! Commands to all devices of a group, as a job.

use devices::command::{CommandAction, NewCommand};
use serde_json::{Map, Value, json};

use super::command_options::{check_options, command_input};
use super::device_groups;
use super::jobs::accepted;
use crate::access::Role;
use crate::audit;
use crate::call::ApiCall;
use crate::command_service::CommandService;
use crate::endpoint::{Endpoint, EndpointScope, post};
use crate::jobs::{JobHandle, JobView, NewJob};
use crate::objects::BackendObjectKind;
use crate::problem_details::{ApiResult, ProblemDetails};

/// Maximum length of the name of a method.
const MAX_METHOD_CHARS: usize = 255;

command_input! {
    /// A command to all devices of a group.
    GroupCommandInput {
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
    }
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
    let command = input.options().command(action, call.identity.name.clone());
    check_options(&command)?;
    let group = call.path("id").to_owned();
    let (selection, of_group) = (call.namespaces(), group.clone());
    let members = device_groups::run_blocking(&call.app, move |groups| {
        Ok((
            groups.namespace_of(&of_group)?,
            groups.members(&of_group, &selection)?,
        ))
    });
    let (namespace, devices) = members.await?;
    let job = call.app.jobs.start(NewJob {
        kind: "group_command",
        subject: group.clone(),
        namespace: Some(namespace),
        created_by: command.created_by.clone(),
    });
    let job = job.map_err(|error| ProblemDetails::conflict(format!("{error}.")))?;
    let view = job.view();
    let command = NewCommand {
        batch: Some(view.id.clone()),
        ..command
    };
    let after = json!({"job": view.id, "devices": devices.len()});
    audit::record_action(&call, "command.send_to_group", Some(&group), Some(after)).await;
    let commands = call.app.commands.clone();
    tokio::task::spawn_blocking(move || send_all(&commands, &job, &devices, &command));
    Ok(accepted(&view))
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
            Err(error) => job.fail_item(device, error.to_string()),
        }
    }
    job.end(Ok(()));
}
