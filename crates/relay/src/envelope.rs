//! The form in which receivers get messages.

use std::borrow::Cow;

use hooks::MessageView;
use hooks::relay::{RelayPayloadKind, payload_kind};
use serde::Deserialize;
use serde::de::{self, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::definition::RelayMode;

/// Appends what receivers get in a mode.
pub(crate) fn encode(
    mode: RelayMode,
    header: &str,
    message: &MessageView<'_>,
    out: &mut Vec<u8>,
) -> RelayPayloadKind {
    let kind = payload_kind(message);
    match (mode, kind) {
        (RelayMode::Direct, _) | (RelayMode::Json, RelayPayloadKind::Binary) => {
            out.extend_from_slice(message.payload);
        }
        (RelayMode::CustomHeader, _) => {
            out.extend_from_slice(header.as_bytes());
            out.extend_from_slice(message.payload);
        }
        (RelayMode::Json, RelayPayloadKind::Text) => encode_json(message, out),
    }
    kind
}

fn encode_json(message: &MessageView<'_>, out: &mut Vec<u8>) {
    // Checked by `payload_kind`.
    let text = std::str::from_utf8(message.payload).unwrap_or_default();
    out.extend_from_slice(br#"{"type":"message","data":"#);
    let mut timestamp = None;
    match serde_json::from_str::<&RawValue>(text) {
        Ok(whole) => match serde_json::from_str::<Envelope<'_>>(text) {
            Ok(Envelope {
                has_type: true,
                data: Some(data),
                timestamp: own,
            }) => {
                out.extend_from_slice(data.get().as_bytes());
                timestamp = own;
            }
            _ => out.extend_from_slice(whole.get().as_bytes()),
        },
        // Writing to a vector cannot fail.
        Err(_) => drop(serde_json::to_writer(&mut *out, text)),
    }
    out.extend_from_slice(br#","timestamp":"#);
    match timestamp {
        Some(timestamp) => out.extend_from_slice(timestamp.get().as_bytes()),
        None => out.extend_from_slice(message.received_ms.to_string().as_bytes()),
    }
    out.push(b'}');
}

/// The fields of a JSON object that matter; of repeated fields the last one counts.
struct Envelope<'a> {
    has_type: bool,
    data: Option<&'a RawValue>,
    timestamp: Option<&'a RawValue>,
}

impl<'de> Deserialize<'de> for Envelope<'de> {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EnvelopeVisitor;

        impl<'de> Visitor<'de> for EnvelopeVisitor {
            type Value = Envelope<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut found = Envelope {
                    has_type: false,
                    data: None,
                    timestamp: None,
                };
                while let Some(key) = map.next_key::<JsonText<'de>>()? {
                    match &*key.0 {
                        "type" => {
                            found.has_type = true;
                            map.next_value::<IgnoredAny>()?;
                        }
                        "data" => found.data = Some(map.next_value()?),
                        "timestamp" => {
                            let value: &RawValue = map.next_value()?;
                            found.timestamp = (value.get() != "null").then_some(value);
                        }
                        _ => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                Ok(found)
            }
        }

        deserializer.deserialize_map(EnvelopeVisitor)
    }
}

/// A text that is borrowed unless it contains escapes.
#[derive(Deserialize)]
pub(crate) struct JsonText<'a>(#[serde(borrow)] pub(crate) Cow<'a, str>);

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(mode: RelayMode, payload: &[u8]) -> (String, RelayPayloadKind) {
        let view = MessageView::from_client("c", "$relay/e", payload, 7);
        let mut out = Vec::new();
        let kind = encode(mode, "H:", &view, &mut out);
        (String::from_utf8_lossy(&out).into_owned(), kind)
    }

    /// The table of section 4 of the specification.
    #[test]
    fn json_mode_wraps_each_kind_of_message() {
        let cases = [
            // An object with type and data: all other fields are dropped.
            (
                r#"{"type":"t","data":{"a":1.50},"x":1}"#,
                r#"{"a":1.50}"#,
                "7",
            ),
            (r#"{"data":[1],"type":null,"timestamp":5}"#, "[1]", "5"),
            (r#"{"type":"t","data":null,"timestamp":null}"#, "null", "7"),
            // Other JSON is data as a whole.
            (
                r#"{"type":"t","timestamp":5}"#,
                r#"{"type":"t","timestamp":5}"#,
                "7",
            ),
            (r#"{"data":1}"#, r#"{"data":1}"#, "7"),
            ("[1,2]", "[1,2]", "7"),
            ("12345678901234567890.5", "12345678901234567890.5", "7"),
            (r#""text""#, r#""text""#, "7"),
            // Anything else is a text.
            ("say \"hi\"\n", r#""say \"hi\"\n""#, "7"),
            ("", r#""""#, "7"),
            (r#"{"type":"#, r#""{\"type\":""#, "7"),
        ];
        for (sent, data, timestamp) in cases {
            let expected = format!(r#"{{"type":"message","data":{data},"timestamp":{timestamp}}}"#);
            let (text, kind) = encoded(RelayMode::Json, sent.as_bytes());
            assert_eq!((text, kind), (expected, RelayPayloadKind::Text), "{sent}");
        }
    }

    #[test]
    fn direct_and_custom_header_keep_the_message() {
        assert_eq!(encoded(RelayMode::Direct, b"{").0, "{");
        assert_eq!(encoded(RelayMode::CustomHeader, b"{").0, "H:{");
        for mode in [RelayMode::Direct, RelayMode::Json, RelayMode::CustomHeader] {
            let (_, kind) = encoded(mode, &[0xff]);
            assert_eq!(kind, RelayPayloadKind::Binary);
        }
    }

    #[test]
    fn deeply_nested_json_is_only_copied() {
        let nested = "[".repeat(100_000) + &"]".repeat(100_000);
        let (text, _) = encoded(RelayMode::Json, nested.as_bytes());
        assert!(text.contains("[[["));
    }
}
