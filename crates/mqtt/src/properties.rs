//! Properties (MQTT 5.0 section 2.2.2). Decoding validates them once and leaves them in wire format, so that they are
//! read and forwarded without a copy. To add a property, add a line to the table.

use std::ops::Range;

use crate::error::Error;
use crate::reader::{Reader, put_binary, put_u16};
use crate::topic::has_wildcards;
use crate::varint::{encode_varint, varint_len};

/// The packet and direction of a property list; decides which properties it may contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PropertyScope {
    Connect = 1,
    ConnAck = 1 << 1,
    Will = 1 << 2,
    PublishFromClient = 1 << 3,
    PublishFromServer = 1 << 4,
    /// PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK.
    Ack = 1 << 5,
    Subscribe = 1 << 6,
    Unsubscribe = 1 << 7,
    DisconnectFromClient = 1 << 8,
    DisconnectFromServer = 1 << 9,
    Auth = 1 << 10,
}

const CONNECT: u16 = PropertyScope::Connect as u16;
const CONNACK: u16 = PropertyScope::ConnAck as u16;
const WILL: u16 = PropertyScope::Will as u16;
const PUBLISH: u16 = PropertyScope::PublishFromClient as u16 | PUBLISH_FROM_SERVER;
const PUBLISH_FROM_SERVER: u16 = PropertyScope::PublishFromServer as u16;
const SUBSCRIBE: u16 = PropertyScope::Subscribe as u16;
const DISCONNECT: u16 = DISCONNECT_FROM_CLIENT | DISCONNECT_FROM_SERVER;
const DISCONNECT_FROM_CLIENT: u16 = PropertyScope::DisconnectFromClient as u16;
const DISCONNECT_FROM_SERVER: u16 = PropertyScope::DisconnectFromServer as u16;
const AUTH: u16 = PropertyScope::Auth as u16;
const CARRIES_REASON: u16 = CONNACK | PropertyScope::Ack as u16 | DISCONNECT | AUTH;
const ANY: u16 = u16::MAX;

/// A Rust type that encodes a property value.
trait WireValue<'a>: Sized {
    fn read(reader: &mut Reader<'a>, name: &'static str) -> Result<Self, Error>;
    fn write(self, out: &mut Vec<u8>);
}

impl<'a> WireValue<'a> for u8 {
    fn read(reader: &mut Reader<'a>, name: &'static str) -> Result<Self, Error> {
        reader.u8(name)
    }
    fn write(self, out: &mut Vec<u8>) {
        out.push(self);
    }
}

impl<'a> WireValue<'a> for bool {
    fn read(reader: &mut Reader<'a>, name: &'static str) -> Result<Self, Error> {
        match reader.u8(name)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Error::protocol_error(name)),
        }
    }
    fn write(self, out: &mut Vec<u8>) {
        out.push(u8::from(self));
    }
}

impl<'a> WireValue<'a> for u16 {
    fn read(reader: &mut Reader<'a>, name: &'static str) -> Result<Self, Error> {
        reader.u16(name)
    }
    fn write(self, out: &mut Vec<u8>) {
        put_u16(self, out);
    }
}

impl<'a> WireValue<'a> for u32 {
    fn read(reader: &mut Reader<'a>, name: &'static str) -> Result<Self, Error> {
        reader.u32(name)
    }
    fn write(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_be_bytes());
    }
}

/// A variable byte integer.
struct VariableByteInteger(u32);

impl<'a> WireValue<'a> for VariableByteInteger {
    fn read(reader: &mut Reader<'a>, name: &'static str) -> Result<Self, Error> {
        reader.varint(name).map(VariableByteInteger)
    }
    fn write(self, out: &mut Vec<u8>) {
        encode_varint(self.0, out);
    }
}

impl From<VariableByteInteger> for u32 {
    fn from(value: VariableByteInteger) -> u32 {
        value.0
    }
}

impl From<u32> for VariableByteInteger {
    fn from(value: u32) -> VariableByteInteger {
        VariableByteInteger(value)
    }
}

impl<'a> WireValue<'a> for &'a str {
    fn read(reader: &mut Reader<'a>, name: &'static str) -> Result<Self, Error> {
        reader.string(name)
    }
    fn write(self, out: &mut Vec<u8>) {
        put_binary(self.as_bytes(), out);
    }
}

impl<'a> WireValue<'a> for &'a [u8] {
    fn read(reader: &mut Reader<'a>, name: &'static str) -> Result<Self, Error> {
        reader.binary(name)
    }
    fn write(self, out: &mut Vec<u8>) {
        put_binary(self, out);
    }
}

macro_rules! properties {
    ($($id:literal $name:ident($type:ty as $wire:ty) $getter:ident in $scopes:expr, $text:literal;)*) => {
        /// A property; each variant has its own value type.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Property<'a> {
            $(#[doc = $text] $name($type),)*
            /// Name and value; may occur several times, in order.
            UserProperty(&'a str, &'a str),
        }

        impl<'a> Property<'a> {
            fn read(reader: &mut Reader<'a>) -> Result<(u8, Self), Error> {
                let id = reader.u8("properties: the list is truncated")?;
                let property = match id {
                    $($id => Property::$name(<$wire>::read(reader, concat!("property ", $text, ": cut short, or not a value it can have"))?.into()),)*
                    USER_PROPERTY => Property::UserProperty(
                        reader.string("property user property: expected a name in UTF-8 without U+0000")?,
                        reader.string("property user property: expected a value in UTF-8 without U+0000 after the name")?,
                    ),
                    _ => return Err(Error::malformed_packet("properties: no property has this identifier (section 2.2.2.2)")),
                };
                Ok((id, property))
            }

            /// Appends the property in wire format.
            pub fn encode(self, out: &mut Vec<u8>) {
                match self {
                    $(Property::$name(value) => {
                        out.push($id);
                        <$wire>::from(value).write(out);
                    })*
                    Property::UserProperty(name, value) => {
                        out.push(USER_PROPERTY);
                        name.write(out);
                        value.write(out);
                    }
                }
            }

            fn scopes(id: u8) -> u16 {
                match id {
                    $($id => $scopes,)*
                    _ => ANY,
                }
            }
        }

        impl<'a> Properties<'a> {
            $(#[doc = $text]
            pub fn $getter(&self) -> Option<$type> {
                if self.is_empty() {
                    return None;
                }
                self.iter().find_map(|property| match property {
                    Property::$name(value) => Some(value),
                    _ => None,
                })
            })*
        }
    };
}

const USER_PROPERTY: u8 = 0x26;
const SUBSCRIPTION_IDENTIFIER: u8 = 0x0b;

properties! {
    0x01 PayloadFormatIndicator(u8 as u8) payload_format_indicator in PUBLISH | WILL, "payload format indicator";
    0x02 MessageExpiryInterval(u32 as u32) message_expiry_interval in PUBLISH | WILL, "message expiry interval";
    0x03 ContentType(&'a str as &'a str) content_type in PUBLISH | WILL, "content type";
    0x08 ResponseTopic(&'a str as &'a str) response_topic in PUBLISH | WILL, "response topic";
    0x09 CorrelationData(&'a [u8] as &'a [u8]) correlation_data in PUBLISH | WILL, "correlation data";
    0x0b SubscriptionIdentifier(u32 as VariableByteInteger) subscription_identifier in PUBLISH_FROM_SERVER | SUBSCRIBE, "subscription identifier";
    0x11 SessionExpiryInterval(u32 as u32) session_expiry_interval in CONNECT | CONNACK | DISCONNECT_FROM_CLIENT, "session expiry interval";
    0x12 AssignedClientIdentifier(&'a str as &'a str) assigned_client_identifier in CONNACK, "assigned client identifier";
    0x13 ServerKeepAlive(u16 as u16) server_keep_alive in CONNACK, "server keep alive";
    0x15 AuthenticationMethod(&'a str as &'a str) authentication_method in CONNECT | CONNACK | AUTH, "authentication method";
    0x16 AuthenticationData(&'a [u8] as &'a [u8]) authentication_data in CONNECT | CONNACK | AUTH, "authentication data";
    0x17 RequestProblemInformation(bool as bool) request_problem_information in CONNECT, "request problem information";
    0x18 WillDelayInterval(u32 as u32) will_delay_interval in WILL, "will delay interval";
    0x19 RequestResponseInformation(bool as bool) request_response_information in CONNECT, "request response information";
    0x1a ResponseInformation(&'a str as &'a str) response_information in CONNACK, "response information";
    0x1c ServerReference(&'a str as &'a str) server_reference in CONNACK | DISCONNECT_FROM_SERVER, "server reference";
    0x1f ReasonString(&'a str as &'a str) reason_string in CARRIES_REASON, "reason string";
    0x21 ReceiveMaximum(u16 as u16) receive_maximum in CONNECT | CONNACK, "receive maximum";
    0x22 TopicAliasMaximum(u16 as u16) topic_alias_maximum in CONNECT | CONNACK, "topic alias maximum";
    0x23 TopicAlias(u16 as u16) topic_alias in PUBLISH, "topic alias";
    0x24 MaximumQos(u8 as u8) maximum_qos in CONNACK, "maximum QoS";
    0x25 RetainAvailable(bool as bool) retain_available in CONNACK, "retain available";
    0x27 MaximumPacketSize(u32 as u32) maximum_packet_size in CONNECT | CONNACK, "maximum packet size";
    0x28 WildcardSubscriptionAvailable(bool as bool) wildcard_subscription_available in CONNACK, "wildcard subscription available";
    0x29 SubscriptionIdentifierAvailable(bool as bool) subscription_identifier_available in CONNACK, "subscription identifier available";
    0x2a SharedSubscriptionAvailable(bool as bool) shared_subscription_available in CONNACK, "shared subscription available";
}

/// A validated list of properties in wire format, without the length prefix.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Properties<'a>(&'a [u8]);

impl<'a> Properties<'a> {
    pub const EMPTY: Self = Self(&[]);

    /// Wraps bytes from [`Properties::as_bytes`], either the whole list or single properties.
    #[inline]
    pub fn from_validated(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Validates the properties of a PUBLISH to a server, in the form of [`Properties::as_bytes`].
    pub fn of_publish(bytes: &'a [u8]) -> Result<Self, Error> {
        validate(bytes, PropertyScope::PublishFromClient)?;
        Ok(Self(bytes))
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[inline]
    pub fn as_bytes(&self) -> &'a [u8] {
        self.0
    }

    pub fn iter(&self) -> impl Iterator<Item = Property<'a>> + use<'a> {
        self.spans().map(|(_, property)| property)
    }

    /// Each property with its byte range in [`Properties::as_bytes`].
    pub fn spans(&self) -> impl Iterator<Item = (Range<usize>, Property<'a>)> + use<'a> {
        let total = self.0.len();
        let mut reader = Reader::new(self.0);
        std::iter::from_fn(move || {
            let start = total - reader.len();
            // The list was validated on decoding, so this ends only at its end.
            let (_, property) = Property::read(&mut reader).ok()?;
            Some((start..total - reader.len(), property))
        })
    }

    pub fn subscription_identifiers(&self) -> impl Iterator<Item = u32> + use<'a> {
        self.iter().filter_map(|property| match property {
            Property::SubscriptionIdentifier(id) => Some(id),
            _ => None,
        })
    }

    pub fn user_properties(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        self.iter().filter_map(|property| match property {
            Property::UserProperty(name, value) => Some((name, value)),
            _ => None,
        })
    }

    /// Decodes and validates a list with its length prefix.
    #[inline]
    pub(crate) fn decode(reader: &mut Reader<'a>, scope: PropertyScope) -> Result<Self, Error> {
        let len = reader
            .varint("properties: expected their length, a variable byte integer [MQTT-2.2.2-1]")?;
        if len == 0 {
            return Ok(Self::EMPTY);
        }
        let bytes = reader.take(len as usize, "properties: longer than the packet")?;
        validate(bytes, scope)?;
        Ok(Self(bytes))
    }

    /// The complete properties at the front of a list; only their syntax is checked.
    pub(crate) fn decode_readable_prefix(reader: &mut Reader<'a>) -> Self {
        let Ok(len) = reader.varint("") else {
            return Self::EMPTY;
        };
        let bytes = reader.rest();
        let bytes = &bytes[..bytes.len().min(len as usize)];
        let mut rest = Reader::new(bytes);
        let mut readable = 0;
        while Property::read(&mut rest).is_ok() {
            readable = bytes.len() - rest.len();
        }
        Self(&bytes[..readable])
    }

    /// Encoded length including the length prefix.
    pub(crate) fn encoded_len(&self) -> usize {
        varint_len(self.0.len() as u32) + self.0.len()
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        encode_varint(self.0.len() as u32, out);
        out.extend_from_slice(self.0);
    }
}

impl std::fmt::Debug for Properties<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

fn validate(bytes: &[u8], scope: PropertyScope) -> Result<(), Error> {
    let mut reader = Reader::new(bytes);
    let mut seen = 0_u64;
    let mut has_method = false;
    while !reader.is_empty() {
        let (id, property) = Property::read(&mut reader)?;
        check_scope(Property::scopes(id), scope)?;
        let may_repeat = id == USER_PROPERTY
            || id == SUBSCRIPTION_IDENTIFIER && scope == PropertyScope::PublishFromServer;
        if seen & 1 << id != 0 && !may_repeat {
            return Err(Error::protocol_error("properties: a property occurs twice"));
        }
        seen |= 1 << id;
        check_value(property)?;
        has_method |= matches!(property, Property::AuthenticationMethod(_));
    }
    if seen & 1 << 0x16 != 0 && !has_method {
        return Err(Error::protocol_error(
            "properties: authentication data without a method",
        ));
    }
    Ok(())
}

/// A property that the packet never contains is malformed (section 2.2.2.2). A property that only the other side may
/// send is a protocol error [MQTT-3.3.4-6, MQTT-3.14.2-2].
fn check_scope(scopes: u16, scope: PropertyScope) -> Result<(), Error> {
    if scopes & scope as u16 != 0 {
        return Ok(());
    }
    let packet = match scope {
        PropertyScope::PublishFromClient | PropertyScope::PublishFromServer => PUBLISH,
        PropertyScope::DisconnectFromClient | PropertyScope::DisconnectFromServer => DISCONNECT,
        other => other as u16,
    };
    if scopes & packet != 0 {
        Err(Error::protocol_error(
            "properties: a property that only the other side may send in this packet",
        ))
    } else {
        Err(Error::malformed_packet(
            "properties: a property that is not allowed in this packet (section 2.2.2.2)",
        ))
    }
}

fn check_value(property: Property<'_>) -> Result<(), Error> {
    let problem = match property {
        Property::PayloadFormatIndicator(2..) => {
            "property payload format indicator: expected 0 or 1"
        }
        Property::MaximumQos(2..) => "property maximum QoS: expected 0 or 1",
        Property::ReceiveMaximum(0) => "property receive maximum: 0 is not allowed",
        Property::MaximumPacketSize(0) => "property maximum packet size: 0 is not allowed",
        Property::SubscriptionIdentifier(0) => "property subscription identifier: 0 is not allowed",
        Property::TopicAlias(0) => {
            return Err(Error {
                reason: crate::error::ReasonCode::TOPIC_ALIAS_INVALID,
                detail: "property topic alias: 0 is not allowed [MQTT-3.3.2-8]",
            });
        }
        Property::ResponseTopic(topic) if has_wildcards(topic) || topic.is_empty() => {
            "property response topic: not a topic name [MQTT-3.3.2-14]"
        }
        _ => return Ok(()),
    };
    Err(Error::protocol_error(problem))
}

/// A builder of property lists.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PropertiesBuf(Vec<u8>);

impl PropertiesBuf {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn push(&mut self, property: Property<'_>) {
        property.encode(&mut self.0);
    }

    /// Appends properties that are already in wire format.
    pub fn extend(&mut self, properties: Properties<'_>) {
        self.0.extend_from_slice(properties.as_bytes());
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    pub fn as_properties(&self) -> Properties<'_> {
        Properties(&self.0)
    }
}

#[cfg(test)]
#[path = "properties_tests.rs"]
mod tests;
