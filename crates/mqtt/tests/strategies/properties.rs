//! Property lists that are valid for one packet and one sender.

use mqtt::{PropertiesBuf, Property};
use proptest::collection::vec;
use proptest::prelude::*;

use super::{binary, text, topic_name};

/// One property and its value, owned.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum OwnedProperty {
    Number(u8, u32),
    Text(u8, String),
    Bytes(u8, Vec<u8>),
    Pair(String, String),
}

impl OwnedProperty {
    pub(crate) fn id(&self) -> u8 {
        match self {
            OwnedProperty::Number(id, _)
            | OwnedProperty::Text(id, _)
            | OwnedProperty::Bytes(id, _) => *id,
            OwnedProperty::Pair(..) => 0x26,
        }
    }

    pub(crate) fn as_property(&self) -> Property<'_> {
        match self {
            OwnedProperty::Pair(name, value) => Property::UserProperty(name, value),
            OwnedProperty::Bytes(0x09, value) => Property::CorrelationData(value),
            OwnedProperty::Bytes(_, value) => Property::AuthenticationData(value),
            OwnedProperty::Text(id, value) => match id {
                0x03 => Property::ContentType(value),
                0x08 => Property::ResponseTopic(value),
                0x12 => Property::AssignedClientIdentifier(value),
                0x15 => Property::AuthenticationMethod(value),
                0x1a => Property::ResponseInformation(value),
                0x1c => Property::ServerReference(value),
                0x1f => Property::ReasonString(value),
                id => panic!("{id:#04x} is not a string"),
            },
            &OwnedProperty::Number(id, value) => match id {
                0x01 => Property::PayloadFormatIndicator(value as u8),
                0x02 => Property::MessageExpiryInterval(value),
                0x0b => Property::SubscriptionIdentifier(value),
                0x11 => Property::SessionExpiryInterval(value),
                0x13 => Property::ServerKeepAlive(value as u16),
                0x17 => Property::RequestProblemInformation(value != 0),
                0x18 => Property::WillDelayInterval(value),
                0x19 => Property::RequestResponseInformation(value != 0),
                0x21 => Property::ReceiveMaximum(value as u16),
                0x22 => Property::TopicAliasMaximum(value as u16),
                0x23 => Property::TopicAlias(value as u16),
                0x24 => Property::MaximumQos(value as u8),
                0x25 => Property::RetainAvailable(value != 0),
                0x27 => Property::MaximumPacketSize(value),
                0x28 => Property::WildcardSubscriptionAvailable(value != 0),
                0x29 => Property::SubscriptionIdentifierAvailable(value != 0),
                0x2a => Property::SharedSubscriptionAvailable(value != 0),
                id => panic!("{id:#04x} is not a number"),
            },
        }
    }
}

/// Any valid value of the property `id`.
fn one(id: u8) -> BoxedStrategy<OwnedProperty> {
    match id {
        0x08 => topic_name()
            .prop_map(move |value| OwnedProperty::Text(id, value))
            .boxed(),
        0x03 | 0x12 | 0x15 | 0x1a | 0x1c | 0x1f => text()
            .prop_map(move |value| OwnedProperty::Text(id, value))
            .boxed(),
        0x09 | 0x16 => binary()
            .prop_map(move |value| OwnedProperty::Bytes(id, value))
            .boxed(),
        0x26 => (text(), text())
            .prop_map(|(name, value)| OwnedProperty::Pair(name, value))
            .boxed(),
        _ => {
            let values = match id {
                0x01 | 0x17 | 0x19 | 0x24 | 0x25 | 0x28..=0x2a => 0..=1,
                0x0b => 1..=mqtt::MAX_VARINT,
                0x13 | 0x22 => 0..=u32::from(u16::MAX),
                0x21 | 0x23 => 1..=u32::from(u16::MAX),
                0x27 => 1..=u32::MAX,
                _ => 0..=u32::MAX,
            };
            values
                .prop_map(move |value| OwnedProperty::Number(id, value))
                .boxed()
        }
    }
}

pub(crate) type Properties = Vec<OwnedProperty>;

/// Some of the properties `ids`, each at most once, and up to three user properties, in any order.
pub(crate) fn some_of(ids: &'static [u8]) -> BoxedStrategy<Properties> {
    let single = proptest::sample::subsequence(ids, 0..=ids.len());
    let lists = single.prop_flat_map(|ids| {
        let single: Vec<_> = ids.into_iter().map(one).collect();
        (single, vec(one(0x26), 0..=3))
    });
    lists
        .prop_map(|(mut all, user)| {
            all.extend(user);
            // Authentication data without a method is a protocol error.
            if !all.iter().any(|property| property.id() == 0x15) {
                all.retain(|property| property.id() != 0x16);
            }
            all
        })
        .prop_shuffle()
        .boxed()
}

pub(crate) const CONNECT: &[u8] = &[0x11, 0x15, 0x16, 0x17, 0x19, 0x21, 0x22, 0x27];
pub(crate) const WILL: &[u8] = &[0x01, 0x02, 0x03, 0x08, 0x09, 0x18];
pub(crate) const CONNACK: &[u8] = &[
    0x11, 0x12, 0x13, 0x15, 0x16, 0x1a, 0x1c, 0x1f, 0x21, 0x22, 0x24, 0x25, 0x27, 0x28, 0x29, 0x2a,
];
pub(crate) const PUBLISH: &[u8] = &[0x01, 0x02, 0x03, 0x08, 0x09, 0x23];
pub(crate) const ACK: &[u8] = &[0x1f];
pub(crate) const SUBSCRIBE: &[u8] = &[0x0b];
pub(crate) const UNSUBSCRIBE: &[u8] = &[];
pub(crate) const DISCONNECT_OF_CLIENT: &[u8] = &[0x11, 0x1f];
pub(crate) const DISCONNECT_OF_SERVER: &[u8] = &[0x1c, 0x1f];

/// The properties of a PUBLISH; a server may send several subscription identifiers.
pub(crate) fn of_publish(from_server: bool) -> BoxedStrategy<Properties> {
    let identifiers = vec(one(0x0b), 0..=if from_server { 3 } else { 0 });
    (some_of(PUBLISH), identifiers)
        .prop_map(|(mut all, identifiers)| {
            all.extend(identifiers);
            all
        })
        .prop_shuffle()
        .boxed()
}

/// The properties of an AUTH, which requires a method.
pub(crate) fn of_auth() -> BoxedStrategy<Properties> {
    (one(0x15), some_of(ACK), proptest::option::of(one(0x16)))
        .prop_map(|(method, mut all, data)| {
            all.push(method);
            all.extend(data);
            all
        })
        .prop_shuffle()
        .boxed()
}

pub(crate) fn encoded(properties: &[OwnedProperty]) -> PropertiesBuf {
    let mut buf = PropertiesBuf::new();
    for property in properties {
        buf.push(property.as_property());
    }
    buf
}
