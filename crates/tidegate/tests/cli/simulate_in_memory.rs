//! `tidegate simulate` with `target.broker = "memory:"`: devices and their node in one process, connected without sockets.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::program::{ProgramResult, tidegate};
use crate::simulate::simulate;

/// Far fewer than there are devices.
const OPEN_FILES: u32 = 400;

fn write_simulation(folder: &Path, text: &str) -> PathBuf {
    let file = folder.join("fleet.toml");
    fs::write(&file, format!("[target]\nbroker = \"memory:\"\n{text}")).unwrap();
    file
}

/// Runs a simulation that may have few files open.
fn simulate_with_few_files(file: &Path, arguments: &[&str]) -> ProgramResult {
    let program = tidegate(&[&["simulate", file.to_str().unwrap()], arguments].concat());
    let mut command = Command::new("/bin/sh");
    command.args([
        "-c",
        &format!("ulimit -n {OPEN_FILES} && exec \"$0\" \"$@\""),
    ]);
    command.arg(program.get_program()).args(program.get_args());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    ProgramResult::of(command.stdin(Stdio::null()).output().unwrap())
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

const FLEET: &str = r#"
[fleet.meters]
count = 2000
id = "meter-{index}"
qos = 1
state = { temperature = { walk = { start = [18, 22], step = 0.5 } } }
send = [{ every = "2s", topic = "site/{id}", payload = '{"t": {state.temperature}, "stamp": "{stamp}"}' }]
on = [{ kind = "topic", topic = "to/{id}", answer_topic = "from/{id}", answer = "yes" }]

[verify]
topics = ["site/+"]
subscribers = 2
assert = ["repeated==0"]

[[phase]]
name = "connect"
load = 0.0
assert = ["connected==2000", "connects==2000", "connect_failures==0"]

[[phase]]
name = "steady"
duration = "3s"
assert = ["connected==2000", "disconnects==0", "rejected==0", "sent>=2000", "resident_bytes<4GiB"]

[[phase]]
name = "faults"
duration = "3s"
reconnect = { delay = "0s", backoff = false }
assert = ["connected==1000", "reconnects>=900", "connect_failures==0"]
devices = "50%"

[[phase.fault]]
kind = "abort"
after = "500ms"
devices = "50%"

[[phase.fault]]
kind = "close"
after = "1s"
devices = "50%"
"#;

#[test]
fn more_devices_than_open_files_connect_to_a_node_in_the_same_process() {
    let folder = tempfile::tempdir().unwrap();
    let file = write_simulation(folder.path(), FLEET);
    for shards in [1, 3] {
        let set = format!("target.node.shards={shards}");
        let report = simulate_with_few_files(&file, &["--json", "--set", &set]);
        let report = json(&report.succeeded());
        assert_eq!(report["holds"], true, "{report:#}");
        assert_eq!(report["in_memory"], true, "{report:#}");
        let metrics = &report["phases"][1]["metrics"];
        assert!(metrics["device_bytes"].as_u64() > Some(0), "{report:#}");
        for phase in 0..2 {
            let failures = &report["phases"][phase]["failures"];
            assert_eq!(*failures, serde_json::json!({}), "{report:#}");
        }
        // An aborted connection may lose the messages that wait for their acknowledgement, and nothing else.
        let lost = report["verification"]["metrics"]["lost"].as_u64().unwrap();
        let unacknowledged: u64 = (report["phases"].as_array().unwrap().iter())
            .filter_map(|phase| phase["metrics"]["unacknowledged"].as_u64())
            .sum();
        assert!(lost <= unacknowledged, "{report:#}");
    }
}

#[test]
fn registered_devices_of_an_earlier_run_connect_to_its_data() {
    let folder = tempfile::tempdir().unwrap();
    let text = r#"
node = { data_dir = "data", shards = 2 }

[product.meter]
protocol = "thingsboard"

[fleet.meters]
product = "meter"
count = 300
id = "meter-{index}"
qos = 1
state.temperature = { walk = { start = 20, step = 0.2 } }
send = [{ every = "1s", kind = "telemetry" }]

[[phase]]
name = "connect"
assert = ["connected==300", "connect_failures==0"]

[[phase]]
name = "steady"
duration = "2s"
assert = ["rejected==0", "acknowledged>=300"]
"#;
    let file = write_simulation(folder.path(), text);
    let create = ["--keep", "--set", "product.meter.create=true"];
    let created = simulate(&file, &create).succeeded();
    let in_memory =
        "Devices and node were in one process, and connections in memory, without sockets.";
    assert!(created.contains(in_memory), "{created}");
    // The node has started again, and reads the devices from its store.
    let report = simulate(&file, &["--json"]).succeeded();
    assert_eq!(json(&report)["holds"], true, "{report}");
    let removed = simulate(&file, &["--clean", "--set", "product.meter.create=true"]);
    assert!(removed.succeeded().contains("removed 300 devices"));
    assert!(!folder.path().join("data/node.json").exists());
}

#[test]
fn a_temporary_node_creates_devices_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let text = "[product.demo-device]\ncreate = true\nprotocol = \"jetlinks\"\n[fleet.devices]\nproduct = \"demo-device\"\n\
                count = 100\nid = \"test-{index}\"\n[[phase]]\nname = \"connect\"\nassert = [\"connected==100\"]\n";
    let file = write_simulation(folder.path(), text);
    let temporary = folder.path().join("tmp");
    fs::create_dir(&temporary).unwrap();
    let mut command = tidegate(&["simulate", file.to_str().unwrap()]);
    let output = command.env("TMPDIR", &temporary).output().unwrap();
    ProgramResult::of(output).succeeded();
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0);
}

#[test]
fn what_needs_sockets_is_an_error_that_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let file = write_simulation(
        folder.path(),
        "[fleet.meters]\ncount = 4\n[[phase]]\nname = \"a\"\n",
    );
    for (arguments, expected) in [
        (
            &["--machines", "1/2"][..],
            "target.broker: with --machines, all machines need the same node",
        ),
        (&["--keep"], "set target.node.data_dir"),
        (
            &["--set", "target.ca_file=a.pem"],
            "target.ca_file: connections in memory are without TLS",
        ),
        (
            &[
                "--set",
                "target.broker=mqtt://127.0.0.1:9",
                "--set",
                "target.node.shards=1",
            ],
            "target.node: is for a node in this process; set target.broker = \"memory:\"",
        ),
    ] {
        let error = simulate(&file, arguments).failed(2);
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
    let checked = simulate(&file, &["--check"]).succeeded();
    assert!(checked.contains("The file is valid."), "{checked}");
}

/// The memory of idle connections, in a release build: `cargo test --release -p tidegate --test cli in_memory -- --ignored`.
#[test]
#[ignore = "takes minutes; run it with --ignored"]
fn a_hundred_thousand_idle_devices_connect() {
    let folder = tempfile::tempdir().unwrap();
    let text = "[fleet.meters]\ncount = 100000\nkeep_alive = \"5m\"\n\
                [[phase]]\nname = \"connect\"\nconnect_concurrency = 1000\nassert = [\"connected==100000\", \"connect_failures==0\"]\n\
                [[phase]]\nname = \"idle\"\nduration = \"20s\"\nassert = [\"disconnects==0\", \"device_bytes<4KiB\"]\n";
    let file = write_simulation(folder.path(), text);
    let report = simulate_with_few_files(&file, &[]).succeeded();
    println!("{report}");
}
