//! Connectors, sinks and sources beyond their objects: types, connection tests, states, pushes and
//! dead letters.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::access::{EndpointAccess, Role};
use crate::audit;
use crate::call::{self, ApiCall, ListPage};
use crate::connector_backend::SourcePushError;
use crate::endpoint::{Endpoint, get, post};
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::query_parameters::PageCursor;

/// A connector type.
#[derive(Serialize, JsonSchema)]
#[allow(dead_code, reason = "it only describes what the connectors answer")]
struct ConnectorType {
    r#type: String,
    /// Title for humans.
    title: String,
    /// JSON schema of the settings of a connector.
    connector_schema: Map<String, Value>,
    /// JSON schema of the settings of a sink.
    sink_schema: Map<String, Value>,
    /// JSON schema of the settings of a source; `null`: the type has no sources.
    source_schema: Option<Map<String, Value>>,
    /// Default batch sizes of its sinks.
    batch: Value,
}

/// State of a connector.
#[derive(Serialize, JsonSchema)]
#[allow(dead_code, reason = "it only describes what the connectors answer")]
struct ConnectorStatus {
    name: String,
    r#type: String,
    description: String,
    /// Sinks that use it.
    sinks: Vec<String>,
    /// Whether one of these sinks cannot write at the moment.
    is_failing: bool,
    /// Whether it is declared in the configuration and cannot be changed over the API.
    is_declared: bool,
}

/// State of a sink since the node started.
#[derive(Serialize, JsonSchema)]
#[allow(dead_code, reason = "it only describes what the connectors answer")]
struct SinkStatus {
    name: String,
    connector: String,
    /// Type of its connector, if it has one.
    r#type: Option<String>,
    /// `running`, `failing`, `starting`, `disabled`, `no_connector` or `invalid`.
    state: String,
    /// Reason why it does not run.
    problem: Option<String>,
    /// Time since which no batch could be written; `null` while writes succeed.
    failing_since_ms: Option<u64>,
    /// `closed`: it writes; `open`: it pauses before the next attempt; `half_open`: one batch tests
    /// whether the system has recovered.
    circuit: String,
    /// Number of consecutive failures of the system as a whole.
    failures: u32,
    last_error: Option<String>,
    last_error_at_ms: Option<u64>,
    last_success_at_ms: Option<u64>,
    /// Counters by name: queued, sent, retried, failed and others.
    metrics: Map<String, Value>,
    /// Whether it is declared in the configuration and cannot be changed over the API.
    is_declared: bool,
}

/// State of a source since the node started.
#[derive(Serialize, JsonSchema)]
#[allow(dead_code, reason = "it only describes what the connectors answer")]
struct SourceStatus {
    name: String,
    connector: String,
    /// Type of its connector, if it has one.
    r#type: Option<String>,
    /// `running`, `disabled`, `no_connector` or `invalid`.
    state: String,
    /// Number of messages.
    received: u64,
    /// Number of consecutive failures.
    failures: u64,
    last_error: Option<String>,
    last_error_at_ms: Option<u64>,
    /// Whether it is declared in the configuration and cannot be changed over the API.
    is_declared: bool,
}

/// A row that could not be written.
#[derive(Serialize, JsonSchema)]
#[allow(dead_code, reason = "it only describes what the connectors answer")]
struct DeadLetter {
    id: u64,
    at_ms: u64,
    error: String,
    attempts: u32,
    row: Value,
}

/// Result of a connection test.
#[derive(Serialize, JsonSchema)]
struct ConnectionTestOutcome {
    is_reached: bool,
    /// Identity of the system, or reason of the failure.
    detail: String,
}

/// Selects dead letters of a sink.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct DeadLetterSelection {
    /// Ids of dead letters; default: all.
    #[schemars(length(max = 10_000))]
    ids: Option<Vec<u64>>,
}

/// Number of dead letters processed.
#[derive(Serialize, JsonSchema)]
struct DeadLetterCount {
    count: usize,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    let of_sink = |endpoint: Endpoint| {
        endpoint
            .tag("connectors")
            .path_parameter("name", "The sink's name, percent-encoded.")
    };
    vec![
        get("/api/v1/connector-types", "listConnectorTypes", types)
            .role(Role::Viewer)
            .tag("connectors")
            .summary("List connector types")
            .description("Includes the schemas of the settings of connectors, sinks and sources of each type.")
            .unpaged::<ConnectorType>(),
        get(
            "/api/v1/connector-status",
            "listConnectorStatus",
            connectors,
        )
        .role(Role::Viewer)
        .tag("connectors")
        .summary("List connector states")
        .paged::<ConnectorStatus>(),
        post(
            "/api/v1/connectors/test",
            "testConnectorSettings",
            test_settings,
        )
        .role(Role::Admin)
        .tag("connectors")
        .summary("Test a connector before storing it")
        .description("The body is a connector as it would be created; nothing is stored.")
        .request_body::<Map<String, Value>>()
        .response::<ConnectionTestOutcome>(200, "The result of the test."),
        post("/api/v1/connectors/{name}/test", "testConnector", test)
            .role(Role::Operator)
            .tag("connectors")
            .summary("Test a connector")
            .description("Connects to the system with the connector's credentials.")
            .path_parameter("name", "The connector's name, percent-encoded.")
            .response::<ConnectionTestOutcome>(200, "The result of the test."),
        get("/api/v1/sink-status", "listSinkStatus", sinks)
            .role(Role::Viewer)
            .tag("connectors")
            .summary("List sink states")
            .paged::<SinkStatus>(),
        get("/api/v1/source-status", "listSourceStatus", sources)
            .role(Role::Viewer)
            .tag("connectors")
            .summary("List source states")
            .paged::<SourceStatus>(),
        post("/api/v1/sources/{name}/push", "pushToSource", push)
            .access(EndpointAccess::Source)
            .tag("connectors")
            .summary("Push messages to a source")
            .description(
                "For systems that push messages; accepted by sources of connectors of the type http. The body is a \
                 message or several, as the source's settings say, and may be of any media type. It is answered once the \
                 rules have taken them: after any other answer, send the same again.",
            )
            .path_parameter("name", "The source's name, percent-encoded.")
            .raw_request_body(&["application/octet-stream"])
            .empty_response(204, "All messages were accepted.")
            .problem_response(429, "Too many requests are waiting; retry after the time in Retry-After.")
            .problem_response(503, "The messages cannot be accepted now, or were not accepted in time and may still be; retry after the time in Retry-After."),
        of_sink(get("/api/v1/sinks/{name}/status", "sinkStatus", sink))
            .role(Role::Viewer)
            .summary("Read the state of a sink")
            .response::<SinkStatus>(200, "The state since the node started."),
        of_sink(post("/api/v1/sinks/{name}/test", "testSink", test_sink))
            .role(Role::Operator)
            .summary("Test a sink")
            .description(
                "Connects to the sink's system and, for SQL databases and ClickHouse, has it check the statement, the table and \
                 its columns. No row is written.",
            )
            .response::<ConnectionTestOutcome>(200, "The result of the test."),
        of_sink(get(
            "/api/v1/sinks/{name}/dead-letters",
            "listDeadLetters",
            dead_letters,
        ))
        .role(Role::Operator)
        .summary("List the dead letters of a sink")
        .description(
            "Rows that could not be written, oldest first. They contain data of clients.",
        )
        .paged::<DeadLetter>(),
        of_sink(post(
            "/api/v1/sinks/{name}/dead-letters/replay",
            "replayDeadLetters",
            replay,
        ))
        .role(Role::Operator)
        .summary("Replay dead letters of a sink")
        .description("Dead letters that do not fit into the sink's queue remain.")
        .optional_request_body::<DeadLetterSelection>()
        .response::<DeadLetterCount>(200, "The number of rows queued."),
        of_sink(post(
            "/api/v1/sinks/{name}/dead-letters/discard",
            "discardDeadLetters",
            discard,
        ))
        .role(Role::Operator)
        .summary("Delete dead letters of a sink")
        .optional_request_body::<DeadLetterSelection>()
        .response::<DeadLetterCount>(200, "The number of rows deleted."),
    ]
}

fn sink_not_found(name: &str) -> ProblemDetails {
    ProblemDetails::not_found(format!("There is no sink {name:?}."))
}

async fn types(call: ApiCall) -> ApiResult {
    call::json_response(ListPage {
        data: call.app.connector_backend.types(),
        next: None,
    })
}

/// A page of rows sorted by name.
pub(super) fn page_by_name(call: &ApiCall, rows: Vec<Value>) -> ApiResult {
    let limit = call.query.limit();
    let after = call.query.after().map(|cursor| cursor.first);
    let name = |row: &Value| row["name"].as_str().unwrap_or_default().to_owned();
    let behind = rows
        .into_iter()
        .filter(|row| after.as_ref().is_none_or(|after| name(row) > *after));
    let rows: Vec<_> = behind.take(limit + 1).collect();
    call::paged_rows(rows, limit, |row| PageCursor::new(&name(row), ""))
}

async fn connectors(call: ApiCall) -> ApiResult {
    page_by_name(&call, call.app.connector_backend.connector_statuses())
}

async fn sinks(call: ApiCall) -> ApiResult {
    page_by_name(&call, call.app.connector_backend.sink_statuses())
}

async fn sources(call: ApiCall) -> ApiResult {
    page_by_name(&call, call.app.connector_backend.source_statuses())
}

async fn push(mut call: ApiCall) -> ApiResult {
    let name = call.path("name").to_owned();
    let posted = call.app.connector_backend.admit_push(&name, call.headers());
    let posted = posted.map_err(|refused| push_problem(&name, refused))?;
    let body = call.body_bytes(posted.max_body_bytes()).await?;
    let taken = posted.accept_body(body).await;
    taken.map_err(|refused| push_problem(&name, refused))?;
    call::no_content()
}

fn push_problem(source: &str, refused: SourcePushError) -> ProblemDetails {
    match refused {
        SourcePushError::Unknown => ProblemDetails::not_found(format!(
            "There is no source {source:?} that accepts pushes."
        )),
        SourcePushError::SourceClosed(why) => {
            ProblemDetails::busy(30, format!("The source does not receive now: {why}."))
        }
        SourcePushError::Credentials(why) => {
            ProblemDetails::unauthorized(format!("The request is not authenticated: {why}."))
        }
        SourcePushError::Content(why) => {
            ProblemDetails::unprocessable(format!("The body is {why}."))
        }
        SourcePushError::TooManyRequests => {
            ProblemDetails::too_many_requests(1, "Too many requests are waiting.")
        }
        SourcePushError::TimedOut => {
            let detail =
                "The messages were not accepted in time and may still be; send them again.";
            ProblemDetails::busy(1, detail)
        }
    }
}

async fn sink(call: ApiCall) -> ApiResult {
    let name = call.path("name");
    let found = call.app.connector_backend.sink_status(name);
    call::json_response(found.ok_or_else(|| sink_not_found(name))?)
}

fn test_response(tested: Result<String, String>) -> ApiResult {
    let is_reached = tested.is_ok();
    let (Ok(detail) | Err(detail)) = tested;
    call::json_response(ConnectionTestOutcome { is_reached, detail })
}

async fn test(call: ApiCall) -> ApiResult {
    let name = call.path("name");
    let tested = call.app.connector_backend.test_connector(name).await;
    test_response(
        tested
            .ok_or_else(|| ProblemDetails::not_found(format!("There is no connector {name:?}.")))?,
    )
}

async fn test_sink(call: ApiCall) -> ApiResult {
    let name = call.path("name");
    let tested = call.app.connector_backend.test_sink(name).await;
    test_response(tested.ok_or_else(|| sink_not_found(name))?)
}

async fn test_settings(mut call: ApiCall) -> ApiResult {
    let settings = call.body_value().await?;
    let tested = call.app.connector_backend.test_settings(&settings).await;
    test_response(tested.map_err(|invalid| match invalid.field.as_str() {
        "" => ProblemDetails::unprocessable(invalid.detail),
        field => ProblemDetails::invalid_field(field, format!("{field}: {}", invalid.detail)),
    })?)
}

async fn dead_letters(call: ApiCall) -> ApiResult {
    let name = call.path("name");
    let limit = call.query.limit();
    let after = call.query.after().map(|cursor| cursor.first);
    let after = after.and_then(|id| id.parse().ok()).unwrap_or(0);
    let found = call
        .app
        .connector_backend
        .dead_letters(name, after, limit + 1);
    let letters = found.ok_or_else(|| sink_not_found(name))?;
    call::paged_rows(letters, limit, |letter| {
        PageCursor::new(&letter["id"].to_string(), "")
    })
}

async fn selected_ids(call: &mut ApiCall) -> Result<Option<Vec<u64>>, ProblemDetails> {
    let chosen: DeadLetterSelection = call.body_json_or_default().await?;
    Ok(chosen.ids)
}

async fn replay(mut call: ApiCall) -> ApiResult {
    let ids = selected_ids(&mut call).await?;
    let name = call.path("name");
    let count = call
        .app
        .connector_backend
        .replay_dead_letters(name, ids)
        .await;
    let count = count.ok_or_else(|| sink_not_found(name))?;
    let after = Some(json!({"count": count}));
    audit::record_action(&call, "dead_letters.replay", Some(name), after).await;
    call::json_response(DeadLetterCount { count })
}

async fn discard(mut call: ApiCall) -> ApiResult {
    let ids = selected_ids(&mut call).await?;
    let name = call.path("name");
    let count = call
        .app
        .connector_backend
        .discard_dead_letters(name, ids)
        .await;
    let count = count.ok_or_else(|| sink_not_found(name))?;
    let after = Some(json!({"count": count}));
    audit::record_action(&call, "dead_letters.discard", Some(name), after).await;
    call::json_response(DeadLetterCount { count })
}
