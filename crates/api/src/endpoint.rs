//! One row of the table of routes: path, who may ask, what goes in and what comes out, and the function behind it. The
//! router, the checks and the OpenAPI document are made from the same row, so that they cannot say different things.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use axum::http::Method;
use axum::response::Response;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::Value;

use crate::access::Role;
use crate::call::ApiCall;
use crate::connection_tracker::RequestClass;
use crate::problem_details::ProblemDetails;
use crate::query_parameters::{AFTER, LIMIT, Parameter};

pub(crate) type ApiResult = Result<Response, ProblemDetails>;
type Handler =
    Arc<dyn Fn(ApiCall) -> Pin<Box<dyn Future<Output = ApiResult> + Send>> + Send + Sync>;
/// Makes the schema of a type where it is needed.
pub(crate) type SchemaFn = Arc<dyn Fn(&mut SchemaGenerator) -> Value + Send + Sync>;

/// Who may ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndpointAccess {
    /// Anybody.
    Open,
    /// Anybody where the setting `http.metrics_access` says so, else viewers.
    Metrics,
    /// The same with `http.docs_access`.
    Docs,
    /// Whoever has the secret of the source that is asked for; the handler looks.
    Source,
    /// Whoever has the access token of a device in the path; the handler looks.
    Device,
    /// Those with this role or a higher one.
    Role(Role),
}

pub(crate) struct Endpoint {
    pub(crate) method: Method,
    /// As axum and OpenAPI write it: `/api/v1/clients/{client_id}`.
    pub(crate) path: String,
    /// Unique; the OpenAPI `operationId`.
    pub(crate) id: String,
    pub(crate) tag: &'static str,
    pub(crate) summary: String,
    pub(crate) description: String,
    pub(crate) access: EndpointAccess,
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) path_parameters: Vec<(&'static str, &'static str)>,
    pub(crate) body: Option<ContentSpec>,
    pub(crate) is_body_optional: bool,
    pub(crate) answers: Vec<ResponseSpec>,
    /// It answers about an object with a version: ETag, If-None-Match or If-Match.
    pub(crate) is_versioned: bool,
    /// Problems of its own beside those that every route of its kind has.
    pub(crate) problems: Vec<(u16, &'static str)>,
    pub(crate) handler: Handler,
}

pub(crate) struct ContentSpec {
    /// One of them.
    pub(crate) media_types: &'static [&'static str],
    /// None: bytes or text without a schema.
    pub(crate) schema: Option<SchemaFn>,
}

pub(crate) struct ResponseSpec {
    pub(crate) status: u16,
    pub(crate) description: &'static str,
    pub(crate) content: Option<ContentSpec>,
    /// A new object: where it is.
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
            Endpoint::new(Method::$method, path.into(), id.into(), handler)
        })+
    };
}
methods!(get GET, post POST, put PUT, delete DELETE);

impl Endpoint {
    fn new<F, R>(method: Method, path: String, id: String, handler: F) -> Self
    where
        F: Fn(ApiCall) -> R + Send + Sync + 'static,
        R: Future<Output = ApiResult> + Send + 'static,
    {
        Self {
            method,
            path,
            id,
            tag: "node",
            summary: String::new(),
            description: String::new(),
            // Nobody forgets to think of it without noticing: an admin's token works, nothing else does.
            access: EndpointAccess::Role(Role::Admin),
            parameters: Vec::new(),
            path_parameters: Vec::new(),
            body: None,
            is_body_optional: false,
            answers: Vec::new(),
            is_versioned: false,
            problems: Vec::new(),
            handler: Arc::new(move |call| Box::pin(handler(call))),
        }
    }

    /// Whose places its requests take.
    pub(crate) fn class(&self) -> RequestClass {
        match self.access {
            EndpointAccess::Open if self.tag == "access" => RequestClass::Login,
            EndpointAccess::Open | EndpointAccess::Metrics | EndpointAccess::Docs => {
                RequestClass::Health
            }
            EndpointAccess::Source | EndpointAccess::Device => RequestClass::Device,
            EndpointAccess::Role(_) => RequestClass::Operator,
        }
    }

    pub(crate) fn role(self, role: Role) -> Self {
        self.access(EndpointAccess::Role(role))
    }

    pub(crate) fn access(mut self, access: EndpointAccess) -> Self {
        self.access = access;
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

    /// A list in pages of `T`.
    pub(crate) fn paged_with(mut self, row: SchemaFn) -> Self {
        self.parameters.extend([LIMIT, AFTER]);
        self.response_with(200, "A page.", page_schema(row))
    }

    /// A list in pages of `T`.
    pub(crate) fn paged<T: JsonSchema>(self) -> Self {
        self.paged_with(schema_of::<T>())
    }

    /// A list that is always whole.
    pub(crate) fn unpaged<T: JsonSchema>(self) -> Self {
        self.response_with(200, "All of them.", page_schema(schema_of::<T>()))
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

    /// A body that is no JSON.
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

    /// An answer that is no JSON.
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

    /// The answer described last says where the new object is.
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

/// One page: the rows and the way to the next.
fn page_schema(row: SchemaFn) -> SchemaFn {
    Arc::new(move |generator| {
        serde_json::json!({
            "type": "object",
            "required": ["data", "next"],
            "properties": {
                "data": {"type": "array", "items": row(generator)},
                "next": {
                    "type": ["string", "null"],
                    "description": "To be given as `after` for the next page; `null` on the last.",
                },
            },
        })
    })
}
