//! What this broker does beyond the MQTT specifications, and what they leave to it: strategies of shared subscriptions,
//! `$queue`, `$delayed`, `$exclusive`, `$SYS_PREFIX`, limits and policies, expiry of all kinds.

mod delayed;
mod exclusive;
mod expiry;
mod limits;
mod problem_information;
mod queue_group;
mod queue_policies;
mod shared;
mod shared_handover;
mod sys;
mod wills;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::mqtt5::{connect, expect_silence, expect_waited, option, property, reason, session};
use crate::support::{
    DEADLINE, Node, Packet, Props, Publish, Raw, Subscribe, Unsubscribe, Value, Will, ack,
    eventually, external, kind, unique,
};

/// A node with two shards and these settings, shared by the tests that ask for the same; none against another broker,
/// which knows nothing of these extensions.
fn node_with(settings: &[&str]) -> Option<&'static Node> {
    if external().is_some() {
        testkit::report_skipped("needs a node of its own");
        return None;
    }
    let mut arguments = vec!["--shards", "2"];
    arguments.extend(settings.iter().flat_map(|set| ["--set", set]));
    Some(Node::shared_with(&arguments))
}

/// A clean session of version 5.
fn client(node: &Node) -> Raw {
    Raw::client(node, 5)
}

/// Publishes at this QoS and returns the code of the first answer (0 at QoS 0, where there is none).
fn publish_for_code(raw: &mut Raw, publish: &Publish) -> u8 {
    raw.send_publish(publish);
    match publish.qos {
        0 => 0,
        1 => raw.recv(kind::PUBACK).reason,
        _ => {
            let code = raw.recv(kind::PUBREC).reason;
            if code < 0x80 {
                raw.send(&ack(kind::PUBREL, publish.packet_id));
                raw.recv(kind::PUBCOMP);
            }
            code
        }
    }
}

/// Publishes these payloads at QoS 1, one after the other.
fn publish_all<T: ToString>(raw: &mut Raw, topic: &str, payloads: impl IntoIterator<Item = T>) {
    for payload in payloads {
        raw.publish_qos1(topic, payload.to_string(), 1);
    }
}

/// The numbers in the payloads of all messages that come before a PINGRESP; each is acknowledged.
fn drain(raw: &mut Raw) -> Vec<u32> {
    raw.send(&[0xc0, 0x00]);
    let mut numbers = Vec::new();
    loop {
        let packet = raw.recv_packet();
        match packet.kind {
            kind::PINGRESP => return numbers,
            kind::PUBREL => raw.send(&ack(kind::PUBCOMP, packet.id())),
            _ => {
                numbers.push(packet.text().parse().expect("the payload is a number"));
                match packet.qos() {
                    0 => {}
                    1 => raw.send(&ack(kind::PUBACK, packet.id())),
                    _ => raw.send(&ack(kind::PUBREC, packet.id())),
                }
            }
        }
    }
}

/// Drains all of them again and again until they have `total` messages; what each of them got.
fn collect(members: &mut [Raw], total: usize) -> Vec<Vec<u32>> {
    let mut received = vec![Vec::new(); members.len()];
    let mut count = 0;
    eventually("every message at one member", || {
        for (member, received) in members.iter_mut().zip(&mut received) {
            let numbers = drain(member);
            count += numbers.len();
            received.extend(numbers);
        }
        count >= total
    });
    received
}

/// Waits until this session has so many messages queued and so many dropped: messages of another client take their time
/// from shard to shard.
fn expect_queue(node: &Node, client_id: &str, queued: u64, dropped: u64) {
    eventually("the messages are at the session", || {
        let session = api(node, &format!("/api/v1/sessions/{client_id}"));
        let count = |field: &str| session[field].as_u64().expect("a session counts");
        (count("queued_messages"), count("messages_dropped")) == (queued, dropped)
    });
}

/// The body of an answer of the HTTP API.
fn api(node: &Node, path: &str) -> serde_json::Value {
    let mut stream = TcpStream::connect(node.address("http")).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.starts_with("HTTP/1.1 200 "), "{path}: {answer}");
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{path}: {error}: {answer}"))
}

/// A clean session and the shard it lives on.
fn client_on_a_shard(node: &Node) -> (Raw, u64) {
    let id = unique("c");
    let raw = Raw::connect(node, &connect(&id));
    let shard = api(node, &format!("/api/v1/clients/{id}"))["shard"]
        .as_u64()
        .expect("a client has a shard");
    (raw, shard)
}

/// As many clean sessions on each of the two shards.
fn clients_on_both_shards(node: &Node, each: usize) -> [Vec<Raw>; 2] {
    let mut found = [Vec::new(), Vec::new()];
    // The kernel spreads connections over the shards.
    for _ in 0..1000 {
        if found.iter().all(|clients| clients.len() >= each) {
            return found;
        }
        let (raw, shard) = client_on_a_shard(node);
        let clients = &mut found[usize::try_from(shard).unwrap()];
        if clients.len() < each {
            clients.push(raw);
        }
    }
    panic!("all connections end on the same shard");
}
