//! The server or cluster of a connector.

use std::path::PathBuf;
use std::time::Duration;

use redis::RedisConnectionInfo;
use schemars::JsonSchema;
use secret::Secret;
use serde::Deserialize;

use super::connections::{self, SharedConnections};
use super::slot_routes::SlotRoutes;
use crate::settings::{SettingsError, host_and_port};
use crate::tls::TlsSettings;

const DEFAULT_PORT: u16 = 6379;
const MAX_NODES: usize = 64;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RedisSettings {
    /// `HOST:PORT` of a single server.
    server: Option<String>,
    /// `HOST:PORT` of some servers of a cluster, from which the others are discovered.
    #[serde(default)]
    #[schemars(length(max = 64))]
    nodes: Vec<String>,
    username: Option<String>,
    password: Option<Secret>,
    /// File that contains the password.
    password_file: Option<PathBuf>,
    /// Number of the database; a cluster only has 0.
    #[serde(default)]
    #[schemars(range(min = 0))]
    database: i64,
    tls: Option<TlsSettings>,
    #[serde(default = "default_connect_timeout_ms")]
    #[schemars(range(min = 10, max = 600_000))]
    connect_timeout_ms: u64,
}

fn default_connect_timeout_ms() -> u64 {
    5000
}

pub(super) struct RedisConnector {
    pub(super) connections: SharedConnections,
    pub(super) routes: SlotRoutes,
}

impl RedisConnector {
    pub(super) fn new(settings: RedisSettings) -> Result<Self, SettingsError> {
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
        Ok(Self {
            connections: SharedConnections::new(login, tls, connect_timeout),
            routes,
        })
    }
}
