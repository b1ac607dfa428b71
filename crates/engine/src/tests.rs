//! Rules, sinks that are full, and rules that change, without a broker.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use broker::hooks::{Hooks, Interest, MessageView, Origin, Verdict};
use serde_json::{Value, json};

use crate::{Count, Engine, Outlet, Row, Sent, Settings, SinkId};

/// One sink, which is there, or not, or full.
#[derive(Default)]
struct Sink {
    rows: Mutex<Vec<String>>,
    is_gone: AtomicBool,
    is_full: AtomicBool,
    throws_away: AtomicBool,
    asked: AtomicU32,
}

impl Outlet for Sink {
    fn sink(&self, name: &str) -> Option<SinkId> {
        self.asked.fetch_add(1, Relaxed);
        (name == "db" && !self.is_gone.load(Relaxed)).then_some(SinkId(7))
    }

    fn send(&self, sink: SinkId, lane: u16, row: Row<'_>) -> Sent {
        assert_eq!((sink, lane), (SinkId(7), 0));
        if self.is_gone.load(Relaxed) {
            return Sent::Unknown;
        }
        if self.throws_away.load(Relaxed) {
            return Sent::Dropped;
        }
        let mut json = Vec::new();
        row.columns.write_json(&mut json);
        self.rows
            .lock()
            .unwrap()
            .push(String::from_utf8(json).unwrap());
        match self.is_full.load(Relaxed) {
            true => Sent::Full,
            false => Sent::Queued,
        }
    }

    fn is_full(&self, _sink: SinkId) -> bool {
        self.is_full.load(Relaxed)
    }
}

fn publish(hooks: &mut dyn Hooks, topic: &str) -> Verdict {
    let message = MessageView::of_client("device", topic, b"x", 1_000);
    hooks.publish(&message, &Origin::default())
}

fn to_sink(sql: &str) -> Value {
    json!({"sql": sql, "actions": [{"kind": "sink", "sink": "db"}]})
}

fn count(engine: &Engine, count: Count) -> u64 {
    engine
        .status("r")
        .expect("there is a rule")
        .totals
        .get(count)
}

#[test]
fn a_sink_that_is_full_makes_publishers_wait_until_it_has_room() {
    let sink = Arc::new(Sink::default());
    let engine = Engine::new(Settings::default(), 1);
    engine.set_outlet(sink.clone());
    engine.put("r", Some(&to_sink("SELECT topic, qos FROM \"t/#\"")));
    let mut hooks = engine.hooks().hooks_for(0);
    assert_eq!(publish(&mut *hooks, "t/1"), Verdict::Continue);
    assert_eq!(*sink.rows.lock().unwrap(), [r#"{"topic":"t/1","qos":0}"#]);
    sink.is_full.store(true, Relaxed);
    assert_eq!(publish(&mut *hooks, "t/2"), Verdict::Follow);
    assert!(hooks.outgoing().is_none());
    let waits = hooks.take_backpressure().expect("the sink is full");
    assert!(waits() && hooks.take_backpressure().is_none());
    assert_eq!(publish(&mut *hooks, "other"), Verdict::Continue);
    assert!(
        hooks.take_backpressure().is_none(),
        "it does not feed the sink"
    );
    sink.is_full.store(false, Relaxed);
    assert!(!waits());
    assert_eq!(publish(&mut *hooks, "t/3"), Verdict::Continue);
    assert_eq!(count(&engine, Count::ActionsQueued), 3);
    sink.throws_away.store(true, Relaxed);
    publish(&mut *hooks, "t/4");
    assert_eq!(
        (
            count(&engine, Count::ActionsDropped),
            count(&engine, Count::ActionsFailed)
        ),
        (1, 0)
    );
    assert_eq!(sink.asked.load(Relaxed), 1, "its name is looked up once");
}

#[test]
fn a_sink_may_come_after_its_rule_and_go_before_it() {
    let sink = Arc::new(Sink::default());
    sink.is_gone.store(true, Relaxed);
    let engine = Engine::new(Settings::default(), 1);
    engine.set_outlet(sink.clone());
    engine.put("r", Some(&to_sink("SELECT topic FROM \"t\"")));
    let mut hooks = engine.hooks().hooks_for(0);
    for is_gone in [true, false, true, false] {
        sink.is_gone.store(is_gone, Relaxed);
        publish(&mut *hooks, "t");
    }
    assert_eq!(
        (
            count(&engine, Count::ActionsFailed),
            count(&engine, Count::ActionsQueued)
        ),
        (2, 2)
    );
}

#[test]
fn the_broker_is_asked_for_nothing_but_what_rules_need() {
    let engine = Engine::new(Settings::default(), 1);
    let hooks = engine.hooks().hooks_for(0);
    assert_eq!(hooks.interest(), Interest::NONE);
    for (sql, interest) in [
        ("SELECT * FROM \"t\"", Interest::PUBLISH),
        (
            "SELECT * FROM \"$EVENT.OFFLINE\"",
            Interest::KEEP | Interest::DROP,
        ),
        (
            "SELECT * FROM \"$events/client/connack\", \"$EVENT.PING\"",
            Interest::CONNECT | Interest::REFUSE | Interest::PING,
        ),
        ("SELECT * FROM \"$rule/other\"", Interest::NONE),
        // Nothing can pass.
        ("SELECT * FROM \"a/#\" WHERE topic = 'b'", Interest::NONE),
    ] {
        engine.put("r", Some(&json!({"sql": sql})));
        assert_eq!(hooks.interest(), interest, "{sql}");
    }
    engine.put(
        "r",
        Some(&json!({"sql": "SELECT * FROM \"t\"", "enabled": false})),
    );
    assert_eq!(hooks.interest(), Interest::NONE);
    engine.put("r", None);
    assert!(engine.status("r").is_none());
}

#[test]
fn a_rule_that_is_changed_while_it_is_used_is_one_or_the_other() {
    let sink = Arc::new(Sink::default());
    let engine = Engine::new(Settings::default(), 1);
    engine.set_outlet(sink.clone());
    let rule = |n: usize| to_sink(&format!("SELECT {n} AS n FROM \"t\""));
    engine.put("r", Some(&rule(0)));
    let done = AtomicBool::new(false);
    let hooks = engine.hooks();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut hooks = hooks.hooks_for(0);
            while !done.load(Relaxed) {
                publish(&mut *hooks, "t");
            }
            publish(&mut *hooks, "t");
        });
        for n in 1..=200 {
            engine.put("r", Some(&rule(n)));
        }
        done.store(true, Relaxed);
    });
    let rows = sink.rows.lock().unwrap();
    let numbers: Vec<usize> = (rows.iter())
        .map(|row| {
            serde_json::from_str::<Value>(row).unwrap()["n"]
                .as_u64()
                .unwrap() as usize
        })
        .collect();
    assert!(numbers.is_sorted(), "never back to an earlier one");
    assert_eq!(numbers.last(), Some(&200));
    assert_eq!(
        count(&engine, Count::Matched),
        numbers.len() as u64,
        "each message met one of them"
    );
}

#[test]
fn very_many_rows_for_a_window_make_publishers_wait() {
    let settings = Settings {
        window_queue_bytes: 1024,
        ..Settings::default()
    };
    // Nobody counts: the engine was not started.
    let engine = Engine::new(settings, 1);
    let sql = "SELECT count(*) AS n FROM \"t\" GROUP BY clientid, tumbling(1s)";
    engine.put("r", Some(&json!({"sql": sql})));
    let mut hooks = engine.hooks().hooks_for(0);
    let mut taken = 0;
    while publish(&mut *hooks, "t") == Verdict::Continue {
        taken += 1;
        assert!(taken < 1000, "the queue has no bound");
    }
    assert!(hooks.take_backpressure().is_some_and(|waits| waits()));
    for _ in 0..1000 {
        publish(&mut *hooks, "t");
    }
    assert!(
        count(&engine, Count::WindowFull) > 500,
        "far above the bound, rows are lost and counted"
    );
}

#[test]
fn a_rule_that_panics_fails_alone() {
    let engine = Engine::new(Settings::default(), 2);
    // It panics when it is given a row of another lane than that of shard 0.
    engine.set_outlet(Arc::new(Sink::default()));
    engine.put("r", Some(&to_sink("SELECT topic FROM \"t\"")));
    let republish = json!([{"kind": "republish", "topic": "out", "payload": "x"}]);
    for name in ["a", "z"] {
        let rule = json!({"sql": "SELECT topic FROM \"t\"", "actions": republish});
        engine.put(name, Some(&rule));
    }
    let mut hooks = engine.hooks().hooks_for(1);
    for _ in 0..2 {
        assert_eq!(publish(&mut *hooks, "t"), Verdict::Follow);
        let outgoing = hooks.outgoing().expect("two rules are well");
        assert_eq!(outgoing.iter().count(), 2);
    }
    assert_eq!(count(&engine, Count::Failed), 2);
    assert_eq!(count(&engine, Count::FailedOther), 2);
}

#[test]
fn a_rule_whose_messages_are_dropped_is_told_of_it() {
    let engine = Engine::new(Settings::default(), 1);
    let republish = json!([{"kind": "republish", "topic": "out", "payload": "x"}]);
    let rule = json!({"sql": "SELECT topic FROM \"t\"", "actions": republish});
    engine.put("r", Some(&rule));
    let mut hooks = engine.hooks().hooks_for(0);
    assert_eq!(publish(&mut *hooks, "t"), Verdict::Follow);
    let outgoing = hooks.outgoing().expect("it is published");
    let tag = outgoing.iter().next().expect("there is one").tag;
    hooks.discarded("out", tag);
    assert_eq!(count(&engine, Count::FailedLimit), 1);
    engine.put("r", None);
    // It may be no more.
    hooks.discarded("out", tag);
}

#[test]
fn other_rules_hear_of_a_failure_once() {
    let sink = Arc::new(Sink::default());
    let engine = Engine::new(Settings::default(), 1);
    engine.set_outlet(sink.clone());
    let failing = json!({
        "sql": "SELECT topic FROM \"t/#\"", "actions": [{"kind": "republish", "topic": "a/${none}"}],
    });
    engine.put("bad", Some(&failing));
    let sql = "SELECT rule_name, error_message, topic FROM \"$EVENT.RULE_FAILED\"";
    engine.put("r", Some(&to_sink(sql)));
    // It fails, too, which nobody hears of.
    let also_failing = json!({"sql": sql, "actions": failing["actions"]});
    engine.put("worse", Some(&also_failing));
    let mut hooks = engine.hooks().hooks_for(0);
    publish(&mut *hooks, "t/1");
    let expected = r#"{"rule_name":"bad","error_message":"topic: ${none} is null","topic":"t/1"}"#;
    assert_eq!(*sink.rows.lock().unwrap(), [expected]);
    let error = engine.status("worse").and_then(|status| status.last_error);
    assert_eq!(error.map(|error| error.kind), Some("action"));
    for _ in 0..500 {
        publish(&mut *hooks, "t/2");
    }
    let told = sink.rows.lock().unwrap().len();
    assert!((2..=200).contains(&told), "bounded: {told}");
}
