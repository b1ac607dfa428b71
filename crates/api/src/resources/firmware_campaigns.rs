//! Campaigns: a firmware package is installed on devices wave by wave.

use ::firmware::{
    CampaignAction, CampaignDefinition, CampaignDeviceRow, CampaignError, CampaignInfo,
};
use axum::http::{StatusCode, header};
use axum::response::IntoResponse as _;
use devices::DeviceNo;
use serde_json::json;

use super::change_feed::stream_changes;
use crate::access::Role;
use crate::audit;
use crate::blocking;
use crate::call::{self, ApiCall};
use crate::endpoint::{Endpoint, EndpointScope, delete, get, post};
use crate::endpoint_place::{EndpointPlace, MergedAnswer};
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::query_parameters::{NAMESPACE, NODE};

const UNAVAILABLE: &str = "The campaigns cannot be used now.";

pub(crate) fn endpoints() -> Vec<Endpoint> {
    let one = |endpoint: Endpoint, role: Role| {
        endpoint
            .role(role, EndpointScope::firmware_campaign("id"))
            .tag("firmware")
            .path_parameter("id", "The campaign's number.")
    };
    // Executed by the node of the campaign.
    let at_node = |endpoint: Endpoint, role: Role| {
        one(endpoint, role)
            .place(EndpointPlace::FirmwareCampaign("id"))
            .parameters(&[NODE])
    };
    let action = |endpoint: Endpoint| {
        at_node(endpoint, Role::Operator)
            .response::<CampaignInfo>(200, "The campaign.")
            .problem_response(409, "The state of the campaign does not permit it.")
    };
    vec![
        get("/api/v1/firmware-campaigns", "listFirmwareCampaigns", list)
            .role(Role::Viewer, EndpointScope::Selected)
            .tag("firmware")
            .parameters(&[NAMESPACE])
            .summary("List firmware campaigns")
            .description("The newest first.")
            .place(EndpointPlace::AllNodes(MergedAnswer::Lists(Some(
                "created_at_ms",
            ))))
            .node_unpaged::<CampaignInfo>(),
        post("/api/v1/firmware-campaigns", "createFirmwareCampaign", create)
            .role(Role::Operator, EndpointScope::Selected)
            .tag("firmware")
            .summary("Begin a firmware campaign")
            .description(
                "The devices are selected now; later ones are not added. The package that a campaign assigns to a device overrides assignments \
                 until the campaign is deleted. In a cluster, the node that gets the request runs the campaign; while that node is \
                 down, the campaign notifies no further devices.",
            )
            .request_body::<CampaignDefinition>()
            .response::<CampaignInfo>(201, "The campaign.")
            .with_location()
            .problem_response(409, "There are no devices, or too many."),
        at_node(
            get("/api/v1/firmware-campaigns/{id}", "getFirmwareCampaign", read),
            Role::Viewer,
        )
        .summary("Read a firmware campaign")
        .response::<CampaignInfo>(200, "The campaign."),
        at_node(
            get(
                "/api/v1/firmware-campaigns/{id}/devices",
                "listFirmwareCampaignDevices",
                list_devices,
            ),
            Role::Viewer,
        )
        .summary("List devices of a firmware campaign")
        .paged::<CampaignDeviceRow>(),
        one(
            get(
                "/api/v1/firmware-campaigns/{id}/events",
                "watchFirmwareCampaign",
                watch,
            ),
            Role::Viewer,
        )
        .summary("Stream the progress of a firmware campaign")
        .description(
            "Server-Sent Events, or a WebSocket with `Upgrade: websocket`: `{\"event\": \"campaign\", \"at_ms\", \"campaign\"}` with the \
             present state and each change, at most one a second. The stream ends when the campaign is deleted. In a cluster, another node \
             than that of the campaign shows it without the ids in `devices`, and as it was while the node of the campaign is down.",
        )
        .raw_response(200, "The stream.", &["text/event-stream"])
        .empty_response(101, "A WebSocket.")
        .problem_response(429, "Too many streams are open."),
        action(post(
            "/api/v1/firmware-campaigns/{id}/pause",
            "pauseFirmwareCampaign",
            pause,
        ))
        .summary("Pause a firmware campaign")
        .description("No further devices are notified; those that were notified continue."),
        action(post(
            "/api/v1/firmware-campaigns/{id}/resume",
            "resumeFirmwareCampaign",
            resume,
        ))
        .summary("Resume a paused or halted firmware campaign")
        .description("Devices that ended before a halt no longer count for `min_success_percent`."),
        action(post(
            "/api/v1/firmware-campaigns/{id}/cancel",
            "cancelFirmwareCampaign",
            cancel,
        ))
        .summary("Cancel a firmware campaign")
        .description("Devices without a result install what is assigned to them; others keep the package."),
        at_node(
            delete(
                "/api/v1/firmware-campaigns/{id}",
                "deleteFirmwareCampaign",
                remove,
            ),
            Role::Operator,
        )
        .summary("Delete an ended firmware campaign")
        .description("All its devices install what is assigned to them.")
        .empty_response(204, "Deleted.")
        .problem_response(409, "The campaign has not ended."),
    ]
}

fn to_problem(error: CampaignError) -> ProblemDetails {
    match error {
        CampaignError::NotFound(id) => {
            ProblemDetails::not_found(format!("There is no firmware campaign {id}."))
        }
        CampaignError::Conflict(detail) => ProblemDetails::conflict(format!("{detail}.")),
        CampaignError::Invalid(error) => {
            ProblemDetails::invalid_field(&error.field, format!("{error}."))
        }
        CampaignError::Store(_) | CampaignError::Registry(_) => {
            ProblemDetails::unavailable(format!("{error}."))
        }
    }
}

fn id_of(call: &ApiCall) -> Result<u32, ProblemDetails> {
    let id = call.path("id");
    let not_found = || ProblemDetails::not_found(format!("There is no firmware campaign {id:?}."));
    id.parse().map_err(|_| not_found())
}

async fn list(call: ApiCall) -> ApiResult {
    let namespaces = call.namespaces();
    call::unpaged_list(call.app.firmware.campaigns(&namespaces))
}

async fn create(mut call: ApiCall) -> ApiResult {
    let body = call.body_value().await?;
    let definition = CampaignDefinition::read(&body)
        .map_err(|error| to_problem(CampaignError::Invalid(error)))?;
    let namespace = &definition.namespace;
    if !call.namespaces().contains(namespace) || call.app.namespaces.get(namespace).is_none() {
        let detail = format!("namespace: there is no namespace {namespace:?}.");
        return Err(ProblemDetails::invalid_field("namespace", detail));
    }
    let firmware = call.app.firmware.clone();
    let create = move || firmware.create_campaign(definition);
    let created = blocking::run_blocking(create, UNAVAILABLE).await?;
    let info = created.map_err(to_problem)?;
    let id = info.id.to_string();
    let about = json!({"package": info.definition.package, "namespace": info.definition.namespace});
    audit::record_action(&call, "firmware.campaign", Some(&id), Some(about)).await;
    let location = [(header::LOCATION, format!("/api/v1/firmware-campaigns/{id}"))];
    Ok((StatusCode::CREATED, location, axum::Json(info)).into_response())
}

async fn read(call: ApiCall) -> ApiResult {
    let id = id_of(&call)?;
    let found = call.app.firmware.campaign(id);
    call::json_response(found.ok_or_else(|| to_problem(CampaignError::NotFound(id)))?)
}

async fn list_devices(call: ApiCall) -> ApiResult {
    let (id, limit) = (id_of(&call)?, call.query.limit());
    let from = call.query.after_number("devices")?.unwrap_or(0);
    let firmware = call.app.firmware.clone();
    let list = move || firmware.campaign_devices(id, DeviceNo(from), limit);
    let listed = blocking::run_blocking(list, UNAVAILABLE).await?;
    let (rows, next) = listed.map_err(to_problem)?;
    call::page_of(rows, next.map(|next| next.0))
}

async fn watch(call: ApiCall) -> ApiResult {
    let (id, firmware) = (id_of(&call)?, call.app.firmware.clone());
    stream_changes(call, "campaign", move || {
        firmware.known_campaign(id).map(|campaign| json!(campaign))
    })
}

async fn act(call: ApiCall, action: CampaignAction, name: &'static str) -> ApiResult {
    let (id, firmware) = (id_of(&call)?, call.app.firmware.clone());
    let act = move || firmware.act_on_campaign(id, action);
    let info = blocking::run_blocking(act, UNAVAILABLE)
        .await?
        .map_err(to_problem)?;
    audit::record_action(&call, name, Some(&id.to_string()), None).await;
    call::json_response(info)
}

async fn pause(call: ApiCall) -> ApiResult {
    act(call, CampaignAction::Pause, "firmware.campaign.pause").await
}

async fn resume(call: ApiCall) -> ApiResult {
    act(call, CampaignAction::Resume, "firmware.campaign.resume").await
}

async fn cancel(call: ApiCall) -> ApiResult {
    act(call, CampaignAction::Cancel, "firmware.campaign.cancel").await
}

async fn remove(call: ApiCall) -> ApiResult {
    let (id, firmware) = (id_of(&call)?, call.app.firmware.clone());
    let delete = move || firmware.delete_campaign(id);
    let deleted = blocking::run_blocking(delete, UNAVAILABLE).await?;
    deleted.map_err(to_problem)?;
    audit::record_action(
        &call,
        "firmware.campaign.delete",
        Some(&id.to_string()),
        None,
    )
    .await;
    call::no_content()
}
