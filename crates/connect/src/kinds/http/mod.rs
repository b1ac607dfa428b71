//! HTTP: requests to a server, and requests that are posted to a source.

mod body;
mod sink;
mod source;
mod target;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Request, StatusCode};
use outbound::http::{Bounds, HttpsClient, https_client};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::connector::{
    BatchDefaults, Connector, Context, Doing, Failure, Kind, Opened, Reader, Writer, schema_of,
};
use crate::secret::Secret;
use crate::settings::{Invalid, read};
use crate::tls::Tls;
use target::Target;

pub(super) const KIND: Kind = Kind {
    name: "http",
    title: "HTTP",
    batch: BatchDefaults {
        max_rows: 100,
        ..BatchDefaults::USUAL
    },
    connector_schema: schema_of::<Settings>,
    sink_schema: schema_of::<sink::Settings>,
    source_schema: Some(schema_of::<source::Settings>),
    open,
};

const MAX_ANSWER_BYTES: usize = 64 << 10;
const IDLE_CONNECTIONS: usize = 64;
const IDLE_FOR: Duration = Duration::from_secs(60);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// `http://HOST:PORT/PATH` or `https://...`; left out: for sources only.
    url: Option<String>,
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

struct Http {
    client: HttpsClient,
    target: Option<Target>,
    headers: HeaderMap,
}

fn open(fields: Map<String, Value>, _: &Context) -> Opened {
    let settings: Settings = read(fields)?;
    let target = settings.url.as_deref().map(Target::parse).transpose()?;
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
    let is_secure = target.as_ref().is_some_and(Target::is_secure);
    let config = Tls::for_web(settings.tls.as_ref(), is_secure, "tls")?;
    let bounds = Bounds {
        max_answer_bytes: MAX_ANSWER_BYTES,
        idle_connections: IDLE_CONNECTIONS,
        idle_for: IDLE_FOR,
        connect_timeout: Duration::from_millis(settings.connect_timeout_ms),
    };
    let client = https_client(config, &bounds);
    Ok(Arc::new(Http {
        client,
        target,
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
        Ok(Arc::new(sink::Sink::new(self, read(settings)?)?))
    }

    fn reader(self: Arc<Self>, settings: Map<String, Value>) -> Result<Arc<dyn Reader>, Invalid> {
        Ok(Arc::new(source::Source::new(read(settings)?)?))
    }

    /// Any answer but a refusal says that the server is there: few of those who take a POST answer a HEAD.
    fn test(&self) -> Doing<'_, Result<String, Failure>> {
        Box::pin(async move {
            let Some(target) = &self.target else {
                return Ok("it has no url and only receives".into());
            };
            let url = target.join("").map_err(Failure::passing)?;
            let mut request = Request::head(url);
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
