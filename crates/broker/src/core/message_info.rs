//! Waiting messages as shown to the control plane.

use bytes::Bytes;
use hooks::{MessageView, NEVER_MS};
use mqtt::QoS;

use crate::control::{RetainedInfo, StoredMessage};

/// Bytes of one payload shown in a queue listing, at most.
pub(crate) const MAX_SHOWN_PAYLOAD_BYTES: usize = 64 * 1024;

fn non_empty(name: &str) -> Option<String> {
    (!name.is_empty()).then(|| name.to_owned())
}

fn expires_at_ms(view: &MessageView<'_>) -> Option<u64> {
    (view.expires_ms != NEVER_MS).then_some(view.expires_ms)
}

pub(crate) fn retained_info(view: &MessageView<'_>) -> RetainedInfo {
    RetainedInfo {
        topic: view.topic.to_owned(),
        qos: view.qos as u8,
        payload_bytes: view.payload.len(),
        published_at_ms: view.received_ms,
        expires_at_ms: expires_at_ms(view),
        publisher: non_empty(view.from_client_id),
    }
}

/// The message with at most `max_payload` bytes of its payload.
pub(crate) fn stored_message(
    view: &MessageView<'_>,
    qos: QoS,
    retain: bool,
    max_payload: usize,
) -> StoredMessage {
    let shown = view.payload.len().min(max_payload);
    let payload = match view.shared_payload {
        Some(shared) => shared.slice(..shown),
        None => Bytes::copy_from_slice(&view.payload[..shown]),
    };
    let properties = view.properties;
    let user_properties = properties.user_properties();
    StoredMessage {
        topic: view.topic.to_owned(),
        payload,
        payload_bytes: view.payload.len(),
        qos: qos as u8,
        retain,
        published_at_ms: view.received_ms,
        expires_at_ms: expires_at_ms(view),
        publisher: non_empty(view.from_client_id),
        is_utf8: properties.payload_format_indicator() == Some(1),
        content_type: properties.content_type().map(str::to_owned),
        response_topic: properties.response_topic().map(str::to_owned),
        correlation_data: properties.correlation_data().map(Bytes::copy_from_slice),
        user_properties: user_properties
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
    }
}
