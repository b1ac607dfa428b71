//! What hooks want published, and when they let publishers wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use mqtt::{PacketType, PropertiesBuf, QoS};

use super::sim::Sim;
use crate::config::Limits;
use crate::core::shard::Flow;
use crate::hooks::{
    Accepted, Client, Draft, Hooks, Interest, MessageView, Origin, Outgoing, Verdict,
};

/// Answers every message with one a level deeper, three times, and every connection with one.
struct Echo {
    outgoing: Outgoing,
    full: Arc<AtomicBool>,
}

impl Echo {
    fn say(&mut self, topic: &str, tag: u64) {
        let draft = Draft {
            topic,
            payload: b"echo",
            properties: &PropertiesBuf::new(),
            qos: QoS::AtLeastOnce,
            retain: false,
            client_id: "echo",
            username: "",
            tag,
        };
        self.outgoing.push(&draft);
    }
}

impl Hooks for Echo {
    fn publish(&mut self, message: &MessageView<'_>, origin: &Origin<'_>) -> Verdict {
        assert_eq!(origin.client.is_some(), origin.tag == 0);
        if origin.tag == 3 {
            return Verdict::Continue;
        }
        let topic = format!("{}/{}", message.topic, message.from_client_id);
        self.say(&topic, origin.tag + 1);
        Verdict::Follow
    }

    fn connected(&mut self, client: &Client<'_>, accepted: &Accepted<'_>) {
        assert_eq!(accepted.connect.client_id, client.client_id);
        self.say(&format!("connected/{}", client.client_id), 3);
    }

    fn outgoing(&mut self) -> Option<Outgoing> {
        let is_empty = self.outgoing.is_empty();
        (!is_empty).then(|| std::mem::take(&mut self.outgoing))
    }

    fn is_saturated(&mut self) -> bool {
        self.full.load(Relaxed)
    }
}

#[test]
fn what_hooks_want_published_follows_what_they_were_told() {
    let full = Arc::<AtomicBool>::default();
    let mut sim = Sim::new(1, Limits::default(), 7);
    let mut ann = sim.connect(0, "ann", true);
    sim.subscribe(&mut ann, "#", QoS::AtLeastOnce);
    sim.settle();
    sim.take_bytes(ann);
    sim.shards[0].delivery.hooks = Box::new(Echo {
        outgoing: Outgoing::default(),
        full: full.clone(),
    });
    sim.shards[0].delivery.interest = Interest::PUBLISH | Interest::CONNECT;
    let mut bob = sim.connect(0, "bob", true);
    sim.shards[0].follow_interest();
    sim.publish(&mut bob, "t", b"first", QoS::AtMostOnce, 0);
    let got = sim.take(&mut ann, true);
    let topics: Vec<&str> = got.iter().map(|got| &*got.topic).collect();
    let expected = [
        "connected/bob",
        "t",
        "t/bob",
        "t/bob/echo",
        "t/bob/echo/echo",
    ];
    assert_eq!(topics, expected);
    assert_eq!(sim.shards[0].flow_after_publish(bob.at), Flow::Continue);
    full.store(true, Relaxed);
    sim.publish(&mut bob, "t", b"second", QoS::AtMostOnce, 0);
    assert!(matches!(
        sim.shards[0].flow_after_publish(bob.at),
        Flow::Pause(_)
    ));
    full.store(false, Relaxed);
    sim.shards[0].ask_saturation();
    assert_eq!(sim.shards[0].flow_after_publish(bob.at), Flow::Continue);
}

/// Has something of every message that is not safe yet.
struct Careful {
    is_unsettled: bool,
}

impl Hooks for Careful {
    fn publish(&mut self, message: &MessageView<'_>, _origin: &Origin<'_>) -> Verdict {
        self.is_unsettled = message.topic.starts_with("row/");
        Verdict::Follow
    }

    fn is_unsettled(&mut self) -> bool {
        std::mem::take(&mut self.is_unsettled)
    }
}

#[test]
fn answers_wait_for_what_hooks_have_made_of_a_turn() {
    let mut sim = Sim::new(1, Limits::default(), 7);
    sim.keep_journals();
    sim.shards[0].delivery.hooks = Box::new(Careful {
        is_unsettled: false,
    });
    sim.shards[0].delivery.interest = Interest::PUBLISH;
    let mut bob = sim.connect(0, "bob", true);
    sim.take_bytes(bob);
    sim.publish(&mut bob, "other", b"x", QoS::AtLeastOnce, 1);
    assert!(sim.has(bob, PacketType::PubAck), "it waits for nothing");
    for (qos, kind) in [
        (QoS::AtLeastOnce, PacketType::PubAck),
        (QoS::ExactlyOnce, PacketType::PubRec),
    ] {
        let turn = sim.shards[0]
            .delivery
            .journal
            .as_ref()
            .map(|journal| journal.turn())
            .expect("there is a journal");
        sim.publish(&mut bob, "row/1", b"x", qos, 2);
        while sim.log_one(0) {}
        assert!(!sim.has(bob, kind), "{kind:?} came before it was safe");
        for turn in turn..turn + 3 {
            sim.shards[0].settled(turn);
        }
        assert!(sim.has(bob, kind), "no {kind:?}");
        sim.take_bytes(bob);
    }
}
