//! Values of fields that are computed: texts of ids and addresses, and maps of flags and properties.

use std::net::SocketAddr;

use mqtt::Property;

use crate::event::{ConnectionDetails, RuleEvent};
use crate::rule_source::EventKind;
use crate::value::{Arena, Value};

/// Only an acknowledgement has these properties.
pub(super) fn ack_properties<'a>(event: &RuleEvent<'a>, arena: &'a Arena) -> Value<'a> {
    match event.kind {
        EventKind::Acked | EventKind::MessageAcked => properties_map(event.ack_properties, arena),
        _ => Value::Undefined,
    }
}

/// The result of a delivery: an MQTT 5 acknowledgement with an error yields its reason code.
pub(super) fn ack_status<'a>(event: &RuleEvent<'a>) -> Value<'a> {
    const ACK_NAMES: [&str; 3] = ["ack", "rec", "comp"];
    match (event.kind, event.reason) {
        (EventKind::Acked | EventKind::MessageAcked, Some(kind)) => {
            let is_done = ACK_NAMES.contains(&kind);
            Value::Str(if is_done { "success" } else { "failed" })
        }
        _ => Value::Undefined,
    }
}

pub(super) fn version_name(level: u8) -> &'static str {
    match level {
        3 => "MQTT_3_1",
        4 => "MQTT_3_1_1",
        _ => "MQTT_5",
    }
}

pub(super) fn hex(id: u128, arena: &Arena) -> &str {
    let mut text = [[0_u8; 8]; 4];
    for (place, shift) in text.iter_mut().zip([96, 64, 32, 0]) {
        *place = eight_digits((id >> shift) as u32);
    }
    arena.alloc_str(str::from_utf8(text.as_flattened()).unwrap_or_default())
}

/// The eight hexadecimal digits of a number: its nibbles are spread over eight bytes and converted at once.
#[inline]
fn eight_digits(number: u32) -> [u8; 8] {
    let mut x = u64::from(number);
    x = (x | x << 16) & 0x0000_ffff_0000_ffff;
    x = (x | x << 8) & 0x00ff_00ff_00ff_00ff;
    x = (x | x << 4) & 0x0f0f_0f0f_0f0f_0f0f;
    let letters = (x + 0x0606_0606_0606_0606) >> 4 & 0x0101_0101_0101_0101;
    (x + 0x3030_3030_3030_3030 + letters * 0x27).to_be_bytes()
}

pub(super) fn host_text(address: SocketAddr, arena: &Arena) -> &str {
    match address {
        // The common case, without the cost of formatting.
        SocketAddr::V4(address) => {
            let mut text = [0_u8; 15];
            let mut length = 0;
            for part in address.ip().octets() {
                if length > 0 {
                    text[length] = b'.';
                    length += 1;
                }
                for (digit, wanted) in [
                    (part / 100, part >= 100),
                    (part / 10 % 10, part >= 10),
                    (part % 10, true),
                ] {
                    if wanted {
                        text[length] = b'0' + digit;
                        length += 1;
                    }
                }
            }
            arena.alloc_str(str::from_utf8(&text[..length]).unwrap_or_default())
        }
        SocketAddr::V6(address) => bumpalo::format!(in arena, "{}", address.ip()).into_bump_str(),
    }
}

pub(super) fn address_text(address: SocketAddr, arena: &Arena) -> &str {
    bumpalo::format!(in arena, "{}", address).into_bump_str()
}

pub(super) fn flags_map<'a>(event: &RuleEvent<'a>, arena: &'a Arena) -> Value<'a> {
    Value::Map(arena.alloc_slice_copy(&[
        ("retain", Value::Bool(event.retain)),
        ("dup", Value::Bool(event.dup)),
    ]))
}

pub(super) fn will_map<'a>(connection: &'a ConnectionDetails<'a>, arena: &'a Arena) -> Value<'a> {
    let Some(will) = &connection.will else {
        return Value::Undefined;
    };
    Value::Map(arena.alloc_slice_copy(&[
        ("isRetain", Value::Bool(will.retain)),
        ("willTopic", Value::Str(will.topic)),
        ("willQos", Value::Int(will.qos.into())),
        ("willMessage", Value::Bytes(will.payload)),
    ]))
}

/// The properties of a packet by their names in the specification, without spaces as in EMQX. User properties
/// are a map under `User-Property` and a list of keys and values under `User-Property-Pairs`.
pub(super) fn properties_map<'a>(packet: mqtt::Properties<'a>, arena: &'a Arena) -> Value<'a> {
    if packet.is_empty() {
        return Value::Map(&[]);
    }
    let mut fields = bumpalo::collections::Vec::new_in(arena);
    let mut user = bumpalo::collections::Vec::new_in(arena);
    let mut pairs = bumpalo::collections::Vec::new_in(arena);
    for property in packet.iter() {
        let (name, value) = match property {
            Property::UserProperty(name, value) => {
                let value = Value::Str(value);
                // The last of several properties with one name wins in the map; the pairs contain all of
                // them.
                match user.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, known)) => *known = value,
                    None => user.push((name, value)),
                }
                let pair = [("key", Value::Str(name)), ("value", value)];
                pairs.push(Value::Map(arena.alloc_slice_copy(&pair)));
                continue;
            }
            Property::PayloadFormatIndicator(value) => {
                ("Payload-Format-Indicator", Value::Int(value.into()))
            }
            Property::MessageExpiryInterval(value) => {
                ("Message-Expiry-Interval", Value::Int(value.into()))
            }
            Property::ContentType(value) => ("Content-Type", Value::Str(value)),
            Property::ResponseTopic(value) => ("Response-Topic", Value::Str(value)),
            Property::CorrelationData(value) => ("Correlation-Data", Value::Bytes(value)),
            Property::SubscriptionIdentifier(value) => {
                ("Subscription-Identifier", Value::Int(value.into()))
            }
            Property::SessionExpiryInterval(value) => {
                ("Session-Expiry-Interval", Value::Int(value.into()))
            }
            Property::RequestProblemInformation(value) => {
                ("Request-Problem-Information", Value::Bool(value))
            }
            Property::RequestResponseInformation(value) => {
                ("Request-Response-Information", Value::Bool(value))
            }
            Property::WillDelayInterval(value) => ("Will-Delay-Interval", Value::Int(value.into())),
            Property::ServerReference(value) => ("Server-Reference", Value::Str(value)),
            Property::ReasonString(value) => ("Reason-String", Value::Str(value)),
            Property::ReceiveMaximum(value) => ("Receive-Maximum", Value::Int(value.into())),
            Property::TopicAliasMaximum(value) => ("Topic-Alias-Maximum", Value::Int(value.into())),
            Property::MaximumPacketSize(value) => ("Maximum-Packet-Size", Value::Int(value.into())),
            // Authentication properties are secret; the others do not concern a message or a client.
            _ => continue,
        };
        fields.push((name, value));
    }
    if !user.is_empty() {
        fields.push(("User-Property", Value::Map(user.into_bump_slice())));
        fields.push(("User-Property-Pairs", Value::Array(pairs.into_bump_slice())));
    }
    Value::Map(fields.into_bump_slice())
}
