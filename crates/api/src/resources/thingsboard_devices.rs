//! Devices on ThingsBoard's paths: find by name, list, create, delete, and set credentials.
//!
//! ThingsBoard's names may contain blanks and slashes, device ids may not. A device created here
//! gets the name as its name and an id derived from the name, like devices behind gateways. It can
//! be found by id and by name.

use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use devices::id_for_name;
use namespaces::NamespaceSelection;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

use super::devices::{add_presences, device_not_found, run_blocking};
use super::thingsboard_paging::{PAGING, PageData, PageNumber, has_page_parameters};
use crate::access::Role;
use crate::audit;
use crate::call::{self, ApiCall};
use crate::device_service::{DeviceQuery, DeviceService, DeviceServiceError};
use crate::endpoint::{Endpoint, EndpointScope, delete, get, post};
use crate::objects::{self, BackendObjectKind};
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::query_parameters::{MAX_LIMIT, Parameter, ParameterType, text_parameter};

const NAME: Parameter = text_parameter(
    "deviceName",
    "Name or id of a device. Without it, a page of all devices.",
);
const TYPE: Parameter = text_parameter("type", "Product id.");
const TEXT: Parameter = text_parameter("textSearch", "Part of the id or name.");
const ACCESS_TOKEN: Parameter = text_parameter(
    "accessToken",
    "Token of the new device; default: generated.",
);
const ACTIVE: Parameter = Parameter {
    name: "active",
    shape: ParameterType::Flag,
    description: "`true`: online devices; `false`: offline devices.",
};

/// An id in ThingsBoard's form.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct EntityId {
    /// Type, such as `DEVICE`.
    pub(super) entity_type: String,
    /// Id, as used in paths.
    pub(super) id: String,
}

impl EntityId {
    pub(super) fn new(entity_type: &str, id: impl Into<String>) -> Self {
        Self {
            entity_type: entity_type.to_owned(),
            id: id.into(),
        }
    }
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "ThingsboardDevice")]
struct ThingsboardDevice {
    id: EntityId,
    /// Time of creation in milliseconds since 1970.
    created_time: u64,
    /// Name of the device.
    name: String,
    /// Id of its product.
    #[serde(rename = "type")]
    product: String,
    label: String,
    device_profile_id: EntityId,
    /// Name of its product's id.
    device_profile_name: String,
    /// Whether it is online.
    active: bool,
}

/// A device as written by ThingsBoard's clients. Other fields are ignored.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "ThingsboardDeviceInput")]
struct ThingsboardDeviceInput {
    /// Id of an existing device.
    #[serde(default)]
    id: Option<EntityId>,
    #[schemars(length(min = 1, max = 256))]
    name: String,
    /// Id or name of its product, which is created if it does not exist. Default: `default`, which
    /// must exist.
    #[serde(default, rename = "type")]
    product: Option<String>,
    #[serde(default)]
    device_profile_id: Option<EntityId>,
}

/// Credentials as written by ThingsBoard's clients. Other fields are ignored.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "ThingsboardCredentialsInput")]
struct CredentialsInput {
    device_id: Option<EntityId>,
    /// `ACCESS_TOKEN` (default), `MQTT_BASIC` or `X509_CERTIFICATE`.
    #[serde(default)]
    credentials_type: Option<String>,
    /// Token, or common name of the certificate.
    #[serde(default)]
    credentials_id: Option<String>,
    /// For `MQTT_BASIC`: a JSON object as text, with `userName` and `password`.
    #[serde(default)]
    credentials_value: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "ThingsboardDeviceWithCredentials")]
struct DeviceWithCredentials {
    device: ThingsboardDeviceInput,
    credentials: CredentialsInput,
}

/// Credentials without their secrets, which are stored only as digests.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "ThingsboardCredentials")]
struct ThingsboardCredentials {
    device_id: EntityId,
    credentials_type: &'static str,
    /// User name or common name; empty for an access token.
    credentials_id: String,
}

/// A product, called device type by ThingsBoard.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "ThingsboardDeviceType")]
struct DeviceType {
    #[serde(rename = "type")]
    name: String,
    entity_type: &'static str,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    let read = |endpoint: Endpoint| {
        endpoint
            .role(Role::Viewer, EndpointScope::Selected)
            .tag("devices")
    };
    let write = |endpoint: Endpoint| {
        endpoint
            .role(Role::Operator, EndpointScope::Selected)
            .tag("devices")
    };
    let one = |endpoint: Endpoint| {
        endpoint
            .scope(EndpointScope::device("id"))
            .path_parameter("id", "The device's id, percent-encoded.")
    };
    let filters = [TYPE, TEXT, ACTIVE];
    let listed = |path: &str, id: &str| {
        read(get(path, id, list))
            .summary("List devices (ThingsBoard)")
            .parameters(&filters)
            .parameters(&PAGING)
            .response::<PageData<ThingsboardDevice>>(200, "A page.")
    };
    vec![
        read(get(
            "/api/tenant/devices",
            "thingsboardDevices",
            by_name_or_list,
        ))
        .summary("Find or list devices (ThingsBoard)")
        .parameters(&[NAME])
        .parameters(&filters)
        .parameters(&PAGING)
        .response::<Value>(
            200,
            "The device, or a page like that of `/api/tenant/deviceInfos`.",
        )
        .problem_response(404, "The device does not exist."),
        read(get(
            "/api/tenant/device",
            "thingsboardDeviceByName",
            by_name,
        ))
        .summary("Find a device by name (ThingsBoard)")
        .parameters(&[NAME])
        .response::<ThingsboardDevice>(200, "The device.")
        .problem_response(404, "The device does not exist."),
        listed("/api/tenant/deviceInfos", "thingsboardTenantDeviceInfos"),
        listed("/api/deviceInfos/all", "thingsboardDeviceInfos"),
        listed("/api/user/devices", "thingsboardUserDevices"),
        read(get("/api/device/types", "thingsboardDeviceTypes", types))
            .summary("List products (ThingsBoard)")
            .response::<Vec<DeviceType>>(200, "All products that have devices."),
        one(read(get("/api/device/{id}", "thingsboardDevice", by_id)))
            .summary("Read a device (ThingsBoard)")
            .response::<ThingsboardDevice>(200, "The device."),
        one(read(get(
            "/api/device/info/{id}",
            "thingsboardDeviceInfo",
            by_id,
        )))
        .summary("Read device details (ThingsBoard)")
        .response::<ThingsboardDevice>(200, "The device."),
        write(post("/api/device", "thingsboardSaveDevice", save))
            .summary("Create or change a device (ThingsBoard)")
            .problem_response(404, "The device with this `id` does not exist.")
            .problem_response(
                409,
                "A device with this name exists, or a credential is in use.",
            )
            .parameters(&[ACCESS_TOKEN])
            .request_body::<ThingsboardDeviceInput>()
            .response::<ThingsboardDevice>(200, "The device."),
        write(post(
            "/api/device-with-credentials",
            "thingsboardSaveDeviceWithCredentials",
            save_with_credentials,
        ))
        .summary("Create a device with credentials (ThingsBoard)")
        .problem_response(404, "The device with this `id` does not exist.")
        .problem_response(
            409,
            "A device with this name exists, or a credential is in use.",
        )
        .request_body::<DeviceWithCredentials>()
        .response::<ThingsboardDevice>(200, "The device."),
        one(write(delete(
            "/api/device/{id}",
            "thingsboardDeleteDevice",
            remove,
        )))
        .summary("Delete a device (ThingsBoard)")
        .empty_response(200, "Deleted."),
        one(write(get(
            "/api/device/{id}/credentials",
            "thingsboardDeviceCredentials",
            credentials,
        )))
        .summary("Read the type of credentials (ThingsBoard)")
        .description(
            "Tokens and passwords are stored as digests and cannot be read; set new ones instead.",
        )
        .response::<ThingsboardCredentials>(
            200,
            "The first of its credentials, without the secret.",
        ),
        write(post(
            "/api/device/credentials",
            "thingsboardSetDeviceCredentials",
            set_credentials,
        ))
        .summary("Replace credentials of a device (ThingsBoard)")
        .problem_response(404, "The device does not exist.")
        .problem_response(409, "A credential is in use.")
        .request_body::<CredentialsInput>()
        .response::<ThingsboardCredentials>(200, "The new credentials, without the secret."),
    ]
}

/// Finds the device with this id, or with the name from which its id was derived.
fn find(
    tools: &DeviceService,
    name: &str,
    namespaces: &NamespaceSelection,
) -> Result<Option<Value>, DeviceServiceError> {
    if let Some(device) = tools.get_selected(name, namespaces)? {
        return Ok(Some(device.value));
    }
    let device = tools.get_selected(&id_for_name(name), namespaces)?;
    let device = device.map(|device| device.value);
    Ok(device.filter(|device| device["name"] == name))
}

/// The name of a device; its id if it has none.
pub(super) fn device_name(device: &Value) -> &str {
    let text = |key: &str| device[key].as_str().filter(|text| !text.is_empty());
    text("name").or_else(|| text("id")).unwrap_or_default()
}

fn to_thingsboard(device: &Value) -> ThingsboardDevice {
    let text = |key: &str| device[key].as_str().unwrap_or_default().to_owned();
    let name = device_name(device).to_owned();
    ThingsboardDevice {
        id: EntityId::new("DEVICE", text("id")),
        created_time: device["created_at_ms"].as_u64().unwrap_or_default(),
        label: name.clone(),
        name,
        product: text("product"),
        device_profile_id: EntityId::new("DEVICE_PROFILE", text("product")),
        device_profile_name: text("product"),
        active: device["state"] == "online",
    }
}

async fn by_name_or_list(call: ApiCall) -> ApiResult {
    match call.query.text_value(NAME.name) {
        Some(_) => by_name(call).await,
        None if has_page_parameters(&call) => list(call).await,
        None => {
            let detail = "deviceName: expected the name of a device, or pageSize for a list.";
            Err(ProblemDetails::invalid_parameter(NAME.name, detail))
        }
    }
}

async fn by_name(call: ApiCall) -> ApiResult {
    let name = call.query.text_value(NAME.name).ok_or_else(|| {
        let detail = "deviceName: expected the name of a device.";
        ProblemDetails::invalid_parameter(NAME.name, detail)
    })?;
    device_response(&call, name.to_owned()).await
}

async fn by_id(call: ApiCall) -> ApiResult {
    device_response(&call, call.path("id").to_owned()).await
}

async fn device_response(call: &ApiCall, name: String) -> ApiResult {
    let (wanted, selection) = (name.clone(), call.namespaces());
    let device = run_blocking(&call.app, move |tools| find(tools, &wanted, &selection)).await?;
    let mut rows = [device.ok_or_else(|| device_not_found(&name))?];
    let missing_nodes = add_cluster_states(call, &mut rows).await?;
    let device = call::json_response(to_thingsboard(&rows[0]));
    call::with_missing_nodes(device, &missing_nodes)
}

/// Sets the states of devices as all nodes of the cluster know them. Returns the nodes that did not answer.
async fn add_cluster_states(
    call: &ApiCall,
    rows: &mut [Value],
) -> Result<Vec<String>, ProblemDetails> {
    match call.app.program.cluster_backend() {
        Some(cluster) => add_presences(&call.app, cluster, rows).await,
        None => Ok(Vec::new()),
    }
}

async fn list(call: ApiCall) -> ApiResult {
    let state = call
        .query
        .flag_value(ACTIVE)
        .map(|is_active| match is_active {
            true => "online",
            false => "offline",
        });
    let given = |parameter| {
        call.query
            .owned_text(parameter)
            .filter(|text| !text.is_empty())
    };
    let mut query = DeviceQuery {
        product: given(TYPE),
        text: given(TEXT),
        namespaces: call.namespaces(),
        ..DeviceQuery::default()
    };
    let page = PageNumber::from_call(&call);
    if let Some(state) = state {
        if call.app.program.cluster_backend().is_some() {
            return list_with_state_in_cluster(&call, query, state, page).await;
        }
        query.state = Some(state.to_owned());
    }
    let rows = run_blocking(&call.app, move |tools| {
        page.read_page(|begin, limit| {
            query.from = begin.and_then(|begin| begin.try_into().ok()).unwrap_or(0);
            query.limit = limit;
            let page = tools.list(&query)?;
            Ok((page.rows, page.next.map(u64::from)))
        })
    });
    let (mut rows, next) = rows.await?;
    let missing_nodes = add_cluster_states(&call, &mut rows).await?;
    let shown = page.to_page_data(rows, next.is_some(), to_thingsboard);
    call::with_missing_nodes(call::json_response(shown), &missing_nodes)
}

/// A page of the devices whose state, as all nodes know it, is this one.
async fn list_with_state_in_cluster(
    call: &ApiCall,
    mut query: DeviceQuery,
    state: &str,
    page: PageNumber,
) -> ApiResult {
    query.limit = MAX_LIMIT;
    let (mut skip, limit) = page.range();
    let (mut found, mut missing_nodes) = (Vec::new(), BTreeSet::new());
    while found.len() <= limit {
        let chunk = query.clone();
        let read = run_blocking(&call.app, move |tools| tools.list(&chunk)).await?;
        let mut rows = read.rows;
        missing_nodes.extend(add_cluster_states(call, &mut rows).await?);
        rows.retain(|row| row["state"] == state);
        let skipped = skip.min(rows.len());
        skip -= skipped;
        found.extend(rows.into_iter().skip(skipped));
        match read.next {
            Some(next) => query.from = next,
            None => break,
        }
    }
    let has_next = found.len() > limit;
    found.truncate(limit);
    let shown = page.to_page_data(found, has_next, to_thingsboard);
    call::with_missing_nodes(call::json_response(shown), &Vec::from_iter(missing_nodes))
}

async fn types(call: ApiCall) -> ApiResult {
    let selection = call.namespaces();
    let products = run_blocking(&call.app, move |tools| {
        Ok(tools.registry().product_ids(&selection))
    })
    .await?;
    let types = products.into_iter().map(|name| DeviceType {
        name,
        entity_type: "DEVICE",
    });
    call::json_response(types.collect::<Vec<_>>())
}

async fn save(mut call: ApiCall) -> ApiResult {
    let device: ThingsboardDeviceInput = call.body_json_of_any_type().await?;
    let token = call.query.owned_text(ACCESS_TOKEN);
    let credentials = token.map(|token| json!([{"type": "token", "token": token}]));
    save_device(&call, device, credentials).await
}

async fn save_with_credentials(mut call: ApiCall) -> ApiResult {
    let input: DeviceWithCredentials = call.body_json_of_any_type().await?;
    let credentials = json!([to_credential(&input.credentials)?]);
    save_device(&call, input.device, Some(credentials)).await
}

async fn save_device(
    call: &ApiCall,
    input: ThingsboardDeviceInput,
    credentials: Option<Value>,
) -> ApiResult {
    let name = input.name.trim().to_owned();
    if name.is_empty() {
        return Err(ProblemDetails::invalid_field(
            "name",
            "name: expected at least one character.",
        ));
    }
    let given = input.id.map(|id| id.id);
    let profile = input.device_profile_id.map(|profile| profile.id);
    let product = match input.product.or(profile) {
        Some(product) => Some(product_of_type(call, product).await?),
        None => None,
    };
    let selection = call.namespaces();
    let saved = run_blocking(&call.app, move |tools| {
        let id = given
            .clone()
            .unwrap_or_else(|| id_for_name(&name).into_owned());
        if given.is_some() {
            tools.check_selected(&id, &selection)?;
        }
        let current = tools.get(&id)?;
        let mut fields = match (&current, given) {
            (Some(device), Some(_)) => device.value.as_object().cloned().unwrap_or_default(),
            (None, Some(id)) => {
                return Err(DeviceServiceError::NotFound(format!(
                    "There is no device {id:?}."
                )));
            }
            // ThingsBoard rejects a name that is in use.
            (Some(_), None) => {
                return Err(DeviceServiceError::Conflict(format!(
                    "Device with such name already exists: {name:?} has the id {id:?}."
                )));
            }
            (None, None) => Map::new(),
        };
        fields.retain(|field, _| is_writable_field(field));
        fields.insert("name".to_owned(), name.into());
        match product {
            Some(product) => fields.insert("product".to_owned(), product.into()),
            None if fields.contains_key("product") => None,
            None => fields.insert("product".to_owned(), "default".into()),
        };
        if let Some(credentials) = credentials {
            fields.insert("credentials".to_owned(), credentials);
        }
        let expected = current.as_ref().map_or(0, |device| device.version);
        tools.put(&id, fields, Some(expected), &selection)
    });
    let (device, was_created) = saved.await?;
    let action = match was_created {
        true => "device.create",
        false => "device.change",
    };
    audit::record_action(call, action, device.value["id"].as_str(), None).await;
    call::json_response(to_thingsboard(&device.value))
}

/// The id of the product for this `type`. A missing product is created, as ThingsBoard creates a
/// profile.
async fn product_of_type(call: &ApiCall, name: String) -> Result<String, ProblemDetails> {
    let wanted = name.clone();
    let (id, exists) = run_blocking(&call.app, move |tools| {
        let exists = tools.has_product(&wanted);
        let id = match exists {
            true => wanted,
            false => id_for_name(&wanted).into_owned(),
        };
        let exists = exists || tools.has_product(&id);
        Ok((id, exists))
    })
    .await?;
    // `default` means no particular type in ThingsBoard; this product must exist.
    if !exists && name != "default" {
        let product = json!({"name": name, "description": "created for devices of this type"});
        objects::create_if_absent(call, BackendObjectKind::Product, &id, product).await?;
    }
    Ok(id)
}

/// Fields of a response that may be written back.
fn is_writable_field(field: &str) -> bool {
    matches!(
        field,
        "product" | "name" | "group" | "tags" | "parent" | "enabled" | "gateway"
    )
}

async fn remove(call: ApiCall) -> ApiResult {
    let id = call.path("id").to_owned();
    match run_blocking(&call.app, move |tools| tools.remove(&id, None)).await? {
        true => {
            audit::record_action(&call, "device.delete", Some(call.path("id")), None).await;
            Ok(StatusCode::OK.into_response())
        }
        false => Err(device_not_found(call.path("id"))),
    }
}

async fn credentials(call: ApiCall) -> ApiResult {
    let id = call.path("id").to_owned();
    let device = run_blocking(&call.app, move |tools| tools.get(&id)).await?;
    let device = device.ok_or_else(|| device_not_found(call.path("id")))?;
    call::json_response(to_thingsboard_credentials(
        call.path("id"),
        &device.value["credentials"][0],
    ))
}

fn to_thingsboard_credentials(device: &str, credential: &Value) -> ThingsboardCredentials {
    ThingsboardCredentials {
        device_id: EntityId::new("DEVICE", device),
        credentials_type: match credential["type"].as_str() {
            Some("password" | "secure") => "MQTT_BASIC",
            Some("certificate") => "X509_CERTIFICATE",
            _ => "ACCESS_TOKEN",
        },
        credentials_id: credential["name"].as_str().unwrap_or_default().to_owned(),
    }
}

/// Converts a credential to the registry's form.
fn to_credential(input: &CredentialsInput) -> Result<Value, ProblemDetails> {
    let kind = input.credentials_type.as_deref().unwrap_or("ACCESS_TOKEN");
    match kind {
        "ACCESS_TOKEN" => Ok(json!({"type": "token", "token": input.credentials_id})),
        "X509_CERTIFICATE" => {
            Ok(json!({"type": "certificate", "common_name": input.credentials_id}))
        }
        "MQTT_BASIC" => {
            let value = input.credentials_value.as_deref().unwrap_or("{}");
            let value: Value = serde_json::from_str(value).map_err(|error| {
                let detail = format!(
                    "credentialsValue: expected a JSON object with userName and password: {error}."
                );
                ProblemDetails::invalid_field("credentialsValue", detail)
            })?;
            Ok(
                json!({"type": "password", "username": value["userName"], "password": value["password"]}),
            )
        }
        other => {
            let detail = format!(
                "credentialsType: {other:?} is not supported; expected ACCESS_TOKEN, MQTT_BASIC or X509_CERTIFICATE."
            );
            Err(ProblemDetails::invalid_field("credentialsType", detail))
        }
    }
}

async fn set_credentials(mut call: ApiCall) -> ApiResult {
    let input: CredentialsInput = call.body_json_of_any_type().await?;
    let Some(id) = input.device_id.as_ref().map(|id| id.id.clone()) else {
        return Err(ProblemDetails::invalid_field(
            "deviceId",
            "deviceId: expected the id of a device.",
        ));
    };
    let credential = to_credential(&input)?;
    let (device_id, selection) = (id.clone(), call.namespaces());
    let changed = run_blocking(&call.app, move |tools| {
        let current = tools.get_selected(&id, &selection)?;
        let current = current
            .ok_or_else(|| DeviceServiceError::NotFound(format!("There is no device {id:?}.")))?;
        let mut fields = current.value.as_object().cloned().unwrap_or_default();
        fields.retain(|field, _| is_writable_field(field));
        fields.insert("credentials".to_owned(), json!([credential]));
        tools.put(&id, fields, Some(current.version), &selection)
    });
    let (device, _) = changed.await?;
    audit::record_action(&call, "device.change", Some(&device_id), None).await;
    call::json_response(to_thingsboard_credentials(
        &device_id,
        &device.value["credentials"][0],
    ))
}
