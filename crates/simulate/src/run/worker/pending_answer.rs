//! An answer of a device that waits for its time.

use std::cmp::Ordering;

use serde_json::Value;

use crate::definition::{DeviceProtocol, RequestKind};
use crate::plan::ResponsePlan;
use crate::template::RequestView;

/// An answer that is due at a time.
#[derive(Debug)]
pub(super) struct PendingAnswer {
    pub(super) at_ns: u64,
    pub(super) device: u32,
    /// Number of the response of the fleet.
    pub(super) response: u16,
    pub(super) is_failure: bool,
    pub(super) request: Request,
}

/// What is kept of a request.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Request {
    id: String,
    pub(super) method: String,
    /// JSON.
    params: String,
    topic_end: String,
}

impl PartialEq for PendingAnswer {
    fn eq(&self, other: &Self) -> bool {
        self.at_ns == other.at_ns
    }
}

impl Eq for PendingAnswer {}

impl PartialOrd for PendingAnswer {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for PendingAnswer {
    fn cmp(&self, other: &Self) -> Ordering {
        self.at_ns.cmp(&other.at_ns)
    }
}

impl Request {
    /// Reads what a response may need.
    pub(super) fn read(response: &ResponsePlan, topic: &str, payload: &Value) -> Self {
        let topic_end = topic.rsplit('/').next().unwrap_or_default().to_owned();
        let text = |value: &Value| match value {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            value => value.to_string(),
        };
        let (id, method, params) = match (response.protocol, response.kind) {
            (DeviceProtocol::Jetlinks, RequestKind::Read | RequestKind::Write) => (
                text(&payload["messageId"]),
                String::new(),
                &payload["properties"],
            ),
            (DeviceProtocol::Jetlinks, _) => {
                let method = match text(&payload["functionId"]) {
                    method if method.is_empty() => text(&payload["function"]),
                    method => method,
                };
                (text(&payload["messageId"]), method, &payload["inputs"])
            }
            (DeviceProtocol::Raw, _) => (text(&payload["id"]), text(&payload["method"]), payload),
            (DeviceProtocol::Thingsboard, _) if response.is_child => {
                let data = &payload["data"];
                (text(&data["id"]), text(&data["method"]), &data["params"])
            }
            (DeviceProtocol::Thingsboard | DeviceProtocol::Native | DeviceProtocol::Relay, _) => (
                topic_end.clone(),
                text(&payload["method"]),
                &payload["params"],
            ),
        };
        Self {
            id,
            method,
            params: params.to_string(),
            topic_end,
        }
    }

    pub(super) fn view(&self) -> RequestView<'_> {
        RequestView {
            id: &self.id,
            method: &self.method,
            params: &self.params,
            topic_end: &self.topic_end,
        }
    }
}
