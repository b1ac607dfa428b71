//! Acknowledgements that fit nothing: 3.1.1 leaves open what happens, but the connection's own messages, other
//! clients and the node must not suffer.

use super::{V311, client, subscriber, topic};
use crate::support::{Publish, ack, kind};

#[test]
fn an_acknowledgement_that_fits_nothing_harms_nobody_else() {
    let topic = topic();
    let mut raw = subscriber(&topic, 2);
    for kind in [kind::PUBACK, kind::PUBREC, kind::PUBCOMP, kind::PUBREL] {
        let mut stray = client();
        stray.send(&ack(kind, 4242));
        stray.send(&[0xe0, 0]);
        // Ignored, answered, or the connection is closed.
        stray.packets_until_closed();
    }
    client().publish_qos1(&topic, "fine", 1);
    raw.recv_message(&topic, "fine");
}

#[test]
fn a_puback_for_a_qos_2_message_does_not_lose_the_exchange() {
    let (id, topic) = (crate::support::unique("c"), topic());
    let mut raw = super::resume(&id, false);
    raw.subscribe(&topic, 2);
    client().publish_qos2(&topic, "x", 1);
    let message = raw.recv_message(&topic, "x");
    raw.send(&ack(kind::PUBACK, message.id()));
    raw.cut();
    let mut raw = super::resume(&id, true);
    let again = raw.recv_message(&topic, "x");
    assert_eq!(
        again.bytes,
        Publish::new(&topic, "x")
            .qos(2, message.id())
            .dup()
            .bytes(V311)
    );
    raw.acknowledge(&again);
    raw.ping();
}

#[test]
fn mqtt_3_6_1_1_pubrel_with_other_flags_closes_the_connection() {
    for flags in (0..16).filter(|flags| *flags != 2) {
        let mut raw = client();
        raw.send_publish(&Publish::new("nowhere", "x").qos(2, 1));
        raw.recv_exactly(&[0x50, 2, 0, 1]);
        raw.send(&[0x60 | flags, 2, 0, 1]);
        raw.expect_closed();
    }
}
