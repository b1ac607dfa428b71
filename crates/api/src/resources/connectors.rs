//! Connectors, sinks and sources beyond their objects: types, connection tests, states, pushes and
//! dead letters.

use std::collections::HashSet;

use connect::objects::CONNECTOR;
use connect::push::{PushError, RequestHead};
use connect::{ConnectorError, ConnectorStatus, SettingsError, SinkRow, SinkStatus, SourceStatus};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::access::{EndpointAccess, Role};
use crate::audit;
use crate::call::{self, ApiCall};
use crate::endpoint::{Endpoint, EndpointScope, get, post};
use crate::objects::BackendObjectKind;
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::query_parameters::PageCursor;

/// A state, and whether the object is declared.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "{T}")]
struct DeclarableStatus<T> {
    #[serde(flatten)]
    status: T,
    /// Whether it is declared in the configuration and cannot be changed over the API.
    is_declared: bool,
}

/// A row that could not be written.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "DeadLetter")]
struct DeadLetterView {
    id: u64,
    at_ms: u64,
    error: String,
    attempts: u32,
    row: Value,
}

/// Result of a connection test.
#[derive(Serialize, JsonSchema)]
struct ConnectionTestOutcome {
    is_reachable: bool,
    /// Identity of the system, or reason of the failure.
    detail: String,
}

/// Maximum number of dead letters that a request selects by their ids.
const MAX_SELECTED_LETTERS: usize = 10_000;

/// Selects dead letters of a sink.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct DeadLetterSelection {
    /// Ids of dead letters; default: all.
    #[schemars(length(max = MAX_SELECTED_LETTERS))]
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
            .role(Role::Viewer, EndpointScope::Node)
            .tag("connectors")
            .summary("List connector types")
            .description("Includes the schemas of the settings of connectors, sinks and sources of each type.")
            .unpaged::<connect::objects::ConnectorType>(),
        get(
            "/api/v1/connector-status",
            "listConnectorStatus",
            connectors,
        )
        .role(Role::Viewer, EndpointScope::Node)
        .tag("connectors")
        .summary("List connector states")
        .paged::<DeclarableStatus<ConnectorStatus>>(),
        post(
            "/api/v1/connectors/test",
            "testConnectorSettings",
            test_settings,
        )
        .role(Role::Admin, EndpointScope::Node)
        .tag("connectors")
        .summary("Test a connector before storing it")
        .description("The body is a connector as it would be created; nothing is stored.")
        .request_body::<Map<String, Value>>()
        .response::<ConnectionTestOutcome>(200, "The result of the test."),
        post("/api/v1/connectors/{name}/test", "testConnector", test)
            .role(Role::Operator, EndpointScope::Node)
            .tag("connectors")
            .summary("Test a connector")
            .description("Connects to the system with the connector's credentials.")
            .path_parameter("name", "The connector's name, percent-encoded.")
            .response::<ConnectionTestOutcome>(200, "The result of the test."),
        get("/api/v1/sink-status", "listSinkStatus", sinks)
            .role(Role::Viewer, EndpointScope::Node)
            .tag("connectors")
            .summary("List sink states")
            .paged::<DeclarableStatus<SinkStatus>>(),
        get("/api/v1/source-status", "listSourceStatus", sources)
            .role(Role::Viewer, EndpointScope::Node)
            .tag("connectors")
            .summary("List source states")
            .paged::<DeclarableStatus<SourceStatus>>(),
        post("/api/v1/sources/{name}/push", "pushToSource", push)
            .access(EndpointAccess::Source)
            .tag("connectors")
            .summary("Push messages to a source")
            .description(
                "For systems that push messages; accepted by sources of connectors of the type http. The body contains one or several messages, depending on the settings of the source, and may have any media type. The response 204 is sent when the rules have accepted them; after any other response, send the same request again.",
            )
            .path_parameter("name", "The source's name, percent-encoded.")
            .raw_request_body(&["application/octet-stream"])
            .empty_response(204, "All messages were accepted.")
            .problem_response(429, "Too many requests are waiting; retry after the time in Retry-After.")
            .problem_response(503, "The messages cannot be accepted now, or were not accepted in time and may still be; retry after the time in Retry-After."),
        of_sink(get("/api/v1/sinks/{name}/status", "sinkStatus", sink))
            .role(Role::Viewer, EndpointScope::Node)
            .summary("Read the state of a sink")
            .response::<DeclarableStatus<SinkStatus>>(200, "The state since the node started."),
        of_sink(post("/api/v1/sinks/{name}/test", "testSink", test_sink))
            .role(Role::Operator, EndpointScope::Node)
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
        .role(Role::Operator, EndpointScope::Node)
        .summary("List the dead letters of a sink")
        .description(
            "Rows that could not be written, oldest first. They contain data of clients.",
        )
        .paged::<DeadLetterView>(),
        of_sink(post(
            "/api/v1/sinks/{name}/dead-letters/replay",
            "replayDeadLetters",
            replay,
        ))
        .role(Role::Operator, EndpointScope::Node)
        .summary("Replay dead letters of a sink")
        .description("Dead letters that do not fit into the sink's queue remain.")
        .optional_request_body::<DeadLetterSelection>()
        .response::<DeadLetterCount>(200, "The number of rows queued."),
        of_sink(post(
            "/api/v1/sinks/{name}/dead-letters/discard",
            "discardDeadLetters",
            discard,
        ))
        .role(Role::Operator, EndpointScope::Node)
        .summary("Delete dead letters of a sink")
        .optional_request_body::<DeadLetterSelection>()
        .response::<DeadLetterCount>(200, "The number of rows deleted."),
    ]
}

fn sink_not_found(name: &str) -> ProblemDetails {
    ProblemDetails::not_found(format!("There is no sink {name:?}."))
}

async fn types(_: ApiCall) -> ApiResult {
    call::unpaged_list(connect::objects::describe_kinds())
}

/// A page of rows sorted by name.
pub(super) fn page_by_name<T: Serialize>(
    call: &ApiCall,
    rows: Vec<T>,
    name: impl Fn(&T) -> &str,
) -> ApiResult {
    let limit = call.query.limit();
    let after = call.query.after().map(|cursor| cursor.first);
    let behind = rows
        .into_iter()
        .filter(|row| after.as_deref().is_none_or(|after| name(row) > after));
    let rows: Vec<_> = behind.take(limit + 1).collect();
    call::paged_rows(rows, limit, |row| PageCursor::new(name(row), ""))
}

/// Adds to each state whether the object is declared.
fn declarable<T>(
    call: &ApiCall,
    kind: BackendObjectKind,
    statuses: impl IntoIterator<Item = T>,
    name: impl Fn(&T) -> &str,
) -> Vec<DeclarableStatus<T>> {
    let declared = call.app.object_backend.declared(kind).into_iter();
    let declared: HashSet<String> = declared.map(|object| object.id).collect();
    let statuses = statuses.into_iter().map(|status| DeclarableStatus {
        is_declared: declared.contains(name(&status)),
        status,
    });
    statuses.collect()
}

async fn connectors(call: ApiCall) -> ApiResult {
    let statuses = call.app.connectors.connectors();
    let rows = declarable(&call, BackendObjectKind::Connector, statuses, |status| {
        &status.name
    });
    page_by_name(&call, rows, |row| &row.status.name)
}

async fn sinks(call: ApiCall) -> ApiResult {
    let statuses = call.app.connectors.sinks();
    let rows = declarable(&call, BackendObjectKind::Sink, statuses, |status| {
        &status.name
    });
    page_by_name(&call, rows, |row| &row.status.name)
}

async fn sources(call: ApiCall) -> ApiResult {
    let statuses = call.app.connectors.sources();
    let rows = declarable(&call, BackendObjectKind::Source, statuses, |status| {
        &status.name
    });
    page_by_name(&call, rows, |row| &row.status.name)
}

async fn push(mut call: ApiCall) -> ApiResult {
    let name = call.path("name").to_owned();
    // The request head decides whether the body is read.
    let fields = call.headers().iter().filter_map(|(name, value)| {
        let value = str::from_utf8(value.as_bytes()).ok()?;
        Some((name.as_str().to_owned(), value.to_owned()))
    });
    let admitted = call.app.connectors.admit(&name, &RequestHead::new(fields));
    let admitted = admitted.map_err(|error| push_problem(&name, error))?;
    let body = call.body_bytes(admitted.max_body_bytes()).await?;
    let accepted = admitted.accept(body.into()).await;
    accepted.map_err(|error| push_problem(&name, error))?;
    call::no_content()
}

fn push_problem(source: &str, error: PushError) -> ProblemDetails {
    match error {
        PushError::Unknown => ProblemDetails::not_found(format!(
            "There is no source {source:?} that accepts pushes."
        )),
        PushError::Closed(why) => {
            ProblemDetails::busy(30, format!("The source does not receive now: {why}."))
        }
        PushError::Credentials(why) => {
            ProblemDetails::unauthorized(format!("The request is not authenticated: {why}."))
        }
        PushError::Content(why) => {
            ProblemDetails::unprocessable(format!("The body is invalid: {why}."))
        }
        PushError::TooManyRequests => {
            ProblemDetails::too_many_requests(1, "Too many requests are waiting.")
        }
        PushError::TimedOut => {
            let detail =
                "The messages were not accepted in time and may still be; send them again.";
            ProblemDetails::busy(1, detail)
        }
    }
}

async fn sink(call: ApiCall) -> ApiResult {
    let name = call.path("name");
    let status = call.app.connectors.sink_status(name);
    let status = status.ok_or_else(|| sink_not_found(name))?;
    let rows = declarable(&call, BackendObjectKind::Sink, [status], |status| {
        &status.name
    });
    call::json_response(&rows[0])
}

fn test_response(tested: Result<String, ConnectorError>) -> ApiResult {
    let is_reachable = tested.is_ok();
    let detail = tested.unwrap_or_else(|error| error.message);
    call::json_response(ConnectionTestOutcome {
        is_reachable,
        detail,
    })
}

async fn test(call: ApiCall) -> ApiResult {
    let name = call.path("name");
    let tested = call.app.connectors.test_connector(name).await;
    test_response(
        tested
            .ok_or_else(|| ProblemDetails::not_found(format!("There is no connector {name:?}.")))?,
    )
}

async fn test_sink(call: ApiCall) -> ApiResult {
    let name = call.path("name");
    let tested = call.app.connectors.test_sink(name).await;
    test_response(tested.ok_or_else(|| sink_not_found(name))?)
}

async fn test_settings(mut call: ApiCall) -> ApiResult {
    let mut settings = call.body_value().await?;
    let invalid = |error: SettingsError| match error.field.as_str() {
        "" => ProblemDetails::unprocessable(error.detail),
        field => ProblemDetails::invalid_field(field, format!("{field}: {}", error.detail)),
    };
    if let Some(secrets) = connect::objects::secret_fields(CONNECTOR, &settings) {
        // Nothing is stored that `***` could stand for.
        let restored = secrets.restore(settings, None);
        settings = restored.map_err(|error| invalid(error.into()))?;
    }
    let tested = call.app.connectors.test_settings(&settings).await;
    test_response(tested.map_err(invalid)?)
}

async fn dead_letters(call: ApiCall) -> ApiResult {
    let name = call.path("name");
    let limit = call.query.limit();
    let after = call.query.after().map(|cursor| cursor.first);
    let after = after.and_then(|id| id.parse().ok()).unwrap_or(0);
    let found = call.app.connectors.dead_letters(name, after, limit + 1);
    let letters = found.ok_or_else(|| sink_not_found(name))?;
    let letters = letters.into_iter().map(|letter| DeadLetterView {
        id: letter.id,
        at_ms: letter.at_ms,
        error: letter.error,
        attempts: letter.attempts,
        row: SinkRow::from_bytes(&letter.row).to_json(),
    });
    call::paged_rows(letters.collect(), limit, |letter| {
        PageCursor::new(&letter.id.to_string(), "")
    })
}

async fn selected_ids(call: &mut ApiCall) -> Result<Option<Vec<u64>>, ProblemDetails> {
    let chosen: DeadLetterSelection = call.body_json_or_default().await?;
    if chosen
        .ids
        .as_ref()
        .is_some_and(|ids| ids.len() > MAX_SELECTED_LETTERS)
    {
        let detail = format!("ids: expected at most {MAX_SELECTED_LETTERS} ids.");
        return Err(ProblemDetails::invalid_field("ids", detail));
    }
    Ok(chosen.ids)
}

async fn replay(mut call: ApiCall) -> ApiResult {
    let ids = selected_ids(&mut call).await?;
    let name = call.path("name");
    let count = call.app.connectors.replay(name, ids).await;
    let count = count.ok_or_else(|| sink_not_found(name))?;
    let after = Some(json!({"count": count}));
    audit::record_action(&call, "dead_letters.replay", Some(name), after).await;
    call::json_response(DeadLetterCount { count })
}

async fn discard(mut call: ApiCall) -> ApiResult {
    let ids = selected_ids(&mut call).await?;
    let name = call.path("name");
    let count = call.app.connectors.discard(name, ids).await;
    let count = count.ok_or_else(|| sink_not_found(name))?;
    let after = Some(json!({"count": count}));
    audit::record_action(&call, "dead_letters.discard", Some(name), after).await;
    call::json_response(DeadLetterCount { count })
}
