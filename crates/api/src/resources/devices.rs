//! Devices: one by one and in lists. Products are configuration objects, see `objects`.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::access::Role;
use crate::audit;
use crate::call::{self, ApiCall};
use crate::device_backend::{DeviceBackend, DeviceBackendError, DeviceQuery, DeviceView};
use crate::endpoint::{ApiResult, Endpoint, delete, get, post, put};
use crate::objects::Preconditions;
use crate::problem_details::ProblemDetails;
use crate::query_parameters::{Parameter, ParameterType, text_parameter};
use crate::state::ApiState;

const PRODUCT: Parameter = text_parameter("product", "Devices of this product.");
const GROUP: Parameter = text_parameter("group", "Devices of this group.");
const TAG: Parameter = text_parameter("tag", "Devices with this tag: `floor=2`.");
const PARENT: Parameter = text_parameter("parent", "Devices behind this gateway.");
const TEXT: Parameter = text_parameter("text", "Devices with this in their id or name.");
const STATE: Parameter = Parameter {
    name: "state",
    description: "Devices in these states.",
    shape: ParameterType::Words(&["notActive", "online", "offline"]),
};
/// A device as it is written.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "it only describes what the registry reads")]
struct DeviceInput {
    /// The id of its product.
    #[schemars(length(min = 1, max = 64))]
    product: String,
    /// For people; the id, if it is empty.
    #[schemars(length(max = 256), default)]
    name: String,
    /// The group it is in.
    #[schemars(default)]
    group: Option<String>,
    #[schemars(default)]
    tags: BTreeMap<String, String>,
    /// The id of the gateway it is behind.
    #[schemars(default)]
    parent: Option<String>,
    /// A disabled device is not let in.
    #[schemars(default = "yes")]
    enabled: bool,
    /// It may have devices behind it, whatever its product says.
    #[schemars(default)]
    gateway: bool,
    /// Left out or `null`: those it has stay; a new device gets a token, unless its product has a `secure` key for all or it is
    /// behind a gateway.
    #[schemars(default, length(max = 8))]
    credentials: Option<Vec<CredentialInput>>,
}

fn yes() -> bool {
    true
}

/// A new device as it is written.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "it only describes what the registry reads")]
struct NewDeviceInput {
    /// 1 to 64 bytes without `/`, `+`, `#` and blanks.
    #[schemars(length(min = 1, max = 64))]
    id: String,
    #[serde(flatten)]
    rest: DeviceInput,
}

/// A credential as it is written. Secrets that are left out are made, and told once.
#[derive(JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[allow(dead_code, reason = "it only describes what the registry reads")]
enum CredentialInput {
    /// An access token, sent as the user name.
    Token { token: Option<String> },
    /// User name (its id, if it is left out) and password.
    Password {
        username: Option<String>,
        password: Option<String>,
    },
    /// JetLinks' `secureId` (its id, if it is left out) and `secureKey`.
    Secure {
        secure_id: Option<String>,
        secure_key: Option<String>,
    },
    /// The common name (its id, if it is left out) of its certificate.
    Certificate { common_name: Option<String> },
    /// A key for JWTs: HS256, ES256, EdDSA or RS256.
    Jwt { algorithm: String, key: String },
}

/// What it takes to claim a device.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ClaimInput {
    /// What the device has offered; empty, if it has offered none.
    secret: String,
    /// The group it shall be in.
    #[schemars(length(min = 1, max = 64))]
    group: String,
}

/// A device as it is.
#[derive(Serialize, JsonSchema)]
#[allow(dead_code, reason = "it only describes what the registry answers")]
pub(super) struct Device {
    id: String,
    product: String,
    name: String,
    group: Option<String>,
    tags: BTreeMap<String, String>,
    parent: Option<String>,
    enabled: bool,
    gateway: bool,
    /// Their types and names; secrets are not shown.
    credentials: Vec<Map<String, Value>>,
    /// `notActive`, `online` or `offline`.
    state: String,
    /// When it connected for the first time.
    activated_at_ms: Option<u64>,
    last_seen_at_ms: Option<u64>,
    created_at_ms: u64,
    version: u64,
    /// Credentials that were just made; told this once. Left out otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    issued: Option<Vec<Map<String, Value>>>,
}

/// How many devices there are.
#[derive(Serialize, JsonSchema)]
#[allow(dead_code, reason = "it only describes what the registry answers")]
struct DeviceCounts {
    devices: u64,
    online: u64,
    /// Per product.
    products: BTreeMap<String, u64>,
    /// Devices in memory.
    cached: u64,
    cache_hits: u64,
    cache_misses: u64,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    let one = |endpoint: Endpoint| {
        endpoint
            .tag("devices")
            .path_parameter("id", "The device's id, percent-encoded.")
    };
    vec![
        get("/api/v1/devices", "listDevices", list)
            .role(Role::Viewer)
            .tag("devices")
            .summary("List devices")
            .description(
                "In the order in which they were made. A page may be short or empty and still have a next one: the node looks at \
                 a bounded number of devices for each.",
            )
            .parameters(&[PRODUCT, GROUP, TAG, PARENT, TEXT, STATE])
            .paged::<Device>(),
        post("/api/v1/devices", "createDevice", create)
            .role(Role::Operator)
            .tag("devices")
            .summary("Make a device")
            .request_body::<NewDeviceInput>()
            .response::<Device>(201, "Made; `issued` holds what was made for it, told once.")
            .with_location()
            .problem_response(404, "There is no such product.")
            .problem_response(409, "There is one with this id already."),
        get("/api/v1/device-counts", "countDevices", counts)
            .role(Role::Viewer)
            .tag("devices")
            .summary("Count devices")
            .response::<DeviceCounts>(200, "Now."),
        one(get("/api/v1/devices/{id}", "getDevice", read))
            .role(Role::Viewer)
            .summary("Look at a device")
            .response::<Device>(200, "It, as it is now.")
            .with_etag(),
        one(put("/api/v1/devices/{id}", "putDevice", write))
            .role(Role::Operator)
            .summary("Make or replace a device")
            .description("The whole device; credentials that are left out stay what they are.")
            .request_body::<DeviceInput>()
            .response::<Device>(200, "Replaced.")
            .response::<Device>(201, "Made.")
            .problem_response(409, "Something of it belongs to another device.")
            .with_etag(),
        one(delete("/api/v1/devices/{id}", "deleteDevice", remove))
            .role(Role::Operator)
            .summary("Delete a device")
            .description("With its attributes. One with devices behind it stays.")
            .empty_response(204, "Deleted.")
            .with_etag(),
        one(post("/api/v1/devices/{id}/claim", "claimDevice", claim))
            .role(Role::Operator)
            .summary("Claim a device")
            .description(
                "The device has offered it, with a secret and for a time. It is in this group from now on; the secret holds once.",
            )
            .request_body::<ClaimInput>()
            .response::<Device>(200, "It, as it is now."),
    ]
}

pub(super) fn to_problem(error: DeviceBackendError) -> ProblemDetails {
    match error {
        DeviceBackendError::NotFound(detail) => ProblemDetails::not_found(detail),
        DeviceBackendError::Field { field, detail } if field.is_empty() => {
            ProblemDetails::unprocessable(detail)
        }
        DeviceBackendError::Field { field, detail } => {
            ProblemDetails::invalid_field(&field, format!("{field}: {detail}."))
        }
        DeviceBackendError::Conflict(detail) => ProblemDetails::conflict(detail),
        DeviceBackendError::Changed => ProblemDetails::new(
            StatusCode::PRECONDITION_FAILED,
            "The device has changed meanwhile. Read it again, then decide.",
        ),
        DeviceBackendError::Unavailable(detail) => ProblemDetails::unavailable(detail),
    }
}

/// Asks the registry on a thread that may read the disk.
pub(super) async fn run_blocking<T: Send + 'static>(
    app: &ApiState,
    question: impl FnOnce(&dyn DeviceBackend) -> Result<T, DeviceBackendError> + Send + 'static,
) -> Result<T, ProblemDetails> {
    let tools = Arc::clone(&app.device_backend);
    let asked =
        call::run_blocking(move || question(&*tools), "The devices cannot be read now.").await?;
    asked.map_err(to_problem)
}

pub(super) fn device_not_found(id: &str) -> ProblemDetails {
    ProblemDetails::not_found(format!("There is no device {id:?}."))
}

fn with_version(status: StatusCode, device: &DeviceView) -> Response {
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
    let query = DeviceQuery {
        product: call.query.owned_text(PRODUCT),
        group: call.query.owned_text(GROUP),
        tag,
        parent: call.query.owned_text(PARENT),
        text: call.query.owned_text(TEXT),
        state: call.query.owned_text(STATE),
        from: call.query.after_number("devices")?.unwrap_or(0),
        limit: call.query.limit(),
    };
    let page = run_blocking(&call.app, move |tools| tools.list(&query)).await?;
    call::page_of(page.rows, page.next)
}

async fn read(call: ApiCall) -> ApiResult {
    let id = call.path("id").to_owned();
    let device = run_blocking(&call.app, move |tools| tools.get(&id)).await?;
    let device = device.ok_or_else(|| device_not_found(call.path("id")))?;
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
            "The body is not what was expected: expected a JSON object.",
        )),
    }
}

async fn create(mut call: ApiCall) -> ApiResult {
    let mut fields = fields_of(call.body_value().await?)?;
    let Some(Value::String(id)) = fields.remove("id") else {
        return Err(ProblemDetails::invalid_field("id", "id: expected a text."));
    };
    let name = id.clone();
    let (device, _) =
        run_blocking(&call.app, move |tools| tools.put(&name, fields, Some(0))).await?;
    audit::record_action(&call, "device.create", Some(&id), None).await;
    let mut response = with_version(StatusCode::CREATED, &device);
    let location = format!("/api/v1/devices/{}", crate::objects::percent_encode(&id));
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
    // What a GET answered may be put back; what its credentials are called says nothing of their secrets.
    for field in [
        "version",
        "created_at_ms",
        "activated_at_ms",
        "last_seen_at_ms",
        "state",
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
    let (device, was_created) =
        run_blocking(&call.app, move |tools| tools.put(&name, fields, expected)).await?;
    let (status, action) = match was_created {
        true => (StatusCode::CREATED, "device.create"),
        false => (StatusCode::OK, "device.change"),
    };
    audit::record_action(&call, action, Some(&id), None).await;
    Ok(with_version(status, &device))
}

/// The version a change is to find, if the request says anything of it.
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
