//! Devices at a relay endpoint: devices whose identification was answered, commands whose end was answered, and statistics
//! survive kills.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use serde_json::{Value, json};

use crate::devices::{ask, get, try_ask};
use crate::support::{
    Node, Random, WsStream, external, masked_frame, temporary_directory, upgrade,
};

const ROOM: &str = "room";
const DEVICE: &str = "pump";
const TEXT: u8 = 0x81;
/// Messages per second, about.
const PAUSE: Duration = Duration::from_millis(1);
/// Statistics are stored every five seconds; the rest is for a busy machine.
const STATISTICS_STORED_AFTER: Duration = Duration::from_secs(8);

/// A connection whose node may be killed at any time: then everything returns `None`.
struct Line {
    writer: TcpStream,
    reader: WsStream,
}

impl Line {
    fn open(node: &Node) -> Line {
        let (socket, head) = upgrade(node.address("ws"), &format!("/ws/{ROOM}"), None);
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        Line {
            writer: socket.try_clone().unwrap(),
            reader: WsStream::over(socket),
        }
    }

    fn send(&mut self, message: &str) -> Option<()> {
        let frame = masked_frame(TEXT, message.as_bytes());
        self.writer.write_all(&frame).ok()
    }

    /// The next message with this type.
    fn receive(&mut self, kind: &str) -> Option<Value> {
        loop {
            let (first_byte, payload) = self.reader.recv_frame().ok()??;
            if first_byte == TEXT {
                let message: Value = serde_json::from_slice(&payload).unwrap_or_default();
                if message["type"] == kind {
                    return Some(message);
                }
            }
        }
    }

    fn identify(&mut self, device: &str) -> Option<String> {
        let identify = json!({"type": "identify", "deviceId": device});
        self.send(&identify.to_string())?;
        let identified = self.receive("identified")?;
        Some(identified["dbDeviceId"].as_str()?.to_owned())
    }
}

#[derive(Default)]
struct Answered {
    devices: BTreeSet<String>,
    /// Numbers of commands that have ended.
    commands: BTreeSet<u64>,
}

#[test]
fn devices_commands_and_statistics_of_an_endpoint_survive_kills() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    let kills = crate::kills(10);
    let seed = Random::seed();
    let mut random = Random::new(seed);
    let mut dir = temporary_directory();
    let mut answered = Answered::default();
    let sent = AtomicU64::new(0);
    // What the node has counted before.
    let (mut counted, mut connections) = (0, 0);
    for round in 0..kills {
        let mut node = Node::spawn(dir, &["--shards", "2"], crate::CONFIG);
        node.wait_until_it_listens().unwrap();
        if round == 0 {
            let (status, answer) = ask(&node, "PUT", "endpoints/room", &json!({"mode": "direct"}));
            assert_eq!(status, 201, "{answer}");
        }
        counted = check_statistics(&node, counted, &sent, connections, seed);
        check_answered(&node, &answered, seed);
        let mut device = Line::open(&node);
        let id = device.identify(DEVICE).expect("the node runs");
        let (newcomers, talker) = (Line::open(&node), Line::open(&node));
        connections += 3;
        // The last round is so long that what was counted at its beginning is stored.
        let is_last = round + 1 == kills;
        let (address, is_over) = (node.address("http").to_owned(), AtomicBool::new(false));
        let is_over = &is_over;
        dir = std::thread::scope(|scope| {
            // They end with the node.
            let Answered { devices, commands } = &mut answered;
            scope.spawn(move || identify_devices(newcomers, round, is_over, devices));
            scope.spawn(move || acknowledge_commands(device));
            scope.spawn(move || send_commands(&address, &id, is_over, commands));
            scope.spawn(|| send_messages(talker, is_over, &sent));
            std::thread::sleep(Duration::from_millis(50 + random.below(400) as u64));
            if is_last {
                counted = count_messages(&node);
                std::thread::sleep(STATISTICS_STORED_AFTER);
            }
            let dir = node.kill();
            is_over.store(true, Relaxed);
            dir
        });
    }
    let mut node = Node::spawn(dir, &["--shards", "2"], crate::CONFIG);
    node.wait_until_it_listens().unwrap();
    check_statistics(&node, counted, &sent, connections, seed);
    check_answered(&node, &answered, seed);
    let (devices, commands) = (answered.devices.len(), answered.commands.len());
    assert!(
        devices > kills && commands > kills,
        "hardly anything was answered: {devices} devices, {commands} commands"
    );
    println!("{devices} devices and {commands} commands through {kills} kills, seed {seed}");
}

/// Becomes one new device after the other.
fn identify_devices(
    mut line: Line,
    round: usize,
    is_over: &AtomicBool,
    devices: &mut BTreeSet<String>,
) -> Option<()> {
    for number in 0.. {
        if is_over.load(Relaxed) {
            break;
        }
        devices.insert(line.identify(&format!("d{round}-{number}"))?);
        std::thread::sleep(PAUSE);
    }
    Some(())
}

fn acknowledge_commands(mut line: Line) -> Option<()> {
    loop {
        let control = line.receive("control")?;
        let ack = json!({
            "type": "control_ack", "status": "success", "commandId": control["commandId"],
        });
        line.send(&ack.to_string())?;
    }
}

/// Sends commands that are answered when they have ended.
fn send_commands(address: &str, device: &str, is_over: &AtomicBool, commands: &mut BTreeSet<u64>) {
    let body = json!({"method": "m", "timeout_ms": 20_000});
    while !is_over.load(Relaxed) {
        let path = format!("devices/{device}/commands");
        if let Some((200, command)) = try_ask(address, "POST", &path, &body)
            && command["state"] == "success"
        {
            commands.extend(command["id"].as_u64());
        }
    }
}

/// Counts what it sends.
fn send_messages(mut line: Line, is_over: &AtomicBool, sent: &AtomicU64) -> Option<()> {
    while !is_over.load(Relaxed) {
        // Counted before, because the node may read it and be killed at once.
        sent.fetch_add(1, Relaxed);
        line.send("hello")?;
        std::thread::sleep(PAUSE);
    }
    Some(())
}

fn check_answered(node: &Node, answered: &Answered, seed: u64) {
    for id in &answered.devices {
        let (status, device) = ask(node, "GET", &format!("devices/{id}"), &Value::Null);
        assert_eq!(status, 200, "seed {seed}: {id} was identified: {device}");
        assert_eq!(device["product"], format!("relay-{ROOM}"), "{device}");
    }
    for id in &answered.commands {
        let command = get(node, &format!("commands/{id}"));
        assert_eq!(command["state"], "success", "seed {seed}: {command}");
    }
}

fn count_messages(node: &Node) -> u64 {
    let status = get(node, &format!("endpoints/{ROOM}/status"));
    status["total_messages"].as_u64().unwrap()
}

/// Statistics never exceed what happened, and never fall behind what was stored. Returns the number of messages.
fn check_statistics(
    node: &Node,
    at_least: u64,
    sent: &AtomicU64,
    connections: u64,
    seed: u64,
) -> u64 {
    let status = get(node, &format!("endpoints/{ROOM}/status"));
    let number = |field: &str| status[field].as_u64().unwrap();
    let (messages, sent) = (number("total_messages"), sent.load(Relaxed));
    assert!(
        (at_least..=sent).contains(&messages),
        "seed {seed}: {at_least} messages were stored and {sent} sent: {status}"
    );
    assert!(number("total_connections") <= connections, "{status}");
    assert_eq!(number("current_connections"), 0, "seed {seed}: {status}");
    messages
}
