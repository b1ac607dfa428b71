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
        let turn = sim.turn(0);
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

/// Counts what it is told, of which nothing is safe until it is said to be.
#[derive(Default)]
struct Counting(std::rc::Rc<std::cell::RefCell<Vec<String>>>, bool);

impl Hooks for Counting {
    fn publish(&mut self, message: &MessageView<'_>, _origin: &Origin<'_>) -> Verdict {
        let text = String::from_utf8_lossy(message.payload);
        self.0
            .borrow_mut()
            .push(format!("{} {text}", message.from_client_id));
        self.1 = true;
        Verdict::Follow
    }

    fn is_unsettled(&mut self) -> bool {
        std::mem::take(&mut self.1)
    }
}

/// The packet id of a QoS 2 message was in the log when the node died, what hooks had made of the message may not have been safe.
#[test]
fn hooks_hear_again_of_a_qos_2_message_that_comes_again_after_a_start() {
    let mut sim = Sim::new(1, Limits::default(), 7);
    sim.keep_journals();
    let mut ann = sim.connect(0, "ann", true);
    sim.subscribe(&mut ann, "#", QoS::ExactlyOnce);
    let told = std::rc::Rc::<std::cell::RefCell<Vec<String>>>::default();
    sim.shards[0].delivery.hooks = Box::new(Counting(told.clone(), false));
    sim.shards[0].delivery.interest = Interest::PUBLISH;
    let mut bob = sim.connect(0, "bob", false);
    while sim.log_one(0) {}
    (sim.take_bytes(ann), sim.take_bytes(bob));
    let session = sim.shards[0].session_of(bob.at) as usize;
    let incoming = &mut sim.shards[0].delivery.sessions[session].incoming_qos2;
    for packet_id in [7, 8] {
        incoming.get_or_insert_default().restore(packet_id);
    }
    for times in 1..=2 {
        let first = sim.turn(0);
        sim.publish(&mut bob, "row/1", b"again", QoS::ExactlyOnce, 7);
        while sim.log_one(0) {}
        if times == 1 {
            assert!(!sim.has(bob, PacketType::PubRec), "its row is not safe");
        }
        let last = sim.turn(0);
        (first..=last).for_each(|turn| sim.shards[0].settled(turn));
        assert!(sim.has(bob, PacketType::PubRec));
        sim.take_bytes(bob);
        assert_eq!(*told.borrow(), ["bob again"], "{times} times");
    }
    assert!(!sim.has(ann, PacketType::Publish), "subscribers have it");
    // Released, the packet id is one like all others.
    sim.send(&mut bob, &[0x62, 2, 0, 8]);
    for _ in 0..2 {
        sim.publish(&mut bob, "row/1", b"new", QoS::ExactlyOnce, 8);
    }
    assert_eq!(*told.borrow(), ["bob again", "bob new"]);
}

/// A delayed message that is due stays in the store until what hooks have made of it is safe.
#[test]
fn a_delayed_message_is_kept_until_hooks_have_made_theirs_safe() {
    let mut sim = Sim::new(1, Limits::default(), 7);
    sim.keep_journals();
    let told = std::rc::Rc::<std::cell::RefCell<Vec<String>>>::default();
    sim.shards[0].delivery.hooks = Box::new(Counting(told.clone(), false));
    sim.shards[0].delivery.interest = Interest::PUBLISH;
    let mut ann = sim.connect(0, "ann", true);
    sim.subscribe(&mut ann, "#", QoS::AtLeastOnce);
    let mut bob = sim.connect(0, "bob", true);
    sim.publish(&mut bob, "$delayed/1/row/1", b"later", QoS::AtLeastOnce, 1);
    while sim.log_one(0) {}
    (sim.take_bytes(ann), sim.take_bytes(bob));
    let first = sim.turn(0);
    sim.pass(1500);
    while sim.log_one(0) {}
    assert_eq!(*told.borrow(), ["bob later"]);
    let kept = |sim: &Sim| {
        let journal = sim.shards[0].delivery.journal.as_ref();
        journal.expect("there is a journal").keeps_due()
    };
    assert!(kept(&sim), "it was given up too early");
    (first..=sim.turn(0)).for_each(|turn| sim.shards[0].settled(turn));
    assert!(!kept(&sim), "it is never given up");
    // A start that finds it tells hooks alone.
    sim.take_bytes(ann);
    let view = MessageView::of_client("bob", "row/1", b"later", 7);
    let message = crate::core::message::Message::new(&view);
    sim.shards[0].publish_delayed(&message, 1);
    assert!(sim.has(ann, PacketType::Publish));
    sim.take_bytes(ann);
    let number = 1 | crate::core::stored::DELAYED_ROUTED;
    sim.shards[0].publish_delayed(&message, number);
    assert!(!sim.has(ann, PacketType::Publish));
    assert_eq!(told.borrow().len(), 3);
}
