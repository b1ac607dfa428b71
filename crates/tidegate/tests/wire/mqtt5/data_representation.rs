//! Chapter 1.5, data representation. Every numbered statement is here.

use super::*;

/// What is no well-formed UTF-8: a lone continuation byte, an overlong NUL and slash, surrogates, a code point past
/// U+10FFFF, a sequence cut short.
const ILL_FORMED: [&[u8]; 7] = [
    b"\x80",
    b"\xc0\x80",
    b"\xc0\xaf",
    b"\xed\xa0\x80",
    b"\xed\xbf\xbf",
    b"\xf4\x90\x80\x80",
    b"a\xe2\x82",
];

#[test]
fn mqtt5_1_5_4_1_ill_formed_utf8_in_connect_is_malformed() {
    for bytes in ILL_FORMED {
        rejected(&Connect::new(5, bytes).bytes(), &[reason::MALFORMED]);
    }
    let id = unique("c");
    let will_topic = Will::new(b"a\xff", "x");
    rejected(&connect(&id).will(will_topic).bytes(), &[reason::MALFORMED]);
    rejected(
        &connect(&id).username(b"\xed\xa0\x80").bytes(),
        &[reason::MALFORMED],
    );
    let property = Props::new().string(property::AUTH_METHOD, b"\xff");
    rejected(
        &connect(&id).properties(property).bytes(),
        &[reason::MALFORMED],
    );
}

#[test]
fn mqtt5_1_5_4_1_ill_formed_utf8_in_publish_is_malformed() {
    for bytes in ILL_FORMED {
        breaks(&Publish::new(bytes, "x").bytes(5), &[reason::MALFORMED]);
    }
    for id in [property::CONTENT_TYPE, property::RESPONSE_TOPIC] {
        let publish = Publish::new("a", "x").properties(Props::new().string(id, b"\xc0\xaf"));
        breaks(&publish.bytes(5), &[reason::MALFORMED]);
    }
}

#[test]
fn mqtt5_1_5_4_1_ill_formed_utf8_in_filters_is_malformed() {
    for bytes in ILL_FORMED {
        breaks(
            &Subscribe::new(1).filter(bytes, 0).bytes(5),
            &[reason::MALFORMED],
        );
        breaks(
            &Unsubscribe::new(1).filter(bytes).bytes(5),
            &[reason::MALFORMED],
        );
    }
}

#[test]
fn mqtt5_1_5_4_1_every_well_formed_code_point_range_is_carried() {
    let topic = unique("utf8/") + "/\u{a0}\u{7ff}\u{800}\u{fffd}\u{10000}\u{10fffd}é漢🌊";
    let (mut subscriber, mut publisher) = pair(&topic);
    publisher.publish(&topic, "x");
    subscriber.recv_message(&topic, "x");
}

#[test]
fn mqtt5_1_5_4_2_a_null_character_is_malformed() {
    rejected(&Connect::new(5, b"a\0b").bytes(), &[reason::MALFORMED]);
    breaks(&Publish::new("a\0b", "x").bytes(5), &[reason::MALFORMED]);
    breaks(
        &Subscribe::new(1).filter("a\0b", 0).bytes(5),
        &[reason::MALFORMED],
    );
    breaks(
        &Unsubscribe::new(1).filter("\0").bytes(5),
        &[reason::MALFORMED],
    );
    let user = Props::new().pair(property::USER, "a\0", "b");
    breaks(
        &Publish::new("a", "x").properties(user).bytes(5),
        &[reason::MALFORMED],
    );
}

#[test]
fn mqtt5_1_5_4_3_a_byte_order_mark_is_kept() {
    let plain = unique("bom/");
    let marked = format!("\u{feff}{plain}");
    let (mut subscriber, mut publisher) = pair(&marked);
    publisher.publish(&plain, "without");
    publisher.publish(&marked, "with");
    let message = subscriber.recv_message(&marked, "with");
    assert_eq!(&message.bytes[4..7], b"\xef\xbb\xbf");
}

#[test]
fn mqtt5_1_5_5_1_what_the_server_sends_has_the_shortest_length() {
    let topic = unique("varint/");
    let (mut subscriber, mut publisher) = pair(&topic);
    // The variable header takes 2 + topic + 1 bytes: remaining lengths of 127, 128, 16383 and 16384.
    for remaining in [127, 128, 16383, 16384] {
        let payload = vec![b'x'; remaining - 3 - topic.len()];
        publisher.publish(&topic, &payload);
        let message = subscriber.recv_message(&topic, &payload);
        assert_eq!(message.bytes, Publish::new(&topic, &payload).bytes(5));
    }
}

#[test]
fn mqtt5_1_5_5_1_a_length_longer_than_needed_is_malformed() {
    // Remaining length 0 in two bytes.
    breaks(&[0xc0, 0x80, 0x00], &[reason::MALFORMED]);
    // Property length 0 in two bytes.
    let publish = frame(0x30, &[string("a"), vec![0x80, 0x00]].concat());
    breaks(&publish, &[reason::MALFORMED]);
    // Subscription identifier 1 in two bytes.
    let properties = Props::new().raw(&[property::SUBSCRIPTION_ID, 0x81, 0x00]);
    let subscribe = Subscribe::new(1).filter("a", 0).properties(properties);
    breaks(&subscribe.bytes(5), &[reason::MALFORMED]);
}

#[test]
fn mqtt5_section_1_5_5_a_length_of_five_bytes_is_malformed() {
    breaks(&[0x30, 0x80, 0x80, 0x80, 0x80], &[reason::MALFORMED]);
    breaks(&[0x30, 0xff, 0xff, 0xff, 0xff, 0x7f], &[reason::MALFORMED]);
}

#[test]
fn mqtt5_1_5_7_1_both_strings_of_a_pair_are_checked() {
    for (key, value) in [
        (&b"\xff"[..], &b"v"[..]),
        (b"k", b"\xff"),
        (b"k\0", b"v"),
        (b"k", b"\0"),
    ] {
        let pair = [&[property::USER][..], &string(key), &string(value)].concat();
        let publish = Publish::new("a", "x").properties(Props::new().raw(&pair));
        breaks(&publish.bytes(5), &[reason::MALFORMED]);
    }
}
