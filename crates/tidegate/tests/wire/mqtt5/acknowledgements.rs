//! Chapters 3.4 to 3.7: PUBACK, PUBREC, PUBREL, PUBCOMP. Their exchange is in `qos.rs`; the parser of these tests
//! rejects surplus bytes, wrong flags and properties of other packets in all the server sends.

use super::*;

const PUBLISH_REASONS: [u8; 9] = [0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99];

/// Only a reason string and user properties may be in an acknowledgement.
fn expect_ack_properties(packet: &Packet) {
    for (id, _) in &packet.properties {
        assert!(
            [property::REASON_STRING, property::USER].contains(id),
            "{packet:?}"
        );
    }
}

#[test]
fn mqtt5_3_4_2_1_a_puback_has_one_of_its_reason_codes() {
    let mut raw = client();
    for topic in [unique("t/"), "$SYS/forbidden".into()] {
        raw.send_publish(&Publish::new(topic, "x").qos(1, 1));
        let puback = raw.recv(kind::PUBACK);
        assert!(PUBLISH_REASONS.contains(&puback.reason), "{puback:?}");
        expect_ack_properties(&puback);
    }
}

#[test]
fn mqtt5_3_5_2_1_a_pubrec_has_one_of_its_reason_codes() {
    let mut raw = client();
    for topic in [unique("t/"), "$SYS/forbidden".into()] {
        raw.send_publish(&Publish::new(topic, "x").qos(2, 1));
        let pubrec = raw.recv(kind::PUBREC);
        assert!(PUBLISH_REASONS.contains(&pubrec.reason), "{pubrec:?}");
        expect_ack_properties(&pubrec);
        if pubrec.reason < 0x80 {
            raw.send(&ack(kind::PUBREL, 1));
            assert_eq!(raw.recv(kind::PUBCOMP).reason, 0);
        }
    }
}

#[test]
fn mqtt5_3_6_1_1_a_pubrel_with_other_flags_is_malformed() {
    for flags in [0, 1, 3, 4, 6, 8, 10, 15] {
        let mut raw = client();
        raw.send_publish(&Publish::new(unique("t/"), "x").qos(2, 1));
        raw.recv(kind::PUBREC);
        raw.send(&[0x60 | flags, 0x02, 0x00, 0x01]);
        expect_disconnect_for(&mut raw, &[reason::MALFORMED]);
    }
}

#[test]
fn mqtt5_3_6_2_1_a_pubrel_to_an_unknown_pubrec_says_so() {
    let mut raw = client();
    raw.send(&ack(kind::PUBREC, 0x1234));
    let pubrel = raw.recv(kind::PUBREL);
    assert_eq!(
        (pubrel.id(), pubrel.reason),
        (0x1234, reason::PACKET_ID_NOT_FOUND)
    );
    expect_ack_properties(&pubrel);
}

#[test]
fn mqtt5_3_7_2_1_a_pubcomp_to_an_unknown_pubrel_says_so() {
    let mut raw = client();
    raw.send(&ack(kind::PUBREL, 0x4321));
    let pubcomp = raw.recv(kind::PUBCOMP);
    assert_eq!(
        (pubcomp.id(), pubcomp.reason),
        (0x4321, reason::PACKET_ID_NOT_FOUND)
    );
    expect_ack_properties(&pubcomp);
}

#[test]
fn mqtt5_3_4_2_2_answers_keep_to_the_clients_maximum_packet_size() {
    // A PUBACK, PUBREC or PUBCOMP with a reason code and no properties takes 5 bytes. 3.5.2-2, 3.6.2-2, 3.7.2-2 say the
    // same of the others, 3.4.2-3, 3.5.2-3, 3.6.2-3, 3.7.2-3 of user properties.
    let mut raw = client_with(Props::new().u32(property::MAXIMUM_PACKET_SIZE, 30));
    raw.send_publish(&Publish::new("$SYS/forbidden", "x").qos(1, 1));
    raw.send_publish(&Publish::new("$SYS/forbidden", "x").qos(2, 2));
    raw.send(&ack(kind::PUBREC, 0x1234));
    raw.send(&ack(kind::PUBREL, 0x4321));
    for kind in [kind::PUBACK, kind::PUBREC, kind::PUBREL, kind::PUBCOMP] {
        let packet = raw.recv(kind);
        assert!(packet.reason >= 0x80, "{packet:?}");
        assert!(packet.bytes.len() <= 30, "{packet:?}");
    }
}

/// Every form an acknowledgement may have, with this reason code.
fn forms(kind: u8, id: u16, code: u8) -> Vec<Vec<u8>> {
    let first_byte = kind << 4 | if kind == kind::PUBREL { 2 } else { 0 };
    let [high, low] = id.to_be_bytes();
    let properties = Props::new()
        .string(property::REASON_STRING, "because")
        .pair(property::USER, "k", "1")
        .pair(property::USER, "k", "2");
    let mut forms = vec![
        frame(first_byte, &[high, low, code]),
        frame(first_byte, &[high, low, code, 0]),
        ack_reason(kind, id, code, &properties),
    ];
    if code == 0 {
        forms.push(ack(kind, id));
    }
    forms
}

#[test]
fn mqtt5_section_3_4_2_every_form_of_puback_is_understood() {
    let topic = unique("forms/");
    let mut subscriber = client_with(Props::new().u16(property::RECEIVE_MAXIMUM, 1));
    subscriber.subscribe(&topic, 1);
    let mut publisher = client();
    for code in [0x00, 0x10, 0x80, 0x83, 0x87, 0x97, 0x99] {
        for form in 0..forms(kind::PUBACK, 1, code).len() {
            publisher.publish_qos1(&topic, "x", 1);
            // With Receive Maximum 1 it comes only if the one before was acknowledged.
            let message = subscriber.recv_message(&topic, "x");
            subscriber.send(&forms(kind::PUBACK, message.id(), code)[form]);
        }
    }
    subscriber.ping();
}

#[test]
fn mqtt5_section_3_5_2_every_form_of_the_qos_2_acknowledgements_is_understood() {
    let topic = unique("forms/");
    let mut subscriber = client_with(Props::new().u16(property::RECEIVE_MAXIMUM, 1));
    subscriber.subscribe(&topic, 2);
    let mut publisher = client();
    for form in 0..4 {
        publisher.send_publish(&Publish::new(&topic, "x").qos(2, 9));
        publisher.recv(kind::PUBREC);
        publisher.send(&forms(kind::PUBREL, 9, 0)[form]);
        assert_eq!(publisher.recv(kind::PUBCOMP).reason, 0);
        let message = subscriber.recv_message(&topic, "x");
        subscriber.send(&forms(kind::PUBREC, message.id(), 0)[form]);
        let pubrel = subscriber.recv(kind::PUBREL);
        assert_eq!((pubrel.id(), pubrel.reason), (message.id(), 0));
        subscriber.send(&forms(kind::PUBCOMP, message.id(), 0)[form]);
    }
    subscriber.ping();
}

#[test]
fn mqtt5_section_3_4_an_acknowledgement_without_identifier_is_malformed() {
    for first_byte in [0x40, 0x50, 0x62, 0x70] {
        breaks(&[first_byte, 0x00], &[reason::MALFORMED]);
        breaks(&[first_byte, 0x01, 0x01], &[reason::MALFORMED]);
    }
}

#[test]
fn mqtt5_section_3_4_2_2_wrong_properties_of_acknowledgements_are_rejected() {
    let twice = Props::new()
        .string(property::REASON_STRING, "a")
        .string(property::REASON_STRING, "b");
    let foreign = Props::new().string(property::CONTENT_TYPE, "a");
    for kind in [kind::PUBACK, kind::PUBREC, kind::PUBREL, kind::PUBCOMP] {
        breaks(&ack_reason(kind, 1, 0, &twice), &[reason::PROTOCOL_ERROR]);
        breaks(&ack_reason(kind, 1, 0, &foreign), &[reason::MALFORMED]);
        let surplus = [&ack_reason(kind, 1, 0, &Props::new())[2..], b"x"].concat();
        let first_byte = ack(kind, 1)[0];
        breaks(&frame(first_byte, &surplus), &[reason::MALFORMED]);
    }
}

#[test]
fn mqtt5_section_3_4_2_1_a_code_that_acknowledgements_do_not_have_is_rejected() {
    for (kind, code) in [
        (kind::PUBACK, 0x01),
        (kind::PUBREC, 0x92),
        (kind::PUBREL, 0x10),
        (kind::PUBCOMP, 0x80),
    ] {
        breaks(
            &ack_reason(kind, 1, code, &Props::new()),
            reason::MALFORMED_OR_PROTOCOL_ERROR,
        );
    }
}
