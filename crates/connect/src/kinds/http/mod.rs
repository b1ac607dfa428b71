//! HTTP: a request per batch or per row.

mod body;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::batch::Batch;
use crate::connector::{
    BatchDefaults, Connector, Context, Doing, Failure, Kind, Opened, Writer, Written, schema_of,
};
use crate::row::Row;
use crate::secret::Secret;
use crate::settings::{Invalid, read};
use crate::template::Template;
use crate::tls::Tls;
use body::{Bodies, Body, Format};

pub(super) const KIND: Kind = Kind {
    name: "http",
    title: "HTTP",
    batch: BatchDefaults {
        max_rows: 100,
        ..BatchDefaults::USUAL
    },
    connector_schema: schema_of::<Settings>,
    sink_schema: schema_of::<SinkSettings>,
    open,
};

const MAX_ANSWER_BYTES: usize = 64 << 10;
/// Of an answer that says what is wrong, for people.
const SHOWN_BYTES: usize = 200;
const IDLE_CONNECTIONS: usize = 64;
const IDLE_FOR: Duration = Duration::from_secs(60);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// `http://HOST:PORT/PATH` or `https://...`
    url: String,
    /// Sent with each request; they may hold secrets and are not shown.
    #[serde(default)]
    headers: BTreeMap<String, Secret>,
    /// For basic authentication.
    username: Option<String>,
    password: Option<Secret>,
    /// File that holds the password.
    password_file: Option<PathBuf>,
    tls: Option<Tls>,
    #[serde(default = "five_s")]
    #[schemars(range(min = 10, max = 600_000))]
    connect_timeout_ms: u64,
}

fn five_s() -> u64 {
    5000
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SinkSettings {
    /// Put behind the connector's URL; `${...}` is filled in and encoded. With a request per batch it is the same for all
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
    /// Further headers; `${...}` is filled in if there is a request per row.
    #[serde(default)]
    headers: BTreeMap<String, String>,
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

struct Http {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    url: String,
    headers: HeaderMap,
}

fn open(fields: Map<String, Value>, _: &Context) -> Opened {
    let settings: Settings = read(fields)?;
    let url = settings.url.trim_end_matches('/').to_owned();
    let is_url = url.parse::<Uri>().is_ok_and(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some()
    });
    if !is_url || url.contains('@') {
        let detail = "expected http://HOST:PORT/PATH or https://HOST/PATH, without a password";
        return Err(Invalid::new("url", detail));
    }
    let mut headers = HeaderMap::new();
    for (name, secret) in &settings.headers {
        let (name, mut value) = header("headers", name, secret.reveal())?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    let password = Secret::of_setting(
        "password",
        settings.password.as_ref(),
        settings.password_file.as_ref(),
    )?;
    if settings.username.is_some() || password.is_some() {
        let username = settings.username.unwrap_or_default();
        let password = password.as_ref().map_or("", Secret::reveal);
        let token = STANDARD.encode(format!("{username}:{password}"));
        let mut value = HeaderValue::try_from(format!("Basic {token}"))
            .map_err(|error| Invalid::new("password", error.to_string()))?;
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(Duration::from_millis(settings.connect_timeout_ms)));
    // A plain URL needs no authorities, and a system without them is fine with it.
    let tls = match (&settings.tls, url.starts_with("https:")) {
        (Some(tls), _) => tls.client_config("tls")?,
        (None, true) => Tls::default().client_config("tls")?,
        (None, false) => Tls::nobody()?,
    };
    let connector = hyper_rustls::HttpsConnectorBuilder::new()
        .with_tls_config(Arc::unwrap_or_clone(tls))
        .https_or_http()
        .enable_http1()
        .wrap_connector(tcp);
    let client = Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_FOR)
        .pool_max_idle_per_host(IDLE_CONNECTIONS)
        .build(connector);
    Ok(Arc::new(Http {
        client,
        url,
        headers,
    }))
}

fn header(field: &str, name: &str, value: &str) -> Result<(HeaderName, HeaderValue), Invalid> {
    let field = format!("{field}.{name}");
    let name = HeaderName::try_from(name)
        .map_err(|_| Invalid::new(&field, "expected the name of a header"))?;
    let value = HeaderValue::try_from(value)
        .map_err(|_| Invalid::new(&field, "a header cannot have this value"))?;
    Ok((name, value))
}

impl Connector for Http {
    fn writer(self: Arc<Self>, settings: Map<String, Value>) -> Result<Arc<dyn Writer>, Invalid> {
        let settings: SinkSettings = read(settings)?;
        let bodies = Bodies::new(settings.format, settings.body.as_deref())?;
        let path = Template::parse("path", &settings.path)?;
        let is_single = settings.format == Format::Single;
        if !is_single && path.constant().is_none() {
            let detail = "it can differ between rows only with format = \"single\"";
            return Err(Invalid::new("path", detail));
        }
        let mut headers = Vec::new();
        for (name, value) in &settings.headers {
            let field = format!("headers.{name}");
            let template = Template::parse(&field, value)?;
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
            name => Some(header("idempotency_header", name, "")?.0),
        };
        Ok(Arc::new(HttpWriter {
            http: self,
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
        }))
    }

    /// Any answer but a refusal says that the server is there: few of those who take a POST answer a HEAD.
    fn test(&self) -> Doing<'_, Result<String, Failure>> {
        Box::pin(async move {
            let mut request = Request::head(&self.url);
            if let Some(headers) = request.headers_mut() {
                headers.extend(self.headers.clone());
            }
            let (status, _) = self.ask(request, Bytes::new()).await?;
            match status {
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                    Err(Failure::passing(format!("it answers {status}")))
                }
                status => Ok(format!("it answers {status}")),
            }
        })
    }
}

impl Http {
    async fn ask(
        &self,
        request: hyper::http::request::Builder,
        body: Bytes,
    ) -> Result<(StatusCode, Answer), Failure> {
        let request = request
            .body(Full::new(body))
            .map_err(|error| Failure::of_rows(format!("the request cannot be made: {error}")))?;
        let answer = self.client.request(request).await;
        let answer = answer.map_err(|error| {
            let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
            Failure::passing(format!("{error}{}", cause.unwrap_or_default()))
        })?;
        let status = answer.status();
        let retry_after = answer.headers().get(RETRY_AFTER);
        let retry_after = retry_after.and_then(|value| value.to_str().ok()?.parse().ok());
        // Read to its end, so that the connection can be used again; what is larger is let go with it.
        let text = Limited::new(answer.into_body(), MAX_ANSWER_BYTES).collect();
        let text = text.await.map(|body| body.to_bytes()).unwrap_or_default();
        Ok((
            status,
            Answer {
                retry_after: retry_after.map(Duration::from_secs),
                text,
            },
        ))
    }
}

struct Answer {
    retry_after: Option<Duration>,
    text: Bytes,
}

struct HttpWriter {
    http: Arc<Http>,
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

impl HttpWriter {
    /// `row` is the one the request is about, or the first of them.
    async fn send(&self, row: Row<'_>, body: Body) -> Result<(), Failure> {
        let path = self.path.render_encoded(row);
        let mut request = Request::builder()
            .method(self.method.clone())
            .uri(format!("{}{path}", self.http.url));
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

impl Writer for HttpWriter {
    fn write<'a>(&'a self, batch: &'a Batch) -> Doing<'a, Written> {
        Box::pin(async move {
            match self.bodies.of_batch(batch) {
                None => self.send_each(batch).await,
                Some(body) => self.send(batch.row(0), body).await.into(),
            }
        })
    }
}
