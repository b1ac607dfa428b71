//! Devices on ThingsBoard's paths: look them up by name, list, create and delete them, set their credentials.
//!
//! ThingsBoard's names may hold blanks and slashes, ids of devices here may not. A device that is created here gets the
//! name as its name and an id made of the name, as devices behind gateways do; an id or a name finds it again.

use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::devices::{ask, no_device};
use super::thingsboard_pages::{PAGING, PageData, PageNumber, is_page_wanted};
use crate::access::Role;
use crate::audit;
use crate::call::{self, Call};
use crate::device_tools::{DeviceProblem, DeviceQuery, DeviceTools};
use crate::endpoint::{Endpoint, Outcome, delete, get, post};
use crate::objects::{self, RuledKind};
use crate::parameters::{Parameter, Shape, text};
use crate::problem::Problem;

const NAME: Parameter = text(
    "deviceName",
    "The name or the id of a device. Without it, a page of all devices.",
);
const TYPE: Parameter = text("type", "Devices of the product with this id.");
const TEXT: Parameter = text("textSearch", "Devices with this in their id or name.");
const ACCESS_TOKEN: Parameter = text(
    "accessToken",
    "The token of the new device; without it, one is generated.",
);
const ACTIVE: Parameter = Parameter {
    name: "active",
    shape: Shape::Flag,
    about: "`true`: devices that are online; `false`: devices that are offline.",
};

/// An id as ThingsBoard writes it.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct EntityId {
    /// Such as `DEVICE`.
    pub(super) entity_type: String,
    /// To be put into paths.
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
struct Device {
    id: EntityId,
    /// Milliseconds since 1970.
    created_time: u64,
    /// The device's name.
    name: String,
    /// The id of its product.
    #[serde(rename = "type")]
    product: String,
    label: String,
    device_profile_id: EntityId,
    /// The name of its product's id.
    device_profile_name: String,
    /// Whether it is online.
    active: bool,
}

/// A device as ThingsBoard's clients write it. Other fields are ignored.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "ThingsboardDeviceInput")]
struct DeviceInput {
    /// For a device that is there already.
    #[serde(default)]
    id: Option<EntityId>,
    #[schemars(length(min = 1, max = 256))]
    name: String,
    /// The id or the name of its product, which is created if there is none; `default` without it, which has to exist.
    #[serde(default, rename = "type")]
    product: Option<String>,
    #[serde(default)]
    device_profile_id: Option<EntityId>,
}

/// Credentials as ThingsBoard's clients write them. Other fields are ignored.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "ThingsboardCredentialsInput")]
struct CredentialsInput {
    device_id: Option<EntityId>,
    /// `ACCESS_TOKEN`, `MQTT_BASIC` or `X509_CERTIFICATE`; `ACCESS_TOKEN` without it.
    #[serde(default)]
    credentials_type: Option<String>,
    /// The token, or the common name of the certificate.
    #[serde(default)]
    credentials_id: Option<String>,
    /// `MQTT_BASIC`: a JSON object as text, with `userName` and `password`.
    #[serde(default)]
    credentials_value: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "ThingsboardDeviceWithCredentials")]
struct DeviceWithCredentials {
    device: DeviceInput,
    credentials: CredentialsInput,
}

/// Credentials without their secrets, which are not stored in a form that could be shown.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "ThingsboardCredentials")]
struct Credentials {
    device_id: EntityId,
    credentials_type: &'static str,
    /// A user name or a common name; empty for an access token.
    credentials_id: String,
}

/// A product, which ThingsBoard calls a type of devices.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "ThingsboardDeviceType")]
struct DeviceType {
    #[serde(rename = "type")]
    name: String,
    entity_type: &'static str,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    let read = |endpoint: Endpoint| endpoint.role(Role::Viewer).tag("devices");
    let write = |endpoint: Endpoint| endpoint.role(Role::Operator).tag("devices");
    let one =
        |endpoint: Endpoint| endpoint.path_parameter("id", "The device's id, percent-encoded.");
    let filters = [TYPE, TEXT, ACTIVE];
    let listed = |path: &str, id: &str| {
        read(get(path, id, list))
            .summary("List devices, as ThingsBoard does")
            .parameters(&filters)
            .parameters(&PAGING)
            .answers::<PageData<Device>>(200, "A page.")
    };
    vec![
        read(get(
            "/api/tenant/devices",
            "thingsboardDevices",
            by_name_or_list,
        ))
        .summary("Find a device by its name, or list devices, as ThingsBoard does")
        .parameters(&[NAME])
        .parameters(&filters)
        .parameters(&PAGING)
        .answers::<Value>(
            200,
            "The device, or a page as of `/api/tenant/deviceInfos`.",
        )
        .problem(404, "There is no such device."),
        read(get(
            "/api/tenant/device",
            "thingsboardDeviceByName",
            by_name,
        ))
        .summary("Find a device by its name, as ThingsBoard does")
        .parameters(&[NAME])
        .answers::<Device>(200, "The device.")
        .problem(404, "There is no such device."),
        listed("/api/tenant/deviceInfos", "thingsboardTenantDeviceInfos"),
        listed("/api/deviceInfos/all", "thingsboardDeviceInfos"),
        listed("/api/user/devices", "thingsboardUserDevices"),
        read(get("/api/device/types", "thingsboardDeviceTypes", types))
            .summary("List products, as ThingsBoard does")
            .answers::<Vec<DeviceType>>(200, "All products that have devices."),
        one(read(get("/api/device/{id}", "thingsboardDevice", by_id)))
            .summary("Read a device, as ThingsBoard does")
            .answers::<Device>(200, "The device."),
        one(read(get(
            "/api/device/info/{id}",
            "thingsboardDeviceInfo",
            by_id,
        )))
        .summary("Read a device, as ThingsBoard does")
        .answers::<Device>(200, "The device."),
        write(post("/api/device", "thingsboardSaveDevice", save))
            .summary("Create or change a device, as ThingsBoard does")
            .problem(404, "There is no device with the `id`.")
            .problem(
                409,
                "There is a device with this name, or a credential is in use.",
            )
            .parameters(&[ACCESS_TOKEN])
            .body::<DeviceInput>()
            .answers::<Device>(200, "The device."),
        write(post(
            "/api/device-with-credentials",
            "thingsboardSaveDeviceWithCredentials",
            save_with_credentials,
        ))
        .summary("Create a device with credentials, as ThingsBoard does")
        .problem(404, "There is no device with the `id`.")
        .problem(
            409,
            "There is a device with this name, or a credential is in use.",
        )
        .body::<DeviceWithCredentials>()
        .answers::<Device>(200, "The device."),
        one(write(delete(
            "/api/device/{id}",
            "thingsboardDeleteDevice",
            remove,
        )))
        .summary("Delete a device, as ThingsBoard does")
        .answers_nothing(200, "Deleted."),
        one(write(get(
            "/api/device/{id}/credentials",
            "thingsboardDeviceCredentials",
            credentials,
        )))
        .summary("Read the type of a device's credentials, as ThingsBoard does")
        .description(
            "Tokens and passwords are stored as digests and cannot be read; set new ones instead.",
        )
        .answers::<Credentials>(200, "The first of its credentials, without the secret."),
        write(post(
            "/api/device/credentials",
            "thingsboardSetDeviceCredentials",
            set_credentials,
        ))
        .summary("Replace a device's credentials, as ThingsBoard does")
        .problem(404, "There is no such device.")
        .problem(409, "A credential is in use.")
        .body::<CredentialsInput>()
        .answers::<Credentials>(200, "The new credentials, without the secret."),
    ]
}

/// The device with this id, or with the name that its id was made of.
fn find(tools: &dyn DeviceTools, name: &str) -> Result<Option<Value>, DeviceProblem> {
    if let Some(device) = tools.get(name)? {
        return Ok(Some(device.value));
    }
    let device = tools.get(&tools.id_for_name(name))?;
    let device = device.map(|device| device.value);
    Ok(device.filter(|device| device["name"] == name))
}

fn shown(device: &Value) -> Device {
    let text = |key: &str| device[key].as_str().unwrap_or_default().to_owned();
    let name = match text("name") {
        name if name.is_empty() => text("id"),
        name => name,
    };
    Device {
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

async fn by_name_or_list(call: Call) -> Outcome {
    match call.query.text(NAME.name) {
        Some(_) => by_name(call).await,
        None if is_page_wanted(&call) => list(call).await,
        None => {
            let detail = "deviceName: expected the name of a device, or pageSize for a list.";
            Err(Problem::parameter(NAME.name, detail))
        }
    }
}

async fn by_name(call: Call) -> Outcome {
    let name = call.query.text(NAME.name).ok_or_else(|| {
        let detail = "deviceName: expected the name of a device.";
        Problem::parameter(NAME.name, detail)
    })?;
    look(&call, name.to_owned()).await
}

async fn by_id(call: Call) -> Outcome {
    look(&call, call.path("id").to_owned()).await
}

async fn look(call: &Call, name: String) -> Outcome {
    let wanted = name.clone();
    let device = ask(&call.app, move |tools| find(tools, &wanted)).await?;
    call::ok(shown(&device.ok_or_else(|| no_device(&name))?))
}

async fn list(call: Call) -> Outcome {
    let state = call.query.flag(ACTIVE).map(|is_active| match is_active {
        true => "online".to_owned(),
        false => "offline".to_owned(),
    });
    let given = |parameter| call.query.owned(parameter).filter(|text| !text.is_empty());
    let mut query = DeviceQuery {
        product: given(TYPE),
        text: given(TEXT),
        state,
        ..DeviceQuery::default()
    };
    let page = PageNumber::of(&call);
    let rows = ask(&call.app, move |tools| {
        page.read(|begin, limit| {
            query.from = begin.and_then(|begin| begin.try_into().ok()).unwrap_or(0);
            query.limit = limit;
            let page = tools.list(&query)?;
            Ok((page.rows, page.next.map(u64::from)))
        })
    });
    call::ok(page.shown(rows.await?, shown))
}

async fn types(call: Call) -> Outcome {
    let counts = ask(&call.app, |tools| tools.counts()).await?;
    let products = counts["products"].as_object();
    let types = products.into_iter().flatten().map(|(name, _)| DeviceType {
        name: name.clone(),
        entity_type: "DEVICE",
    });
    call::ok(types.collect::<Vec<_>>())
}

async fn save(mut call: Call) -> Outcome {
    let device: DeviceInput = call.json_of_any_type().await?;
    let token = call.query.owned(ACCESS_TOKEN);
    let credentials = token.map(|token| json!([{"type": "token", "token": token}]));
    write(&call, device, credentials).await
}

async fn save_with_credentials(mut call: Call) -> Outcome {
    let input: DeviceWithCredentials = call.json_of_any_type().await?;
    let credentials = json!([credential(&input.credentials)?]);
    write(&call, input.device, Some(credentials)).await
}

async fn write(call: &Call, input: DeviceInput, credentials: Option<Value>) -> Outcome {
    let name = input.name.trim().to_owned();
    if name.is_empty() {
        return Err(Problem::field(
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
    let saved = ask(&call.app, move |tools| {
        let id = given.clone().unwrap_or_else(|| tools.id_for_name(&name));
        let current = tools.get(&id)?;
        let mut fields = match (&current, given) {
            (Some(device), Some(_)) => device.value.as_object().cloned().unwrap_or_default(),
            (None, Some(id)) => {
                return Err(DeviceProblem::NotFound(format!(
                    "There is no device {id:?}."
                )));
            }
            // ThingsBoard refuses a name that is taken.
            (Some(_), None) => {
                return Err(DeviceProblem::Conflict(format!(
                    "Device with such name already exists: {name:?} has the id {id:?}."
                )));
            }
            (None, None) => Map::new(),
        };
        fields.retain(|field, _| is_written(field));
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
        tools.put(&id, fields, Some(expected))
    });
    let (device, was_created) = saved.await?;
    let action = match was_created {
        true => "device.create",
        false => "device.change",
    };
    audit::action(call, action, device.value["id"].as_str(), None).await;
    call::ok(shown(&device.value))
}

/// The id of the product for this `type`. Where there is none it is created, as ThingsBoard creates a profile.
async fn product_of_type(call: &Call, name: String) -> Result<String, Problem> {
    let wanted = name.clone();
    let (id, exists) = ask(&call.app, move |tools| {
        let exists = tools.has_product(&wanted);
        let id = match exists {
            true => wanted,
            false => tools.id_for_name(&wanted),
        };
        let exists = exists || tools.has_product(&id);
        Ok((id, exists))
    })
    .await?;
    // ThingsBoard's word for no type in particular: a product that has to be there.
    if !exists && name != "default" {
        let product = json!({"name": name, "description": "created for devices of this type"});
        objects::create_if_absent(call, RuledKind::Product, &id, product).await?;
    }
    Ok(id)
}

/// Fields of a device that was read which may be written back.
fn is_written(field: &str) -> bool {
    matches!(
        field,
        "product" | "name" | "group" | "tags" | "parent" | "enabled" | "gateway"
    )
}

async fn remove(call: Call) -> Outcome {
    let id = call.path("id").to_owned();
    match ask(&call.app, move |tools| tools.remove(&id, None)).await? {
        true => {
            audit::action(&call, "device.delete", Some(call.path("id")), None).await;
            Ok(StatusCode::OK.into_response())
        }
        false => Err(no_device(call.path("id"))),
    }
}

async fn credentials(call: Call) -> Outcome {
    let id = call.path("id").to_owned();
    let device = ask(&call.app, move |tools| tools.get(&id)).await?;
    let device = device.ok_or_else(|| no_device(call.path("id")))?;
    call::ok(shown_credentials(
        call.path("id"),
        &device.value["credentials"][0],
    ))
}

fn shown_credentials(device: &str, credential: &Value) -> Credentials {
    Credentials {
        device_id: EntityId::new("DEVICE", device),
        credentials_type: match credential["type"].as_str() {
            Some("password" | "secure") => "MQTT_BASIC",
            Some("certificate") => "X509_CERTIFICATE",
            _ => "ACCESS_TOKEN",
        },
        credentials_id: credential["name"].as_str().unwrap_or_default().to_owned(),
    }
}

/// A credential as the registry takes it.
fn credential(input: &CredentialsInput) -> Result<Value, Problem> {
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
                Problem::field("credentialsValue", detail)
            })?;
            Ok(
                json!({"type": "password", "username": value["userName"], "password": value["password"]}),
            )
        }
        other => {
            let detail = format!(
                "credentialsType: {other:?} is not supported; expected ACCESS_TOKEN, MQTT_BASIC or X509_CERTIFICATE."
            );
            Err(Problem::field("credentialsType", detail))
        }
    }
}

async fn set_credentials(mut call: Call) -> Outcome {
    let input: CredentialsInput = call.json_of_any_type().await?;
    let Some(id) = input.device_id.as_ref().map(|id| id.id.clone()) else {
        return Err(Problem::field(
            "deviceId",
            "deviceId: expected the id of a device.",
        ));
    };
    let credential = credential(&input)?;
    let device_id = id.clone();
    let changed = ask(&call.app, move |tools| {
        let current = tools.get(&id)?;
        let current = current
            .ok_or_else(|| DeviceProblem::NotFound(format!("There is no device {id:?}.")))?;
        let mut fields = current.value.as_object().cloned().unwrap_or_default();
        fields.retain(|field, _| is_written(field));
        fields.insert("credentials".to_owned(), json!([credential]));
        tools.put(&id, fields, Some(current.version))
    });
    let (device, _) = changed.await?;
    audit::action(&call, "device.change", Some(&device_id), None).await;
    call::ok(shown_credentials(
        &device_id,
        &device.value["credentials"][0],
    ))
}
