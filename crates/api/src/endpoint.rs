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
use crate::call::Call;
use crate::connections::RequestClass;
use crate::parameters::{AFTER, LIMIT, Parameter};
use crate::problem::Problem;

pub(crate) type Outcome = Result<Response, Problem>;
type Handler = Arc<dyn Fn(Call) -> Pin<Box<dyn Future<Output = Outcome> + Send>> + Send + Sync>;
/// Makes the schema of a type where it is needed.
pub(crate) type SchemaOf = Arc<dyn Fn(&mut SchemaGenerator) -> Value + Send + Sync>;

/// Who may ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
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
    pub(crate) access: Access,
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) path_parameters: Vec<(&'static str, &'static str)>,
    pub(crate) body: Option<Content>,
    pub(crate) is_body_optional: bool,
    pub(crate) answers: Vec<Answer>,
    /// It answers about an object with a version: ETag, If-None-Match or If-Match.
    pub(crate) is_versioned: bool,
    /// Problems of its own beside those that every route of its kind has.
    pub(crate) problems: Vec<(u16, &'static str)>,
    pub(crate) handler: Handler,
}

pub(crate) struct Content {
    /// One of them.
    pub(crate) media_types: &'static [&'static str],
    /// None: bytes or text without a schema.
    pub(crate) schema: Option<SchemaOf>,
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) description: &'static str,
    pub(crate) content: Option<Content>,
    /// A new object: where it is.
    pub(crate) has_location: bool,
}

pub(crate) fn schema_of<T: JsonSchema>() -> SchemaOf {
    Arc::new(|generator| generator.subschema_for::<T>().to_value())
}

fn json_content(schema: SchemaOf) -> Content {
    Content {
        media_types: &["application/json"],
        schema: Some(schema),
    }
}

macro_rules! methods {
    ($($name:ident $method:ident),+) => {
        $(pub(crate) fn $name<F, R>(path: impl Into<String>, id: impl Into<String>, handler: F) -> Endpoint
        where
            F: Fn(Call) -> R + Send + Sync + 'static,
            R: Future<Output = Outcome> + Send + 'static,
        {
            Endpoint::new(Method::$method, path.into(), id.into(), handler)
        })+
    };
}
methods!(get GET, post POST, put PUT, delete DELETE);

impl Endpoint {
    fn new<F, R>(method: Method, path: String, id: String, handler: F) -> Self
    where
        F: Fn(Call) -> R + Send + Sync + 'static,
        R: Future<Output = Outcome> + Send + 'static,
    {
        Self {
            method,
            path,
            id,
            tag: "node",
            summary: String::new(),
            description: String::new(),
            // Nobody forgets to think of it without noticing: an admin's token works, nothing else does.
            access: Access::Role(Role::Admin),
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
            Access::Open if self.tag == "access" => RequestClass::Login,
            Access::Open | Access::Metrics | Access::Docs => RequestClass::Health,
            Access::Source | Access::Device => RequestClass::Device,
            Access::Role(_) => RequestClass::Operator,
        }
    }

    pub(crate) fn role(self, role: Role) -> Self {
        self.access(Access::Role(role))
    }

    pub(crate) fn access(mut self, access: Access) -> Self {
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
    pub(crate) fn pages_of(mut self, row: SchemaOf) -> Self {
        self.parameters.extend([LIMIT, AFTER]);
        self.answers_with(200, "A page.", page_schema(row))
    }

    /// A list in pages of `T`.
    pub(crate) fn pages<T: JsonSchema>(self) -> Self {
        self.pages_of(schema_of::<T>())
    }

    /// A list that is always whole.
    pub(crate) fn list<T: JsonSchema>(self) -> Self {
        self.answers_with(200, "All of them.", page_schema(schema_of::<T>()))
    }

    pub(crate) fn body<T: JsonSchema>(self) -> Self {
        self.body_with(schema_of::<T>())
    }

    pub(crate) fn optional_body<T: JsonSchema>(mut self) -> Self {
        self.is_body_optional = true;
        self.body::<T>()
    }

    pub(crate) fn body_with(mut self, schema: SchemaOf) -> Self {
        self.body = Some(json_content(schema));
        self
    }

    /// A body that is no JSON.
    pub(crate) fn raw_body(mut self, media_types: &'static [&'static str]) -> Self {
        self.body = Some(Content {
            media_types,
            schema: None,
        });
        self
    }

    pub(crate) fn answers<T: JsonSchema>(self, status: u16, description: &'static str) -> Self {
        self.answers_with(status, description, schema_of::<T>())
    }

    pub(crate) fn answers_with(
        mut self,
        status: u16,
        description: &'static str,
        schema: SchemaOf,
    ) -> Self {
        self.answers.push(Answer {
            status,
            description,
            content: Some(json_content(schema)),
            has_location: false,
        });
        self
    }

    /// An answer that is no JSON.
    pub(crate) fn answers_raw(
        mut self,
        status: u16,
        description: &'static str,
        media_types: &'static [&'static str],
    ) -> Self {
        self.answers.push(Answer {
            status,
            description,
            content: Some(Content {
                media_types,
                schema: None,
            }),
            has_location: false,
        });
        self
    }

    pub(crate) fn answers_nothing(mut self, status: u16, description: &'static str) -> Self {
        self.answers.push(Answer {
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

    pub(crate) fn versioned(mut self) -> Self {
        self.is_versioned = true;
        self
    }

    pub(crate) fn problem(mut self, status: u16, description: &'static str) -> Self {
        self.problems.push((status, description));
        self
    }
}

/// One page: the rows and the way to the next.
fn page_schema(row: SchemaOf) -> SchemaOf {
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
