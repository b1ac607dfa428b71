//! Requests of the API that are executed by another node of the cluster, or by all of them.
//!
//! A device has its session, commands, attributes, telemetry and alarms at one node, or parts of them at several. The node
//! that gets a request asks the others who has the device, and passes the request on. What it passes on is the request itself
//! with the caller that it has authenticated. The other node checks the permissions of the caller, executes the request and
//! writes the audit log.
//!
//! A message is a line of JSON, [`NodeQuestion`] or [`CallAnswer`], and the body of the request or response.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, header};
use axum::response::Response;
use devices::alarm::NODE_PRODUCT;
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use outbound::url_encoding::url_encode;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::runtime::Handle;
use tower_service::Service as _;

use crate::access::{
    AuthenticationMethod, Authority, CallerIdentity, LocalOperator, NamespaceGrant, Role,
};
use crate::blocking::run_blocking;
use crate::cluster_backend::{ClusterBackend, NodeCallFuture, NodeCallHandler};
use crate::device_presences::{ClusterPresences, NodePresence, presence_here};
use crate::endpoint::Endpoint;
use crate::endpoint_place::{EndpointPlace, MergedAnswer};
use crate::live_sessions::POLL_TIME;
use crate::merged_answers::NodeAnswer;
use crate::merged_calls::MergedCall;
use crate::node_files::{self, FilePart, FileQuestion};
use crate::node_lists::{self, ListQuestion, ListRows};
use crate::node_live::LiveQuestion;
use crate::node_telemetry::{self, TelemetryQuestion};
use crate::peer_ip::PeerIp;
use crate::problem_details::ProblemDetails;
use crate::query_parameters::{AFTER, NODE, QueryParameters};
use crate::state::ApiState;

/// Time in which a node answers what it can answer at once. A request of the API, which may wait for several answers, has
/// 10 s by default.
pub(crate) const ANSWER_TIME: Duration = Duration::from_secs(5);
/// Maximum size of the body of a request that is passed on. A message between nodes has up to 1 MiB.
const MAX_BODY_BYTES: usize = 900 << 10;
/// Maximum size of the response. A message between nodes has up to 8 MiB.
const MAX_RESPONSE_BYTES: usize = 7 << 20;
/// Fields of a request that are passed on.
static REQUEST_FIELDS: [HeaderName; 7] = [
    header::CONTENT_TYPE,
    header::ACCEPT,
    header::IF_MATCH,
    header::IF_NONE_MATCH,
    header::IF_RANGE,
    header::RANGE,
    TUS_RESUMABLE,
];
/// The version of tus that a client uses.
const TUS_RESUMABLE: HeaderName = HeaderName::from_static("tus-resumable");
/// Fields of a response that belong to the connection.
const CONNECTION_FIELDS: [HeaderName; 3] = [
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
];

/// A request without its body.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct NodeCall {
    method: String,
    /// Path and query.
    uri: String,
    fields: Vec<(String, String)>,
    caller: RemoteCaller,
}

/// A caller that the node has authenticated which passes a request on.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct RemoteCaller {
    name: String,
    authentication: AuthenticationMethod,
    /// The node-wide role.
    role: Option<Role>,
    grants: Vec<NamespaceGrant>,
    must_change_password: bool,
    address: IpAddr,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum NodeQuestion {
    Call(NodeCall),
    /// Is answered with an optional [`NodePresence`] for each device.
    DevicePresence {
        ids: Vec<String>,
    },
    /// Is answered with JSON.
    Telemetry(TelemetryQuestion),
    /// Is answered with [`ListRows`] as JSON.
    List(ListQuestion),
    /// Is answered with JSON.
    Live(LiveQuestion),
    /// Is answered with JSON, or with bytes of a file.
    File(FileQuestion),
}

/// The head of a response.
#[derive(Debug, Serialize, Deserialize)]
struct CallAnswer {
    status: u16,
    fields: Vec<(String, String)>,
}

/// Answers calls of other nodes with the API of this node.
pub(crate) struct ApiCallHandler {
    app: Weak<ApiState>,
    /// That of the API. Messages between nodes do not wait for its work.
    runtime: Handle,
}

/// The response of each node, or why there is none.
type NodeCallAnswers = Vec<(String, Result<(CallAnswer, Bytes), String>)>;

/// What has become of a request.
pub(crate) enum CallOutcome {
    /// It is to be executed here.
    NotExecuted(Body),
    Answered(Response),
    /// By another node. If the response is the content of a file, its body is still to be added.
    AnsweredBy(String, Response),
}

impl NodeCall {
    pub(crate) fn new(parts: &Parts, who: &CallerIdentity, address: IpAddr) -> Self {
        let fields = REQUEST_FIELDS.iter().filter_map(|name| {
            let value = parts.headers.get(name)?.to_str().ok()?;
            Some((name.as_str().to_owned(), value.to_owned()))
        });
        Self {
            method: parts.method.to_string(),
            uri: parts.uri.path_and_query().map_or_else(
                || parts.uri.path().to_owned(),
                |path| path.as_str().to_owned(),
            ),
            fields: fields.collect(),
            caller: RemoteCaller {
                name: who.name.clone(),
                authentication: who.authentication,
                role: who.authority.node_role(),
                grants: who.authority.grants(),
                must_change_password: who.must_change_password,
                address,
            },
        }
    }

    /// A request that reads something, of the same caller.
    pub(crate) fn reading(&self, uri: String) -> Self {
        Self {
            method: Method::GET.to_string(),
            uri,
            fields: Vec::new(),
            caller: self.caller.clone(),
        }
    }

    /// The same request with this value of a query parameter, which needs no escaping, or without the parameter.
    fn with_query_parameter(&self, name: &str, value: Option<&str>) -> Self {
        let (path, query) = self.uri.split_once('?').unwrap_or((&self.uri, ""));
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        let is_other = |pair: &&str| pair.split('=').next() != Some(name);
        let mut pairs: Vec<String> = pairs.filter(is_other).map(str::to_owned).collect();
        pairs.extend(value.map(|value| format!("{name}={value}")));
        Self {
            uri: match pairs.is_empty() {
                true => path.to_owned(),
                false => format!("{path}?{}", pairs.join("&")),
            },
            ..self.clone()
        }
    }
}

impl RemoteCaller {
    fn identity(&self) -> CallerIdentity {
        CallerIdentity {
            name: self.name.clone(),
            authentication: self.authentication,
            authority: match self.role {
                Some(role) => Authority::Node(role),
                None => Authority::of_grants(self.grants.iter().cloned()),
            },
            must_change_password: self.must_change_password,
        }
    }
}

impl ApiCallHandler {
    /// Must be called within the runtime of the API.
    pub(crate) fn new(app: &Arc<ApiState>) -> Self {
        Self {
            app: Arc::downgrade(app),
            runtime: Handle::current(),
        }
    }
}

impl NodeCallHandler for ApiCallHandler {
    fn answer(&self, request: Bytes) -> NodeCallFuture {
        let (app, runtime) = (self.app.clone(), self.runtime.clone());
        Box::pin(async move {
            let app = app
                .upgrade()
                .ok_or_else(|| "its API has ended".to_owned())?;
            let answering = runtime.spawn(answer_here(app, request));
            answering.await.map_err(|error| error.to_string())?
        })
    }
}

async fn answer_here(app: Arc<ApiState>, request: Bytes) -> Result<Vec<u8>, String> {
    let (question, body) = decode(&request)?;
    match question {
        NodeQuestion::Call(call) => {
            let (answer, body) = execute_here(&app, &call, body, MAX_RESPONSE_BYTES).await?;
            encode(&answer, &body)
        }
        NodeQuestion::DevicePresence { ids } => {
            encode(&presence_here(app.devices.clone(), ids).await?, b"")
        }
        NodeQuestion::Telemetry(question) => {
            let telemetry = app.telemetry_backend.clone();
            let answer = move || node_telemetry::answer(&*telemetry, question);
            let answer = run_blocking(answer, "The telemetry cannot be read now.").await;
            answer.map_err(|problem| problem.detail)?
        }
        NodeQuestion::List(question) => {
            let (alarms, commands) = (app.alarms.clone(), app.commands.clone());
            let rows = node_lists::list_here(alarms, commands, question).await?;
            serde_json::to_vec(&rows).map_err(|error| error.to_string())
        }
        NodeQuestion::Live(question) => {
            let (telemetry, alarms) = (app.telemetry_backend.clone(), app.alarms.clone());
            app.live_sessions.answer(telemetry, alarms, question).await
        }
        NodeQuestion::File(question) => node_files::answer(&app.files, question).await,
    }
}

/// Asks another node for the piece at an offset of a part of a file.
pub(crate) async fn ask_for_piece(
    app: &ApiState,
    node: &str,
    part: FilePart,
    at: u64,
    limit: Duration,
) -> Result<Bytes, String> {
    let question = NodeQuestion::File(FileQuestion::Piece { part, at });
    ask_for_bytes(app, node, question, limit).await
}

/// Asks another node about its live telemetry and changes of alarms.
pub(crate) async fn ask_for_live_items<T: DeserializeOwned>(
    app: &ApiState,
    node: &str,
    question: LiveQuestion,
) -> Result<T, String> {
    let limit = match &question {
        LiveQuestion::Poll { .. } => POLL_TIME + ANSWER_TIME,
        LiveQuestion::Begin { .. } | LiveQuestion::End { .. } => ANSWER_TIME,
    };
    ask(app, node, NodeQuestion::Live(question), limit).await
}

/// Asks another node for rows of a list.
pub(crate) async fn ask_for_list(
    app: &ApiState,
    node: &str,
    question: ListQuestion,
) -> Result<ListRows, String> {
    ask(app, node, NodeQuestion::List(question), ANSWER_TIME).await
}

async fn ask<T: DeserializeOwned>(
    app: &ApiState,
    node: &str,
    question: NodeQuestion,
    limit: Duration,
) -> Result<T, String> {
    read_json(&ask_for_bytes(app, node, question, limit).await?)
}

async fn ask_for_bytes(
    app: &ApiState,
    node: &str,
    question: NodeQuestion,
    limit: Duration,
) -> Result<Bytes, String> {
    let cluster = app.program.cluster_backend();
    let cluster = cluster.ok_or("this node is in no cluster")?;
    let request = encode(&question, b"")?;
    let answer = tokio::time::timeout(limit, cluster.call(node, request)).await;
    answer.map_err(|_| format!("it does not answer within {} s", limit.as_secs()))?
}

/// Asks another node about its telemetry.
pub(crate) async fn ask_about_telemetry<T: DeserializeOwned>(
    app: &ApiState,
    node: &str,
    question: TelemetryQuestion,
    limit: Duration,
) -> Result<T, String> {
    ask(app, node, NodeQuestion::Telemetry(question), limit).await
}

fn read_json<T: DeserializeOwned>(json: &[u8]) -> Result<T, String> {
    serde_json::from_slice(json).map_err(|error| {
        format!("nodes of different versions do not understand each other: {error}")
    })
}

/// A line of JSON, and a body.
fn encode<T: Serialize>(head: &T, body: &[u8]) -> Result<Vec<u8>, String> {
    let mut message = serde_json::to_vec(head).map_err(|error| error.to_string())?;
    message.push(b'\n');
    message.extend_from_slice(body);
    Ok(message)
}

fn decode<T: DeserializeOwned>(message: &Bytes) -> Result<(T, Bytes), String> {
    let end = message.iter().position(|byte| *byte == b'\n');
    let end = end.ok_or("the message has no head")?;
    let head = read_json(&message[..end])?;
    Ok((head, message.slice(end + 1..)))
}

/// Executes a request that was passed on.
async fn execute_here(
    app: &Arc<ApiState>,
    call: &NodeCall,
    body: Bytes,
    max_answer_bytes: usize,
) -> Result<(CallAnswer, Bytes), String> {
    let mut request = Request::builder()
        .method(call.method.as_str())
        .uri(&call.uri)
        .header(header::HOST, "localhost");
    for (name, value) in &call.fields {
        request = request.header(name, value);
    }
    let request = request.body(Body::from(body));
    let mut request = request.map_err(|error| error.to_string())?;
    let extensions = request.extensions_mut();
    extensions.insert(PeerIp(call.caller.address));
    extensions.insert(LocalOperator::from_node(call.caller.identity()));
    let Ok(response) = (app.node_router)(app).call(request).await;
    let (parts, body) = response.into_parts();
    let body = axum::body::to_bytes(body, max_answer_bytes).await;
    let body = body.map_err(|_| format!("its answer exceeds {max_answer_bytes} bytes"))?;
    let fields = parts.headers.iter().filter_map(|(name, value)| {
        let is_passed_on = !CONNECTION_FIELDS.contains(name);
        is_passed_on.then(|| Some((name.to_string(), value.to_str().ok()?.to_owned())))?
    });
    let answer = CallAnswer {
        status: parts.status.as_u16(),
        fields: fields.collect(),
    };
    Ok((answer, body))
}

async fn execute_at(
    cluster: &dyn ClusterBackend,
    node: &str,
    call: &NodeCall,
    body: &Bytes,
) -> Result<(CallAnswer, Bytes), String> {
    let request = encode(&NodeQuestion::Call(call.clone()), body)?;
    decode(&cluster.call(node, request).await?)
}

/// The same at all nodes at the same time; this node is the first.
async fn execute_everywhere(
    app: &Arc<ApiState>,
    cluster: &dyn ClusterBackend,
    body: &Bytes,
    call_of: impl Fn(&str) -> Option<NodeCall>,
) -> NodeCallAnswers {
    let mut nodes = vec![cluster.node().to_owned()];
    nodes.extend(cluster.other_nodes());
    let calls = nodes.into_iter().filter_map(|node| {
        let call = call_of(&node)?;
        Some(async move {
            let answer = match node == cluster.node() {
                // No message between nodes contains it.
                true => execute_here(app, &call, body.clone(), usize::MAX).await,
                false => execute_at(cluster, &node, &call, body).await,
            };
            if let Err(reason) = &answer {
                tracing::debug!(node, reason, "another node of the cluster did not answer");
            }
            (node, answer)
        })
    });
    join_all(calls).await
}

fn to_response((answer, body): (CallAnswer, Bytes)) -> Result<Response, ProblemDetails> {
    let status = StatusCode::from_u16(answer.status);
    let mut fields = HeaderMap::new();
    for (name, value) in &answer.fields {
        if let (Ok(name), Ok(value)) = (
            HeaderName::from_bytes(name.as_bytes()),
            HeaderValue::from_str(value),
        ) {
            fields.append(name, value);
        }
    }
    let status = status
        .map_err(|_| ProblemDetails::unavailable("Another node has sent an invalid answer."))?;
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    *response.headers_mut() = fields;
    Ok(response)
}

/// Executes a request where it belongs, if that is not this node alone.
pub(crate) async fn execute(
    app: &Arc<ApiState>,
    place: EndpointPlace,
    endpoint: &Endpoint,
    path: &[(String, String)],
    call: NodeCall,
    body: Body,
) -> Result<CallOutcome, ProblemDetails> {
    let Some(cluster) = app.program.cluster_backend() else {
        return Ok(CallOutcome::NotExecuted(body));
    };
    let value_of = |name: &str| {
        let found = path.iter().find(|(known, _)| known == name);
        found.map_or("", |(_, value)| value.as_str())
    };
    let node = match place {
        EndpointPlace::Device(parameter) => {
            node_of_device(app, cluster, value_of(parameter)).await?
        }
        EndpointPlace::Object { path } => {
            let query = call.query(endpoint)?;
            let path = path.replace("{id}", &url_encode(value_of("id")));
            match query.text_value(NODE.name) {
                Some(node) => Some(named_node(cluster, node)?),
                None => node_of_object(app, cluster, &call.reading(path)).await?,
            }
        }
        EndpointPlace::Alarm => {
            let query = call.query(endpoint)?;
            let named = query.text_value(NODE.name);
            let named = named.map(|node| named_node(cluster, node)).transpose()?;
            node_of_alarm(app, cluster, value_of("id"), named, &call).await?
        }
        EndpointPlace::ChosenByHandler => None,
        EndpointPlace::File(parameter) => node_of_file(app, cluster, value_of(parameter)).await?,
        EndpointPlace::LocalFile(parameter) => {
            let id = value_of(parameter);
            match node_of_file(app, cluster, id).await? {
                Some(node) => return Err(misdirected_upload(id, &node)),
                None => None,
            }
        }
        EndpointPlace::FirmwareCampaign(parameter) => {
            let query = call.query(endpoint)?;
            match query.text_value(NODE.name) {
                Some(node) => Some(named_node(cluster, node)?),
                None => node_of_campaign(app, value_of(parameter))?,
            }
        }
        EndpointPlace::AllNodes(answer) => {
            let body = whole_body(body, "all nodes").await?;
            let merged = merge_all(app, cluster, answer, endpoint, &call, body).await?;
            return Ok(CallOutcome::Answered(merged));
        }
    };
    let Some(node) = node.filter(|node| node != cluster.node()) else {
        return Ok(CallOutcome::NotExecuted(body));
    };
    let body = whole_body(body, &format!("the node {node:?}")).await?;
    let answer = execute_at(cluster, &node, &call, &body).await;
    let answer = answer.map_err(|reason| not_confirmed(place, &node, &reason))?;
    Ok(CallOutcome::AnsweredBy(node, to_response(answer)?))
}

fn not_confirmed(place: EndpointPlace, node: &str, reason: &str) -> ProblemDetails {
    let consequence = match place {
        EndpointPlace::FirmwareCampaign(_) => {
            " A campaign continues when its node can be reached again; devices that it has notified meanwhile install their packages."
        }
        _ => "",
    };
    ProblemDetails::unavailable(format!(
        "The node {node:?}, which has the object, has not confirmed the request, which it may have executed: {reason}.{consequence}"
    ))
}

/// Executes a request without a body at another node.
pub(crate) async fn execute_at_node(
    app: &ApiState,
    node: &str,
    call: &NodeCall,
) -> Result<Response, ProblemDetails> {
    let cluster = app.program.cluster_backend();
    let cluster = cluster
        .ok_or_else(|| ProblemDetails::unavailable("This node is in no cluster any more."))?;
    let answer = execute_at(cluster, node, call, &Bytes::new()).await;
    to_response(
        answer.map_err(|reason| not_confirmed(EndpointPlace::ChosenByHandler, node, &reason))?,
    )
}

/// The problem of a request that continues an upload at another node.
fn misdirected_upload(id: &str, node: &str) -> ProblemDetails {
    ProblemDetails::new(
        StatusCode::MISDIRECTED_REQUEST,
        format!(
            "The upload {id:?} is at the node {node:?}, where it was begun; continue it there, or begin a new one."
        ),
    )
}

/// The body of a request that is passed on to other nodes.
async fn whole_body(body: Body, recipient: &str) -> Result<Bytes, ProblemDetails> {
    let body = axum::body::to_bytes(body, MAX_BODY_BYTES).await;
    body.map_err(|_| {
        let detail = format!(
            "The request body is incomplete, or larger than {MAX_BODY_BYTES} bytes. That is the limit for requests that are passed on to {recipient}."
        );
        ProblemDetails::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
    })
}

impl NodeCall {
    /// The query parameters of the request.
    fn query(&self, endpoint: &Endpoint) -> Result<QueryParameters, ProblemDetails> {
        let uri = self.uri.parse::<Uri>();
        let uri = uri.map_err(|_| ProblemDetails::bad_request("The path cannot be read."))?;
        QueryParameters::read(&uri, &endpoint.parameters)
    }
}

pub(crate) fn named_node(
    cluster: &dyn ClusterBackend,
    node: &str,
) -> Result<String, ProblemDetails> {
    let is_known =
        node == cluster.node() || cluster.other_nodes().iter().any(|known| known == node);
    match is_known {
        true => Ok(node.to_owned()),
        false => Err(ProblemDetails::invalid_parameter(
            NODE.name,
            format!("node is {node:?}; expected a member of the cluster."),
        )),
    }
}

/// Asks all nodes when devices were there.
pub(crate) async fn presences(
    app: &Arc<ApiState>,
    cluster: &dyn ClusterBackend,
    ids: Vec<String>,
) -> Result<ClusterPresences, ProblemDetails> {
    let question = NodeQuestion::DevicePresence { ids: ids.clone() };
    let request = encode(&question, b"").map_err(ProblemDetails::unavailable)?;
    let others = cluster.other_nodes();
    let asked = others.iter().map(|node| {
        let request = request.clone();
        async move {
            let answer = cluster.call(node, request).await?;
            let (presences, _) = decode::<Vec<Option<NodePresence>>>(&answer)?;
            Ok::<_, String>(presences)
        }
    });
    let (own, answers) = tokio::join!(presence_here(app.devices.clone(), ids), join_all(asked));
    let own = own.map_err(ProblemDetails::unavailable)?;
    let mut nodes = BTreeMap::from([(cluster.node().to_owned(), own)]);
    let mut missing_nodes = Vec::new();
    for (node, answer) in others.into_iter().zip(answers) {
        match answer {
            Ok(presences) => {
                nodes.insert(node, presences);
            }
            Err(_) => missing_nodes.push(node),
        }
    }
    Ok(ClusterPresences {
        nodes,
        missing_nodes,
    })
}

/// The node at which a device is online, or was last among those that answer. `None`: it was at none.
async fn node_of_device(
    app: &Arc<ApiState>,
    cluster: &dyn ClusterBackend,
    id: &str,
) -> Result<Option<String>, ProblemDetails> {
    let own = presence_here(app.devices.clone(), vec![id.to_owned()]).await;
    let own = own.map_err(ProblemDetails::unavailable)?;
    // Without a record here, no node has the device.
    if own
        .first()
        .is_some_and(|own| own.is_none_or(|own| own.is_online))
    {
        return Ok(None);
    }
    let presences = presences(app, cluster, vec![id.to_owned()]).await?;
    Ok(presences.latest(0).map(|(node, _)| node.to_owned()))
}

/// The other node that has a file or transfer. Ids of files are random, so that nodes have different ones. `None`: this node has
/// it, or no node has.
///
/// # Errors
/// If no node that answers has it, and a node does not answer.
pub(crate) async fn node_of_file(
    app: &ApiState,
    cluster: &dyn ClusterBackend,
    id: &str,
) -> Result<Option<String>, ProblemDetails> {
    let is_here = node_files::has_file(&app.files, id).await;
    if is_here.map_err(ProblemDetails::unavailable)? {
        return Ok(None);
    }
    let others = cluster.other_nodes().into_iter();
    let mut asked: FuturesUnordered<_> = others
        .map(|node| async move {
            let question = NodeQuestion::File(FileQuestion::Presence { id: id.to_owned() });
            let answer = ask::<bool>(app, &node, question, ANSWER_TIME).await;
            (node, answer)
        })
        .collect();
    let mut missing = Vec::new();
    // The others need not answer when one has it.
    while let Some((node, answer)) = asked.next().await {
        match answer {
            Ok(true) => return Ok(Some(node)),
            Ok(false) => {}
            Err(reason) => {
                tracing::debug!(node, reason, "another node of the cluster did not answer");
                missing.push(node);
            }
        }
    }
    missing.sort();
    match missing.is_empty() {
        true => Ok(None),
        false => Err(not_found_where_answered(&missing)),
    }
}

/// The node that has an alarm. `None`: this one, which has those of all devices. A node that is named is asked if it can be
/// reached, since two nodes may have an alarm about themselves with the same number.
async fn node_of_alarm(
    app: &Arc<ApiState>,
    cluster: &dyn ClusterBackend,
    id: &str,
    named: Option<String>,
    call: &NodeCall,
) -> Result<Option<String>, ProblemDetails> {
    let Ok(number) = id.parse() else {
        return Ok(None);
    };
    let alarms = app.alarms.clone();
    let read = run_blocking(move || alarms.get(number), "The alarms cannot be read now.");
    let own = read
        .await?
        .map_err(|_| ProblemDetails::unavailable("The alarms cannot be read now."))?;
    match (own, named) {
        (Some(own), Some(node)) if own.is_of_node() => Ok(Some(node)),
        (Some(_), _) => Ok(None),
        (None, Some(node)) => Ok(Some(node)),
        (None, None) => {
            let reading = call.reading(format!("/api/v1/alarms/{number}"));
            node_of_object(app, cluster, &reading).await
        }
    }
}

/// The node of a firmware campaign. `None`: no node that this one has met has it.
fn node_of_campaign(app: &ApiState, id: &str) -> Result<Option<String>, ProblemDetails> {
    let nodes = id.parse().map(|id| app.firmware.campaign_nodes(id));
    match &nodes.unwrap_or_default()[..] {
        [] => Ok(None),
        [node] => Ok(Some(node.clone())),
        several => Err(several_objects(several)),
    }
}

fn several_objects(nodes: &[String]) -> ProblemDetails {
    ProblemDetails::conflict(format!(
        "Several nodes have an object with this number: {}. Name one of them with the parameter node.",
        nodes.join(", ")
    ))
}

/// The node that has an object, which `reading` reads. `None`: no node has it.
///
/// # Errors
/// If several nodes have one with this number, or no node that answers has it and a node does not answer.
async fn node_of_object(
    app: &Arc<ApiState>,
    cluster: &dyn ClusterBackend,
    reading: &NodeCall,
) -> Result<Option<String>, ProblemDetails> {
    let (mut holders, mut missing) = (Vec::new(), Vec::new());
    let mut bodies = Vec::new();
    let call_of = |_: &str| Some(reading.clone());
    for (node, answer) in execute_everywhere(app, cluster, &Bytes::new(), call_of).await {
        match answer {
            Ok((answer, body)) if answer.status == 200 => {
                holders.push(node);
                bodies.push(body);
            }
            Ok(_) => {}
            Err(_) => missing.push(node),
        }
    }
    match &holders[..] {
        [holder] => Ok(Some(holder.clone())),
        [] if missing.is_empty() => Ok(None),
        [] => Err(not_found_where_answered(&missing)),
        several if let Some(holder) = holder_of_moving_command(several, &bodies) => {
            Ok(Some(holder))
        }
        several => Err(several_objects(several)),
    }
}

/// A command that moves from one node to another is at both for a moment. Returns the node that has done more with it, or
/// `None` if the nodes have different objects.
fn holder_of_moving_command(holders: &[String], bodies: &[Bytes]) -> Option<String> {
    let bodies: Option<Vec<Value>> = bodies
        .iter()
        .map(|body| serde_json::from_slice(body).ok())
        .collect();
    let bodies = bodies?;
    let identity = |body: &Value| {
        Some((
            body.get("device")?.clone(),
            body.get("created_at_ms")?.clone(),
        ))
    };
    let first = identity(bodies.first()?)?;
    let is_same = bodies
        .iter()
        .all(|body| identity(body).as_ref() == Some(&first));
    let with_holders = bodies.iter().zip(holders);
    let latest = with_holders.max_by_key(|(body, _)| body["attempts"].as_u64());
    latest.filter(|_| is_same).map(|(_, holder)| holder.clone())
}

/// The answers of all nodes as one.
async fn merge_all(
    app: &Arc<ApiState>,
    cluster: &dyn ClusterBackend,
    merged: MergedAnswer,
    endpoint: &Endpoint,
    call: &NodeCall,
    body: Bytes,
) -> Result<Response, ProblemDetails> {
    let merged = MergedCall::new(merged, call.query(endpoint)?)?;
    let call_of = |node: &str| {
        let mut call = match merged.pages() {
            Some(pages) => call.with_query_parameter(AFTER.name, pages.cursor_of(node)?.as_deref()),
            None => call.clone(),
        };
        if node != cluster.node() {
            if !merged.needs_other_nodes() {
                return None;
            }
            if merged.is_about_nodes() {
                call = call.with_query_parameter("product", Some(NODE_PRODUCT));
            }
        }
        Some(call)
    };
    let all = execute_everywhere(app, cluster, &body, call_of).await;
    if merged.is_of_one_node() {
        return answer_of_owner(all);
    }
    let mut answers = Vec::new();
    let mut missing_nodes = Vec::new();
    let mut executed = None;
    let is_change = merged.is_change();
    for (node, answer) in all {
        let is_own = node == cluster.node();
        match answer {
            Ok((answer, body)) if answer.status == 200 && !is_change => {
                match serde_json::from_slice::<Value>(&body) {
                    Ok(body) if merged.is_form_of(&body) => answers.push(NodeAnswer { node, body }),
                    Ok(_) | Err(_) => missing_nodes.push(node),
                }
            }
            Ok(answer) if is_own && !(200..300).contains(&answer.0.status) => {
                // The request is wrong, or not permitted.
                return to_response(answer);
            }
            Ok(answer) if is_own => executed = Some(answer),
            Ok((answer, _)) if is_change && (200..300).contains(&answer.status) => {}
            Err(reason) if is_own => return Err(ProblemDetails::unavailable(reason)),
            Ok(_) | Err(_) => missing_nodes.push(node),
        }
    }
    if let Some(executed) = executed {
        return match missing_nodes.is_empty() {
            true => to_response(executed),
            false => Err(ProblemDetails::unavailable(format!(
                "Nodes have not confirmed the request: {}. Repeat it when they can be reached.",
                missing_nodes.join(", ")
            ))),
        };
    }
    merged.respond(answers, missing_nodes)
}

/// The answer of the node that has an object; the others do not find it.
fn answer_of_owner(all: NodeCallAnswers) -> Result<Response, ProblemDetails> {
    let mut missing = Vec::new();
    let mut not_found = None;
    for (node, answer) in all {
        match answer {
            Ok(answer) if answer.0.status == 404 => not_found = not_found.or(Some(answer)),
            Ok(answer) => return to_response(answer),
            Err(_) => missing.push(node),
        }
    }
    match not_found {
        Some(answer) if missing.is_empty() => to_response(answer),
        _ => Err(not_found_where_answered(&missing)),
    }
}

/// The nodes that answered do not have the object; a missing one may have it.
fn not_found_where_answered(missing: &[String]) -> ProblemDetails {
    ProblemDetails::unavailable(format!(
        "None of the nodes that answered has this object. These nodes did not answer: {}.",
        missing.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(uri: &str) -> NodeCall {
        NodeCall {
            method: "GET".to_owned(),
            uri: uri.to_owned(),
            fields: Vec::new(),
            caller: RemoteCaller {
                name: "ann".to_owned(),
                authentication: AuthenticationMethod::Token,
                role: None,
                grants: Vec::new(),
                must_change_password: false,
                address: IpAddr::from([127, 0, 0, 1]),
            },
        }
    }

    #[test]
    fn the_cursor_of_a_node_replaces_that_of_the_request() {
        for (uri, cursor, expected) in [
            ("/a", None, "/a"),
            ("/a", Some("c"), "/a?after=c"),
            ("/a?limit=1&after=b", Some("c"), "/a?limit=1&after=c"),
            ("/a?after=b&limit=1", None, "/a?limit=1"),
            ("/a?after=b", None, "/a"),
        ] {
            assert_eq!(
                call(uri).with_query_parameter("after", cursor).uri,
                expected,
                "{uri}"
            );
        }
    }

    #[test]
    fn a_command_that_moves_is_at_one_node() {
        let body = |device: &str, created_at_ms: u64, attempts: u32| {
            let body = serde_json::json!({"device": device, "created_at_ms": created_at_ms, "attempts": attempts});
            Bytes::from(body.to_string())
        };
        let holders = ["a".to_owned(), "b".to_owned()];
        let of = |one, other| holder_of_moving_command(&holders, &[one, other]);
        assert_eq!(of(body("d", 1, 1), body("d", 1, 0)).as_deref(), Some("a"));
        assert_eq!(of(body("d", 1, 0), body("d", 1, 1)).as_deref(), Some("b"));
        assert_eq!(of(body("d", 1, 0), body("e", 1, 0)), None);
        assert_eq!(of(body("d", 1, 0), body("d", 2, 0)), None);
        // Alarms have no such fields.
        assert_eq!(of(Bytes::from("{}"), Bytes::from("{}")), None);
    }

    #[test]
    fn messages_are_a_line_and_a_body() {
        let question = NodeQuestion::Call(call("/a"));
        let message = Bytes::from(encode(&question, b"line\nline").unwrap());
        let (read, body) = decode::<NodeQuestion>(&message).unwrap();
        assert!(matches!(read, NodeQuestion::Call(call) if call.uri == "/a"));
        assert_eq!(body, "line\nline");
        let unknown = decode::<NodeQuestion>(&Bytes::from_static(b"{\"paint\": {}}\n"));
        assert!(unknown.unwrap_err().contains("different versions"));
        assert!(decode::<NodeQuestion>(&Bytes::from_static(b"{}")).is_err());
    }
}
