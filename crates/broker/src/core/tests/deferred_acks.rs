//! Messages that hooks acknowledge later.

use std::sync::{Arc, Mutex};

use hooks::{Hooks, Interest, MessageOrigin, MessageView, PublishTicket, PublishVerdict};
use mqtt::{PacketType, QoS, ReasonCode};

use super::sim::Sim;
use crate::config::BrokerLimits;

type PublishTickets = Arc<Mutex<Vec<Option<PublishTicket>>>>;

/// Defers everything on topics that begin with `later/`.
struct DeferringHooks(PublishTickets);

impl Hooks for DeferringHooks {
    fn publish(&mut self, message: &MessageView<'_>, origin: &MessageOrigin<'_>) -> PublishVerdict {
        if !message.topic.starts_with("later/") {
            return PublishVerdict::Continue;
        }
        self.0.lock().unwrap().push(origin.ticket);
        PublishVerdict::Defer
    }
}

fn deferring_shard() -> (Sim, PublishTickets) {
    let mut sim = Sim::new(1, BrokerLimits::default(), 3);
    let tickets = PublishTickets::default();
    sim.shards[0].delivery.hooks = Box::new(DeferringHooks(tickets.clone()));
    sim.shards[0].delivery.interest = Interest::PUBLISH;
    (sim, tickets)
}

#[test]
fn a_deferred_message_is_answered_when_the_hook_releases_it() {
    let (mut sim, tickets) = deferring_shard();
    let mut subscriber = sim.connect(0, "subscriber", true);
    sim.subscribe(&mut subscriber, "#", QoS::AtLeastOnce);
    let mut client = sim.connect(0, "client", true);
    sim.take_bytes(client);
    sim.publish(&mut client, "later/a", b"1", QoS::AtLeastOnce, 1);
    assert!(!sim.has(client, PacketType::PubAck));
    sim.publish(&mut client, "now", b"2", QoS::AtLeastOnce, 2);
    let now = sim.take_bytes(client);
    assert_eq!(now[..4], [0x40, 2, 0, 2], "others do not wait");
    let ticket = tickets.lock().unwrap()[0].expect("a ticket");
    assert_eq!((ticket.packet_id, ticket.qos), (1, QoS::AtLeastOnce));
    sim.shards[0].acknowledge_deferred(ticket, ReasonCode::UNSPECIFIED_ERROR);
    assert_eq!(sim.take_bytes(client)[..5], [0x40, 3, 0, 1, 0x80]);
    let got = sim.take(&mut subscriber, true);
    let topics: Vec<&str> = got.iter().map(|got| &*got.topic).collect();
    assert_eq!(topics, ["now"], "a deferred message is not delivered");
}

#[test]
fn a_deferred_message_of_qos_2_is_a_duplicate_only_after_its_answer() {
    let (mut sim, tickets) = deferring_shard();
    let mut client = sim.connect(0, "client", true);
    sim.take_bytes(client);
    sim.publish(&mut client, "later/a", b"1", QoS::ExactlyOnce, 7);
    assert!(!sim.has(client, PacketType::PubRec));
    let ticket = tickets.lock().unwrap()[0].expect("a ticket");
    sim.shards[0].acknowledge_deferred(ticket, ReasonCode::SUCCESS);
    assert_eq!(sim.take_bytes(client)[..4], [0x50, 2, 0, 7]);
    sim.publish(&mut client, "later/a", b"1", QoS::ExactlyOnce, 7);
    assert_eq!(sim.take_bytes(client)[..4], [0x50, 2, 0, 7]);
    assert_eq!(tickets.lock().unwrap().len(), 1, "the hook saw it once");
}

#[test]
fn an_answer_for_a_closed_connection_is_dropped() {
    let (mut sim, tickets) = deferring_shard();
    let mut client = sim.connect(0, "client", true);
    sim.publish(&mut client, "later/a", b"1", QoS::AtLeastOnce, 1);
    sim.publish(&mut client, "later/a", b"1", QoS::AtMostOnce, 0);
    sim.drop_connection(client);
    let next = sim.connect(0, "client", true);
    sim.take_bytes(next);
    let taken = tickets.lock().unwrap().clone();
    assert_eq!(taken[1], None, "QoS 0 is not acknowledged");
    sim.shards[0].acknowledge_deferred(taken[0].expect("a ticket"), ReasonCode::SUCCESS);
    assert!(!sim.has(next, PacketType::PubAck));
}
