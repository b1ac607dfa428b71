//! A node's life: what it says when it starts, why it does not start, how it stops.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use rustix::process::Signal;

use super::program::{Node, RunningProgram, run, tidegate};

#[test]
fn a_node_reports_its_addresses_and_exits_cleanly() {
    let node = Node::start(&[]);
    let (mqtt, ws, http) = (
        node.address("mqtt"),
        node.address("ws"),
        node.address("http"),
    );
    let data_dir = node.data_dir().canonicalize().unwrap();
    let port = node.port("mqtt");
    assert!(data_dir.join("node.json").exists());
    let (ended, _folder) = node.stop();
    assert!(!data_dir.join("node.json").exists());
    assert_eq!(
        ended.succeeded(),
        format!(
            "Tidegate {} is ready.\n  listening on  mqtt://{mqtt}\n  listening on  ws://{ws}/mqtt\n  \
             listening on  http://{http}/\n  data in       {}\nTry it:\n  \
             tidegate sub -p {port} -t 'demo/#' -v\n  tidegate pub -p {port} -t demo/hello -m 'Hello, tide'\n",
            env!("CARGO_PKG_VERSION"),
            data_dir.display()
        )
    );
}

#[test]
fn serve_is_the_default_and_the_environment_counts() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = tidegate(&["--ws", "off", "--http", "off", "--shards", "1"]);
    command.env("TIDEGATE_DATA_DIR", folder.path());
    command.env("TIDEGATE_LISTENER__MQTT__BIND", "127.0.0.1:0");
    command.env("TIDEGATE_LOG__FORMAT", "json");
    let mut node = RunningProgram::start(command);
    node.expect_output("\"message\":\"ready\"");
    assert!(folder.path().join("node.json").exists());
    node.signal(Signal::INT);
    assert_eq!(node.end().succeeded(), "");
}

#[test]
fn a_data_directory_takes_one_node_at_a_time() {
    let node = Node::start(&[]);
    let data_dir = node.data_dir();
    let data_dir = data_dir.to_str().unwrap();
    let error = run(&["serve", "--data-dir", data_dir, "--mqtt", "127.0.0.1:0"]).failed(1);
    assert!(
        error.starts_with("error: another node (process ") && error.contains("--data-dir"),
        "{error}"
    );
}

#[test]
fn a_taken_port_names_listener_address_setting_and_what_to_do() {
    let node = Node::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    // A directory that the node creates is private; it warns of one that others may enter.
    let data_dir = folder.path().join("data");
    let data_dir = data_dir.to_str().unwrap();
    let (mqtt, http) = (node.address("mqtt"), node.address("http"));
    let serve = ["serve", "--data-dir", data_dir, "--ws", "off"];
    let set = format!("listener.extra.bind={mqtt}");
    let error = run(&[
        &serve[..],
        &["--mqtt", "127.0.0.1:0", "--http", "off", "--set", &set],
    ]
    .concat());
    assert_eq!(
        error.failed(1),
        format!(
            "error: listener `extra` cannot listen on {mqtt}: the address is in use by another program; stop that program, or \
             listen elsewhere with --set listener.extra.bind=ADDR (listener.extra.bind, from --set \
             listener.extra.bind)\n"
        )
    );
    let error = run(&[&serve[..], &["--mqtt", "127.0.0.1:0", "--http", &http]].concat());
    assert_eq!(
        error.failed(1),
        format!(
            "error: listener `http` cannot listen on {http}: the address is in use by another program; stop that program, or \
             listen elsewhere with --http ADDR (http.bind, from --http)\n"
        )
    );
}

#[test]
fn a_repeated_sigterm_does_not_cut_a_graceful_stop_short() {
    let node = Node::start(&[]);
    let subscriber = node.subscriber(&["-t", "x", "--no-reconnect"]);
    for _ in 0..3 {
        node.process.signal(Signal::TERM);
    }
    assert_eq!(node.process.end().code, Some(0));
    let output = subscriber.end().failed(4);
    assert!(output.contains("server shutting down (0x8b)"), "{output}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_limit_of_file_sizes_is_like_a_full_disk() {
    use rustix::process::{Resource, Rlimit, prlimit};

    let mut node = Node::start(&[]);
    let no_growth = Rlimit {
        current: Some(0),
        maximum: None,
    };
    prlimit(Some(node.process.pid()), Resource::Fsize, no_growth).unwrap();
    let kept = node.publish(&["-t", "kept", "-m", "x", "-r", "-q", "1", "-W", "3"]);
    assert_ne!(kept.code, Some(0), "{kept:?}");
    node.process.expect_output("File too large");
    node.publish(&["-t", "t", "-m", "x"]).succeeded();
}

#[test]
fn log_levels_change_at_run_time() {
    let mut node = Node::start(&["--log-level", "warn", "--set", "http.anonymous_role=admin"]);
    let put = |level: &str| {
        let body = format!("{{\"level\":\"{level}\"}}");
        let mut stream = TcpStream::connect(node.address("http")).unwrap();
        write!(
            stream,
            "PUT /api/v1/log-level HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let rejected = put("loud");
    assert!(
        rejected.contains(" 400 ") || rejected.contains(" 422 "),
        "{rejected}"
    );
    assert!(put("info").starts_with("HTTP/1.1 200 "));
    node.process.signal(Signal::TERM);
    // Said at level info.
    node.process.expect_output("SIGTERM: stopping");
    assert_eq!(node.process.end().code, Some(0));
}

#[test]
fn the_configuration_is_read_again_on_sighup() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tidegate.toml");
    let write = |text: &str| std::fs::write(&file, text).unwrap();
    write("limits.max_queued_messages = 100");
    let mut node = Node::start(&["--config", file.to_str().unwrap()]);
    let data_dir = node.data_dir().display().to_string();
    let settings = |arguments: &[&str]| {
        let start = ["ctl", "--json", "--data-dir", &data_dir, "settings"];
        let output = run(&[&start, arguments].concat()).succeeded();
        serde_json::from_str::<serde_json::Value>(&output).unwrap()
    };
    let queue = || settings(&["show", "limits.max_queued_messages"])["value"].clone();
    let mut reload = |text: &str, expected: &str| {
        write(text);
        node.process.signal(Signal::HUP);
        node.process.expect_output(expected);
    };
    assert_eq!(queue(), 100);

    reload(
        "limits.max_queued_messages = 200\nsimulations.max_devices = 7\n\
         [[rule]]\nname = \"new\"\nsql = 'SELECT * FROM \"t\"'",
        "take effect when the node starts again: simulations.max_devices, [[rule]]",
    );
    assert_eq!(queue(), 200);
    let devices = settings(&["show", "simulations.max_devices"]);
    assert_eq!(devices["value"], 1000, "{devices}");

    reload(
        "limits.max_queued_messages = 300\nlimits.none = 1",
        "limits.none",
    );
    assert_eq!(queue(), 200, "an invalid configuration changes nothing");

    settings(&["set", "limits.max_queued_messages", "250"]);
    reload(
        "limits.max_queued_messages = 300",
        "overrides them: limits.max_queued_messages",
    );
    assert_eq!(queue(), 250);
    settings(&["reset", "limits.max_queued_messages"]);
    assert_eq!(queue(), 300);

    reload("", "changed=limits.max_queued_messages");
    assert_eq!(queue(), 10_000, "the default");
}
