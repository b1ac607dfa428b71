//! The delivery protocols of QoS 0, 1 and 2 (4.3), the server as sender and as receiver.

use super::{V311, client, subscriber, topic};
use crate::support::{Publish, ack, kind};

#[test]
fn mqtt_4_3_1_1_qos_0_is_sent_with_qos_0_and_dup_0() {
    let topic = topic();
    let mut zero = subscriber(&topic, 0);
    let mut two = subscriber(&topic, 2);
    let mut publisher = client();
    publisher.publish(&topic, "0");
    zero.recv_exactly(&Publish::new(&topic, "0").bytes(V311));
    two.recv_exactly(&Publish::new(&topic, "0").bytes(V311));
    publisher.publish_qos2(&topic, "2", 1);
    zero.recv_exactly(&Publish::new(&topic, "2").bytes(V311));
}

#[test]
fn mqtt_4_3_2_1_qos_1_is_sent_with_an_unused_identifier_and_is_unacknowledged_until_puback() {
    let topic = topic();
    let (id, mut publisher) = (crate::support::unique("c"), client());
    let mut raw = super::resume(&id, false);
    raw.subscribe(&topic, 1);
    publisher.publish_qos1(&topic, "one", 1);
    publisher.publish_qos1(&topic, "two", 1);
    let one = raw.recv_message(&topic, "one");
    let two = raw.recv_message(&topic, "two");
    assert_eq!(
        one.bytes,
        Publish::new(&topic, "one").qos(1, one.id()).bytes(V311)
    );
    assert_eq!(
        two.bytes,
        Publish::new(&topic, "two").qos(1, two.id()).bytes(V311)
    );
    assert_ne!(one.id(), two.id());
    raw.send(&ack(kind::PUBACK, one.id()));
    raw.ping();
    raw.cut();
    // Only the one that is not acknowledged comes again.
    let mut raw = super::resume(&id, true);
    assert_eq!(raw.recv_message(&topic, "two").id(), two.id());
    raw.send(&ack(kind::PUBACK, two.id()));
    raw.ping();
    raw.disconnect();
    super::resume(&id, true).ping();
}

#[test]
fn mqtt_4_3_2_1_an_acknowledgement_of_another_kind_or_identifier_acknowledges_nothing() {
    let topic = topic();
    let id = crate::support::unique("c");
    let mut raw = super::resume(&id, false);
    raw.subscribe(&topic, 1);
    client().publish_qos1(&topic, "x", 1);
    let message = raw.recv_message(&topic, "x");
    // An identifier that is not in flight. The server may ignore it or close the connection.
    raw.send(&ack(kind::PUBACK, message.id().wrapping_add(7).max(1)));
    raw.cut();
    let mut raw = super::resume(&id, true);
    assert_eq!(raw.recv_message(&topic, "x").id(), message.id());
}

#[test]
fn mqtt_4_3_2_2_after_puback_the_identifier_is_a_new_publication_whatever_its_dup() {
    let topic = topic();
    let mut raw = subscriber(&topic, 0);
    let mut publisher = client();
    for payload in ["first", "second", "third"] {
        publisher.send_publish(&Publish::new(&topic, payload).qos(1, 5).dup());
        publisher.recv_exactly(&[0x40, 2, 0, 5]);
        raw.recv_message(&topic, payload);
    }
    publisher.send_publish(&Publish::new(&topic, "fourth").qos(1, 5));
    publisher.recv_exactly(&[0x40, 2, 0, 5]);
    raw.recv_message(&topic, "fourth");
}

#[test]
fn mqtt_4_3_3_1_the_server_sends_qos_2_by_the_whole_exchange() {
    let topic = topic();
    let mut raw = subscriber(&topic, 2);
    client().publish_qos2(&topic, "x", 1);
    let message = raw.recv(kind::PUBLISH);
    assert_eq!(
        message.bytes,
        Publish::new(&topic, "x").qos(2, message.id()).bytes(V311)
    );
    raw.ping();
    let [high, low] = message.id().to_be_bytes();
    raw.send(&ack(kind::PUBREC, message.id()));
    raw.recv_exactly(&[0x62, 2, high, low]);
    // A second PUBREC gets a second PUBREL.
    raw.send(&ack(kind::PUBREC, message.id()));
    raw.recv_exactly(&[0x62, 2, high, low]);
    raw.send(&ack(kind::PUBCOMP, message.id()));
    raw.ping();
}

#[test]
fn mqtt_4_3_3_1_publish_is_sent_again_until_pubrec() {
    let (id, topic) = (crate::support::unique("c"), topic());
    let mut raw = super::resume(&id, false);
    raw.subscribe(&topic, 2);
    client().publish_qos2(&topic, "x", 1);
    let message = raw.recv_message(&topic, "x");
    raw.cut();
    for _ in 0..3 {
        let mut raw = super::resume(&id, true);
        let again = raw.recv(kind::PUBLISH);
        assert_eq!(
            again.bytes,
            Publish::new(&topic, "x")
                .qos(2, message.id())
                .dup()
                .bytes(V311)
        );
        raw.ping();
        raw.cut();
    }
}

#[test]
fn mqtt_4_3_3_1_after_pubrec_only_pubrel_is_sent_again_until_pubcomp() {
    let (id, topic) = (crate::support::unique("c"), topic());
    let mut raw = super::resume(&id, false);
    raw.subscribe(&topic, 2);
    client().publish_qos2(&topic, "x", 1);
    let message = raw.recv_message(&topic, "x");
    let [high, low] = message.id().to_be_bytes();
    raw.send(&ack(kind::PUBREC, message.id()));
    raw.recv_exactly(&[0x62, 2, high, low]);
    raw.cut();
    for _ in 0..3 {
        let mut raw = super::resume(&id, true);
        raw.recv_exactly(&[0x62, 2, high, low]);
        raw.ping();
        raw.cut();
    }
    let mut raw = super::resume(&id, true);
    raw.recv_exactly(&[0x62, 2, high, low]);
    raw.send(&ack(kind::PUBCOMP, message.id()));
    raw.ping();
    raw.cut();
    super::resume(&id, true).ping();
}

#[test]
fn mqtt_4_3_3_1_an_identifier_is_free_again_after_pubcomp_only() {
    let topic = topic();
    let mut raw = subscriber(&topic, 2);
    let mut publisher = client();
    publisher.publish_qos2(&topic, "held", 1);
    let held = raw.recv_message(&topic, "held");
    raw.send(&ack(kind::PUBREC, held.id()));
    raw.recv(kind::PUBREL);
    for _ in 0..200 {
        publisher.publish_qos2(&topic, "x", 1);
        let message = raw.recv_message(&topic, "x");
        assert_ne!(message.id(), held.id());
        raw.acknowledge(&message);
    }
}

#[test]
fn mqtt_4_3_3_2_a_repeated_publish_is_acknowledged_but_delivered_once() {
    let topic = topic();
    let mut raw = subscriber(&topic, 2);
    let mut publisher = client();
    publisher.send_publish(&Publish::new(&topic, "x").qos(2, 3));
    publisher.recv_exactly(&[0x50, 2, 0, 3]);
    for _ in 0..3 {
        publisher.send_publish(&Publish::new(&topic, "x").qos(2, 3).dup());
        publisher.recv_exactly(&[0x50, 2, 0, 3]);
    }
    // Also without DUP: the identifier decides.
    publisher.send_publish(&Publish::new(&topic, "x").qos(2, 3));
    publisher.recv_exactly(&[0x50, 2, 0, 3]);
    publisher.send(&ack(kind::PUBREL, 3));
    publisher.recv_exactly(&[0x70, 2, 0, 3]);
    publisher.publish_qos2(&topic, "marker", 4);
    raw.recv_message(&topic, "x");
    raw.recv_message(&topic, "marker");
    raw.ping();
}

#[test]
fn mqtt_4_3_3_2_a_repeated_pubrel_gets_a_pubcomp_again() {
    let mut publisher = client();
    publisher.send_publish(&Publish::new("nowhere", "x").qos(2, 3));
    publisher.recv_exactly(&[0x50, 2, 0, 3]);
    for _ in 0..3 {
        publisher.send(&ack(kind::PUBREL, 3));
        publisher.recv_exactly(&[0x70, 2, 0, 3]);
    }
    // Even if the identifier was never used.
    publisher.send(&ack(kind::PUBREL, 999));
    publisher.recv_exactly(&[0x70, 2, 0x03, 0xe7]);
}

#[test]
fn mqtt_4_3_3_2_after_pubcomp_the_identifier_is_a_new_publication() {
    let topic = topic();
    let mut raw = subscriber(&topic, 0);
    let mut publisher = client();
    for payload in ["first", "second", "third"] {
        publisher.publish_qos2(&topic, payload, 3);
        raw.recv_message(&topic, payload);
    }
    publisher.send_publish(&Publish::new(&topic, "fourth").qos(2, 3).dup());
    publisher.recv_exactly(&[0x50, 2, 0, 3]);
    publisher.send(&ack(kind::PUBREL, 3));
    publisher.recv_exactly(&[0x70, 2, 0, 3]);
    raw.recv_message(&topic, "fourth");
}

#[test]
fn mqtt_4_3_3_2_a_publish_repeated_after_a_reconnect_is_delivered_once() {
    let (id, topic) = (crate::support::unique("c"), topic());
    let mut watcher = subscriber(&topic, 2);
    let mut publisher = super::resume(&id, false);
    publisher.send_publish(&Publish::new(&topic, "x").qos(2, 9));
    publisher.recv_exactly(&[0x50, 2, 0, 9]);
    publisher.cut();
    let mut publisher = super::resume(&id, true);
    publisher.send_publish(&Publish::new(&topic, "x").qos(2, 9).dup());
    publisher.recv_exactly(&[0x50, 2, 0, 9]);
    publisher.cut();
    let mut publisher = super::resume(&id, true);
    publisher.send(&ack(kind::PUBREL, 9));
    publisher.recv_exactly(&[0x70, 2, 0, 9]);
    publisher.cut();
    let mut publisher = super::resume(&id, true);
    publisher.send(&ack(kind::PUBREL, 9));
    publisher.recv_exactly(&[0x70, 2, 0, 9]);
    publisher.publish_qos2(&topic, "marker", 9);
    watcher.recv_message(&topic, "x");
    watcher.recv_message(&topic, "marker");
}

#[test]
fn mqtt_4_3_3_2_a_clean_session_forgets_the_identifiers_of_the_former_one() {
    let (id, topic) = (crate::support::unique("c"), topic());
    let mut watcher = subscriber(&topic, 2);
    let connect = crate::support::Connect::new(V311, &id);
    for payload in ["first", "second"] {
        let mut publisher = crate::support::Raw::connect(crate::support::Node::shared(), &connect);
        publisher.send_publish(&Publish::new(&topic, payload).qos(2, 9));
        publisher.recv_exactly(&[0x50, 2, 0, 9]);
        publisher.send(&ack(kind::PUBREL, 9));
        publisher.recv_exactly(&[0x70, 2, 0, 9]);
        publisher.send_publish(&Publish::new(&topic, "unfinished").qos(2, 10));
        publisher.recv_exactly(&[0x50, 2, 0, 10]);
        publisher.cut();
    }
    // A broker may deliver at PUBLISH or at PUBREL: "unfinished" comes twice or not at all.
    client().publish_qos2(&topic, "marker", 1);
    let mut found = Vec::new();
    while found.last().is_none_or(|text| text != "marker") {
        found.push(watcher.recv(kind::PUBLISH).text().to_owned());
    }
    assert!(
        found == ["first", "second", "marker"]
            || found == ["first", "unfinished", "second", "unfinished", "marker"],
        "{found:?}"
    );
}
