//! What hooks give a client that is let in: a name, permissions that live with its session, an end.

use std::sync::Arc;

use mqtt::{PacketType, QoS};

use super::sim::Sim;
use crate::config::Limits;
use crate::hooks::{
    Action, Authentication, Authorization, Client, Credentials, Grant, Hooks, Interest, Permissions,
};

/// Lets everybody in under another name, to publish below that name only, for ten seconds.
struct Guard;

struct BelowItsName;

impl Permissions for BelowItsName {
    fn check(&self, client: &Client<'_>, action: &Action<'_>) -> Authorization {
        let Action::Publish { topic, .. } = action else {
            return Authorization::Allow;
        };
        let rest = topic.strip_prefix(client.username.unwrap_or("-"));
        match rest.is_some_and(|rest| rest.starts_with('/')) {
            true => Authorization::Allow,
            false => Authorization::Deny,
        }
    }
}

impl Hooks for Guard {
    fn authenticate(&mut self, credentials: &Credentials<'_>) -> Authentication {
        Authentication::Allow(Box::new(Grant {
            username: Some(format!("user-of-{}", credentials.client.client_id).into()),
            client_id: Some(format!("{}-1", credentials.client.client_id).into()),
            permissions: Some(Arc::new(BelowItsName)),
            expires_at_ms: Some(1_010_000),
            ..Grant::default()
        }))
    }
}

fn guarded(shards: usize) -> Sim {
    let mut sim = Sim::new(shards, Limits::default(), 7);
    for shard in &mut sim.shards {
        shard.delivery.hooks = Box::new(Guard);
        shard.delivery.interest = Interest::AUTHENTICATE;
    }
    sim
}

#[test]
fn permissions_are_those_of_the_session_on_whatever_shard_it_is() {
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
