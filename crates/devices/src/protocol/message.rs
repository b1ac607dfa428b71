//! The content of device messages, and the visitor that receives it.

use super::topic::ReplyKind;
use crate::json_scanner::RawValue;

/// A number that the visitor assigns to a key.
pub type KeySlot = u32;

/// A key position that is not to be remembered.
pub(super) const NO_KEY_POSITION: usize = usize::MAX;

/// Applies to the values since the last row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowInfo {
    /// The time stated by the device; `None`: the time of arrival applies.
    pub ts_ms: Option<i64>,
    /// Whether the values are to be stored.
    pub is_stored: bool,
    /// Whether the values may appear in the message log.
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

/// Receives the content of a message while it is decoded.
pub trait MessageVisitor<'a> {
    /// The following content is about a child device of the sender, by the name its gateway uses; `None`:
    /// about the sender itself. Returns whether the device is known: if not, its content is skipped.
    fn enter_device(&mut self, child: Option<&'a str>) -> bool {
        let _ = child;
        true
    }

    /// Predicts the next key from the one at this position in earlier messages. Returns its length in bytes
    /// up to its value, and its slot.
    #[inline]
    fn predict_key(&mut self, place: usize, rest: &[u8]) -> Option<(usize, KeySlot)> {
        let _ = (place, rest);
        None
    }

    /// The slot of a key. `written` is its encoded form in the message, up to its value.
    fn resolve_key(&mut self, place: usize, written: &[u8], name: &str) -> KeySlot;

    fn visit_value(&mut self, slot: KeySlot, value: RawValue<'a>);

    /// The values since the last row have one time and form a row.
    fn finish_row(&mut self, info: RowInfo);

    /// The values since the last row are to be discarded.
    fn discard_row(&mut self);

    /// Receives everything but telemetry.
    fn visit_control_message(&mut self, message: ControlMessage<'a>);
}

/// A message of a device other than telemetry. Fields named `json` contain validated JSON.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ControlMessage<'a> {
    /// Client attributes: a JSON object.
    Attributes {
        json: &'a str,
    },
    /// A request for attributes. `None`: all of that scope; names are separated by commas.
    AttributesRequest {
        id: &'a str,
        client: AttributeSelection<'a>,
        shared: AttributeSelection<'a>,
    },
    /// A request to the platform.
    RpcRequest {
        id: &'a str,
        method: &'a str,
        params_json: &'a str,
    },
    /// The reply to a command.
    Reply(DeviceReply<'a>),
    Event {
        id: &'a str,
        ts_ms: Option<i64>,
        data_json: &'a str,
    },
    Online,
    Offline,
    /// The subject is connected to this gateway. Includes the product that the gateway states.
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
    /// A request for registration: a JSON object.
    Provision {
        json: &'a str,
    },
    /// An entry for the device's log, text or JSON.
    Log {
        json: &'a str,
    },
    /// A request for the time.
    TimeSync {
        id: Option<&'a str>,
    },
    /// A message that the node only counts.
    Ignored {
        what: &'static str,
    },
    /// A thing model of the device itself: JSON.
    DerivedModel {
        json: &'a str,
    },
    /// A message about firmware: its kind and its JSON.
    Firmware {
        step: &'a str,
        json: &'a str,
    },
}

/// Requested attributes of one scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttributeSelection<'a> {
    None,
    All,
    /// Separated by commas.
    Keys(&'a str),
}

/// A reply of a device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeviceReply<'a> {
    pub to: ReplyKind,
    /// Id of the command; relays and old firmware omit it.
    pub id: Option<&'a str>,
    pub is_success: bool,
    /// Properties, output or other content of the reply.
    pub body_json: Option<&'a str>,
    pub code: Option<&'a str>,
    pub message: Option<&'a str>,
}
