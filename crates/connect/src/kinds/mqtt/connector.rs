//! The broker of a connector, and the connection that its sinks share.

use std::path::PathBuf;
use std::sync::Arc;

use mqtt::Version;
use schemars::JsonSchema;
use secret::Secret;
use serde::Deserialize;

use super::connection::{MqttConnection, MqttServer, SessionOptions};
use crate::connector::ConnectorError;
use crate::settings::{SettingsError, host_and_port};
use crate::tls::TlsSettings;

const MAX_CLIENT_ID_BYTES: usize = 200;

/// Settings of the bridge connection.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct MqttSettings {
    /// `HOST` or `HOST:PORT`; default port 1883, or 8883 with TLS.
    server: String,
    #[serde(default)]
    protocol: MqttProtocol,
    /// Prefix of the bridge's client ids. It must be unique among the clients of that broker and differ between nodes, because
    /// the bridge also recognises its own messages by it. The nodes of a cluster share it and add their names to the client
    /// ids.
    #[schemars(length(min = 1, max = 200))]
    client_id: String,
    username: Option<String>,
    password: Option<Secret>,
    /// File that contains the password.
    password_file: Option<PathBuf>,
    tls: Option<TlsSettings>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
pub(super) enum MqttProtocol {
    #[default]
    #[serde(rename = "5.0")]
    V5,
    #[serde(rename = "3.1.1")]
    V311,
}

/// A broker and the connection that all sinks share.
pub(super) struct MqttConnector {
    pub(super) server: MqttServer,
    /// Marks the messages of this bridge, which is the same on all nodes of a cluster.
    pub(super) client_id: String,
    /// Prefix of client ids. It differs between the nodes of a cluster, which would take over each other's sessions.
    pub(super) session_prefix: String,
    connection: tokio::sync::Mutex<Option<Arc<MqttConnection>>>,
}

impl MqttConnector {
    /// `node`: the name of this node in its cluster.
    pub(super) fn new(settings: MqttSettings, node: Option<&str>) -> Result<Self, SettingsError> {
        let password = Secret::from_setting(
            "password",
            settings.password.as_ref(),
            settings.password_file.as_ref(),
        )?;
        if password.is_some() && settings.username.is_none() {
            return Err(SettingsError::new(
                "username",
                "missing; required with a password",
            ));
        }
        let length = settings.client_id.len();
        if length == 0 || length > MAX_CLIENT_ID_BYTES || settings.client_id.contains('\0') {
            let detail = format!("expected 1 to {MAX_CLIENT_ID_BYTES} bytes");
            return Err(SettingsError::new("client_id", detail));
        }
        let usual_port = if settings.tls.is_some() { 8883 } else { 1883 };
        let (host, port) = host_and_port("server", &settings.server, usual_port)?;
        let tls = match &settings.tls {
            Some(tls) => Some(tls.client_config("tls")?),
            None => None,
        };
        Ok(Self {
            server: MqttServer {
                host,
                port,
                version: match settings.protocol {
                    MqttProtocol::V5 => Version::V5,
                    MqttProtocol::V311 => Version::V311,
                },
                username: settings.username,
                password,
                tls,
            },
            session_prefix: match node {
                Some(node) => format!("{}-{node}", settings.client_id),
                None => settings.client_id.clone(),
            },
            client_id: settings.client_id,
            connection: tokio::sync::Mutex::default(),
        })
    }

    /// The shared connection of sinks, opened if needed.
    pub(super) async fn connection(&self) -> Result<Arc<MqttConnection>, ConnectorError> {
        let mut slot = self.connection.lock().await;
        if let Some(link) = slot.as_ref().filter(|link| !link.is_closed()) {
            return Ok(link.clone());
        }
        let session_options = SessionOptions {
            client_id: &format!("{}-out", self.session_prefix),
            expiry_s: 0,
        };
        let link = Arc::new(MqttConnection::open(&self.server, &session_options).await?);
        *slot = Some(link.clone());
        Ok(link)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connector(node: Option<&str>) -> MqttConnector {
        let settings = serde_json::json!({"server": "mqtt.example", "client_id": "site-1"});
        let settings = serde_json::from_value(settings).expect("valid");
        MqttConnector::new(settings, node).expect("valid")
    }

    #[test]
    fn nodes_of_a_cluster_have_sessions_of_their_own_and_recognise_each_other() {
        let alone = connector(None);
        assert_eq!(alone.session_prefix, "site-1");
        let [first, second] = ["node-1", "node-2"].map(|node| connector(Some(node)));
        assert_eq!(first.session_prefix, "site-1-node-1");
        assert_ne!(first.session_prefix, second.session_prefix);
        assert_eq!(first.client_id, second.client_id);
    }
}
