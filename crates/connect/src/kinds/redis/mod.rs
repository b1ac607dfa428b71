//! Connector kind `redis`: Redis and compatible servers, single or cluster. Sinks send a pipeline per batch; sources read streams.

mod connections;
mod connector;
mod errors;
mod sink;
mod slot_routes;
mod source;

use std::sync::Arc;

use redis::Cmd;
use serde_json::{Map, Value};

use crate::connector::{
    BatchDefaults, BoxFuture, Connector, ConnectorContext, ConnectorError, ConnectorKind,
    OpenConnectorResult, SinkWriter, SourceReader, schema_of,
};
use crate::settings::{SettingsError, parse_settings};
use connector::{RedisConnector, RedisSettings};
use errors::failure;

pub(super) const KIND: ConnectorKind = ConnectorKind {
    name: "redis",
    title: "Redis",
    page: "connectors.md#redis-redis",
    batch: BatchDefaults::DEFAULT,
    connector_schema: schema_of::<RedisSettings>,
    sink_schema: schema_of::<sink::RedisSinkSettings>,
    source_schema: Some(schema_of::<source::RedisSourceSettings>),
    open,
};

fn open(fields: Map<String, Value>, _: &ConnectorContext) -> OpenConnectorResult {
    Ok(Arc::new(RedisConnector::new(parse_settings(fields)?)?))
}

impl Connector for RedisConnector {
    fn writer(
        self: Arc<Self>,
        settings: Map<String, Value>,
    ) -> Result<Arc<dyn SinkWriter>, SettingsError> {
        Ok(Arc::new(sink::RedisSinkWriter::new(
            self,
            parse_settings(settings)?,
        )?))
    }

    fn reader(
        self: Arc<Self>,
        settings: Map<String, Value>,
    ) -> Result<Arc<dyn SourceReader>, SettingsError> {
        Ok(Arc::new(source::RedisSource::new(
            self,
            parse_settings(settings)?,
        )?))
    }

    fn test(&self) -> BoxFuture<'_, Result<String, ConnectorError>> {
        Box::pin(async move {
            self.routes.mark_outdated();
            let map = self.routes.map(&self.connections).await?;
            let Some(address) = map.nodes().first() else {
                return Err(ConnectorError::transient(
                    "no server of the cluster has slots",
                ));
            };
            let mut info = Cmd::new();
            info.arg("INFO").arg("server");
            let answer = self
                .connections
                .request(address, &info)
                .await
                .map_err(failure)?;
            let text = redis::from_redis_value::<String>(answer).unwrap_or_default();
            let version = text
                .lines()
                .find_map(|line| line.strip_prefix("redis_version:"));
            let version = version.unwrap_or("of an unknown version");
            Ok(match map.nodes().len() {
                1 => format!("Redis {version}"),
                nodes => format!("Redis {version}, a cluster of {nodes} masters"),
            })
        })
    }
}
