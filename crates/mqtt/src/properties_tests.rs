//! Properties against section 2.2.2 of MQTT 5.0 and the sections of the packets.

use super::*;
use crate::ReasonCode;
use crate::test_support::{MALFORMED, PROTOCOL};

use PropertyScope::*;

const SCOPES: [PropertyScope; 11] = [
    Connect,
    ConnAck,
    Will,
    PublishFromClient,
    PublishFromServer,
    Ack,
    Subscribe,
    Unsubscribe,
    DisconnectFromClient,
    DisconnectFromServer,
    Auth,
];

/// Table 2-4 again: a well-formed property and the scopes that allow it.
const TABLE: [(&[u8], &[PropertyScope]); 27] = [
    (&[0x01, 1], &[PublishFromClient, PublishFromServer, Will]),
    (
        &[0x02, 0, 0, 0, 9],
        &[PublishFromClient, PublishFromServer, Will],
    ),
    (
        &[0x03, 0, 1, b'a'],
        &[PublishFromClient, PublishFromServer, Will],
    ),
    (
        &[0x08, 0, 1, b'a'],
        &[PublishFromClient, PublishFromServer, Will],
    ),
    (
        &[0x09, 0, 1, 0xff],
        &[PublishFromClient, PublishFromServer, Will],
    ),
    (&[0x0b, 0x80, 1], &[PublishFromServer, Subscribe]),
    (
        &[0x11, 0, 0, 0, 9],
        &[Connect, ConnAck, DisconnectFromClient],
    ),
    (&[0x12, 0, 1, b'a'], &[ConnAck]),
    (&[0x13, 0, 9], &[ConnAck]),
    (&[0x15, 0, 1, b'a'], &[Connect, ConnAck, Auth]),
    (&[0x15, 0, 0, 0x16, 0, 1, 0xff], &[Connect, ConnAck, Auth]),
    (&[0x17, 1], &[Connect]),
    (&[0x18, 0, 0, 0, 9], &[Will]),
    (&[0x19, 1], &[Connect]),
    (&[0x1a, 0, 1, b'a'], &[ConnAck]),
    (&[0x1c, 0, 1, b'a'], &[ConnAck, DisconnectFromServer]),
    (
        &[0x1f, 0, 1, b'a'],
        &[
            ConnAck,
            Ack,
            DisconnectFromClient,
            DisconnectFromServer,
            Auth,
        ],
    ),
    (&[0x21, 0, 9], &[Connect, ConnAck]),
    (&[0x22, 0, 9], &[Connect, ConnAck]),
    (&[0x23, 0, 9], &[PublishFromClient, PublishFromServer]),
    (&[0x24, 1], &[ConnAck]),
    (&[0x25, 1], &[ConnAck]),
    (&[0x26, 0, 1, b'a', 0, 1, b'b'], &SCOPES),
    (&[0x27, 0, 0, 0, 9], &[Connect, ConnAck]),
    (&[0x28, 1], &[ConnAck]),
    (&[0x29, 1], &[ConnAck]),
    (&[0x2a, 1], &[ConnAck]),
];

fn rejected(bytes: &[u8], scope: PropertyScope) -> Option<ReasonCode> {
    validate(bytes, scope).err().map(|error| error.reason)
}

#[test]
fn section_2_2_2_2_a_property_stands_only_in_its_packets() {
    for (bytes, scopes) in TABLE {
        for scope in SCOPES {
            let expected = if scopes.contains(&scope) {
                None
            } else {
                match (bytes[0], scope) {
                    // Allowed in this packet, but not from this side [MQTT-3.3.4-6, MQTT-3.14.2-2].
                    (0x0b, PublishFromClient) => PROTOCOL,
                    (0x11, DisconnectFromServer) | (0x1c, DisconnectFromClient) => PROTOCOL,
                    _ => MALFORMED,
                }
            };
            assert_eq!(rejected(bytes, scope), expected, "{bytes:?} in {scope:?}");
        }
    }
}

#[test]
fn section_2_2_2_2_there_are_27_identifiers() {
    for id in 0..=255 {
        let known = id == 0x16 || TABLE.iter().any(|(bytes, _)| bytes[0] == id);
        let bytes = [id, 0, 0, 0, 0, 0];
        let found = Property::read(&mut Reader::new(&bytes));
        assert_eq!(found.is_ok(), known, "{id:#04x}");
    }
    // The identifier is a variable byte integer; this is 1 in more bytes than necessary.
    assert_eq!(rejected(&[0x81, 0, 1], PublishFromClient), MALFORMED);
}

#[test]
fn section_2_2_2_2_a_truncated_property_is_malformed() {
    for (bytes, scopes) in TABLE {
        for len in 1..bytes.len() {
            // Authentication method and data: the method alone is complete.
            if bytes[..len] != [0x15, 0, 0] {
                assert_eq!(
                    rejected(&bytes[..len], scopes[0]),
                    MALFORMED,
                    "{bytes:?} at {len}"
                );
            }
        }
    }
}

#[test]
fn section_3_a_property_stands_once() {
    for (bytes, scopes) in TABLE {
        for &scope in scopes {
            let repeats = bytes[0] == 0x26 || bytes[0] == 0x0b && scope == PublishFromServer;
            let expected = if repeats { None } else { PROTOCOL };
            assert_eq!(
                rejected(&bytes.repeat(2), scope),
                expected,
                "{bytes:?} in {scope:?}"
            );
        }
    }
}

#[test]
fn section_3_a_flag_is_0_or_1() {
    for (id, scope) in [
        (0x01, PublishFromClient),
        (0x01, Will),
        (0x17, Connect),
        (0x19, Connect),
        (0x24, ConnAck),
        (0x25, ConnAck),
        (0x28, ConnAck),
        (0x29, ConnAck),
        (0x2a, ConnAck),
    ] {
        assert_eq!(rejected(&[id, 0], scope), None);
        assert_eq!(rejected(&[id, 1], scope), None);
        assert_eq!(rejected(&[id, 2], scope), PROTOCOL);
        assert_eq!(rejected(&[id, 255], scope), PROTOCOL);
    }
}

#[test]
fn section_3_1_2_11_receive_maximum_and_maximum_packet_size_are_not_0() {
    for scope in [Connect, ConnAck] {
        assert_eq!(rejected(&[0x21, 0, 0], scope), PROTOCOL);
        assert_eq!(rejected(&[0x27, 0, 0, 0, 0], scope), PROTOCOL);
        assert_eq!(rejected(&[0x22, 0, 0], scope), None);
    }
}

#[test]
fn section_3_8_2_1_2_a_subscription_identifier_is_1_to_268_435_455() {
    assert_eq!(rejected(&[0x0b, 0], Subscribe), PROTOCOL);
    assert_eq!(rejected(&[0x0b, 0], PublishFromServer), PROTOCOL);
    assert_eq!(rejected(&[0x0b, 0xff, 0xff, 0xff, 0x7f], Subscribe), None);
    assert_eq!(
        rejected(&[0x0b, 0xff, 0xff, 0xff, 0xff, 1], Subscribe),
        MALFORMED
    );
    // [MQTT-1.5.5-1]
    assert_eq!(rejected(&[0x0b, 0x81, 0], Subscribe), MALFORMED);
}

#[test]
fn mqtt_3_3_2_8_a_topic_alias_is_not_0() {
    let invalid = Some(ReasonCode::TOPIC_ALIAS_INVALID);
    assert_eq!(rejected(&[0x23, 0, 0], PublishFromClient), invalid);
    assert_eq!(rejected(&[0x23, 0, 0], PublishFromServer), invalid);
    assert_eq!(rejected(&[0x23, 0xff, 0xff], PublishFromClient), None);
}

#[test]
fn mqtt_3_3_2_14_a_response_topic_has_no_wildcards() {
    for scope in [PublishFromClient, Will] {
        assert_eq!(rejected(&[0x08, 0, 1, b'#'], scope), PROTOCOL);
        assert_eq!(rejected(&[0x08, 0, 3, b'a', b'/', b'+'], scope), PROTOCOL);
        // [MQTT-4.7.3-1]
        assert_eq!(rejected(&[0x08, 0, 0], scope), PROTOCOL);
    }
}

#[test]
fn section_3_1_2_11_10_authentication_data_needs_a_method() {
    for scope in [Connect, ConnAck, Auth] {
        assert_eq!(rejected(&[0x16, 0, 0], scope), PROTOCOL);
        assert_eq!(rejected(&[0x16, 0, 0, 0x15, 0, 0], scope), None);
    }
}

#[test]
fn mqtt_1_5_4_1_and_2_strings_are_utf_8_without_nul() {
    let bad: [&[u8]; 4] = [
        &[0, 1, 0xff],
        &[0, 3, 0xed, 0xa0, 0x80],
        &[0, 2, 0xc0, 0x80],
        &[0, 1, 0],
    ];
    for text in bad {
        for (id, scope) in [
            (0x03, Will),
            (0x08, Will),
            (0x12, ConnAck),
            (0x15, Auth),
            (0x1f, Ack),
        ] {
            assert_eq!(rejected(&[&[id], text].concat(), scope), MALFORMED);
        }
        let name = [&[0x26], text, &[0, 0]].concat();
        let value = [&[0x26, 0, 0], text].concat();
        assert_eq!(rejected(&name, Connect), MALFORMED);
        assert_eq!(rejected(&value, Connect), MALFORMED);
    }
    // Binary data may contain any bytes [MQTT-1.5.6].
    assert_eq!(rejected(&[0x09, 0, 2, 0xff, 0], Will), None);
}

#[test]
fn mqtt_1_5_4_3_a_byte_order_mark_stays() {
    let bytes = [0x03, 0, 4, 0xef, 0xbb, 0xbf, b'a'];
    assert_eq!(rejected(&bytes, Will), None);
    let found = Properties::from_validated(&bytes).content_type();
    assert_eq!(found, Some("\u{feff}a"));
}

#[test]
fn mqtt_2_2_2_1_the_length_is_there_and_inside_the_packet() {
    let read = |bytes| Properties::decode(&mut Reader::new(bytes), PublishFromClient);
    assert!(read(&[]).is_err());
    assert!(read(&[3, 0x01, 1]).is_err());
    assert!(read(&[0x80, 0]).is_err());
    assert_eq!(read(&[0]), Ok(Properties::EMPTY));
    assert_eq!(
        read(&[2, 0x01, 1, 0xff]).map(|found| found.as_bytes().len()),
        Ok(2)
    );
}

#[test]
fn spans_cut_the_list_where_the_properties_end() {
    let all: Vec<u8> = TABLE
        .iter()
        .flat_map(|(bytes, _)| bytes.iter().copied())
        .collect();
    let properties = Properties::from_validated(&all);
    let mut again = PropertiesBuf::new();
    let mut end = 0;
    for (span, property) in properties.spans() {
        assert_eq!(span.start, end);
        end = span.end;
        again.push(property);
        assert_eq!(again.as_properties().as_bytes(), &all[..end]);
    }
    assert_eq!(end, all.len());
}
