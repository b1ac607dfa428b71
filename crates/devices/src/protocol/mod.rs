//! Topic dialects: what a message of a device says, and how a device is told something. Pure: topic and payload in, what was
//! said out, and the other way round. Which device speaks, and whether it may, is for others to know.
//!
//! A message is read in one pass; [`MessageVisitor`] hears its values while they are read, so that nothing is built in between.

mod cbor;
mod downlink;
mod jetlinks;
mod native;
mod thingsboard;
mod topic;

#[cfg(test)]
mod tests;

use bumpalo::Bump;

pub use crate::json_scanner::{PayloadError, RawValue};
pub use downlink::{DownlinkMessage, DownlinkTarget, UnsupportedDownlinkError, encode_downlink};
pub use topic::{
    DeviceTopic, DownlinkTopic, GatewayTopic, ReplyKind, TopicKind, carries_telemetry,
    may_be_device_topic, parse_device_topic, parse_downlink_topic,
};

/// Whose topics and payloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeviceProtocol {
    ThingsBoard,
    JetLinks,
    Native,
}

impl DeviceProtocol {
    pub const ALL: [Self; 3] = [Self::ThingsBoard, Self::JetLinks, Self::Native];

    pub fn as_str(self) -> &'static str {
        match self {
            DeviceProtocol::ThingsBoard => "thingsboard",
            DeviceProtocol::JetLinks => "jetlinks",
            DeviceProtocol::Native => "tidegate",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|dialect| dialect.as_str() == name)
    }
}

/// Some of the dialects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceProtocols(u8);

impl DeviceProtocols {
    pub const ALL: Self = Self(0b111);
    pub const NONE: Self = Self(0);

    #[must_use]
    pub fn with(self, dialect: DeviceProtocol) -> Self {
        Self(self.0 | 1 << dialect as u8)
    }

    #[inline]
    pub fn contains(self, dialect: DeviceProtocol) -> bool {
        self.0 & (1 << dialect as u8) != 0
    }
}

/// A number that whoever hears has given to a key.
pub type KeySlot = u32;

/// What holds for the values told since the last row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowInfo {
    /// As the device says; `None`: it does not, and the time of its arrival counts.
    pub ts_ms: Option<i64>,
    /// Whether they are to be kept.
    pub is_stored: bool,
    /// Whether they may be in the log of messages.
    pub is_logged: bool,
}

impl RowInfo {
    pub(crate) fn with_timestamp(ts_ms: Option<i64>) -> Self {
        Self {
            ts_ms,
            is_stored: true,
            is_logged: true,
        }
    }
}

/// Hears what a message says.
pub trait MessageVisitor<'a> {
    /// From now on it is about a device behind the one that speaks, by the name its gateway gives it; `None`: the speaker.
    /// Whether this device is known: if not, what is about it is not read.
    fn enter_device(&mut self, child: Option<&'a str>) -> bool {
        let _ = child;
        true
    }

    /// Whether the text goes on with the key that was at this place in messages before: the bytes of the key up to its value, and its slot.
    #[inline]
    fn predict_key(&mut self, place: usize, rest: &[u8]) -> Option<(usize, KeySlot)> {
        let _ = (place, rest);
        None
    }

    /// The slot of a key. `written` is how it stands in the message up to its value.
    fn resolve_key(&mut self, place: usize, written: &[u8], name: &str) -> KeySlot;

    fn visit_value(&mut self, slot: KeySlot, value: RawValue<'a>);

    /// Values since the last row are of one time.
    fn finish_row(&mut self, info: RowInfo);

    /// Values since the last row were none.
    fn discard_row(&mut self);

    /// Everything but telemetry.
    fn visit_control_message(&mut self, said: ControlMessage<'a>);
}

/// What a device says besides telemetry. Texts called `json` are checked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ControlMessage<'a> {
    /// Client attributes: a JSON object.
    Attributes {
        json: &'a str,
    },
    /// It asks for attributes. `None`: all of that scope; names are separated by commas.
    AttributesRequest {
        id: &'a str,
        client: AttributeSelection<'a>,
        shared: AttributeSelection<'a>,
    },
    /// It asks the platform to do something.
    RpcRequest {
        id: &'a str,
        method: &'a str,
        params_json: &'a str,
    },
    /// What came of something it was asked to do.
    Reply(DeviceReply<'a>),
    Event {
        id: &'a str,
        ts_ms: Option<i64>,
        data_json: &'a str,
    },
    Online,
    Offline,
    /// The device talked about is behind this gateway. With the product the gateway says it is of.
    Connected {
        product: Option<&'a str>,
    },
    Disconnected,
    Registered {
        product: Option<&'a str>,
        name: Option<&'a str>,
        configuration_json: Option<&'a str>,
    },
    Unregistered,
    /// A JSON object.
    Tags {
        json: &'a str,
    },
    Claim {
        secret: Option<&'a str>,
        duration_ms: Option<i64>,
    },
    /// Asks to be made a device: a JSON object.
    Provision {
        json: &'a str,
    },
    /// A line for the log of the device, text or JSON.
    Log {
        json: &'a str,
    },
    /// It asks for the time.
    TimeSync {
        id: Option<&'a str>,
    },
    /// Something the node takes no notice of, besides counting it.
    Ignored {
        what: &'static str,
    },
    /// A thing model of its own: JSON.
    DerivedModel {
        json: &'a str,
    },
    /// A message about firmware: which one, and its JSON.
    Firmware {
        step: &'a str,
        json: &'a str,
    },
}

/// Attributes of one scope that are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttributeSelection<'a> {
    None,
    All,
    /// Separated by commas.
    Keys(&'a str),
}

/// The answer of a device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeviceReply<'a> {
    pub to: ReplyKind,
    /// Of what it was asked; relays and old firmware leave it out.
    pub id: Option<&'a str>,
    pub is_success: bool,
    /// Properties, output or whatever else was answered.
    pub body_json: Option<&'a str>,
    pub code: Option<&'a str>,
    pub message: Option<&'a str>,
}

/// Reads a message into `ears`.
///
/// # Errors
/// If the payload is not what the dialect has at this place; what was told until then is void.
#[inline]
pub fn decode_message<'a>(
    route: &DeviceTopic<'a>,
    payload: &'a [u8],
    arena: &'a Bump,
    ears: &mut impl MessageVisitor<'a>,
) -> Result<(), PayloadError> {
    match route.dialect {
        DeviceProtocol::ThingsBoard => thingsboard::read(route.kind, payload, arena, ears),
        DeviceProtocol::JetLinks => jetlinks::read(route.kind, payload, arena, ears),
        DeviceProtocol::Native => native::read(route.kind, payload, arena, ears),
    }
}
