//! A disk queue whose process is killed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::{ServerKind, TestServer, processes};

use crate::node::{ConnectorNode, assert_all_in_order, push};

/// Set in the process that pushes and is killed: the directory and the address of the server.
const CHILD: &str = "TIDEGATE_TEST_SINK_CHILD";
const PATIENCE: Duration = Duration::from_secs(60);

fn settings(address: &str) -> (Value, Value) {
    let connector = json!({
        "type": "redis", "server": address, "username": testkit::USER, "password": testkit::PASSWORD
    });
    let sink = json!({
        "connector": "c", "command": "RPUSH all ${n}", "order": {"by": "${device}"}, "batch": {"max_rows": 50},
        "queue": {"disk": {"sync": "never"}}, "retry": {"initial_delay_ms": 10, "max_delay_ms": 100}
    });
    (connector, sink)
}

fn node(directory: &Path, address: &str) -> (ConnectorNode, connect::SinkId) {
    let (connector, sink) = settings(address);
    let node = ConnectorNode::start(Some(directory));
    node.service.set_connector("c", &connector).unwrap();
    let sink = node.service.set_sink("s", &sink).unwrap();
    (node, sink)
}

/// Pushes numbers from that in a file on, and updates the file once those rows are in files of the queue.
#[test]
#[ignore = "the child process that another test kills"]
fn child_that_is_killed() {
    let parameters = std::env::var(CHILD).expect("started by the test that kills it");
    let (directory, address) = parameters.split_once('|').unwrap();
    let directory = PathBuf::from(directory);
    let progress = directory.join("progress");
    let (node, sink) = node(&directory, address);
    let text = std::fs::read_to_string(&progress).unwrap_or_default();
    let mut n: i64 = text.parse().unwrap_or(0);
    loop {
        for _ in 0..100 {
            // One shard, so that the rows of a device have one order.
            push(&node.service, sink, 0, n);
            n += 1;
        }
        node.until("rows are in files", |status| {
            status.metrics.queued_in_memory == 0
        });
        let beside = directory.join("progress.new");
        std::fs::write(&beside, n.to_string()).unwrap();
        std::fs::rename(&beside, &progress).unwrap();
    }
}

#[test]
fn rows_in_files_survive_kill_9() {
    let Some(server) = TestServer::start_or_skip(ServerKind::Redis) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let progress = || -> i64 {
        let text = std::fs::read_to_string(directory.path().join("progress"));
        text.unwrap_or_default().parse().unwrap_or(0)
    };
    let address = server.address().to_string();
    for round in 0..6 {
        // In every other round there is no server, so that many rows stay in the files.
        if round % 2 == 1 {
            server.kill();
        }
        let before = progress();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["disk::child_that_is_killed", "--exact", "--ignored"]);
        command.env(CHILD, format!("{}|{address}", directory.path().display()));
        command.stdout(std::process::Stdio::null());
        let mut child = processes::spawn(command);
        let deadline = Instant::now() + PATIENCE;
        while progress() < before + 1500 {
            assert!(Instant::now() < deadline, "the child does not get on");
            std::thread::sleep(Duration::from_millis(2));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        if round % 2 == 1 {
            server.start();
        }
    }
    let pushed = progress();
    let (node, _) = node(directory.path(), &address);
    node.until("all is written", |status| {
        status.state == connect::SinkState::Running && status.metrics.queued == 0
    });
    node.stop();
    let values = server.redis(&["LRANGE", "all", "0", "-1"]);
    let rows = values.into_iter().flatten().map(|n| n.parse().unwrap());
    // The last rows of a child may be stored although it could not record them; the next child pushes them again.
    let rows: Vec<i64> = rows.filter(|n| *n < pushed).collect();
    assert_all_in_order(&rows, pushed);
}
