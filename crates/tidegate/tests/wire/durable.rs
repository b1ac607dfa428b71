//! What a node keeps when it is stopped, and when it is killed: sessions, subscriptions, queued messages, what is in
//! flight both ways, retained and delayed messages, wills.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use testkit::{ServerKind, TestServer};

use crate::support::{Connect, Node, Packet, Props, Publish, Raw, Will, ack, kind};

const EXPIRY: u8 = 0x11;
const WILL_DELAY: u8 = 0x18;

fn persistent(client_id: &str) -> Connect {
    Connect::new(5, client_id)
        .persistent()
        .properties(Props::new().u32(EXPIRY, 3600))
}

/// Connects and says whether the session was there.
fn resume(node: &Node, client_id: &str) -> (Raw, bool) {
    let (raw, connack) = Raw::connect_for_connack(node, &persistent(client_id));
    (raw, connack.session_present)
}

/// The next messages, acknowledged to the end.
fn take(raw: &mut Raw, count: usize) -> Vec<Packet> {
    let mut got = Vec::new();
    let mut open = 0;
    while got.len() < count || open > 0 {
        let packet = raw.recv_packet();
        match packet.kind {
            kind::PUBLISH if packet.qos() == 1 => raw.send(&ack(kind::PUBACK, packet.id())),
            kind::PUBLISH => {
                raw.send(&ack(kind::PUBREC, packet.id()));
                open += 1;
            }
            kind::PUBREL => {
                raw.send(&ack(kind::PUBCOMP, packet.id()));
                open -= 1;
                continue;
            }
            other => panic!("a packet of kind {other}"),
        }
        got.push(packet);
    }
    got
}

/// Runs a test with a node that is stopped, and with one that is killed; on one shard and on two; with queues in the
/// node and in each server that can have them. The servers share the combinations: what the store does with a server does
/// not depend on its kind.
fn in_each_combination(test: impl Fn(&mut Node, &dyn Fn(&mut Node))) {
    type RestartMethod = (&'static str, fn(&mut Node));
    let diagonal: [RestartMethod; 2] = [("1", Node::restart), ("2", Node::crash)];
    let other_diagonal: [RestartMethod; 2] = [("1", Node::crash), ("2", Node::restart)];
    for place in QueueLocation::all() {
        let ways = match place {
            QueueLocation::Here => [diagonal, other_diagonal].concat(),
            QueueLocation::In("redis", _) => diagonal.to_vec(),
            QueueLocation::In(..) => other_diagonal.to_vec(),
        };
        for (shards, again) in ways {
            let mut arguments = vec!["--shards".to_owned(), shards.to_owned()];
            arguments.extend(place.arguments());
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            test(&mut Node::start(&arguments), &again);
        }
    }
}

/// Where queued messages are.
enum QueueLocation {
    Here,
    In(&'static str, &'static TestServer),
}

impl QueueLocation {
    fn all() -> Vec<Self> {
        static REDIS: OnceLock<Option<TestServer>> = OnceLock::new();
        static MARIADB: OnceLock<Option<TestServer>> = OnceLock::new();
        let servers = [
            (
                "redis",
                REDIS.get_or_init(|| TestServer::start_or_skip(ServerKind::Redis)),
            ),
            (
                "mysql",
                MARIADB.get_or_init(|| TestServer::start_or_skip(ServerKind::MariaDb)),
            ),
        ];
        let mut all = vec![Self::Here];
        for (name, server) in servers {
            all.extend(server.as_ref().map(|server| Self::In(name, server)));
        }
        all
    }

    /// For a node of its own.
    fn arguments(&self) -> Vec<String> {
        static NODES: AtomicU32 = AtomicU32::new(0);
        let Self::In(name, server) = self else {
            return Vec::new();
        };
        let prefix = format!("node{}", NODES.fetch_add(1, Ordering::Relaxed));
        let settings = [
            format!("store.queue_backend={name}"),
            format!("store.queue_url={}", server.url()),
            format!("store.queue_prefix={prefix}"),
        ];
        settings
            .into_iter()
            .flat_map(|set| ["--set".to_owned(), set])
            .collect()
    }
}

#[test]
fn a_server_of_queues_that_goes_and_comes_back_loses_nothing() {
    for kind in [ServerKind::Redis, ServerKind::MariaDb] {
        let Some(server) = TestServer::start_or_skip(kind) else {
            continue;
        };
        let name = if kind == ServerKind::Redis {
            "redis"
        } else {
            "mysql"
        };
        let url = format!("store.queue_url={}", server.url());
        let place = format!("store.queue_backend={name}");
        let mut node = Node::start(&["--shards", "2", "--set", &place, "--set", &url]);
        let (mut away, _) = resume(&node, "away");
        away.subscribe("q/#", 2);
        away.disconnect();
        let mut publisher = Raw::client(&node, 5);
        for n in 1..=600_u16 {
            if n % 200 == 100 {
                server.kill();
                continue;
            }
            if n % 200 == 101 {
                // Taken, but not acknowledged before it is there.
                publisher.send_publish(&Publish::new("q/1", n.to_string()).qos(1, n));
                assert!(publisher.try_recv(Duration::from_millis(300)).is_none());
                server.start();
                assert_eq!(publisher.recv(kind::PUBACK).id(), n);
            } else if n.is_multiple_of(3) {
                publisher.publish_qos2("q/1", n.to_string(), n);
            } else {
                publisher.publish_qos1("q/1", n.to_string(), n);
            }
        }
        node.crash();
        let (mut back, present) = resume(&node, "away");
        assert!(present);
        let got = take(&mut back, 597);
        let expected = (1..=600_u16).filter(|n| n % 200 != 100);
        for (message, n) in got.iter().zip(expected) {
            assert_eq!(message.payload, n.to_string().into_bytes());
        }
        assert!(back.try_recv(Duration::from_millis(200)).is_none());
    }
}

#[test]
fn a_server_of_queues_that_is_not_there_is_named_at_start() {
    let url = "store.queue_url=redis://u:geheim@127.0.0.1:1/0";
    let arguments = ["--set", "store.queue_backend=redis", "--set", url];
    let why = Node::try_start(&arguments, "").err().unwrap();
    assert!(
        why.contains("Redis at 127.0.0.1:1") && why.contains("store.queue_url"),
        "{why}"
    );
    assert!(!why.contains("geheim"), "{why}");
}

#[test]
fn a_session_its_subscriptions_and_what_is_queued_survive() {
    in_each_combination(|node, again| {
        let (mut away, present) = resume(node, "away");
        assert!(!present);
        away.subscribe("a/+", 1);
        away.subscribe("$share/group/s/#", 2);
        away.disconnect();
        let mut publisher = Raw::client(node, 5);
        for n in 1..=300_u16 {
            publisher.publish_qos1("a/b", n.to_string(), n);
        }
        publisher.publish_qos2("s/x", "shared", 301);
        publisher.disconnect();
        again(node);
        let mut publisher = Raw::client(node, 5);
        publisher.publish_qos1("a/c", "after", 1);
        let (mut back, present) = resume(node, "away");
        assert!(present, "the session is gone");
        let got = take(&mut back, 302);
        for (n, message) in got[..300].iter().enumerate() {
            assert_eq!(message.payload, (n + 1).to_string().into_bytes());
        }
        assert_eq!((&*got[300].topic, &*got[301].topic), ("s/x", "a/c"));
        publisher.publish_qos1("a/d", "live", 2);
        let live = back.recv_message("a/d", "live");
        back.acknowledge(&live);
        // Answered when it is in the log, and so is all that came before.
        back.subscribe("sync", 1);
        back.disconnect();
        again(node);
        let (mut back, present) = resume(node, "away");
        assert!(present);
        assert!(
            back.try_recv(Duration::from_millis(300)).is_none(),
            "what was acknowledged came again"
        );
    });
}

#[test]
fn what_is_in_flight_keeps_its_packet_id() {
    in_each_combination(|node, again| {
        let (mut away, _) = resume(node, "flight");
        away.subscribe("q/#", 2);
        let mut publisher = Raw::client(node, 5);
        publisher.publish_qos1("q/1", "one", 1);
        publisher.publish_qos2("q/2", "two", 2);
        publisher.publish_qos2("q/3", "three", 3);
        let one = away.recv_message("q/1", "one");
        let two = away.recv_message("q/2", "two");
        let three = away.recv_message("q/3", "three");
        // The second is received but not released; the others are not acknowledged at all.
        away.send(&ack(kind::PUBREC, two.id()));
        away.recv(kind::PUBREL);
        away.cut();
        again(node);
        let (mut back, present) = resume(node, "flight");
        assert!(present);
        let again_one = back.recv_message("q/1", "one");
        assert_eq!(again_one.id(), one.id());
        assert!(again_one.flags & 8 != 0, "no DUP");
        assert_eq!(back.recv(kind::PUBREL).id(), two.id());
        let again_three = back.recv_message("q/3", "three");
        assert_eq!(again_three.id(), three.id());
        back.acknowledge(&again_one);
        back.send(&ack(kind::PUBCOMP, two.id()));
        back.acknowledge(&again_three);
        publisher_sends_and_gets(node, &mut back);
    });
}

/// New messages after a restart get packet ids that are free, and arrive.
fn publisher_sends_and_gets(node: &Node, subscriber: &mut Raw) {
    let mut publisher = Raw::client(node, 5);
    publisher.publish_qos2("q/4", "four", 4);
    let four = subscriber.recv_message("q/4", "four");
    subscriber.acknowledge(&four);
}

#[test]
fn a_qos_2_message_repeated_after_a_restart_is_the_same_message() {
    in_each_combination(|node, again| {
        let (mut subscriber, _) = resume(node, "subscriber");
        subscriber.subscribe("x", 2);
        subscriber.disconnect();
        let (mut publisher, _) = resume(node, "publisher");
        publisher.send_publish(&Publish::new("x", "once").qos(2, 7));
        publisher.recv(kind::PUBREC);
        publisher.cut();
        again(node);
        let (mut publisher, present) = resume(node, "publisher");
        assert!(present);
        publisher.send_publish(&Publish::new("x", "once").qos(2, 7).dup());
        publisher.recv(kind::PUBREC);
        publisher.send(&ack(kind::PUBREL, 7));
        publisher.recv(kind::PUBCOMP);
        publisher.cut();
        again(node);
        // The id is free again: this is another message.
        let (mut publisher, _) = resume(node, "publisher");
        publisher.publish_qos2("x", "twice", 7);
        let (mut subscriber, _) = resume(node, "subscriber");
        let got = take(&mut subscriber, 2);
        assert_eq!(
            (&*got[0].payload, &*got[1].payload),
            (&b"once"[..], &b"twice"[..])
        );
        assert!(subscriber.try_recv(Duration::from_millis(200)).is_none());
    });
}

#[test]
fn what_was_stored_for_a_member_that_ends_goes_to_another_member() {
    in_each_combination(|node, again| {
        let (mut first, _) = resume(node, "first");
        first.subscribe("$share/group/shared/#", 2);
        first.subscribe("own/#", 1);
        first.disconnect();
        let mut publisher = Raw::client(node, 5);
        // More than are read at once.
        for number in 0..150 {
            publisher.publish_qos1("shared/a", number.to_string(), 1);
        }
        publisher.publish_qos1("own/a", "mine", 1);
        publisher.publish_qos2("shared/b", "last", 2);
        again(node);
        let mut second = Raw::client(node, 5);
        second.subscribe("$share/group/shared/#", 2);
        // Nobody else knows that there is a second member before its SUBACK. The first ends by starting anew.
        let (mut anew, connack) = Raw::connect_for_connack(node, &Connect::new(5, "first"));
        assert!(!connack.session_present);
        let got = take(&mut second, 151);
        let payloads: Vec<_> = got.iter().map(|packet| packet.payload.clone()).collect();
        let sent = (0..150).map(|number| number.to_string());
        let sent = sent.chain(["last".to_owned()]).map(String::into_bytes);
        assert_eq!(payloads, sent.collect::<Vec<_>>());
        assert!(second.try_recv(Duration::from_millis(200)).is_none());
        anew.ping();
    });
}

#[test]
fn retained_messages_survive_as_they_were_left() {
    in_each_combination(|node, again| {
        let mut publisher = Raw::client(node, 5);
        for (topic, payload) in [("r/1", "a"), ("r/1", "b"), ("r/2", "c"), ("r/3", "d")] {
            let publish = Publish::new(topic, payload).qos(1, 1).retain();
            publisher.send_publish(&publish);
            publisher.recv(kind::PUBACK);
        }
        publisher.send_publish(&Publish::new("r/2", "").qos(1, 1).retain());
        publisher.recv(kind::PUBACK);
        again(node);
        let mut subscriber = Raw::client(node, 5);
        subscriber.subscribe("r/#", 0);
        subscriber.recv_message("r/1", "b");
        subscriber.recv_message("r/3", "d");
        assert!(subscriber.try_recv(Duration::from_millis(200)).is_none());
    });
}

#[test]
fn delayed_messages_come_when_they_are_due() {
    in_each_combination(|node, again| {
        let (mut subscriber, _) = resume(node, "delayed");
        subscriber.subscribe("d", 1);
        subscriber.disconnect();
        let mut publisher = Raw::client(node, 5);
        publisher.publish_qos1("$delayed/2/d", "late", 1);
        publisher.publish_qos1("$delayed/3600/d", "too late", 2);
        again(node);
        let (mut subscriber, _) = resume(node, "delayed");
        let late = subscriber.recv_message("d", "late");
        subscriber.acknowledge(&late);
        assert!(subscriber.try_recv(Duration::from_millis(200)).is_none());
    });
}

#[test]
fn the_will_of_a_client_whose_node_died_is_published() {
    for shards in ["1", "2"] {
        let mut node = Node::start(&["--shards", shards]);
        let (mut watcher, _) = resume(&node, "watcher");
        watcher.subscribe("will/#", 1);
        // One without a session to speak of, one with a session and a delay.
        let plain = Connect::new(5, "plain").will(Will::new("will/plain", "gone").qos(1));
        let _plain = Raw::connect(&node, &plain);
        let delay = Props::new().u32(WILL_DELAY, 1);
        let delayed =
            persistent("delayed").will(Will::new("will/delayed", "gone").qos(1).properties(delay));
        let _delayed = Raw::connect(&node, &delayed);
        node.crash();
        let (mut watcher, present) = resume(&node, "watcher");
        assert!(present);
        for topic in ["will/plain", "will/delayed"] {
            let message = watcher.recv_message(topic, "gone");
            watcher.acknowledge(&message);
        }
    }
}

#[test]
fn what_was_ended_does_not_come_back() {
    in_each_combination(|node, again| {
        let (mut away, _) = resume(node, "away");
        away.subscribe("a", 1);
        away.subscribe("b", 1);
        away.unsubscribe("a");
        away.disconnect();
        let (mut ended, _) = resume(node, "ended");
        ended.subscribe("a", 1);
        ended.disconnect();
        Raw::connect(node, &Connect::new(5, "ended")).disconnect();
        again(node);
        let (_, present) = resume(node, "ended");
        assert!(!present, "a session that was ended came back");
        let (mut away, present) = resume(node, "away");
        assert!(present);
        let mut publisher = Raw::client(node, 5);
        publisher.publish_qos1("a", "no", 1);
        publisher.publish_qos1("b", "yes", 2);
        away.recv_message("b", "yes");
    });
}

#[test]
fn a_session_ends_in_time_though_the_node_was_down() {
    let mut node = Node::start(&[]);
    let short = Connect::new(5, "short")
        .persistent()
        .properties(Props::new().u32(EXPIRY, 1));
    Raw::connect(&node, &short).disconnect();
    // Only real time passes while no node runs. The stop takes a part of it.
    let expired = Instant::now() + Duration::from_millis(1100);
    node.terminate(Duration::from_secs(15));
    std::thread::sleep(expired.saturating_duration_since(Instant::now()));
    node.start_again();
    let (_, present) = resume(&node, "short");
    assert!(!present);
}
