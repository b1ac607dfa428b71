//! Owned control messages that need the disk or an answer.

use crate::protocol::{AttributeSelection, ControlMessage};

pub(super) enum ControlRequest {
    Attributes(Box<str>),
    AttributesRequest {
        id: Box<str>,
        client: AttributeKeys,
        shared: AttributeKeys,
    },
    Call {
        id: Box<str>,
        method: Box<str>,
    },
    TimeSync {
        id: Box<str>,
    },
    Event {
        id: Box<str>,
        ts_ms: Option<i64>,
        data: Box<str>,
    },
    /// The device is connected: it reports so itself, or its gateway does.
    Online,
    Offline,
    Registered {
        name: Option<Box<str>>,
    },
    Unregistered,
    Tags(Box<str>),
    Claim {
        secret: Box<str>,
        duration_ms: u64,
    },
}

/// Requested attributes of a scope.
pub(super) enum AttributeKeys {
    None,
    All,
    Named(Box<[Box<str>]>),
}

/// How long a device can be claimed, if it does not state a duration.
const CLAIM_MS: u64 = 24 * 3600 * 1000;

impl AttributeKeys {
    fn from_selection(wanted: AttributeSelection<'_>) -> Self {
        match wanted {
            AttributeSelection::None => Self::None,
            AttributeSelection::All => Self::All,
            AttributeSelection::Keys(keys) => Self::Named(
                keys.split(',')
                    .map(str::trim)
                    .filter(|key| !key.is_empty())
                    .map(Into::into)
                    .collect(),
            ),
        }
    }

    pub(super) fn is_wanted(&self) -> bool {
        !matches!(self, Self::None)
    }

    pub(super) fn contains(&self, key: &str) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::Named(keys) => keys.iter().any(|wanted| **wanted == *key),
        }
    }
}

impl ControlRequest {
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Attributes(json) | Self::Tags(json) => json.len(),
            Self::Event { data, .. } => data.len(),
            // Bounded by the maximum message size; mostly a few bytes.
            _ => 64,
        }
    }

    /// Returns `None` for messages that other components handle.
    pub(super) fn from_message(message: &ControlMessage<'_>) -> Option<Self> {
        Some(match *message {
            ControlMessage::Attributes { json } => Self::Attributes(json.into()),
            ControlMessage::AttributesRequest { id, client, shared } => Self::AttributesRequest {
                id: id.into(),
                client: AttributeKeys::from_selection(client),
                shared: AttributeKeys::from_selection(shared),
            },
            ControlMessage::RpcRequest { id, method, .. } => Self::Call {
                id: id.into(),
                method: method.into(),
            },
            ControlMessage::TimeSync { id } => Self::TimeSync {
                id: id.unwrap_or_default().into(),
            },
            ControlMessage::Event {
                id,
                ts_ms,
                data_json,
            } => Self::Event {
                id: id.into(),
                ts_ms,
                data: data_json.into(),
            },
            ControlMessage::Online | ControlMessage::Connected { .. } => Self::Online,
            ControlMessage::Offline | ControlMessage::Disconnected => Self::Offline,
            ControlMessage::Registered { name, .. } => Self::Registered {
                name: name.map(Into::into),
            },
            ControlMessage::Unregistered => Self::Unregistered,
            ControlMessage::Tags { json } => Self::Tags(json.into()),
            ControlMessage::Claim {
                secret,
                duration_ms,
            } => Self::Claim {
                secret: secret.unwrap_or_default().into(),
                duration_ms: duration_ms
                    .and_then(|ms| u64::try_from(ms).ok())
                    .unwrap_or(CLAIM_MS),
            },
            ControlMessage::Reply(_)
            | ControlMessage::Provision { .. }
            | ControlMessage::Log { .. }
            | ControlMessage::DerivedModel { .. }
            | ControlMessage::Ignored { .. }
            | ControlMessage::Firmware { .. } => return None,
        })
    }
}
