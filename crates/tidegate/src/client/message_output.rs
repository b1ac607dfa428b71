//! Output formats of `tidegate sub`: payload, topic and payload, JSON object, template.

use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use data_encoding::HEXLOWER;
use jiff::Timestamp;
use mqtt_client::ReceivedMessage;
use serde::Serialize;

/// The output format of messages.
pub(super) enum MessageFormat {
    /// The payload bytes, unchanged.
    Payload,
    TopicAndPayload,
    Json,
    Template(Vec<TemplatePiece>),
}

/// A piece of a template.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TemplatePiece {
    Text(String),
    Field(TemplateField),
}

macro_rules! fields {
    ($($name:literal => $field:ident),+ $(,)?) => {
        /// A field that a template can use.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum TemplateField {
            $($field),+
        }

        const FIELDS: &[(&str, TemplateField)] = &[$(($name, TemplateField::$field)),+];
    };
}

fields! {
    "topic" => Topic,
    "payload" => Payload,
    "payload_hex" => PayloadHex,
    "payload_base64" => PayloadBase64,
    "payload_bytes" => PayloadBytes,
    "qos" => Qos,
    "retain" => Retain,
    "dup" => Dup,
    "time" => Time,
    "unix_time" => UnixTime,
    "json" => Json,
    "payload_format" => PayloadFormat,
    "message_expiry_interval" => MessageExpiryInterval,
    "content_type" => ContentType,
    "response_topic" => ResponseTopic,
    "correlation_data" => CorrelationData,
    "correlation_data_hex" => CorrelationDataHex,
    "subscription_identifiers" => SubscriptionIdentifiers,
    "user_properties" => UserProperties,
}

impl MessageFormat {
    /// Parses a template: `{field}` is replaced by the field, `{{` and `}}` by braces, and `
    /// `, `\t` and `\\` have their usual meaning.
    pub(super) fn parse_template(text: &str) -> Result<Self, String> {
        let mut pieces = Vec::new();
        let mut plain = String::new();
        let mut rest = text.chars();
        while let Some(c) = rest.next() {
            match c {
                '{' if rest.as_str().starts_with('{') => plain.extend(rest.next()),
                '}' if rest.as_str().starts_with('}') => plain.extend(rest.next()),
                '}' => return Err("a lone } in the template; write }} for a brace".into()),
                '{' => {
                    let (name, behind) = rest
                        .as_str()
                        .split_once('}')
                        .ok_or("a { in the template without its }; write {{ for a brace")?;
                    let field = parse_field(name)?;
                    if !plain.is_empty() {
                        pieces.push(TemplatePiece::Text(std::mem::take(&mut plain)));
                    }
                    pieces.push(TemplatePiece::Field(field));
                    rest = behind.chars();
                }
                '\\' => plain.push(match rest.next() {
                    Some('n') => '\n',
                    Some('t') => '\t',
                    Some('r') => '\r',
                    Some('0') => '\0',
                    Some('\\') => '\\',
                    _ => return Err("expected \\n, \\t, \\r, \\0 or \\\\ in the template".into()),
                }),
                c => plain.push(c),
            }
        }
        if !plain.is_empty() {
            pieces.push(TemplatePiece::Text(plain));
        }
        Ok(Self::Template(pieces))
    }

    /// Writes a message, followed by a line break unless `bare`.
    pub(super) fn write(
        &self,
        message: &ReceivedMessage,
        now: SystemTime,
        bare: bool,
        out: &mut impl Write,
    ) -> io::Result<()> {
        match self {
            Self::Payload => out.write_all(&message.payload)?,
            Self::TopicAndPayload => {
                out.write_all(message.topic.as_bytes())?;
                out.write_all(b" ")?;
                out.write_all(&message.payload)?;
            }
            Self::Json => {
                serde_json::to_writer(&mut *out, &MessageJson::from_message(message, now))?
            }
            Self::Template(pieces) => {
                for piece in pieces {
                    match piece {
                        TemplatePiece::Text(text) => out.write_all(text.as_bytes())?,
                        TemplatePiece::Field(field) => field.write(message, now, out)?,
                    }
                }
            }
        }
        if bare { Ok(()) } else { out.write_all(b"\n") }
    }
}

fn parse_field(name: &str) -> Result<TemplateField, String> {
    if let Some((_, field)) = FIELDS.iter().find(|(known, _)| *known == name) {
        return Ok(*field);
    }
    let names = || FIELDS.iter().map(|(name, _)| *name);
    Err(match rules::nearest_name(name, names()) {
        Some(guess) => format!("unknown field {{{name}}}; did you mean {{{guess}}}?"),
        None => {
            let names: Vec<_> = names().collect();
            format!("unknown field {{{name}}}; there are {}", names.join(", "))
        }
    })
}

impl TemplateField {
    fn write(
        self,
        message: &ReceivedMessage,
        now: SystemTime,
        out: &mut impl Write,
    ) -> io::Result<()> {
        let properties = message.properties.as_properties();
        match self {
            Self::Topic => out.write_all(message.topic.as_bytes()),
            Self::Payload => out.write_all(&message.payload),
            Self::PayloadHex => write_hex(&message.payload, out),
            Self::PayloadBase64 => out.write_all(BASE64.encode(&message.payload).as_bytes()),
            Self::PayloadBytes => write!(out, "{}", message.payload.len()),
            Self::Qos => write!(out, "{}", message.qos as u8),
            Self::Retain => write!(out, "{}", message.retain),
            Self::Dup => write!(out, "{}", message.dup),
            Self::Time => out.write_all(rfc3339(now).as_bytes()),
            Self::UnixTime => {
                let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
                write!(out, "{}.{:06}", since.as_secs(), since.subsec_micros())
            }
            Self::Json => Ok(serde_json::to_writer(
                out,
                &MessageJson::from_message(message, now),
            )?),
            Self::PayloadFormat => write_optional(properties.payload_format_indicator(), out),
            Self::MessageExpiryInterval => {
                write_optional(properties.message_expiry_interval(), out)
            }
            Self::ContentType => write_optional(properties.content_type(), out),
            Self::ResponseTopic => write_optional(properties.response_topic(), out),
            Self::CorrelationData => {
                out.write_all(properties.correlation_data().unwrap_or_default())
            }
            Self::CorrelationDataHex => {
                write_hex(properties.correlation_data().unwrap_or_default(), out)
            }
            Self::SubscriptionIdentifiers => {
                let identifiers = properties.subscription_identifiers();
                let identifiers: Vec<_> = identifiers.map(|id| id.to_string()).collect();
                out.write_all(identifiers.join(",").as_bytes())
            }
            Self::UserProperties => {
                let pairs = properties.user_properties();
                let pairs: Vec<_> = pairs
                    .map(|(name, value)| format!("{name}={value}"))
                    .collect();
                out.write_all(pairs.join(" ").as_bytes())
            }
        }
    }
}

fn write_optional(value: Option<impl std::fmt::Display>, out: &mut impl Write) -> io::Result<()> {
    value.map_or(Ok(()), |value| write!(out, "{value}"))
}

fn write_hex(bytes: &[u8], out: &mut impl Write) -> io::Result<()> {
    write!(out, "{}", HEXLOWER.encode_display(bytes))
}

/// A message in the form of `--json`. Missing properties are omitted.
#[derive(Serialize)]
struct MessageJson<'a> {
    time: String,
    topic: &'a str,
    qos: u8,
    retain: bool,
    dup: bool,
    /// Present if it is UTF-8; otherwise the next field is.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_format: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message_expiry_interval: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_topic: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    correlation_data: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    correlation_data_base64: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    subscription_identifiers: Vec<u32>,
    /// Pairs, because a name may occur several times.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    user_properties: Vec<(&'a str, &'a str)>,
}

impl<'a> MessageJson<'a> {
    fn from_message(message: &'a ReceivedMessage, now: SystemTime) -> Self {
        let properties = message.properties.as_properties();
        let (payload, payload_base64) = text_or_base64(&message.payload);
        let correlation = properties.correlation_data().map(text_or_base64);
        let (correlation_data, correlation_data_base64) = correlation.unwrap_or_default();
        Self {
            time: rfc3339(now),
            topic: &message.topic,
            qos: message.qos as u8,
            retain: message.retain,
            dup: message.dup,
            payload,
            payload_base64,
            payload_format: properties.payload_format_indicator(),
            message_expiry_interval: properties.message_expiry_interval(),
            content_type: properties.content_type(),
            response_topic: properties.response_topic(),
            correlation_data,
            correlation_data_base64,
            subscription_identifiers: properties.subscription_identifiers().collect(),
            user_properties: properties.user_properties().collect(),
        }
    }
}

fn text_or_base64(bytes: &[u8]) -> (Option<&str>, Option<String>) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (Some(text), None),
        Err(_) => (None, Some(BASE64.encode(bytes))),
    }
}

/// `2026-11-21T07:26:00.123Z`.
fn rfc3339(time: SystemTime) -> String {
    let at = Timestamp::try_from(time).unwrap_or(Timestamp::UNIX_EPOCH);
    format!("{at:.3}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use mqtt::{PropertiesBuf, Property, QoS};

    fn message() -> ReceivedMessage {
        let mut properties = PropertiesBuf::new();
        properties.push(Property::PayloadFormatIndicator(1));
        properties.push(Property::ContentType("text/plain"));
        properties.push(Property::CorrelationData(&[0xFF, 1]));
        properties.push(Property::SubscriptionIdentifier(7));
        properties.push(Property::SubscriptionIdentifier(8));
        properties.push(Property::UserProperty("a", "1"));
        properties.push(Property::UserProperty("a", "2"));
        ReceivedMessage {
            topic: "a/b".into(),
            payload: "hä".into(),
            qos: QoS::AtLeastOnce,
            retain: true,
            dup: false,
            properties,
            pending_ack: None,
        }
    }

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(seconds * 1000 + 42)
    }

    fn written(format: &MessageFormat, message: &ReceivedMessage) -> String {
        let mut out = Vec::new();
        format.write(message, at(0), false, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn payload_topic_and_json() {
        let message = message();
        assert_eq!(written(&MessageFormat::Payload, &message), "hä\n");
        assert_eq!(
            written(&MessageFormat::TopicAndPayload, &message),
            "a/b hä\n"
        );
        assert_eq!(
            written(&MessageFormat::Json, &message),
            "{\"time\":\"1970-01-01T00:00:00.042Z\",\"topic\":\"a/b\",\"qos\":1,\"retain\":true,\"dup\":false,\
             \"payload\":\"hä\",\"payload_format\":1,\"content_type\":\"text/plain\",\
             \"correlation_data_base64\":\"/wE=\",\"subscription_identifiers\":[7,8],\
             \"user_properties\":[[\"a\",\"1\"],[\"a\",\"2\"]]}\n"
        );
        let binary = ReceivedMessage {
            payload: vec![0xFF],
            properties: PropertiesBuf::new(),
            ..message
        };
        let json = written(&MessageFormat::Json, &binary);
        assert!(json.ends_with("\"payload_base64\":\"/w==\"}\n"), "{json}");
    }

    #[test]
    fn templates_name_fields() {
        let template =
            |text: &str| written(&MessageFormat::parse_template(text).unwrap(), &message());
        assert_eq!(
            template(
                "{qos}{retain}\\t{topic}: {payload_hex} {{{payload_bytes}}} {user_properties}"
            ),
            "1true\ta/b: 68c3a4 {3} a=1 a=2\n"
        );
        assert_eq!(
            template(
                "{correlation_data_hex} {response_topic}|{subscription_identifiers} {unix_time}"
            ),
            "ff01 |7,8 0.042000\n"
        );
        let error = |text: &str| MessageFormat::parse_template(text).err().unwrap();
        assert_eq!(
            error("{tpoic}"),
            "unknown field {tpoic}; did you mean {topic}?"
        );
        assert!(error("{x").starts_with("a { in the template"));
        assert!(error("x}").starts_with("a lone }"));
        assert!(error("\\x").starts_with("expected \\n"));
    }

    #[test]
    fn times_are_dates() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.042Z"),
            (951_782_399, "2000-02-28T23:59:59.042Z"),
            (951_782_400, "2000-02-29T00:00:00.042Z"),
            (1_709_251_199, "2024-02-29T23:59:59.042Z"),
            (1_795_245_960, "2026-11-21T07:26:00.042Z"),
            (4_107_542_399, "2100-02-28T23:59:59.042Z"),
            (4_107_542_400, "2100-03-01T00:00:00.042Z"),
        ] {
            assert_eq!(rfc3339(at(seconds)), text);
        }
    }
}
