//! Measures the index: `cargo run --release -p tidegate-rules --example index_speed`.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use rules::index::{IndexQuery, RuleIndex};
use rules::index_keys::{IndexKeys, TopicKey};
use rules::rule_source::{EventKind, RuleSource};

const RULES: usize = 100_000;
const LOOKS: u32 = 2_000_000;

fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok())
        .unwrap_or(0)
}

fn place(index: &mut RuleIndex<Arc<usize>>, shape: &str, n: usize) {
    let mut keys = IndexKeys::default();
    let filter = match shape {
        "topic" => format!("factory/{n}/temperature"),
        "filter" => format!("factory/+/{n}/#"),
        _ => "factory/#".to_owned(),
    };
    match shape {
        "topic =" => {
            keys.topics = Some(Box::new([TopicKey::Exact(
                format!("factory/{n}/data").into(),
            )]))
        }
        "client" => keys.client_ids = Some(Box::new([format!("device-{n}").into()])),
        _ => {}
    }
    let sources = [RuleSource::Topic(filter.into())];
    index.add(&sources, &keys, &Arc::new(n));
}

fn look(index: &RuleIndex<Arc<usize>>, topic: &str, client_id: &str) -> (f64, usize) {
    let query = IndexQuery {
        kind: EventKind::Publish,
        topic: Some(topic),
        client_id: Some(client_id),
        qos: Some(0),
    };
    let mut found = 0;
    let began = Instant::now();
    for _ in 0..LOOKS {
        index.matches(black_box(&query), |rule| {
            found += usize::from(**rule < RULES)
        });
    }
    let ns = began.elapsed().as_secs_f64() * 1e9 / f64::from(LOOKS);
    (ns, found / LOOKS as usize)
}

fn main() {
    for shape in ["topic", "filter", "topic =", "client"] {
        for rules in [1, RULES] {
            let (began, before) = (Instant::now(), resident_kib());
            let mut index = RuleIndex::default();
            for n in 0..rules {
                place(&mut index, shape, n);
            }
            let (built, kib) = (began.elapsed(), resident_kib().saturating_sub(before));
            // A shard holds a copy while a rule is added.
            let held = index.clone();
            let began = Instant::now();
            place(&mut index, shape, RULES + 1);
            let added = began.elapsed();
            let topic = match shape {
                "topic" => "factory/0/temperature",
                "filter" => "factory/x/0/y",
                _ => "factory/0/data",
            };
            let (hit, found) = look(&held, topic, "device-0");
            let (near, _) = look(&held, "factory/none/of/them", "device-x");
            let (miss, _) = look(&held, "elsewhere/0/1", "device-x");
            println!(
                "{shape:8} {rules:6} rules: {hit:5.1} ns for a hit of {found}, {near:5.1} ns for a miss nearby, \
                 {miss:5.1} ns elsewhere; built in {built:?}, one more in {added:?}; {kib} KiB"
            );
        }
    }
}
