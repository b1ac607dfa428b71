//! Connector kind `mqtt`: a bridge to another MQTT broker. Sinks publish there, sources subscribe there.

mod connection;
mod connector;
mod message;
mod sink;
mod source;

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::connector::{
    BatchDefaults, BoxFuture, Connector, ConnectorContext, ConnectorError, ConnectorKind,
    OpenConnectorResult, SinkWriter, SourceReader, schema_of,
};
use crate::settings::{SettingsError, parse_settings};
use connection::{MqttConnection, SessionOptions};
use connector::{MqttConnector, MqttSettings};

pub(super) const KIND: ConnectorKind = ConnectorKind {
    name: "mqtt",
    title: "MQTT bridge",
    page: "connectors/mqtt.md",
    batch: BatchDefaults::DEFAULT,
    connector_schema: schema_of::<MqttSettings>,
    sink_schema: schema_of::<sink::MqttSinkSettings>,
    source_schema: Some(schema_of::<source::MqttSourceSettings>),
    open,
};

fn open(fields: Map<String, Value>, context: &ConnectorContext) -> OpenConnectorResult {
    let settings = parse_settings(fields)?;
    Ok(Arc::new(MqttConnector::new(
        settings,
        context.node.as_deref(),
    )?))
}

impl Connector for MqttConnector {
    fn writer(
        self: Arc<Self>,
        settings: Map<String, Value>,
    ) -> Result<Arc<dyn SinkWriter>, SettingsError> {
        Ok(Arc::new(sink::MqttSinkWriter::new(
            self,
            parse_settings(settings)?,
        )?))
    }

    fn test(&self) -> BoxFuture<'_, Result<String, ConnectorError>> {
        Box::pin(async {
            let session_options = SessionOptions {
                client_id: &format!("{}-test", self.session_prefix),
                expiry_s: 0,
            };
            let link = MqttConnection::open(&self.server, &session_options).await?;
            link.disconnect().await;
            Ok(format!("MQTT {} broker", self.server.version.as_str()))
        })
    }

    fn reader(
        self: Arc<Self>,
        settings: Map<String, Value>,
    ) -> Result<Arc<dyn SourceReader>, SettingsError> {
        Ok(Arc::new(source::MqttSource::new(
            self,
            parse_settings(settings)?,
        )?))
    }
}
