//! Engine tests without a broker: rules, full sinks, and changes of rules.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use hooks::{Hooks, Interest, MessageOrigin, MessageView, PublishVerdict};
use serde_json::{Value, json};

use crate::window_queue::WindowCommand;
use crate::window_worker::WindowWorker;
use crate::{
    Engine, OutputRow, RuleCounter, RuleEngineSettings, SinkId, SinkPort, SinkPortOutcome,
};

/// One sink, which can be present, missing or full.
#[derive(Default)]
struct RecordingSink {
    rows: Mutex<Vec<String>>,
    is_gone: AtomicBool,
    is_full: AtomicBool,
    throws_away: AtomicBool,
    lookups: AtomicU32,
}

impl SinkPort for RecordingSink {
    fn find_sink(&self, name: &str) -> Option<SinkId> {
        self.lookups.fetch_add(1, Relaxed);
        (name == "db" && !self.is_gone.load(Relaxed)).then_some(SinkId(7))
    }

    fn send_row(&self, sink: SinkId, producer: u16, row: OutputRow<'_>) -> SinkPortOutcome {
        assert_eq!((sink, producer), (SinkId(7), 0));
        if self.is_gone.load(Relaxed) {
            return SinkPortOutcome::Unknown;
        }
        if self.throws_away.load(Relaxed) {
            return SinkPortOutcome::Dropped;
        }
        let mut json = Vec::new();
        row.columns.write_json(&mut json);
        self.rows
            .lock()
            .unwrap()
            .push(String::from_utf8(json).unwrap());
        match self.is_full.load(Relaxed) {
            true => SinkPortOutcome::Full,
            false => SinkPortOutcome::Queued,
        }
    }

    fn is_full(&self, _sink: SinkId) -> bool {
        self.is_full.load(Relaxed)
    }
}

fn publish(hooks: &mut dyn Hooks, topic: &str) -> PublishVerdict {
    let message = MessageView::from_client("device", topic, b"x", 1_000);
    hooks.publish(&message, &MessageOrigin::default())
}

fn to_sink(sql: &str) -> Value {
    json!({"sql": sql, "actions": [{"kind": "sink", "sink": "db"}]})
}

fn count(engine: &Engine, count: RuleCounter) -> u64 {
    engine
        .status("r")
        .expect("there is a rule")
        .totals
        .get(count)
}

#[test]
fn a_message_is_consumed_by_the_rules_that_it_passes() {
    let engine = Engine::new(RuleEngineSettings::default(), 1);
    let rule = to_sink("SELECT topic FROM \"t/#\" WHERE topic != 't/not'");
    engine.set_sink_port(Arc::new(RecordingSink::default()));
    engine.put_rule("r", Some(&rule));
    let mut hooks = engine.hooks_factory().hooks_for(0);
    let mut is_consumed = |topic: &str| {
        publish(&mut *hooks, topic);
        hooks.has_consumed(&MessageView::from_client("device", topic, b"x", 1_000))
    };
    assert!(is_consumed("t/1"));
    assert!(!is_consumed("t/not"), "WHERE is false");
    assert!(is_consumed("t/2"));
    assert!(!is_consumed("other"));
}

#[test]
fn a_sink_that_is_full_makes_publishers_wait_until_it_has_room() {
    let sink = Arc::new(RecordingSink::default());
    let engine = Engine::new(RuleEngineSettings::default(), 1);
    engine.set_sink_port(sink.clone());
    engine.put_rule("r", Some(&to_sink("SELECT topic, qos FROM \"t/#\"")));
    let mut hooks = engine.hooks_factory().hooks_for(0);
    assert_eq!(publish(&mut *hooks, "t/1"), PublishVerdict::Continue);
    assert_eq!(*sink.rows.lock().unwrap(), [r#"{"topic":"t/1","qos":0}"#]);
    sink.is_full.store(true, Relaxed);
    assert_eq!(
        publish(&mut *hooks, "t/2"),
        PublishVerdict::ContinueAndCollect
    );
    assert!(hooks.take_outgoing().is_none());
    let waits = hooks.take_backpressure().expect("the sink is full");
    assert!(waits() && hooks.take_backpressure().is_none());
    assert_eq!(publish(&mut *hooks, "other"), PublishVerdict::Continue);
    assert!(
        hooks.take_backpressure().is_none(),
        "the message does not feed the sink"
    );
    sink.is_full.store(false, Relaxed);
    assert!(!waits());
    assert_eq!(publish(&mut *hooks, "t/3"), PublishVerdict::Continue);
    assert_eq!(count(&engine, RuleCounter::ActionsQueued), 3);
    sink.throws_away.store(true, Relaxed);
    publish(&mut *hooks, "t/4");
    assert_eq!(
        (
            count(&engine, RuleCounter::ActionsDropped),
            count(&engine, RuleCounter::ActionsFailed)
        ),
        (1, 0)
    );
    assert_eq!(sink.lookups.load(Relaxed), 1, "the name is looked up once");
}

#[test]
fn a_sink_may_come_after_its_rule_and_go_before_it() {
    let sink = Arc::new(RecordingSink::default());
    sink.is_gone.store(true, Relaxed);
    let engine = Engine::new(RuleEngineSettings::default(), 1);
    engine.set_sink_port(sink.clone());
    engine.put_rule("r", Some(&to_sink("SELECT topic FROM \"t\"")));
    let mut hooks = engine.hooks_factory().hooks_for(0);
    for is_gone in [true, false, true, false] {
        sink.is_gone.store(is_gone, Relaxed);
        publish(&mut *hooks, "t");
    }
    assert_eq!(
        (
            count(&engine, RuleCounter::ActionsFailed),
            count(&engine, RuleCounter::ActionsQueued)
        ),
        (2, 2)
    );
}

#[test]
fn hooks_are_requested_only_as_rules_need_them() {
    let engine = Engine::new(RuleEngineSettings::default(), 1);
    let hooks = engine.hooks_factory().hooks_for(0);
    assert_eq!(hooks.interest(), Interest::NONE);
    for (sql, interest) in [
        ("SELECT * FROM \"t\"", Interest::PUBLISH),
        (
            "SELECT * FROM \"$EVENT.OFFLINE\"",
            Interest::QUEUE | Interest::DROP,
        ),
        (
            "SELECT * FROM \"$events/client/connack\", \"$EVENT.PING\"",
            Interest::CONNECT | Interest::CONNECT_REJECTED | Interest::PING,
        ),
        ("SELECT * FROM \"$rule/other\"", Interest::NONE),
        // No event can pass.
        ("SELECT * FROM \"a/#\" WHERE topic = 'b'", Interest::NONE),
    ] {
        engine.put_rule("r", Some(&json!({"sql": sql})));
        assert_eq!(hooks.interest(), interest, "{sql}");
    }
    engine.put_rule(
        "r",
        Some(&json!({"sql": "SELECT * FROM \"t\"", "enabled": false})),
    );
    assert_eq!(hooks.interest(), Interest::NONE);
    engine.put_rule("r", None);
    assert!(engine.status("r").is_none());
}

#[test]
fn a_rule_changed_during_use_is_either_the_old_or_the_new_one() {
    let sink = Arc::new(RecordingSink::default());
    let engine = Engine::new(RuleEngineSettings::default(), 1);
    engine.set_sink_port(sink.clone());
    let rule = |n: usize| to_sink(&format!("SELECT {n} AS n FROM \"t\""));
    engine.put_rule("r", Some(&rule(0)));
    let done = AtomicBool::new(false);
    let hooks = engine.hooks_factory();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut hooks = hooks.hooks_for(0);
            while !done.load(Relaxed) {
                publish(&mut *hooks, "t");
            }
            publish(&mut *hooks, "t");
        });
        for n in 1..=200 {
            engine.put_rule("r", Some(&rule(n)));
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
        count(&engine, RuleCounter::Matched),
        numbers.len() as u64,
        "each message matched one of them"
    );
}

#[test]
fn very_many_rows_for_a_window_make_publishers_wait() {
    let settings = RuleEngineSettings {
        window_queue_bytes: 1024,
        ..RuleEngineSettings::default()
    };
    // Nothing is counted because the engine is not started.
    let engine = Engine::new(settings, 1);
    let sql = "SELECT count(*) AS n FROM \"t\" GROUP BY clientid, tumbling(1s)";
    engine.put_rule("r", Some(&json!({"sql": sql})));
    let mut hooks = engine.hooks_factory().hooks_for(0);
    let mut taken = 0;
    while publish(&mut *hooks, "t") == PublishVerdict::Continue {
        taken += 1;
        assert!(taken < 1000, "the queue is unbounded");
    }
    assert!(hooks.take_backpressure().is_some_and(|waits| waits()));
    for _ in 0..1000 {
        publish(&mut *hooks, "t");
    }
    assert!(
        count(&engine, RuleCounter::WindowFull) > 500,
        "far above the limit, rows are dropped and counted"
    );
}

#[test]
fn a_rule_that_panics_fails_alone() {
    let engine = Engine::new(RuleEngineSettings::default(), 2);
    // The sink panics on a row of any producer except shard 0.
    engine.set_sink_port(Arc::new(RecordingSink::default()));
    engine.put_rule("r", Some(&to_sink("SELECT topic FROM \"t\"")));
    let republish = json!([{"kind": "republish", "topic": "out", "payload": "x"}]);
    for name in ["a", "z"] {
        let rule = json!({"sql": "SELECT topic FROM \"t\"", "actions": republish});
        engine.put_rule(name, Some(&rule));
    }
    let mut hooks = engine.hooks_factory().hooks_for(1);
    for _ in 0..2 {
        assert_eq!(
            publish(&mut *hooks, "t"),
            PublishVerdict::ContinueAndCollect
        );
        let outgoing = hooks.take_outgoing().expect("two rules work");
        assert_eq!(outgoing.iter().count(), 2);
    }
    assert_eq!(count(&engine, RuleCounter::Failed), 2);
    assert_eq!(count(&engine, RuleCounter::FailedOther), 2);
}

/// Sinks of which one panics.
#[derive(Default)]
struct PanickingSink {
    rows: AtomicU32,
}

impl SinkPort for PanickingSink {
    fn find_sink(&self, name: &str) -> Option<SinkId> {
        Some(SinkId(u32::from(name == "broken")))
    }

    fn send_row(&self, sink: SinkId, _producer: u16, _row: OutputRow<'_>) -> SinkPortOutcome {
        assert_eq!(sink, SinkId(0), "a bug");
        self.rows.fetch_add(1, Relaxed);
        SinkPortOutcome::Queued
    }

    fn is_full(&self, _sink: SinkId) -> bool {
        false
    }
}

#[test]
fn a_window_that_panics_fails_alone() {
    let sink = Arc::new(PanickingSink::default());
    let engine = Engine::new(RuleEngineSettings::default(), 1);
    engine.set_sink_port(sink.clone());
    let sql = "SELECT count(*) AS n FROM \"t\" GROUP BY clientid, count(1)";
    for (name, to) in [("r", "broken"), ("works", "db")] {
        let actions = json!([{"kind": "sink", "sink": to}]);
        engine.put_rule(name, Some(&json!({"sql": sql, "actions": actions})));
    }
    let worker = WindowWorker::new(engine.shared.clone(), None);
    let thread = std::thread::spawn(move || worker.run());
    let mut hooks = engine.hooks_factory().hooks_for(0);
    for _ in 0..3 {
        publish(&mut *hooks, "t");
    }
    // The thread stops behind the messages.
    engine.shared.rows.send_command(WindowCommand::Stop);
    thread.join().expect("the thread goes on after a panic");
    assert_eq!(sink.rows.load(Relaxed), 3);
    assert_eq!(count(&engine, RuleCounter::Failed), 3);
    assert_eq!(count(&engine, RuleCounter::FailedOther), 3);
}

#[test]
fn dropped_messages_of_a_rule_count_as_its_failures() {
    let engine = Engine::new(RuleEngineSettings::default(), 1);
    let republish = json!([{"kind": "republish", "topic": "out", "payload": "x"}]);
    let rule = json!({"sql": "SELECT topic FROM \"t\"", "actions": republish});
    engine.put_rule("r", Some(&rule));
    let mut hooks = engine.hooks_factory().hooks_for(0);
    assert_eq!(
        publish(&mut *hooks, "t"),
        PublishVerdict::ContinueAndCollect
    );
    let outgoing = hooks.take_outgoing().expect("it is published");
    let tag = outgoing.iter().next().expect("there is one").tag;
    hooks.outgoing_dropped("out", tag);
    assert_eq!(count(&engine, RuleCounter::FailedLimit), 1);
    engine.put_rule("r", None);
    // The rule may no longer exist.
    hooks.outgoing_dropped("out", tag);
}

#[test]
fn a_failure_emits_one_event_to_other_rules() {
    let sink = Arc::new(RecordingSink::default());
    let engine = Engine::new(RuleEngineSettings::default(), 1);
    engine.set_sink_port(sink.clone());
    let failing = json!({
        "sql": "SELECT topic FROM \"t/#\"", "actions": [{"kind": "republish", "topic": "a/${none}"}],
    });
    engine.put_rule("bad", Some(&failing));
    let sql = "SELECT rule_name, error_message, topic FROM \"$EVENT.RULE_FAILED\"";
    engine.put_rule("r", Some(&to_sink(sql)));
    // This rule fails, too, but its failure emits no event.
    let also_failing = json!({"sql": sql, "actions": failing["actions"]});
    engine.put_rule("worse", Some(&also_failing));
    let mut hooks = engine.hooks_factory().hooks_for(0);
    publish(&mut *hooks, "t/1");
    let expected = r#"{"rule_name":"bad","error_message":"topic: ${none} is null","topic":"t/1"}"#;
    assert_eq!(*sink.rows.lock().unwrap(), [expected]);
    let error = engine.status("worse").and_then(|status| status.last_error);
    assert_eq!(error.map(|error| error.kind), Some("action"));
    for _ in 0..500 {
        publish(&mut *hooks, "t/2");
    }
    let row_count = sink.rows.lock().unwrap().len();
    assert!((2..=200).contains(&row_count), "bounded: {row_count}");
}
