//! Chapters 3.12 and 3.13, PINGREQ and PINGRESP.

use super::*;

#[test]
fn mqtt5_3_12_4_1_a_pingreq_is_answered() {
    let mut raw = client();
    raw.send(&[0xc0, 0x00, 0xc0, 0x00, 0xc0, 0x00]);
    for _ in 0..3 {
        raw.recv_exactly(&[0xd0, 0x00]);
    }
}

#[test]
fn mqtt5_section_3_12_a_pingreq_with_a_body_is_malformed() {
    breaks(&[0xc0, 0x01, 0x00], &[reason::MALFORMED]);
    breaks(&[0xc0, 0x02, 0x00, 0x00], &[reason::MALFORMED]);
}
