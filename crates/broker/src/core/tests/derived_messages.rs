//! Messages published by hooks, and the publishers that wait for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use hooks::{
    AcceptedConnect, BackpressureCheck, Client, Hooks, Interest, MessageDraft, MessageOrigin,
    MessageView, OutgoingMessages, PublishVerdict,
};
use mqtt::{PacketType, PropertiesBuf, QoS};

use super::sim::Sim;
use crate::config::BrokerLimits;
use crate::core::shard::ConnectionAction;

/// Answers every message with one a level deeper, up to three levels, and every connection with one message.
struct EchoHooks {
    outgoing: OutgoingMessages,
    full: Arc<AtomicBool>,
}

impl EchoHooks {
    fn push_message(&mut self, topic: &str, tag: u64) {
        let draft = MessageDraft {
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

impl Hooks for EchoHooks {
    fn publish(&mut self, message: &MessageView<'_>, origin: &MessageOrigin<'_>) -> PublishVerdict {
        assert_eq!(origin.client.is_some(), origin.tag == 0);
        if origin.tag == 3 {
            return PublishVerdict::Continue;
        }
        let topic = format!("{}/{}", message.topic, message.from_client_id);
        self.push_message(&topic, origin.tag + 1);
        PublishVerdict::ContinueAndCollect
    }

    fn connected(&mut self, client: &Client<'_>, accepted: &AcceptedConnect<'_>) {
        assert_eq!(accepted.connect.client_id, client.client_id);
        self.push_message(&format!("connected/{}", client.client_id), 3);
    }

    fn take_outgoing(&mut self) -> Option<OutgoingMessages> {
        let is_empty = self.outgoing.is_empty();
        (!is_empty).then(|| std::mem::take(&mut self.outgoing))
    }

    fn take_backpressure(&mut self) -> Option<BackpressureCheck> {
        let full = self.full.clone();
        full.load(Relaxed)
            .then(|| Box::new(move || full.load(Relaxed)) as BackpressureCheck)
    }
}

#[test]
fn messages_of_hooks_follow_the_messages_that_caused_them() {
    let full = Arc::<AtomicBool>::default();
    let mut sim = Sim::new(1, BrokerLimits::default(), 7);
    let mut ann = sim.connect(0, "ann", true);
    sim.subscribe(&mut ann, "#", QoS::AtLeastOnce);
    sim.settle();
    sim.take_bytes(ann);
    sim.shards[0].delivery.hooks = Box::new(EchoHooks {
        outgoing: OutgoingMessages::default(),
        full: full.clone(),
    });
    sim.shards[0].delivery.interest = Interest::PUBLISH | Interest::CONNECT;
    let mut bob = sim.connect(0, "bob", true);
    sim.shards[0].poll_hooks(None);
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
    assert_eq!(
        sim.shards[0].action_after_publish(bob.at),
        ConnectionAction::Continue
    );
    full.store(true, Relaxed);
    sim.publish(&mut bob, "t", b"second", QoS::AtMostOnce, 0);
    assert!(matches!(
        sim.shards[0].action_after_publish(bob.at),
        ConnectionAction::Pause(_)
    ));
    let other = sim.connect(0, "other", true);
    assert_eq!(
        sim.shards[0].action_after_publish(other.at),
        ConnectionAction::Continue,
        "publishers that did not fill the queue do not wait"
    );
    full.store(true, Relaxed);
    sim.shards[0].poll_hooks(Some(other.at));
    assert!(
        matches!(
            sim.shards[0].action_after_publish(other.at),
            ConnectionAction::Pause(_)
        ),
        "a connection waits for the messages derived from its events"
    );
    full.store(false, Relaxed);
    assert_eq!(
        sim.shards[0].action_after_publish(bob.at),
        ConnectionAction::Continue
    );
}

/// Reports unsettled work for every message.
struct UnsettledHooks {
    is_unsettled: bool,
}

impl Hooks for UnsettledHooks {
    fn publish(
        &mut self,
        message: &MessageView<'_>,
        _origin: &MessageOrigin<'_>,
    ) -> PublishVerdict {
        self.is_unsettled = message.topic.starts_with("row/");
        PublishVerdict::ContinueAndCollect
    }

    fn has_unsettled_work(&mut self) -> bool {
        std::mem::take(&mut self.is_unsettled)
    }
}

#[test]
fn answers_wait_until_hook_data_of_the_turn_is_durable() {
    let mut sim = Sim::new(1, BrokerLimits::default(), 7);
    sim.keep_journals();
    sim.shards[0].delivery.hooks = Box::new(UnsettledHooks {
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
            sim.shards[0].handle_turn_settled(turn);
        }
        assert!(sim.has(bob, kind), "no {kind:?}");
        sim.take_bytes(bob);
    }
}

/// A hook that waits for messages which it publishes on another thread must get their answer although its own turn
/// cannot complete before.
#[test]
fn the_answer_to_accepted_messages_waits_for_logs_and_not_for_hooks() {
    let mut sim = Sim::new(2, BrokerLimits::default(), 7);
    sim.keep_journals();
    let mut ann = sim.connect(1, "ann", false);
    sim.subscribe(&mut ann, "relayed/#", QoS::AtLeastOnce);
    sim.shards[0].delivery.hooks = Box::new(UnsettledHooks {
        is_unsettled: false,
    });
    sim.shards[0].delivery.interest = Interest::PUBLISH;
    let mut bob = sim.connect(0, "bob", true);
    let log_all = |sim: &mut Sim| {
        sim.settle();
        while (0..2).any(|shard| sim.log_one(shard)) {
            sim.settle();
        }
    };
    log_all(&mut sim);
    let turn = sim.turn(0);
    sim.publish(&mut bob, "row/1", b"x", QoS::AtLeastOnce, 1);
    let answers = Arc::<std::sync::Mutex<Vec<&str>>>::default();
    let answer = |what| {
        let answers = answers.clone();
        Box::new(move || answers.lock().unwrap().push(what))
    };
    let message = crate::control::PublishRequest {
        topic: "relayed/1".to_owned(),
        qos: 1,
        ..Default::default()
    };
    let published = sim.shards[0].publish_accepted(&message);
    assert!(published.expect("a valid message").has_subscribers);
    sim.shards[0].respond_when_stored(answer("stored"));
    sim.shards[0].respond_when_durable(0, answer("durable"));
    // Ends the turn. Only the other shard has something to log.
    sim.pass(1);
    sim.settle();
    while sim.log_one(0) {}
    assert!(
        answers.lock().unwrap().is_empty(),
        "the message is in no log"
    );
    log_all(&mut sim);
    assert_eq!(*answers.lock().unwrap(), ["stored"]);
    assert!(
        !sim.has(bob, PacketType::PubAck),
        "hook data is not durable"
    );
    (turn..=sim.turn(0)).for_each(|turn| sim.shards[0].handle_turn_settled(turn));
    assert_eq!(*answers.lock().unwrap(), ["stored", "durable"]);
    assert!(sim.has(bob, PacketType::PubAck));
}

/// Messages that derive from accepted ones are not rejected when the store has no room.
#[test]
fn accepted_messages_are_published_while_new_ones_are_rejected() {
    let mut sim = Sim::new(1, BrokerLimits::default(), 7);
    sim.keep_journals();
    let journal = sim.shards[0].delivery.journal.as_mut();
    journal.expect("there is a journal").rejects_writes = true;
    let message = crate::control::PublishRequest {
        topic: "relayed/1".to_owned(),
        ..Default::default()
    };
    let rejected = sim.shards[0].publish_as_node(&message, &Default::default());
    assert_eq!(
        rejected,
        Err(crate::control::ControlError::StoreUnavailable)
    );
    assert!(sim.shards[0].publish_accepted(&message).is_ok());
    let invalid = crate::control::PublishRequest {
        topic: "a/+".to_owned(),
        ..message
    };
    assert!(sim.shards[0].publish_accepted(&invalid).is_err());
}

/// Counts its calls; nothing is durable until the test says so.
#[derive(Default)]
struct CountingHooks(std::rc::Rc<std::cell::RefCell<Vec<String>>>, bool);

impl Hooks for CountingHooks {
    fn publish(
        &mut self,
        message: &MessageView<'_>,
        _origin: &MessageOrigin<'_>,
    ) -> PublishVerdict {
        let text = String::from_utf8_lossy(message.payload);
        self.0
            .borrow_mut()
            .push(format!("{} {text}", message.from_client_id));
        self.1 = true;
        PublishVerdict::ContinueAndCollect
    }

    fn has_unsettled_work(&mut self) -> bool {
        std::mem::take(&mut self.1)
    }
}

/// The packet id of a QoS 2 message was in the log when the node died. The hooks' data of the message may not have been
/// durable.
#[test]
fn hooks_receive_a_repeated_qos_2_message_again_after_a_start() {
    let mut sim = Sim::new(1, BrokerLimits::default(), 7);
    sim.keep_journals();
    let mut ann = sim.connect(0, "ann", true);
    sim.subscribe(&mut ann, "#", QoS::ExactlyOnce);
    let calls = std::rc::Rc::<std::cell::RefCell<Vec<String>>>::default();
    sim.shards[0].delivery.hooks = Box::new(CountingHooks(calls.clone(), false));
    sim.shards[0].delivery.interest = Interest::PUBLISH;
    let mut bob = sim.connect(0, "bob", false);
    while sim.log_one(0) {}
    sim.take_bytes(ann);
    sim.take_bytes(bob);
    let session = sim.shards[0].session_of_connection(bob.at);
    let incoming = &mut sim.shards[0].delivery.sessions[session].incoming_qos2;
    for packet_id in [7, 8] {
        incoming.get_or_insert_default().restore(packet_id);
    }
    for times in 1..=2 {
        let first = sim.turn(0);
        sim.publish(&mut bob, "row/1", b"again", QoS::ExactlyOnce, 7);
        while sim.log_one(0) {}
        if times == 1 {
            assert!(!sim.has(bob, PacketType::PubRec), "its row is not durable");
        }
        let last = sim.turn(0);
        (first..=last).for_each(|turn| sim.shards[0].handle_turn_settled(turn));
        assert!(sim.has(bob, PacketType::PubRec));
        sim.take_bytes(bob);
        assert_eq!(*calls.borrow(), ["bob again"], "{times} times");
    }
    assert!(!sim.has(ann, PacketType::Publish), "subscribers have it");
    // Once released, the packet id is like any other.
    sim.send(&mut bob, &[0x62, 2, 0, 8]);
    for _ in 0..2 {
        sim.publish(&mut bob, "row/1", b"new", QoS::ExactlyOnce, 8);
    }
    assert_eq!(*calls.borrow(), ["bob again", "bob new"]);
}

/// A delayed message that is due stays in the store until the data of hooks for it is durable.
#[test]
fn a_delayed_message_is_stored_until_hook_data_is_durable() {
    let mut sim = Sim::new(1, BrokerLimits::default(), 7);
    sim.keep_journals();
    let calls = std::rc::Rc::<std::cell::RefCell<Vec<String>>>::default();
    sim.shards[0].delivery.hooks = Box::new(CountingHooks(calls.clone(), false));
    sim.shards[0].delivery.interest = Interest::PUBLISH;
    let mut ann = sim.connect(0, "ann", true);
    sim.subscribe(&mut ann, "#", QoS::AtLeastOnce);
    let mut bob = sim.connect(0, "bob", true);
    sim.publish(&mut bob, "$delayed/1/row/1", b"later", QoS::AtLeastOnce, 1);
    while sim.log_one(0) {}
    sim.take_bytes(ann);
    sim.take_bytes(bob);
    let first = sim.turn(0);
    sim.pass(1500);
    while sim.log_one(0) {}
    assert_eq!(*calls.borrow(), ["bob later"]);
    let kept = |sim: &Sim| {
        let journal = sim.shards[0].delivery.journal.as_ref();
        journal.expect("there is a journal").has_routed_delayed()
    };
    assert!(kept(&sim), "it was deleted too early");
    (first..=sim.turn(0)).for_each(|turn| sim.shards[0].handle_turn_settled(turn));
    assert!(!kept(&sim), "it is never deleted");
    // A start that finds it notifies hooks only.
    sim.take_bytes(ann);
    let view = MessageView::from_client("bob", "row/1", b"later", 7);
    let message = crate::core::message::Message::new(&view);
    sim.shards[0].publish_due_delayed(&message, 1);
    assert!(sim.has(ann, PacketType::Publish));
    sim.take_bytes(ann);
    let number = 1 | crate::core::records::DELAYED_ROUTED;
    sim.shards[0].publish_due_delayed(&message, number);
    assert!(!sim.has(ann, PacketType::Publish));
    assert_eq!(calls.borrow().len(), 3);
}

/// Answers every message with this number of messages.
struct BranchingHooks {
    outgoing: OutgoingMessages,
    branches: usize,
    discarded: std::rc::Rc<std::cell::Cell<u64>>,
}

impl Hooks for BranchingHooks {
    fn publish(&mut self, message: &MessageView<'_>, origin: &MessageOrigin<'_>) -> PublishVerdict {
        for branch in 0..self.branches {
            let topic = match origin.tag {
                0 => format!("{}/{branch}", message.topic),
                _ => message.topic.to_owned(),
            };
            self.outgoing.push(&MessageDraft {
                topic: &topic,
                payload: b"x",
                properties: &PropertiesBuf::new(),
                qos: QoS::AtMostOnce,
                retain: false,
                client_id: "",
                username: "",
                tag: origin.tag + 1,
            });
        }
        PublishVerdict::ContinueAndCollect
    }

    fn take_outgoing(&mut self) -> Option<OutgoingMessages> {
        let is_empty = self.outgoing.is_empty();
        (!is_empty).then(|| std::mem::take(&mut self.outgoing))
    }

    fn outgoing_dropped(&mut self, _topic: &str, tag: u64) {
        assert!(tag > 0);
        self.discarded.set(self.discarded.get() + 1);
    }
}

#[test]
fn derived_messages_are_bounded_and_interleaved_with_others() {
    let discarded = std::rc::Rc::<std::cell::Cell<u64>>::default();
    let limits = BrokerLimits {
        max_derived_messages: 500,
        ..BrokerLimits::default()
    };
    let mut sim = Sim::new(1, limits, 7);
    let mut ann = sim.connect(0, "ann", true);
    sim.subscribe(&mut ann, "t/#", QoS::AtMostOnce);
    let mut bob = sim.connect(0, "bob", true);
    let mut eve = sim.connect(0, "eve", true);
    for conn in [ann, bob, eve] {
        sim.take_bytes(conn);
    }
    sim.shards[0].delivery.hooks = Box::new(BranchingHooks {
        outgoing: OutgoingMessages::default(),
        branches: 16,
        discarded: discarded.clone(),
    });
    sim.shards[0].delivery.interest = Interest::PUBLISH;
    sim.publish(&mut bob, "t", b"x", QoS::AtLeastOnce, 1);
    assert!(
        !sim.shards[0].derived_messages.is_empty(),
        "not all at once"
    );
    assert!(
        !sim.has(bob, PacketType::PubAck),
        "not all messages are published"
    );
    let waits = |sim: &mut Sim, at| {
        matches!(
            sim.shards[0].action_after_publish(at),
            ConnectionAction::Pause(_)
        )
    };
    assert!(waits(&mut sim, bob.at) && !waits(&mut sim, eve.at));
    sim.send(&mut eve, &[0xc0, 0]);
    assert!(sim.has(eve, PacketType::PingResp), "others are answered");
    let mut turns = 0;
    while sim.shards[0].publish_next_derived() {
        turns += 1;
        assert!(turns < 100_000, "it never ends");
    }
    assert!(!waits(&mut sim, bob.at));
    assert!(sim.has(bob, PacketType::PubAck));
    let got = sim.take(&mut ann, false);
    assert_eq!(got.len(), 501);
    // Messages derived from the same message keep their order.
    let first: Vec<_> = got[1..17].iter().map(|got| &*got.topic).collect();
    let expected: Vec<_> = (0..16).map(|n| format!("t/{n}")).collect();
    assert_eq!(first, expected);
    assert!(discarded.get() >= 500 * 16 - 500, "{}", discarded.get());
    // Time is bounded, too.
    sim.shards[0].derived_messages = Default::default();
    sim.publish(&mut bob, "t", b"x", QoS::AtMostOnce, 0);
    sim.shards[0].charge_derived(3_600_000_000);
    let before = sim.take(&mut ann, false).len();
    assert!(before < 40);
    while sim.shards[0].publish_next_derived() {}
    assert!(sim.take(&mut ann, false).is_empty());
}
