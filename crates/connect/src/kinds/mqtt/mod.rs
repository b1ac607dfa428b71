//! A bridge to another MQTT broker: rows are published there, and what is subscribed to there is received here.

mod link;
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
    BatchDefaults, Connector, Context, Doing, Failure, Kind, Opened, Reader, Writer, schema_of,
};
use crate::secret::Secret;
use crate::settings::{Invalid, host_and_port, read};
use crate::tls::Tls;
use link::{Link, Wish};

pub(super) const KIND: Kind = Kind {
    name: "mqtt",
    title: "MQTT bridge",
    batch: BatchDefaults::USUAL,
    connector_schema: schema_of::<Settings>,
    sink_schema: schema_of::<sink::Settings>,
    source_schema: Some(schema_of::<source::Settings>),
    open,
};

const MAX_CLIENT_ID_BYTES: usize = 200;
/// The user property by which a bridge knows its own messages again; its value is the client identifier.
const MARK: &str = "tidegate-bridge";

/// Where the broker is, and who we are.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// `HOST` or `HOST:PORT`; the port is 1883, or 8883 with TLS, if left out.
    server: String,
    #[serde(default)]
    protocol: Protocol,
    /// What our client identifiers there begin with. No other client of that broker may have it, nor may two nodes share
    /// it: by it the bridge also knows its own messages again.
    #[schemars(length(min = 1, max = 200))]
    client_id: String,
    username: Option<String>,
    password: Option<Secret>,
    /// File with the password.
    password_file: Option<PathBuf>,
    tls: Option<Tls>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
enum Protocol {
    #[default]
    #[serde(rename = "5.0")]
    V5,
    #[serde(rename = "3.1.1")]
    V311,
}

/// A broker, and the connection that all sinks share.
struct Remote {
    host: String,
    port: u16,
    version: Version,
    client_id: String,
    username: Option<String>,
    password: Option<Secret>,
    tls: Option<Arc<ClientConfig>>,
    link: tokio::sync::Mutex<Option<Arc<Link>>>,
}

fn open(fields: Map<String, Value>, _: &Context) -> Opened {
    let settings: Settings = read(fields)?;
    let password = Secret::of_setting(
        "password",
        settings.password.as_ref(),
        settings.password_file.as_ref(),
    )?;
    if password.is_some() && settings.username.is_none() {
        return Err(Invalid::new("username", "missing; there is a password"));
    }
    let length = settings.client_id.len();
    if length == 0 || length > MAX_CLIENT_ID_BYTES || settings.client_id.contains('\0') {
        let detail = format!("expected 1 to {MAX_CLIENT_ID_BYTES} bytes");
        return Err(Invalid::new("client_id", detail));
    }
    let usual_port = if settings.tls.is_some() { 8883 } else { 1883 };
    let (host, port) = host_and_port("server", &settings.server, usual_port)?;
    let tls = match &settings.tls {
        Some(tls) => Some(tls.client_config("tls")?),
        None => None,
    };
    Ok(Arc::new(Remote {
        host,
        port,
        version: match settings.protocol {
            Protocol::V5 => Version::V5,
            Protocol::V311 => Version::V311,
        },
        client_id: settings.client_id,
        username: settings.username,
        password,
        tls,
        link: tokio::sync::Mutex::default(),
    }))
}

impl Remote {
    fn server(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// A connection for sinks that is there, as far as is known.
    async fn link(&self) -> Result<Arc<Link>, Failure> {
        let mut slot = self.link.lock().await;
        if let Some(link) = slot.as_ref().filter(|link| !link.is_over()) {
            return Ok(link.clone());
        }
        let wish = Wish {
            client_id: &format!("{}-out", self.client_id),
            expiry_s: 0,
        };
        let link = Arc::new(Link::open(self, &wish).await?);
        *slot = Some(link.clone());
        Ok(link)
    }
}

impl Connector for Remote {
    fn writer(self: Arc<Self>, settings: Map<String, Value>) -> Result<Arc<dyn Writer>, Invalid> {
        Ok(Arc::new(sink::Sink::new(self, read(settings)?)?))
    }

    fn test(&self) -> Doing<'_, Result<String, Failure>> {
        Box::pin(async {
            let wish = Wish {
                client_id: &format!("{}-test", self.client_id),
                expiry_s: 0,
            };
            let link = Link::open(self, &wish).await?;
            link.leave().await;
            Ok(format!("MQTT {} broker", self.version.as_str()))
        })
    }

    fn reader(self: Arc<Self>, settings: Map<String, Value>) -> Result<Arc<dyn Reader>, Invalid> {
        Ok(Arc::new(source::Source::new(self, read(settings)?)?))
    }
}
