//! Connector kind `mqtt`: a bridge to another MQTT broker. Sinks publish there, sources subscribe there.

mod connection;
mod sink;
mod source;

use std::path::PathBuf;
use std::sync::Arc;

use mqtt::Version;
use rustls::ClientConfig;
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
use connection::{MqttConnection, SessionOptions};

pub(super) const KIND: ConnectorKind = ConnectorKind {
    name: "mqtt",
    title: "MQTT bridge",
    batch: BatchDefaults::DEFAULT,
    connector_schema: schema_of::<MqttSettings>,
    sink_schema: schema_of::<sink::MqttSinkSettings>,
    source_schema: Some(schema_of::<source::MqttSourceSettings>),
    open,
};

const MAX_CLIENT_ID_BYTES: usize = 200;
/// User property by which a bridge recognises its own messages; its value is the client id prefix.
const BRIDGE_PROPERTY: &str = "tidegate-bridge";

/// Settings of the bridge connection.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct MqttSettings {
    /// `HOST` or `HOST:PORT`; default port 1883, or 8883 with TLS.
    server: String,
    #[serde(default)]
    protocol: MqttProtocol,
    /// Prefix of the bridge's client ids. It must be unique among the clients of that broker and differ between nodes, because
    /// the bridge also recognises its own messages by it.
    #[schemars(length(min = 1, max = 200))]
    client_id: String,
    username: Option<String>,
    password: Option<Secret>,
    /// File that contains the password.
    password_file: Option<PathBuf>,
    tls: Option<TlsSettings>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
enum MqttProtocol {
    #[default]
    #[serde(rename = "5.0")]
    V5,
    #[serde(rename = "3.1.1")]
    V311,
}

/// A broker and the connection that all sinks share.
struct MqttConnector {
    host: String,
    port: u16,
    version: Version,
    client_id: String,
    username: Option<String>,
    password: Option<Secret>,
    tls: Option<Arc<ClientConfig>>,
    connection: tokio::sync::Mutex<Option<Arc<MqttConnection>>>,
}

fn open(fields: Map<String, Value>, _: &ConnectorContext) -> OpenConnectorResult {
    let settings: MqttSettings = parse_settings(fields)?;
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
    Ok(Arc::new(MqttConnector {
        host,
        port,
        version: match settings.protocol {
            MqttProtocol::V5 => Version::V5,
            MqttProtocol::V311 => Version::V311,
        },
        client_id: settings.client_id,
        username: settings.username,
        password,
        tls,
        connection: tokio::sync::Mutex::default(),
    }))
}

impl MqttConnector {
    fn server(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// The shared connection of sinks, opened if needed.
    async fn connection(&self) -> Result<Arc<MqttConnection>, ConnectorError> {
        let mut slot = self.connection.lock().await;
        if let Some(link) = slot.as_ref().filter(|link| !link.is_closed()) {
            return Ok(link.clone());
        }
        let wish = SessionOptions {
            client_id: &format!("{}-out", self.client_id),
            expiry_s: 0,
        };
        let link = Arc::new(MqttConnection::open(self, &wish).await?);
        *slot = Some(link.clone());
        Ok(link)
    }
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
            let wish = SessionOptions {
                client_id: &format!("{}-test", self.client_id),
                expiry_s: 0,
            };
            let link = MqttConnection::open(self, &wish).await?;
            link.disconnect().await;
            Ok(format!("MQTT {} broker", self.version.as_str()))
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
