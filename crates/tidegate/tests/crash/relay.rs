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
/// What the messages contain that are counted.
const MESSAGE: &str = "hello";
/// Messages per second, about.
const PAUSE: Duration = Duration::from_millis(1);
/// Statistics are stored every five seconds; the rest is for a busy machine.
const STATISTICS_STORED_AFTER: Duration = Duration::from_secs(8);

/// A connection whose node may be killed at any time: then everything returns `None`.
struct KillableConnection {
    writer: TcpStream,
    reader: WsStream,
}

impl KillableConnection {
    fn open(node: &Node) -> KillableConnection {
        let (socket, head) = upgrade(node.address("ws"), &format!("/ws/{ROOM}"), None);
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        KillableConnection {
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
struct AnsweredRequests {
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
    let mut answered = AnsweredRequests::default();
    let sent = AtomicU64::new(0);
    let mut opened = OpenedConnections::default();
    // What the node has counted and stored before.
    let mut counted = CountedTraffic::default();
    for round in 0..kills {
        let mut node = Node::spawn(dir, &["--shards", "2"], crate::CONFIG);
        node.wait_until_it_listens().unwrap();
        if round == 0 {
            let endpoint = json!({"mode": "direct", "allowed_origins": ["https://a.example"]});
            let (status, answer) = ask(&node, "PUT", "endpoints/room", &endpoint);
            assert_eq!(status, 201, "{answer}");
        }
        counted = check_statistics(&node, counted, &sent, opened, seed);
        check_answered(&node, &answered, seed);
        let mut device = KillableConnection::open(&node);
        let id = device.identify(DEVICE).expect("the node runs");
        let (newcomers, talker) = (
            KillableConnection::open(&node),
            KillableConnection::open(&node),
        );
        opened.admitted += 3;
        let page = "tidegate-relay\r\nOrigin: https://b.example";
        let (_, head) = upgrade(node.address("ws"), &format!("/ws/{ROOM}"), Some(page));
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        opened.rejected += 1;
        // The last round is so long that what was counted at its beginning is stored.
        let is_last = round + 1 == kills;
        let (address, is_over) = (node.address("http").to_owned(), AtomicBool::new(false));
        let is_over = &is_over;
        dir = std::thread::scope(|scope| {
            // They end with the node.
            let AnsweredRequests { devices, commands } = &mut answered;
            scope.spawn(move || identify_devices(newcomers, round, is_over, devices));
            scope.spawn(move || acknowledge_commands(device));
            scope.spawn(move || send_commands(&address, &id, is_over, commands));
            scope.spawn(|| send_messages(talker, is_over, &sent));
            std::thread::sleep(Duration::from_millis(50 + random.below(400) as u64));
            if is_last {
                counted = CountedTraffic::by(&node);
                std::thread::sleep(STATISTICS_STORED_AFTER);
            }
            let dir = node.kill();
            is_over.store(true, Relaxed);
            dir
        });
    }
    let mut node = Node::spawn(dir, &["--shards", "2"], crate::CONFIG);
    node.wait_until_it_listens().unwrap();
    assert!(counted.messages > 0 && counted.admitted >= 3 && counted.rejected >= 1);
    check_statistics(&node, counted, &sent, opened, seed);
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
    mut line: KillableConnection,
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

fn acknowledge_commands(mut line: KillableConnection) -> Option<()> {
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
fn send_messages(
    mut line: KillableConnection,
    is_over: &AtomicBool,
    sent: &AtomicU64,
) -> Option<()> {
    while !is_over.load(Relaxed) {
        // CountedTraffic before, because the node may read it and be killed at once.
        sent.fetch_add(1, Relaxed);
        line.send(MESSAGE)?;
        std::thread::sleep(PAUSE);
    }
    Some(())
}

fn check_answered(node: &Node, answered: &AnsweredRequests, seed: u64) {
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

/// Connections that clients have opened, whether the node has counted them or not.
#[derive(Clone, Copy, Default)]
struct OpenedConnections {
    admitted: u64,
    rejected: u64,
}

/// Totals of the endpoint.
#[derive(Clone, Copy, Debug, Default)]
struct CountedTraffic {
    messages: u64,
    bytes: u64,
    admitted: u64,
    rejected: u64,
}

impl CountedTraffic {
    fn by(node: &Node) -> Self {
        let status = get(node, &format!("endpoints/{ROOM}/status"));
        let number = |field: &str| status[field].as_u64().unwrap();
        Self {
            messages: number("total_messages"),
            bytes: number("total_bytes"),
            admitted: number("total_connections"),
            rejected: number("rejected_connections"),
        }
    }
}

/// Statistics never exceed what happened, and never fall behind what was stored. Returns them.
fn check_statistics(
    node: &Node,
    at_least: CountedTraffic,
    sent: &AtomicU64,
    opened: OpenedConnections,
    seed: u64,
) -> CountedTraffic {
    let now = CountedTraffic::by(node);
    let sent = sent.load(Relaxed);
    let message_bytes = MESSAGE.len() as u64;
    for (what, found, least, most) in [
        ("messages", now.messages, at_least.messages, sent),
        ("bytes", now.bytes, at_least.bytes, sent * message_bytes),
        (
            "connections",
            now.admitted,
            at_least.admitted,
            opened.admitted,
        ),
        (
            "refused connections",
            now.rejected,
            at_least.rejected,
            opened.rejected,
        ),
    ] {
        assert!(
            (least..=most).contains(&found),
            "seed {seed}: {what}: {found}, and not {least} to {most}"
        );
    }
    // Written together; one message may have been counted, and its bytes not yet.
    assert!(
        now.bytes + message_bytes >= now.messages * message_bytes,
        "seed {seed}: {now:?}"
    );
    let status = get(node, &format!("endpoints/{ROOM}/status"));
    assert_eq!(status["current_connections"], 0, "seed {seed}: {status}");
    assert_eq!(status["dropped_messages"], 0, "seed {seed}: {status}");
    now
}
