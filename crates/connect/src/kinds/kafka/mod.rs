//! Connector kind `kafka`: maps rows to messages and received messages to source messages; `kafka` is the client.

mod connector;
mod sink;
mod source;
mod topic_name;

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::connector::{
    BatchDefaults, BoxFuture, Connector, ConnectorContext, ConnectorError, ConnectorKind,
    OpenConnectorResult, SinkWriter, SourceReader, schema_of,
};
use crate::settings::{SettingsError, parse_settings};
use connector::{KafkaConnector, KafkaSettings};

pub(super) const KIND: ConnectorKind = ConnectorKind {
    name: "kafka",
    title: "Kafka",
    page: "connectors/kafka.md",
    batch: BatchDefaults::DEFAULT,
    connector_schema: schema_of::<KafkaSettings>,
    sink_schema: schema_of::<sink::KafkaSinkSettings>,
    source_schema: Some(schema_of::<source::KafkaSourceSettings>),
    open,
};

fn open(fields: Map<String, Value>, _: &ConnectorContext) -> OpenConnectorResult {
    Ok(Arc::new(KafkaConnector::new(parse_settings(fields)?)?))
}

impl Connector for KafkaConnector {
    fn writer(
        self: Arc<Self>,
        settings: Map<String, Value>,
    ) -> Result<Arc<dyn SinkWriter>, SettingsError> {
        Ok(Arc::new(sink::KafkaSinkWriter::new(
            self,
            parse_settings(settings)?,
        )?))
    }

    fn test(&self) -> BoxFuture<'_, Result<String, ConnectorError>> {
        Box::pin(async { Ok(self.separate_cluster().describe().await?) })
    }

    fn reader(
        self: Arc<Self>,
        settings: Map<String, Value>,
    ) -> Result<Arc<dyn SourceReader>, SettingsError> {
        Ok(Arc::new(source::KafkaSource::new(
            self,
            parse_settings(settings)?,
        )?))
    }
}
