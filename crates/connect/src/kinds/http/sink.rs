//! The HTTP sink: a request per batch or per row.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use data_encoding::HEXLOWER;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Method, Request, StatusCode};
use schemars::JsonSchema;
use secret::Secret;
use serde::Deserialize;

use super::base_url::{BaseUrl, check_header, check_path};
use super::body::{BodyEncoder, BodyFormat, RequestBody};
use super::connector::{ErrorResponse, HttpConnector, parse_header};
use crate::batch::SinkBatch;
use crate::connector::{BoxFuture, ConnectorError, SinkWriter, WriteOutcome};
use crate::content::AfterExport;
use crate::row::SinkRow;
use crate::settings::SettingsError;
use crate::template::Template;

/// Length of an error response shown to people.
const SHOWN_BYTES: usize = 200;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct HttpSinkSettings {
    /// Appended to the connector's URL; begins with `/` or `?` and contains no segment `..`. Values of `${...}` are encoded. With one
    /// request per batch it must be constant.
    #[serde(default)]
    path: String,
    /// Default: `POST`; with format `content` `PUT`.
    method: Option<HttpMethod>,
    /// How rows are mapped to requests.
    #[serde(default)]
    pub(super) format: BodyFormat,
    /// Template of each row. Default: the whole row as JSON.
    pub(super) body: Option<String>,
    /// Default: by format; with format `content` that of the file.
    pub(super) content_type: Option<String>,
    /// Additional headers; `${...}` is rendered with one request per row. They may contain secrets and are not shown.
    #[serde(default)]
    headers: BTreeMap<String, Secret>,
    pub(super) signature: Option<SignatureSettings>,
    /// Header that identifies the rows of a request, the same for each attempt; empty: none.
    #[serde(default = "default_idempotency_header")]
    idempotency_header: String,
    /// Statuses after which a request is retried; all others except 2xx make its rows dead letters. Default: 3xx, 401, 403,
    /// 404, 407, 408, 409, 425, 429 and 5xx.
    retry_statuses: Option<Vec<u16>>,
    /// With format `content`, whether a file stays on the node after its export.
    #[serde(default)]
    pub(super) after: AfterExport,
}

fn default_idempotency_header() -> String {
    "idempotency-key".into()
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
enum HttpMethod {
    Post,
    Put,
    Patch,
}

/// HMAC-SHA256 of the body in hexadecimal digits.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SignatureSettings {
    secret: Secret,
    #[serde(default = "default_header")]
    header: String,
    /// Prefix of the digits, as `sha256=`.
    #[serde(default)]
    prefix: String,
}

fn default_header() -> String {
    "x-signature".into()
}

pub(super) struct HttpSinkWriter {
    pub(super) http: Arc<HttpConnector>,
    target: BaseUrl,
    path: Template,
    method: Method,
    bodies: BodyEncoder,
    headers: Vec<(HeaderName, Template)>,
    content_type: HeaderValue,
    signature: Option<BodySigner>,
    idempotency: Option<HeaderName>,
    retry_statuses: Option<Vec<u16>>,
}

struct BodySigner {
    key: ring::hmac::Key,
    header: HeaderName,
    prefix: String,
}

impl HttpSinkWriter {
    pub(super) fn new(
        http: Arc<HttpConnector>,
        settings: HttpSinkSettings,
    ) -> Result<Self, SettingsError> {
        let Some(target) = http.target.clone() else {
            let detail = "the connector has no url; it only receives";
            return Err(SettingsError::new("connector", detail));
        };
        let bodies = BodyEncoder::new(settings.format, settings.body.as_deref())?;
        check_path(&settings.path)?;
        let path = Template::parse("path", &settings.path)?;
        let is_content = settings.format == BodyFormat::Content;
        if settings.after != AfterExport::Keep && !is_content {
            let detail = "this is for format = \"content\"";
            return Err(SettingsError::new("after", detail));
        }
        let is_single = settings.format == BodyFormat::Single || is_content;
        if !is_single && path.constant().is_none() {
            let detail = "it can differ between rows only with format = \"single\" or \"content\"";
            return Err(SettingsError::new("path", detail));
        }
        let mut headers = Vec::new();
        for (name, value) in &settings.headers {
            let field = format!("headers.{name}");
            check_header(&field, name)?;
            let template = Template::parse(&field, value.reveal());
            // The error is not shown, because it quotes the setting.
            let template = template.map_err(|_| {
                SettingsError::new(
                    &field,
                    "expected a text whose `${...}` are fields or expressions",
                )
            })?;
            if !is_single && template.constant().is_none() {
                let detail =
                    "it can differ between rows only with format = \"single\" or \"content\"";
                return Err(SettingsError::new(&field, detail));
            }
            let (name, _) = parse_header("headers", name, "")?;
            headers.push((name, template));
        }
        let content_type = settings.content_type.as_deref();
        let (_, content_type) = parse_header(
            "content_type",
            "content-type",
            content_type.unwrap_or(settings.format.content_type()),
        )?;
        let signature = match &settings.signature {
            None => None,
            Some(signature) => {
                check_header("signature.header", &signature.header)?;
                let (name, _) = parse_header("signature", &signature.header, "")?;
                parse_header("signature", "prefix", &signature.prefix)?;
                let secret = signature.secret.reveal().as_bytes();
                Some(BodySigner {
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
                Some(parse_header("idempotency_header", name, "")?.0)
            }
        };
        Ok(Self {
            http,
            target,
            path,
            method: match settings.method {
                None if is_content => Method::PUT,
                None | Some(HttpMethod::Post) => Method::POST,
                Some(HttpMethod::Put) => Method::PUT,
                Some(HttpMethod::Patch) => Method::PATCH,
            },
            bodies,
            headers,
            content_type,
            signature,
            idempotency,
            retry_statuses: settings.retry_statuses,
        })
    }

    /// The head of a request without the headers that depend on the body. `row` is the row of the request, or its first
    /// one; `key` is its idempotency key. Returns the path too.
    pub(super) fn request(
        &self,
        row: SinkRow<'_>,
        key: &str,
        content_type: &HeaderValue,
    ) -> Result<(hyper::http::request::Builder, String), ConnectorError> {
        let path = self.path.render_encoded("path", row)?;
        let url = self.target.join(&path).map_err(ConnectorError::bad_rows)?;
        let mut request = Request::builder().method(self.method.clone()).uri(&url);
        if let Some(headers) = request.headers_mut() {
            headers.extend(self.http.headers.clone());
            headers.insert(hyper::header::CONTENT_TYPE, content_type.clone());
            for (name, template) in &self.headers {
                let value = HeaderValue::try_from(template.render_string(row));
                let value = value.map_err(|_| {
                    ConnectorError::bad_rows(format!("the header {name} cannot have this value"))
                })?;
                headers.insert(name, value);
            }
            if let Some(name) = &self.idempotency
                && let Ok(value) = HeaderValue::try_from(key)
            {
                headers.insert(name, value);
            }
        }
        Ok((request, url.to_string()))
    }

    async fn send(&self, row: SinkRow<'_>, body: RequestBody) -> Result<(), ConnectorError> {
        let (mut request, _) = self.request(row, &body.key, &self.content_type)?;
        if let Some(headers) = request.headers_mut()
            && let Some(signer) = &self.signature
        {
            let tag = ring::hmac::sign(&signer.key, &body.bytes);
            let digits = HEXLOWER.encode(tag.as_ref());
            if let Ok(value) = HeaderValue::try_from(format!("{}{digits}", signer.prefix)) {
                headers.insert(&signer.header, value);
            }
        }
        let body = hyper::body::Bytes::from(body.bytes);
        let (status, answer) = self.http.request(request, body).await?;
        self.check_answer(status, &answer)
    }

    pub(super) fn check_answer(
        &self,
        status: StatusCode,
        answer: &ErrorResponse,
    ) -> Result<(), ConnectorError> {
        if status.is_success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&answer.text[..answer.text.len().min(SHOWN_BYTES)]);
        let message = match text.trim() {
            "" => format!("the server answers {status}"),
            text => format!("the server answers {status}: {text}"),
        };
        let failure = match self.is_retried(status.as_u16()) {
            true => ConnectorError::transient(message),
            false => ConnectorError::bad_rows(message),
        };
        Err(match answer.retry_after {
            // Limits the pause that a server can request.
            Some(pause) => failure.with_retry_after(pause.min(Duration::from_secs(3600))),
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

    /// Sends a request for each row, one after the other, to keep their order.
    async fn send_each(&self, batch: &SinkBatch) -> WriteOutcome {
        let mut failures = Vec::new();
        for (at, row) in batch.rows().enumerate() {
            let body = self.bodies.encode_row(row, batch.id(at));
            let Err(failure) = self.send(row, body).await else {
                continue;
            };
            let is_passing = failure.retryable == crate::connector::Retryable::Transient;
            if is_passing && at == 0 {
                return WriteOutcome::Failed(failure);
            }
            if is_passing {
                // The following rows wait for it.
                let behind = (at..batch.len()).map(|at| (at, failure.clone()));
                failures.extend(behind);
                break;
            }
            failures.push((at, failure));
        }
        match failures.is_empty() {
            true => WriteOutcome::All,
            false => WriteOutcome::Except(failures),
        }
    }
}

impl SinkWriter for HttpSinkWriter {
    fn write<'a>(&'a self, batch: &'a SinkBatch) -> BoxFuture<'a, WriteOutcome> {
        Box::pin(async move {
            match self.bodies.encode_batch(batch) {
                None => self.send_each(batch).await,
                Some(body) => self.send(batch.row(0), body).await.into(),
            }
        })
    }
}
