//! Connector kind `email`: a mail per row over SMTP. The library builds mails and implements SMTP; connections and TLS are those of `outbound`.

mod connector;
mod sink;
mod smtp_stream;

use std::sync::Arc;

use serde_json::{Map, Value};
use tokio::time::timeout;

use crate::connector::{
    BatchDefaults, BoxFuture, Connector, ConnectorContext, ConnectorError, ConnectorKind,
    OpenConnectorResult, SinkWriter, schema_of,
};
use crate::settings::{SettingsError, parse_settings};
use connector::{EmailConnector, EmailSettings};

pub(super) const KIND: ConnectorKind = ConnectorKind {
    name: "email",
    title: "E-mail over SMTP",
    page: "connectors/email.md",
    batch: BatchDefaults {
        max_rows: 20,
        ..BatchDefaults::DEFAULT
    },
    connector_schema: schema_of::<EmailSettings>,
    sink_schema: schema_of::<sink::EmailSinkSettings>,
    source_schema: None,
    open,
};

fn open(fields: Map<String, Value>, _: &ConnectorContext) -> OpenConnectorResult {
    Ok(Arc::new(EmailConnector::new(parse_settings(fields)?)?))
}

impl Connector for EmailConnector {
    fn writer(
        self: Arc<Self>,
        settings: Map<String, Value>,
    ) -> Result<Arc<dyn SinkWriter>, SettingsError> {
        Ok(Arc::new(sink::EmailWriter::new(
            self,
            &parse_settings(settings)?,
        )?))
    }

    fn test(&self) -> BoxFuture<'_, Result<String, ConnectorError>> {
        Box::pin(async {
            let mut connection = self.connect().await?;
            let name = connection.server_info().name().to_owned();
            // The server has answered; errors of QUIT are irrelevant.
            let _ = timeout(self.within, connection.quit()).await;
            Ok(format!("SMTP server {name}"))
        })
    }
}
