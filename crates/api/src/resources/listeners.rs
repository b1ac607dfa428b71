//! Listeners: list, read, start, stop, create, change and remove.

use axum::http::StatusCode;
use broker::control::ListenerError;
use broker::info::ListenerInfo;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::access::Role;
use crate::audit;
use crate::blocking::run_blocking;
use crate::call::{self, ApiCall};
use crate::endpoint::{Endpoint, EndpointScope, delete, get, post, put};
use crate::node_backend::{ListenerBackend, ListenerChangeError, StoredListener};
use crate::problem_details::{ApiResult, ProblemDetails};

#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct StopInput {
    /// Whether the listener's clients are disconnected too; otherwise they stay connected.
    disconnect_clients: bool,
}

/// The protocols of listeners that can only be declared in the configuration file.
const DECLARED_PROTOCOLS: [&str; 3] = ["link", "links", "quic"];

#[derive(Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum AddedProtocol {
    Mqtt,
    Mqtts,
    Ws,
    Wss,
    Unix,
}

/// The certificates of a listener.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListenerTlsInput {
    /// Id of the certificate that the listener presents.
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate: Option<String>,
    /// Id of the certificate with the authorities of clients; without it no client certificate is requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    client_ca: Option<String>,
    /// Whether clients without a certificate are rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    require_client_certificate: Option<bool>,
    /// Whether the common name of the client's certificate is its user name.
    #[serde(skip_serializing_if = "Option::is_none")]
    common_name_as_username: Option<bool>,
}

/// The settings of a listener, as in the configuration file; certificates are named by their ids.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListenerInput {
    /// Protocol; with `s` over TLS. Listeners of QUIC and links are part of the configuration file.
    protocol: AddedProtocol,
    /// Address to listen on, such as `0.0.0.0:8883`, or the absolute path of a Unix socket.
    bind: String,
    /// Required for `mqtts` and `wss`.
    #[serde(skip_serializing_if = "Option::is_none")]
    tls: Option<ListenerTlsInput>,
    /// Path at which WebSocket clients connect; default `/mqtt`.
    #[serde(skip_serializing_if = "Option::is_none")]
    websocket_path: Option<String>,
    /// Prefix of the paths of relay endpoints; default `/ws/`. `off`: not on this listener.
    #[serde(skip_serializing_if = "Option::is_none")]
    relay_path: Option<String>,
    /// Origins of the web pages that may connect by WebSocket, separated by commas. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    allowed_origins: Option<String>,
    /// Whether WebSocket messages are compressed for clients that offer it.
    #[serde(skip_serializing_if = "Option::is_none")]
    compression: Option<bool>,
    /// Whether each connection begins with a PROXY protocol header.
    #[serde(skip_serializing_if = "Option::is_none")]
    proxy_protocol: Option<bool>,
    /// Whether clients without a user name may connect. Default: only on loopback addresses and Unix sockets.
    #[serde(skip_serializing_if = "Option::is_none")]
    allow_anonymous: Option<bool>,
    /// Maximum number of connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000_000))]
    max_connections: Option<u32>,
    /// Maximum number of new connections per second; 0 means no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_new_connections_per_s: Option<u32>,
    /// Maximum number of PUBLISH packets per second and client; 0 means no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_client_messages_per_s: Option<u32>,
    /// Maximum bytes per second and client; 0 means no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_client_bytes_per_s: Option<u32>,
    /// Largest packet accepted, in bytes; 0 means that of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_packet_size: Option<u32>,
    /// Shortest keep-alive in seconds; 0 means no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    min_keep_alive_s: Option<u16>,
    /// Longest keep-alive in seconds; 0 means no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_keep_alive_s: Option<u16>,
    /// Seconds from accepting a connection to a complete CONNECT.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 3600))]
    connect_timeout_s: Option<u16>,
}

/// Where a listener comes from.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum ListenerOrigin {
    /// The configuration file, environment or command line; it cannot be changed over the API.
    Configuration,
    /// The API; it is stored and opened again after a restart.
    Api,
}

/// A listener.
#[derive(Serialize, JsonSchema)]
struct Listener {
    #[serde(flatten)]
    info: ListenerInfo,
    origin: ListenerOrigin,
    /// Its settings, if it was created over the API.
    definition: Option<Value>,
    /// Why the node could not open it after its start.
    problem: Option<String>,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    let about = "The listener's name.";
    let about_new = "The listener's name: 1 to 32 lower-case letters, digits, `-` and `_`.";
    vec![
        get("/api/v1/listeners", "listListeners", list)
            .role(Role::Viewer, EndpointScope::Node)
            .tag("configuration")
            .summary("List listeners")
            .description("All listeners on one page, running or not.")
            .unpaged::<Listener>(),
        get("/api/v1/listeners/{name}", "getListener", read)
            .role(Role::Viewer, EndpointScope::Node)
            .tag("configuration")
            .summary("Read a listener")
            .path_parameter("name", about)
            .response::<Listener>(200, "The listener."),
        put("/api/v1/listeners/{name}", "putListener", write)
            .role(Role::Admin, EndpointScope::Node)
            .tag("configuration")
            .summary("Create or replace a listener")
            .description(
                "It listens at once and after each restart. Replacing a listener disconnects its clients; if the new one \
                 cannot be opened, the old one continues.",
            )
            .path_parameter("name", about_new)
            .request_body::<ListenerInput>()
            .response::<Listener>(200, "Replaced.")
            .response::<Listener>(201, "Created.")
            .problem_response(
                409,
                "Its address cannot be used, the configuration has a listener with this name, or there are too many.",
            ),
        delete("/api/v1/listeners/{name}", "deleteListener", remove)
            .role(Role::Admin, EndpointScope::Node)
            .tag("configuration")
            .summary("Delete a listener")
            .description("Its clients are disconnected.")
            .path_parameter("name", about)
            .empty_response(204, "Deleted.")
            .problem_response(404, "There is no listener with this name.")
            .problem_response(409, "The listener belongs to the configuration."),
        post("/api/v1/listeners/{name}/start", "startListener", start)
            .role(Role::Admin, EndpointScope::Node)
            .tag("configuration")
            .summary("Start a stopped listener")
            .path_parameter("name", about)
            .response::<Listener>(200, "It listens.")
            .problem_response(
                409,
                "The listener is already running, or its address cannot be used.",
            ),
        post("/api/v1/listeners/{name}/stop", "stopListener", stop)
            .role(Role::Admin, EndpointScope::Node)
            .tag("configuration")
            .summary("Stop a listener")
            .description("It stays stopped until it or the node is started again.")
            .path_parameter("name", about)
            .optional_request_body::<StopInput>()
            .response::<Listener>(200, "The listener has stopped.")
            .problem_response(409, "The listener is already stopped."),
    ]
}

/// Runs a change or query of stored listeners and certificates, which may block.
pub(super) async fn on_backend<T: Send + 'static>(
    call: &ApiCall,
    work: impl FnOnce(&dyn ListenerBackend) -> Result<T, ListenerChangeError> + Send + 'static,
) -> Result<T, ProblemDetails> {
    let program = call.app.program.clone();
    let done = run_blocking(
        move || program.listener_backend().map(work),
        "The listeners cannot be read or changed now.",
    );
    let done = done.await?.ok_or_else(|| {
        ProblemDetails::conflict("Listeners of this program cannot change while it runs.")
    })?;
    done.map_err(|error| match error {
        ListenerChangeError::Invalid { field, message } if field.is_empty() => {
            ProblemDetails::unprocessable(format!("{message}."))
        }
        ListenerChangeError::Invalid { field, message } => {
            ProblemDetails::invalid_field(&field, format!("{field}: {message}."))
        }
        ListenerChangeError::NotFound(why) => ProblemDetails::not_found(why),
        ListenerChangeError::Conflict(why) => ProblemDetails::conflict(why),
        ListenerChangeError::Unavailable(why) => ProblemDetails::unavailable(why),
    })
}

/// The open listeners and the stored ones, which may not be open.
async fn all(call: &ApiCall) -> Result<Vec<Listener>, ProblemDetails> {
    let stored = match call.app.program.listener_backend() {
        Some(_) => on_backend(call, |backend| backend.stored_listeners()).await?,
        None => Vec::new(),
    };
    let open = call.app.node.listeners();
    let closed: Vec<_> = stored
        .iter()
        .filter(|listener| !open.iter().any(|info| info.name == listener.name))
        .map(closed_listener)
        .collect();
    let shown = open.into_iter().chain(closed).map(|info| {
        let stored = stored.iter().find(|listener| listener.name == info.name);
        Listener {
            origin: match stored {
                Some(_) => ListenerOrigin::Api,
                None => ListenerOrigin::Configuration,
            },
            definition: stored.map(|listener| listener.definition.clone()),
            problem: stored.and_then(|listener| listener.problem.clone()),
            info,
        }
    });
    Ok(shown.collect())
}

/// A stored listener that could not be opened.
fn closed_listener(listener: &StoredListener) -> ListenerInfo {
    let definition = &listener.definition;
    let protocols = ["mqtt", "mqtts", "ws", "wss", "unix"].into_iter();
    let protocol = protocols.rev().find(|name| definition["protocol"] == *name);
    let most = definition["max_connections"].as_u64();
    ListenerInfo {
        name: listener.name.clone(),
        protocol: protocol.unwrap_or("mqtt"),
        address: definition["bind"].as_str().unwrap_or_default().to_owned(),
        running: false,
        connections: 0,
        max_connections: most.and_then(|most| most.try_into().ok()).unwrap_or(0),
        allows_anonymous: definition["allow_anonymous"] == true,
        certificate: None,
    }
}

async fn list(call: ApiCall) -> ApiResult {
    call::unpaged_list(all(&call).await?)
}

async fn find(call: &ApiCall) -> Result<Listener, ProblemDetails> {
    let name = call.path("name");
    let mut listeners = all(call).await?.into_iter();
    listeners
        .find(|listener| listener.info.name == name)
        .ok_or_else(|| ProblemDetails::not_found(format!("There is no listener {name:?}.")))
}

async fn read(call: ApiCall) -> ApiResult {
    call::json_response(find(&call).await?)
}

fn listener_problem(rejection: &ListenerError) -> ProblemDetails {
    match rejection {
        ListenerError::UnknownListener(_) => ProblemDetails::not_found(format!("{rejection}.")),
        ListenerError::AlreadyInState(_)
        | ListenerError::NameInUse(_)
        | ListenerError::Unsupported(_)
        | ListenerError::Failed(_) => {
            ProblemDetails::conflict(format!("The listener was not changed: {rejection}."))
        }
    }
}

/// Says where a listener with a protocol is declared that the API cannot open.
fn explain_declared_protocol(problem: ProblemDetails) -> ProblemDetails {
    let named = DECLARED_PROTOCOLS.iter();
    let mut named =
        named.filter(|name| problem.detail.contains(&format!("unknown value `{name}`")));
    match named.next() {
        Some(name) if problem.parameter.as_deref() == Some("protocol") => {
            let detail = format!(
                "protocol: a listener with the protocol {name} is declared in the configuration file, as [[listener]]; the API \
                 opens mqtt, mqtts, ws, wss and unix."
            );
            ProblemDetails::invalid_field("protocol", detail)
        }
        _ => problem,
    }
}

async fn write(mut call: ApiCall) -> ApiResult {
    let input = call.body_json::<ListenerInput>().await;
    let input = input.map_err(explain_declared_protocol)?;
    let definition = serde_json::to_value(&input).expect("it was read from JSON");
    let name = call.path("name").to_owned();
    let is_new = {
        let _changing = call.app.changing.lock().await;
        let (name, definition) = (name.clone(), definition.clone());
        on_backend(&call, move |backend| {
            backend.put_listener(&name, &definition)
        })
        .await?
    };
    audit::record_action(&call, "listener.put", Some(&name), Some(definition)).await;
    let mut response = call::json_response(find(&call).await?)?;
    if is_new {
        *response.status_mut() = StatusCode::CREATED;
    }
    Ok(response)
}

async fn remove(call: ApiCall) -> ApiResult {
    let name = find(&call).await?.info.name;
    {
        let _changing = call.app.changing.lock().await;
        let name = name.clone();
        on_backend(&call, move |backend| backend.remove_listener(&name)).await?;
    }
    audit::record_action(&call, "listener.delete", Some(&name), None).await;
    call::no_content()
}

async fn start(call: ApiCall) -> ApiResult {
    let Listener { info, problem, .. } = find(&call).await?;
    let name = info.name;
    if problem.is_some() {
        let name = name.clone();
        on_backend(&call, move |backend| backend.open_listener(&name)).await?;
    } else {
        let started = call.app.node.start_listener(&name).await;
        started.map_err(|rejection| listener_problem(&rejection))?;
    }
    audit::record_action(&call, "listener.start", Some(&name), None).await;
    call::json_response(find(&call).await?)
}

async fn stop(mut call: ApiCall) -> ApiResult {
    let StopInput { disconnect_clients } = call.body_json_or_default().await?;
    let Listener { info, problem, .. } = find(&call).await?;
    let name = info.name;
    if problem.is_some() {
        let rejection = ListenerError::AlreadyInState("stopped");
        return Err(listener_problem(&rejection));
    }
    let stopped = call.app.node.stop_listener(&name, disconnect_clients).await;
    stopped.map_err(|rejection| listener_problem(&rejection))?;
    let after = serde_json::json!({"disconnect_clients": disconnect_clients});
    audit::record_action(&call, "listener.stop", Some(&name), Some(after)).await;
    call::json_response(find(&call).await?)
}
