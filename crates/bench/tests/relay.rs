//! `tidegate bench relay` from its command line to its JSON, against a relay that is right, and one that is wrong on purpose.

mod fake_relay;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};

use clap::Parser;
use fake_relay::{FakeRelay, RelayFaults};
use serde_json::Value;

#[derive(Parser)]
struct Program {
    #[command(flatten)]
    bench: bench::BenchArgs,
}

/// Runs a scenario; whether it succeeded, and its JSON.
fn run(relay: &FakeRelay, line: &str) -> (bool, Value) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let file = format!("relay-{}-{number}.json", std::process::id());
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(file);
    let address = relay.address;
    let json = file.display();
    let line = format!("bench relay {line} --quiet --broker ws://{address}/rooms --json {json}");
    let program = Program::parse_from(line.split_whitespace());
    let code = bench::run(program.bench).expect("it can be measured");
    let text = std::fs::read(&file).expect("a result");
    std::fs::remove_file(&file).expect("it is ours");
    let is_success = format!("{code:?}") == format!("{:?}", ExitCode::SUCCESS);
    (is_success, serde_json::from_slice(&text).expect("JSON"))
}

fn metric(result: &Value, name: &str) -> f64 {
    result["brokers"][0]["measures"][name]
        .as_f64()
        .unwrap_or_else(|| panic!("no {name} in {result}"))
}

const SHORT: &str = "--warmup 50ms --duration 300ms --drain 500ms";

#[test]
fn a_relay_that_is_right_is_without_fault() {
    let relay = FakeRelay::start(RelayFaults::default());
    for scenario in [
        "fanout --receivers 7 --endpoints 2 --window 3",
        "pairs --pairs 3 --rate 300 --mode json --payload 200",
        "connections --connections 12 --endpoints 3 --deliveries 300 --hold 50ms",
    ] {
        let (is_success, result) = run(&relay, &format!("{scenario} {SHORT}"));
        assert!(is_success, "{scenario}: {result}");
        for fault in [
            "lost",
            "repeated",
            "reordered",
            "unexpected",
            "errors",
            "unsent",
        ] {
            assert_eq!(metric(&result, fault), 0.0, "{scenario}, {fault}: {result}");
        }
        assert!(metric(&result, "received") > 0.0, "{scenario}: {result}");
        assert!(metric(&result, "p99") > 0.0, "{scenario}: {result}");
    }
}

#[test]
fn two_relays_are_measured_in_turn() {
    let (relay, peer) = (
        FakeRelay::start(RelayFaults::default()),
        FakeRelay::start(RelayFaults::default()),
    );
    let line = format!(
        "pairs --pairs 2 --rounds 2 --versus ws://{} {SHORT}",
        peer.address
    );
    let (is_success, result) = run(&relay, &line);
    assert!(is_success, "{result}");
    assert_eq!(
        result["brokers"].as_array().map(Vec::len),
        Some(2),
        "{result}"
    );
    assert!(result["ratios"]["ratio"].is_f64(), "{result}");
}

#[test]
fn the_report_compares_with_what_was_published() {
    let relay = FakeRelay::start(RelayFaults::default());
    let (is_success, result) = run(&relay, "report --duration 300ms");
    assert!(is_success, "{result:#}");
    let stages = result["stages"].as_array().expect("stages");
    assert_eq!(stages.len(), 10, "{result:#}");
    for stage in stages {
        assert_eq!(stage["delivered"], stage["expected"], "{stage:#}");
        assert_eq!(stage["unsent"], 0, "{stage:#}");
        assert!(stage["sent"].as_u64() > Some(0), "{stage:#}");
    }
    assert_eq!(stages[9]["published"]["received"], 71_050);
    // 50 endpoints with 5 connections: each message goes to 4.
    let sent = stages[5]["sent"].as_u64().expect("a number");
    assert_eq!(stages[5]["expected"], 4 * sent, "{result:#}");
}

#[test]
fn faults_are_found() {
    let faults = |set: fn(&mut RelayFaults)| {
        let mut faults = RelayFaults::default();
        set(&mut faults);
        faults
    };
    let cases = [
        ("lost", faults(|faults| faults.lose_every = 10)),
        ("repeated", faults(|faults| faults.repeat_every = 10)),
        ("reordered", faults(|faults| faults.delay_every = 10)),
        ("unexpected", faults(|faults| faults.damage_every = 10)),
        ("unexpected", faults(|faults| faults.echo_every = 10)),
    ];
    for (fault, faults) in cases {
        let relay = FakeRelay::start(faults);
        let (_, result) = run(&relay, &format!("fanout --receivers 2 --rate 200 {SHORT}"));
        assert!(metric(&result, fault) > 0.0, "{fault}: {result}");
        let (is_success, result) = run(&relay, "report --scenario rate --duration 300ms");
        assert!(!is_success, "{fault}: {result:#}");
    }
}
