//! Connector kind `s3`: S3-compatible object stores. The rows of a batch become objects of lines, or Parquet files.

mod body;
mod content;
mod multipart;
mod signature;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use hyper::Method;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue};
use jiff::Timestamp;
use outbound::request_body::RequestBody;
use schemars::JsonSchema;
use secret::Secret;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::batch::SinkBatch;
use crate::connector::{
    BatchDefaults, BoxFuture, Connector, ConnectorContext, ConnectorError, ConnectorKind,
    OpenConnectorResult, SinkWriter, WriteOutcome, schema_of,
};
use crate::content::{AfterExport, ContentSink};
use crate::dated_template::{DatedTemplate, row_time_ms};
use crate::http_servers::{HttpServers, ServerResponse};
use crate::row::SinkRow;
use crate::settings::{SettingsError, parse_settings};
use crate::template::Template;
use crate::tls::TlsSettings;
use body::{ObjectBody, ObjectFormat};
use content::S3ContentWriter;
use signature::{RequestSigner, SigningInput, encoded_path, sha256};

pub(super) const KIND: ConnectorKind = ConnectorKind {
    name: "s3",
    title: "S3-compatible object store",
    page: "connectors/s3.md",
    // One object per batch: few large ones.
    batch: BatchDefaults {
        max_rows: 50_000,
        max_bytes: 16 << 20,
        max_wait_ms: 60_000,
    },
    connector_schema: schema_of::<S3Settings>,
    sink_schema: schema_of::<S3SinkSettings>,
    source_schema: None,
    open,
};

/// Limit on keys, below that of S3 because a unique part is added.
const MAX_KEY_BYTES: usize = 900;
/// Maximum number of objects per batch.
const MAX_OBJECTS: usize = 1000;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct S3Settings {
    /// Endpoint, as `https://s3.eu-central-1.amazonaws.com` or `http://minio:9000`.
    endpoint: String,
    #[serde(default = "default_region")]
    region: String,
    bucket: String,
    access_key_id: String,
    secret_access_key: Option<Secret>,
    /// File that contains the key.
    secret_access_key_file: Option<PathBuf>,
    /// Session token of temporary credentials.
    session_token: Option<Secret>,
    /// Puts the bucket into the path instead of the host name.
    #[serde(default)]
    path_style: bool,
    tls: Option<TlsSettings>,
}

fn default_region() -> String {
    "us-east-1".into()
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct S3SinkSettings {
    /// Prefix of object keys, with date and placeholders, as `telemetry/%Y/%m/%d/${topic}`. Rows with the same prefix go
    /// into one object. A unique part is added. Default: `%Y/%m/%d/`. With format `content` the whole key of each file;
    /// default: `%Y/%m/%d/${id}/${name}`.
    #[schemars(length(max = 900))]
    key: Option<String>,
    /// Suffix of object keys. Default: `.jsonl` or `.parquet`.
    #[schemars(length(max = 64))]
    suffix: Option<String>,
    #[serde(default)]
    format: ObjectFormatSetting,
    /// Line of a row, with placeholders. Default: the row as JSON.
    line: Option<String>,
    /// Columns of Parquet files, in order.
    #[cfg(feature = "parquet")]
    #[serde(default)]
    columns: Vec<crate::columns::ColumnSetting>,
    /// Row groups of a Parquet file.
    #[cfg(feature = "parquet")]
    parquet: Option<crate::columns::ParquetLayout>,
    content_type: Option<String>,
    /// With format `content`, whether a file stays on the node after its export.
    #[serde(default)]
    after: AfterExport,
    /// With format `content`, size in bytes of the parts of a multipart upload; a part is in memory while it is sent. Files of
    /// at most this size are sent in one request. Default: 16 MiB; larger for files that would have more than 10,000 parts.
    #[schemars(range(min = 5_242_880, max = 268_435_456))]
    part_bytes: Option<u64>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum ObjectFormatSetting {
    /// A line per row.
    #[default]
    Lines,
    /// Typed columns.
    #[cfg(feature = "parquet")]
    Parquet,
    /// Files of the node: a row contains the id of a file in its field `id`, as the event `$events/file/received`.
    Content,
}

const DEFAULT_KEY: &str = "%Y/%m/%d/";

struct S3Connector {
    web: HttpServers,
    host: String,
    /// Path before the key.
    path: String,
    signer: RequestSigner,
    session_token: Option<Secret>,
}

fn open(fields: Map<String, Value>, _: &ConnectorContext) -> OpenConnectorResult {
    let settings: S3Settings = parse_settings(fields)?;
    let secret = Secret::from_setting(
        "secret_access_key",
        settings.secret_access_key.as_ref(),
        settings.secret_access_key_file.as_ref(),
    )?;
    let missing = || SettingsError::new("secret_access_key", "missing");
    let is_bucket = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    if settings.bucket.is_empty() || !settings.bucket.chars().all(is_bucket) {
        let detail = "expected letters, digits, - and .";
        return Err(SettingsError::new("bucket", detail));
    }
    let (scheme, rest) = settings.endpoint.split_once("://").unwrap_or_default();
    let (host, base) = rest.split_once('/').unwrap_or((rest, ""));
    let base = base.trim_end_matches('/');
    if !base.is_empty() {
        return Err(SettingsError::new(
            "endpoint",
            "expected no path behind the host",
        ));
    }
    let (host, path) = match settings.path_style {
        true => (host.to_owned(), format!("/{}/", settings.bucket)),
        false => (format!("{}.{host}", settings.bucket), "/".to_owned()),
    };
    // Servers omit the default port from the signed host.
    let usual = if scheme == "https" { ":443" } else { ":80" };
    let host = host.strip_suffix(usual).unwrap_or(&host).to_owned();
    let web = HttpServers::new(
        "endpoint",
        &[format!("{scheme}://{host}")],
        settings.tls.as_ref(),
    )?;
    Ok(Arc::new(S3Connector {
        web,
        host,
        path,
        signer: RequestSigner {
            access_key_id: settings.access_key_id,
            secret_access_key: secret.ok_or_else(missing)?,
            region: settings.region,
        },
        session_token: settings.session_token,
    }))
}

impl S3Connector {
    /// Where objects are, for people: the host and the path before the key.
    fn address(&self) -> String {
        format!("{}{}", self.web.base(), self.path.trim_end_matches('/'))
    }

    async fn request(
        &self,
        method: Method,
        key: &str,
        query: &[(&str, &str)],
        content_type: Option<&HeaderValue>,
        body: Bytes,
    ) -> Result<ServerResponse, ConnectorError> {
        let body_hash = sha256(&body);
        self.request_hashed(method, key, query, content_type, &body_hash, body.into())
            .await
    }

    /// [`request`](Self::request) with the SHA-256 digest of the body in hexadecimal digits. Names and values of the query are
    /// encoded.
    async fn request_hashed(
        &self,
        method: Method,
        key: &str,
        query: &[(&str, &str)],
        content_type: Option<&HeaderValue>,
        body_hash: &str,
        body: RequestBody,
    ) -> Result<ServerResponse, ConnectorError> {
        let at = Timestamp::now().strftime("%Y%m%dT%H%M%SZ").to_string();
        let path = encoded_path(&format!("{}{key}", self.path));
        let mut signed = vec![
            ("host", self.host.as_str()),
            ("x-amz-content-sha256", body_hash),
            ("x-amz-date", &at),
        ];
        if let Some(token) = &self.session_token {
            signed.push(("x-amz-security-token", token.reveal()));
        }
        let authorization = self.signer.authorization(&SigningInput {
            method: method.as_str(),
            path: &path,
            query,
            headers: &signed,
            body_hash,
            at: &at,
        });
        let mut headers = Vec::new();
        let own = signed.iter().filter(|(name, _)| *name != "host");
        for (name, value) in own.chain([&("authorization", authorization.as_str())]) {
            let name = HeaderName::from_bytes(name.as_bytes());
            let value = HeaderValue::from_str(value);
            let (Ok(name), Ok(mut value)) = (name, value) else {
                return Err(ConnectorError::transient(
                    "a key contains characters that cannot be sent",
                ));
            };
            value.set_sensitive(name == AUTHORIZATION);
            headers.push((name, value));
        }
        if let Some(value) = content_type {
            headers.push((CONTENT_TYPE, value.clone()));
        }
        let query: Vec<_> = query.iter().map(|(n, v)| format!("{n}={v}")).collect();
        let path = match query.is_empty() {
            true => path,
            false => format!("{path}?{}", query.join("&")),
        };
        self.web.request(method, &path, &headers, body).await
    }
}

impl Connector for S3Connector {
    fn writer(
        self: Arc<Self>,
        settings: Map<String, Value>,
    ) -> Result<Arc<dyn SinkWriter>, SettingsError> {
        #[cfg(not(feature = "parquet"))]
        if settings.get("format").and_then(Value::as_str) == Some("parquet") {
            let detail = "this program was built without Parquet; build it with the default features, or take a released one";
            return Err(SettingsError::new("format", detail));
        }
        let settings: S3SinkSettings = parse_settings(settings)?;
        if settings.format == ObjectFormatSetting::Content {
            return Ok(Arc::new(ContentSink(S3ContentWriter::new(
                self, &settings,
            )?)));
        }
        for (field, is_given) in [
            ("after", settings.after != AfterExport::Keep),
            ("part_bytes", settings.part_bytes.is_some()),
        ] {
            if is_given {
                let detail = "this is for format = \"content\"";
                return Err(SettingsError::new(field, detail));
            }
        }
        let bodies = object_format(&settings)?;
        let content_type = settings.content_type.as_deref();
        let content_type = HeaderValue::from_str(content_type.unwrap_or(bodies.content_type()))
            .map_err(|_| {
                SettingsError::new("content_type", "it contains characters that cannot be sent")
            })?;
        let suffix = settings.suffix.as_deref();
        let key = settings.key.as_deref().unwrap_or(DEFAULT_KEY);
        for (field, text) in [("key", key), ("suffix", suffix.unwrap_or(""))] {
            if has_dot_step(text) {
                let detail = "a key cannot have `.` or `..` as a segment";
                return Err(SettingsError::new(field, detail));
            }
        }
        Ok(Arc::new(S3Writer {
            store: self,
            key: DatedTemplate::parse("key", key)?,
            suffix: suffix.unwrap_or(bodies.suffix()).to_owned(),
            bodies,
            content_type,
        }))
    }

    fn test(&self) -> BoxFuture<'_, Result<String, ConnectorError>> {
        Box::pin(async {
            let query = [("list-type", "2"), ("max-keys", "1")];
            let asking = self.request(Method::GET, "", &query, None, Bytes::new());
            let answer = asking.await?;
            match answer.is_success() {
                true => Ok("the bucket exists".into()),
                false => Err(answer.transient_error()),
            }
        })
    }
}

fn object_format(settings: &S3SinkSettings) -> Result<ObjectFormat, SettingsError> {
    match settings.format {
        ObjectFormatSetting::Lines => {
            #[cfg(feature = "parquet")]
            for (field, is_given) in [
                ("columns", !settings.columns.is_empty()),
                ("parquet", settings.parquet.is_some()),
            ] {
                if is_given {
                    let detail = "this is for format = \"parquet\"";
                    return Err(SettingsError::new(field, detail));
                }
            }
            let line = settings.line.as_deref();
            let line = line.map(|text| Template::parse("line", text)).transpose()?;
            Ok(ObjectFormat::Lines(line))
        }
        #[cfg(feature = "parquet")]
        ObjectFormatSetting::Parquet => {
            if settings.line.is_some() {
                return Err(SettingsError::new("line", "this is for format = \"lines\""));
            }
            let layout = settings.parquet.unwrap_or_default();
            layout.check("parquet")?;
            let columns = crate::columns::ColumnMapping::new(&settings.columns)?;
            Ok(ObjectFormat::Parquet(columns, layout))
        }
        ObjectFormatSetting::Content => unreachable!("exports of files have their own sink"),
    }
}

/// Servers and proxies may resolve such segments, which leads to another bucket than the connector's.
fn has_dot_step(key: &str) -> bool {
    key.split(['/', '\\'])
        .any(|step| matches!(step, "." | ".."))
}

/// Whether the store has accepted an object or a part.
fn check_put(answer: &ServerResponse) -> Result<(), ConnectorError> {
    match answer.status {
        200..300 => Ok(()),
        413 => Err(answer.bad_rows_error()),
        400 if contains(&answer.body, b"EntityTooLarge") => Err(answer.bad_rows_error()),
        // Keys, permissions and buckets can be corrected.
        _ => Err(answer.transient_error()),
    }
}

fn contains(body: &[u8], text: &[u8]) -> bool {
    body.windows(text.len()).any(|window| window == text)
}

/// The key, or the prefix of the key, for a row.
fn render_key(key: &DatedTemplate, row: SinkRow<'_>) -> Result<String, ConnectorError> {
    let key = key.render("key", row, row_time_ms(row))?;
    if has_dot_step(&key) {
        let what = format!("{key:?}: a key cannot have `.` or `..` as a segment");
        return Err(ConnectorError::bad_rows(what));
    }
    match key.len() <= MAX_KEY_BYTES {
        true => Ok(key),
        false => {
            let what = format!("a key of more than {MAX_KEY_BYTES} bytes");
            Err(ConnectorError::bad_rows(what))
        }
    }
}

struct S3Writer {
    store: Arc<S3Connector>,
    key: DatedTemplate,
    suffix: String,
    bodies: ObjectFormat,
    content_type: HeaderValue,
}

/// Rows that go into one object.
struct PendingObject {
    places: Vec<usize>,
    body: ObjectBody,
}

impl S3Writer {
    /// Groups the rows of a batch by key prefix.
    fn group_rows(
        &self,
        batch: &SinkBatch,
        failures: &mut Vec<(usize, ConnectorError)>,
    ) -> BTreeMap<String, PendingObject> {
        let mut objects = BTreeMap::<String, PendingObject>::new();
        for (place, row) in batch.rows().enumerate() {
            let key = match render_key(&self.key, row) {
                Ok(key) => key,
                Err(failure) => {
                    failures.push((place, failure));
                    continue;
                }
            };
            if objects.len() >= MAX_OBJECTS && !objects.contains_key(&key) {
                // The remaining rows go with the next attempt.
                let what = "a batch with too many keys";
                failures.push((place, ConnectorError::transient(what)));
                continue;
            }
            let object = match objects.entry(key) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => match self.bodies.new_body() {
                    Ok(body) => new.insert(PendingObject {
                        places: Vec::new(),
                        body,
                    }),
                    Err(what) => {
                        failures.push((place, ConnectorError::transient(what)));
                        continue;
                    }
                },
            };
            match self.bodies.add(row, &mut object.body) {
                Ok(()) => object.places.push(place),
                Err(what) => failures.push((place, ConnectorError::bad_rows(what))),
            }
        }
        objects.retain(|_, object| !object.places.is_empty());
        objects
    }

    async fn put_object(
        &self,
        batch: &SinkBatch,
        begin: &str,
        object: PendingObject,
    ) -> Result<(), ConnectorError> {
        // The same key for each attempt, so that a retry overwrites the object.
        let first = batch.id(object.places[0]);
        let key = format!("{begin}{first}-{}{}", object.places.len(), self.suffix);
        let key = key.trim_start_matches('/');
        let body = object.body.finish().map_err(ConnectorError::transient)?;
        let body = Bytes::from(body);
        let store = &self.store;
        let putting = store.request(Method::PUT, key, &[], Some(&self.content_type), body);
        check_put(&putting.await?)
    }

    async fn put_all(&self, batch: &SinkBatch) -> WriteOutcome {
        let mut failures = Vec::new();
        let objects = self.group_rows(batch, &mut failures);
        let count = objects.len();
        for (begin, object) in objects {
            let places = object.places.clone();
            if let Err(failure) = self.put_object(batch, &begin, object).await {
                if count == 1 && failures.is_empty() {
                    return WriteOutcome::Failed(failure);
                }
                failures.extend(places.into_iter().map(|place| (place, failure.clone())));
            }
        }
        failures.sort_unstable_by_key(|(place, _)| *place);
        WriteOutcome::all_except(batch.len(), failures)
    }
}

impl SinkWriter for S3Writer {
    fn write<'a>(&'a self, batch: &'a SinkBatch) -> BoxFuture<'a, WriteOutcome> {
        Box::pin(self.put_all(batch))
    }
}
