//! Devices: one by one and in lists. Products are configuration objects, see `objects`.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::access::Role;
use crate::app::App;
use crate::audit;
use crate::call::{self, Call};
use crate::device_tools::{DeviceProblem, DeviceQuery, DeviceTools, ShownDevice};
use crate::endpoint::{Endpoint, Outcome, delete, get, post, put};
use crate::objects::Preconditions;
use crate::parameters::{Parameter, Shape, text};
use crate::problem::Problem;

const PRODUCT: Parameter = text("product", "Devices of this product.");
const GROUP: Parameter = text("group", "Devices of this group.");
const TAG: Parameter = text("tag", "Devices with this tag: `floor=2`.");
const PARENT: Parameter = text("parent", "Devices behind this gateway.");
const TEXT: Parameter = text("text", "Devices with this in their id or name.");
const STATE: Parameter = Parameter {
    name: "state",
    about: "Devices in these states.",
    shape: Shape::Words(&["notActive", "online", "offline"]),
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
struct Counts {
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
            .pages::<Device>(),
        post("/api/v1/devices", "createDevice", create)
            .role(Role::Operator)
            .tag("devices")
            .summary("Make a device")
            .body::<NewDeviceInput>()
            .answers::<Device>(201, "Made; `issued` holds what was made for it, told once.")
            .with_location()
            .problem(404, "There is no such product.")
            .problem(409, "There is one with this id already."),
        get("/api/v1/device-counts", "countDevices", counts)
            .role(Role::Viewer)
            .tag("devices")
            .summary("Count devices")
            .answers::<Counts>(200, "Now."),
        one(get("/api/v1/devices/{id}", "getDevice", read))
            .role(Role::Viewer)
            .summary("Look at a device")
            .answers::<Device>(200, "It, as it is now.")
            .versioned(),
        one(put("/api/v1/devices/{id}", "putDevice", write))
            .role(Role::Operator)
            .summary("Make or replace a device")
            .description("The whole device; credentials that are left out stay what they are.")
            .body::<DeviceInput>()
            .answers::<Device>(200, "Replaced.")
            .answers::<Device>(201, "Made.")
            .problem(409, "Something of it belongs to another device.")
            .versioned(),
        one(delete("/api/v1/devices/{id}", "deleteDevice", remove))
            .role(Role::Operator)
            .summary("Delete a device")
            .description("With its attributes. One with devices behind it stays.")
            .answers_nothing(204, "Deleted.")
            .versioned(),
        one(post("/api/v1/devices/{id}/claim", "claimDevice", claim))
            .role(Role::Operator)
            .summary("Claim a device")
            .description(
                "The device has offered it, with a secret and for a time. It is in this group from now on; the secret holds once.",
            )
            .body::<ClaimInput>()
            .answers::<Device>(200, "It, as it is now."),
    ]
}

pub(super) fn problem(error: DeviceProblem) -> Problem {
    match error {
        DeviceProblem::NotFound(detail) => Problem::not_found(detail),
        DeviceProblem::Field { field, detail } if field.is_empty() => {
            Problem::unprocessable(detail)
        }
        DeviceProblem::Field { field, detail } => {
            Problem::field(&field, format!("{field}: {detail}."))
        }
        DeviceProblem::Conflict(detail) => Problem::conflict(detail),
        DeviceProblem::Changed => Problem::new(
            StatusCode::PRECONDITION_FAILED,
            "The device has changed meanwhile. Read it again, then decide.",
        ),
        DeviceProblem::Unavailable(detail) => Problem::unavailable(detail),
    }
}

/// Asks the registry on a thread that may read the disk.
pub(super) async fn ask<T: Send + 'static>(
    app: &App,
    question: impl FnOnce(&dyn DeviceTools) -> Result<T, DeviceProblem> + Send + 'static,
) -> Result<T, Problem> {
    let tools = Arc::clone(&app.device_tools);
    let asked =
        call::blocking(move || question(&*tools), "The devices cannot be read now.").await?;
    asked.map_err(problem)
}

pub(super) fn no_device(id: &str) -> Problem {
    Problem::not_found(format!("There is no device {id:?}."))
}

fn with_version(status: StatusCode, device: &ShownDevice) -> Response {
    let mut response = (status, axum::Json(&device.value)).into_response();
    if let Ok(etag) = HeaderValue::try_from(format!("\"{}\"", device.version)) {
        response.headers_mut().insert(header::ETAG, etag);
    }
    response
}

async fn list(call: Call) -> Outcome {
    let tag = match call.query.text(TAG.name).map(|tag| tag.split_once('=')) {
        None => None,
        Some(Some((key, value))) => Some((key.to_owned(), value.to_owned())),
        Some(None) => {
            let detail = "tag: expected a key and a value, such as floor=2.";
            return Err(Problem::parameter("tag", detail));
        }
    };
    let query = DeviceQuery {
        product: call.query.owned(PRODUCT),
        group: call.query.owned(GROUP),
        tag,
        parent: call.query.owned(PARENT),
        text: call.query.owned(TEXT),
        state: call.query.owned(STATE),
        from: call.query.after_number("devices")?.unwrap_or(0),
        limit: call.query.limit(),
    };
    let page = ask(&call.app, move |tools| tools.list(&query)).await?;
    call::page_from(page.rows, page.next)
}

async fn read(call: Call) -> Outcome {
    let id = call.path("id").to_owned();
    let device = ask(&call.app, move |tools| tools.get(&id)).await?;
    let device = device.ok_or_else(|| no_device(call.path("id")))?;
    if Preconditions::read(call.headers())?.is_not_modified(device.version) {
        return Ok(StatusCode::NOT_MODIFIED.into_response());
    }
    Ok(with_version(StatusCode::OK, &device))
}

async fn claim(mut call: Call) -> Outcome {
    let ClaimInput { secret, group } = call.json().await?;
    let id = call.path("id").to_owned();
    let (wanted, into) = (id.clone(), group.clone());
    let device = ask(&call.app, move |tools| tools.claim(&wanted, &secret, &into)).await?;
    let after = serde_json::json!({"group": group});
    audit::action(&call, "device.claim", Some(&id), Some(after)).await;
    Ok(with_version(StatusCode::OK, &device))
}

pub(super) fn fields_of(input: Value) -> Result<Map<String, Value>, Problem> {
    match input {
        Value::Object(fields) => Ok(fields),
        _ => Err(Problem::unprocessable(
            "The body is not what was expected: expected a JSON object.",
        )),
    }
}

async fn create(mut call: Call) -> Outcome {
    let mut fields = fields_of(call.value().await?)?;
    let Some(Value::String(id)) = fields.remove("id") else {
        return Err(Problem::field("id", "id: expected a text."));
    };
    let name = id.clone();
    let (device, _) = ask(&call.app, move |tools| tools.put(&name, fields, Some(0))).await?;
    audit::action(&call, "device.create", Some(&id), None).await;
    let mut response = with_version(StatusCode::CREATED, &device);
    let location = format!("/api/v1/devices/{}", crate::objects::percent_encode(&id));
    if let Ok(location) = HeaderValue::try_from(location) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}

async fn write(mut call: Call) -> Outcome {
    let id = call.path("id").to_owned();
    let preconditions = Preconditions::read(call.headers())?;
    let mut fields = fields_of(call.value().await?)?;
    match fields.remove("id") {
        None => {}
        Some(Value::String(given)) if given == id => {}
        Some(_) => {
            return Err(Problem::field(
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
    let expected = expected(&call, &preconditions, &id).await?;
    let (device, was_created) =
        ask(&call.app, move |tools| tools.put(&name, fields, expected)).await?;
    let (status, action) = match was_created {
        true => (StatusCode::CREATED, "device.create"),
        false => (StatusCode::OK, "device.change"),
    };
    audit::action(&call, action, Some(&id), None).await;
    Ok(with_version(status, &device))
}

/// The version a change is to find, if the request says anything of it.
async fn expected(
    call: &Call,
    preconditions: &Preconditions,
    id: &str,
) -> Result<Option<u64>, Problem> {
    if *preconditions == Preconditions::default() {
        return Ok(None);
    }
    let id = id.to_owned();
    let current = ask(&call.app, move |tools| tools.get(&id)).await?;
    let version = current.map(|device| device.version);
    preconditions.check(version)?;
    Ok(Some(version.unwrap_or(0)))
}

async fn remove(call: Call) -> Outcome {
    let id = call.path("id").to_owned();
    let preconditions = Preconditions::read(call.headers())?;
    let expected = expected(&call, &preconditions, &id).await?;
    let name = id.clone();
    match ask(&call.app, move |tools| tools.remove(&name, expected)).await? {
        true => {
            audit::action(&call, "device.delete", Some(&id), None).await;
            call::done()
        }
        false => Err(no_device(&id)),
    }
}

async fn counts(call: Call) -> Outcome {
    call::ok(ask(&call.app, |tools| tools.counts()).await?)
}
