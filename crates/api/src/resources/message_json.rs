//! JSON forms of messages: in publish requests, and for stored messages.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use broker::control::{PublishRequest, StoredMessage};
use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::problem_details::ProblemDetails;

/// Encoding of `payload`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum PayloadEncoding {
    /// The text itself.
    #[default]
    Text,
    /// Base64.
    Base64,
}

/// A user property; names may repeat.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct UserProperty {
    name: String,
    value: String,
}

/// A message to publish.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct MessageInput {
    /// Topic name without wildcards.
    topic: String,
    #[serde(default)]
    payload: String,
    #[serde(default)]
    payload_encoding: PayloadEncoding,
    #[serde(default)]
    #[schemars(range(max = 2))]
    qos: u8,
    #[serde(default)]
    retain: bool,
    /// Whether the payload is marked as UTF-8 (MQTT 5).
    #[serde(default)]
    payload_is_utf8: bool,
    /// Seconds after which the message is no longer delivered.
    #[serde(default)]
    message_expiry_s: Option<u32>,
    #[serde(default)]
    content_type: Option<String>,
    #[serde(default)]
    response_topic: Option<String>,
    /// Correlation data in base64.
    #[serde(default)]
    correlation_data: Option<String>,
    #[serde(default)]
    #[schemars(length(max = 100))]
    user_properties: Vec<UserProperty>,
}

const MAX_USER_PROPERTIES: usize = 100;

impl MessageInput {
    pub(super) fn into_publication(self) -> Result<PublishRequest, ProblemDetails> {
        let base64 = |field: &'static str, text: &str| {
            let decoded = STANDARD.decode(text).map(Bytes::from);
            decoded.map_err(|_| {
                ProblemDetails::invalid_field(field, format!("{field}: expected base64."))
            })
        };
        if self.qos > 2 {
            return Err(ProblemDetails::invalid_field(
                "qos",
                "qos: expected 0, 1 or 2.",
            ));
        }
        if self.user_properties.len() > MAX_USER_PROPERTIES {
            let detail = format!("user_properties: expected at most {MAX_USER_PROPERTIES}.");
            return Err(ProblemDetails::invalid_field("user_properties", detail));
        }
        let payload = match self.payload_encoding {
            PayloadEncoding::Text => Bytes::from(self.payload),
            PayloadEncoding::Base64 => base64("payload", &self.payload)?,
        };
        let correlation_data = match &self.correlation_data {
            Some(text) => Some(base64("correlation_data", text)?),
            None => None,
        };
        let pairs = self.user_properties.into_iter();
        Ok(PublishRequest {
            topic: self.topic,
            payload,
            qos: self.qos,
            retain: self.retain,
            is_utf8: self.payload_is_utf8,
            message_expiry_s: self.message_expiry_s,
            content_type: self.content_type,
            response_topic: self.response_topic,
            correlation_data,
            user_properties: pairs.map(|pair| (pair.name, pair.value)).collect(),
        })
    }
}

/// A stored message.
#[derive(Serialize, JsonSchema)]
pub(super) struct Message {
    topic: String,
    payload: String,
    payload_encoding: PayloadEncoding,
    qos: u8,
    retain: bool,
    published_at_ms: u64,
    /// Time of expiry.
    expires_at_ms: Option<u64>,
    /// Client id of the publisher, if known.
    publisher: Option<String>,
    payload_is_utf8: bool,
    content_type: Option<String>,
    response_topic: Option<String>,
    /// Correlation data in base64.
    correlation_data: Option<String>,
    user_properties: Vec<UserProperty>,
}

/// A payload as text if it is UTF-8, and as base64 otherwise. A truncated text may end within a character, which is left out.
pub(super) fn text_or_base64(payload: &[u8], is_truncated: bool) -> (String, PayloadEncoding) {
    let text = match std::str::from_utf8(payload) {
        Ok(text) => Some(text),
        Err(error) if is_truncated && error.error_len().is_none() => {
            std::str::from_utf8(&payload[..error.valid_up_to()]).ok()
        }
        Err(_) => None,
    };
    match text {
        Some(text) => (text.to_owned(), PayloadEncoding::Text),
        None => (STANDARD.encode(payload), PayloadEncoding::Base64),
    }
}

impl From<StoredMessage> for Message {
    fn from(message: StoredMessage) -> Self {
        let (payload, payload_encoding) = text_or_base64(&message.payload, false);
        let pairs = message.user_properties.into_iter();
        Self {
            topic: message.topic,
            payload,
            payload_encoding,
            qos: message.qos,
            retain: message.retain,
            published_at_ms: message.published_at_ms,
            expires_at_ms: message.expires_at_ms,
            publisher: message.publisher,
            payload_is_utf8: message.is_utf8,
            content_type: message.content_type,
            response_topic: message.response_topic,
            correlation_data: message.correlation_data.map(|data| STANDARD.encode(data)),
            user_properties: pairs
                .map(|(name, value)| UserProperty { name, value })
                .collect(),
        }
    }
}
