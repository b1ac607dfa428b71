//! `tidegate simulate` with devices over HTTP, relay endpoints, links, QUIC, TLS and WebSocket.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::program::{DEADLINE, Node, RunningProgram, certificate, run, tidegate};
use crate::simulate::{ctl, device_count, simulate, simulation, wait_for_telemetry};

/// A node with a link listener besides the usual ones.
fn node_with_link(folder: &Path) -> Node {
    let config = folder.join("tidegate.toml");
    let text = "[[listener]]\nname = \"link\"\nbind = \"127.0.0.1:0\"\nallow_anonymous = false\n";
    fs::write(&config, text).unwrap();
    Node::start(&["--config", config.to_str().unwrap()])
}

/// A simulation that creates its product.
fn created(folder: &Path, node: &Node, target: &str, text: &str) -> PathBuf {
    let api = format!(
        "api = \"http://{}\"\ntoken_file = \"{}\"\n",
        node.address("http"),
        node.data_dir().join("api.token").display(),
    );
    simulation(folder, Some(node), &format!("{api}{target}\n{text}"))
}

/// Writes over the HTTP API.
fn put(node: &Node, path: &str, body: &Value) {
    let token = fs::read_to_string(node.data_dir().join("api.token")).unwrap();
    let (address, token, body) = (node.address("http"), token.trim(), body.to_string());
    let mut stream = std::net::TcpStream::connect(&address).unwrap();
    write!(
        stream,
        "PUT /api/v1/{path} HTTP/1.0\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.0 2"), "{answer}");
}

/// A counter of a running simulation.
fn metric(address: &str, name: &str) -> u64 {
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let name = format!("tidegate_simulate_{name} ");
    let mut lines = answer.lines();
    let value = lines.find_map(|line| line.strip_prefix(&name));
    value.map_or(0, |value| value.parse::<f64>().unwrap() as u64)
}

fn wait_until_online(node: &Node, device: &str) {
    let data_dir = node.data_dir().display().to_string();
    let show = ["ctl", "--json", "--data-dir", &data_dir];
    let show = [&show[..], &["devices", "show", device]].concat();
    let deadline = std::time::Instant::now() + DEADLINE;
    loop {
        let shown: Value = serde_json::from_str(&run(&show).stdout).unwrap_or_default();
        if shown["state"] == "online" {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "{device}: {shown}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// Devices of two fleets report and answer commands, until the run is ended.
fn report_and_answer(node: &Node, file: &Path, device: &str) {
    let arguments = ["simulate", file.to_str().unwrap(), "--json"];
    let running = RunningProgram::start(tidegate(&arguments));
    wait_until_online(node, device);
    let command = |arguments: &[&str]| ctl(node, &[&["commands"], arguments].concat());
    let sent = command(&["send", device, "open"]);
    assert_eq!(sent["state"], "success", "{sent}");
    let read = command(&["read", device, "level"]);
    assert!(read["result"].to_string().contains("\"level\":7"), "{read}");
    wait_for_telemetry(node, device, "level");
    running.signal(Signal::TERM);
    let report: Value = serde_json::from_str(&running.end().stdout).unwrap();
    let metrics = &report["phases"][0]["metrics"];
    let count = |name: &str| metrics[name].as_u64().unwrap();
    assert_eq!(report["phases"][0]["failures"], json!({}), "{report:#}");
    assert_eq!(count("connects"), 4, "{report:#}");
    assert_eq!(count("answers"), 2, "{report:#}");
    assert_eq!(count("rejected"), 0, "{report:#}");
    assert_eq!(count("unacknowledged"), 0, "{report:#}");
}

const MODEL: &str = r#"
[product.pump.fields.model]
properties = [{ id = "level", valueType = { type = "int" } }]
"#;

#[test]
fn devices_over_http_report_and_answer() {
    for protocol in ["thingsboard", "native"] {
        let node = Node::start(&[]);
        let folder = tempfile::tempdir().unwrap();
        let target = format!("http = \"http://{}\"", node.address("http"));
        let text = format!(
            r#"
[product.pump]
protocol = "{protocol}"
create = true
{MODEL}
[fleet.pumps]
product = "pump"
transport = "http"
count = 4
id = "pump-{{index}}"
state.level = 7
send = [
  {{ every = "100ms", kind = "telemetry" }},
  {{ every = "300ms", kind = "attributes" }},
]
on = [
  {{ kind = "command", delay = "10ms" }},
  {{ kind = "read" }},
  {{ kind = "attributes" }},
]
"#
        );
        let file = created(folder.path(), &node, &target, &text);
        report_and_answer(&node, &file, "pump-3");
        assert_eq!(device_count(&node), 0);
    }
}

#[test]
fn devices_over_http_are_told_about_attributes_and_rejections() {
    let node = Node::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let target = format!("http = \"http://{}\"", node.address("http"));
    let text = r#"
[product.pump]
protocol = "thingsboard"
create = true
[fleet.pumps]
product = "pump"
transport = "http"
count = 1
id = "pump-{index}"
on = [{ kind = "attributes" }]
[[phase]]
name = "run"
duration = "1h"
"#;
    let file = created(folder.path(), &node, &target, text);
    let arguments = [
        "simulate",
        file.to_str().unwrap(),
        "--json",
        "--metrics",
        "127.0.0.1:0",
    ];
    let mut running = RunningProgram::start(tidegate(&arguments));
    let metrics = running.expect_output("metrics at http://");
    let metrics = metrics.trim_start_matches("metrics at http://");
    let metrics = metrics.trim_end_matches("/metrics");
    let deadline = std::time::Instant::now() + DEADLINE;
    while metric(metrics, "connected_devices") == 0 {
        assert!(std::time::Instant::now() < deadline);
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    // Changes are reported while the device waits for one.
    for value in 0.. {
        let change = json!({"interval": value});
        put(&node, "devices/pump-0/attributes/shared", &change);
        if metric(metrics, "received_messages_total") > 0 {
            break;
        }
        assert!(std::time::Instant::now() < deadline);
    }
    running.signal(Signal::TERM);
    let report: Value = serde_json::from_str(&running.end().stdout).unwrap();
    let received = report["phases"][0]["metrics"]["received"].as_u64().unwrap();
    assert!(received > 0, "{report:#}");

    // An unknown token.
    let text = text.replace("create = true", "");
    let text = text.replace("duration = \"1h\"", "");
    let file = created(folder.path(), &node, &target, &text);
    let report: Value = serde_json::from_str(&simulate(&file, &["--json"]).succeeded()).unwrap();
    let failures = report["phases"][0]["failures"].to_string();
    assert!(
        failures.contains("HTTP 401: No enabled device has this token."),
        "{report:#}"
    );
}

#[test]
fn devices_of_relay_endpoints_report_answer_and_ask() {
    let node = Node::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let target = format!("relay = \"ws://{}/ws\"", node.address("ws"));
    let text = format!(
        r#"
[product.pump]
protocol = "relay"
create = true
{MODEL}
[fleet.pumps]
product = "pump"
endpoint = "workshop"
count = 4
id = "pump-{{index}}"
username = "Pump {{index}}"
password = "0123456789abcdef"
state.level = 7
send = [
  {{ every = "100ms", kind = "telemetry" }},
  {{ every = "100ms", kind = "request", request = "status_sync", payload = '{{"includeHistory": true}}' }},
]
on = [{{ kind = "command" }}, {{ kind = "read" }}]
"#
    );
    let file = created(folder.path(), &node, &target, &text);
    report_and_answer(&node, &file, "workshop:pump-2");
    assert_eq!(device_count(&node), 0);
    let products = ctl(&node, &["products", "list"]).to_string();
    assert!(!products.contains("pump"), "{products}");

    // Messages reach all others, and requests are acknowledged by their responses.
    let phases = r#"
[[phase]]
name = "connect"
load = 0.0
[[phase]]
name = "talk"
duration = "1s"
assert = ["acknowledged>=20", "rejected==0", "disconnects==0", "received>=60"]
"#;
    fs::write(&file, fs::read_to_string(&file).unwrap() + phases).unwrap();
    simulate(&file, &[]).succeeded();

    // A wrong key, and a request that the node does not know.
    let existing = text.replace("create = true", "create = false");
    ctl(&node, &["products", "add", "pump"]);
    ctl(
        &node,
        &[
            "endpoints",
            "add",
            "workshop",
            "product=pump",
            "access_key=fedcba9876543210",
        ],
    );
    let connect = "[[phase]]\nname = \"connect\"\nload = 0.0\n";
    let file = created(
        folder.path(),
        &node,
        &target,
        &format!("{existing}{connect}"),
    );
    let report: Value = serde_json::from_str(&simulate(&file, &["--json"]).succeeded()).unwrap();
    let failures = report["phases"][0]["failures"].to_string();
    assert!(failures.contains("INVALID_ACCESS_KEY"), "{report:#}");
    let key = "fleet.pumps.password=fedcba9876543210";
    let run = format!("{existing}{}", phases.replace("\"rejected==0\", ", ""));
    let file = created(folder.path(), &node, &target, &run);
    let set = [
        "--json",
        "--set",
        key,
        "--set",
        "fleet.pumps.send[1].request=moon",
    ];
    let result = simulate(&file, &set);
    let report: Value = serde_json::from_str(&result.stdout).unwrap();
    let rejected = report["phases"][1]["metrics"]["rejected"].as_u64().unwrap();
    assert!(rejected >= 20, "{report:#}");
}

#[test]
fn the_relay_room_runs_at_small_scale() {
    let node = Node::start(&[]);
    let mut arguments = vec![
        "simulate".to_owned(),
        "relay-room".to_owned(),
        "--json".to_owned(),
    ];
    for set in [
        format!("target.relay=ws://{}/ws", node.address("ws")),
        format!("target.api=http://{}", node.address("http")),
        format!(
            "target.token_file={}",
            node.data_dir().join("api.token").display()
        ),
        "fleet.devices.count=20".to_owned(),
        "fleet.devices.send[0].every=100ms".to_owned(),
        "fleet.devices.send[1].every=200ms".to_owned(),
        "phase[1].duration=500ms".to_owned(),
        "phase[2].duration=500ms".to_owned(),
    ] {
        arguments.extend(["--set".to_owned(), set]);
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let report: Value = serde_json::from_str(&run(&arguments).succeeded()).unwrap();
    let count = |phase: usize, name: &str| {
        let value = &report["phases"][phase]["metrics"][name];
        value.as_u64().unwrap()
    };
    assert_eq!(count(0, "connects"), 20, "{report:#}");
    assert!(
        count(1, "sent") >= 80 && count(1, "acknowledged") > 0,
        "{report:#}"
    );
    assert!(count(1, "received") >= 10 * count(1, "sent"), "{report:#}");
    assert_eq!(device_count(&node), 0);
    assert_eq!(ctl(&node, &["endpoints", "list"]), json!([]));
}

#[test]
fn connections_without_identity_use_a_relay_endpoint() {
    let node = Node::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    ctl(&node, &["endpoints", "add", "room"]);
    let text = format!(
        r#"relay = "ws://{}/ws/"
[fleet.visitors]
transport = "relay"
endpoint = "room"
count = 5
send = [{{ every = "100ms", topic = "text", payload = "hello {{message}}" }}]
[[phase]]
name = "connect"
load = 0.0
[[phase]]
name = "talk"
duration = "1s"
assert = ["sent>=45", "received>=180", "disconnects==0"]
"#,
        node.address("ws")
    );
    let file = simulation(folder.path(), Some(&node), &text);
    simulate(&file, &[]).succeeded();
    assert_eq!(device_count(&node), 0);
}

#[test]
fn devices_over_links_report_and_answer() {
    let folder = tempfile::tempdir().unwrap();
    let node = node_with_link(folder.path());
    let target = format!("link = \"tcp://{}\"", node.address("link"));
    for protocol in ["native", "thingsboard", "jetlinks"] {
        let text = format!(
            r#"
[product.pump]
protocol = "{protocol}"
create = true
{MODEL}
[fleet.pumps]
product = "pump"
transport = "link"
count = 4
id = "pump-{{index}}"
state.level = 7
send = [{{ every = "100ms", kind = "telemetry" }}]
on = [{{ kind = "command", delay = "10ms" }}, {{ kind = "read" }}]
"#
        );
        let file = created(folder.path(), &node, &target, &text);
        report_and_answer(&node, &file, "pump-1");
        assert_eq!(device_count(&node), 0);
    }
    // An unknown token.
    let text = r#"
[product.pump]
protocol = "native"
[fleet.pumps]
product = "pump"
transport = "link"
count = 1
username = "wrong"
[[phase]]
name = "connect"
"#;
    let file = created(folder.path(), &node, &target, text);
    let report = simulate(&file, &[]).succeeded();
    assert!(report.contains("login rejected"), "{report}");
}

#[test]
fn devices_connect_by_quic() {
    let folder = tempfile::tempdir().unwrap();
    let (pem, key) = certificate(folder.path(), "server", "server");
    let config = folder.path().join("tidegate.toml");
    let text = "[[listener]]\nname = \"quic\"\nbind = \"127.0.0.1:0\"\n\
                tls = { certificate = \"server.pem\", private_key = \"server.key\" }\n";
    fs::write(&config, text).unwrap();
    let node = Node::start(&["--config", config.to_str().unwrap()]);
    assert!(fs::exists(key).unwrap());
    let text = r#"
[fleet.meters]
count = 20
id = "meter-{index}"
qos = 1
reconnect = { delay = "0s", backoff = false }
send = [{ every = "100ms", topic = "site/{id}", payload = '{"n": {message}}' }]
[[phase]]
name = "connect"
assert = ["connects==20"]
[[phase]]
name = "steady"
duration = "1s"
assert = ["acknowledged>=150", "disconnects==0"]
[[phase]]
name = "outage"
duration = "2s"
assert = ["faults==20", "reconnects==20", "connected==20"]
[[phase.fault]]
kind = "close"
[verify]
topics = ["site/+"]
assert = ["lost==0", "delivered>=150"]
"#;
    let file = simulation(folder.path(), None, text);
    let broker = format!("target.broker=quic://{}", node.address("quic"));
    let authority = format!("target.ca_file={pem}");
    for version in ["3.1.1", "5"] {
        let version = format!("target.version=\"{version}\"");
        let mut set = vec!["--set", &broker, "--set", &authority, "--set", &version];
        // Messages in flight when a connection ends may be lost.
        let stamped = "fleet.meters.send[0].payload={stamp}";
        set.extend([
            "--set",
            stamped,
            "--set",
            "verify.assert=[\"delivered>=150\"]",
        ]);
        simulate(&file, &set).succeeded();
    }
    let version = "target.version=\"5\"";
    // The authorities of the system do not know the certificate.
    let untrusted = simulate(&file, &["--set", &broker, "--set", version]).failed(1);
    assert!(untrusted.contains("certificate"), "{untrusted}");
}

#[test]
fn devices_connect_by_tls_and_websocket() {
    let folder = tempfile::tempdir().unwrap();
    let (pem, _) = certificate(folder.path(), "server", "server");
    let config = folder.path().join("tidegate.toml");
    let listener = |name: &str| {
        format!(
            "[[listener]]\nname = \"{name}\"\nbind = \"127.0.0.1:0\"\n\
             tls = {{ certificate = \"server.pem\", private_key = \"server.key\" }}\n"
        )
    };
    fs::write(&config, listener("mqtts") + &listener("wss")).unwrap();
    let node = Node::start(&["--config", config.to_str().unwrap()]);
    let text = r#"
[fleet.meters]
count = 20
id = "meter-{index}"
qos = 1
reconnect = { delay = "0s", backoff = false }
send = [{ every = "100ms", topic = "site/{id}", payload = "{stamp}" }]
[[phase]]
name = "connect"
assert = ["connects==20", "connect_failures==0"]
[[phase]]
name = "steady"
duration = "1s"
assert = ["acknowledged>=100", "disconnects==0"]
[[phase]]
name = "outage"
duration = "2s"
assert = ["faults==20", "reconnects==20", "connected==20"]
[[phase.fault]]
kind = "abort"
[verify]
topics = ["site/+"]
assert = ["delivered>=100"]
"#;
    let file = simulation(folder.path(), None, text);
    let authority = format!("target.ca_file={pem}");
    for (scheme, path) in [("mqtts", ""), ("ws", "/mqtt"), ("wss", "/mqtt")] {
        let broker = format!("target.broker={scheme}://{}{path}", node.address(scheme));
        for version in ["3.1.1", "5"] {
            let version = format!("target.version=\"{version}\"");
            let mut set = vec!["--set", &broker, "--set", &version];
            if scheme != "ws" {
                set.extend(["--set", &authority]);
            }
            let report = simulate(&file, &set).succeeded();
            assert!(report.contains(&format!("{scheme}://")), "{report}");
        }
        if scheme != "ws" {
            // The authorities of the system do not know the certificate.
            let untrusted = simulate(&file, &["--set", &broker]).failed(1);
            assert!(
                untrusted.to_lowercase().contains("certificate"),
                "{untrusted}"
            );
        }
    }
}

#[test]
fn transports_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let text = r#"
[product.t]
protocol = "thingsboard"
[product.j]
protocol = "jetlinks"
[product.r]
protocol = "relay"
[fleet.a]
product = "j"
transport = "http"
count = 1
[fleet.b]
product = "t"
transport = "http"
password = "p"
count = 1
[fleet.c]
product = "r"
count = 1
[fleet.d]
product = "t"
endpoint = "room"
count = 1
send = [{ every = "1s", kind = "request", request = "x" }]
[fleet.e]
product = "r"
transport = "mqtt"
count = 1
[fleet.f]
product = "r"
endpoint = "room"
count = 1
send = [{ every = "1s", kind = "request" }, { every = "1s", kind = "event", event = "e" }]
on = [{ kind = "attributes" }]
"#;
    let file = simulation(folder.path(), None, text);
    let errors = simulate(&file, &["--check"]).failed(2);
    for part in [
        "fleet.a.transport: `http` needs a product with `protocol` thingsboard or native",
        "fleet.b.password: devices over HTTP have an access token only",
        "fleet.c.endpoint: name the relay endpoint of the devices",
        "fleet.d.endpoint: only the transport `relay` has endpoints",
        "fleet.d.send[0].kind: `request` needs a product with `protocol` relay",
        "fleet.e.transport: devices with the protocol relay need the transport `relay`",
        "fleet.f.send[0].request: the kind `request` has the type of a request",
        "fleet.f.send[1].kind: devices of relay endpoints send `telemetry` and `request`",
        "fleet.f.on[0].kind: devices of relay endpoints are not told about attributes",
    ] {
        assert!(errors.contains(part), "{part}\n{errors}");
    }
    let wrong = "[fleet.a]\ntransport = \"link\"\ncount = 1\n";
    let file = simulation(folder.path(), None, wrong);
    let error = simulate(&file, &["--check", "--set", "target.link=http://a"]).failed(1);
    assert!(
        error.contains("target.link") && error.contains("tcp://"),
        "{error}"
    );
}
