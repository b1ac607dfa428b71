//! Connector kind `nats`: NATS and JetStream, with its own protocol implementation. The usual client reconnects by
//! itself and sends buffered messages before lost ones are retried, which breaks the order. It cannot report what a
//! server has read.

mod connection;
mod connector;
mod credentials;
mod nkey;
mod protocol;
mod sink;
mod source;

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::connector::{
    BatchDefaults, BoxFuture, Connector, ConnectorContext, ConnectorError, ConnectorKind,
    OpenConnectorResult, SinkWriter, SourceReader, schema_of,
};
use crate::settings::{SettingsError, parse_settings};
use connector::NatsConnector;
use credentials::NatsSettings;

pub(super) const KIND: ConnectorKind = ConnectorKind {
    name: "nats",
    title: "NATS and JetStream",
    page: "connectors/nats.md",
    batch: BatchDefaults::DEFAULT,
    connector_schema: schema_of::<NatsSettings>,
    sink_schema: schema_of::<sink::NatsSinkSettings>,
    source_schema: Some(schema_of::<source::NatsSourceSettings>),
    open,
};

fn open(fields: Map<String, Value>, context: &ConnectorContext) -> OpenConnectorResult {
    let settings = parse_settings(fields)?;
    Ok(Arc::new(NatsConnector::new(settings, &context.name)?))
}

impl Connector for NatsConnector {
    fn writer(
        self: Arc<Self>,
        settings: Map<String, Value>,
    ) -> Result<Arc<dyn SinkWriter>, SettingsError> {
        Ok(Arc::new(sink::NatsSinkWriter::new(
            self,
            parse_settings(settings)?,
        )?))
    }

    fn test(&self) -> BoxFuture<'_, Result<String, ConnectorError>> {
        Box::pin(async {
            let info = self.connect().await?.info.clone();
            let jetstream = if info.jetstream { "with" } else { "without" };
            Ok(format!("NATS {} {jetstream} JetStream", info.version))
        })
    }

    fn reader(
        self: Arc<Self>,
        settings: Map<String, Value>,
    ) -> Result<Arc<dyn SourceReader>, SettingsError> {
        Ok(Arc::new(source::NatsSource::new(
            self,
            parse_settings(settings)?,
        )?))
    }
}
