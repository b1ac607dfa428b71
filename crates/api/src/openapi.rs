//! The OpenAPI 3.1 document, made from the table of routes and the types of its bodies.

use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::access::Role;
use crate::endpoint::{ContentSpec, Endpoint, EndpointAccess, ResponseSpec};
use crate::problem_details;

/// The tags in the order of the documentation, each with a sentence.
const TAGS: &[(&str, &str)] = &[
    (
        "node",
        "The node itself: health, metrics, what it is and what it logs.",
    ),
    (
        "access",
        "Who may use this API: logging in, operators, API keys, the audit log.",
    ),
    (
        "clients",
        "Connected clients, their sessions, subscriptions and queues.",
    ),
    ("messages", "Publishing and retained messages."),
    (
        "rules",
        "Who may connect and what they may do: users, authenticators, ACL rules, bans.",
    ),
    (
        "connectors",
        "Outside systems, the sinks that write to them, and what could not be written.",
    ),
    (
        "devices",
        "Products with their thing models, devices with their credentials, states and attributes.",
    ),
    (
        "telemetry",
        "What devices have measured: latest values, rows, intervals, files, as it comes.",
    ),
    (
        "alarms",
        "What is wrong with devices and with the node itself, and who is told.",
    ),
    (
        "commands",
        "What devices are told to do, and what came of it.",
    ),
    ("configuration", "Listeners, settings, backup."),
    ("events", "What happens, as it happens."),
];

const DESCRIPTION: &str = "Steers one Tidegate node. Lists come in pages (`limit`, `after`), objects with a version \
    (`ETag`, `If-Match`, `If-None-Match`), errors as problem details (RFC 9457). Times that end in `_at_ms` are \
    milliseconds since the Unix epoch. The role a request needs stands in its `security`: a viewer looks, an operator \
    steers clients and messages, an admin does everything.";

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
                    "description": "A token from `POST /api/v1/login`, or that of the node's own token file.",
                },
                "api_key": {
                    "type": "http",
                    "scheme": "basic",
                    "description": "The id of an API key as the user name, its secret as the password.",
                },
                "source_token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The token of the source. Its settings may name another header, or ask for a signature \
                        of the body instead.",
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
        // The path says who it is.
        EndpointAccess::Open | EndpointAccess::Device => json!([]),
        // Without credentials where the setting says so.
        EndpointAccess::Metrics | EndpointAccess::Docs => {
            json!([{}, {"token": ["viewer"]}, {"api_key": ["viewer"]}])
        }
        EndpointAccess::Source => json!([{"source_token": []}]),
        EndpointAccess::Role(role) => json!([{"token": [role.name()]}, {"api_key": [role.name()]}]),
    };
    if let EndpointAccess::Role(role) = endpoint.access {
        operation["x-required-role"] = json!(role.name());
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
                "An ETag: answer 304 if it is still that version.",
            ),
            "PUT" => {
                header(
                    "If-Match",
                    "An ETag: answer 412 if it is no longer that version.",
                );
                header(
                    "If-None-Match",
                    "`*`: answer 412 if there is such an object.",
                );
            }
            "DELETE" => header(
                "If-Match",
                "An ETag: answer 412 if it is no longer that version.",
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
            json!({"description": "Where the new object is.", "schema": {"type": "string"}}),
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

/// The problems a route can answer with, from what it takes and needs.
fn problem_responses(endpoint: &Endpoint) -> Vec<(u16, &'static str)> {
    let mut problems = endpoint.problems.clone();
    problems.push((
        400,
        "A parameter or field of the request is not what was expected.",
    ));
    if endpoint.access != EndpointAccess::Open {
        problems.push((
            401,
            "There are no credentials, or they are wrong or too old.",
        ));
        problems.push((
            403,
            "The role does not suffice, or a web page of another origin asks.",
        ));
    }
    if !endpoint.path_parameters.is_empty() {
        problems.push((404, "There is no such thing."));
    }
    if endpoint.body.is_some() {
        problems.push((408, "The body did not arrive in time."));
        problems.push((413, "The body is too long."));
        problems.push((415, "The body is of another media type."));
        problems.push((422, "A field of the body is not what was expected."));
    }
    if endpoint.is_versioned {
        match endpoint.method.as_str() {
            "GET" => problems.push((304, "It is still the version of If-None-Match.")),
            _ => problems.push((412, "It is not the version the request wants.")),
        }
    }
    problems.push((
        421,
        "The node is bound to loopback and was asked for under another name.",
    ));
    problems.push((
        429,
        "Too many requests of this class from this address are being answered.",
    ));
    problems.push((
        503,
        "The node does not answer in time, or cannot do it now.",
    ));
    problems
}

impl Role {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}
