//! Messages of the bridge: what sources receive, and how it recognises its own.

use mqtt_client::ReceivedMessage;
use serde_json::Map;

use crate::connector::SourceMessage;

/// User property by which a bridge recognises its own messages; its value is the client id prefix.
pub(super) const BRIDGE_PROPERTY: &str = "tidegate-bridge";

/// Converts a received message to a source message.
pub(super) fn source_message(received: ReceivedMessage) -> SourceMessage {
    let properties = received.properties.as_properties();
    let mut fields = Map::new();
    let texts = [
        ("content_type", properties.content_type()),
        ("response_topic", properties.response_topic()),
    ];
    for (name, text) in texts {
        if let Some(text) = text {
            fields.insert(name.to_owned(), text.into());
        }
    }
    let user_properties = properties.user_properties();
    SourceMessage {
        qos: received.qos as u8,
        retain: received.retain,
        properties: user_properties
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
        topic: received.topic,
        payload: received.payload,
        fields,
        ..SourceMessage::default()
    }
}
