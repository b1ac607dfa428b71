//! `tidegate bench relay` against nodes: one that it starts itself, and one that runs.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::ask;
use super::faulty_proxy::{AnswerChange, MessageChange, api_proxy, relay_proxy};
use crate::api::own_node;
use crate::support::Node;

fn bench(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(["bench", "relay"]).args(arguments);
    command.args(["--json", "-"]).output().unwrap()
}

fn result(arguments: &[&str]) -> Value {
    let output = bench(arguments);
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}{errors}"))
}

#[test]
fn nothing_is_lost_at_a_node_of_its_own() {
    if !own_node() {
        return;
    }
    let report = result(&[
        "report",
        "--scenario",
        "endpoints",
        "--duration",
        "1s",
        "-q",
    ]);
    let stages = report["stages"].as_array().unwrap();
    assert_eq!(stages.len(), 3, "{report:#}");
    for stage in stages {
        assert_eq!(stage["delivered"], stage["expected"], "{stage:#}");
        assert!(stage["relay_cpu"].is_f64(), "{stage:#}");
    }
}

#[test]
fn all_checks_hold() {
    if !own_node() {
        return;
    }
    let checks = result(&["checks"]);
    let checks = checks["checks"].as_array().unwrap();
    assert_eq!(checks.len(), 4, "{checks:#?}");
    for check in checks {
        assert_eq!(check["failures"], json!([]), "{check:#}");
    }
}

#[test]
fn endpoints_of_a_running_node_are_removed_again() {
    if !own_node() {
        return;
    }
    let node = Node::start(&[]);
    let broker = format!("ws://{}", node.address("ws"));
    let api = format!("http://{}", node.address("http"));
    let token = node.data_dir().join("api.token").display().to_string();
    let target = ["--broker", &broker, "--api", &api, "--token-file", &token];
    let short = ["--warmup", "100ms", "--duration", "500ms", "-q"];
    let load = [
        "connections",
        "--connections",
        "100",
        "--endpoints",
        "10",
        "--hold",
        "1s",
        "--source-addresses",
        "127.0.0.2-127.0.0.4",
    ];
    let measured = result(&[&load[..], &short, &target].concat());
    let measures = &measured["brokers"][0]["measures"];
    for fault in ["lost", "repeated", "reordered", "unexpected", "errors"] {
        assert_eq!(measures[fault], 0.0, "{fault}: {measures:#}");
    }
    result(&[&["checks", "--check", "identify"], &target[..]].concat());
    for objects in ["endpoints", "products", "devices"] {
        let (status, list) = ask(&node, "GET", objects, json!(null));
        assert_eq!(status, 200, "{list}");
        assert!(!list.to_string().contains("bench-"), "{objects}: {list}");
    }
}

/// Accepts a WebSocket connection.
fn accept_websocket(stream: &TcpStream) -> io::Result<()> {
    let mut key = String::new();
    for line in BufReader::new(stream).lines() {
        let line = line?;
        if let Some((name, value)) = line.split_once(": ")
            && name.eq_ignore_ascii_case("sec-websocket-key")
        {
            key = ws::accept_key(value);
        }
        if line.is_empty() {
            break;
        }
    }
    let head = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n";
    (&mut &*stream).write_all(format!("{head}Sec-WebSocket-Accept: {key}\r\n\r\n").as_bytes())
}

/// A relay that takes messages and forwards none. After its first connection has sent this many bytes, it ends, if it ever does; with
/// `None` it does not even answer handshakes.
fn failing_relay(bytes_until_end: Option<usize>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut connections: Vec<TcpStream> = Vec::new();
        let has_ended = Arc::new(AtomicBool::new(false));
        for stream in listener.incoming() {
            let Ok(stream) = stream else { continue };
            if has_ended.load(Ordering::Relaxed) {
                for connection in connections {
                    // Those that have failed need no end.
                    let _ = connection.shutdown(Shutdown::Both);
                }
                return;
            }
            connections.push(stream.try_clone().unwrap());
            let Some(limit) = bytes_until_end else {
                continue;
            };
            let has_ended = has_ended.clone();
            std::thread::spawn(move || -> io::Result<()> {
                accept_websocket(&stream)?;
                io::copy(&mut (&stream).take(limit as u64), &mut io::sink())?;
                has_ended.store(true, Ordering::Relaxed);
                // Ends the loop of the listener.
                TcpStream::connect(address).map(drop)
            });
        }
    });
    address
}

#[test]
fn a_compared_relay_that_ends_or_says_nothing_ends_the_run() {
    if !own_node() {
        return;
    }
    let limit = Duration::from_secs(60);
    let load = [
        "pairs",
        "--pairs",
        "5",
        "--warmup",
        "100ms",
        "--duration",
        "1s",
        "-q",
    ];
    let more = [
        "--connect-timeout",
        "1s",
        "--drain",
        "500ms",
        "--rounds",
        "1",
    ];
    for (bytes, pace, expected) in [
        (
            Some(100),
            ["--window", "20"],
            "no connection is open any more",
        ),
        (
            Some(5000),
            ["--rate", "1000"],
            "no connection is open any more",
        ),
        (None, ["--window", "1"], "no answer within the time limit"),
    ] {
        let relay = format!("ws://{}", failing_relay(bytes));
        let begun = Instant::now();
        let output = bench(&[&load[..], &more, &pace, &["--versus", &relay]].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(begun.elapsed() < limit, "{errors}");
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(errors.contains(expected), "{errors}");
        assert!(
            errors.contains(&relay),
            "the error names the relay: {errors}"
        );
    }
    // One that takes messages and forwards none: they are lost, and the run goes on to its end.
    let relay = format!("ws://{}", failing_relay(Some(usize::MAX >> 8)));
    let begun = Instant::now();
    let output = bench(&[&load[..], &more, &["--versus", &relay]].concat());
    assert!(begun.elapsed() < limit);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let measures = &report["brokers"][1]["measures"];
    assert_eq!(measures["received"], 0.0, "{measures:#}");
    assert!(measures["lost"].as_f64() > Some(0.0), "{measures:#}");
}

/// Runs a check with proxies between it and a node; returns whether it succeeded, and what it found wrong.
fn run_check(check: &str, messages: MessageChange, answers: AnswerChange) -> (bool, String) {
    let node = Node::start(&[]);
    let broker = format!("ws://{}", relay_proxy(node.address("ws"), messages));
    let api = format!("http://{}", api_proxy(node.address("http"), answers));
    let token = node.data_dir().join("api.token").display().to_string();
    let target = ["--broker", &broker, "--api", &api, "--token-file", &token];
    let output = bench(&[&["checks", "--check", check, "-q"][..], &target].concat());
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let report: Value =
        serde_json::from_str(&text).unwrap_or_else(|_| panic!("{check}: {text}{errors}"));
    let failures = report["checks"][0]["failures"].to_string();
    (output.status.success(), failures)
}

fn unchanged_messages() -> MessageChange {
    Arc::new(|_, text| text.into_iter().collect())
}

fn unchanged_answers() -> AnswerChange {
    Arc::new(|_, body| body)
}

/// Changes the first message or answer for which this is possible.
fn once<T: Clone + PartialEq>(change: impl Fn(T) -> T) -> impl Fn(T) -> T {
    let is_done = AtomicBool::new(false);
    move |before: T| {
        let after = change(before.clone());
        match after != before && !is_done.swap(true, Ordering::Relaxed) {
            true => after,
            false => before,
        }
    }
}

/// The first text that contains this is delivered in this way.
fn change_message(
    contained: &'static str,
    change: impl Fn(String) -> Vec<String> + Send + Sync + 'static,
) -> MessageChange {
    let changed = once(move |texts: Vec<String>| match &texts[..] {
        [text] if text.contains(contained) => change(text.clone()),
        _ => texts,
    });
    Arc::new(move |_, text| changed(text.into_iter().collect()))
}

/// A message to the first client, which is the bystander, that nobody has sent.
fn message_to_bystander() -> MessageChange {
    Arc::new(|number, text| match (number, text) {
        (0, None) => vec!["{\"type\":\"control\"}".to_owned()],
        (_, text) => text.into_iter().collect(),
    })
}

/// A field of the endpoint's status is larger by one.
fn change_status(field: &'static str) -> AnswerChange {
    Arc::new(move |path, body| {
        if !path.ends_with("/status") {
            return body;
        }
        let mut status: Value = serde_json::from_str(&body).unwrap();
        status[field] = (status[field].as_u64().unwrap() + 1).into();
        status.to_string()
    })
}

/// The first answer that contains the text contains another one.
fn change_answer(text: &'static str, other: &'static str) -> AnswerChange {
    let changed = once(move |body: String| body.replace(text, other));
    Arc::new(move |_, body| changed(body))
}

#[track_caller]
fn assert_fails(check: &str, messages: MessageChange, answers: AnswerChange, expected: &str) {
    let (is_success, failures) = run_check(check, messages, answers);
    assert!(
        !is_success && failures.contains(expected),
        "{check}: {failures}"
    );
}

#[test]
fn checks_hold_behind_proxies_that_change_nothing() {
    if !own_node() {
        return;
    }
    for check in ["identify", "slow-receivers", "disconnects", "commands"] {
        let (is_success, failures) = run_check(check, unchanged_messages(), unchanged_answers());
        assert!(is_success, "{check}: {failures}");
    }
}

#[test]
fn the_check_of_identify_finds_faults() {
    if !own_node() {
        return;
    }
    let identified = |text: String| vec![text.replace("device-3", "device-4")];
    let identified = change_message("\"device-3\"", identified);
    assert_fails(
        "identify",
        identified,
        unchanged_answers(),
        "devices identified: 99",
    );
    let offline = change_answer("\"online\"", "\"offline\"");
    assert_fails(
        "identify",
        unchanged_messages(),
        offline,
        "devices online: 99",
    );
    let repeated = change_message("identified", |text| vec![text.clone(), text]);
    let expected = "devices whose next message was the one sent to all: 99";
    assert_fails("identify", repeated, unchanged_answers(), expected);
    let expected = "messages to a bystander: 1";
    assert_fails(
        "identify",
        message_to_bystander(),
        unchanged_answers(),
        expected,
    );
}

#[test]
fn the_check_of_slow_receivers_finds_faults() {
    if !own_node() {
        return;
    }
    let check = "slow-receivers";
    let dropped = change_status("dropped_messages");
    let expected = "dropped according to the statistics";
    assert_fails(check, unchanged_messages(), dropped, expected);
    let warned = change_message("RATE_LIMIT_WARNING", |text| {
        vec![text.replace("too slowly: ", "too slowly: 1")]
    });
    let expected = "dropped according to warnings";
    assert_fails(check, warned, unchanged_answers(), expected);
    let lost = AtomicBool::new(false);
    // The senders connect first; the last but two connections are receivers that read.
    let lost: MessageChange = Arc::new(move |number, text| match text {
        Some(_) if number == 5 && !lost.swap(true, Ordering::Relaxed) => Vec::new(),
        text => text.into_iter().collect(),
    });
    assert_fails(check, lost, unchanged_answers(), "lost by others: 1");
}

#[test]
fn the_check_of_disconnects_finds_faults() {
    if !own_node() {
        return;
    }
    let check = "disconnects";
    for (field, expected) in [
        ("current_connections", "connections afterwards: 51"),
        ("total_connections", "connections in total: 151"),
        ("total_messages", "messages in total: 51"),
    ] {
        assert_fails(check, unchanged_messages(), change_status(field), expected);
    }
    let repeated = change_message("sender", |text| vec![text.clone(), text]);
    let expected = "messages delivered afterwards: 2449";
    assert_fails(check, repeated, unchanged_answers(), expected);
}

#[test]
fn the_check_of_commands_finds_faults() {
    if !own_node() {
        return;
    }
    let repeated = change_message("control", |text| vec![text.clone(), text]);
    let expected = "other messages to devices: 1";
    assert_fails("commands", repeated, unchanged_answers(), expected);
    let failed = change_answer("\"success\"", "\"failed\"");
    let expected = "requests with the result of the device: 999";
    assert_fails("commands", unchanged_messages(), failed, expected);
    let expected = "messages to a bystander: 1";
    assert_fails(
        "commands",
        message_to_bystander(),
        unchanged_answers(),
        expected,
    );
}
