//! Devices: list, read, create, change and delete. Products are configuration objects, see
//! `objects`.

use std::sync::Arc;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use devices::NewDevice;
use outbound::url_encoding::url_encode;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::access::Role;
use crate::audit;
use crate::blocking;
use crate::call::{self, ApiCall};
use crate::cluster_backend::ClusterBackend;
use crate::device_service::{
    DeviceCounts, DeviceQuery, DeviceService, DeviceServiceError, DeviceView, VersionedDevice,
};
use crate::endpoint::{Endpoint, EndpointScope, SchemaFn, delete, get, post, put};
use crate::endpoint_place::{EndpointPlace, MergedAnswer};
use crate::node_calls;
use crate::objects::Preconditions;
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::query_parameters::{
    MAX_LIMIT, NAMESPACE, PageCursor, Parameter, ParameterType, text_parameter,
};
use crate::sorted_list::{SortOrder, SortValue, SortedPage, sort_parameter};
use crate::state::ApiState;

const PRODUCT: Parameter = text_parameter("product", "Product id.");
const GROUP: Parameter = text_parameter("group", "Value of the field `group` of the device.");
const TAG: Parameter = text_parameter("tag", "Tag as key and value: `floor=2`.");
const PARENT: Parameter = text_parameter("parent", "Id of the gateway.");
const TEXT: Parameter = text_parameter("text", "Part of the device's id or name.");
const STATE: Parameter = Parameter {
    name: "state",
    description: "State of the device.",
    shape: ParameterType::Words(&["notActive", "online", "offline"]),
};
const SORT: Parameter = sort_parameter(&[
    "id",
    "name",
    "product",
    "group",
    "parent",
    "state",
    "enabled",
    "activated_at_ms",
    "last_seen_at_ms",
    "created_at_ms",
]);

/// Data for claiming a device.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ClaimInput {
    /// Secret offered by the device; empty if it offered none.
    secret: String,
    /// Group to which the device is added.
    #[schemars(length(min = 1, max = 64))]
    group: String,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    let one = |endpoint: Endpoint| {
        endpoint
            .tag("devices")
            .path_parameter("id", "The device's id, percent-encoded.")
    };
    vec![
        get("/api/v1/devices", "listDevices", list)
            .role(Role::Viewer, EndpointScope::Selected)
            .tag("devices")
            .summary("List devices")
            .description(
                "In the order of creation. A page may be short or empty and still have a next one: the node reads \
                 a bounded number of devices for each.",
            )
            .parameters(&[PRODUCT, GROUP, TAG, PARENT, TEXT, STATE, NAMESPACE, SORT])
            .node_paged::<DeviceView>(),
        post("/api/v1/devices", "createDevice", create)
            .role(Role::Operator, EndpointScope::Selected)
            .tag("devices")
            .summary("Create a device")
            .request_body_with(new_device_schema())
            .response::<DeviceView>(201, "Created. `issued` contains the generated credentials, which are shown only once.")
            .with_location()
            .problem_response(404, "The product does not exist.")
            .problem_response(409, "A device with this id already exists."),
        get("/api/v1/device-counts", "countDevices", counts)
            .role(Role::Viewer, EndpointScope::Node)
            .tag("devices")
            .place(EndpointPlace::AllNodes(MergedAnswer::DeviceCounts))
            .summary("Count devices")
            .response::<DeviceCounts>(200, "Now."),
        one(get("/api/v1/devices/{id}", "getDevice", read))
            .role(Role::Viewer, EndpointScope::device("id"))
            .summary("Read a device")
            .response::<DeviceView>(200, "The device.")
            .with_etag(),
        one(put("/api/v1/devices/{id}", "putDevice", write))
            .role(Role::Operator, EndpointScope::device("id").or_new())
            .summary("Create or replace a device")
            .description("The whole device; omitted credentials are kept.")
            .request_body::<NewDevice>()
            .response::<DeviceView>(200, "Replaced.")
            .response::<DeviceView>(201, "Created.")
            .problem_response(409, "A unique field is already in use by another device.")
            .with_etag(),
        one(delete("/api/v1/devices/{id}", "deleteDevice", remove))
            .role(Role::Operator, EndpointScope::device("id"))
            .summary("Delete a device")
            .description("Deletes the device with its attributes. A gateway with child devices cannot be deleted.")
            .empty_response(204, "Deleted.")
            .with_etag(),
        one(post("/api/v1/devices/{id}/claim", "claimDevice", claim))
            .role(Role::Operator, EndpointScope::device("id"))
            .summary("Claim a device")
            .description(
                "The device has allowed the claim with a secret and for a limited time. It is added to the group; the secret is valid once.",
            )
            .request_body::<ClaimInput>()
            .response::<DeviceView>(200, "The device after the change."),
    ]
}

/// A device with an id, which is optional if the path contains it.
fn new_device_schema() -> SchemaFn {
    Arc::new(|generator| {
        let mut schema = NewDevice::json_schema(generator).to_value();
        if let Some(required) = schema["required"].as_array_mut() {
            required.insert(0, "id".into());
        }
        schema
    })
}

pub(super) fn to_problem(error: DeviceServiceError) -> ProblemDetails {
    match error {
        DeviceServiceError::NotFound(detail) => ProblemDetails::not_found(detail),
        DeviceServiceError::Field { field, detail } if field.is_empty() => {
            ProblemDetails::unprocessable(detail)
        }
        DeviceServiceError::Field { field, detail } => {
            ProblemDetails::invalid_field(&field, format!("{field}: {detail}."))
        }
        DeviceServiceError::Conflict(detail) => ProblemDetails::conflict(detail),
        DeviceServiceError::Changed => ProblemDetails::new(
            StatusCode::PRECONDITION_FAILED,
            "The device has changed meanwhile. Read it again before changing it.",
        ),
        DeviceServiceError::Unavailable(detail) => ProblemDetails::unavailable(detail),
    }
}

/// Runs a query of the registry on a thread that may read the disk.
pub(super) async fn run_blocking<T: Send + 'static>(
    app: &ApiState,
    question: impl FnOnce(&DeviceService) -> Result<T, DeviceServiceError> + Send + 'static,
) -> Result<T, ProblemDetails> {
    let devices = app.devices.clone();
    let result = blocking::run_blocking(
        move || question(&devices),
        "The devices cannot be read now.",
    )
    .await?;
    result.map_err(to_problem)
}

/// Checks that the devices with these ids, as far as they exist, are in the caller's namespaces.
pub(super) async fn check_all_selected(
    call: &ApiCall,
    ids: Vec<String>,
) -> Result<Vec<String>, ProblemDetails> {
    let selection = call.namespaces();
    run_blocking(&call.app, move |tools| {
        for id in &ids {
            tools.check_selected(id, &selection)?;
        }
        Ok(ids)
    })
    .await
}

pub(super) fn device_not_found(id: &str) -> ProblemDetails {
    ProblemDetails::not_found(format!("There is no device {id:?}."))
}

fn with_version(status: StatusCode, device: &VersionedDevice) -> Response {
    let mut response = (status, axum::Json(&device.value)).into_response();
    if let Ok(etag) = HeaderValue::try_from(format!("\"{}\"", device.version)) {
        response.headers_mut().insert(header::ETAG, etag);
    }
    response
}

async fn list(call: ApiCall) -> ApiResult {
    let tag = match call
        .query
        .text_value(TAG.name)
        .map(|tag| tag.split_once('='))
    {
        None => None,
        Some(Some((key, value))) => Some((key.to_owned(), value.to_owned())),
        Some(None) => {
            let detail = "tag: expected a key and a value, such as floor=2.";
            return Err(ProblemDetails::invalid_parameter("tag", detail));
        }
    };
    let order = SortOrder::read(&call.query)?;
    if let Some(cluster) = call.app.program.cluster_backend() {
        return list_in_cluster(&call, cluster, tag, order).await;
    }
    let query = device_query(&call, tag, order.is_some())?;
    let Some(order) = order else {
        let page = run_blocking(&call.app, move |tools| tools.list(&query)).await?;
        return call::page_of(page.rows, page.next);
    };
    let limit = call.query.limit();
    let sorting = run_blocking(&call.app, move |tools| {
        Ok(sorted_page(tools, query, order, limit))
    });
    sorting.await??.into_response()
}

fn device_query(
    call: &ApiCall,
    tag: Option<(String, String)>,
    is_sorted: bool,
) -> Result<DeviceQuery, ProblemDetails> {
    Ok(DeviceQuery {
        product: call.query.owned_text(PRODUCT),
        group: call.query.owned_text(GROUP),
        tag,
        parent: call.query.owned_text(PARENT),
        text: call.query.owned_text(TEXT),
        state: call.query.owned_text(STATE),
        from: match is_sorted {
            true => 0,
            false => call.query.after_number("devices")?.unwrap_or(0),
        },
        limit: call.query.limit(),
        namespaces: call.namespaces(),
    })
}

/// The same in a cluster, whose other nodes are asked for the states of the devices. The cursor of a list without an order
/// is valid at the node that has made it, because nodes number devices differently.
async fn list_in_cluster(
    call: &ApiCall,
    cluster: &dyn ClusterBackend,
    tag: Option<(String, String)>,
    order: Option<SortOrder>,
) -> ApiResult {
    let mut query = device_query(call, tag, order.is_some())?;
    let states = query.state.take();
    let is_wanted = |row: &Value| {
        states.as_ref().is_none_or(|states| {
            let state = row["state"].as_str().unwrap_or_default();
            states.split(',').any(|wanted| wanted == state)
        })
    };
    let limit = call.query.limit();
    let mut sorted = order.map(|order| SortedPage::new(order, limit));
    if sorted.is_some() {
        query.limit = MAX_LIMIT;
    }
    let mut missing_nodes;
    loop {
        let chunk = query.clone();
        let mut page = run_blocking(&call.app, move |tools| tools.list(&chunk)).await?;
        missing_nodes = add_presences(&call.app, cluster, &mut page.rows).await?;
        page.rows.retain(is_wanted);
        let Some(sorted) = &mut sorted else {
            let next = page
                .next
                .map(|next| PageCursor::new(&next.to_string(), "").encode());
            return node_page(page.rows, next, missing_nodes);
        };
        for row in page.rows {
            let value = SortValue::json(&row[sorted.field()]);
            let id = row["id"].as_str().unwrap_or_default().to_owned();
            sorted.offer(value, &id, row)?;
        }
        match page.next {
            Some(next) => query.from = next,
            None => break,
        }
    }
    match sorted {
        Some(sorted) => {
            let (rows, next) = sorted.into_page();
            node_page(rows, next, missing_nodes)
        }
        None => node_page(Vec::new(), None, missing_nodes),
    }
}

fn node_page(rows: Vec<Value>, next: Option<String>, missing_nodes: Vec<String>) -> ApiResult {
    call::json_response(serde_json::json!({
        "data": rows, "next": next, "missing_nodes": missing_nodes,
    }))
}

/// Sets the states of devices as all nodes know them. Returns the nodes that did not answer.
pub(super) async fn add_presences(
    app: &Arc<ApiState>,
    cluster: &dyn ClusterBackend,
    rows: &mut [Value],
) -> Result<Vec<String>, ProblemDetails> {
    let ids = rows
        .iter()
        .filter_map(|row| row["id"].as_str().map(str::to_owned));
    let presences = node_calls::presences(app, cluster, ids.collect()).await?;
    for (index, row) in rows.iter_mut().enumerate() {
        let Some((node, presence)) = presences.latest(index) else {
            continue;
        };
        row["state"] = presence.state().as_str().into();
        row["activated_at_ms"] = presences.activated_ms(index).into();
        row["last_seen_at_ms"] = presence.last_seen_ms.into();
        row["node"] = node.into();
    }
    Ok(presences.missing_nodes)
}

/// A page of all selected devices in an order.
fn sorted_page(
    tools: &DeviceService,
    query: DeviceQuery,
    order: SortOrder,
    limit: usize,
) -> Result<SortedPage<Value>, ProblemDetails> {
    let mut page = SortedPage::new(order, limit);
    let mut next = Some(0);
    while let Some(from) = next {
        let chunk = DeviceQuery {
            from,
            limit: MAX_LIMIT,
            ..query.clone()
        };
        let found = tools.list(&chunk).map_err(to_problem)?;
        next = found.next;
        for row in found.rows {
            let value = SortValue::json(&row[page.field()]);
            let id = row["id"].as_str().unwrap_or_default().to_owned();
            page.offer(value, &id, row)?;
        }
    }
    Ok(page)
}

async fn read(call: ApiCall) -> ApiResult {
    let id = call.path("id").to_owned();
    let device = run_blocking(&call.app, move |tools| tools.get(&id)).await?;
    let mut device = device.ok_or_else(|| device_not_found(call.path("id")))?;
    if let Some(cluster) = call.app.program.cluster_backend() {
        let rows = std::slice::from_mut(&mut device.value);
        add_presences(&call.app, cluster, rows).await?;
    }
    if Preconditions::read(call.headers())?.is_not_modified(device.version) {
        return Ok(StatusCode::NOT_MODIFIED.into_response());
    }
    Ok(with_version(StatusCode::OK, &device))
}

async fn claim(mut call: ApiCall) -> ApiResult {
    let ClaimInput { secret, group } = call.body_json().await?;
    let id = call.path("id").to_owned();
    let (wanted, into) = (id.clone(), group.clone());
    let device = run_blocking(&call.app, move |tools| tools.claim(&wanted, &secret, &into)).await?;
    let after = serde_json::json!({"group": group});
    audit::record_action(&call, "device.claim", Some(&id), Some(after)).await;
    Ok(with_version(StatusCode::OK, &device))
}

pub(super) fn fields_of(input: Value) -> Result<Map<String, Value>, ProblemDetails> {
    match input {
        Value::Object(fields) => Ok(fields),
        _ => Err(ProblemDetails::unprocessable(
            "The body is invalid: expected a JSON object.",
        )),
    }
}

async fn create(mut call: ApiCall) -> ApiResult {
    let mut fields = fields_of(call.body_value().await?)?;
    let Some(Value::String(id)) = fields.remove("id") else {
        return Err(ProblemDetails::invalid_field(
            "id",
            "id: expected a string.",
        ));
    };
    let (name, selection) = (id.clone(), call.namespaces());
    let put = run_blocking(&call.app, move |tools| {
        tools.put(&name, fields, Some(0), &selection)
    });
    let (device, _) = put.await?;
    audit::record_action(&call, "device.create", Some(&id), None).await;
    let mut response = with_version(StatusCode::CREATED, &device);
    let location = format!("/api/v1/devices/{}", url_encode(&id));
    if let Ok(location) = HeaderValue::try_from(location) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}

async fn write(mut call: ApiCall) -> ApiResult {
    let id = call.path("id").to_owned();
    let preconditions = Preconditions::read(call.headers())?;
    let mut fields = fields_of(call.body_value().await?)?;
    match fields.remove("id") {
        None => {}
        Some(Value::String(given)) if given == id => {}
        Some(_) => {
            return Err(ProblemDetails::invalid_field(
                "id",
                format!("id: expected {id:?}, as in the path."),
            ));
        }
    }
    // The response to a GET may be sent back, but without credentials: their names say nothing
    // about their secrets.
    for field in [
        "version",
        "created_at_ms",
        "activated_at_ms",
        "last_seen_at_ms",
        "state",
        "node",
        "issued",
    ] {
        fields.remove(field);
    }
    let is_shown = |credential: &Value| credential.get("name").is_some();
    if let Some(Value::Array(credentials)) = fields.get("credentials")
        && !credentials.is_empty()
        && credentials.iter().all(is_shown)
    {
        fields.remove("credentials");
    }
    let name = id.clone();
    let expected = expected_version(&call, &preconditions, &id).await?;
    let selection = call.namespaces();
    let put = run_blocking(&call.app, move |tools| {
        tools.put(&name, fields, expected, &selection)
    });
    let (device, was_created) = put.await?;
    let (status, action) = match was_created {
        true => (StatusCode::CREATED, "device.create"),
        false => (StatusCode::OK, "device.change"),
    };
    audit::record_action(&call, action, Some(&id), None).await;
    Ok(with_version(status, &device))
}

/// The version that the request requires, if it has a precondition.
async fn expected_version(
    call: &ApiCall,
    preconditions: &Preconditions,
    id: &str,
) -> Result<Option<u64>, ProblemDetails> {
    if *preconditions == Preconditions::default() {
        return Ok(None);
    }
    let id = id.to_owned();
    let current = run_blocking(&call.app, move |tools| tools.get(&id)).await?;
    let version = current.map(|device| device.version);
    preconditions.check(version)?;
    Ok(Some(version.unwrap_or(0)))
}

async fn remove(call: ApiCall) -> ApiResult {
    let id = call.path("id").to_owned();
    let preconditions = Preconditions::read(call.headers())?;
    let expected = expected_version(&call, &preconditions, &id).await?;
    let name = id.clone();
    match run_blocking(&call.app, move |tools| tools.remove(&name, expected)).await? {
        true => {
            audit::record_action(&call, "device.delete", Some(&id), None).await;
            call::no_content()
        }
        false => Err(device_not_found(&id)),
    }
}

async fn counts(call: ApiCall) -> ApiResult {
    call::json_response(run_blocking(&call.app, |tools| tools.counts()).await?)
}
