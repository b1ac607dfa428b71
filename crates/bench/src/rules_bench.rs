//! `tidegate bench rules`: what rules cost, measured in this process through the same door by which the broker shows them its
//! messages, on one thread.

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use engine::{Engine, RuleEngineSettings};
use hooks::{Hooks, MessageOrigin, MessageView, PublishVerdict};
use serde_json::{Value, json};

use crate::host::thread_cpu_ns;

/// Looked at between two looks at the clock.
const MESSAGES_PER_CLOCK_CHECK: u32 = 1000;
/// Turns of a measurement, of which the best counts.
const MEASUREMENT_ROUNDS: u64 = 10;
const MANY_RULES: usize = 100_000;
const MATCHING_RULES: usize = 2_000;
const UNWANTED_RULES: usize = 500;
/// Rules added one by one to very many.
const ADDED_RULES: usize = 50;

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
/// The report names no statement for JSON and conversions; these have three calls, as its others do.
const JSON: &str = r#"SELECT json(payload) as data, payload.unit as unit, json_encode(payload) as text FROM "$EVENT.PUBLISH""#;
const CONVERSIONS: &str = r#"SELECT int(payload.value) as whole, float('21.5', 1) as number, str(payload.at) as text
    FROM "$EVENT.PUBLISH""#;
const HASHES: &str = r#"SELECT md5(payload) as payload_hash, sha256(clientId) as client_hash, uuid() as message_id
    FROM "$EVENT.PUBLISH""#;

/// Arguments of `tidegate bench rules`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct RulesArgs {
    /// Time of each measurement
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS")]
    seconds: f64,
    /// Measure only the evaluations whose name begins with this, such as `simple`
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// One line of the result.
struct RulesResultLine {
    name: String,
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
    measure_evaluations(within, arguments.only.as_deref().unwrap_or(""), &mut lines);
    if arguments.only.is_none() {
        measure_unwanted_messages(within, &mut lines);
        // Before memory is there that others have given back.
        measure_matching_rules(within, &mut lines);
        measure_many_rules(within, &mut lines);
    }
    anyhow::ensure!(
        !lines.is_empty(),
        "--only: there is no such evaluation; try `simple` or `complex`"
    );
    if arguments.json {
        let object = |line: &RulesResultLine| json!({"what": line.name, "value": line.value, "unit": line.unit});
        let lines: Vec<Value> = lines.iter().map(object).collect();
        println!("{:#}", Value::Array(lines));
    } else {
        for RulesResultLine {
            name: what,
            value,
            unit,
        } in &lines
        {
            println!("{what:58} {value:>14.1} {unit}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn rule_definition(sql: &str) -> Value {
    json!({"sql": sql, "actions": []})
}

/// An engine with rules, and the ears of one shard.
fn engine_with(rules: impl Iterator<Item = (String, Value)>) -> (Engine, Box<dyn Hooks>) {
    let settings = RuleEngineSettings {
        max_rules: usize::MAX,
        ..RuleEngineSettings::default()
    };
    let engine = Engine::new(settings, 1);
    engine.put_rules(rules);
    let hooks = engine.hooks_factory().hooks_for(0);
    hooks.interest();
    (engine, hooks)
}

/// A rule whose output goes out again, as JSON.
fn republishing_rule(sql: &str) -> Value {
    json!({"sql": sql, "actions": [{"kind": "republish", "topic": "out/${clientid}"}]})
}

/// Shows a message to the rules and takes what they want published, as the broker does.
#[inline]
fn publish_to_rules(hooks: &mut dyn Hooks, message: &MessageView<'_>, origin: &MessageOrigin<'_>) {
    if black_box(hooks.publish(black_box(message), origin)) == PublishVerdict::ContinueAndCollect {
        while let Some(mut outgoing) = hooks.take_outgoing() {
            black_box(&mut outgoing).clear();
            hooks.recycle_outgoing(outgoing);
        }
    }
}

/// Nanoseconds of processor time that one message takes, in the best of several rounds: other programs on the machine are not
/// to be measured.
fn message_ns(hooks: &mut dyn Hooks, topic: &str, within: Duration) -> f64 {
    let message = MessageView::from_client("device-12345678", topic, PAYLOAD, 1_690_599_987_495);
    let origin = MessageOrigin::default();
    let turn_ns = within.as_nanos() as u64 / MEASUREMENT_ROUNDS;
    let turn = |hooks: &mut dyn Hooks| {
        let (mut rounds, began_ns) = (0_u32, thread_cpu_ns());
        loop {
            for _ in 0..MESSAGES_PER_CLOCK_CHECK {
                publish_to_rules(hooks, &message, &origin);
            }
            rounds += 1;
            let took_ns = thread_cpu_ns() - began_ns;
            if took_ns >= turn_ns {
                return took_ns as f64 / (f64::from(rounds) * f64::from(MESSAGES_PER_CLOCK_CHECK));
            }
        }
    };
    (0..MEASUREMENT_ROUNDS)
        .map(|_| turn(hooks))
        .fold(f64::INFINITY, f64::min)
}

fn measure_evaluations(within: Duration, only: &str, lines: &mut Vec<RulesResultLine>) {
    for (name, rule, topic) in [
        ("simple rule", rule_definition(SIMPLE), TOPIC),
        ("simple rule, published", republishing_rule(SIMPLE), TOPIC),
        ("complex rule", rule_definition(COMPLEX), DATA_TOPIC),
        (
            "complex rule, published",
            republishing_rule(COMPLEX),
            DATA_TOPIC,
        ),
        ("functions of strings", rule_definition(STRINGS), DATA_TOPIC),
        ("functions of time", rule_definition(TIMES), DATA_TOPIC),
        ("functions of hashes", rule_definition(HASHES), DATA_TOPIC),
        ("functions of JSON", rule_definition(JSON), DATA_TOPIC),
        (
            "functions of conversions",
            rule_definition(CONVERSIONS),
            DATA_TOPIC,
        ),
    ] {
        if !name.starts_with(only) {
            continue;
        }
        let (engine, mut hooks) = engine_with(std::iter::once(("r".to_owned(), rule)));
        let ns = message_ns(&mut *hooks, topic, within);
        let passed = engine
            .status("r")
            .map_or(0, |status| status.totals.get(engine::RuleCounter::Passed));
        debug_assert!(passed > 0, "{name}: nothing came out");
        lines.push(RulesResultLine {
            name: format!("{name}: evaluations per second"),
            value: 1e9 / ns,
            unit: "/s",
        });
        lines.push(RulesResultLine {
            name: format!("{name}: one message"),
            value: ns,
            unit: "ns",
        });
    }
}

fn measure_unwanted_messages(within: Duration, lines: &mut Vec<RulesResultLine>) {
    let rules = (0..UNWANTED_RULES).map(|n| {
        let sql = format!("SELECT * FROM \"factory/{n}/+/state\" WHERE payload.value > 30");
        (format!("r{n}"), rule_definition(&sql))
    });
    let (_engine, mut hooks) = engine_with(rules);
    for (name, topic) in [("elsewhere", DATA_TOPIC), ("nearby", "factory/x/y/state")] {
        lines.push(RulesResultLine {
            name: format!("{UNWANTED_RULES} rules that do not want a message, {name}"),
            value: message_ns(&mut *hooks, topic, within),
            unit: "ns",
        });
    }
}

fn rule_for_topic(n: usize) -> (String, Value) {
    let sql = format!(
        "SELECT payload.value AS value, clientid FROM \"factory/{n}/temperature\" WHERE payload.value > 30"
    );
    (format!("rule-{n}"), rule_definition(&sql))
}

fn measure_many_rules(within: Duration, lines: &mut Vec<RulesResultLine>) {
    let topic = "factory/7/temperature";
    let (_one, mut hooks) = engine_with(std::iter::once(rule_for_topic(7)));
    let one_ns = message_ns(&mut *hooks, topic, within);
    let before = resident_bytes();
    let began = Instant::now();
    let (engine, mut hooks) = engine_with((0..MANY_RULES).map(rule_for_topic));
    let compiled = began.elapsed();
    let bytes = resident_bytes().saturating_sub(before);
    let many_ns = message_ns(&mut *hooks, topic, within);
    let added_ms = measure_adding(&engine);
    let stall_us = measure_stall_while_adding(&engine, &mut *hooks, topic);
    for (what, value, unit) in [
        ("a message that matches one rule of 1", one_ns, "ns"),
        ("a message that matches one rule of 100,000", many_ns, "ns"),
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
        lines.push(RulesResultLine {
            name: what.to_owned(),
            value,
            unit,
        });
    }
}

/// The longest time that one rule more took, in milliseconds.
fn measure_adding(engine: &Engine) -> f64 {
    let add = |n| {
        let (name, rule) = rule_for_topic(MANY_RULES + n);
        let began = Instant::now();
        engine.put_rule(&name, Some(&rule));
        began.elapsed().as_secs_f64() * 1e3
    };
    (0..ADDED_RULES).map(add).fold(0.0, f64::max)
}

/// The longest time a message took while another thread adds rules, in microseconds. Others on this machine are in it.
fn measure_stall_while_adding(engine: &Engine, hooks: &mut dyn Hooks, topic: &str) -> f64 {
    let done = AtomicBool::new(false);
    let message = MessageView::from_client("device-12345678", topic, PAYLOAD, 1_690_599_987_495);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            measure_adding(engine);
            done.store(true, Relaxed);
        });
        let mut longest: f64 = 0.0;
        while !done.load(Relaxed) {
            let began = Instant::now();
            black_box(hooks.publish(&message, &MessageOrigin::default()));
            longest = longest.max(began.elapsed().as_secs_f64() * 1e6);
        }
        longest
    })
}

fn measure_matching_rules(within: Duration, lines: &mut Vec<RulesResultLine>) {
    let before = resident_bytes();
    let rules = (0..MATCHING_RULES).map(|n| {
        let sql = format!("SELECT payload.value AS value, clientid, '{n}' AS rule FROM \"sensor/+/data\" WHERE payload.value > 30");
        (format!("busy-{n}"), rule_definition(&sql))
    });
    let (_engine, mut hooks) = engine_with(rules);
    let ns = message_ns_of_many(&mut *hooks, within);
    let bytes = resident_bytes().saturating_sub(before);
    lines.push(RulesResultLine {
        name: "2,000 rules that all want a message: each".to_owned(),
        value: ns / MATCHING_RULES as f64,
        unit: "ns",
    });
    lines.push(RulesResultLine {
        name: "2,000 busy rules: memory".to_owned(),
        value: bytes as f64 / (1 << 20) as f64,
        unit: "MiB",
    });
}

/// As [`message_ns`], for messages that take long.
fn message_ns_of_many(hooks: &mut dyn Hooks, within: Duration) -> f64 {
    let message =
        MessageView::from_client("device-12345678", DATA_TOPIC, PAYLOAD, 1_690_599_987_495);
    let (mut count, began) = (0_u32, Instant::now());
    while began.elapsed() < within {
        black_box(hooks.publish(black_box(&message), &MessageOrigin::default()));
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
