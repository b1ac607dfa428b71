//! Object stores that speak S3: the rows of a batch become objects of lines, or Parquet files.

mod body;
mod sign;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use hyper::Method;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::batch::Batch;
use crate::connector::{
    BatchDefaults, Connector, Context, Doing, Failure, Kind, Opened, Writer, Written, schema_of,
};
use crate::dated::{Dated, Time, time_of};
use crate::machine::now_ms;
use crate::secret::Secret;
use crate::settings::{Invalid, read};
use crate::template::Template;
use crate::tls::Tls;
use crate::web::{Answer, Web};
use body::{Bodies, Body};
use sign::{Signed, Signer, encoded_path, sha256};

pub(super) const KIND: Kind = Kind {
    name: "s3",
    title: "S3-compatible object store",
    // An object per batch: few and large.
    batch: BatchDefaults {
        max_rows: 50_000,
        max_bytes: 16 << 20,
        max_wait_ms: 60_000,
    },
    connector_schema: schema_of::<Settings>,
    sink_schema: schema_of::<SinkSettings>,
    source_schema: None,
    open,
};

/// S3 takes no longer keys; some of it is for what makes a key unique.
const MAX_KEY_BYTES: usize = 900;
/// Objects of one batch.
const MAX_OBJECTS: usize = 1000;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// As `https://s3.eu-central-1.amazonaws.com` or `http://minio:9000`.
    endpoint: String,
    #[serde(default = "us_east")]
    region: String,
    bucket: String,
    access_key_id: String,
    secret_access_key: Option<Secret>,
    /// File with the key.
    secret_access_key_file: Option<PathBuf>,
    /// Of credentials that are given for a while.
    session_token: Option<Secret>,
    /// Puts the bucket into the path rather than into the name of the host.
    #[serde(default)]
    path_style: bool,
    tls: Option<Tls>,
}

fn us_east() -> String {
    "us-east-1".into()
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SinkSettings {
    /// What the keys of objects begin with; with the date and placeholders, as `telemetry/%Y/%m/%d/${topic}`. Rows for
    /// which it is the same go into one object. A unique part is added.
    #[serde(default = "by_day")]
    #[schemars(length(max = 900))]
    key: String,
    /// What the keys end with; `.jsonl` or `.parquet` if left out.
    #[schemars(length(max = 64))]
    suffix: Option<String>,
    #[serde(default)]
    format: Format,
    /// The line of a row, with placeholders. Left out: the row as JSON.
    line: Option<String>,
    /// Of Parquet files, in their order.
    #[cfg(feature = "parquet")]
    #[serde(default)]
    columns: Vec<crate::columns::Setting>,
    /// How a Parquet file is laid out.
    #[cfg(feature = "parquet")]
    parquet: Option<crate::columns::Layout>,
    content_type: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Format {
    /// A line for each row.
    #[default]
    Lines,
    /// Columns with types.
    #[cfg(feature = "parquet")]
    Parquet,
}

fn by_day() -> String {
    "%Y/%m/%d/".into()
}

struct Store {
    web: Web,
    host: String,
    /// Before the key.
    path: String,
    signer: Signer,
    session_token: Option<Secret>,
}

fn open(fields: Map<String, Value>, _: &Context) -> Opened {
    let settings: Settings = read(fields)?;
    let secret = Secret::of_setting(
        "secret_access_key",
        settings.secret_access_key.as_ref(),
        settings.secret_access_key_file.as_ref(),
    )?;
    let missing = || Invalid::new("secret_access_key", "missing");
    let is_bucket = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    if settings.bucket.is_empty() || !settings.bucket.chars().all(is_bucket) {
        let detail = "expected letters, digits, - and .";
        return Err(Invalid::new("bucket", detail));
    }
    let (scheme, rest) = settings.endpoint.split_once("://").unwrap_or_default();
    let (host, base) = rest.split_once('/').unwrap_or((rest, ""));
    let base = base.trim_end_matches('/');
    if !base.is_empty() {
        return Err(Invalid::new("endpoint", "expected no path behind the host"));
    }
    let (host, path) = match settings.path_style {
        true => (host.to_owned(), format!("/{}/", settings.bucket)),
        false => (format!("{}.{host}", settings.bucket), "/".to_owned()),
    };
    // Servers leave the usual port out of what they sign.
    let usual = if scheme == "https" { ":443" } else { ":80" };
    let host = host.strip_suffix(usual).unwrap_or(&host).to_owned();
    let web = Web::new(
        "endpoint",
        &[format!("{scheme}://{host}")],
        settings.tls.as_ref(),
    )?;
    Ok(Arc::new(Store {
        web,
        host,
        path,
        signer: Signer {
            access_key_id: settings.access_key_id,
            secret_access_key: secret.ok_or_else(missing)?,
            region: settings.region,
        },
        session_token: settings.session_token,
    }))
}

impl Store {
    async fn ask(
        &self,
        method: Method,
        key: &str,
        query: &[(&str, &str)],
        content_type: Option<&HeaderValue>,
        body: Bytes,
    ) -> Result<Answer, Failure> {
        let at = Time::of(now_ms()).compact();
        let body_hash = sha256(&body);
        let path = encoded_path(&format!("{}{key}", self.path));
        let mut signed = vec![
            ("host", self.host.as_str()),
            ("x-amz-content-sha256", &body_hash),
            ("x-amz-date", &at),
        ];
        if let Some(token) = &self.session_token {
            signed.push(("x-amz-security-token", token.reveal()));
        }
        let authorization = self.signer.authorization(&Signed {
            method: method.as_str(),
            path: &path,
            query,
            headers: &signed,
            body_hash: &body_hash,
            at: &at,
        });
        let mut headers = Vec::new();
        let own = signed.iter().filter(|(name, _)| *name != "host");
        for (name, value) in own.chain([&("authorization", authorization.as_str())]) {
            let name = HeaderName::from_bytes(name.as_bytes());
            let value = HeaderValue::from_str(value);
            let (Ok(name), Ok(mut value)) = (name, value) else {
                return Err(Failure::passing("a key has signs that cannot be sent"));
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
        self.web.ask(method, &path, &headers, body).await
    }
}

impl Connector for Store {
    fn writer(self: Arc<Self>, settings: Map<String, Value>) -> Result<Arc<dyn Writer>, Invalid> {
        #[cfg(not(feature = "parquet"))]
        if settings.get("format").and_then(Value::as_str) == Some("parquet") {
            let detail = "this program was built without Parquet; build it with the default features, or take a released one";
            return Err(Invalid::new("format", detail));
        }
        let settings: SinkSettings = read(settings)?;
        let bodies = bodies(&settings)?;
        let content_type = settings.content_type.as_deref();
        let content_type = HeaderValue::from_str(content_type.unwrap_or(bodies.content_type()))
            .map_err(|_| Invalid::new("content_type", "it has signs that cannot be sent"))?;
        let suffix = settings.suffix.as_deref();
        for (field, text) in [
            ("key", settings.key.as_str()),
            ("suffix", suffix.unwrap_or("")),
        ] {
            if has_dot_step(text) {
                let detail = "a key cannot have `.` or `..` as a step";
                return Err(Invalid::new(field, detail));
            }
        }
        Ok(Arc::new(Objects {
            store: self,
            key: Dated::parse("key", &settings.key)?,
            suffix: suffix.unwrap_or(bodies.suffix()).to_owned(),
            bodies,
            content_type,
        }))
    }

    fn test(&self) -> Doing<'_, Result<String, Failure>> {
        Box::pin(async {
            let query = [("list-type", "2"), ("max-keys", "1")];
            let asking = self.ask(Method::GET, "", &query, None, Bytes::new());
            let answer = asking.await?;
            match answer.is_good() {
                true => Ok("the bucket is there".into()),
                false => Err(answer.passing()),
            }
        })
    }
}

fn bodies(settings: &SinkSettings) -> Result<Bodies, Invalid> {
    match settings.format {
        Format::Lines => {
            #[cfg(feature = "parquet")]
            for (field, is_given) in [
                ("columns", !settings.columns.is_empty()),
                ("parquet", settings.parquet.is_some()),
            ] {
                if is_given {
                    let detail = "this is for format = \"parquet\"";
                    return Err(Invalid::new(field, detail));
                }
            }
            let line = settings.line.as_deref();
            let line = line.map(|text| Template::parse("line", text)).transpose()?;
            Ok(Bodies::Lines(line))
        }
        #[cfg(feature = "parquet")]
        Format::Parquet => {
            if settings.line.is_some() {
                return Err(Invalid::new("line", "this is for format = \"lines\""));
            }
            let layout = settings.parquet.unwrap_or_default();
            layout.check("parquet")?;
            let columns = crate::columns::Columns::new(&settings.columns)?;
            Ok(Bodies::Parquet(columns, layout))
        }
    }
}

/// Servers and proxies on the way may resolve such steps, which leads to another bucket than the connector's.
fn has_dot_step(key: &str) -> bool {
    key.split(['/', '\\'])
        .any(|step| matches!(step, "." | ".."))
}

struct Objects {
    store: Arc<Store>,
    key: Dated,
    suffix: String,
    bodies: Bodies,
    content_type: HeaderValue,
}

/// Rows that go into one object.
struct Object {
    places: Vec<usize>,
    body: Body,
}

impl Objects {
    /// The objects of a batch by the beginnings of their keys.
    fn objects(
        &self,
        batch: &Batch,
        failures: &mut Vec<(usize, Failure)>,
    ) -> BTreeMap<String, Object> {
        let mut objects = BTreeMap::<String, Object>::new();
        for (place, row) in batch.rows().enumerate() {
            let key = match self.key.render("key", row, time_of(row)) {
                Ok(key) => key,
                Err(failure) => {
                    failures.push((place, failure));
                    continue;
                }
            };
            if has_dot_step(&key) {
                let what = format!("{key:?}: a key cannot have `.` or `..` as a step");
                failures.push((place, Failure::of_rows(what)));
                continue;
            }
            if key.len() > MAX_KEY_BYTES {
                let what = format!("a key of more than {MAX_KEY_BYTES} bytes");
                failures.push((place, Failure::of_rows(what)));
                continue;
            }
            if objects.len() >= MAX_OBJECTS && !objects.contains_key(&key) {
                // They go with the next attempt.
                let what = "a batch with too many keys";
                failures.push((place, Failure::passing(what)));
                continue;
            }
            let object = match objects.entry(key) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => match self.bodies.begin() {
                    Ok(body) => new.insert(Object {
                        places: Vec::new(),
                        body,
                    }),
                    Err(what) => {
                        failures.push((place, Failure::passing(what)));
                        continue;
                    }
                },
            };
            match self.bodies.add(row, &mut object.body) {
                Ok(()) => object.places.push(place),
                Err(what) => failures.push((place, Failure::of_rows(what))),
            }
        }
        objects.retain(|_, object| !object.places.is_empty());
        objects
    }

    async fn put(&self, batch: &Batch, begin: &str, object: Object) -> Result<(), Failure> {
        // The same when it is sent again, so that an object that is there already is written over.
        let first = batch.id(object.places[0]);
        let key = format!("{begin}{first}-{}{}", object.places.len(), self.suffix);
        let key = key.trim_start_matches('/');
        let body = object.body.finish().map_err(Failure::passing)?;
        let body = Bytes::from(body);
        let store = &self.store;
        let putting = store.ask(Method::PUT, key, &[], Some(&self.content_type), body);
        let answer = putting.await?;
        match answer.status {
            200..300 => Ok(()),
            413 => Err(answer.of_rows()),
            400 if answer
                .body
                .windows(14)
                .any(|text| text == b"EntityTooLarge") =>
            {
                Err(answer.of_rows())
            }
            // Keys, rights and buckets can be mended.
            _ => Err(answer.passing()),
        }
    }

    async fn put_all(&self, batch: &Batch) -> Written {
        let mut failures = Vec::new();
        let objects = self.objects(batch, &mut failures);
        let count = objects.len();
        for (begin, object) in objects {
            let places = object.places.clone();
            if let Err(failure) = self.put(batch, &begin, object).await {
                if count == 1 && failures.is_empty() {
                    return Written::Failed(failure);
                }
                failures.extend(places.into_iter().map(|place| (place, failure.clone())));
            }
        }
        failures.sort_unstable_by_key(|(place, _)| *place);
        Written::except(batch.len(), failures)
    }
}

impl Writer for Objects {
    fn write<'a>(&'a self, batch: &'a Batch) -> Doing<'a, Written> {
        Box::pin(self.put_all(batch))
    }
}
