//! Connector kind `s3`: S3-compatible object stores. The rows of a batch become objects of lines, or Parquet files.

mod body;
mod connector;
mod content;
mod multipart;
mod signature;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use hyper::Method;
use hyper::header::HeaderValue;
use schemars::JsonSchema;
use secret::Secret;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::batch::SinkBatch;
use crate::connector::{
    BatchDefaults, BoxFuture, Connector, ConnectorContext, ConnectorError, ConnectorKind,
    OpenConnectorResult, SinkWriter, WriteOutcome, schema_of,
};
use crate::content::AfterExport;
use crate::content_sink::ContentSink;
use crate::dated_template::DatedTemplate;
use crate::http_servers::HttpServers;
use crate::settings::{SettingsError, check_parquet_is_built_in, parse_settings};
use crate::template::Template;
use crate::tls::TlsSettings;
use body::{ObjectBody, ObjectFormat};
use connector::{
    ObjectFormatSetting, S3Connector, S3SinkSettings, check_put, has_dot_step, render_key,
};
use content::S3ContentWriter;
use signature::RequestSigner;

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

const DEFAULT_KEY: &str = "%Y/%m/%d/";

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

impl Connector for S3Connector {
    fn writer(
        self: Arc<Self>,
        settings: Map<String, Value>,
    ) -> Result<Arc<dyn SinkWriter>, SettingsError> {
        check_parquet_is_built_in(&settings)?;
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
