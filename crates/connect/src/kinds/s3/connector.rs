//! The bucket of a connector, signed requests to it, and what its sinks have in common.

use bytes::Bytes;
use hyper::Method;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue};
use jiff::Timestamp;
use outbound::request_body::RequestBody;
use schemars::JsonSchema;
use secret::Secret;
use serde::Deserialize;

use super::signature::{RequestSigner, SigningInput, encoded_path, sha256};
use crate::connector::ConnectorError;
use crate::content::AfterExport;
use crate::dated_template::{DatedTemplate, row_time_ms};
use crate::http_servers::{HttpServers, ServerResponse};
use crate::row::SinkRow;

/// Limit on keys, below that of S3 because a unique part is added.
const MAX_KEY_BYTES: usize = 900;
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct S3SinkSettings {
    /// Prefix of object keys, with date and placeholders, as `telemetry/%Y/%m/%d/${topic}`. Rows with the same prefix go
    /// into one object. A unique part is added. Default: `%Y/%m/%d/`. With format `content` the whole key of each file;
    /// default: `%Y/%m/%d/${id}/${name}`.
    #[schemars(length(max = 900))]
    pub(super) key: Option<String>,
    /// Suffix of object keys. Default: `.jsonl` or `.parquet`.
    #[schemars(length(max = 64))]
    pub(super) suffix: Option<String>,
    #[serde(default)]
    pub(super) format: ObjectFormatSetting,
    /// Line of a row, with placeholders. Default: the row as JSON.
    pub(super) line: Option<String>,
    /// Columns of Parquet files, in order.
    #[cfg(feature = "parquet")]
    #[serde(default)]
    pub(super) columns: Vec<crate::columns::ColumnSetting>,
    /// Row groups of a Parquet file.
    #[cfg(feature = "parquet")]
    pub(super) parquet: Option<crate::columns::ParquetLayout>,
    pub(super) content_type: Option<String>,
    /// With format `content`, whether a file stays on the node after its export.
    #[serde(default)]
    pub(super) after: AfterExport,
    /// With format `content`, size in bytes of the parts of a multipart upload; a part is in memory while it is sent. Files of
    /// at most this size are sent in one request. Default: 16 MiB; larger for files that would have more than 10,000 parts.
    #[schemars(range(min = 5_242_880, max = 268_435_456))]
    pub(super) part_bytes: Option<u64>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum ObjectFormatSetting {
    /// A line per row.
    #[default]
    Lines,
    /// Typed columns.
    #[cfg(feature = "parquet")]
    Parquet,
    /// Files of the node: a row contains the id of a file in its field `id`, as the event `$events/file/received`.
    Content,
}

pub(super) struct S3Connector {
    pub(super) web: HttpServers,
    pub(super) host: String,
    /// Path before the key.
    pub(super) path: String,
    pub(super) signer: RequestSigner,
    pub(super) session_token: Option<Secret>,
}

impl S3Connector {
    /// Where objects are, for people: the host and the path before the key.
    pub(super) fn address(&self) -> String {
        format!("{}{}", self.web.base(), self.path.trim_end_matches('/'))
    }

    pub(super) async fn request(
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
    pub(super) async fn request_hashed(
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

/// Servers and proxies may resolve such segments, which leads to another bucket than the connector's.
pub(super) fn has_dot_step(key: &str) -> bool {
    key.split(['/', '\\'])
        .any(|step| matches!(step, "." | ".."))
}

/// Whether the store has accepted an object or a part.
pub(super) fn check_put(answer: &ServerResponse) -> Result<(), ConnectorError> {
    match answer.status {
        200..300 => Ok(()),
        413 => Err(answer.bad_rows_error()),
        400 if contains(&answer.body, b"EntityTooLarge") => Err(answer.bad_rows_error()),
        // Keys, permissions and buckets can be corrected.
        _ => Err(answer.transient_error()),
    }
}

pub(super) fn contains(body: &[u8], text: &[u8]) -> bool {
    body.windows(text.len()).any(|window| window == text)
}

/// The key, or the prefix of the key, for a row.
pub(super) fn render_key(key: &DatedTemplate, row: SinkRow<'_>) -> Result<String, ConnectorError> {
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
