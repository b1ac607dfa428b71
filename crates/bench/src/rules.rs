//! `tidegate bench rules`: what rules cost, measured in this process through the same door by which the broker shows them its
//! messages, on one thread.

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use broker::hooks::{Hooks, MessageView, Origin, Verdict};
use engine::{Engine, Settings};
use serde_json::{Value, json};

use crate::host::thread_cpu_ns;

/// Looked at between two looks at the clock.
const ROUND: u32 = 1000;
/// Turns of a measurement, of which the best counts.
const TURNS: u64 = 10;
const MANY: usize = 100_000;
const BUSY: usize = 2_000;
const UNWANTED: usize = 500;
/// Rules added one by one to very many.
const ADDED: usize = 50;

const TOPIC: &str = "sensor/temperature";
const DATA_TOPIC: &str = "sensor/17/data";
const PAYLOAD: &[u8] = br#"{"value": 31.5, "unit": "C", "at": 1690599987, "ok": true}"#;

/// The statements of the report that FluxMQ publishes about its rule engine.
const SIMPLE: &str = r#"SELECT * FROM "$EVENT.PUBLISH" WHERE topic = 'sensor/temperature'"#;
const COMPLEX: &str = r#"SELECT uuid() as id, json(payload) as data, datetime(timestamp) as time, md5(clientId) as hash
    FROM "$EVENT.PUBLISH" WHERE topic =~ 'sensor/+/data' AND payload.value > 30"#;
const STRINGS: &str = r#"SELECT split(topic, '/') as parts, substring(clientId, 0, 8) as prefix, find(payload, 'error') as error_info
    FROM "$EVENT.PUBLISH""#;
const TIMES: &str = r#"SELECT date(timestamp) as date_str, datetime(timestamp) as datetime_str,
    datetimeToTimestamp("2023-07-29 10:30:15") as ts FROM "$EVENT.PUBLISH""#;
const HASHES: &str = r#"SELECT md5(payload) as payload_hash, sha256(clientId) as client_hash, uuid() as message_id
    FROM "$EVENT.PUBLISH""#;

/// Arguments of `tidegate bench rules`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct RulesArgs {
    /// How long each thing is measured
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS")]
    seconds: f64,
    /// Measure only the evaluations whose name begins so, such as `simple`
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// One line of the result.
struct Line {
    what: String,
    value: f64,
    unit: &'static str,
}

pub(crate) fn run(arguments: &RulesArgs) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(
        arguments.seconds.is_finite() && (0.01..=3600.0).contains(&arguments.seconds),
        "--seconds: expected 0.01 to 3600"
    );
    let within = Duration::from_secs_f64(arguments.seconds);
    let mut lines = Vec::new();
    evaluations(within, arguments.only.as_deref().unwrap_or(""), &mut lines);
    if arguments.only.is_none() {
        unwanted(within, &mut lines);
        // Before memory is there that others have given back.
        busy(within, &mut lines);
        many(within, &mut lines);
    }
    anyhow::ensure!(
        !lines.is_empty(),
        "--only: there is no such evaluation; try `simple` or `complex`"
    );
    if arguments.json {
        let object =
            |line: &Line| json!({"what": line.what, "value": line.value, "unit": line.unit});
        let lines: Vec<Value> = lines.iter().map(object).collect();
        println!("{:#}", Value::Array(lines));
    } else {
        for Line { what, value, unit } in &lines {
            println!("{what:58} {value:>14.1} {unit}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn rule(sql: &str) -> Value {
    json!({"sql": sql, "actions": []})
}

/// An engine with rules, and the ears of one shard.
fn engine_with(rules: impl Iterator<Item = (String, Value)>) -> (Engine, Box<dyn Hooks>) {
    let settings = Settings {
        max_rules: usize::MAX,
        ..Settings::default()
    };
    let engine = Engine::new(settings, 1);
    engine.put_all(rules);
    let hooks = engine.hooks().hooks_for(0);
    hooks.interest();
    (engine, hooks)
}

/// A rule whose output goes out again, as JSON.
fn republishing(sql: &str) -> Value {
    json!({"sql": sql, "actions": [{"kind": "republish", "topic": "out/${clientid}"}]})
}

/// Shows a message to the rules and takes what they want published, as the broker does.
#[inline]
fn show(hooks: &mut dyn Hooks, message: &MessageView<'_>, origin: &Origin<'_>) {
    if black_box(hooks.publish(black_box(message), origin)) == Verdict::Follow {
        while let Some(mut outgoing) = hooks.outgoing() {
            black_box(&mut outgoing).clear();
            hooks.published(outgoing);
        }
    }
}

/// Nanoseconds of processor time that one message takes, in the best of several turns: whoever else is on the machine is not
/// to be measured.
fn message_ns(hooks: &mut dyn Hooks, topic: &str, within: Duration) -> f64 {
    let message = MessageView::of_client("device-12345678", topic, PAYLOAD, 1_690_599_987_495);
    let origin = Origin::default();
    let turn_ns = within.as_nanos() as u64 / TURNS;
    let turn = |hooks: &mut dyn Hooks| {
        let (mut rounds, began_ns) = (0_u32, thread_cpu_ns());
        loop {
            for _ in 0..ROUND {
                show(hooks, &message, &origin);
            }
            rounds += 1;
            let took_ns = thread_cpu_ns() - began_ns;
            if took_ns >= turn_ns {
                return took_ns as f64 / (f64::from(rounds) * f64::from(ROUND));
            }
        }
    };
    (0..TURNS)
        .map(|_| turn(hooks))
        .fold(f64::INFINITY, f64::min)
}

fn evaluations(within: Duration, only: &str, lines: &mut Vec<Line>) {
    for (name, rule, topic) in [
        ("simple rule", rule(SIMPLE), TOPIC),
        ("simple rule, published", republishing(SIMPLE), TOPIC),
        ("complex rule", rule(COMPLEX), DATA_TOPIC),
        ("complex rule, published", republishing(COMPLEX), DATA_TOPIC),
        ("functions of strings", rule(STRINGS), DATA_TOPIC),
        ("functions of time", rule(TIMES), DATA_TOPIC),
        ("functions of hashes", rule(HASHES), DATA_TOPIC),
    ] {
        if !name.starts_with(only) {
            continue;
        }
        let (engine, mut hooks) = engine_with(std::iter::once(("r".to_owned(), rule)));
        let ns = message_ns(&mut *hooks, topic, within);
        let passed = engine
            .status("r")
            .map_or(0, |status| status.totals.get(engine::Count::Passed));
        debug_assert!(passed > 0, "{name}: nothing came out");
        lines.push(Line {
            what: format!("{name}: evaluations per second"),
            value: 1e9 / ns,
            unit: "/s",
        });
        lines.push(Line {
            what: format!("{name}: one message"),
            value: ns,
            unit: "ns",
        });
    }
}

fn unwanted(within: Duration, lines: &mut Vec<Line>) {
    let rules = (0..UNWANTED).map(|n| {
        let sql = format!("SELECT * FROM \"factory/{n}/+/state\" WHERE payload.value > 30");
        (format!("r{n}"), rule(&sql))
    });
    let (_engine, mut hooks) = engine_with(rules);
    for (name, topic) in [("elsewhere", DATA_TOPIC), ("nearby", "factory/x/y/state")] {
        lines.push(Line {
            what: format!("{UNWANTED} rules that do not want a message, {name}"),
            value: message_ns(&mut *hooks, topic, within),
            unit: "ns",
        });
    }
}

fn of_topic(n: usize) -> (String, Value) {
    let sql = format!(
        "SELECT payload.value AS value, clientid FROM \"factory/{n}/temperature\" WHERE payload.value > 30"
    );
    (format!("rule-{n}"), rule(&sql))
}

fn many(within: Duration, lines: &mut Vec<Line>) {
    let topic = "factory/7/temperature";
    let (_one, mut hooks) = engine_with(std::iter::once(of_topic(7)));
    let one_ns = message_ns(&mut *hooks, topic, within);
    let before = resident_bytes();
    let began = Instant::now();
    let (engine, mut hooks) = engine_with((0..MANY).map(of_topic));
    let compiled = began.elapsed();
    let bytes = resident_bytes().saturating_sub(before);
    let many_ns = message_ns(&mut *hooks, topic, within);
    let added_ms = add_some(&engine);
    let stall_us = stall_while_adding(&engine, &mut *hooks, topic);
    for (what, value, unit) in [
        ("a message that one rule wants, of 1", one_ns, "ns"),
        ("a message that one rule wants, of 100,000", many_ns, "ns"),
        ("the same as a ratio", many_ns / one_ns, "x"),
        (
            "100,000 rules: memory",
            bytes as f64 / (1 << 20) as f64,
            "MiB",
        ),
        (
            "100,000 rules: time to compile",
            compiled.as_secs_f64(),
            "s",
        ),
        ("one rule more: time, the longest", added_ms, "ms"),
        ("the longest message while rules are added", stall_us, "us"),
    ] {
        lines.push(Line {
            what: what.to_owned(),
            value,
            unit,
        });
    }
}

/// The longest time that one rule more took, in milliseconds.
fn add_some(engine: &Engine) -> f64 {
    let add = |n| {
        let (name, rule) = of_topic(MANY + n);
        let began = Instant::now();
        engine.put(&name, Some(&rule));
        began.elapsed().as_secs_f64() * 1e3
    };
    (0..ADDED).map(add).fold(0.0, f64::max)
}

/// The longest time a message took while another thread adds rules, in microseconds. Others on this machine are in it.
fn stall_while_adding(engine: &Engine, hooks: &mut dyn Hooks, topic: &str) -> f64 {
    let done = AtomicBool::new(false);
    let message = MessageView::of_client("device-12345678", topic, PAYLOAD, 1_690_599_987_495);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            add_some(engine);
            done.store(true, Relaxed);
        });
        let mut longest: f64 = 0.0;
        while !done.load(Relaxed) {
            let began = Instant::now();
            black_box(hooks.publish(&message, &Origin::default()));
            longest = longest.max(began.elapsed().as_secs_f64() * 1e6);
        }
        longest
    })
}

fn busy(within: Duration, lines: &mut Vec<Line>) {
    let before = resident_bytes();
    let rules = (0..BUSY).map(|n| {
        let sql = format!("SELECT payload.value AS value, clientid, '{n}' AS rule FROM \"sensor/+/data\" WHERE payload.value > 30");
        (format!("busy-{n}"), rule(&sql))
    });
    let (_engine, mut hooks) = engine_with(rules);
    let ns = message_ns_of_many(&mut *hooks, within);
    let bytes = resident_bytes().saturating_sub(before);
    lines.push(Line {
        what: "2,000 rules that all want a message: each".to_owned(),
        value: ns / BUSY as f64,
        unit: "ns",
    });
    lines.push(Line {
        what: "2,000 busy rules: memory".to_owned(),
        value: bytes as f64 / (1 << 20) as f64,
        unit: "MiB",
    });
}

/// As [`message_ns`], for messages that take long.
fn message_ns_of_many(hooks: &mut dyn Hooks, within: Duration) -> f64 {
    let message = MessageView::of_client("device-12345678", DATA_TOPIC, PAYLOAD, 1_690_599_987_495);
    let (mut count, began) = (0_u32, Instant::now());
    while began.elapsed() < within {
        black_box(hooks.publish(black_box(&message), &Origin::default()));
        count += 1;
    }
    began.elapsed().as_secs_f64() * 1e9 / f64::from(count)
}

/// Of this process, from the kernel.
fn resident_bytes() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = pages.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    pages.unwrap_or(0) * rustix::param::page_size()
}
