//! The hooks of scripts, what they are given, and what they ask for.

use serde::{Deserialize, Serialize};

/// A function that a script may define.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScriptHook {
    /// Before each connection.
    Connect,
    /// After each connection, and its subscriptions.
    Connected,
    /// A message to the device.
    Message,
    /// A message that the device is about to send by its schedule.
    Send,
    /// At an interval.
    Timer,
}

impl ScriptHook {
    pub(crate) const ALL: [Self; 5] = [
        Self::Connect,
        Self::Connected,
        Self::Message,
        Self::Send,
        Self::Timer,
    ];

    /// The name of the function.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Connect => "beforeConnect",
            Self::Connected => "onConnected",
            Self::Message => "onMessage",
            Self::Send => "onSend",
            Self::Timer => "onTimer",
        }
    }
}

/// What a script knows of the device.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct ScriptDevice<'a> {
    /// Number among all devices of the simulation, which identifies the attributes that scripts set.
    pub(crate) number: u32,
    pub(crate) index: u32,
    pub(crate) id: &'a str,
    pub(crate) fleet: &'a str,
    /// Messages sent so far.
    pub(crate) messages: u32,
    /// The values of the device as a JSON object.
    pub(crate) state: &'a str,
    /// Milliseconds since 1970 by the clock of the device.
    pub(crate) now: u64,
}

/// Credentials of a connection, before and after `beforeConnect`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ConnectOptions {
    pub(crate) client_id: String,
    pub(crate) username: Option<String>,
    pub(crate) password: Option<String>,
}

/// A message that a device has received, or is about to send.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ScriptMessage {
    pub(crate) topic: String,
    pub(crate) payload: String,
}

/// What a script asks for with functions of the device.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ScriptAction {
    Publish {
        topic: String,
        payload: String,
        qos: u8,
        retain: bool,
    },
    Subscribe {
        filter: String,
        qos: u8,
    },
    Disconnect {},
    Log {
        text: String,
    },
}

/// What a hook has asked for, and its result.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct ScriptOutcome<T> {
    /// The changed argument; `None`: the hook has returned `false`.
    pub(crate) value: Option<T>,
    pub(crate) actions: Vec<ScriptAction>,
}
