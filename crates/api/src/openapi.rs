//! The OpenAPI 3.1 document, generated from the route table and the types of the bodies.

use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::access::{EndpointAccess, Role};
use crate::endpoint::{ContentSpec, Endpoint, ResponseSpec};
use crate::problem_details;

/// The tags in the order of the documentation, each with a description.
const TAGS: &[(&str, &str)] = &[
    (
        "node",
        "The node itself: health, metrics, version, settings and logging.",
    ),
    (
        "access",
        "Access to this API: login, operators, API keys and the audit log.",
    ),
    (
        "clients",
        "Connected clients, their sessions, subscriptions and queues.",
    ),
    ("messages", "Publishing and retained messages."),
    (
        "rules",
        "Access of MQTT clients: users, authenticators, ACL rules, bans.",
    ),
    (
        "connectors",
        "Connectors, sinks, their queues and dead letters.",
    ),
    (
        "devices",
        "Products with their thing models, devices with their credentials, states and attributes.",
    ),
    (
        "telemetry",
        "Telemetry of devices: latest values, rows, intervals, file exports and live streams.",
    ),
    (
        "dashboards",
        "Dashboards with their cards, the data of these, and share links.",
    ),
    (
        "alarms",
        "Alarms of devices and of the node, and their notifications.",
    ),
    (
        "relay",
        "Relay endpoints: rooms of WebSocket connections, with their statistics.",
    ),
    (
        "files",
        "Files that devices and people send: transfers, downloads and signed links.",
    ),
    (
        "firmware",
        "Firmware packages for devices, and the devices that install them.",
    ),
    ("commands", "Commands to devices and their results."),
    ("configuration", "Listeners, settings, backup."),
    ("cluster", "The nodes that act as one broker."),
    (
        "simulations",
        "Fleets of simulated devices that the node starts and that connect to its own listeners.",
    ),
    ("events", "Live streams of events."),
];

const DESCRIPTION: &str = "Controls one Tidegate node. Lists are paged (`limit`, `after`), objects have versions \
    (`ETag`, `If-Match`, `If-None-Match`), and errors are problem details (RFC 9457). Times that end in `_at_ms` are \
    milliseconds since the Unix epoch. The `security` of an operation names the required role: viewers read, operators \
    control clients and messages, admins may do everything.";

pub(crate) fn openapi_document(version: &str, endpoints: &[Endpoint]) -> Value {
    let mut answers = schema_generator(false);
    let mut bodies = schema_generator(true);
    let problem = answers
        .subschema_for::<problem_details::ProblemBody<'static>>()
        .to_value();
    let mut paths: Map<String, Value> = Map::new();
    for endpoint in endpoints {
        let operation = operation_object(endpoint, &mut answers, &mut bodies, &problem);
        let path = paths
            .entry(endpoint.path.clone())
            .or_insert_with(|| Value::Object(Map::new()));
        path[endpoint.method.as_str().to_ascii_lowercase()] = operation;
    }
    let mut schemas = bodies.take_definitions(true);
    schemas.extend(answers.take_definitions(true));
    let tags: Vec<_> = TAGS
        .iter()
        .map(|(name, description)| json!({"name": name, "description": description}))
        .collect();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Tidegate HTTP API",
            "version": version,
            "description": DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": tags,
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Token from `POST /api/v1/login`, or from the node's token file.",
                },
                "api_key": {
                    "type": "http",
                    "scheme": "basic",
                    "description": "Id of an API key as the user name, its secret as the password.",
                },
                "source_token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Token of the source. Its settings may name another header, or require a signature \
                        of the body instead.",
                },
                "share_token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Token of a share link of a dashboard.",
                },
            },
        },
    })
}

fn schema_generator(deserialize: bool) -> SchemaGenerator {
    let mut settings = SchemaSettings::draft2020_12();
    settings.definitions_path = "/components/schemas".into();
    settings.meta_schema = None;
    match deserialize {
        true => settings.into_generator(),
        false => settings.for_serialize().into_generator(),
    }
}

fn operation_object(
    endpoint: &Endpoint,
    answers: &mut SchemaGenerator,
    bodies: &mut SchemaGenerator,
    problem: &Value,
) -> Value {
    let mut responses: Map<String, Value> = Map::new();
    for answer in &endpoint.answers {
        let described = response_object(answer, endpoint, answers);
        responses.insert(answer.status.to_string(), described);
    }
    for (status, description) in problem_responses(endpoint) {
        let mut response = json!({"description": description});
        if status >= 400 {
            response["content"] = json!({"application/problem+json": {"schema": problem}});
        }
        responses.entry(status.to_string()).or_insert(response);
    }
    let mut operation = json!({
        "operationId": endpoint.id,
        "tags": [endpoint.tag],
        "summary": endpoint.summary,
        "responses": responses,
    });
    if !endpoint.description.is_empty() {
        operation["description"] = Value::String(endpoint.description.clone());
    }
    let parameters = parameter_objects(endpoint);
    if !parameters.is_empty() {
        operation["parameters"] = Value::Array(parameters);
    }
    if let Some(body) = &endpoint.body {
        operation["requestBody"] = json!({
            "required": !endpoint.is_body_optional,
            "content": content_object(body, bodies),
        });
    }
    operation["security"] = match endpoint.access {
        // The path identifies the caller.
        EndpointAccess::Open | EndpointAccess::Device => json!([]),
        // No credentials are needed where the setting allows it.
        EndpointAccess::Metrics | EndpointAccess::Docs => {
            json!([{}, {"token": ["viewer"]}, {"api_key": ["viewer"]}])
        }
        EndpointAccess::Source => json!([{"source_token": []}]),
        EndpointAccess::Kiosk => json!([{"share_token": []}]),
        EndpointAccess::Role(role) => json!([{"token": [role.name()]}, {"api_key": [role.name()]}]),
        EndpointAccess::Account => json!([{"token": ["viewer"]}, {"api_key": ["viewer"]}]),
    };
    let required_role = match endpoint.access {
        EndpointAccess::Role(role) => Some(role),
        EndpointAccess::Account => Some(Role::Viewer),
        _ => None,
    };
    if let Some(role) = required_role {
        operation["x-required-role"] = json!(role.name());
        operation["x-scope"] = json!(endpoint.scope.name());
    }
    operation
}

fn parameter_objects(endpoint: &Endpoint) -> Vec<Value> {
    let mut parameters: Vec<Value> = Vec::new();
    for (name, about) in &endpoint.path_parameters {
        parameters.push(json!({
            "name": name, "in": "path", "required": true, "description": about,
            "schema": {"type": "string", "minLength": 1},
        }));
    }
    for parameter in &endpoint.parameters {
        parameters.push(json!({
            "name": parameter.name, "in": "query", "required": false, "description": parameter.description,
            "schema": parameter.shape.schema(),
        }));
    }
    let mut header = |name: &str, about: &str| {
        parameters.push(json!({
            "name": name, "in": "header", "required": false, "description": about,
            "schema": {"type": "string"},
        }));
    };
    if endpoint.is_versioned {
        match endpoint.method.as_str() {
            "GET" => header(
                "If-None-Match",
                "ETag; the response is 304 if the object still has this version.",
            ),
            "PUT" => {
                header(
                    "If-Match",
                    "ETag; the response is 412 if the object no longer has this version.",
                );
                header(
                    "If-None-Match",
                    "`*`; the response is 412 if the object exists.",
                );
            }
            "DELETE" => header(
                "If-Match",
                "ETag; the response is 412 if the object no longer has this version.",
            ),
            _ => {}
        }
    }
    parameters
}

fn response_object(
    answer: &ResponseSpec,
    endpoint: &Endpoint,
    generator: &mut SchemaGenerator,
) -> Value {
    let mut response = json!({"description": answer.description});
    if let Some(body) = &answer.content {
        response["content"] = content_object(body, generator);
    }
    let mut headers = Map::new();
    if endpoint.is_versioned && answer.status != 204 {
        headers.insert(
            "ETag".into(),
            json!({"description": "The object's version.", "schema": {"type": "string"}}),
        );
    }
    if answer.has_location {
        headers.insert(
            "Location".into(),
            json!({"description": "Path of the new object.", "schema": {"type": "string"}}),
        );
    }
    if !headers.is_empty() {
        response["headers"] = Value::Object(headers);
    }
    response
}

fn content_object(content: &ContentSpec, generator: &mut SchemaGenerator) -> Value {
    let mut of_type = Map::new();
    if let Some(schema) = &content.schema {
        of_type.insert("schema".into(), schema(generator));
    }
    let types = content.media_types.iter();
    let types = types.map(|media_type| ((*media_type).to_owned(), of_type.clone().into()));
    Value::Object(types.collect())
}

/// The error responses of a route, derived from its parameters, body and access.
fn problem_responses(endpoint: &Endpoint) -> Vec<(u16, &'static str)> {
    let mut problems = endpoint.problems.clone();
    problems.push((400, "A parameter or field of the request is invalid."));
    if endpoint.access != EndpointAccess::Open {
        problems.push((401, "The credentials are missing, wrong or expired."));
        problems.push((
            403,
            "The role is insufficient or not node-wide, or the request comes from a web page of another origin.",
        ));
    }
    if !endpoint.path_parameters.is_empty() {
        problems.push((404, "The resource does not exist."));
    }
    if endpoint.body.is_some() {
        problems.push((408, "The body did not arrive in time."));
        problems.push((413, "The body is too long."));
        problems.push((415, "The media type of the body is not supported."));
        problems.push((422, "A field of the body is invalid."));
    }
    if endpoint.is_versioned {
        match endpoint.method.as_str() {
            "GET" => problems.push((304, "The object still has the version of If-None-Match.")),
            _ => problems.push((
                412,
                "The object does not have the version that the request requires.",
            )),
        }
    }
    problems.push((
        421,
        "The node is bound to loopback and the Host header names another host.",
    ));
    problems.push((
        429,
        "Too many concurrent requests of this class, or from this address.",
    ));
    problems.push((
        503,
        "The node does not answer in time, or the operation is not possible now.",
    ));
    problems
}
