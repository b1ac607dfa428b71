//! One request on its way to a handler: who asks, what for, with which body.

use std::fmt::Display;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use axum::Json;
use axum::body::{Body, Bytes};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::watch;

use crate::access::{self, Identity};
use crate::app::App;
use crate::connections::{ConnectionPlace, LastingKind, LastingPlace, RequestPlace};
use crate::endpoint::{Access, Outcome};
use crate::parameters::{Cursor, Parameters};
use crate::problem::Problem;

pub(crate) struct Call {
    pub(crate) app: Arc<App>,
    pub(crate) who: Identity,
    pub(crate) from: IpAddr,
    /// What the route asks for.
    pub(crate) access: Access,
    pub(crate) query: Parameters,
    pub(crate) parts: Parts,
    path: Vec<(String, String)>,
    share: RequestShare,
    /// As it was before the caller was let in.
    pub(crate) revocations: watch::Receiver<u64>,
    /// A mutex, so that a call can be lent to what waits; nobody else ever locks it.
    body: Mutex<Body>,
}

/// Who sent a request, and what it needed to.
pub(crate) struct Caller {
    pub(crate) who: Identity,
    pub(crate) from: IpAddr,
    pub(crate) access: Access,
    /// As it was before the caller was let in.
    pub(crate) revocations: watch::Receiver<u64>,
}

/// A request's place in its class, held by the call and by the body of the answer.
#[derive(Clone, Default)]
pub(crate) struct RequestShare(Arc<Mutex<Option<RequestPlace>>>);

impl RequestShare {
    pub(crate) fn of(place: RequestPlace) -> Self {
        Self(Arc::new(Mutex::new(Some(place))))
    }

    fn give_back(&self) {
        let place = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(place);
    }
}

/// Whether a connection carries an answer without an end; the server puts it into each request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stays(pub(crate) Arc<AtomicBool>);

/// One page of a list.
#[derive(Serialize)]
pub(crate) struct Page<T> {
    pub(crate) data: Vec<T>,
    /// To be given as `after` for the next page; `null` on the last.
    pub(crate) next: Option<String>,
}

impl Call {
    pub(crate) fn new(
        app: Arc<App>,
        caller: Caller,
        share: RequestShare,
        query: Parameters,
        path: Vec<(String, String)>,
        (parts, body): (Parts, Body),
    ) -> Self {
        Self {
            app,
            who: caller.who,
            from: caller.from,
            access: caller.access,
            revocations: caller.revocations,
            share,
            query,
            parts,
            path,
            body: Mutex::new(body),
        }
    }

    /// A part of the path, percent-decoded.
    pub(crate) fn path(&self, name: &str) -> &str {
        let mut path = self.path.iter();
        path.find(|(known, _)| known == name)
            .map_or("", |(_, value)| value)
    }

    /// The token of the Authorization field.
    pub(crate) fn bearer(&self) -> Option<&str> {
        let field = access::credentials(self.headers()).ok()??.to_str().ok()?;
        let (scheme, token) = field.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    }

    /// The answer takes as long as it takes: the connection is not ended for its age.
    pub(crate) fn keep_connection(&self) {
        if let Some(stays) = self.parts.extensions.get::<Stays>() {
            stays.0.store(true, Ordering::Relaxed);
        }
    }

    /// Takes a place for what lasts instead of the request's own place and that of its connection.
    pub(crate) fn last(&self, kind: LastingKind, holder: String) -> Result<LastingPlace, Problem> {
        let connection = self.parts.extensions.get::<Arc<ConnectionPlace>>();
        let place =
            (self.app.connections).last(connection.map(|place| place.number), kind, holder)?;
        self.share.give_back();
        Ok(place)
    }

    pub(crate) fn headers(&self) -> &HeaderMap {
        &self.parts.headers
    }

    /// The body as it came, within `max_bytes`.
    pub(crate) async fn bytes(&mut self, max_bytes: usize) -> Result<Bytes, Problem> {
        let too_long = || {
            let detail = format!("The body is longer than {max_bytes} bytes.");
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
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
            Problem::new(StatusCode::REQUEST_TIMEOUT, detail)
        })?;
        read.map_err(|error| {
            use std::error::Error as _;
            let is_too_long = error
                .source()
                .is_some_and(|source| source.is::<http_body_util::LengthLimitError>());
            match is_too_long {
                true => too_long(),
                false => Problem::bad_request("The body did not arrive whole."),
            }
        })
    }

    /// A body must say what it is: a form of a foreign web page cannot say that it is JSON.
    pub(crate) fn expect_media_type(&self, wanted: &str) -> Result<(), Problem> {
        let mut given = self.headers().get_all(header::CONTENT_TYPE).iter();
        let media_type = given.next().and_then(|value| value.to_str().ok());
        let media_type = media_type.unwrap_or_default().split(';').next();
        let fits = media_type.is_some_and(|given| given.trim().eq_ignore_ascii_case(wanted));
        match fits && given.next().is_none() {
            true => Ok(()),
            false => Err(Problem::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                format!("The body must be sent with Content-Type: {wanted}."),
            )),
        }
    }

    pub(crate) async fn json<T: DeserializeOwned>(&mut self) -> Result<T, Problem> {
        let value = self.value().await?;
        read(value)
    }

    /// JSON whatever `Content-Type` says: clients of ThingsBoard send it as `text/plain`, too. A form of a foreign web page
    /// that does the same is refused for its origin.
    pub(crate) async fn json_of_any_type<T: DeserializeOwned>(&mut self) -> Result<T, Problem> {
        let body = self.bytes(self.app.config.get().max_body_bytes).await?;
        let value = serde_json::from_slice(&body)
            .map_err(|error| Problem::bad_request(format!("The body is not JSON: {error}.")))?;
        read(value)
    }

    /// As [`Call::json`], where a request without a body means the default.
    pub(crate) async fn json_or_default<T: DeserializeOwned + Default>(
        &mut self,
    ) -> Result<T, Problem> {
        let has_type = self.headers().contains_key(header::CONTENT_TYPE);
        if !has_type {
            let body = self.bytes(self.app.config.get().max_body_bytes).await?;
            if body.is_empty() {
                return Ok(T::default());
            }
            self.expect_media_type("application/json")?;
        }
        self.json().await
    }

    /// Any JSON.
    pub(crate) async fn value(&mut self) -> Result<Value, Problem> {
        self.expect_media_type("application/json")?;
        let body = self.bytes(self.app.config.get().max_body_bytes).await?;
        serde_json::from_slice(&body)
            .map_err(|error| Problem::bad_request(format!("The body is not JSON: {error}.")))
    }
}

/// Makes JSON the type that was asked for, or says which field is not what was expected.
pub(crate) fn read<T: DeserializeOwned>(value: Value) -> Result<T, Problem> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let detail = match path.as_str() {
            "." => format!("The body is not what was expected: {}.", error.inner()),
            path => format!("{path}: {}.", error.inner()),
        };
        match path.as_str() {
            "." => Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail),
            path => Problem::field(path, detail),
        }
    })
}

/// Does what may wait for the disk. Where it ends by a panic, `otherwise` says what could not be done.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
    otherwise: &'static str,
) -> Result<T, Problem> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| Problem::unavailable(otherwise))
}

/// 200 with JSON.
pub(crate) fn ok(body: impl Serialize) -> Outcome {
    Ok(Json(body).into_response())
}

/// 204: done, and nothing to say.
pub(crate) fn done() -> Outcome {
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Cuts a page off `rows`, which hold one more than `limit` if there is a next page.
pub(crate) fn page<T: Serialize>(
    mut rows: Vec<T>,
    limit: usize,
    cursor: impl Fn(&T) -> Cursor,
) -> Outcome {
    let has_next = rows.len() > limit;
    rows.truncate(limit);
    let last = rows.last().filter(|_| has_next);
    let next = last.map(|row| cursor(row).encode());
    ok(Page { data: rows, next })
}

/// A page of rows with numbers; the next one has those from `next` on, or behind it, as the list has it.
pub(crate) fn page_from<T: Serialize>(data: Vec<T>, next: Option<impl Display>) -> Outcome {
    let next = next.map(|next| Cursor::new(&next.to_string(), "").encode());
    ok(Page { data, next })
}

/// All rows on one page.
pub(crate) fn whole<T: Serialize>(data: Vec<T>) -> Outcome {
    ok(Page { data, next: None })
}

pub(crate) fn text(media_type: &'static str, text: impl Into<Body>) -> Response {
    ([(header::CONTENT_TYPE, media_type)], text.into()).into_response()
}
