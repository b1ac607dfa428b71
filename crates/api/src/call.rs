//! One request as a handler sees it: the caller, the path and query parameters, and the body.

use std::fmt::Display;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use axum::Json;
use axum::body::{Body, Bytes};
use axum::http::request::Parts;
use axum::http::{Extensions, HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use namespaces::NamespaceSelection;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::watch;

use crate::access::{self, CallerIdentity, EndpointAccess, LocalOperator};
use crate::connection_tracker::{
    ConnectionPermit, LongRequestKind, LongRequestPermit, RequestPermit,
};
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::query_parameters::{NAMESPACE, PageCursor, QueryParameters};
use crate::state::ApiState;

/// Field of responses with the names of nodes that did not answer.
const MISSING_NODES: HeaderName = HeaderName::from_static("tidegate-missing-nodes");

pub(crate) struct ApiCall {
    pub(crate) app: Arc<ApiState>,
    pub(crate) identity: CallerIdentity,
    namespaces: SelectedNamespaces,
    pub(crate) client_ip: IpAddr,
    /// The access the route requires.
    pub(crate) access: EndpointAccess,
    pub(crate) query: QueryParameters,
    pub(crate) parts: Parts,
    path: Vec<(String, String)>,
    permit: SharedRequestPermit,
    /// Subscribed before the caller was authenticated.
    pub(crate) revocations: watch::Receiver<u64>,
    /// A mutex, so that a call can be lent to a future that waits; it is never contended.
    body: Mutex<Body>,
}

/// The caller of a request and how it authenticated.
pub(crate) struct ApiCaller {
    pub(crate) identity: CallerIdentity,
    pub(crate) namespaces: SelectedNamespaces,
    pub(crate) client_ip: IpAddr,
    pub(crate) access: EndpointAccess,
    /// Subscribed before the caller was authenticated.
    pub(crate) revocations: watch::Receiver<u64>,
}

/// The namespaces that a request may read and change. Records whether the handler has used them.
#[derive(Clone)]
pub(crate) struct SelectedNamespaces {
    selection: NamespaceSelection,
    was_read: Arc<AtomicBool>,
}

impl SelectedNamespaces {
    pub(crate) fn new(selection: NamespaceSelection) -> Self {
        Self {
            selection,
            was_read: Arc::default(),
        }
    }

    fn read(&self) -> NamespaceSelection {
        self.was_read.store(true, Ordering::Relaxed);
        self.selection.clone()
    }

    pub(crate) fn was_read(&self) -> bool {
        self.was_read.load(Ordering::Relaxed)
    }
}

/// A request's permit in its class, held by the call and by the body of the response.
#[derive(Clone, Default)]
pub(crate) struct SharedRequestPermit(Arc<Mutex<Option<RequestPermit>>>);

impl SharedRequestPermit {
    pub(crate) fn new_for(place: RequestPermit) -> Self {
        Self(Arc::new(Mutex::new(Some(place))))
    }

    fn release(&self) {
        let place = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(place);
    }
}

/// Whether a connection carries a response without an end; the server adds the flag to each
/// request.
#[derive(Debug, Clone, Default)]
pub(crate) struct LongLivedFlag(pub(crate) Arc<AtomicBool>);

/// One page of a list.
#[derive(Serialize)]
pub(crate) struct ListPage<T> {
    pub(crate) data: Vec<T>,
    /// Value of `after` for the next page; `null` on the last page.
    pub(crate) next: Option<String>,
}

impl ApiCall {
    pub(crate) fn new(
        app: Arc<ApiState>,
        caller: ApiCaller,
        share: SharedRequestPermit,
        query: QueryParameters,
        path: Vec<(String, String)>,
        (parts, body): (Parts, Body),
    ) -> Self {
        Self {
            app,
            identity: caller.identity,
            namespaces: caller.namespaces,
            client_ip: caller.client_ip,
            access: caller.access,
            revocations: caller.revocations,
            permit: share,
            query,
            parts,
            path,
            body: Mutex::new(body),
        }
    }

    /// A path parameter, percent-decoded.
    pub(crate) fn path(&self, name: &str) -> &str {
        let mut path = self.path.iter();
        path.find(|(known, _)| known == name)
            .map_or("", |(_, value)| value)
    }

    /// The namespaces whose objects the request may read and change: those of the caller, narrowed
    /// by the addressed object and by the parameter `namespace`.
    pub(crate) fn namespaces(&self) -> NamespaceSelection {
        let selection = self.namespaces.read();
        match self.query.text_value(NAMESPACE.name) {
            Some(namespace) => selection.within(namespace),
            None => selection,
        }
    }

    /// What a stream may show for as long as it is open.
    pub(crate) fn granted_namespaces(&self) -> &NamespaceSelection {
        &self.namespaces.selection
    }

    /// The bearer token of the Authorization header.
    pub(crate) fn bearer(&self) -> Option<&str> {
        let field = access::credentials_header(self.headers())
            .ok()??
            .to_str()
            .ok()?;
        let (scheme, token) = field.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    }

    /// Marks the response as long-lived: the connection is not closed because of its age.
    pub(crate) fn mark_long_lived(&self) {
        mark_long_lived(&self.parts.extensions);
    }

    /// Whether another node has passed the request on.
    pub(crate) fn is_from_node(&self) -> bool {
        let operator = self.parts.extensions.get::<LocalOperator>();
        operator.is_some_and(|operator| operator.is_from_node)
    }

    /// Takes a permit for a long request and returns the permits of the request and of its
    /// connection.
    pub(crate) fn begin_long_request(
        &self,
        kind: LongRequestKind,
        holder: String,
    ) -> Result<LongRequestPermit, ProblemDetails> {
        let connection = self.parts.extensions.get::<Arc<ConnectionPermit>>();
        let place = (self.app.connections).begin_long_request(
            connection.map(|place| place.number),
            kind,
            holder,
        )?;
        self.permit.release();
        Ok(place)
    }

    pub(crate) fn headers(&self) -> &HeaderMap {
        &self.parts.headers
    }

    /// The body, to be read by the handler as it arrives.
    pub(crate) fn take_body(&mut self) -> Body {
        let body = self.body.get_mut();
        std::mem::take(body.unwrap_or_else(PoisonError::into_inner))
    }

    /// The body, limited to `max_bytes`.
    pub(crate) async fn body_bytes(&mut self, max_bytes: usize) -> Result<Bytes, ProblemDetails> {
        let too_long = || {
            let detail = format!("The body exceeds the limit of {max_bytes} bytes.");
            ProblemDetails::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
        };
        let announced = self.headers().get(header::CONTENT_LENGTH);
        let announced = announced.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        if announced.is_some_and(|length| length > max_bytes as u64) {
            return Err(too_long());
        }
        let body = self.body.get_mut();
        let body = std::mem::take(body.unwrap_or_else(PoisonError::into_inner));
        let within = self.app.config.body_timeout();
        let read = tokio::time::timeout(within, axum::body::to_bytes(body, max_bytes)).await;
        let read = read.map_err(|_| {
            let detail = format!("The body did not arrive within {} s.", within.as_secs());
            ProblemDetails::new(StatusCode::REQUEST_TIMEOUT, detail)
        })?;
        read.map_err(|error| {
            use std::error::Error as _;
            let is_too_long = error
                .source()
                .is_some_and(|source| source.is::<http_body_util::LengthLimitError>());
            match is_too_long {
                true => too_long(),
                false => ProblemDetails::bad_request("The request body is incomplete."),
            }
        })
    }

    /// Requires a Content-Type: a cross-site HTML form cannot send JSON under its media type.
    pub(crate) fn expect_media_type(&self, wanted: &str) -> Result<(), ProblemDetails> {
        let mut given = self.headers().get_all(header::CONTENT_TYPE).iter();
        let media_type = given.next().and_then(|value| value.to_str().ok());
        let media_type = media_type.unwrap_or_default().split(';').next();
        let fits = media_type.is_some_and(|given| given.trim().eq_ignore_ascii_case(wanted));
        match fits && given.next().is_none() {
            true => Ok(()),
            false => Err(ProblemDetails::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                format!("The body must be sent with Content-Type: {wanted}."),
            )),
        }
    }

    pub(crate) async fn body_json<T: DeserializeOwned>(&mut self) -> Result<T, ProblemDetails> {
        let value = self.body_value().await?;
        parse(value)
    }

    /// Like [`ApiCall::body_json`], but without a [`Value`] in between, which would sort the fields of JSON that the type
    /// keeps as text.
    pub(crate) async fn body_json_in_order<T: DeserializeOwned>(
        &mut self,
    ) -> Result<T, ProblemDetails> {
        self.expect_media_type("application/json")?;
        let body = self
            .body_bytes(self.app.config.get().max_body_bytes)
            .await?;
        let mut json = serde_json::Deserializer::from_slice(&body);
        let parsed =
            definition::read_json(&mut json).map_err(|error| {
                match serde_json::from_slice::<serde::de::IgnoredAny>(&body) {
                    Ok(_) => type_problem(error),
                    Err(error) => not_json(&error),
                }
            })?;
        json.end().map_err(|error| not_json(&error))?;
        Ok(parsed)
    }

    /// Parses JSON with any `Content-Type`, because ThingsBoard clients also send it as
    /// `text/plain`. Cross-site forms that do the same are rejected by their origin.
    pub(crate) async fn body_json_of_any_type<T: DeserializeOwned>(
        &mut self,
    ) -> Result<T, ProblemDetails> {
        let body = self
            .body_bytes(self.app.config.get().max_body_bytes)
            .await?;
        parse(serde_json::from_slice(&body).map_err(|error| not_json(&error))?)
    }

    /// Like [`ApiCall::body_json`], but an absent body means the default.
    pub(crate) async fn body_json_or_default<T: DeserializeOwned + Default>(
        &mut self,
    ) -> Result<T, ProblemDetails> {
        let has_type = self.headers().contains_key(header::CONTENT_TYPE);
        if !has_type {
            let body = self
                .body_bytes(self.app.config.get().max_body_bytes)
                .await?;
            if body.is_empty() {
                return Ok(T::default());
            }
            self.expect_media_type("application/json")?;
        }
        self.body_json().await
    }

    /// The body as any JSON value.
    pub(crate) async fn body_value(&mut self) -> Result<Value, ProblemDetails> {
        self.expect_media_type("application/json")?;
        let body = self
            .body_bytes(self.app.config.get().max_body_bytes)
            .await?;
        serde_json::from_slice(&body).map_err(|error| not_json(&error))
    }
}

/// Marks the response to a request with these extensions as long-lived.
pub(crate) fn mark_long_lived(extensions: &Extensions) {
    if let Some(stays) = extensions.get::<LongLivedFlag>() {
        stays.0.store(true, Ordering::Relaxed);
    }
}

/// Deserialises JSON into the requested type; the error names the field that does not match.
pub(crate) fn parse<T: DeserializeOwned>(value: Value) -> Result<T, ProblemDetails> {
    definition::read_json(value).map_err(type_problem)
}

fn not_json(error: &serde_json::Error) -> ProblemDetails {
    ProblemDetails::bad_request(format!("The body is not JSON: {error}."))
}

/// JSON of another type than expected.
fn type_problem(error: definition::FieldError) -> ProblemDetails {
    match error.field.as_str() {
        "" => {
            let detail = format!("The body is invalid: {}.", error.detail);
            ProblemDetails::unprocessable(detail)
        }
        field => ProblemDetails::invalid_field(field, format!("{error}.")),
    }
}

/// A 200 response with a JSON body.
pub(crate) fn json_response(body: impl Serialize) -> ApiResult {
    Ok(Json(body).into_response())
}

/// Names the nodes of the cluster that did not answer, for responses whose body has no place for them.
pub(crate) fn with_missing_nodes(response: ApiResult, missing_nodes: &[String]) -> ApiResult {
    let mut response = response?;
    if !missing_nodes.is_empty()
        && let Ok(names) = HeaderValue::try_from(missing_nodes.join(", "))
    {
        response.headers_mut().insert(MISSING_NODES, names);
    }
    Ok(response)
}

/// A 204 response.
pub(crate) fn no_content() -> ApiResult {
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Makes a page from `rows`, which contain one row more than `limit` if there is a next page.
pub(crate) fn paged_rows<T: Serialize>(
    mut rows: Vec<T>,
    limit: usize,
    cursor: impl Fn(&T) -> PageCursor,
) -> ApiResult {
    let has_next = rows.len() > limit;
    rows.truncate(limit);
    let last = rows.last().filter(|_| has_next);
    let next = last.map(|row| cursor(row).encode());
    json_response(ListPage { data: rows, next })
}

/// A page of numbered rows. Depending on the list, the next page starts at `next` or after it.
pub(crate) fn page_of<T: Serialize>(data: Vec<T>, next: Option<impl Display>) -> ApiResult {
    let next = next.map(|next| PageCursor::new(&next.to_string(), "").encode());
    json_response(ListPage { data, next })
}

/// A page of a list, and the cursor of the next one.
pub(crate) fn page_before<T: Serialize>(data: Vec<T>, next: Option<PageCursor>) -> ApiResult {
    let next = next.map(|next| next.encode());
    json_response(ListPage { data, next })
}

/// A list that is always complete on one page.
pub(crate) fn unpaged_list<T: Serialize>(data: Vec<T>) -> ApiResult {
    json_response(ListPage { data, next: None })
}

pub(crate) fn text_response(media_type: &'static str, text: impl Into<Body>) -> Response {
    ([(header::CONTENT_TYPE, media_type)], text.into()).into_response()
}
