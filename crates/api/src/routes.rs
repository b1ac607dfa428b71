//! The routes: which path answers with what. `docs/http-api.md` tells users the same.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{DefaultBodyLimit, Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use broker::info::{ClientInfo, ListenerInfo, Query, SubscriptionInfo, TopicInfo};
use serde::{Deserialize, Serialize};

use crate::gate::{self, Gate};
use crate::node::{Node, Program};
use crate::parameters::{self, Cursor, ListRequest};
use crate::problem::Problem;
use crate::{exposition, landing, process};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What every handler can ask.
struct App<N> {
    node: N,
    program: Arc<dyn Program>,
    started: SystemTime,
}

type Shared<N> = State<Arc<App<N>>>;
type Answer<T> = Result<Json<T>, Problem>;

/// One page of a list.
#[derive(Serialize)]
struct Page<T> {
    data: Vec<T>,
    /// To be given as `after` for the next page; `null` on the last.
    next: Option<String>,
}

pub(crate) struct Settings {
    pub(crate) gate: Gate,
    pub(crate) max_body_bytes: usize,
    pub(crate) request_timeout: Duration,
}

pub(crate) fn router<N: Node>(node: N, program: Arc<dyn Program>, settings: &Settings) -> Router {
    let app = Arc::new(App {
        node,
        program,
        started: SystemTime::now(),
    });
    let request_timeout = settings.request_timeout;
    Router::new()
        .route("/", get(index::<N>))
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readyz::<N>))
        .route("/metrics", get(metrics::<N>))
        .route("/api/v1/node", get(node_info::<N>))
        .route("/api/v1/listeners", get(listeners::<N>))
        .route("/api/v1/clients", get(clients::<N>))
        .route(
            "/api/v1/clients/{client_id}",
            get(client::<N>).delete(kick::<N>),
        )
        .route("/api/v1/sessions", get(sessions::<N>))
        .route(
            "/api/v1/sessions/{client_id}",
            get(session::<N>).delete(discard_session::<N>),
        )
        .route("/api/v1/subscriptions", get(subscriptions::<N>))
        .route("/api/v1/topics", get(topics::<N>))
        .route(
            "/api/v1/log-level",
            get(log_level::<N>).put(set_log_level::<N>),
        )
        .fallback(async |uri: Uri| {
            Problem::not_found(format!(
                "There is nothing at {}; / says what there is.",
                uri.path()
            ))
        })
        .method_not_allowed_fallback(async || {
            Problem::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "The path is right, the method is not; see the Allow field.",
            )
        })
        .with_state(app)
        .layer(DefaultBodyLimit::max(settings.max_body_bytes))
        .layer(middleware::from_fn(move |request, next| {
            bound_time(request_timeout, request, next)
        }))
        .layer(middleware::from_fn_with_state(settings.gate, gate::check))
        .layer(middleware::map_response(add_common_fields))
}

async fn bound_time(limit: Duration, request: Request, next: Next) -> Response {
    tokio::time::timeout(limit, next.run(request))
        .await
        .unwrap_or_else(|_| {
            let detail = format!("The node did not answer within {} s.", limit.as_secs());
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).into_response()
        })
}

async fn add_common_fields(mut response: Response) -> Response {
    let fields = response.headers_mut();
    fields.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    fields.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    fields.insert(
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(
            "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
        ),
    );
    response
}

async fn index<N: Node>(State(app): Shared<N>) -> impl IntoResponse {
    let page = landing::render(VERSION, app.node.not_ready(), &app.node.listeners());
    ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], page)
}

#[derive(Serialize)]
struct Readiness {
    ready: bool,
    reason: Option<&'static str>,
}

async fn readyz<N: Node>(State(app): Shared<N>) -> impl IntoResponse {
    let not_ready = app.node.not_ready();
    let status = if not_ready.is_some() {
        StatusCode::SERVICE_UNAVAILABLE
    } else {
        StatusCode::OK
    };
    let readiness = Readiness {
        ready: not_ready.is_none(),
        reason: not_ready.map(crate::node::reason),
    };
    (status, Json(readiness))
}

async fn metrics<N: Node>(State(app): Shared<N>) -> impl IntoResponse {
    let mut text = String::with_capacity(16 * 1024);
    exposition::write(&app.node.metrics().await, "tidegate_", &mut text);
    exposition::write(&app.program.metrics(), "tidegate_", &mut text);
    // Not on a runtime thread: before Linux 6.2 the open files are counted one by one.
    let process = tokio::task::spawn_blocking(process::families)
        .await
        .unwrap_or_default();
    exposition::write(&process, "", &mut text);
    ([(header::CONTENT_TYPE, exposition::CONTENT_TYPE)], text)
}

#[derive(Serialize)]
struct NodeInfo {
    version: &'static str,
    pid: u32,
    started_at_ms: u64,
    uptime_s: u64,
    ready: bool,
    /// Over all listeners.
    connections: u64,
}

async fn node_info<N: Node>(State(app): Shared<N>, uri: Uri) -> Answer<NodeInfo> {
    parameters::refuse_any(&uri)?;
    let started = app.started.duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(Json(NodeInfo {
        version: VERSION,
        pid: std::process::id(),
        started_at_ms: u64::try_from(started.as_millis()).unwrap_or(u64::MAX),
        uptime_s: app.started.elapsed().unwrap_or_default().as_secs(),
        ready: app.node.not_ready().is_none(),
        connections: app
            .node
            .listeners()
            .iter()
            .map(|listener| listener.connections)
            .sum(),
    }))
}

/// All of them on one page: they are few.
async fn listeners<N: Node>(State(app): Shared<N>, uri: Uri) -> Answer<Page<ListenerInfo>> {
    parameters::refuse_any(&uri)?;
    Ok(Json(Page {
        data: app.node.listeners(),
        next: None,
    }))
}

async fn clients<N: Node>(State(app): Shared<N>, uri: Uri) -> Answer<Page<ClientInfo>> {
    let mut request = ListRequest::read(&uri, parameters::OF_CLIENTS)?;
    request.query.connected = Some(true);
    client_page(&app.node, request).await
}

async fn sessions<N: Node>(State(app): Shared<N>, uri: Uri) -> Answer<Page<ClientInfo>> {
    let request = ListRequest::read(&uri, parameters::OF_SESSIONS)?;
    client_page(&app.node, request).await
}

async fn client_page<N: Node>(node: &N, request: ListRequest) -> Answer<Page<ClientInfo>> {
    let query = Query {
        after: request.after.map(|cursor| cursor.first),
        limit: request.limit + 1,
        ..request.query
    };
    let rows = node.clients(query).await;
    Ok(page(rows, request.limit, |row| {
        Cursor::new(&row.client_id, "")
    }))
}

async fn topics<N: Node>(State(app): Shared<N>, uri: Uri) -> Answer<Page<TopicInfo>> {
    let request = ListRequest::read(&uri, parameters::OF_TOPICS)?;
    let query = Query {
        after: request.after.map(|cursor| cursor.first),
        limit: request.limit + 1,
        ..request.query
    };
    let rows = app.node.topics(query).await;
    Ok(page(rows, request.limit, |row| {
        Cursor::new(&row.topic_filter, "")
    }))
}

async fn subscriptions<N: Node>(State(app): Shared<N>, uri: Uri) -> Answer<Page<SubscriptionInfo>> {
    let request = ListRequest::read(&uri, parameters::OF_SUBSCRIPTIONS)?;
    let wanted = request.limit + 1;
    let mut rows = Vec::new();
    // A page may end within a client's subscriptions, but the node pages by client: the rest of that client's
    // come first.
    if let Some(Cursor { first, second }) = &request.after
        && request
            .query
            .client_id
            .as_ref()
            .is_none_or(|only| only == first)
    {
        let query = Query {
            client_id: Some(first.clone()),
            limit: usize::MAX,
            ..request.query.clone()
        };
        rows = app.node.subscriptions(query).await;
        rows.retain(|row| row.topic_filter > *second);
        rows.truncate(wanted);
    }
    if rows.len() < wanted {
        let query = Query {
            after: request.after.map(|cursor| cursor.first),
            limit: wanted - rows.len(),
            ..request.query
        };
        rows.extend(app.node.subscriptions(query).await);
    }
    Ok(page(rows, request.limit, |row| {
        Cursor::new(&row.client_id, &row.topic_filter)
    }))
}

/// Cuts a page off `rows`, which hold one more than `limit` if there is a next page.
fn page<T>(mut rows: Vec<T>, limit: usize, cursor: impl Fn(&T) -> Cursor) -> Json<Page<T>> {
    let has_next = rows.len() > limit;
    rows.truncate(limit);
    let next = rows
        .last()
        .filter(|_| has_next)
        .map(|row| cursor(row).encode());
    Json(Page { data: rows, next })
}

type ClientId = Result<Path<String>, PathRejection>;

/// The client id of a path, percent-decoded.
fn client_id(path: ClientId, uri: &Uri) -> Result<String, Problem> {
    parameters::refuse_any(uri)?;
    match path {
        Ok(Path(client_id)) => Ok(client_id),
        Err(rejection) => Err(Problem::bad_request(format!(
            "The client id in the path: {}",
            rejection.body_text()
        ))),
    }
}

async fn connected_client<N: Node>(node: &N, client_id: &str) -> Result<ClientInfo, Problem> {
    let known = node.client(client_id).await;
    let has_session = known.is_some();
    known.filter(|client| client.connected).ok_or_else(|| {
        let hint = if has_session {
            " Its session is under /api/v1/sessions."
        } else {
            ""
        };
        Problem::not_found(format!("No client {client_id:?} is connected.{hint}"))
    })
}

async fn client<N: Node>(State(app): Shared<N>, path: ClientId, uri: Uri) -> Answer<ClientInfo> {
    let client_id = client_id(path, &uri)?;
    connected_client(&app.node, &client_id).await.map(Json)
}

async fn kick<N: Node>(
    State(app): Shared<N>,
    path: ClientId,
    uri: Uri,
) -> Result<StatusCode, Problem> {
    let client_id = client_id(path, &uri)?;
    connected_client(&app.node, &client_id).await?;
    if !app.node.kick(&client_id).await {
        return Err(Problem::not_found(format!(
            "Client {client_id:?} has just left."
        )));
    }
    tracing::info!(client_id, "client disconnected over the HTTP API");
    Ok(StatusCode::NO_CONTENT)
}

fn no_session(client_id: &str) -> Problem {
    Problem::not_found(format!("There is no session of a client {client_id:?}."))
}

async fn session<N: Node>(State(app): Shared<N>, path: ClientId, uri: Uri) -> Answer<ClientInfo> {
    let client_id = client_id(path, &uri)?;
    app.node
        .client(&client_id)
        .await
        .map(Json)
        .ok_or_else(|| no_session(&client_id))
}

async fn discard_session<N: Node>(
    State(app): Shared<N>,
    path: ClientId,
    uri: Uri,
) -> Result<StatusCode, Problem> {
    let client_id = client_id(path, &uri)?;
    let session = app
        .node
        .client(&client_id)
        .await
        .ok_or_else(|| no_session(&client_id))?;
    if session.connected {
        return Err(Problem::new(
            StatusCode::CONFLICT,
            format!(
                "Client {client_id:?} is connected. DELETE it under /api/v1/clients to end both connection and session."
            ),
        ));
    }
    if !app.node.discard_session(&client_id).await {
        return Err(no_session(&client_id));
    }
    tracing::info!(client_id, "session discarded over the HTTP API");
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LogLevel {
    level: String,
}

async fn log_level<N: Node>(State(app): Shared<N>, uri: Uri) -> Answer<LogLevel> {
    parameters::refuse_any(&uri)?;
    Ok(Json(LogLevel {
        level: app.program.log_level(),
    }))
}

async fn set_log_level<N: Node>(
    State(app): Shared<N>,
    uri: Uri,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Answer<LogLevel> {
    parameters::refuse_any(&uri)?;
    let LogLevel { level } = json_body(&headers, body)?;
    app.program.set_log_level(&level).map_err(|expected| {
        Problem::parameter("level", format!("level is {level:?}: {expected}"))
    })?;
    let level = app.program.log_level();
    tracing::info!(level, "log level changed over the HTTP API");
    Ok(Json(LogLevel { level }))
}

/// A body must say that it is JSON: a form of a foreign web page cannot.
fn json_body<T: for<'de> Deserialize<'de>>(
    headers: &HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<T, Problem> {
    let media_type = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let media_type = media_type.split(';').next().unwrap_or_default().trim();
    if !media_type.eq_ignore_ascii_case("application/json") {
        return Err(Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "The body must be JSON, with Content-Type: application/json.",
        ));
    }
    let body = body.map_err(|rejection| Problem::new(rejection.status(), rejection.body_text()))?;
    serde_json::from_slice(&body).map_err(|error| {
        Problem::bad_request(format!("The body is not what was expected: {error}."))
    })
}
