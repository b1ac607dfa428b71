//! Chapter 3.15, AUTH. The exchange itself is in `enhanced_authentication.rs`.
//!
//! 3.15.2-2 and -3 (a reason string or user properties that would make an AUTH too large for the client): the server's AUTH
//! has neither.

use super::*;

fn auth(code: u8, properties: &Props) -> Vec<u8> {
    frame(0xf0, &[&[code][..], &properties.bytes()].concat())
}

#[test]
fn mqtt5_3_15_1_1_reserved_flags_are_malformed() {
    for flags in [1, 2, 4, 8, 15] {
        breaks(&[0xf0 | flags, 0x00], &[reason::MALFORMED]);
    }
}

#[test]
fn mqtt5_3_15_2_1_a_code_that_auth_does_not_have_is_rejected() {
    let method = Props::new().string(property::AUTH_METHOD, "SCRAM-SHA-256");
    for code in [0x01, 0x17, 0x1a, 0x80] {
        breaks(&auth(code, &method), reason::MALFORMED_OR_PROTOCOL_ERROR);
    }
}

#[test]
fn mqtt5_section_3_15_2_2_wrong_properties_are_rejected() {
    let method = Props::new().string(property::AUTH_METHOD, "SCRAM-SHA-256");
    let twice = method.clone().raw(&method.bytes()[1..]);
    breaks(&auth(0x18, &twice), &[reason::PROTOCOL_ERROR]);
    let foreign = method.u16(property::RECEIVE_MAXIMUM, 1);
    breaks(&auth(0x18, &foreign), &[reason::MALFORMED]);
    // 3.15.2.2.2: without a method.
    breaks(&auth(0x18, &Props::new()), &[reason::PROTOCOL_ERROR]);
}

#[test]
fn mqtt5_4_12_0_7_auth_from_a_client_without_a_method_is_a_protocol_error() {
    let properties = Props::new()
        .string(property::AUTH_METHOD, "SCRAM-SHA-256")
        .string(property::AUTH_DATA, "n,,n=alice,r=nonce");
    for code in [0x00, 0x18, 0x19] {
        breaks(&auth(code, &properties), &[reason::PROTOCOL_ERROR]);
    }
    // Reason code and properties may be left out: success without properties.
    breaks(&[0xf0, 0x00], &[reason::PROTOCOL_ERROR]);
}
