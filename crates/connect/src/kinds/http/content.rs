//! Files that are sent in the body of a request, streamed from the disk.

use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::body::Bytes;
use hyper::header::{HeaderName, HeaderValue};
use outbound::request_body::RequestBody;

use super::connector::HttpConnector;
use super::sink::{HttpSinkSettings, HttpSinkWriter};
use crate::connector::{BoxFuture, ConnectorError, ContentWriter};
use crate::content::{AfterExport, ContentExport};
use crate::row::SinkRow;
use crate::settings::SettingsError;

const BLOCK_BYTES: usize = 256 << 10;
const REPR_DIGEST: HeaderName = HeaderName::from_static("repr-digest");
const DEFAULT_CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/octet-stream");

pub(super) struct HttpContentWriter {
    requests: HttpSinkWriter,
    /// `None`: that of the file.
    content_type: Option<HeaderValue>,
    after: AfterExport,
}

impl HttpContentWriter {
    pub(super) fn new(
        http: Arc<HttpConnector>,
        settings: HttpSinkSettings,
    ) -> Result<Self, SettingsError> {
        let detail = "not for format = \"content\", whose body is a file; its SHA-256 digest is in the header Repr-Digest";
        for (field, is_given) in [
            ("body", settings.body.is_some()),
            ("signature", settings.signature.is_some()),
        ] {
            if is_given {
                return Err(SettingsError::new(field, detail));
            }
        }
        let after = settings.after;
        let content_type = settings.content_type.as_deref().map(HeaderValue::try_from);
        let requests = HttpSinkWriter::new(http, settings)?;
        Ok(Self {
            requests,
            // An invalid one was rejected above.
            content_type: content_type.and_then(Result::ok),
            after,
        })
    }

    async fn send(
        &self,
        row: SinkRow<'_>,
        export: &ContentExport,
    ) -> Result<String, ConnectorError> {
        let content = &export.content;
        let own_type = content.content_type.as_deref();
        let own_type = own_type.and_then(|text| HeaderValue::try_from(text).ok());
        let content_type = self.content_type.clone().or(own_type);
        let content_type = content_type.unwrap_or(DEFAULT_CONTENT_TYPE);
        let (mut request, url) = self.requests.request(row, &content.id, &content_type)?;
        if let Some(headers) = request.headers_mut() {
            let digest = format!("sha-256=:{}:", STANDARD.encode(content.sha256));
            if let Ok(value) = HeaderValue::try_from(digest) {
                headers.insert(REPR_DIGEST, value);
            }
        }
        let (body, pieces) = RequestBody::streamed(content.size);
        let file = content
            .file
            .try_clone()
            .map_err(ConnectorError::transient)?;
        let size = content.size;
        // Ends when the body is dropped with its request.
        tokio::task::spawn_blocking(move || {
            let mut at = 0;
            while at < size {
                let len = BLOCK_BYTES.min(usize::try_from(size - at).unwrap_or(usize::MAX));
                let mut block = vec![0; len];
                let piece = file
                    .read_exact_at(&mut block, at)
                    .map(|()| Bytes::from(block));
                let is_last = piece.is_err();
                if pieces.blocking_send(piece).is_err() || is_last {
                    return;
                }
                at += len as u64;
            }
        });
        let progress = export.sent_bytes().clone();
        let body = body.with_progress(Box::new(move |bytes| progress.add(bytes)));
        let (status, answer) = self.requests.http.request(request, body).await?;
        self.requests.check_answer(status, &answer)?;
        Ok(url)
    }
}

impl ContentWriter for HttpContentWriter {
    fn after(&self) -> AfterExport {
        self.after
    }

    fn write_content<'a>(
        &'a self,
        row: SinkRow<'a>,
        export: &'a ContentExport,
    ) -> BoxFuture<'a, Result<String, ConnectorError>> {
        Box::pin(self.send(row, export))
    }
}
