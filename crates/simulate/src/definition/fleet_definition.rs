//! Products and fleets as a file describes them.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::quantity::{Share, TimeRange, TimeSpan};
use super::script_definition::ScriptDefinition;
use super::state_definition::StateDefinition;

/// Topics and payloads of devices, as in docs/reference/device-protocols.md.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DeviceProtocol {
    /// Each send has its own topic and payload.
    #[default]
    Raw,
    Thingsboard,
    Jetlinks,
    Native,
    /// JSON messages on the WebSocket of a relay endpoint.
    Relay,
}

/// How devices reach their server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FleetTransport {
    #[default]
    Mqtt,
    /// The HTTP API of devices.
    Http,
    /// The WebSocket of a relay endpoint.
    Relay,
    Link,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProductDefinition {
    #[serde(default)]
    pub(crate) protocol: DeviceProtocol,
    /// Whether the product and the devices of its fleets are created on the node, and removed at the end.
    #[serde(default)]
    pub(crate) create: bool,
    /// Fields of the product as in the API, such as `mode` and `model`.
    #[serde(default)]
    pub(crate) fields: Map<String, Value>,
}

/// Devices of the same kind.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FleetDefinition {
    /// Without one, the protocol is `raw`.
    pub(crate) product: Option<String>,
    /// Default: `relay` for devices of this protocol, otherwise `mqtt`.
    pub(crate) transport: Option<FleetTransport>,
    /// Relay endpoint, for the transport `relay`.
    pub(crate) endpoint: Option<String>,
    /// Fleet of the gateways that connect the devices.
    pub(crate) gateway: Option<String>,
    pub(crate) count: u32,
    /// Index of the first device.
    #[serde(default)]
    pub(crate) first: u32,
    #[serde(default = "default_id")]
    pub(crate) id: String,
    /// Name of each device that is created, for people.
    pub(crate) name: Option<String>,
    /// Tags of each device that is created.
    #[serde(default)]
    pub(crate) tags: BTreeMap<String, String>,
    /// What new devices report about the time before, oldest first.
    #[serde(default)]
    pub(crate) history: Vec<HistoryDefinition>,
    /// Default: the id.
    pub(crate) client_id: Option<String>,
    /// Default with a product: the credentials that the protocol usually has.
    pub(crate) username: Option<String>,
    pub(crate) password: Option<String>,
    /// JetLinks' secure credentials, in place of user name and password. Default of `secure_id`: the id.
    pub(crate) secure_id: Option<String>,
    pub(crate) secure_key: Option<String>,
    #[serde(default = "default_keep_alive")]
    pub(crate) keep_alive: TimeSpan,
    #[serde(default)]
    pub(crate) qos: u8,
    #[serde(default = "yes")]
    pub(crate) clean_session: bool,
    /// Topic filters besides those that responses need.
    #[serde(default)]
    pub(crate) subscribe: Vec<String>,
    #[serde(default)]
    pub(crate) state: BTreeMap<String, StateDefinition>,
    #[serde(default)]
    pub(crate) send: Vec<SendDefinition>,
    #[serde(default)]
    pub(crate) on: Vec<ResponseDefinition>,
    /// Hooks of its devices.
    pub(crate) script: Option<ScriptDefinition>,
    /// What a device does when its connection ends.
    #[serde(default)]
    pub(crate) reconnect: ReconnectDefinition,
}

/// Values in the past at a regular interval.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HistoryDefinition {
    /// Time before the start of the run.
    pub(crate) from: TimeSpan,
    #[serde(default = "no_time")]
    pub(crate) to: TimeSpan,
    pub(crate) every: TimeSpan,
}

fn default_id() -> String {
    "{fleet}-{index}".to_owned()
}

fn default_keep_alive() -> TimeSpan {
    TimeSpan::from_seconds(60)
}

fn yes() -> bool {
    true
}

/// Kinds of messages of device protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum SendKind {
    Telemetry,
    Attributes,
    Event,
    /// A question of the device at a relay endpoint.
    Request,
}

/// Messages that devices send on their own.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SendDefinition {
    pub(crate) every: TimeSpan,
    /// Each interval is longer or shorter by up to this time.
    #[serde(default = "no_time")]
    pub(crate) jitter: TimeSpan,
    #[serde(default)]
    pub(crate) start: SendStart,
    /// So many random devices send each `every`, instead of all.
    pub(crate) random_devices: Option<u32>,
    /// Names of values; a message is sent if one of them has changed since the last.
    #[serde(default)]
    pub(crate) on_change: Vec<String>,
    pub(crate) topic: Option<String>,
    pub(crate) payload: Option<String>,
    pub(crate) kind: Option<SendKind>,
    /// Name of an event.
    pub(crate) event: Option<String>,
    /// Type of a request, such as `status_sync`; its parameters are the payload.
    pub(crate) request: Option<String>,
    /// Values of the message; all if there are none.
    #[serde(default)]
    pub(crate) values: Vec<String>,
    pub(crate) qos: Option<u8>,
    #[serde(default)]
    pub(crate) retain: bool,
}

fn no_time() -> TimeSpan {
    TimeSpan { ns: 0 }
}

/// When the devices of a fleet send their first message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum SendStart {
    /// Spread over the interval.
    #[default]
    Staggered,
    /// All at once.
    Together,
}

/// Requests to devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RequestKind {
    /// Any call of a method, or of a function of a thing model.
    Command,
    Read,
    Write,
    /// A call of a function of a thing model of JetLinks.
    Function,
    /// A change of shared attributes.
    Attributes,
    /// An image to install.
    Firmware,
    Software,
    /// A command whose parameters name a file to download and verify.
    File,
    /// A message on a topic that matches `topic`.
    Topic,
}

/// How devices respond to requests of one kind.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResponseDefinition {
    pub(crate) kind: RequestKind,
    /// Only requests of this method or function.
    pub(crate) method: Option<String>,
    /// Topic filter, for the kind `topic`.
    pub(crate) topic: Option<String>,
    #[serde(default = "at_once")]
    pub(crate) delay: TimeRange,
    pub(crate) answer_topic: Option<String>,
    pub(crate) answer: Option<String>,
    /// Length of the chunks in which images are downloaded.
    pub(crate) chunk_bytes: Option<u32>,
    /// What the devices run before they install an image, in JetLinks' protocol.
    pub(crate) version: Option<String>,
    /// Part of the requests that get no answer.
    #[serde(default = "none")]
    pub(crate) silent: Share,
    /// Part of the requests that fail.
    #[serde(default = "none")]
    pub(crate) failure: Share,
}

fn at_once() -> TimeRange {
    TimeRange::single(no_time())
}

fn none() -> Share {
    Share(0.0)
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReconnectDefinition {
    #[serde(default = "yes")]
    pub(crate) enabled: bool,
    /// Time before the first attempt.
    #[serde(default = "one_second")]
    pub(crate) delay: TimeRange,
    /// Whether the delay doubles with each attempt, up to `max_delay`.
    #[serde(default = "yes")]
    pub(crate) backoff: bool,
    #[serde(default = "one_minute")]
    pub(crate) max_delay: TimeSpan,
}

fn one_second() -> TimeRange {
    TimeRange {
        from: TimeSpan { ns: 500_000_000 },
        to: TimeSpan { ns: 1_500_000_000 },
    }
}

fn one_minute() -> TimeSpan {
    TimeSpan::from_seconds(60)
}

impl Default for ReconnectDefinition {
    fn default() -> Self {
        Self {
            enabled: true,
            delay: one_second(),
            backoff: true,
            max_delay: one_minute(),
        }
    }
}
