//! Writing: a request per batch or per row.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hyper::header::{HeaderName, HeaderValue};
use hyper::{Method, Request};
use schemars::JsonSchema;
use serde::Deserialize;

use super::body::{Bodies, Body, Format};
use super::target::{Target, check_header, check_path};
use super::{Http, header};
use crate::batch::Batch;
use crate::connector::{Doing, Failure, Writer, Written};
use crate::row::Row;
use crate::secret::Secret;
use crate::settings::Invalid;
use crate::template::Template;

/// Of an answer that says what is wrong, for people.
const SHOWN_BYTES: usize = 200;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Settings {
    /// Put behind the connector's URL; it begins with `/` or `?`, and no step of it is `..`. `${...}` is filled in and encoded. With a request per batch it is the same for all
    /// rows.
    #[serde(default)]
    path: String,
    #[serde(default)]
    method: Verb,
    /// How rows become requests.
    #[serde(default)]
    format: Format,
    /// Of each row; the whole row as JSON if left out.
    body: Option<String>,
    content_type: Option<String>,
    /// Further headers; `${...}` is filled in if there is a request per row. They may hold secrets and are not shown.
    #[serde(default)]
    headers: BTreeMap<String, Secret>,
    signature: Option<Signature>,
    /// The header that names the rows of a request, the same each time it is tried; empty: none.
    #[serde(default = "idempotency_key")]
    idempotency_header: String,
    /// Statuses after which a request is sent again; all others but 2xx make its rows dead letters. Left out: 3xx, 401, 403,
    /// 404, 407, 408, 409, 425, 429 and 5xx.
    retry_statuses: Option<Vec<u16>>,
}

fn idempotency_key() -> String {
    "idempotency-key".into()
}

#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
enum Verb {
    #[default]
    Post,
    Put,
    Patch,
}

/// HMAC-SHA256 of the body, in hexadecimal digits.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Signature {
    secret: Secret,
    #[serde(default = "signature_header")]
    header: String,
    /// Put in front of the digits, as `sha256=`.
    #[serde(default)]
    prefix: String,
}

fn signature_header() -> String {
    "x-signature".into()
}

pub(super) struct Sink {
    http: Arc<Http>,
    target: Target,
    path: Template,
    method: Method,
    bodies: Bodies,
    headers: Vec<(HeaderName, Template)>,
    content_type: HeaderValue,
    signature: Option<Signer>,
    idempotency: Option<HeaderName>,
    retry_statuses: Option<Vec<u16>>,
}

struct Signer {
    key: ring::hmac::Key,
    header: HeaderName,
    prefix: String,
}

impl Sink {
    pub(super) fn new(http: Arc<Http>, settings: Settings) -> Result<Self, Invalid> {
        let Some(target) = http.target.clone() else {
            let detail = "this connector has no url: it only receives";
            return Err(Invalid::new("connector", detail));
        };
        let bodies = Bodies::new(settings.format, settings.body.as_deref())?;
        check_path(&settings.path)?;
        let path = Template::parse("path", &settings.path)?;
        let is_single = settings.format == Format::Single;
        if !is_single && path.constant().is_none() {
            let detail = "it can differ between rows only with format = \"single\"";
            return Err(Invalid::new("path", detail));
        }
        let mut headers = Vec::new();
        for (name, value) in &settings.headers {
            let field = format!("headers.{name}");
            check_header(&field, name)?;
            let template = Template::parse(&field, value.reveal());
            // The error is not shown: it quotes what it is about.
            let template = template.map_err(|_| {
                Invalid::new(
                    &field,
                    "expected a text whose `${...}` are fields or expressions",
                )
            })?;
            if !is_single && template.constant().is_none() {
                let detail = "it can differ between rows only with format = \"single\"";
                return Err(Invalid::new(&field, detail));
            }
            let (name, _) = header("headers", name, "")?;
            headers.push((name, template));
        }
        let content_type = settings.content_type.as_deref();
        let (_, content_type) = header(
            "content_type",
            "content-type",
            content_type.unwrap_or(settings.format.content_type()),
        )?;
        let signature = match &settings.signature {
            None => None,
            Some(signature) => {
                check_header("signature.header", &signature.header)?;
                let (name, _) = header("signature", &signature.header, "")?;
                header("signature", "prefix", &signature.prefix)?;
                let secret = signature.secret.reveal().as_bytes();
                Some(Signer {
                    key: ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret),
                    header: name,
                    prefix: signature.prefix.clone(),
                })
            }
        };
        let idempotency = match settings.idempotency_header.as_str() {
            "" => None,
            name => {
                check_header("idempotency_header", name)?;
                Some(header("idempotency_header", name, "")?.0)
            }
        };
        Ok(Self {
            http,
            target,
            path,
            method: match settings.method {
                Verb::Post => Method::POST,
                Verb::Put => Method::PUT,
                Verb::Patch => Method::PATCH,
            },
            bodies,
            headers,
            content_type,
            signature,
            idempotency,
            retry_statuses: settings.retry_statuses,
        })
    }

    /// `row` is the one the request is about, or the first of them.
    async fn send(&self, row: Row<'_>, body: Body) -> Result<(), Failure> {
        let path = self.path.render_encoded("path", row)?;
        let url = self.target.join(&path).map_err(Failure::of_rows)?;
        let mut request = Request::builder().method(self.method.clone()).uri(url);
        if let Some(headers) = request.headers_mut() {
            headers.extend(self.http.headers.clone());
            headers.insert(hyper::header::CONTENT_TYPE, self.content_type.clone());
            for (name, template) in &self.headers {
                let value = HeaderValue::try_from(template.render_string(row));
                let value = value.map_err(|_| {
                    Failure::of_rows(format!("the header {name} cannot have this value"))
                })?;
                headers.insert(name, value);
            }
            if let Some(name) = &self.idempotency
                && let Ok(value) = HeaderValue::try_from(&body.key)
            {
                headers.insert(name, value);
            }
            if let Some(signer) = &self.signature {
                let tag = ring::hmac::sign(&signer.key, &body.bytes);
                let digits: String = tag.as_ref().iter().map(|b| format!("{b:02x}")).collect();
                if let Ok(value) = HeaderValue::try_from(format!("{}{digits}", signer.prefix)) {
                    headers.insert(&signer.header, value);
                }
            }
        }
        let (status, answer) = self.http.ask(request, body.bytes.into()).await?;
        if status.is_success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&answer.text[..answer.text.len().min(SHOWN_BYTES)]);
        let message = match text.trim() {
            "" => format!("the server answers {status}"),
            text => format!("the server answers {status}: {text}"),
        };
        let failure = match self.is_retried(status.as_u16()) {
            true => Failure::passing(message),
            false => Failure::of_rows(message),
        };
        Err(match answer.retry_after {
            // A server does not keep us away for ever.
            Some(pause) => failure.retry_after(pause.min(Duration::from_secs(3600))),
            None => failure,
        })
    }

    fn is_retried(&self, status: u16) -> bool {
        match &self.retry_statuses {
            Some(statuses) => statuses.contains(&status),
            None => matches!(
                status,
                300..=399 | 401 | 403 | 404 | 407 | 408 | 409 | 425 | 429 | 500..=599
            ),
        }
    }

    /// A request for each row, one after the other, so that they come in their order.
    async fn send_each(&self, batch: &Batch) -> Written {
        let mut failures = Vec::new();
        for (at, row) in batch.rows().enumerate() {
            let body = self.bodies.of_row(row, batch.id(at));
            let Err(failure) = self.send(row, body).await else {
                continue;
            };
            let is_passing = failure.lasting == crate::Lasting::Passing;
            if is_passing && at == 0 {
                return Written::Failed(failure);
            }
            if is_passing {
                // Those behind it wait for it.
                let behind = (at..batch.len()).map(|at| (at, failure.clone()));
                failures.extend(behind);
                break;
            }
            failures.push((at, failure));
        }
        match failures.is_empty() {
            true => Written::All,
            false => Written::Except(failures),
        }
    }
}

impl Writer for Sink {
    fn write<'a>(&'a self, batch: &'a Batch) -> Doing<'a, Written> {
        Box::pin(async move {
            match self.bodies.of_batch(batch) {
                None => self.send_each(batch).await,
                Some(body) => self.send(batch.row(0), body).await.into(),
            }
        })
    }
}
