//! Connector kind `http`: sinks send requests to a server, sources accept posted requests.

mod base_url;
mod body;
mod connector;
mod content;
mod sink;
mod source;

use std::sync::Arc;

use hyper::body::Bytes;
use hyper::{Request, StatusCode};
use serde_json::{Map, Value};

use crate::connector::{
    BatchDefaults, BoxFuture, Connector, ConnectorContext, ConnectorError, ConnectorKind,
    OpenConnectorResult, SinkWriter, SourceReader, schema_of,
};
use crate::content_sink::ContentSink;
use crate::settings::{SettingsError, parse_settings};
use body::BodyFormat;
use connector::{HttpConnector, HttpSettings};

pub(super) const KIND: ConnectorKind = ConnectorKind {
    name: "http",
    title: "HTTP",
    page: "connectors.md#http-http",
    batch: BatchDefaults {
        max_rows: 100,
        ..BatchDefaults::DEFAULT
    },
    connector_schema: schema_of::<HttpSettings>,
    sink_schema: schema_of::<sink::HttpSinkSettings>,
    source_schema: Some(schema_of::<source::HttpSourceSettings>),
    open,
};

fn open(fields: Map<String, Value>, _: &ConnectorContext) -> OpenConnectorResult {
    Ok(Arc::new(HttpConnector::new(parse_settings(fields)?)?))
}

impl Connector for HttpConnector {
    fn writer(
        self: Arc<Self>,
        settings: Map<String, Value>,
    ) -> Result<Arc<dyn SinkWriter>, SettingsError> {
        let settings: sink::HttpSinkSettings = parse_settings(settings)?;
        match settings.format {
            BodyFormat::Content => {
                let writer = content::HttpContentWriter::new(self, settings)?;
                Ok(Arc::new(ContentSink(writer)))
            }
            _ => Ok(Arc::new(sink::HttpSinkWriter::new(self, settings)?)),
        }
    }

    fn reader(
        self: Arc<Self>,
        settings: Map<String, Value>,
    ) -> Result<Arc<dyn SourceReader>, SettingsError> {
        Ok(Arc::new(source::HttpSource::new(parse_settings(
            settings,
        )?)?))
    }

    /// Any answer but a rejection shows that the server works: few servers that accept POST answer HEAD.
    fn test(&self) -> BoxFuture<'_, Result<String, ConnectorError>> {
        Box::pin(async move {
            let Some(target) = &self.target else {
                return Ok("the connector has no url; it only receives".into());
            };
            let url = target.join("").map_err(ConnectorError::transient)?;
            let mut request = Request::head(url);
            if let Some(headers) = request.headers_mut() {
                headers.extend(self.headers.clone());
            }
            let (status, _) = self.request(request, Bytes::new()).await?;
            match status {
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(ConnectorError::transient(
                    format!("the server answers {status}"),
                )),
                status => Ok(format!("the server answers {status}")),
            }
        })
    }
}
