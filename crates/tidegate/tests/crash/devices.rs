//! Telemetry, attributes and alarms of devices, and what is derived from their messages: whatever a device has an
//! acknowledgement for is there at the end, whenever the node was killed.

use std::collections::HashSet;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::derived::{self, DerivedResults};
use crate::line::{ClientLine, ConnectionLost};
use crate::support::{Connect, Node, Publish, Random, external, kind, temporary_directory};

/// One product for each way in which messages are worked off.
pub(crate) const MODES: [&str; 2] = ["sync", "actor"];
const PAUSE: Duration = Duration::from_millis(2);
const MOST_OF_A_ROUND: Duration = Duration::from_secs(3);

/// What a device has sent, and what of it was acknowledged. The alarm is raised by every other number and cleared by the next.
#[derive(Default)]
struct DeviceReports {
    number: u64,
    acknowledged: u64,
}

#[test]
fn acknowledged_device_messages_survive_kills() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    let kills = crate::kills(12);
    let seed = Random::seed();
    let mut random = Random::new(seed);
    let mut dir = temporary_directory();
    // The time of the first row: recent, since old rows are not kept.
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let first_ms = since_epoch.unwrap().as_millis() as u64 - 3_600_000;
    let mut reported: [DeviceReports; MODES.len()] = Default::default();
    let mut derived: [DerivedResults; MODES.len()] = Default::default();
    for round in 0..kills {
        let mut node = Node::spawn(dir, &["--shards", "2"], crate::CONFIG);
        node.wait_until_it_listens().unwrap();
        if round == 0 {
            MODES.iter().for_each(|mode| register(&node, mode));
            derived::register(&node);
        }
        let is_over = AtomicBool::new(false);
        let (acknowledged, is_acknowledged) = mpsc::channel();
        dir = std::thread::scope(|scope| {
            let modes = MODES.iter().zip(&mut reported).zip(&mut derived);
            for ((mode, reported), derived) in modes {
                let (mqtt, http) = (node.address("mqtt"), node.address("http"));
                let (mqtt, http) = (mqtt.to_owned(), http.to_owned());
                let (address, is_over) = (mqtt.clone(), &is_over);
                // They end with the node.
                scope.spawn(move || drop(report(&address, mode, first_ms, is_over, reported)));
                let sender = acknowledged.clone();
                scope.spawn(move || drop(derived::speak(&mqtt, mode, is_over, derived, &sender)));
                scope.spawn(move || derived::command(&http, mode, is_over));
            }
            let at_random = Duration::from_millis(50 + random.below(250) as u64);
            match round % 2 {
                0 => std::thread::sleep(at_random),
                // As soon as replies are acknowledged, or never.
                _ => drop(is_acknowledged.recv_timeout(MOST_OF_A_ROUND)),
            }
            let dir = node.kill();
            is_over.store(true, Relaxed);
            dir
        });
    }
    let mut node = Node::spawn(dir, &["--shards", "2"], crate::CONFIG);
    node.wait_until_it_listens().unwrap();
    for (mode, reported) in MODES.iter().zip(&reported) {
        assert!(
            reported.acknowledged > kills as u64,
            "hardly anything was published"
        );
        check(&node, mode, first_ms, reported, seed);
    }
    derived::check(&node, &derived, seed);
    let counts = reported.map(|reported| reported.acknowledged);
    println!("{counts:?} messages acknowledged through {kills} kills, seed {seed}");
}

fn register(node: &Node, mode: &str) {
    let alarm = json!([{
        "id": "odd",
        "raise": [{"severity": "MAJOR", "when": {"key": "odd", "is": "=", "value": 1}}],
        "clear": {"when": {"key": "odd", "is": "=", "value": 0}},
    }]);
    let product = json!({"id": mode, "mode": mode, "alarms": alarm});
    let credentials = json!([{"type": "token", "token": format!("token-{mode}")}]);
    let device = json!({"id": mode, "product": mode, "credentials": credentials});
    for (path, body) in [("products", product), ("devices", device)] {
        let (status, answer) = ask(node, "POST", path, &body);
        assert_eq!(status, 201, "{answer}");
    }
}

/// Reports one number after the other, as telemetry and as an attribute; what was not acknowledged is reported again.
fn report(
    address: &str,
    mode: &str,
    first_ms: u64,
    is_over: &AtomicBool,
    reported: &mut DeviceReports,
) -> Result<(), ConnectionLost> {
    let connect = Connect::new(4, format!("client-{mode}")).username(format!("token-{mode}"));
    let (mut line, _) = ClientLine::open(address, &connect)?;
    while !is_over.load(Relaxed) {
        let number = reported.acknowledged + 1;
        reported.number = number;
        let row = json!({"ts": first_ms + number, "values": {"n": number, "odd": number % 2}});
        let attribute = json!({"n": number});
        let telemetry = Publish::new("v1/devices/me/telemetry", row.to_string()).qos(1, 1);
        let attribute = Publish::new("v1/devices/me/attributes", attribute.to_string()).qos(1, 2);
        line.send(&[telemetry.bytes(4), attribute.bytes(4)].concat())?;
        for _ in 0..2 {
            line.wait_for(kind::PUBACK)?;
        }
        reported.acknowledged = number;
        // So that there are not more alarms than a page has.
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

fn check(node: &Node, mode: &str, first_ms: u64, reported: &DeviceReports, seed: u64) {
    let context = format!(
        "seed {seed}, {mode}: {} sent, {} acknowledged",
        reported.number, reported.acknowledged
    );
    let to_ms = first_ms + reported.number + 1;
    let path =
        format!("devices/{mode}/telemetry?keys=n&from_ms={first_ms}&to_ms={to_ms}&rows=100000");
    let rows = get(node, &path);
    let numbers = rows["rows"].as_array().unwrap().iter();
    let numbers: HashSet<u64> = numbers
        .map(|row| row["values"]["n"].as_u64().unwrap())
        .collect();
    let missing = (1..=reported.acknowledged).filter(|number| !numbers.contains(number));
    assert_eq!(missing.collect::<Vec<_>>(), [0; 0], "{context}: rows");
    let attributes = get(node, &format!("devices/{mode}/attributes/client"));
    let newest = attributes["data"]
        .as_array()
        .and_then(|rows| rows.iter().find(|row| row["key"] == "n"))
        .and_then(|row| row["value"].as_u64());
    assert!(
        newest >= Some(reported.acknowledged) && newest <= Some(reported.number),
        "{context}: the attribute is {newest:?}, {attributes}"
    );
    let mut alarms = 0;
    let mut after = String::new();
    loop {
        let page = get(node, &format!("alarms?device={mode}&limit=1000{after}"));
        alarms += page["data"].as_array().unwrap().len() as u64;
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    // Every odd number has raised one. A mailbox that was processed and not yet cleared is processed again.
    let raised = |number: u64| number.div_ceil(2);
    assert!(
        alarms >= raised(reported.acknowledged)
            && (alarms <= raised(reported.number) || mode == "actor"),
        "{context}: {alarms} alarms"
    );
}

pub(crate) fn get(node: &Node, path: &str) -> Value {
    let (status, answer) = ask(node, "GET", path, &Value::Null);
    assert_eq!(status, 200, "{path}: {answer}");
    answer
}

pub(crate) fn ask(node: &Node, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let answer = try_ask(node.address("http"), method, path, body);
    answer.unwrap_or_else(|| panic!("{method} {path}: no answer"))
}

/// `None`: the node was killed.
pub(crate) fn try_ask(
    address: &str,
    method: &str,
    path: &str,
    body: &Value,
) -> Option<(u16, Value)> {
    let mut stream = TcpStream::connect(address).ok()?;
    let body = match body {
        Value::Null => String::new(),
        body => body.to_string(),
    };
    write!(
        stream,
        "{method} /api/v1/{path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
    .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, serde_json::from_str(body).unwrap_or(Value::Null)))
}
