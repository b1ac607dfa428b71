//! What the node derives from acknowledged messages of devices: messages that rule chains publish, and results of
//! commands. For each acknowledged message, both are there at the end, at least once.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::Sender;
use std::time::Duration;

use serde_json::json;

use crate::devices::{MODES, ask, get, try_ask};
use crate::line::{ClientLine, ConnectionLost, LIMIT, lasting};
use crate::support::{Connect, Node, Publish, Subscribe, ack, kind};

const PAUSE: Duration = Duration::from_millis(2);
/// Messages sent at once.
const BURST: u64 = 16;
/// Commands that are replied to at once.
const REPLIES: usize = 10;
/// Commands that wait for a reply, at most.
const MAX_OPEN: usize = 64;
const LISTENER: &str = "relay-listener";

/// Of one mode.
#[derive(Default)]
pub(crate) struct DerivedResults {
    /// Numbers whose reports were acknowledged.
    reports: HashSet<u64>,
    next_report: u64,
    /// Commands whose replies were acknowledged.
    replies: HashSet<u64>,
}

/// Creates a device for each mode whose product publishes its rows, and a session that receives them.
pub(crate) fn register(node: &Node) {
    let chain = json!({
        "id": "relay",
        "first": "save",
        "nodes": [
            {"id": "save", "type": "save_telemetry"},
            {"id": "tell", "type": "republish", "topic": "relayed/${deviceId}", "payload": "${n}", "qos": 1},
        ],
        "relations": [{"from": "save", "to": "tell"}],
    });
    let (status, answer) = ask(node, "POST", "rule-chains", &chain);
    assert_eq!(status, 201, "{answer}");
    for mode in MODES {
        let id = format!("relay-{mode}");
        let product = json!({"id": id, "mode": mode, "rule_chain": "relay"});
        let credentials = json!([{"type": "token", "token": format!("token-{id}")}]);
        let device = json!({"id": id, "product": id, "credentials": credentials});
        for (path, body) in [("products", product), ("devices", device)] {
            let (status, answer) = ask(node, "POST", path, &body);
            assert_eq!(status, 201, "{answer}");
        }
    }
    let (mut line, _) = ClientLine::open(node.address("mqtt"), &lasting(4, LISTENER)).unwrap();
    let subscribe = Subscribe::new(1).filter("relayed/#", 1);
    line.send(&subscribe.bytes(4)).unwrap();
    line.wait_for(kind::SUBACK).unwrap();
}

/// Reports numbers and replies to commands, several at once, until the node is killed. Tells `acknowledged` when replies
/// were acknowledged: just then, the node may still be busy with them.
pub(crate) fn speak(
    address: &str,
    mode: &str,
    is_over: &AtomicBool,
    derived: &mut DerivedResults,
    acknowledged: &Sender<()>,
) -> Result<(), ConnectionLost> {
    let connect =
        Connect::new(4, format!("client-relay-{mode}")).username(format!("token-relay-{mode}"));
    let (mut line, _) = ClientLine::open(address, &connect)?;
    let subscribe = Subscribe::new(1).filter("v1/devices/me/rpc/request/+", 0);
    line.send(&subscribe.bytes(4))?;
    let mut commands: Vec<u64> = Vec::new();
    while !is_over.load(Relaxed) {
        let first = derived.next_report;
        derived.next_report += BURST;
        let mut burst = Vec::new();
        // The numbers of reports and commands by packet identifier - 1.
        let mut sent = Vec::new();
        for number in first..derived.next_report {
            let row = json!({"n": number}).to_string();
            let id = sent.len() as u16 + 1;
            burst.extend(
                Publish::new("v1/devices/me/telemetry", row)
                    .qos(1, id)
                    .bytes(4),
            );
            sent.push((false, number));
        }
        let replied = match commands.len() {
            REPLIES.. => commands.len(),
            _ => 0,
        };
        for command in commands.drain(..replied) {
            let topic = format!("v1/devices/me/rpc/response/{command}");
            let id = sent.len() as u16 + 1;
            burst.extend(
                Publish::new(topic, format!("{{\"reply\":{command}}}"))
                    .qos(1, id)
                    .bytes(4),
            );
            sent.push((true, command));
        }
        line.send(&burst)?;
        let mut missing = sent.len();
        while missing > 0 {
            let Some(packet) = line.poll(LIMIT)? else {
                panic!("{mode}: {missing} acknowledgements are missing");
            };
            match packet.kind {
                kind::SUBACK => {}
                kind::PUBLISH => {
                    let (_, id) = packet.topic.rsplit_once('/').unwrap();
                    commands.push(id.parse().unwrap());
                }
                kind::PUBACK => {
                    missing -= 1;
                    let (is_reply, number) = sent[usize::from(packet.id()) - 1];
                    match is_reply {
                        true => derived.replies.insert(number),
                        false => derived.reports.insert(number),
                    };
                }
                _ => panic!("{packet:?}"),
            }
        }
        if replied > 0 {
            // The round may be over.
            let _ = acknowledged.send(());
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// Sends commands, as many at a time as the device may have, until the node is killed.
pub(crate) fn command(address: &str, mode: &str, is_over: &AtomicBool) {
    let path = format!("devices/relay-{mode}/commands");
    let call = json!({"method": "m", "timeout_ms": 600_000, "wait": false});
    while !is_over.load(Relaxed) {
        let open = format!("{path}?state=pending,sent&limit={MAX_OPEN}");
        let Some((200, open)) = try_ask(address, "GET", &open, &json!(null)) else {
            continue;
        };
        for _ in open["data"].as_array().unwrap().len()..MAX_OPEN {
            let Some((202, _)) = try_ask(address, "POST", &path, &call) else {
                break;
            };
        }
        std::thread::sleep(PAUSE);
    }
}

pub(crate) fn check(node: &Node, derived: &[DerivedResults; MODES.len()], seed: u64) {
    let mut missing: HashSet<(&str, u64)> = HashSet::new();
    let reports = derived.iter().map(|derived| derived.reports.len());
    let replies = derived.iter().map(|derived| derived.replies.len());
    let is_enough = reports.min() > Some(100) && replies.sum::<usize>() >= REPLIES;
    assert!(is_enough, "hardly anything was sent");
    for (mode, derived) in MODES.iter().zip(derived) {
        missing.extend(derived.reports.iter().map(|number| (*mode, *number)));
    }
    let (mut line, session_present) =
        ClientLine::open(node.address("mqtt"), &lasting(4, LISTENER)).unwrap();
    assert!(session_present, "seed {seed}: the session is lost");
    while !missing.is_empty()
        && let Some(packet) = line.poll(LIMIT).unwrap()
    {
        let number = packet.text().parse().unwrap();
        let is_of = |mode: &&&str| packet.topic.ends_with(*mode);
        missing.remove(&(*MODES.iter().find(is_of).unwrap(), number));
        line.send(&ack(kind::PUBACK, packet.id())).unwrap();
    }
    let mut lost = Vec::new();
    for (mode, derived) in MODES.iter().zip(derived) {
        let count = missing.iter().filter(|(of, _)| of == mode).count();
        let replies = derived.replies.iter();
        let without_result = replies.filter(|id| {
            let command = get(node, &format!("commands/{id}"));
            command["state"] != "success" || command["result"] != json!({"reply": id})
        });
        let (reports, replies) = (derived.reports.len(), derived.replies.len());
        let without_result = without_result.count();
        println!(
            "{mode}: {reports} reports and {replies} replies acknowledged; {count} messages and {without_result} results missing"
        );
        lost.push((*mode, count, without_result));
    }
    assert!(
        lost.iter().all(|lost| (lost.1, lost.2) == (0, 0)),
        "seed {seed}: messages of chains and results of commands are lost: {lost:?}"
    );
}
