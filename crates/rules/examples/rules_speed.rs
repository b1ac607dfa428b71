//! Evaluations per second of CPU time, and allocations per evaluation:
//! `cargo run --release -p tidegate-rules --example rules_speed [SECONDS [CASE]]`

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rules::{
    CompileOptions, EvaluationResources, EvaluationScratch, EventKind, Rule, RuleEvent, RuleOutput,
    RuleState, Template, compile,
};

/// Counts allocations.
struct CountingAllocator;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as promised by the caller.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as promised by the caller.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const ROUNDS: u32 = 10;
const NOW_MS: u64 = 1_690_599_987_495;

struct Case {
    name: &'static str,
    sql: &'static str,
    topic: &'static str,
    payload: &'static str,
}

const CASES: &[Case] = &[
    Case {
        name: "all fields, WHERE topic = (passes)",
        sql: "SELECT * FROM \"$EVENT.PUBLISH\" WHERE topic = 'sensor/temperature'",
        topic: "sensor/temperature",
        payload: r#"{"value":31.5,"unit":"C"}"#,
    },
    Case {
        name: "all fields, WHERE topic = (does not)",
        sql: "SELECT * FROM \"$EVENT.PUBLISH\" WHERE topic = 'sensor/temperature'",
        topic: "sensor/humidity",
        payload: r#"{"value":31.5,"unit":"C"}"#,
    },
    Case {
        name: "the same in EMQX's words",
        sql: "SELECT * FROM \"sensor/#\" WHERE topic = 'sensor/temperature'",
        topic: "sensor/temperature",
        payload: r#"{"value":31.5,"unit":"C"}"#,
    },
    Case {
        name: "uuid, json, datetime, md5; WHERE topic =~ and payload.value >",
        sql: "SELECT uuid() as id, json(payload) as data, datetime(timestamp) as time, md5(clientId) as hash \
              FROM \"$EVENT.PUBLISH\" WHERE topic =~ 'sensor/+/data' AND payload.value > 30",
        topic: "sensor/1/data",
        payload: r#"{"value":31.5,"unit":"C","at":{"x":1,"y":2}}"#,
    },
    Case {
        name: "four paths into a payload of 600 bytes",
        sql: "SELECT payload.metrics.temperature as t, payload.metrics.vibration as v, payload.list[3].id as i, payload.status as s \
              FROM \"$EVENT.PUBLISH\" WHERE payload.metrics.temperature > 60",
        topic: "factory/1/metrics",
        payload: r#"{"equipmentId":"MACHINE_001","workshop":"A","line":"L1","notes":"The quick brown fox jumps over the lazy dog. The quick brown fox jumps over the lazy dog. The quick brown fox jumps over the lazy dog.","metrics":{"temperature":68.5,"vibration":2.3,"power":1500,"pressure":8.2,"more":[1,2,3,4,5,6,7,8,9,10]},"list":[{"id":"a","v":1},{"id":"b","v":2},{"id":"c","v":3},{"id":"d","v":4}],"tags":["one","two","three","four","five","six"],"status":"running","history":[[1,2,3],[4,5,6],[7,8,9],[10,11,12],[13,14,15]],"comment":"nothing that anybody would look at, but long enough to matter to whoever reads everything"}"#,
    },
    Case {
        name: "FOREACH over 3 items",
        sql: "FOREACH payload.sensors as e DO clientid, e.name as name, e.idx as idx INCASE e.idx >= 1 FROM \"t/#\"",
        topic: "t/1",
        payload: r#"{"date":"2020-04-24","sensors":[{"name":"a","idx":0},{"name":"b","idx":1},{"name":"c","idx":2}]}"#,
    },
];

fn event<'m>(
    case: &Case,
    payload: &'m [u8],
    topic: &'m str,
    peer: SocketAddr,
    id: u128,
) -> RuleEvent<'m> {
    black_box(case);
    RuleEvent {
        node: "tidegate@127.0.0.1",
        node_ip: "127.0.0.1",
        id: Some(id),
        client_id: "device_0001",
        username: Some("fluxmq"),
        peer: Some(peer),
        topic: Some(topic),
        qos: Some(1),
        payload: Some(payload),
        message_id: Some(7),
        received_at_ms: Some(NOW_MS),
        ..RuleEvent::new(EventKind::Publish, NOW_MS + (id as u64 & 0xffff))
    }
}

/// CPU time of this thread, independent of other load on the core.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Evaluations per second in the best round, to reduce the influence of other load, and allocations per
/// evaluation.
fn measure(
    case: &Case,
    rule: &Rule,
    time: Duration,
    mut out: impl FnMut(RuleOutput<'_>),
) -> (f64, f64) {
    let mut scratch = EvaluationScratch::new(EvaluationResources::new([7; 32], 1), 1 << 20);
    let mut state = RuleState::default();
    let peer: SocketAddr = ([192, 168, 0, 100], 21950).into();
    let mut evaluations = 0_u64;
    let mut best = 0.0_f64;
    let mut allocations = 0;
    for round in 0..=ROUNDS {
        let started = cpu_time();
        let before = (evaluations, ALLOCATIONS.load(Ordering::Relaxed));
        while cpu_time() - started < time / ROUNDS {
            for _ in 0..1000 {
                scratch.reset();
                let payload = black_box(case.payload).as_bytes();
                let id = u128::from(evaluations) << 60;
                let event = event(case, payload, black_box(case.topic), peer, id);
                let view = scratch.view(&event, NOW_MS);
                let ran = rule.run(&view, &mut state, &mut out).expect("no fault");
                black_box(ran);
                evaluations += 1;
            }
        }
        let done = evaluations - before.0;
        // The first round warms up.
        if round > 0 {
            best = best.max(done as f64 / (cpu_time() - started).as_secs_f64());
            allocations += ALLOCATIONS.load(Ordering::Relaxed) - before.1;
        }
    }
    (best, allocations as f64 / evaluations as f64)
}

fn main() {
    let seconds: f64 = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .unwrap_or(1.0);
    let time = Duration::from_secs_f64(seconds);
    println!(
        "{:<66} {:>12} {:>12} {:>8} {:>6}",
        "", "evaluations", "with JSON", "allocs", "bytes"
    );
    let only: Option<usize> = std::env::args().nth(2).and_then(|text| text.parse().ok());
    for (at, case) in CASES.iter().enumerate() {
        if only.is_some_and(|only| only != at) {
            continue;
        }
        let rule = compile(case.sql, &CompileOptions::default())
            .unwrap_or_else(|error| panic!("{}", error.report()));
        let (alone, allocations) = measure(case, &rule, time, |output| {
            black_box(output);
        });
        let mut json = Vec::with_capacity(4096);
        let (with_json, _) = measure(case, &rule, time, |output| {
            json.clear();
            output.write_json(&mut json);
            black_box(&json);
        });
        println!(
            "{:<66} {:>10.2} M {:>10.2} M {:>8.3} {:>6}",
            case.name,
            alone / 1e6,
            with_json / 1e6,
            allocations,
            rule.size_bytes()
        );
    }
    template(time);
}

/// Events, each evaluated and rendered with a template.
fn template(time: Duration) {
    let case = &CASES[4];
    let rule = compile(case.sql, &CompileOptions::default()).expect("valid");
    let text =
        r#"{"device": "${clientId}", "temperature": ${t}, "item": "${i}", "upper": "${upper(s)}"}"#;
    let template = Template::compile(
        text,
        rules::TemplateFormat::Json,
        &CompileOptions::default(),
    )
    .expect("valid");
    let mut scratch = EvaluationScratch::new(EvaluationResources::new([7; 32], 1), 1 << 20);
    let mut state = RuleState::default();
    let mut other = RuleState::default();
    let mut out = Vec::with_capacity(4096);
    let started = cpu_time();
    let mut evaluations = 0_u64;
    while cpu_time() - started < time {
        for _ in 0..1000 {
            scratch.reset();
            let event = event(
                case,
                case.payload.as_bytes(),
                case.topic,
                ([10, 0, 0, 1], 1).into(),
                1,
            );
            let view = scratch.view(&event, NOW_MS);
            rule.run(&view, &mut state, &mut |output| {
                out.clear();
                template
                    .render(&output, &view, &mut other, &mut out)
                    .expect("no fault");
                black_box(&out);
            })
            .expect("no fault");
            evaluations += 1;
        }
    }
    let rate = evaluations as f64 / (cpu_time() - started).as_secs_f64();
    println!(
        "{:<66} {:>10.2} M",
        "four paths, and a JSON template of four placeholders",
        rate / 1e6
    );
}
