//! One row of the route table: path, required access, parameters, bodies, and the handler. The
//! router, the access checks and the OpenAPI document are generated from the same row, so they
//! cannot disagree.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use axum::http::Method;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::Value;

use crate::access::{EndpointAccess, Role};
use crate::call::ApiCall;
use crate::connection_tracker::RequestClass;
use crate::endpoint_place::EndpointPlace;
pub(crate) use crate::endpoint_scope::EndpointScope;
use crate::problem_details::ApiResult;
use crate::query_parameters::{AFTER, LIMIT, Parameter};

type Handler =
    Arc<dyn Fn(ApiCall) -> Pin<Box<dyn Future<Output = ApiResult> + Send>> + Send + Sync>;
/// Generates the schema of a type when it is needed.
pub(crate) type SchemaFn = Arc<dyn Fn(&mut SchemaGenerator) -> Value + Send + Sync>;

pub(crate) struct Endpoint {
    pub(crate) method: Method,
    /// In the syntax of axum and OpenAPI: `/api/v1/clients/{client_id}`.
    pub(crate) path: String,
    /// Unique; the OpenAPI `operationId`.
    pub(crate) id: String,
    pub(crate) tag: &'static str,
    pub(crate) summary: String,
    pub(crate) description: String,
    pub(crate) access: EndpointAccess,
    pub(crate) scope: EndpointScope,
    /// Where its requests are executed in a cluster; `None`: by the node that gets them.
    pub(crate) place: Option<EndpointPlace>,
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) path_parameters: Vec<(&'static str, &'static str)>,
    pub(crate) body: Option<ContentSpec>,
    pub(crate) is_body_optional: bool,
    pub(crate) answers: Vec<ResponseSpec>,
    /// Whether the response describes a versioned object, with ETag, If-None-Match or If-Match.
    pub(crate) is_versioned: bool,
    /// Additional error responses, besides those common to all routes of its kind.
    pub(crate) problems: Vec<(u16, &'static str)>,
    pub(crate) handler: Handler,
}

pub(crate) struct ContentSpec {
    /// The accepted media types.
    pub(crate) media_types: &'static [&'static str],
    /// `None`: bytes or text without a schema.
    pub(crate) schema: Option<SchemaFn>,
}

pub(crate) struct ResponseSpec {
    pub(crate) status: u16,
    pub(crate) description: &'static str,
    pub(crate) content: Option<ContentSpec>,
    /// Whether the response has a Location header with the path of a new object.
    pub(crate) has_location: bool,
}

pub(crate) fn schema_of<T: JsonSchema>() -> SchemaFn {
    Arc::new(|generator| generator.subschema_for::<T>().to_value())
}

fn json_content(schema: SchemaFn) -> ContentSpec {
    ContentSpec {
        media_types: &["application/json"],
        schema: Some(schema),
    }
}

macro_rules! methods {
    ($($name:ident $method:ident),+) => {
        $(pub(crate) fn $name<F, R>(path: impl Into<String>, id: impl Into<String>, handler: F) -> Endpoint
        where
            F: Fn(ApiCall) -> R + Send + Sync + 'static,
            R: Future<Output = ApiResult> + Send + 'static,
        {
            let handler: Handler = Arc::new(move |call| Box::pin(handler(call)));
            Endpoint::new(Method::$method, path.into(), id.into(), handler)
        })+
    };
}
methods!(get GET, post POST, put PUT, delete DELETE, patch PATCH, head HEAD, options OPTIONS);

impl Endpoint {
    fn new(method: Method, path: String, id: String, handler: Handler) -> Self {
        Self {
            method,
            path,
            id,
            tag: "node",
            summary: String::new(),
            description: String::new(),
            // Safe default: an endpoint without an explicit access requires a node-wide admin.
            access: EndpointAccess::Role(Role::Admin),
            scope: EndpointScope::Node,
            place: None,
            parameters: Vec::new(),
            path_parameters: Vec::new(),
            body: None,
            is_body_optional: false,
            answers: Vec::new(),
            is_versioned: false,
            problems: Vec::new(),
            handler,
        }
    }

    /// The class in whose limits its requests count.
    pub(crate) fn class(&self) -> RequestClass {
        match self.access {
            EndpointAccess::Open if self.tag == "access" => RequestClass::Login,
            EndpointAccess::Open if self.tag == "files" => RequestClass::Device,
            EndpointAccess::Open | EndpointAccess::Metrics | EndpointAccess::Docs => {
                RequestClass::Health
            }
            EndpointAccess::Source | EndpointAccess::Device | EndpointAccess::Kiosk => {
                RequestClass::Device
            }
            EndpointAccess::Role(_) | EndpointAccess::Account => RequestClass::Operator,
        }
    }

    /// The role that the caller needs, and where.
    pub(crate) fn role(mut self, role: Role, scope: EndpointScope) -> Self {
        self.access = EndpointAccess::Role(role);
        self.scope = scope;
        self
    }

    /// Replaces the scope.
    pub(crate) fn scope(mut self, scope: EndpointScope) -> Self {
        self.scope = scope;
        self
    }

    /// Where its requests are executed in a cluster.
    pub(crate) fn place(mut self, place: EndpointPlace) -> Self {
        self.place = Some(place);
        self
    }

    /// A route that needs no role, or one depending on a setting.
    pub(crate) fn access(mut self, access: EndpointAccess) -> Self {
        self.access = access;
        self.scope = match access {
            EndpointAccess::Metrics | EndpointAccess::Role(_) => EndpointScope::Node,
            EndpointAccess::Open
            | EndpointAccess::Docs
            | EndpointAccess::Source
            | EndpointAccess::Kiosk
            | EndpointAccess::Device
            | EndpointAccess::Account => EndpointScope::Caller,
        };
        self
    }

    pub(crate) fn tag(mut self, tag: &'static str) -> Self {
        self.tag = tag;
        self
    }

    pub(crate) fn summary(mut self, summary: impl Into<String>) -> Self {
        self.summary = summary.into();
        self
    }

    pub(crate) fn description(mut self, description: impl Into<String>) -> Self {
        self.description = description.into();
        self
    }

    pub(crate) fn path_parameter(mut self, name: &'static str, about: &'static str) -> Self {
        self.path_parameters.push((name, about));
        self
    }

    pub(crate) fn parameters(mut self, parameters: &[Parameter]) -> Self {
        self.parameters.extend_from_slice(parameters);
        self
    }

    /// A paged list with rows of the given schema.
    pub(crate) fn paged_with(mut self, row: SchemaFn) -> Self {
        self.parameters.extend([LIMIT, AFTER]);
        self.response_with(200, "A page.", page_schema(row))
    }

    /// A paged list of `T`.
    pub(crate) fn paged<T: JsonSchema>(self) -> Self {
        self.paged_with(schema_of::<T>())
    }

    /// A paged list of `T` with the rows of all nodes of a cluster.
    pub(crate) fn cluster_paged<T: JsonSchema>(mut self) -> Self {
        self.parameters.extend([LIMIT, AFTER]);
        let page = page_schema(schema_of::<T>());
        let schema: SchemaFn = Arc::new(move |generator| {
            let mut schema = page(generator);
            schema["properties"]["missing_nodes"] = serde_json::json!({
                "type": "array",
                "items": {"type": "string"},
                "description": "Nodes of the cluster that did not answer, whose rows are missing; empty without a cluster.",
            });
            if let Some(required) = schema["required"].as_array_mut() {
                required.push("missing_nodes".into());
            }
            schema
        });
        self.response_with(200, "A page.", schema)
    }

    /// A paged list of `T`; in a cluster with the rows of all nodes, which have the additional field `node`.
    pub(crate) fn node_paged<T: JsonSchema>(mut self) -> Self {
        self.parameters.extend([LIMIT, AFTER]);
        self.response_with(200, "A page.", node_page_schema(schema_of::<T>()))
    }

    /// A list that is always complete.
    pub(crate) fn unpaged<T: JsonSchema>(self) -> Self {
        self.response_with(200, "All rows.", page_schema(schema_of::<T>()))
    }

    /// A list that is always complete, in a cluster with the rows of all nodes that answer.
    pub(crate) fn node_unpaged<T: JsonSchema>(self) -> Self {
        self.response_with(200, "All rows.", node_page_schema(schema_of::<T>()))
    }

    pub(crate) fn request_body<T: JsonSchema>(self) -> Self {
        self.request_body_with(schema_of::<T>())
    }

    pub(crate) fn optional_request_body<T: JsonSchema>(mut self) -> Self {
        self.is_body_optional = true;
        self.request_body::<T>()
    }

    pub(crate) fn request_body_with(mut self, schema: SchemaFn) -> Self {
        self.body = Some(json_content(schema));
        self
    }

    /// A request body that is not JSON.
    pub(crate) fn raw_request_body(mut self, media_types: &'static [&'static str]) -> Self {
        self.body = Some(ContentSpec {
            media_types,
            schema: None,
        });
        self
    }

    pub(crate) fn response<T: JsonSchema>(self, status: u16, description: &'static str) -> Self {
        self.response_with(status, description, schema_of::<T>())
    }

    pub(crate) fn response_with(
        mut self,
        status: u16,
        description: &'static str,
        schema: SchemaFn,
    ) -> Self {
        self.answers.push(ResponseSpec {
            status,
            description,
            content: Some(json_content(schema)),
            has_location: false,
        });
        self
    }

    /// A response body that is not JSON.
    pub(crate) fn raw_response(
        mut self,
        status: u16,
        description: &'static str,
        media_types: &'static [&'static str],
    ) -> Self {
        self.answers.push(ResponseSpec {
            status,
            description,
            content: Some(ContentSpec {
                media_types,
                schema: None,
            }),
            has_location: false,
        });
        self
    }

    pub(crate) fn empty_response(mut self, status: u16, description: &'static str) -> Self {
        self.answers.push(ResponseSpec {
            status,
            description,
            content: None,
            has_location: false,
        });
        self
    }

    /// Adds a Location header to the response described last.
    pub(crate) fn with_location(mut self) -> Self {
        if let Some(answer) = self.answers.last_mut() {
            answer.has_location = true;
        }
        self
    }

    pub(crate) fn with_etag(mut self) -> Self {
        self.is_versioned = true;
        self
    }

    pub(crate) fn problem_response(mut self, status: u16, description: &'static str) -> Self {
        self.problems.push((status, description));
        self
    }
}

/// The schema of one page with the rows of all nodes of a cluster.
fn node_page_schema(row: SchemaFn) -> SchemaFn {
    let page = page_schema(row);
    Arc::new(move |generator| {
        let mut schema = page(generator);
        schema["properties"]["missing_nodes"] = serde_json::json!({
            "type": "array",
            "items": {"type": "string"},
            "description": "Nodes of the cluster that did not answer, whose rows are missing; omitted without a cluster.",
        });
        schema
    })
}

/// The schema of one page: the rows and the cursor of the next page.
fn page_schema(row: SchemaFn) -> SchemaFn {
    Arc::new(move |generator| {
        serde_json::json!({
            "type": "object",
            "required": ["data", "next"],
            "properties": {
                "data": {"type": "array", "items": row(generator)},
                "next": {
                    "type": ["string", "null"],
                    "description": "Value of `after` for the next page; `null` on the last page.",
                },
            },
        })
    })
}
