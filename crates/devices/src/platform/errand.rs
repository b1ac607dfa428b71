//! What a device has said that takes the disk or an answer, owned.

use crate::dialect::{Said, Wanted};

pub(super) enum Errand {
    Attributes(Box<str>),
    AttributesRequest {
        id: Box<str>,
        client: Keys,
        shared: Keys,
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
    /// It is here: itself, or its gateway says so.
    Here,
    Gone,
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

/// Attributes of a scope that are wanted.
pub(super) enum Keys {
    None,
    All,
    These(Box<[Box<str>]>),
}

/// How long a claim is offered if the device does not say.
const CLAIM_MS: u64 = 24 * 3600 * 1000;

impl Keys {
    fn of(wanted: Wanted<'_>) -> Self {
        match wanted {
            Wanted::Nothing => Self::None,
            Wanted::All => Self::All,
            Wanted::Keys(keys) => Self::These(
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

    pub(super) fn has(&self, key: &str) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::These(keys) => keys.iter().any(|wanted| **wanted == *key),
        }
    }
}

impl Errand {
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Attributes(json) | Self::Tags(json) => json.len(),
            Self::Event { data, .. } => data.len(),
            // Bounded by what a message may be; mostly some bytes.
            _ => 64,
        }
    }

    /// `None`: it is for others.
    pub(super) fn of(said: &Said<'_>) -> Option<Self> {
        Some(match *said {
            Said::Attributes { json } => Self::Attributes(json.into()),
            Said::AttributesRequest { id, client, shared } => Self::AttributesRequest {
                id: id.into(),
                client: Keys::of(client),
                shared: Keys::of(shared),
            },
            Said::RpcRequest { id, method, .. } => Self::Call {
                id: id.into(),
                method: method.into(),
            },
            Said::TimeSync { id } => Self::TimeSync {
                id: id.unwrap_or_default().into(),
            },
            Said::Event {
                id,
                ts_ms,
                data_json,
            } => Self::Event {
                id: id.into(),
                ts_ms,
                data: data_json.into(),
            },
            Said::Online | Said::Connected { .. } => Self::Here,
            Said::Offline | Said::Disconnected => Self::Gone,
            Said::Registered { name, .. } => Self::Registered {
                name: name.map(Into::into),
            },
            Said::Unregistered => Self::Unregistered,
            Said::Tags { json } => Self::Tags(json.into()),
            Said::Claim {
                secret,
                duration_ms,
            } => Self::Claim {
                secret: secret.unwrap_or_default().into(),
                duration_ms: duration_ms
                    .and_then(|ms| u64::try_from(ms).ok())
                    .unwrap_or(CLAIM_MS),
            },
            Said::Reply(_)
            | Said::Provision { .. }
            | Said::Log { .. }
            | Said::DerivedModel { .. }
            | Said::Ignored { .. }
            | Said::Firmware { .. } => return None,
        })
    }
}
