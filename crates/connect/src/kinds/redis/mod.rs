//! Connector kind `redis`: Redis and compatible servers, single or cluster. Sinks send a pipeline per batch; sources read streams.

mod connections;
mod errors;
mod sink;
mod slot_routes;
mod source;

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, RedisConnectionInfo};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::connector::{
    BatchDefaults, BoxFuture, Connector, ConnectorContext, ConnectorError, ConnectorKind,
    OpenConnectorResult, SinkWriter, SourceReader, schema_of,
};
use crate::secret::Secret;
use crate::settings::{SettingsError, host_and_port, parse_settings};
use crate::tls::TlsSettings;
use connections::SharedConnections;
use errors::failure;
use slot_routes::SlotRoutes;

pub(super) const KIND: ConnectorKind = ConnectorKind {
    name: "redis",
    title: "Redis",
    batch: BatchDefaults::DEFAULT,
    connector_schema: schema_of::<RedisSettings>,
    sink_schema: schema_of::<sink::RedisSinkSettings>,
    source_schema: Some(schema_of::<source::RedisSourceSettings>),
    open,
};

const DEFAULT_PORT: u16 = 6379;
const MAX_NODES: usize = 64;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RedisSettings {
    /// `HOST:PORT` of a single server.
    server: Option<String>,
    /// `HOST:PORT` of some servers of a cluster, from which the others are discovered.
    #[serde(default)]
    #[schemars(length(max = 64))]
    nodes: Vec<String>,
    username: Option<String>,
    password: Option<Secret>,
    /// File that contains the password.
    password_file: Option<std::path::PathBuf>,
    /// Number of the database; a cluster only has 0.
    #[serde(default)]
    #[schemars(range(min = 0))]
    database: i64,
    tls: Option<TlsSettings>,
    #[serde(default = "five_s")]
    #[schemars(range(min = 10, max = 600_000))]
    connect_timeout_ms: u64,
}

fn five_s() -> u64 {
    5000
}

/// Host and port.
type ServerAddress = (String, u16);

struct RedisConnector {
    connections: SharedConnections,
    routes: SlotRoutes,
}

fn open(fields: Map<String, Value>, _: &ConnectorContext) -> OpenConnectorResult {
    let settings: RedisSettings = parse_settings(fields)?;
    let password = Secret::from_setting(
        "password",
        settings.password.as_ref(),
        settings.password_file.as_ref(),
    )?;
    let routes = match (&settings.server, settings.nodes.as_slice()) {
        (Some(server), []) => {
            SlotRoutes::single_server(host_and_port("server", server, DEFAULT_PORT)?)
        }
        (None, nodes @ [_, ..]) if nodes.len() <= MAX_NODES => {
            let nodes = nodes.iter().enumerate();
            let seeds = nodes
                .map(|(at, node)| host_and_port(&format!("nodes[{at}]"), node, DEFAULT_PORT))
                .collect::<Result<_, _>>()?;
            SlotRoutes::cluster(seeds)
        }
        (None, []) => {
            let detail = "missing; or name some servers of a cluster with nodes";
            return Err(SettingsError::new("server", detail));
        }
        (None, _) => {
            let detail = format!("expected at most {MAX_NODES}; the others are found by these");
            return Err(SettingsError::new("nodes", detail));
        }
        (Some(_), _) => {
            let detail = "give either server or nodes, which are those of a cluster";
            return Err(SettingsError::new("nodes", detail));
        }
    };
    if routes.is_cluster() && settings.database != 0 {
        return Err(SettingsError::new(
            "database",
            "a cluster has only number 0",
        ));
    }
    let mut login = RedisConnectionInfo::default().set_db(settings.database);
    if let Some(username) = &settings.username {
        login = login.set_username(username);
    }
    if let Some(password) = &password {
        login = login.set_password(password.reveal());
    }
    let tls = settings
        .tls
        .as_ref()
        .map(connections::certificates)
        .transpose()?;
    let connect_timeout = Duration::from_millis(settings.connect_timeout_ms);
    Ok(Arc::new(RedisConnector {
        connections: SharedConnections::new(login, tls, connect_timeout),
        routes,
    }))
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
