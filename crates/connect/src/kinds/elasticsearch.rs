//! Connector kind `elasticsearch`: Elasticsearch and OpenSearch, a bulk request per batch with a result per item.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use hyper::Method;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue};
use schemars::JsonSchema;
use secret::Secret;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};

use crate::batch::SinkBatch;
use crate::connector::{
    BatchDefaults, BoxFuture, Connector, ConnectorContext, ConnectorError, ConnectorKind,
    OpenConnectorResult, SinkWriter, WriteOutcome, schema_of,
};
use crate::dated_template::{DatedTemplate, row_time_ms};
use crate::http_servers::{HttpServers, ServerResponse, url_encode};
use crate::row::SinkRow;
use crate::settings::{SettingsError, parse_settings};
use crate::template::Template;
use crate::tls::TlsSettings;

pub(super) const KIND: ConnectorKind = ConnectorKind {
    name: "elasticsearch",
    title: "Elasticsearch and OpenSearch",
    page: "connectors/elasticsearch.md",
    batch: BatchDefaults {
        max_rows: 1000,
        max_bytes: 5 << 20,
        max_wait_ms: 50,
    },
    connector_schema: schema_of::<ElasticsearchSettings>,
    sink_schema: schema_of::<ElasticsearchSinkSettings>,
    source_schema: None,
    open,
};

const JSON_LINES: (HeaderName, HeaderValue) = (
    CONTENT_TYPE,
    HeaderValue::from_static("application/x-ndjson"),
);
/// Elasticsearch's limit on ids.
const MAX_ID_BYTES: usize = 512;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ElasticsearchSettings {
    /// Nodes of one cluster, as `https://HOST:9200`. After an error the next one is used.
    #[schemars(length(min = 1, max = 64))]
    urls: Vec<String>,
    username: Option<String>,
    password: Option<Secret>,
    /// File that contains the password.
    password_file: Option<PathBuf>,
    /// API key in its encoded form.
    api_key: Option<Secret>,
    /// File that contains the key.
    api_key_file: Option<PathBuf>,
    tls: Option<TlsSettings>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ElasticsearchSinkSettings {
    /// Index, with date and placeholders: `logs-%Y.%m.%d`. The date is that of the row's `timestamp`.
    #[schemars(length(min = 1, max = 1000))]
    index: String,
    /// Document id, with placeholders. Default: a generated id, the same for each attempt.
    id: Option<String>,
    /// Document, JSON with placeholders. Default: the row.
    document: Option<String>,
    #[serde(default)]
    action: BulkAction,
    /// Routing value, with placeholders.
    routing: Option<String>,
    /// Name of an ingest pipeline.
    pipeline: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum BulkAction {
    /// Replaces a document with the same id.
    #[default]
    Index,
    /// Keeps an existing document with the same id. Required for data streams.
    Create,
}

struct ElasticsearchConnector {
    web: HttpServers,
}

fn open(fields: Map<String, Value>, _: &ConnectorContext) -> OpenConnectorResult {
    let settings: ElasticsearchSettings = parse_settings(fields)?;
    let password = Secret::from_setting(
        "password",
        settings.password.as_ref(),
        settings.password_file.as_ref(),
    )?;
    let api_key = Secret::from_setting(
        "api_key",
        settings.api_key.as_ref(),
        settings.api_key_file.as_ref(),
    )?;
    let web = HttpServers::new("urls", &settings.urls, settings.tls.as_ref())?;
    let web = match (&settings.username, &password, &api_key) {
        (None, None, None) => web,
        (Some(user), Some(password), None) => web.with_basic_auth(user, password)?,
        (None, None, Some(key)) => {
            let value = format!("ApiKey {}", key.reveal());
            web.with_header(AUTHORIZATION, &value, "api_key")?
        }
        _ => {
            let detail = "expected a user with a password, or an api_key";
            return Err(SettingsError::new("username", detail));
        }
    };
    Ok(Arc::new(ElasticsearchConnector { web }))
}

impl Connector for ElasticsearchConnector {
    fn writer(
        self: Arc<Self>,
        settings: Map<String, Value>,
    ) -> Result<Arc<dyn SinkWriter>, SettingsError> {
        let settings: ElasticsearchSinkSettings = parse_settings(settings)?;
        let template = |field: &str, text: &Option<String>| {
            let text = text.as_deref();
            text.map(|text| Template::parse(field, text)).transpose()
        };
        let path = match &settings.pipeline {
            None => "/_bulk".to_owned(),
            Some(pipeline) => format!("/_bulk?pipeline={}", url_encode(pipeline)),
        };
        Ok(Arc::new(ElasticsearchWriter {
            index: DatedTemplate::parse("index", &settings.index)?,
            is_hidden: settings.index.starts_with('.'),
            id: template("id", &settings.id)?,
            document: template("document", &settings.document)?,
            routing: template("routing", &settings.routing)?,
            action: settings.action,
            path,
            system: self,
        }))
    }

    fn test(&self) -> BoxFuture<'_, Result<String, ConnectorError>> {
        Box::pin(async {
            let answer = self
                .web
                .request(Method::GET, "/", &[], Bytes::new())
                .await?;
            if !answer.is_success() {
                return Err(answer.transient_error());
            }
            let info: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
            let version = info["version"]["number"].as_str();
            let version = version
                .ok_or_else(|| ConnectorError::transient("the server is not Elasticsearch"))?;
            Ok(match info["version"]["distribution"].as_str() {
                Some("opensearch") => format!("OpenSearch {version}"),
                _ => format!("Elasticsearch {version}"),
            })
        })
    }
}

struct ElasticsearchWriter {
    system: Arc<ElasticsearchConnector>,
    index: DatedTemplate,
    /// Whether the setting itself begins with a dot.
    is_hidden: bool,
    id: Option<Template>,
    document: Option<Template>,
    routing: Option<Template>,
    action: BulkAction,
    path: String,
}

/// The rendered text; `None` if it is empty or the template is a single placeholder that is null.
fn render_non_empty(template: &Template, row: SinkRow<'_>) -> Option<String> {
    let mut scratch = Vec::new();
    if template.value(row, &mut scratch).is_null() {
        return None;
    }
    Some(template.render_string(row)).filter(|text| !text.is_empty())
}

#[derive(Deserialize)]
struct BulkResponse {
    items: Vec<Map<String, Value>>,
}

impl ElasticsearchWriter {
    /// Appends the two lines of a row.
    fn lines(
        &self,
        row: SinkRow<'_>,
        own_id: &str,
        out: &mut Vec<u8>,
    ) -> Result<(), ConnectorError> {
        let index = self.index.render("index", row, row_time_ms(row))?;
        // Names with a leading dot are system indices: the setting can choose one, a row cannot.
        let is_of_row = index.starts_with('.') && !self.is_hidden;
        let is_name = !index.is_empty()
            && !is_of_row
            && !matches!(index.as_str(), "." | "..")
            && !index.starts_with(['-', '_', '+'])
            && !index.contains(['\\', '/', '*', '?', '"', '<', '>', '|', ' ', ',', '#', ':'])
            && index.len() <= 255;
        if !is_name {
            let what = format!("{index:?} is not a valid index name");
            return Err(ConnectorError::bad_rows(what));
        }
        // A null id counts as none.
        let id = self
            .id
            .as_ref()
            .and_then(|template| render_non_empty(template, row));
        let id = id.as_deref().unwrap_or(own_id);
        if id.len() > MAX_ID_BYTES {
            let what = format!("an id of more than {MAX_ID_BYTES} bytes");
            return Err(ConnectorError::bad_rows(what));
        }
        // Index names are lower case, but a topic in one may not be.
        let mut target = json!({"_index": index.to_lowercase(), "_id": id});
        let routing = self.routing.as_ref();
        if let Some(routing) = routing.and_then(|template| render_non_empty(template, row)) {
            target["routing"] = routing.into();
        }
        let action = match self.action {
            BulkAction::Index => "index",
            BulkAction::Create => "create",
        };
        let line = json!({action: target}).to_string();
        let start = out.len();
        out.extend_from_slice(line.as_bytes());
        out.push(b'\n');
        let document = out.len();
        match &self.document {
            None => row.write_json(out),
            Some(template) => {
                template.render(row, out);
                // Invalid JSON would break the request for all rows.
                if serde_json::from_slice::<Map<String, Value>>(&out[document..]).is_err() {
                    out.truncate(start);
                    return Err(ConnectorError::bad_rows(
                        "the document is not a JSON object",
                    ));
                }
                for byte in &mut out[document..] {
                    if matches!(byte, b'\n' | b'\r') {
                        *byte = b' ';
                    }
                }
            }
        }
        out.push(b'\n');
        Ok(())
    }

    async fn write_bulk(&self, batch: &SinkBatch) -> Result<WriteOutcome, ConnectorError> {
        let mut body = Vec::with_capacity(batch.byte_len() + batch.len() * 100);
        let mut failures = Vec::new();
        let mut places = Vec::with_capacity(batch.len());
        for (place, row) in batch.rows().enumerate() {
            match self.lines(row, &batch.id(place).to_string(), &mut body) {
                Ok(()) => places.push(place),
                Err(failure) => failures.push((place, failure)),
            }
        }
        if !places.is_empty() {
            let body = Bytes::from(body);
            let web = &self.system.web;
            let answer = web
                .request(Method::POST, &self.path, &[JSON_LINES], body)
                .await?;
            self.read_response(&answer, &places, &mut failures)?;
        }
        Ok(WriteOutcome::all_except(batch.len(), failures))
    }

    fn read_response(
        &self,
        answer: &ServerResponse,
        places: &[usize],
        failures: &mut Vec<(usize, ConnectorError)>,
    ) -> Result<(), ConnectorError> {
        match answer.status {
            200..300 => {}
            // The request as a whole is too large or invalid. Halving will find the row.
            400 | 413 => return Err(answer.bad_rows_error()),
            _ => return Err(answer.transient_error()),
        }
        let wrong =
            |_| ConnectorError::transient("the server's answer to a bulk request is invalid");
        // Avoids parsing the whole answer when all items succeeded.
        #[derive(Deserialize)]
        struct BulkActionLine {
            errors: bool,
            #[serde(rename = "items")]
            _items: Option<IgnoredAny>,
        }
        let head: BulkActionLine = serde_json::from_slice(&answer.body).map_err(wrong)?;
        if !head.errors {
            return Ok(());
        }
        let read: BulkResponse = serde_json::from_slice(&answer.body).map_err(wrong)?;
        if read.items.len() != places.len() {
            return Err(ConnectorError::transient(
                "the answer has not one item for each row",
            ));
        }
        for (item, place) in read.items.iter().zip(places) {
            let result = item.values().next().unwrap_or(&Value::Null);
            let status = result["status"].as_u64().unwrap_or(500);
            let what = || {
                let error = &result["error"];
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                // For a nested error, the cause is more informative.
                let cause = text(&error["caused_by"]["reason"]);
                let reason = text(&error["reason"]);
                let kind = text(&error["type"]);
                match cause.is_empty() {
                    true => format!("status {status}: {kind}: {reason}"),
                    false => format!("status {status}: {kind}: {reason}: {cause}"),
                }
            };
            match status {
                200..300 => {}
                // Stored by an earlier attempt.
                409 if self.action == BulkAction::Create => {}
                429 | 500.. => failures.push((*place, ConnectorError::transient(what()))),
                _ => failures.push((*place, ConnectorError::bad_rows(what()))),
            }
        }
        Ok(())
    }
}

impl SinkWriter for ElasticsearchWriter {
    fn write<'a>(&'a self, batch: &'a SinkBatch) -> BoxFuture<'a, WriteOutcome> {
        Box::pin(async move {
            let bulk = self.write_bulk(batch).await;
            bulk.unwrap_or_else(WriteOutcome::Failed)
        })
    }
}
