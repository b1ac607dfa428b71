//! Messages for peers of link listeners: subscriptions, permissions, commands, interruptions, and sessions.

use link::config::AckPolicy;
use link::error_code::ErrorCode;
use link::priority::Priority;
use link_gateway::exchange::{Publication, SubscriptionAnswer};
use serde_json::{Value, json};

use super::link::{Peer, command, node, succeeded};
use super::{api, get, state};
use crate::support::{Connect, Node, Raw, eventually};

const NOT_AUTHORIZED: u8 = 0x87;

/// The part of [`Peer`] that receives messages.
impl Peer {
    fn request(&self, request: &Value) {
        let message = request.to_string().into();
        self.wait(self.link.send(Priority::High, message)).unwrap();
    }

    fn receive_bytes(&self) -> Vec<u8> {
        let message = self.wait(self.link.receive()).unwrap();
        self.link.acknowledge(message.id);
        message.payload.into_bytes().to_vec()
    }

    /// Requests a change of subscriptions; returns the answer.
    fn change(&self, request: &Value) -> SubscriptionAnswer {
        self.request(request);
        let answer = self.receive_bytes();
        let answer: SubscriptionAnswer = serde_json::from_slice(&answer).unwrap();
        assert_eq!(answer.request, request["request"]);
        answer
    }

    fn subscribe(&self, filter: &str) {
        let answer = self.change(&json!({"request": 1, "subscribe": [{"filter": filter}]}));
        assert_eq!((answer.reason_codes, answer.error), (vec![1], None));
    }

    fn receive_publication(&self) -> (String, Vec<u8>) {
        let message = self.receive_bytes();
        let publication = Publication::decode(&message).unwrap();
        (publication.topic.to_owned(), publication.payload.to_vec())
    }

    fn receive_number(&self) -> u32 {
        let (_, payload) = self.receive_publication();
        u32::from_le_bytes(payload[..].try_into().unwrap())
    }
}

fn command_state(node: &Node, id: u64) -> Value {
    let (status, command) = api(node, "GET", &format!("commands/{id}"), &Value::Null);
    assert_eq!(status, 200, "{command}");
    command
}

#[test]
fn peers_receive_messages_as_permitted() {
    let node = node(&["p1"], "");
    let mut publisher = Raw::client(&node, 5);
    let peer = Peer::new(&node, "token-p1", "");
    let request = json!({"request": 7, "subscribe": [
        {"filter": "up/#", "qos": 1}, {"filter": "down/#"}, {"filter": "news", "qos": 0},
    ]});
    let answer = peer.change(&request);
    assert_eq!(answer.reason_codes, [1, NOT_AUTHORIZED, 0]);
    publisher.publish_qos1("up/a", b"one", 1);
    publisher.publish("news", b"two");
    publisher.publish_qos1("up/large", vec![7; 300_000], 3);
    let received: Vec<_> = (0..3).map(|_| peer.receive_publication()).collect();
    assert_eq!(received[0], ("up/a".to_owned(), b"one".to_vec()));
    assert_eq!(received[1], ("news".to_owned(), b"two".to_vec()));
    assert_eq!(received[2], ("up/large".to_owned(), vec![7; 300_000]));
    let answer = peer.change(&json!({"request": 8, "unsubscribe": ["up/#", "unknown"]}));
    assert_eq!(answer.reason_codes, [0, 17]);
    publisher.publish_qos1("up/b", b"three", 4);
    publisher.publish("news", b"four");
    assert_eq!(peer.receive_publication().1, b"four");
    for (request, expected) in [
        (
            json!({"request": 9, "subscribe": [{"filter": "a", "qos": 2}]}),
            "qos 2: expected 0 or 1",
        ),
        (
            json!({"request": 10, "subscribe": [{"filter": "a/#/b"}]}),
            "not a topic filter",
        ),
        (
            json!({"request": 11, "unsubscribe": []}),
            "expected 1 to 128",
        ),
    ] {
        let answer = peer.change(&request);
        let error = answer.error.unwrap();
        assert!(error.contains(expected), "{error}");
        assert!(answer.reason_codes.is_empty());
    }
    publisher.publish("news", b"the link continues");
    assert_eq!(peer.receive_publication().1, b"the link continues");
}

#[test]
fn commands_are_acknowledged_when_the_device_has_them() {
    let node = node(&["p1"], "");
    let peer = Peer::with_policy(&node, "token-p1", "", AckPolicy::OnConfirmation);
    let call =
        json!({"method": "open", "params": {"angle": 5}, "wait": false, "timeout_ms": 60_000});
    let (_, waiting) = api(&node, "POST", "devices/p1/commands", &call);
    assert_eq!(waiting["state"], "pending", "{waiting}");
    peer.request(&json!({"request": 1, "subscribe": [{"filter": "tg/p1/down/#"}]}));
    let id = waiting["id"].as_u64().unwrap();
    // The answer may come before or after what waits for the device.
    let next_publication = || loop {
        let message = peer.wait(peer.link.receive()).unwrap();
        let content = message.payload.into_bytes();
        if Publication::is_publication(&content) {
            return (message.id, content);
        }
        peer.link.acknowledge(message.id);
    };
    let (first, content) = next_publication();
    let publication = Publication::decode(&content).unwrap();
    assert_eq!(publication.topic, format!("tg/p1/down/command/{id}"));
    let received: Value = serde_json::from_slice(publication.payload).unwrap();
    assert_eq!(received, json!({"method": "open", "params": {"angle": 5}}));
    // A message that is sent later is acknowledged later, so that this one would have been.
    let other = json!({"method": "other", "wait": false, "timeout_ms": 60_000});
    api(&node, "POST", "devices/p1/commands", &other);
    let (second, _) = next_publication();
    assert_eq!(command_state(&node, id)["state"], "sent");
    peer.link.acknowledge(first);
    eventually("the command is acknowledged", || {
        command_state(&node, id)["state"] == "acknowledged"
    });
    peer.link.acknowledge(second);
    peer.publish(
        &format!("tg/p1/up/command/{id}"),
        br#"{"success": true, "data": 17}"#,
    );
    eventually("the command has succeeded", || {
        let command = command_state(&node, id);
        command["state"] == "success" && command["result"] == 17
    });
}

/// Publishes 600 numbers while the connections of the peer break; returns what it receives.
fn numbers_over_interruptions(client_id: &str) -> (Node, Vec<u32>) {
    let node = node(&["p1"], "");
    let proxy = testkit::Proxy::start(node.address("link").parse().unwrap());
    let peer = Peer::with_policy(&node, "token-p1", client_id, AckPolicy::OnConfirmation);
    *peer.address.lock().unwrap() = proxy.address().to_string();
    peer.subscribe("up/#");
    let mut publisher = Raw::client(&node, 5);
    let mut numbers = Vec::new();
    for round in 0..12u32 {
        for number in 0..50u32 {
            let number = round * 50 + number;
            publisher.publish_qos1("up/n", number.to_le_bytes(), (number + 1) as u16);
        }
        // Some are read before the interruption, and acknowledged during it.
        numbers.extend((0..20).map(|_| peer.receive_number()));
        proxy.close_connections();
    }
    publisher.publish_qos1("up/n", u32::MAX.to_le_bytes(), 60_000);
    while numbers.last() != Some(&u32::MAX) {
        numbers.push(peer.receive_number());
    }
    numbers.pop();
    (node, numbers)
}

#[test]
fn a_peer_with_a_client_id_receives_every_message_once_over_interruptions() {
    let (_node, numbers) = numbers_over_interruptions("peer-1");
    assert!(numbers.iter().copied().eq(0..600), "{numbers:?}");
}

#[test]
fn sessions_outlive_their_links() {
    let node = node(&["p1"], "");
    let mut publisher = Raw::client(&node, 5);
    let first = Peer::new(&node, "token-p1", "peer-1");
    first.subscribe("up/#");
    publisher.publish_qos1("up/a", b"one", 1);
    assert_eq!(first.receive_publication().1, b"one");
    eventually("the message is acknowledged", || {
        get(&node, "clients/peer-1")["inflight"] == 0
    });
    drop(first);
    eventually("the device is offline", || state(&node, "p1") == "offline");
    publisher.publish_qos1("up/b", b"two", 2);
    // Another program of the same client.
    let second = Peer::new(&node, "token-p1", "peer-1");
    assert_eq!(
        second.receive_publication(),
        ("up/b".to_owned(), b"two".to_vec())
    );
    publisher.publish_qos1("up/c", b"three", 3);
    assert_eq!(second.receive_publication().1, b"three");
    eventually("the message is acknowledged", || {
        get(&node, "clients/peer-1")["inflight"] == 0
    });
    drop(second);
    eventually("the device is offline", || state(&node, "p1") == "offline");
    // The client may also come back by MQTT.
    let connect = Connect::new(5, "peer-1").username("token-p1").persistent();
    publisher.publish_qos1("up/d", b"four", 4);
    let mut client = Raw::connect(&node, &connect);
    client.recv_message("up/d", b"four");
}

#[test]
fn a_peer_that_shuts_its_link_down_ends_its_session() {
    let node = node(&["p1"], "");
    let sessions = || get(&node, "clients")["data"].as_array().unwrap().len();
    let peer = Peer::new(&node, "token-p1", "peer-1");
    peer.subscribe("up/#");
    assert_eq!(sessions(), 1);
    peer.wait(peer.link.shut_down(ErrorCode::NONE, ""));
    eventually("the session has ended", || sessions() == 0);
}

#[test]
fn links_restore_subscriptions_of_peers_without_a_client_id() {
    let node = node(&["p1"], "");
    let proxy = testkit::Proxy::start(node.address("link").parse().unwrap());
    let peer = Peer::new(&node, "token-p1", "");
    *peer.address.lock().unwrap() = proxy.address().to_string();
    peer.subscribe("up/#");
    for round in 0..3 {
        proxy.close_connections();
        let mut publisher = Raw::client(&node, 5);
        // Messages in the meantime are for nobody: they are repeated until the subscription exists again.
        eventually("the subscription exists", || {
            publisher.publish("up/a", format!("{round}"));
            let received = async {
                let limit = std::time::Duration::from_millis(50);
                tokio::time::timeout(limit, peer.link.receive()).await
            };
            let Ok(message) = peer.wait(received) else {
                return false;
            };
            let content = message.unwrap().payload.into_bytes();
            let publication = Publication::decode(&content).unwrap();
            publication.payload == format!("{round}").as_bytes()
        });
    }
}

#[test]
fn the_command_subscribes() {
    let node = node(&["p1"], "");
    let mut publisher = Raw::client(&node, 5);
    publisher.send_publish(&crate::support::Publish::new("up/kept", "retained").retain());
    let address = node.address("link");
    let subscribe = [
        "subscribe",
        address,
        "up/#",
        "--token",
        "token-p1",
        "-v",
        "-C",
        "1",
    ];
    let output = succeeded(&command(&subscribe));
    assert_eq!(output, "up/kept retained\n");
    let output = command(&["subscribe", address, "down/#", "--token", "token-p1"]);
    assert_eq!(output.status.code(), Some(4));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("\"down/#\""), "{error}");
}
