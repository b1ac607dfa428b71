//! Files as objects: small ones in one request, others by multipart uploads that continue after interruptions.
//!
//! The key, the id and the part size of an upload are stored with the export. The parts that the store has are queried
//! from it.

use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use bytes::Bytes;
use hyper::Method;
use hyper::header::HeaderValue;
use outbound::request_body::RequestBody;
use serde::{Deserialize, Serialize};

use super::connector::{
    S3Connector, S3SinkSettings, check_put, contains, has_dot_step, render_key,
};
use super::multipart::{self, PartTag};
use super::signature::sha256;

use crate::connector::{BoxFuture, ConnectorError, ContentWriter};
use crate::content::{AfterExport, ContentExport};
use crate::dated_template::DatedTemplate;
use crate::http_servers::{ServerResponse, url_encode};
use crate::row::SinkRow;
use crate::settings::{SettingsError, check_range};

const DEFAULT_KEY: &str = "%Y/%m/%d/${id}/${name}";
const DEFAULT_PART_BYTES: u64 = 16 << 20;
/// Limits of S3.
const MIN_PART_BYTES: u64 = 5 << 20;
const MAX_PARTS: u64 = 10_000;
/// Limit of memory.
const MAX_PART_BYTES: u64 = 256 << 20;
/// Limit of requests for the parts of one upload, each of which returns up to 1000.
const MAX_PART_PAGES: usize = 100;

pub(super) struct S3ContentWriter {
    store: Arc<S3Connector>,
    key: DatedTemplate,
    content_type: Option<HeaderValue>,
    part_bytes: u64,
    after: AfterExport,
}

/// A multipart upload that has begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct UploadPosition {
    key: String,
    upload_id: String,
    part_bytes: u64,
}

impl S3ContentWriter {
    pub(super) fn new(
        store: Arc<S3Connector>,
        settings: &S3SinkSettings,
    ) -> Result<Self, SettingsError> {
        #[cfg(feature = "parquet")]
        let has_columns = !settings.columns.is_empty() || settings.parquet.is_some();
        #[cfg(not(feature = "parquet"))]
        let has_columns = false;
        for (field, is_given) in [
            ("line", settings.line.is_some()),
            ("suffix", settings.suffix.is_some()),
            ("columns", has_columns),
        ] {
            if is_given {
                let detail = "not for format = \"content\", whose objects are files";
                return Err(SettingsError::new(field, detail));
            }
        }
        let part_bytes = settings.part_bytes.unwrap_or(DEFAULT_PART_BYTES);
        check_range("part_bytes", part_bytes, MIN_PART_BYTES..=MAX_PART_BYTES)?;
        let key = settings.key.as_deref().unwrap_or(DEFAULT_KEY);
        if has_dot_step(key) {
            let detail = "a key cannot have `.` or `..` as a segment";
            return Err(SettingsError::new("key", detail));
        }
        let content_type = settings.content_type.as_deref().map(HeaderValue::from_str);
        let content_type = content_type.transpose().map_err(|_| {
            SettingsError::new("content_type", "it contains characters that cannot be sent")
        })?;
        Ok(Self {
            store,
            key: DatedTemplate::parse("key", key)?,
            content_type,
            part_bytes,
            after: settings.after,
        })
    }

    async fn put(
        &self,
        row: SinkRow<'_>,
        export: &ContentExport,
    ) -> Result<String, ConnectorError> {
        let stored = export.position();
        let stored = stored.and_then(|text| serde_json::from_str::<UploadPosition>(&text).ok());
        let size = export.content.size;
        let key = match (stored, size <= self.part_bytes) {
            (Some(position), _) => self.continue_upload(export, position).await?,
            (None, true) => self.put_whole(row, export).await?,
            (None, false) => {
                let position = self.begin_upload(row, export).await?;
                self.send_parts(export, &position, Vec::new()).await?
            }
        };
        Ok(format!("{}/{key}", self.store.address()))
    }

    fn key_of(&self, row: SinkRow<'_>) -> Result<String, ConnectorError> {
        let key = render_key(&self.key, row)?;
        match key.trim_start_matches('/') {
            "" => Err(ConnectorError::bad_rows("the key is empty")),
            key => Ok(key.to_owned()),
        }
    }

    fn content_type(&self, export: &ContentExport) -> Option<HeaderValue> {
        let own = export.content.content_type.as_deref();
        let own = || own.and_then(|text| HeaderValue::from_str(text).ok());
        self.content_type.clone().or_else(own)
    }

    async fn put_whole(
        &self,
        row: SinkRow<'_>,
        export: &ContentExport,
    ) -> Result<String, ConnectorError> {
        let key = self.key_of(row)?;
        let piece = read_piece(export, 0, export.content.size).await?;
        let content_type = self.content_type(export);
        let answer = self
            .send(export, Method::PUT, &key, &[], content_type.as_ref(), piece)
            .await?;
        check_put(&answer)?;
        Ok(key)
    }

    /// Sends bytes of the file; its progress is that of the export.
    async fn send(
        &self,
        export: &ContentExport,
        method: Method,
        key: &str,
        query: &[(&str, &str)],
        content_type: Option<&HeaderValue>,
        piece: UploadPart,
    ) -> Result<ServerResponse, ConnectorError> {
        let progress = export.sent_bytes().clone();
        let body = RequestBody::from(piece.bytes);
        let body = body.with_progress(Box::new(move |bytes| progress.add(bytes)));
        let store = &self.store;
        store
            .request_hashed(method, key, query, content_type, &piece.sha256, body)
            .await
    }

    async fn begin_upload(
        &self,
        row: SinkRow<'_>,
        export: &ContentExport,
    ) -> Result<UploadPosition, ConnectorError> {
        let key = self.key_of(row)?;
        let content_type = self.content_type(export);
        let beginning = self.store.request(
            Method::POST,
            &key,
            &[("uploads", "")],
            content_type.as_ref(),
            Bytes::new(),
        );
        let answer = beginning.await?;
        check_put(&answer)?;
        let upload_id = multipart::upload_id(&answer.body).ok_or_else(|| {
            ConnectorError::transient("the store begins a multipart upload without an UploadId")
        })?;
        // In MiB, so that parts are aligned.
        let smallest = export
            .content
            .size
            .div_ceil(MAX_PARTS)
            .next_multiple_of(1 << 20);
        let part_bytes = self.part_bytes.max(smallest);
        if part_bytes > MAX_PART_BYTES {
            let what =
                format!("the file has more than {MAX_PARTS} parts of {MAX_PART_BYTES} bytes");
            return Err(ConnectorError::bad_rows(what));
        }
        let position = UploadPosition {
            key,
            upload_id,
            part_bytes,
        };
        let text = serde_json::to_string(&position).map_err(ConnectorError::transient)?;
        if !export.store_position(Some(text)).await {
            self.abort_upload(&position).await?;
            return Err(ConnectorError::transient("the export was cancelled"));
        }
        Ok(position)
    }

    async fn continue_upload(
        &self,
        export: &ContentExport,
        position: UploadPosition,
    ) -> Result<String, ConnectorError> {
        let parts = self.list_parts(export, &position).await?;
        let whole = |part: &PartTag| part.size == part_size(export, &position, part.number);
        let parts: Vec<PartTag> = parts.into_iter().filter(whole).collect();
        export
            .sent_bytes()
            .add(parts.iter().map(|part| part.size).sum());
        self.send_parts(export, &position, parts).await
    }

    /// Removes the parts of an upload. One that is complete or unknown is left alone.
    async fn abort_upload(&self, position: &UploadPosition) -> Result<(), ConnectorError> {
        let upload_id = url_encode(&position.upload_id);
        let query = [("uploadId", upload_id.as_str())];
        let aborting =
            self.store
                .request(Method::DELETE, &position.key, &query, None, Bytes::new());
        let answer = aborting.await?;
        if answer.status == 404 {
            return Ok(());
        }
        check_put(&answer)
    }

    async fn list_parts(
        &self,
        export: &ContentExport,
        position: &UploadPosition,
    ) -> Result<Vec<PartTag>, ConnectorError> {
        let upload_id = url_encode(&position.upload_id);
        let mut parts = Vec::new();
        let mut marker = None;
        for _ in 0..MAX_PART_PAGES {
            let text = marker.map(|marker: u64| marker.to_string());
            let mut query = Vec::new();
            if let Some(text) = &text {
                query.push(("part-number-marker", text.as_str()));
            }
            query.push(("uploadId", upload_id.as_str()));
            let listing =
                self.store
                    .request(Method::GET, &position.key, &query, None, Bytes::new());
            let answer = self.check_upload(export, listing.await?).await?;
            let page = multipart::read_parts(&answer.body).map_err(ConnectorError::transient)?;
            parts.extend(page.parts);
            match page.next_marker {
                Some(next) if marker.is_none_or(|marker| next > marker) => marker = Some(next),
                _ => return Ok(parts),
            }
        }
        Err(ConnectorError::transient(
            "the store lists too many parts of an upload",
        ))
    }

    /// Returns a successful answer. If the store does not know the upload any longer, the next attempt begins a new one.
    async fn check_upload(
        &self,
        export: &ContentExport,
        answer: ServerResponse,
    ) -> Result<ServerResponse, ConnectorError> {
        if answer.status == 404 && contains(&answer.body, b"NoSuchUpload") {
            // Nothing is left that could be discarded.
            let _ = export.store_position(None).await;
        }
        // The answer to a completion may begin with 200 and contain an error.
        if answer.is_success() && contains(&answer.body, b"<Error>") {
            return Err(answer.transient_error());
        }
        check_put(&answer).map(|()| answer)
    }

    /// Sends the parts that the store does not have, and completes the upload.
    async fn send_parts(
        &self,
        export: &ContentExport,
        position: &UploadPosition,
        mut parts: Vec<PartTag>,
    ) -> Result<String, ConnectorError> {
        let upload_id = url_encode(&position.upload_id);
        for number in 1..=export.content.size.div_ceil(position.part_bytes) {
            if parts.iter().any(|part| part.number == number) {
                continue;
            }
            let size = part_size(export, position, number);
            let piece = read_piece(export, (number - 1) * position.part_bytes, size).await?;
            let number_text = number.to_string();
            let query = [
                ("partNumber", number_text.as_str()),
                ("uploadId", upload_id.as_str()),
            ];
            let sending = self.send(export, Method::PUT, &position.key, &query, None, piece);
            let answer = self.check_upload(export, sending.await?).await?;
            let tag = answer.headers.get("etag").and_then(|tag| tag.to_str().ok());
            let tag =
                tag.ok_or_else(|| ConnectorError::transient("the store gives a part no ETag"))?;
            parts.push(PartTag {
                number,
                tag: tag.to_owned(),
                size,
            });
        }
        parts.sort_unstable_by_key(|part| part.number);
        let body = Bytes::from(multipart::completion(&parts));
        let query = [("uploadId", upload_id.as_str())];
        let completing = self
            .store
            .request(Method::POST, &position.key, &query, None, body);
        self.check_upload(export, completing.await?).await?;
        Ok(position.key.clone())
    }
}

impl ContentWriter for S3ContentWriter {
    fn after(&self) -> AfterExport {
        self.after
    }

    fn write_content<'a>(
        &'a self,
        row: SinkRow<'a>,
        export: &'a ContentExport,
    ) -> BoxFuture<'a, Result<String, ConnectorError>> {
        Box::pin(self.put(row, export))
    }

    fn discard<'a>(&'a self, position: &'a str) -> BoxFuture<'a, Result<(), ConnectorError>> {
        Box::pin(async move {
            match serde_json::from_str(position) {
                Ok(position) => self.abort_upload(&position).await,
                // An earlier version has stored it.
                Err(_) => Ok(()),
            }
        })
    }
}

fn part_size(export: &ContentExport, position: &UploadPosition, number: u64) -> u64 {
    let begin = number.saturating_sub(1).saturating_mul(position.part_bytes);
    let left = export.content.size.saturating_sub(begin);
    left.min(position.part_bytes)
}

/// A part of the file in memory.
struct UploadPart {
    bytes: Bytes,
    /// Digest in hexadecimal digits.
    sha256: String,
}

async fn read_piece(
    export: &ContentExport,
    at: u64,
    size: u64,
) -> Result<UploadPart, ConnectorError> {
    let file = export
        .content
        .file
        .try_clone()
        .map_err(ConnectorError::transient)?;
    let len = usize::try_from(size).map_err(ConnectorError::bad_rows)?;
    let reading = tokio::task::spawn_blocking(move || {
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, at)?;
        let sha256 = sha256(&bytes);
        std::io::Result::Ok(UploadPart {
            bytes: bytes.into(),
            sha256,
        })
    });
    match reading.await {
        Ok(read) => read.map_err(ConnectorError::transient),
        Err(error) => Err(ConnectorError::transient(error)),
    }
}
