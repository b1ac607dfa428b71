//! Error responses: problem details (RFC 9457).

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Serialize;

/// The response to a request, or an error response.
pub(crate) type ApiResult = Result<Response, ProblemDetails>;

/// An error response. Every error of the API has this form.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ProblemDetails {
    pub(crate) status: StatusCode,
    /// What is wrong and how to correct it.
    pub(crate) detail: String,
    /// The query parameter or body field that is invalid.
    pub(crate) parameter: Option<String>,
    hint: ProblemHint,
}

/// Additional headers of the response.
#[derive(Debug, PartialEq, Eq)]
enum ProblemHint {
    None,
    /// WWW-Authenticate: how to authenticate.
    Challenge,
    /// Retry-After, in seconds.
    RetryAfter(u64),
}

/// Problem details (RFC 9457), `application/problem+json`.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Problem")]
pub(crate) struct ProblemBody<'a> {
    /// Always `about:blank`: the status is the type of the problem.
    r#type: &'static str,
    /// Status as text.
    title: &'a str,
    status: u16,
    /// What is wrong and how to correct it.
    detail: &'a str,
    /// Query parameter or body field that is invalid.
    #[serde(skip_serializing_if = "Option::is_none")]
    parameter: Option<&'a str>,
}

impl ProblemDetails {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            status,
            detail: detail.into(),
            parameter: None,
            hint: ProblemHint::None,
        }
    }

    pub(crate) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// A query parameter that is unknown or invalid.
    pub(crate) fn invalid_parameter(name: &str, detail: impl Into<String>) -> Self {
        Self {
            parameter: Some(name.to_owned()),
            ..Self::bad_request(detail)
        }
    }

    /// A body that is valid JSON with an invalid value in the named field.
    pub(crate) fn invalid_field(name: &str, detail: impl Into<String>) -> Self {
        let detail = rules::with_suggestion(&detail.into());
        Self {
            status: StatusCode::UNPROCESSABLE_ENTITY,
            ..Self::invalid_parameter(name, detail)
        }
    }

    /// Prefixes the field with the part of a larger body that contains it.
    pub(crate) fn within_part(self, part: &str) -> Self {
        Self {
            detail: format!("{part}: {}", self.detail),
            parameter: self.parameter.map(|name| format!("{part}.{name}")),
            ..self
        }
    }

    /// A body that is valid JSON but invalid as a whole.
    pub(crate) fn unprocessable(detail: impl Into<String>) -> Self {
        let detail = rules::with_suggestion(&detail.into());
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
    }

    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, detail)
    }

    pub(crate) fn conflict(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, detail)
    }

    /// The caller has sent no credentials, or invalid ones.
    pub(crate) fn unauthorized(detail: impl Into<String>) -> Self {
        Self {
            hint: ProblemHint::Challenge,
            ..Self::new(StatusCode::UNAUTHORIZED, detail)
        }
    }

    pub(crate) fn too_many_requests(retry_after_s: u64, detail: impl Into<String>) -> Self {
        Self {
            hint: ProblemHint::RetryAfter(retry_after_s),
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, detail)
        }
    }

    pub(crate) fn busy(retry_after_s: u64, detail: impl Into<String>) -> Self {
        Self {
            hint: ProblemHint::RetryAfter(retry_after_s),
            ..Self::unavailable(detail)
        }
    }

    pub(crate) fn storage_full(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::INSUFFICIENT_STORAGE, detail)
    }

    pub(crate) fn unavailable(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    }
}

impl IntoResponse for ProblemDetails {
    fn into_response(self) -> Response {
        let body = ProblemBody {
            r#type: "about:blank",
            title: self.status.canonical_reason().unwrap_or("Error"),
            status: self.status.as_u16(),
            detail: &self.detail,
            parameter: self.parameter.as_deref(),
        };
        let mut response = (self.status, axum::Json(body)).into_response();
        let fields = response.headers_mut();
        fields.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        match self.hint {
            ProblemHint::None => {}
            ProblemHint::Challenge => {
                let challenge = HeaderValue::from_static("Bearer realm=\"tidegate\"");
                fields.insert(header::WWW_AUTHENTICATE, challenge);
            }
            ProblemHint::RetryAfter(seconds) => {
                fields.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
            }
        }
        response
    }
}
