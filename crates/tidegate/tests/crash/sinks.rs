//! Rows that a rule hands to a sink with a disk queue: whoever has published a message with QoS 1 or 2 and has its acknowledgement
//! finds its row at the end, whenever the node was killed.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::line::{ClientLine, ConnectionLost, LIMIT};
use crate::run_state::PublisherTotals;
use crate::support::{Connect, Node, Publish, Random, external, kind, temporary_directory};

/// Rows stay in the queue for a while before they are written, so that kills find some there.
pub(crate) const CONFIG: &str = r#"
[[connector]]
name = "files"
type = "file"

[[sink]]
name = "rows"
connector = "files"
file = "rows.jsonl"
batch = { max_wait_ms = 40 }
queue = { disk = { sync = "never" } }

[[rule]]
name = "all"
sql = 'SELECT payload FROM "row/#"'
actions = [{ kind = "sink", sink = "rows" }]

[[rule]]
name = "numbers"
sql = 'SELECT topic, payload FROM "crash/#"'
actions = [{ kind = "sink", sink = "rows" }]
"#;

const PUBLISHERS: usize = 3;

#[test]
fn the_row_of_every_acknowledged_message_arrives() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    let kills = crate::kills(12);
    let seed = Random::seed();
    let mut random = Random::new(seed);
    let acknowledged: Mutex<Vec<String>> = Mutex::default();
    let sent = AtomicU32::new(0);
    let mut dir = temporary_directory();
    for round in 0..kills {
        let mut node = Node::spawn(dir, &["--shards", "2"], CONFIG);
        node.wait_until_it_listens().unwrap();
        let is_over = AtomicBool::new(false);
        dir = std::thread::scope(|scope| {
            for publisher in 0..PUBLISHERS {
                let (address, is_over) = (node.address("mqtt").to_owned(), &is_over);
                let (acknowledged, sent) = (&acknowledged, &sent);
                scope.spawn(move || {
                    let name = format!("{round}-{publisher}");
                    // It ends with the node.
                    let _ = publish(&address, &name, is_over, acknowledged, sent);
                });
            }
            std::thread::sleep(Duration::from_millis(10 + random.below(250) as u64));
            let dir = node.kill();
            is_over.store(true, Relaxed);
            dir
        });
    }
    let mut node = Node::spawn(dir, &["--shards", "2"], CONFIG);
    node.wait_until_it_listens().unwrap();
    let acknowledged = acknowledged.into_inner().unwrap();
    assert!(acknowledged.len() > kills, "hardly anything was published");
    let row = |payload: &String| format!("{{\"payload\":\"{payload}\"}}");
    wait_for_rows(&node, acknowledged.iter().map(row).collect(), seed);
    println!(
        "{} of {} messages acknowledged through {kills} kills, seed {seed}",
        acknowledged.len(),
        sent.load(Relaxed)
    );
}

/// Whether the sink gets a row for every message of these publishers, all of which were acknowledged.
pub(crate) fn check(node: &Node, sent: &[PublisherTotals], seed: u64) {
    let rows = sent.iter().flat_map(|sent| {
        let row = |number| format!("{{\"topic\":\"{}\",\"payload\":\"{number}\"}}", sent.topic);
        (0..sent.messages).map(row)
    });
    wait_for_rows(node, rows.collect(), seed);
}

fn wait_for_rows(node: &Node, expected: Vec<String>, seed: u64) {
    let deadline = Instant::now() + LIMIT;
    loop {
        let path = node.data_dir().join("sinks/files/rows.jsonl");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let rows: HashSet<&str> = text.lines().collect();
        let missing = expected.iter().filter(|row| !rows.contains(row.as_str()));
        let missing: Vec<_> = missing.collect();
        if missing.is_empty() {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "seed {seed}: of {} rows {} are missing, such as {}",
            expected.len(),
            missing.len(),
            missing[0]
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Publishes one burst after the other, and notes what was acknowledged.
fn publish(
    address: &str,
    name: &str,
    is_over: &AtomicBool,
    acknowledged: &Mutex<Vec<String>>,
    sent: &AtomicU32,
) -> Result<(), ConnectionLost> {
    let (mut line, _) = ClientLine::open(address, &Connect::new(4, name))?;
    let mut number = 0;
    while !is_over.load(Relaxed) {
        let payloads: Vec<String> = (1..=7).map(|n| format!("{name}-{}", number + n)).collect();
        number += 7;
        let mut burst = Vec::new();
        for (n, payload) in payloads.iter().enumerate() {
            let publish = Publish::new(format!("row/{name}"), payload).qos(1, n as u16 + 1);
            burst.extend(publish.bytes(4));
        }
        sent.fetch_add(7, Relaxed);
        line.send(&burst)?;
        for _ in &payloads {
            let puback = line.wait_for(kind::PUBACK)?;
            let payload = payloads[usize::from(puback.id()) - 1].clone();
            acknowledged.lock().unwrap().push(payload);
        }
    }
    Ok(())
}
