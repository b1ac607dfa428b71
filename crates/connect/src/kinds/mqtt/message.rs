//! Messages of the bridge: what sources receive, and how it recognises its own.

use mqtt::Publish;
use serde_json::Map;

use crate::connector::SourceMessage;

/// User property by which a bridge recognises its own messages; its value is the client id prefix.
pub(super) const BRIDGE_PROPERTY: &str = "tidegate-bridge";

/// Converts a PUBLISH to a source message.
pub(super) fn source_message(publish: &Publish<'_>) -> SourceMessage {
    let mut fields = Map::new();
    let texts = [
        ("content_type", publish.properties.content_type()),
        ("response_topic", publish.properties.response_topic()),
    ];
    for (name, text) in texts {
        if let Some(text) = text {
            fields.insert(name.to_owned(), text.into());
        }
    }
    let properties = publish.properties.user_properties();
    SourceMessage {
        topic: publish.topic.to_owned(),
        payload: publish.payload.to_vec(),
        qos: publish.qos as u8,
        retain: publish.retain,
        properties: properties
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
        fields,
        ..SourceMessage::default()
    }
}
