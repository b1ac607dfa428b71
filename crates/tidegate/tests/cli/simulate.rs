//! `tidegate simulate`: fleets from a file report to a real node, answer it, and fail with an explanation.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::Value;

use crate::program::{Node, RunningProgram, run, tidegate};

/// Writes a simulation whose broker is the node.
pub(crate) fn simulation(folder: &Path, node: Option<&Node>, text: &str) -> PathBuf {
    let broker = node.map_or("127.0.0.1:9".to_owned(), |node| node.address("mqtt"));
    let file = folder.join("fleet.toml");
    fs::write(
        &file,
        format!("[target]\nbroker = \"mqtt://{broker}\"\n{text}"),
    )
    .unwrap();
    file
}

pub(crate) fn simulate(file: &Path, arguments: &[&str]) -> crate::program::ProgramResult {
    run(&[&["simulate", file.to_str().unwrap()], arguments].concat())
}

pub(crate) fn ctl(node: &Node, arguments: &[&str]) -> Value {
    let data_dir = node.data_dir().display().to_string();
    let all = [&["ctl", "--json", "--data-dir", &data_dir], arguments].concat();
    serde_json::from_str(&run(&all).succeeded()).unwrap()
}

/// Waits for stored telemetry of a device with this key, which comes after the device is online.
pub(crate) fn wait_for_telemetry(node: &Node, device: &str, key: &str) {
    let key = format!("\"key\":\"{key}\"");
    let deadline = std::time::Instant::now() + crate::program::DEADLINE;
    loop {
        let latest = ctl(node, &["telemetry", "latest", device]);
        if latest.to_string().contains(&key) {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "{device}: {latest}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

const FLEET: &str = r#"
[fleet.meters]
count = 20
id = "meter-{index}"
qos = 1

[fleet.meters.state]
temperature = { walk = { start = [18, 22], step = 0.5, min = 10, max = 30 }, decimals = 1 }
state = { choice = { values = ["a", "b"] } }

[[fleet.meters.send]]
every = "200ms"
topic = "site/{id}"
payload = '{"n": {message}, "t": {state.temperature}, "s": "{state.state}"}'
"#;

#[test]
fn a_fleet_goes_through_its_phases() {
    let node = Node::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    for version in ["3.1.1", "5"] {
        let phases = r#"
[[phase]]
name = "half"
devices = "50%"
connect_rate = 200
assert = ["connected==10", "connects==10"]

[[phase]]
name = "all"
duration = "1s"
burst = 2
assert = ["connected==20", "disconnects==0", "rejected==0", "sent>=40"]

[[phase]]
name = "few"
duration = "500ms"
devices = 0.1
load = [1.0, 4.0]
assert = ["connected==2", "ack_p99<30s"]
"#;
        let file = simulation(folder.path(), Some(&node), &format!("{FLEET}{phases}"));
        let set = format!("target.version=\"{version}\"");
        let report = simulate(&file, &["--json", "--set", &set]).succeeded();
        let report: Value = serde_json::from_str(&report).unwrap();
        assert_eq!(report["holds"], true, "{report:#}");
        assert_eq!(
            report["phases"][1]["failures"],
            serde_json::json!({}),
            "{report:#}"
        );
        let sum = |name: &str| -> u64 {
            let phases = report["phases"].as_array().unwrap();
            phases
                .iter()
                .map(|phase| phase["metrics"][name].as_u64().unwrap())
                .sum()
        };
        assert_eq!(sum("sent"), sum("acknowledged"), "{report:#}");
    }
}

#[test]
fn conditions_that_do_not_hold_fail_the_command() {
    let node = Node::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let phase = "[[phase]]\nname = \"a\"\nassert = [\"connected==21\"]\n";
    let file = simulation(folder.path(), Some(&node), &format!("{FLEET}{phase}"));
    let result = simulate(&file, &[]);
    assert_eq!(result.code, Some(1), "{result:?}");
    assert!(
        result
            .stdout
            .contains("FAILS: connected==21 (connected is 20)"),
        "{result:?}"
    );
}

#[test]
fn a_report_page_shows_the_run() {
    let node = Node::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let phase = "[[phase]]\nname = \"steady\"\nduration = \"2s\"\nassert = [\"connected==21\"]\n";
    let file = simulation(folder.path(), Some(&node), &format!("{FLEET}{phase}"));
    let page = folder.path().join("report.html");
    let page = page.to_str().unwrap();
    let result = simulate(&file, &["--report", page]);
    assert_eq!(result.code, Some(1), "{result:?}");
    let text = fs::read_to_string(page).unwrap();
    for part in [
        ">steady<",
        "connected==21",
        ">fails<",
        "Messages per second",
        "Mean time to",
    ] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
    let folder = folder.path().to_str().unwrap();
    let result = simulate(&file, &["--report", folder]);
    assert!(
        result.stderr.contains("cannot write the report"),
        "{result:?}"
    );
}

#[test]
fn a_broker_that_does_not_answer_is_counted_and_described() {
    let folder = tempfile::tempdir().unwrap();
    let phase = "[[phase]]\nname = \"a\"\n";
    let file = simulation(folder.path(), None, &format!("{FLEET}{phase}"));
    let report = simulate(&file, &[]).succeeded();
    assert!(report.contains("failure: connection refused: "), "{report}");
    assert!(report.contains("meter-0: connection refused"), "{report}");
}

#[test]
fn an_interrupted_run_disconnects_and_reports() {
    let node = Node::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let file = simulation(folder.path(), Some(&node), FLEET);
    let mut running = RunningProgram::start(tidegate(&["simulate", file.to_str().unwrap()]));
    let deadline = std::time::Instant::now() + crate::program::DEADLINE;
    while ctl(&node, &["clients", "list"])
        .as_array()
        .is_none_or(|clients| clients.len() < 20)
    {
        assert!(std::time::Instant::now() < deadline);
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    running.signal(Signal::INT);
    assert!(running.ends_within(crate::program::DEADLINE));
    assert!(
        ctl(&node, &["clients", "list"])
            .as_array()
            .unwrap()
            .is_empty()
    );
}

#[test]
fn devices_of_each_protocol_report_and_answer() {
    let node = Node::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let mut text = String::new();
    let model = r#"model={"properties": [{"id": "level", "valueType": {"type": "int"}}], "functions": [{"id": "open", "inputs": []}]}"#;
    for protocol in ["thingsboard", "jetlinks", "native"] {
        ctl(&node, &["products", "add", protocol, model]);
        let credentials = format!(r#"[{{"type": "token", "token": "{protocol}-0"}}]"#);
        ctl(
            &node,
            &[
                "devices",
                "add",
                &format!("{protocol}-0"),
                "--product",
                protocol,
                "--credentials",
                &credentials,
            ],
        );
        text += &format!(
            r#"
[product.{protocol}]
protocol = "{protocol}"
[fleet.{protocol}]
product = "{protocol}"
count = 1
state.level = 7
send = [{{ every = "100ms", kind = "telemetry", qos = 1 }}]
on = [
  {{ kind = "function", method = "open", delay = "10ms" }},
  {{ kind = "read" }},
  {{ kind = "write", failure = 1.0 }},
]
"#
        );
    }
    let file = simulation(folder.path(), Some(&node), &text);
    let mut running = RunningProgram::start(tidegate(&["simulate", file.to_str().unwrap()]));
    for protocol in ["thingsboard", "jetlinks", "native"] {
        let device = format!("{protocol}-0");
        let command = |arguments: &[&str]| ctl(&node, &[&["commands"], arguments].concat());
        let deadline = std::time::Instant::now() + crate::program::DEADLINE;
        while ctl(&node, &["devices", "show", &device])["state"] != "online" {
            assert!(std::time::Instant::now() < deadline, "{device}");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let opened = command(&["invoke", &device, "open"]);
        assert_eq!(opened["state"], "success", "{opened}");
        let read = command(&["read", &device, "level"]);
        assert_eq!(read["state"], "success", "{read}");
        assert!(read["result"].to_string().contains("\"level\":7"), "{read}");
        wait_for_telemetry(&node, &device, "level");
        let latest = ctl(&node, &["telemetry", "latest", &device]);
        assert_eq!(latest[0]["value"], 7, "{latest}");
    }
    // ThingsBoard's protocol has no failed answers.
    for protocol in ["jetlinks", "native"] {
        let data_dir = node.data_dir().display().to_string();
        let device = format!("{protocol}-0");
        let all = [
            "ctl",
            "--json",
            "--data-dir",
            &data_dir,
            "commands",
            "write",
            &device,
            "level=8",
        ];
        let result = run(&all);
        assert_ne!(result.code, Some(0), "{result:?}");
        assert!(
            format!("{result:?}").contains("simulated failure"),
            "{result:?}"
        );
    }
    running.signal(Signal::TERM);
    assert!(running.ends_within(crate::program::DEADLINE));
}

#[test]
fn previews_are_the_same_for_the_same_seed() {
    let folder = tempfile::tempdir().unwrap();
    let file = simulation(folder.path(), None, FLEET);
    let preview = |seed: &str| simulate(&file, &["--preview", "100", "--seed", seed]).succeeded();
    let first = preview("5");
    assert_eq!(first.lines().count(), 100);
    assert_eq!(first, preview("5"));
    assert_ne!(first, preview("6"));
    let line = simulate(&file, &["--preview", "1", "--json"]).succeeded();
    let line: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(line["payload"]["n"], 1, "{line}");
    let temperature = line["payload"]["t"].as_f64().unwrap();
    assert!((18.0..=22.0).contains(&temperature), "{line}");
}

#[test]
fn errors_of_a_file_have_lines() {
    let folder = tempfile::tempdir().unwrap();
    let text = r#"
[fleet.meters]
count = 2
product = "none"
id = "meter"
[fleet.meters.state]
a = { walk = { start = 0, step = 1 }, list = [1] }
[[fleet.meters.send]]
every = "1s"
topic = "a/{state.b}"
payload = "{indx}"
"#;
    let file = simulation(folder.path(), None, text);
    let errors = simulate(&file, &["--check"]).failed(2);
    for part in [
        "fleet.toml:6:1: fleet.meters.product: unknown product `none`",
        "fleet.toml:7:1: fleet.meters.id: must contain {index}",
        "fleet.toml:9:1: fleet.meters.state.a: expected one generator, found `list` and `walk`",
        "fleet.toml:12:1: fleet.meters.send[0].topic: `{state.b}`",
        "fleet.toml:13:1: fleet.meters.send[0].payload: unknown placeholder `{indx}`",
    ] {
        assert!(errors.contains(part), "{part}\n{errors}");
    }
    let wrong = simulate(&file, &["--check", "--set", "fleet.meters.cuont=3"]).failed(2);
    assert!(
        wrong.contains("--set fleet.meters.cuont=3") && wrong.contains("did you mean `count`?"),
        "{wrong}"
    );
    let kind = simulate(
        &file,
        &["--check", "--set", "fleet.meters.send[0].kind=telemtry"],
    );
    let kind = kind.failed(2);
    assert!(kind.contains("did you mean `telemetry`?"), "{kind}");
    let name = run(&["simulate", "wether", "--check"]).failed(1);
    assert!(name.contains("did you mean `weather`?"), "{name}");
    let missing = simulate(&folder.path().join("none.toml"), &[]).failed(1);
    assert!(
        missing.contains("none.toml") && missing.contains("--list"),
        "{missing}"
    );
}

#[test]
fn faults_end_connections_and_devices_return() {
    let node = Node::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    for kind in ["disconnect", "close", "abort"] {
        let phases = format!(
            r#"
[[phase]]
name = "connect"

[[phase]]
name = "faults"
duration = "1s"
assert = ["faults==5", "reconnects==5", "connected==20", "connect_failures==0"]

[[phase.fault]]
kind = "{kind}"
devices = "25%"
region = true
duration = "100ms"
"#
        );
        let fleet = FLEET.replace(
            "qos = 1",
            "qos = 1\nreconnect = { delay = \"0s\", backoff = false }",
        );
        let file = simulation(folder.path(), Some(&node), &format!("{fleet}{phases}"));
        simulate(&file, &[]).succeeded();
    }
}

#[test]
fn faults_make_devices_silent_and_wrong() {
    let node = Node::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let phases = r#"
[[phase]]
name = "connect"
load = 0.0

[[phase]]
name = "silence"
duration = "500ms"
assert = ["faults==20", "sent==0"]
[[phase.fault]]
kind = "silence"
duration = "1h"

[[phase]]
name = "slow"
duration = "500ms"
assert = ["sent>0", "acknowledged==0"]
[[phase.fault]]
kind = "slow_reader"
duration = "1h"

[[phase]]
name = "wrong"
duration = "500ms"
assert = ["acknowledged>0"]
[[phase.fault]]
kind = "invalid_payload"
duration = "1h"
"#;
    let subscriber = node.subscriber(&["-t", "site/#", "-C", "500"]);
    let file = simulation(folder.path(), Some(&node), &format!("{FLEET}{phases}"));
    simulate(&file, &[]).succeeded();
    subscriber.signal(Signal::INT);
    let stdout = subscriber.end().stdout;
    let is_json = |line: &str| serde_json::from_str::<Value>(line).is_ok();
    assert!(
        stdout.lines().any(is_json) && !stdout.lines().all(is_json),
        "{stdout}"
    );
}

#[test]
fn ready_made_simulations_run_at_small_scale() {
    let node = Node::start(&[]);
    let list = run(&["simulate", "--list"]).succeeded();
    assert_eq!(list.lines().count(), 12, "{list}");
    let broker = format!("target.broker=mqtt://{}", node.address("mqtt"));
    for line in list.lines() {
        let name = line.split_whitespace().next().unwrap();
        if ["demo", "relay-room", "firmware-campaign"].contains(&name) {
            // They create objects on the node; see `demo`, `simulate_protocols` and `simulate_updates`.
            continue;
        }
        let text = run(&["simulate", name, "--print"]).succeeded();
        let mut arguments = vec!["simulate".to_owned(), name.to_owned(), "--json".to_owned()];
        let mut set = |argument: String| arguments.extend(["--set".to_owned(), argument]);
        set(broker.clone());
        set("fleet.devices.count=20".to_owned());
        for phase in 1..text.matches("[[phase]]").count() {
            set(format!("phase[{phase}].duration=300ms"));
        }
        for send in 0..text.matches("[[fleet.devices.send]]").count() {
            set(format!("fleet.devices.send[{send}].every=100ms"));
            set(format!("fleet.devices.send[{send}].jitter=0s"));
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let report: Value = serde_json::from_str(&run(&arguments).succeeded()).unwrap();
        let phases = report["phases"].as_array().unwrap();
        // A gateway has the only connection of its children.
        let connects = if name == "gateway" { 1 } else { 20 };
        assert_eq!(phases[0]["metrics"]["connects"], connects, "{report:#}");
        let sent: u64 = phases
            .iter()
            .map(|phase| phase["metrics"]["sent"].as_u64().unwrap())
            .sum();
        assert!(sent > 0, "{report:#}");
        assert!(
            phases
                .iter()
                .all(|phase| phase["failures"] == serde_json::json!({})),
            "{report:#}"
        );
    }
}

/// A simulation that creates its product and devices.
fn created_fleet(folder: &Path, node: &Node, phases: &str) -> PathBuf {
    let text = format!(
        r#"
api = "http://{}"
token_file = "{}"
[product.simulated]
protocol = "native"
create = true
fields = {{ name = "Simulated meters" }}
[fleet.meters]
product = "simulated"
count = 20
id = "simulated-{{index}}"
qos = 1
state.level = 7
send = [{{ every = "100ms", kind = "telemetry" }}]
{phases}"#,
        node.address("http"),
        node.data_dir().join("api.token").display(),
    );
    simulation(folder, Some(node), &text)
}

pub(crate) fn device_count(node: &Node) -> u64 {
    ctl(node, &["devices", "count"])["devices"]
        .as_u64()
        .unwrap()
}

#[test]
fn devices_are_created_for_a_run_and_removed_after_it() {
    let node = Node::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    ctl(&node, &["products", "add", "mine"]);
    ctl(&node, &["devices", "add", "mine-1", "--product", "mine"]);
    let phases = r#"
[[phase]]
name = "connect"
assert = ["connects==20", "connect_failures==0"]
[[phase]]
name = "steady"
duration = "500ms"
assert = ["acknowledged>20", "disconnects==0"]
"#;
    let file = created_fleet(folder.path(), &node, phases);
    simulate(&file, &[]).succeeded();
    assert_eq!(device_count(&node), 1);
    assert!(
        !ctl(&node, &["products", "list"])
            .to_string()
            .contains("simulated")
    );

    // Devices and products of others are neither used nor removed.
    ctl(
        &node,
        &["devices", "add", "simulated-7", "--product", "mine"],
    );
    let refused = simulate(&file, &[]).failed(1);
    assert!(
        refused.contains("does not accept 1 devices") && refused.contains("--clean"),
        "{refused}"
    );
    assert_eq!(device_count(&node), 2);
    ctl(&node, &["products", "add", "simulated"]);
    let refused = simulate(&file, &[]).failed(1);
    assert!(
        refused.contains("the product `simulated` exists"),
        "{refused}"
    );
    let cleaned = simulate(&file, &["--clean"]).succeeded();
    assert_eq!(cleaned, "removed 0 devices and 0 other objects\n");
    assert_eq!(device_count(&node), 2);
}

#[test]
fn round_trips_of_commands_are_measured() {
    let node = Node::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let phases = r#"
on = [{ kind = "command", delay = "20ms" }]
[[command]]
fleet = "meters"
method = "reboot"
rate = 50
[[phase]]
name = "connect"
load = 0.0
[[phase]]
name = "steady"
duration = "2s"
assert = ["commands>20", "failed_commands==0", "command_p50>=20ms", "command_p99<30s"]
"#;
    let file = created_fleet(folder.path(), &node, phases);
    let report = simulate(&file, &["--json"]).succeeded();
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["holds"], true, "{report:#}");
    assert!(
        report["phases"][0]["metrics"]["commands"].is_null(),
        "{report:#}"
    );
}

#[test]
fn interrupted_and_killed_runs_are_cleaned_up() {
    let node = Node::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let file = created_fleet(folder.path(), &node, "");
    let start = || {
        let running = RunningProgram::start(tidegate(&["simulate", file.to_str().unwrap()]));
        let deadline = std::time::Instant::now() + crate::program::DEADLINE;
        while ctl(&node, &["clients", "list"])
            .as_array()
            .is_none_or(|clients| clients.len() < 20)
        {
            assert!(std::time::Instant::now() < deadline);
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        running
    };
    // The last one is what the end of a terminal causes.
    for signal in [Signal::TERM, Signal::HUP] {
        let mut running = start();
        running.signal(signal);
        assert!(running.ends_within(crate::program::DEADLINE));
        assert_eq!(device_count(&node), 0, "{signal:?}");
    }

    let mut running = start();
    running.kill();
    assert_eq!(device_count(&node), 20);
    let cleaned = simulate(&file, &["--clean"]).succeeded();
    assert_eq!(cleaned, "removed 20 devices and 1 other objects\n");
    assert_eq!(device_count(&node), 0);
}

#[test]
fn subscribers_verify_what_devices_send() {
    let node = Node::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let phases = r#"
[[phase]]
name = "connect"
[[phase]]
name = "steady"
duration = "1s"
assert = ["delivered>=40", "repeated==0"]
[verify]
topics = ["site/+"]
assert = ["lost==0", "repeated==0", "reordered==0", "delivered>=40", "delivery_p99<30s"]
"#;
    let in_payload = FLEET.replace(r#""n": {message}"#, r#""n": {message}, "stamp": "{stamp}""#);
    // A stamp in the payload, and one in a property of messages that subscribers share.
    for (version, fleet, subscribers) in [("3.1.1", &*in_payload, 1), ("5", FLEET, 3)] {
        let file = simulation(folder.path(), Some(&node), &format!("{fleet}{phases}"));
        let sets = [
            format!("target.version=\"{version}\""),
            format!("verify.subscribers={subscribers}"),
        ];
        let page = folder.path().join("report.html");
        let report = simulate(
            &file,
            &[
                "--json",
                "--set",
                &sets[0],
                "--set",
                &sets[1],
                "--report",
                page.to_str().unwrap(),
            ],
        );
        let report: Value = serde_json::from_str(&report.succeeded()).unwrap();
        let verified = &report["verification"]["metrics"];
        let phases = report["phases"].as_array().unwrap();
        let sent: u64 = phases
            .iter()
            .map(|phase| phase["metrics"]["sent"].as_u64().unwrap())
            .sum();
        assert_eq!(verified["sent"], sent, "{report:#}");
        assert_eq!(verified["delivered"], sent, "{report:#}");
        assert!(verified["delivery_p50"].as_f64().unwrap() > 0.0);
        let page = fs::read_to_string(page).unwrap();
        assert!(page.contains("Verification") && page.contains("lost==0"));
        // Also where there were none.
        let lost = r#"<td title="lost">messages not delivered to subscribers</td>"#;
        assert!(page.contains(lost), "{page}");
    }
    let file = simulation(folder.path(), Some(&node), &format!("{FLEET}{phases}"));
    let error = simulate(&file, &["--check"]).failed(2);
    assert!(
        error.contains("verify.topics") && error.contains("{stamp}"),
        "{error}"
    );
}

#[test]
fn lost_messages_are_found_and_storage_is_measured() {
    let node = Node::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    // A node delivers telemetry of ThingsBoard devices to subscribers, and no attributes.
    let phases = r#"
[[phase]]
name = "connect"
[[phase]]
name = "steady"
duration = "1s"
[verify]
topics = ["v1/devices/me/+"]
storage = true
assert = ["lost==0", "stored>0", "unstored==0", "storage_p99<10s"]
"#;
    let file = created_fleet(folder.path(), &node, phases);
    let text = fs::read_to_string(&file).unwrap();
    let telemetry = r#"{ every = "100ms", kind = "telemetry" }"#;
    let both = format!(r#"{telemetry}, {{ every = "200ms", kind = "attributes" }}"#);
    let text = text.replace("\"native\"", "\"thingsboard\"");
    fs::write(&file, text.replace(telemetry, &both)).unwrap();
    let result = simulate(&file, &["--json", "--set", "target.version=\"5\""]);
    assert_eq!(result.code, Some(1), "{result:?}");
    let report: Value = serde_json::from_str(&result.stdout).unwrap();
    let verified = &report["verification"];
    let count = |name: &str| verified["metrics"][name].as_u64().unwrap();
    assert_eq!(
        count("lost") + count("delivered"),
        count("sent"),
        "{verified:#}"
    );
    assert!(
        count("lost") > 0 && count("delivered") > count("lost"),
        "{verified:#}"
    );
    let holds = verified["assertions"].as_array().unwrap();
    let holds: Vec<&Value> = holds.iter().map(|condition| &condition["holds"]).collect();
    assert_eq!(holds, [false, true, true, true], "{verified:#}");
}

#[test]
fn gateways_report_and_answer_for_their_children() {
    let node = Node::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let mut text = format!(
        "api = \"http://{}\"\ntoken_file = \"{}\"\nthreads = 2\n",
        node.address("http"),
        node.data_dir().join("api.token").display(),
    );
    for (protocol, gateways) in [("thingsboard", "a"), ("jetlinks", "z")] {
        text += &format!(
            r#"
[product.{protocol}-gateway]
protocol = "{protocol}"
create = true
fields = {{ gateway = true }}
[product.{protocol}-sensor]
create = true
[product.{protocol}-sensor.fields.model]
properties = [{{ id = "level", valueType = {{ type = "int" }} }}]
functions = [{{ id = "open", inputs = [] }}]
[fleet.{gateways}]
product = "{protocol}-gateway"
count = 2
first = 5
id = "{protocol}-gateway-{{index}}"
[fleet.{protocol}]
product = "{protocol}-sensor"
gateway = "{gateways}"
count = 6
qos = 1
state.level = 7
send = [{{ every = "100ms", kind = "telemetry" }}]
on = [{{ kind = "function", method = "open" }}, {{ kind = "read" }}, {{ kind = "write" }}]
"#
        );
    }
    text += "[[phase]]\nname = \"run\"\nduration = \"1h\"\nassert = [\"connected==4\", \"disconnects==0\", \"answers==6\"]\n";
    let file = simulation(folder.path(), Some(&node), &text);
    let mut running = RunningProgram::start(tidegate(&["simulate", file.to_str().unwrap()]));
    for protocol in ["thingsboard", "jetlinks"] {
        // The last one belongs to the second gateway.
        let device = format!("{protocol}-5");
        let deadline = std::time::Instant::now() + crate::program::DEADLINE;
        loop {
            let data_dir = node.data_dir().display().to_string();
            let shown = run(&[
                "ctl",
                "--json",
                "--data-dir",
                &data_dir,
                "devices",
                "show",
                &device,
            ]);
            let shown: Value = serde_json::from_str(&shown.stdout).unwrap_or_default();
            if shown["state"] == "online" {
                assert_eq!(shown["parent"], format!("{protocol}-gateway-6"), "{shown}");
                break;
            }
            assert!(std::time::Instant::now() < deadline, "{device}: {shown}");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let command = |arguments: &[&str]| ctl(&node, &[&["commands"], arguments].concat());
        let opened = command(&["invoke", &device, "open"]);
        assert_eq!(opened["state"], "success", "{opened}");
        let read = command(&["read", &device, "level"]);
        assert!(read["result"].to_string().contains("\"level\":7"), "{read}");
        let written = command(&["write", &device, "level=8"]);
        assert_eq!(written["state"], "success", "{written}");
        wait_for_telemetry(&node, &device, "level");
    }
    running.signal(Signal::TERM);
    assert!(running.ends_within(crate::program::DEADLINE));
    assert_eq!(device_count(&node), 0);
}

#[test]
fn gateways_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let text = r#"
[product.p]
protocol = "native"
[fleet.gateways]
product = "p"
count = 2
[fleet.children]
gateway = "gateways"
count = 3
[fleet.lost]
gateway = "gatewys"
count = 1
[fleet.named]
gateway = "gateways"
username = "u"
count = 2
"#;
    let file = simulation(folder.path(), None, text);
    let errors = simulate(&file, &["--check"]).failed(2);
    for part in [
        "fleet.children.count: must be a multiple of the 2 gateways of `gateways`",
        "fleet.lost.gateway: unknown fleet `gatewys`; did you mean `gateways`?",
        "fleet.named.username: devices with a `gateway` have no connection",
        "fleet.named.gateway: gateways need a product with `protocol` thingsboard or jetlinks",
    ] {
        assert!(errors.contains(part), "{part}\n{errors}");
    }
}

#[test]
fn a_running_simulation_has_metrics() {
    use std::io::{Read as _, Write as _};
    let node = Node::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let file = simulation(folder.path(), Some(&node), FLEET);
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    let arguments = ["simulate", file.to_str().unwrap(), "--metrics", &address];
    let mut running = RunningProgram::start(tidegate(&arguments));
    let get = |path: &str| -> std::io::Result<String> {
        let mut stream = std::net::TcpStream::connect(&address)?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let value = |answer: &str, name: &str| -> Option<f64> {
        let mut lines = answer.lines();
        let line = lines.find_map(|line| line.strip_prefix(&format!("tidegate_simulate_{name} ")));
        line?.parse().ok()
    };
    let deadline = std::time::Instant::now() + crate::program::DEADLINE;
    let answer = loop {
        assert!(std::time::Instant::now() < deadline);
        let answer = get("/metrics").unwrap_or_default();
        if value(&answer, "acknowledged_messages_total").is_some_and(|count| count >= 20.0) {
            break answer;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    };
    assert_eq!(value(&answer, "connected_devices"), Some(20.0), "{answer}");
    assert!(value(&answer, "ack_seconds_sum").is_some_and(|sum| sum > 0.0));
    assert!(
        answer.contains("tidegate_simulate_phase{name=\"run\"} 1"),
        "{answer}"
    );
    assert!(get("/").unwrap().starts_with("HTTP/1.1 404"));
    running.signal(Signal::INT);
    assert!(running.ends_within(crate::program::DEADLINE));
    let taken = simulate(&file, &["--metrics", &node.address("mqtt")]).failed(1);
    assert!(taken.contains("cannot listen there"), "{taken}");
}

#[test]
fn machines_share_a_simulation_and_their_reports_are_merged() {
    let node = Node::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let phases = r#"
[[phase]]
name = "connect"
connect_rate = 100
assert = ["connected==20", "connects==20"]
[[phase]]
name = "steady"
duration = "1s"
assert = ["acknowledged>=80", "ack_p99<30s"]
[verify]
topics = ["site/+"]
assert = ["lost==0"]
"#;
    let file = simulation(folder.path(), Some(&node), &format!("{FLEET}{phases}"));
    let set = ["--set", "target.version=\"5\""];
    let mut reports = Vec::new();
    let mut sent = 0;
    for machine in ["1/2", "2/2"] {
        let page = folder.path().join("machine.html");
        let arguments = ["--json", "--machines", machine, "--report"];
        let arguments = [&arguments[..], &[page.to_str().unwrap()], &set[..]].concat();
        let result = simulate(&file, &arguments);
        assert!(fs::read_to_string(&page).unwrap().contains("</html>"));
        fs::remove_file(&page).unwrap();
        let text = result.succeeded();
        let report: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(report["result"]["phases"][1]["connected"], 10, "{report}");
        sent += report["result"]["verified"]["sent"].as_u64().unwrap();
        let path = folder.path().join(format!("{}.json", reports.len()));
        fs::write(&path, text).unwrap();
        reports.push(path.to_str().unwrap().to_owned());
    }
    let page = folder.path().join("all.html");
    let merge = ["--merge", &reports[0], &reports[1], "--json", "--report"];
    let merge = [&merge[..], &[page.to_str().unwrap()], &set[..]].concat();
    let merged: Value = serde_json::from_str(&simulate(&file, &merge).succeeded()).unwrap();
    assert_eq!(merged["devices"], 20, "{merged:#}");
    assert_eq!(merged["phases"][0]["metrics"]["connects"], 20, "{merged:#}");
    assert_eq!(
        merged["verification"]["metrics"]["delivered"], sent,
        "{merged:#}"
    );
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("Messages per second"), "{page}");
    let incomplete = [&["--merge", &reports[0]], &set[..]].concat();
    let incomplete = simulate(&file, &incomplete).failed(1);
    assert!(
        incomplete.contains("1 reports, expected those of 2 machines"),
        "{incomplete}"
    );
    let twice = [&["--merge", &reports[0], &reports[0]], &set[..]].concat();
    let twice = simulate(&file, &twice).failed(1);
    assert!(twice.contains("same machine 1/2"), "{twice}");
    let wrong = simulate(&file, &["--machines", "3/2"]).failed(2);
    assert!(wrong.contains("2/4 for the second"), "{wrong}");
}

#[test]
fn machines_create_a_product_together() {
    let node = Node::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let file = created_fleet(folder.path(), &node, "");
    let start = |machine| {
        let arguments = ["simulate", file.to_str().unwrap(), "--machines", machine];
        RunningProgram::start(tidegate(&arguments))
    };
    let mut running = [start("1/2"), start("2/2")];
    let deadline = std::time::Instant::now() + crate::program::DEADLINE;
    while ctl(&node, &["clients", "list"])
        .as_array()
        .is_none_or(|clients| clients.len() < 20)
    {
        assert!(std::time::Instant::now() < deadline);
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    for program in &mut running {
        program.signal(Signal::TERM);
        assert!(program.ends_within(crate::program::DEADLINE));
    }
    assert_eq!(device_count(&node), 0);
    assert!(
        !ctl(&node, &["products", "list"])
            .to_string()
            .contains("simulated")
    );
}

#[test]
fn devices_log_in_with_secure_credentials() {
    let node = Node::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let phases = r#"
[[phase]]
name = "connect"
assert = ["connects==20", "connect_failures==0"]
[[phase]]
name = "reports"
duration = "500ms"
assert = ["acknowledged>20", "rejected==0"]
"#;
    let file = created_fleet(folder.path(), &node, phases);
    let text = fs::read_to_string(&file).unwrap();
    let text = text.replace("\"native\"", "\"jetlinks\"");
    let secure = "qos = 1\nsecure_id = \"s-{index}\"\nsecure_key = \"key-{index}\"";
    fs::write(&file, text.replace("qos = 1", secure)).unwrap();
    simulate(&file, &[]).succeeded();
    let wrong = ["--check", "--set", "fleet.meters.username=u"];
    let error = simulate(&file, &wrong).failed(2);
    assert!(error.contains("remove `username`"), "{error}");
}

#[test]
fn scripts_change_connections_and_messages() {
    let node = Node::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let text = r#"
[fleet.pumps]
count = 2
id = "pump-{index}"
qos = 1
send = [{ every = "100ms", topic = "x", payload = '{"n": {message}}' }]
[fleet.pumps.script]
file = "pumps.js"
timer = "100ms"
[[phase]]
name = "steady"
duration = "2s"
assert = ["connected==2", "disconnects==0", "acknowledged>=10", "received>=2"]
"#;
    let script = r#"
function beforeConnect(device, options) { options.clientId = `client-${device.index}`; }
function onConnected(device) {
  device.subscribe(`valve/${device.id}`, 1);
  device.publish('state/' + device.id, { connected: true }, 1, true);
}
function onSend(device, message) {
  const { n } = parseJson(message.payload);
  if (n % 2 === 0) return false;
  return { topic: `valve/${device.id}`, payload: { odd: n } };
}
function onMessage(device, message) {
  if (device.index === 1) throw new Error('no valve');
  device.publish('last/' + device.id, message.payload, 1, true);
}
function onTimer(device) { device.publish('timer/' + device.id, 'tick', 1, true); }
"#;
    fs::write(folder.path().join("pumps.js"), script).unwrap();
    let file = simulation(folder.path(), Some(&node), text);
    let preview = simulate(&file, &["--preview", "2"]).succeeded();
    assert!(
        preview.contains("valve/pump-") && preview.contains(r#"{"odd":1}"#),
        "{preview}"
    );
    let result = simulate(&file, &["--json"]);
    let report: Value = serde_json::from_str(&result.stdout).unwrap();
    assert_eq!(report["holds"], true, "{report:#}");
    let phase = &report["phases"][0];
    assert!(
        phase["metrics"]["script_errors"].as_u64().unwrap() > 0,
        "{report:#}"
    );
    let first = phase["first_failures"][0].as_str().unwrap();
    assert_eq!(first, "pump-1: pumps.js:13: onMessage: Error: no valve");
    let retained = ctl(&node, &["retained", "list"]).to_string();
    for topic in ["state/pump-0", "last/pump-0", "timer/pump-1"] {
        assert!(retained.contains(topic), "{topic}: {retained}");
    }
    assert!(!retained.contains("last/pump-1"), "{retained}");

    fs::write(
        folder.path().join("pumps.js"),
        "function onTimer() {\n  let = 5;\n",
    )
    .unwrap();
    let result = simulate(&file, &["--check"]);
    assert_eq!(result.code, Some(2), "{result:?}");
    assert!(
        result.stderr.contains("fleet.pumps.script.file: pumps.js:"),
        "{result:?}"
    );
    assert!(result.stderr.contains("SyntaxError"), "{result:?}");
}
