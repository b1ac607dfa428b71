//! `tidegate bench relay` against nodes: one that it starts itself, and one that runs.

use std::process::{Command, Output};

use serde_json::{Value, json};

use super::ask;
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
    for fault in ["lost", "repeated", "reordered", "strange", "errors"] {
        assert_eq!(measures[fault], 0.0, "{fault}: {measures:#}");
    }
    result(&[&["checks", "--check", "identify"], &target[..]].concat());
    for objects in ["endpoints", "products", "devices"] {
        let (status, list) = ask(&node, "GET", objects, json!(null));
        assert_eq!(status, 200, "{list}");
        assert!(!list.to_string().contains("bench-"), "{objects}: {list}");
    }
}
