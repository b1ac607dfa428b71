//! Messages between nodes of a cluster about requests of the API: requests that are passed on, and questions of handlers.
//!
//! What is passed on is the request itself with the caller that this node has authenticated. The other node checks the
//! permissions of the caller, executes the request and writes the audit log.
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
use futures_util::future::join_all;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tower_service::Service as _;

use crate::access::{
    AuthenticationMethod, Authority, CallerIdentity, LocalOperator, NamespaceGrant, Role,
};
use crate::blocking::run_blocking;
use crate::cluster_backend::{ClusterBackend, NodeCallFuture, NodeCallHandler};
use crate::device_presences::{ClusterPresences, NodePresence, presence_here};
use crate::endpoint::Endpoint;
use crate::live_sessions::POLL_TIME;
use crate::node_files::{self, FilePart, FileQuestion};
use crate::node_lists::{self, ListQuestion, ListRows};
use crate::node_live::LiveQuestion;
use crate::node_telemetry::{self, TelemetryQuestion};
use crate::peer_ip::PeerIp;
use crate::problem_details::ProblemDetails;
use crate::query_parameters::QueryParameters;
use crate::state::ApiState;

/// Time in which a node answers what it can answer at once. A request of the API, which may wait for several answers, has
/// 10 s by default.
pub(crate) const ANSWER_TIME: Duration = Duration::from_secs(5);
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
pub(crate) struct CallAnswer {
    pub(crate) status: u16,
    fields: Vec<(String, String)>,
}

/// Answers calls of other nodes with the API of this node.
pub(crate) struct ApiCallHandler {
    app: Weak<ApiState>,
    /// That of the API. Messages between nodes do not wait for its work.
    runtime: Handle,
}

/// The response of each node, or why there is none.
pub(crate) type NodeCallAnswers = Vec<(String, Result<(CallAnswer, Bytes), String>)>;

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
    pub(crate) fn with_query_parameter(&self, name: &str, value: Option<&str>) -> Self {
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

    /// The query parameters of the request.
    pub(crate) fn query(&self, endpoint: &Endpoint) -> Result<QueryParameters, ProblemDetails> {
        let uri = self.uri.parse::<Uri>();
        let uri = uri.map_err(|_| ProblemDetails::bad_request("The path cannot be read."))?;
        QueryParameters::read(&uri, &endpoint.parameters)
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

/// Asks another node whether it has a file or transfer.
pub(crate) async fn ask_for_file(app: &ApiState, node: &str, id: &str) -> Result<bool, String> {
    let question = NodeQuestion::File(FileQuestion::Presence { id: id.to_owned() });
    ask(app, node, question, ANSWER_TIME).await
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

pub(crate) async fn execute_at(
    cluster: &dyn ClusterBackend,
    node: &str,
    call: &NodeCall,
    body: &Bytes,
) -> Result<(CallAnswer, Bytes), String> {
    let request = encode(&NodeQuestion::Call(call.clone()), body)?;
    decode(&cluster.call(node, request).await?)
}

/// The same at all nodes at the same time; this node is the first.
pub(crate) async fn execute_everywhere(
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

pub(crate) fn to_response((answer, body): (CallAnswer, Bytes)) -> Result<Response, ProblemDetails> {
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
