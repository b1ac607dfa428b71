//! Expiry of sessions.

use super::*;

#[test]
fn mqtt5_4_1_0_1_the_session_lives_while_the_connection_is_open() {
    // The interval counts from the end of the connection, not from its start.
    let mut sim = sim();
    let (mut connection, _, _) = open(&mut sim, &connect("c", &session_expiry(10)));
    sim.subscribe(&mut connection, "t", QoS::AtLeastOnce);
    pass(&mut sim, 30_000);
    sim.take_bytes(connection);
    let mut publisher = client(&mut sim, "publisher");
    publish(&mut sim, &mut publisher, "t", "still here", 100);
    assert_eq!(payloads(&take(&mut sim, connection)), ["still here"]);
    sim.drop_connection(connection);
    pass(&mut sim, 9_900);
    let (_, present, _) = open(&mut sim, &connect("c", &session_expiry(10)));
    assert!(present);
}

#[test]
fn mqtt5_4_1_0_2_an_expired_session_is_discarded_with_all_its_state() {
    let mut sim = sim();
    let (mut connection, _, _) = open(&mut sim, &connect("c", &session_expiry(10)));
    sim.subscribe(&mut connection, "t", QoS::ExactlyOnce);
    let mut publisher = client(&mut sim, "publisher");
    publish(&mut sim, &mut publisher, "t", "in flight", 100);
    assert_eq!(payloads(&take(&mut sim, connection)), ["in flight"]);
    // An identifier the server has seen and not yet released.
    sim.publish(&mut connection, "other", b"x", QoS::ExactlyOnce, 77);
    sim.drop_connection(connection);
    publish(&mut sim, &mut publisher, "t", "queued", 100);
    pass(&mut sim, 10_100);
    let (mut connection, present, messages) = open(&mut sim, &connect("c", &session_expiry(0)));
    assert!(!present);
    assert_eq!(messages, []);
    publish(&mut sim, &mut publisher, "t", "not subscribed", 100);
    // Neither its subscription nor the identifier are known.
    assert!(take(&mut sim, connection).is_empty());
    let reason = release(&mut sim, &mut connection, 77);
    assert_eq!(reason, ReasonCode::PACKET_IDENTIFIER_NOT_FOUND);
}

#[test]
fn mqtt5_section_3_14_2_2_2_a_session_expiry_replaces_the_one_of_connect() {
    let mut sim = sim();
    for (client_id, at_first, at_end) in [("longer", 10, 60), ("shorter", 60, 10)] {
        let (connection, _, _) = open(&mut sim, &connect(client_id, &session_expiry(at_first)));
        let expiry = [Property::SessionExpiryInterval(at_end)];
        disconnect(&mut sim, connection, ReasonCode::SUCCESS, &expiry);
    }
    pass(&mut sim, 20_000);
    for (client_id, expected) in [("longer", true), ("shorter", false)] {
        let (_, present, _) = open(&mut sim, &connect(client_id, &session_expiry(0)));
        assert_eq!(present, expected, "{client_id}");
    }
}

#[test]
fn a_session_expiry_that_was_cut_is_kept_to() {
    let limits = BrokerLimits {
        max_session_expiry_s: 10,
        ..BrokerLimits::default()
    };
    let mut sim = Sim::new(1, limits, 1);
    // Nor can a DISCONNECT wish for more.
    for at_end in [None, Some(3600)] {
        let (connection, _, _) = open(&mut sim, &connect("c", &session_expiry(u32::MAX)));
        let expiry = at_end.map(Property::SessionExpiryInterval);
        disconnect(&mut sim, connection, ReasonCode::SUCCESS, expiry.as_slice());
        pass(&mut sim, 10_100);
        let (connection, present, _) = open(&mut sim, &connect("c", &session_expiry(0)));
        assert!(!present);
        sim.drop_connection(connection);
    }
}
