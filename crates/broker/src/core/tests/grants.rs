//! What hooks grant an accepted client: a user name, permissions that live with its session, an expiry.

use std::sync::{Arc, Mutex};

use hooks::{
    Authentication, Authorization, Client, ClientAction, ClientGrant, Credentials, Hooks, Interest,
    Permissions,
};
use mqtt::{PacketType, QoS};

use super::sim::Sim;
use crate::config::{BrokerLimits, SessionOwnerConflict};

/// Accepts every client under another name, with permission to publish below that name only, for ten seconds.
struct GuardHooks;

struct OwnTopicPermissions;

impl Permissions for OwnTopicPermissions {
    fn check<'c>(
        &self,
        client: &dyn Fn() -> Client<'c>,
        action: &ClientAction<'_>,
    ) -> Authorization {
        let ClientAction::Publish { topic, .. } = action else {
            return Authorization::Allow;
        };
        let rest = topic.strip_prefix(client().username.unwrap_or("-"));
        match rest.is_some_and(|rest| rest.starts_with('/')) {
            true => Authorization::Allow,
            false => Authorization::Deny,
        }
    }
}

impl Hooks for GuardHooks {
    fn authenticate(&mut self, credentials: &Credentials<'_>) -> Authentication {
        Authentication::Allow(Box::new(ClientGrant {
            username: Some(format!("user-of-{}", credentials.client.client_id).into()),
            client_id: Some(format!("{}-1", credentials.client.client_id).into()),
            permissions: Some(Arc::new(OwnTopicPermissions)),
            expires_at_ms: Some(1_010_000),
            ..ClientGrant::default()
        }))
    }
}

fn guarded(shards: usize) -> Sim {
    let mut sim = Sim::new(shards, BrokerLimits::default(), 7);
    for shard in &mut sim.shards {
        shard.delivery.hooks = Box::new(GuardHooks);
        shard.delivery.interest = Interest::AUTHENTICATE;
    }
    sim
}

#[test]
fn permissions_move_with_the_session_between_shards() {
    let mut sim = guarded(2);
    let first = sim.connect(0, "ann", false);
    sim.settle();
    sim.drop_connection(first);
    let mut again = sim.connect(1, "ann", false);
    assert_eq!(again.shard, 0, "its session is there");
    assert!(sim.shards[0].by_client_id.contains_key("ann-1"));
    sim.subscribe(&mut again, "#", QoS::AtMostOnce);
    sim.settle();
    sim.take_bytes(again);
    sim.publish(&mut again, "user-of-ann/t", b"1", QoS::AtMostOnce, 0);
    sim.publish(&mut again, "user-of-bob/t", b"2", QoS::AtMostOnce, 0);
    let got = sim.take(&mut again, true);
    assert_eq!(got.len(), 1);
    assert_eq!(got[0].topic, "user-of-ann/t");
}

#[test]
fn a_connection_is_closed_when_its_grant_ends() {
    let mut sim = guarded(1);
    let ann = sim.connect(0, "ann", false);
    sim.take_bytes(ann);
    sim.pass(9_000);
    assert!(!sim.has(ann, PacketType::Disconnect));
    sim.pass(1_000);
    assert!(sim.has(ann, PacketType::Disconnect));
}

#[test]
fn the_end_of_an_earlier_connection_does_not_end_a_later_one() {
    let mut sim = guarded(1);
    let ann = sim.connect(0, "ann", false);
    sim.drop_connection(ann);
    for shard in &mut sim.shards {
        shard.delivery.interest = Interest::NONE;
    }
    let bob = sim.connect(0, "bob", false);
    assert_eq!(bob.at, ann.at);
    sim.take_bytes(bob);
    sim.pass(20_000);
    assert!(!sim.has(bob, PacketType::Disconnect));
}

/// Accepts every client as the user named last. Once the flag is set, topics that begin with `secret/` must not be
/// subscribed to.
#[derive(Clone, Default)]
struct TestUsers(Arc<Mutex<(Option<&'static str>, bool)>>);

impl TestUsers {
    fn set_user(&self, username: Option<&'static str>) {
        self.0.lock().unwrap().0 = username;
    }
}

impl Permissions for TestUsers {
    fn check<'c>(&self, _: &dyn Fn() -> Client<'c>, action: &ClientAction<'_>) -> Authorization {
        match action {
            ClientAction::Subscribe { filter, .. }
                if filter.starts_with("secret/") && self.0.lock().unwrap().1 =>
            {
                Authorization::Deny
            }
            _ => Authorization::Allow,
        }
    }
}

impl Hooks for TestUsers {
    fn authenticate(&mut self, _: &Credentials<'_>) -> Authentication {
        let username = self.0.lock().unwrap().0;
        Authentication::Allow(Box::new(ClientGrant {
            username: username.map(Into::into),
            is_anonymous: username.is_none(),
            permissions: Some(Arc::new(self.clone())),
            ..ClientGrant::default()
        }))
    }
}

fn with_users(shards: usize, limits: BrokerLimits) -> (Sim, TestUsers) {
    let (mut sim, users) = (Sim::new(shards, limits, 7), TestUsers::default());
    for shard in &mut sim.shards {
        shard.delivery.hooks = Box::new(users.clone());
        shard.delivery.interest = Interest::AUTHENTICATE;
    }
    (sim, users)
}

/// Creates Ann's session on the first shard, with a message in its queue.
fn anns_queue(sim: &mut Sim, users: &TestUsers) {
    users.set_user(Some("ann"));
    let mut ann = sim.connect(0, "c", false);
    sim.subscribe(&mut ann, "secret/#", QoS::AtLeastOnce);
    sim.subscribe(&mut ann, "open/#", QoS::AtLeastOnce);
    sim.settle();
    sim.drop_connection(ann);
    let mut from = sim.connect(0, "publisher", true);
    for (n, topic) in ["secret/1", "open/1"].into_iter().enumerate() {
        sim.publish(&mut from, topic, b"x", QoS::AtLeastOnce, n as u16 + 1);
    }
    sim.settle();
}

fn topics(sim: &mut Sim, conn: &mut super::sim::SimConnection) -> Vec<String> {
    let got = sim.take(conn, true);
    got.into_iter().map(|got| got.topic).collect()
}

#[test]
fn a_session_is_resumed_only_by_its_owner() {
    for shards in [1, 2] {
        let (mut sim, users) = with_users(shards, BrokerLimits::default());
        anns_queue(&mut sim, &users);
        for other in [Some("bob"), None] {
            users.set_user(other);
            for clean in [false, true] {
                let mut bob = sim.connect(shards - 1, "c", clean);
                sim.settle();
                assert!(sim.shards[0].by_client_id.contains_key("c"));
                assert_eq!(topics(&mut sim, &mut bob), [""; 0], "{other:?}");
                sim.drop_connection(bob);
            }
        }
        users.set_user(Some("ann"));
        let mut ann = sim.connect(shards - 1, "c", false);
        sim.settle();
        assert_eq!(topics(&mut sim, &mut ann), ["secret/1", "open/1"]);
        // Her connection is not taken over, either.
        users.set_user(Some("bob"));
        let _ = sim.connect(0, "c", false);
        sim.settle();
        assert!(!sim.has(ann, PacketType::Disconnect));
    }
}

#[test]
fn a_session_of_another_user_may_end_instead() {
    let limits = BrokerLimits {
        session_owner_conflict: SessionOwnerConflict::EndSession,
        ..BrokerLimits::default()
    };
    let (mut sim, users) = with_users(1, limits);
    anns_queue(&mut sim, &users);
    users.set_user(Some("bob"));
    let mut bob = sim.connect(0, "c", false);
    sim.settle();
    assert!(sim.has(bob, PacketType::ConnAck));
    assert_eq!(topics(&mut sim, &mut bob), [""; 0]);
}

#[test]
fn queued_messages_that_are_no_longer_allowed_are_not_delivered() {
    let (mut sim, users) = with_users(1, BrokerLimits::default());
    anns_queue(&mut sim, &users);
    users.0.lock().unwrap().1 = true;
    let mut ann = sim.connect(0, "c", false);
    sim.settle();
    assert_eq!(topics(&mut sim, &mut ann), ["open/1"]);
    let mut from = sim.connect(0, "publisher", true);
    for (n, topic) in ["secret/2", "open/2"].into_iter().enumerate() {
        sim.publish(&mut from, topic, b"x", QoS::AtLeastOnce, n as u16 + 1);
    }
    sim.settle();
    assert_eq!(topics(&mut sim, &mut ann), ["open/2"]);
}

/// Messages in flight are checked like queued ones; QoS 2 exchanges are completed.
#[test]
fn messages_in_flight_that_are_no_longer_allowed_are_not_resent() {
    let (mut sim, users) = with_users(1, BrokerLimits::default());
    users.set_user(Some("ann"));
    let mut ann = sim.connect(0, "c", false);
    sim.subscribe(&mut ann, "secret/#", QoS::ExactlyOnce);
    sim.subscribe(&mut ann, "open/#", QoS::ExactlyOnce);
    sim.settle();
    sim.take_bytes(ann);
    let mut from = sim.connect(0, "publisher", true);
    let sent = [
        ("secret/0", QoS::ExactlyOnce),
        ("secret/1", QoS::AtLeastOnce),
        ("secret/2", QoS::ExactlyOnce),
        ("open/1", QoS::AtLeastOnce),
    ];
    for (n, (topic, qos)) in (1..).zip(sent) {
        sim.publish(&mut from, topic, b"x", qos, n);
    }
    sim.settle();
    let got = sim.take(&mut ann, false);
    let ids: Vec<u16> = got.iter().map(|got| got.packet_id).collect();
    assert_eq!(ids, [1, 2, 3, 4]);
    // The first was received: its PUBREL is due whatever her permissions.
    sim.send(&mut ann, &[0x50, 2, 0, 1]);
    sim.drop_connection(ann);
    users.0.lock().unwrap().1 = true;
    let mut ann = sim.connect(0, "c", false);
    sim.settle();
    let bytes = sim.take_bytes(ann);
    let releases = |bytes: &[u8], id: u8| bytes.windows(4).any(|w| w == [0x62, 2, 0, id]);
    assert!(releases(&bytes, 1) && releases(&bytes, 3), "{bytes:?}");
    let text = String::from_utf8_lossy(&bytes);
    assert!(text.contains("open/1"), "{text:?}");
    assert!(!text.contains("secret/"), "{text:?}");
    // Packet ids of QoS 2 are free when the client completes the exchange; that of QoS 1 is free at once.
    for id in [1, 3] {
        sim.send(&mut ann, &[0x70, 2, 0, id]);
    }
    sim.send(&mut ann, &[0x40, 2, 0, 4]);
    sim.drop_connection(ann);
    let mut ann = sim.connect(0, "c", false);
    sim.settle();
    assert_eq!(topics(&mut sim, &mut ann), [""; 0], "nothing is left");
}

#[test]
fn client_ids_must_have_the_configured_prefix() {
    let limits = BrokerLimits {
        client_id_prefix: "${username}-".into(),
        ..BrokerLimits::default()
    };
    let (mut sim, users) = with_users(1, limits);
    users.set_user(Some("ann"));
    for client_id in ["bob-1", "an", "ann"] {
        sim.connect(0, client_id, false);
        assert!(!sim.shards[0].by_client_id.contains_key(client_id));
    }
    sim.connect(0, "ann-1", false);
    assert!(sim.shards[0].by_client_id.contains_key("ann-1"));
    sim.connect(0, "", true);
    let mut ids = sim.shards[0].by_client_id.keys();
    assert!(ids.any(|id| id.starts_with("ann-tg-")));
}
