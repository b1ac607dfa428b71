//! The options shared by `tidegate pub` and `tidegate sub`: broker, identity, will, and connection
//! properties.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args};
use mqtt::{PropertiesBuf, Property, QoS, Version};
use mqtt_client::{AckMode, ClientSession};

use super::endpoint::{BrokerAddress, BrokerEndpoint, BrokerUrl};
use super::error::ClientError;
use super::tls::TlsArgs;
use super::transport::ConnectRoute;
use crate::password_command;

#[derive(Args, Clone)]
#[command(next_help_heading = "Connection")]
pub(crate) struct ConnectArgs {
    /// Host of the broker [default: localhost]
    #[arg(short = 'h', long, value_name = "HOST", value_parser = parse_host)]
    host: Option<String>,
    /// Port of the broker [default: 1883, with TLS 8883, with WebSocket 8083, with both 8084, with QUIC 14567]
    #[arg(short = 'p', long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// All of these as a URL, such as mqtts://ann@broker.example:8883, ws://localhost:8083/mqtt,
    /// quic://localhost:14567, unix:///run/mqtt.sock
    #[arg(short = 'L', long, value_name = "URL", conflicts_with_all = ["host", "port", "unix"])]
    url: Option<String>,
    /// Connect to a Unix socket
    #[arg(long, value_name = "PATH", conflicts_with_all = ["host", "port"])]
    unix: Option<PathBuf>,
    /// Use a WebSocket
    #[arg(long)]
    ws: bool,
    /// Path of the WebSocket [default: /mqtt]
    #[arg(long, value_name = "PATH")]
    ws_path: Option<String>,
    /// Protocol version: 5, 3.1.1 or 3.1
    #[arg(short = 'V', long, value_name = "VERSION", default_value = "5", value_parser = parse_version)]
    mqtt_version: Version,
    /// Client id [default: a random one]
    #[arg(short = 'i', long, value_name = "ID")]
    client_id: Option<String>,
    /// User name
    #[arg(short = 'u', long, value_name = "NAME")]
    username: Option<String>,
    /// Password; others on this machine can see it, so prefer --password-file or the environment variable
    /// TIDEGATE_PASSWORD
    #[arg(short = 'P', long, value_name = "TEXT")]
    password: Option<String>,
    /// Read the password from a file
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// Prompt for the password on the terminal
    #[arg(long, conflicts_with = "password_file")]
    ask_password: bool,
    /// Keep-alive in seconds: idle time after which the client sends a ping; 0: never
    #[arg(short = 'k', long, value_name = "SECONDS", default_value_t = 60)]
    keep_alive: u16,
    /// Time limit for connecting, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    connect_timeout: u32,
    /// Resume the session of this client id (MQTT 3: and keep it) instead of starting a clean one
    #[arg(short = 'c', long)]
    no_clean_start: bool,
    /// Seconds that the session outlives the connection, or "never" (it does not expire)
    #[arg(short = 'x', long, value_name = "SECONDS", value_parser = parse_seconds_or_never)]
    session_expiry: Option<u32>,
    /// Maximum number of QoS 1 and 2 messages in flight from the broker
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    receive_maximum: Option<u16>,
    /// Largest packet accepted, in bytes
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..))]
    max_packet_size: Option<u32>,
    /// Maximum number of topic aliases of the broker
    #[arg(long, value_name = "N")]
    topic_alias_maximum: Option<u16>,
    /// Request response information from the broker
    #[arg(long)]
    request_response_information: bool,
    /// Ask the broker to omit reason strings and user properties
    #[arg(long)]
    no_problem_information: bool,
    /// User property of CONNECT; repeatable
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_user_property)]
    connect_user_property: Vec<(String, String)>,
    /// Authentication method; scram-sha-256 uses user name and password
    #[arg(long, value_name = "METHOD")]
    auth_method: Option<String>,
    /// Authentication data for other methods
    #[arg(long, value_name = "TEXT", requires = "auth_method")]
    auth_data: Option<String>,
    /// Print the broker's acknowledgements to standard error
    #[arg(short = 'd', long)]
    pub(super) debug: bool,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    will: WillArgs,
}

#[derive(Args, Clone)]
#[command(next_help_heading = "Will, published by the broker if the connection breaks")]
struct WillArgs {
    /// Topic of the will
    #[arg(long, value_name = "TOPIC")]
    will_topic: Option<String>,
    /// Payload of the will [default: empty]
    #[arg(long, value_name = "TEXT", requires = "will_topic")]
    will_payload: Option<String>,
    #[arg(long, value_name = "QOS", default_value = "0", value_parser = parse_qos, help = "QoS of the will")]
    will_qos: QoS,
    /// Retain the will
    #[arg(long, requires = "will_topic")]
    will_retain: bool,
    /// Seconds the broker waits before it publishes the will
    #[arg(long, value_name = "SECONDS", requires = "will_topic")]
    will_delay: Option<u32>,
    /// Seconds after which the will is no longer delivered
    #[arg(long, value_name = "SECONDS", requires = "will_topic")]
    will_message_expiry: Option<u32>,
    /// Content type of the will
    #[arg(long, value_name = "TYPE", requires = "will_topic")]
    will_content_type: Option<String>,
    /// Response topic of the will
    #[arg(long, value_name = "TOPIC", requires = "will_topic")]
    will_response_topic: Option<String>,
    /// Correlation data of the will
    #[arg(long, value_name = "TEXT", requires = "will_topic")]
    will_correlation_data: Option<String>,
    /// Mark the will's payload as UTF-8 text
    #[arg(long, requires = "will_topic")]
    will_utf8: bool,
    /// User property of the will; repeatable
    #[arg(long, value_name = "NAME=VALUE", requires = "will_topic", value_parser = parse_user_property)]
    will_user_property: Vec<(String, String)>,
}

/// Everything a connection needs, after reading files and resolving addresses.
#[derive(Clone)]
pub(crate) struct ConnectOptions {
    pub(super) route: ConnectRoute,
    pub(super) connect_timeout: Duration,
    pub(super) version: Version,
    pub(super) client_id: String,
    pub(super) clean_start: bool,
    pub(super) keep_alive_s: u16,
    pub(super) username: Option<String>,
    pub(super) password: Option<Vec<u8>>,
    /// Authenticate by SCRAM-SHA-256 with the user name and password.
    pub(super) scram: bool,
    pub(super) will: Option<WillMessage>,
    /// Empty before MQTT 5.
    pub(super) properties: PropertiesBuf,
    max_packet_size: u32,
    topic_alias_maximum: u16,
    pub(super) debug: bool,
}

#[derive(Clone)]
pub(super) struct WillMessage {
    pub(super) topic: String,
    pub(super) payload: Vec<u8>,
    pub(super) qos: QoS,
    pub(super) retain: bool,
    pub(super) properties: PropertiesBuf,
}

impl ConnectOptions {
    /// A new session.
    pub(super) fn new_session(&self) -> ClientSession {
        ClientSession::new(
            self.version,
            AckMode::Automatic,
            self.max_packet_size,
            self.topic_alias_maximum,
        )
    }
}

impl ConnectArgs {
    pub(super) fn version(&self) -> Version {
        self.mqtt_version
    }

    /// Resolves the options. `purpose` names the command in a random client id.
    pub(super) fn resolve(self, purpose: &str) -> Result<ConnectOptions, ClientError> {
        let version = self.mqtt_version;
        let url = match &self.url {
            Some(url) => Some(
                BrokerUrl::parse(url).map_err(|error| usage_error(format!("--url: {error}")))?,
            ),
            None => None,
        };
        let uses_scram = self
            .auth_method
            .as_ref()
            .is_some_and(|method| method.eq_ignore_ascii_case(scram::METHOD));
        let properties = self.properties(uses_scram);
        let will = self.will.will_message();
        require_version_5(version, "connection", &properties)?;
        if let Some(will) = &will {
            require_version_5(version, "will", &will.properties)?;
        }
        let username = self
            .username
            .clone()
            .or_else(|| url.as_ref()?.username.clone());
        let password = match (&self.password_file, self.ask_password) {
            (Some(file), _) => Some(password_command::from_file(file)),
            (None, true) => Some(password_command::prompt("Password: ")),
            (None, false) => None,
        };
        let password = password
            .transpose()
            .map_err(|error| usage_error(format!("{error:#}")))?
            .or_else(|| self.password.clone().map(String::into_bytes))
            .or_else(|| Some(url.as_ref()?.password.clone()?.into_bytes()))
            .or_else(password_from_environment);
        if uses_scram && (username.is_none() || password.is_none()) {
            return Err(usage_error(
                "scram-sha-256 needs a user name and a password".into(),
            ));
        }
        if version != Version::V5 && password.is_some() && username.is_none() {
            return Err(usage_error(
                "before MQTT 5 a password needs a user name (-u)".into(),
            ));
        }
        let client_id = match self.client_id.clone() {
            Some(client_id) => client_id,
            None if self.no_clean_start => {
                return Err(usage_error(
                    "to go on with a session, name its client id with -i".into(),
                ));
            }
            None => random_client_id(purpose),
        };
        let endpoint = self.endpoint(url.as_ref());
        if endpoint.quic && endpoint.websocket_path.is_some() {
            return Err(usage_error(
                "--ws: not with a URL quic://, which carries MQTT without WebSocket".into(),
            ));
        }
        let tls = match endpoint.tls {
            true => Some(self.tls.client_config()?),
            false => None,
        };
        Ok(ConnectOptions {
            route: ConnectRoute {
                endpoint,
                tls,
                tls_server_name: self.tls.trust.tls_server_name.clone(),
            },
            connect_timeout: Duration::from_secs(self.connect_timeout.into()),
            version,
            client_id,
            clean_start: !self.no_clean_start,
            keep_alive_s: self.keep_alive,
            username,
            password,
            scram: uses_scram,
            will,
            properties,
            max_packet_size: self.max_packet_size.unwrap_or(MAX_PACKET_BYTES),
            topic_alias_maximum: self.topic_alias_maximum.unwrap_or(0),
            debug: self.debug,
        })
    }

    fn endpoint(&self, url: Option<&BrokerUrl>) -> BrokerEndpoint {
        let tls = self.tls.is_requested() || url.is_some_and(|url| url.tls);
        let quic = url.is_some_and(|url| url.quic);
        let websocket = self.ws || self.ws_path.is_some() || url.is_some_and(|url| url.websocket);
        let path = || {
            let from_url = url
                .map(|url| url.path.clone())
                .filter(|path| !path.is_empty());
            let path = self.ws_path.clone().or(from_url);
            path.unwrap_or_else(|| "/mqtt".to_owned())
        };
        let unix = self.unix.clone().or_else(|| url?.unix.clone());
        BrokerEndpoint {
            address: match unix {
                Some(path) => BrokerAddress::Unix(path),
                None => BrokerAddress::Tcp {
                    host: url
                        .map(|url| url.host.clone())
                        .or_else(|| self.host.clone())
                        .unwrap_or_else(|| "localhost".to_owned()),
                    port: url
                        .and_then(|url| url.port)
                        .or(self.port)
                        .unwrap_or_else(|| BrokerEndpoint::default_port(tls, websocket, quic)),
                },
            },
            tls,
            quic,
            websocket_path: websocket.then(path),
        }
    }

    fn properties(&self, uses_scram: bool) -> PropertiesBuf {
        let mut properties = PropertiesBuf::new();
        if let Some(seconds) = self.session_expiry {
            properties.push(Property::SessionExpiryInterval(seconds));
        }
        if let Some(maximum) = self.receive_maximum {
            properties.push(Property::ReceiveMaximum(maximum));
        }
        if let Some(bytes) = self.max_packet_size {
            properties.push(Property::MaximumPacketSize(bytes));
        }
        if let Some(maximum) = self.topic_alias_maximum {
            properties.push(Property::TopicAliasMaximum(maximum));
        }
        if self.request_response_information {
            properties.push(Property::RequestResponseInformation(true));
        }
        if self.no_problem_information {
            properties.push(Property::RequestProblemInformation(false));
        }
        for (name, value) in &self.connect_user_property {
            properties.push(Property::UserProperty(name, value));
        }
        // With SCRAM, method and data are created for each connection.
        if let Some(method) = self.auth_method.as_ref().filter(|_| !uses_scram) {
            properties.push(Property::AuthenticationMethod(method));
            if let Some(data) = &self.auth_data {
                properties.push(Property::AuthenticationData(data.as_bytes()));
            }
        }
        properties
    }
}

fn password_from_environment() -> Option<Vec<u8>> {
    let password = std::env::var_os("TIDEGATE_PASSWORD")?.into_encoded_bytes();
    (!password.is_empty()).then_some(password)
}

/// The largest packet that MQTT allows.
const MAX_PACKET_BYTES: u32 = 268_435_460;

impl WillArgs {
    fn will_message(&self) -> Option<WillMessage> {
        let mut properties = PropertiesBuf::new();
        if let Some(seconds) = self.will_delay {
            properties.push(Property::WillDelayInterval(seconds));
        }
        if self.will_utf8 {
            properties.push(Property::PayloadFormatIndicator(1));
        }
        if let Some(seconds) = self.will_message_expiry {
            properties.push(Property::MessageExpiryInterval(seconds));
        }
        if let Some(content_type) = &self.will_content_type {
            properties.push(Property::ContentType(content_type));
        }
        if let Some(topic) = &self.will_response_topic {
            properties.push(Property::ResponseTopic(topic));
        }
        if let Some(data) = &self.will_correlation_data {
            properties.push(Property::CorrelationData(data.as_bytes()));
        }
        for (name, value) in &self.will_user_property {
            properties.push(Property::UserProperty(name, value));
        }
        Some(WillMessage {
            topic: self.will_topic.clone()?,
            payload: self.will_payload.clone().unwrap_or_default().into_bytes(),
            qos: self.will_qos,
            retain: self.will_retain,
            properties,
        })
    }
}

pub(super) fn usage_error(message: String) -> ClientError {
    ClientError::Usage(message)
}

/// Rejects properties if the protocol version does not support them.
pub(super) fn require_version_5(
    version: Version,
    of_what: &str,
    properties: &PropertiesBuf,
) -> Result<(), ClientError> {
    if version == Version::V5 || properties.is_empty() {
        return Ok(());
    }
    Err(usage_error(format!(
        "the {of_what} has properties, which only MQTT 5 has; leave them out or -V {} away",
        version.as_str()
    )))
}

/// Short enough (23 characters) for every broker.
fn random_client_id(purpose: &str) -> String {
    let random: [u8; 4] = ring::rand::generate(&ring::rand::SystemRandom::new())
        .expect("the system gives random bytes")
        .expose();
    format!("tidegate-{purpose}-{:08x}", u32::from_ne_bytes(random))
}

/// Rejects URLs and ports.
fn parse_host(text: &str) -> Result<String, String> {
    if text.contains("://") {
        return Err("expected only a host; give a URL with -L".to_owned());
    }
    match text.split_once(':') {
        Some((_, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
            Err("expected only a host; give the port with -p".to_owned())
        }
        _ => Ok(text.to_owned()),
    }
}

fn parse_version(text: &str) -> Result<Version, String> {
    match text {
        "5" | "5.0" | "mqttv5" => Ok(Version::V5),
        "3.1.1" | "4" | "311" | "mqttv311" => Ok(Version::V311),
        "3.1" | "3" | "31" | "mqttv31" => Ok(Version::V31),
        _ => Err("expected 5, 3.1.1 or 3.1".into()),
    }
}

pub(super) fn parse_qos(text: &str) -> Result<QoS, String> {
    match text {
        "0" => Ok(QoS::AtMostOnce),
        "1" => Ok(QoS::AtLeastOnce),
        "2" => Ok(QoS::ExactlyOnce),
        _ => Err("expected 0, 1 or 2".into()),
    }
}

fn parse_seconds_or_never(text: &str) -> Result<u32, String> {
    match text {
        "never" => Ok(u32::MAX),
        _ => text
            .parse()
            .map_err(|_| "expected seconds or \"never\"".into()),
    }
}

pub(super) fn parse_user_property(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => Err("expected NAME=VALUE".into()),
    }
}
