//! Wills: their delay, and their expiry.

use super::*;

/// A subscriber to wills, and the properties of a session of an hour with a will after `delay_s`.
fn will_watcher(sim: &mut Sim, delay_s: u32) -> (SimConnection, PropertiesBuf, PropertiesBuf) {
    let mut watcher = client(sim, "watcher");
    sim.subscribe(&mut watcher, "will", QoS::AtMostOnce);
    sim.take_bytes(watcher);
    let delay = properties(&[Property::WillDelayInterval(delay_s)]);
    (watcher, session_expiry(3600), delay)
}

#[test]
fn a_session_expiry_shortened_on_disconnect_brings_the_will_forward() {
    let mut sim = sim();
    let (watcher, hour, delay) = will_watcher(&mut sim, 3600);
    let with_will = Connect {
        will: will("will", &delay),
        ..connect("c", &hour)
    };
    let (connection, _, _) = open(&mut sim, &with_will);
    let expiry = [Property::SessionExpiryInterval(10)];
    let reason = ReasonCode::DISCONNECT_WITH_WILL;
    disconnect(&mut sim, connection, reason, &expiry);
    pass(&mut sim, 9_900);
    assert!(take(&mut sim, watcher).is_empty());
    pass(&mut sim, 100);
    assert_eq!(payloads(&take(&mut sim, watcher)), ["will"]);
}

#[test]
fn the_will_delay_counts_from_the_end_of_the_connection() {
    let mut sim = sim();
    let (watcher, hour, delay) = will_watcher(&mut sim, 10);
    let with_will = Connect {
        will: will("will", &delay),
        ..connect("c", &hour)
    };
    let (connection, _, _) = open(&mut sim, &with_will);
    // Longer than the delay, with the connection open.
    pass(&mut sim, 20_000);
    sim.drop_connection(connection);
    pass(&mut sim, 9_900);
    assert!(take(&mut sim, watcher).is_empty());
    pass(&mut sim, 100);
    assert_eq!(payloads(&take(&mut sim, watcher)), ["will"]);
}

#[test]
fn mqtt5_3_1_3_9_a_new_connection_before_the_delay_keeps_the_will_back() {
    // With the first connection lost, and taken over.
    for is_lost in [true, false] {
        let mut sim = sim();
        let (watcher, hour, delay) = will_watcher(&mut sim, 10);
        let with_will = Connect {
            will: will("never", &delay),
            ..connect("c", &hour)
        };
        let (first, _, _) = open(&mut sim, &with_will);
        if is_lost {
            sim.drop_connection(first);
            pass(&mut sim, 9_900);
        }
        let (_, present, _) = open(&mut sim, &connect("c", &hour));
        assert!(present);
        if !is_lost {
            assert!(sim.has(first, PacketType::Disconnect));
        }
        pass(&mut sim, 20_000);
        assert!(take(&mut sim, watcher).is_empty());
    }
}

#[test]
fn the_will_of_the_new_connection_takes_the_place_of_the_old_one() {
    let mut sim = sim();
    let (watcher, hour, delay) = will_watcher(&mut sim, 10);
    let none = PropertiesBuf::new();
    let old = Connect {
        will: will("old", &delay),
        ..connect("c", &hour)
    };
    let (connection, _, _) = open(&mut sim, &old);
    sim.drop_connection(connection);
    let new = Connect {
        will: will("new", &none),
        ..old
    };
    let (connection, _, _) = open(&mut sim, &new);
    pass(&mut sim, 20_000);
    assert!(take(&mut sim, watcher).is_empty());
    sim.drop_connection(connection);
    pass(&mut sim, 20_000);
    assert_eq!(payloads(&take(&mut sim, watcher)), ["new"]);
}

#[test]
fn a_connection_without_a_will_leaves_none() {
    let mut sim = sim();
    let (watcher, hour, delay) = will_watcher(&mut sim, 10);
    let with_will = Connect {
        will: will("never", &delay),
        ..connect("c", &hour)
    };
    for connect in [with_will, connect("c", &hour)] {
        let (connection, _, _) = open(&mut sim, &connect);
        sim.drop_connection(connection);
    }
    pass(&mut sim, 20_000);
    assert!(take(&mut sim, watcher).is_empty());
}

#[test]
fn the_message_expiry_of_a_will_counts_from_its_publication() {
    let mut sim = sim();
    let (watcher, hour, _) = will_watcher(&mut sim, 0);
    let late = properties(&[
        Property::WillDelayInterval(20),
        Property::MessageExpiryInterval(10),
    ]);
    let with_will = Connect {
        will: will("fresh", &late),
        ..connect("c", &hour)
    };
    let (connection, _, _) = open(&mut sim, &with_will);
    sim.drop_connection(connection);
    pass(&mut sim, 20_000);
    let messages = take(&mut sim, watcher);
    assert_eq!(payloads(&messages), ["fresh"]);
    assert_eq!(messages[0].expiry_s, Some(10));
}
