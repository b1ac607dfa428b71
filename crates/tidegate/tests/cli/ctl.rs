//! `tidegate ctl` against a real node: what it prints, what it changes, what it says when it cannot.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::program::{DEADLINE, Node, ProgramResult, run};

fn ctl(node: &Node, arguments: &[&str]) -> ProgramResult {
    let data_dir = node.data_dir();
    let data_dir = data_dir.to_str().unwrap();
    run(&[&["ctl", "--data-dir", data_dir], arguments].concat())
}

fn file(node: &Node, name: &str, text: &str) -> String {
    let path = node.folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn the_owner_of_a_node_needs_no_password() {
    let node = Node::start(&[]);
    let who = ctl(&node, &["whoami"]).succeeded();
    assert!(who.contains("admin") && who.contains("local"), "{who}");
    let status = ctl(&node, &["--json", "status"]).succeeded();
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["ready"], true);
    let listeners = ctl(&node, &["listeners", "list"]).succeeded();
    assert!(
        listeners.starts_with("NAME  PROTOCOL  ADDRESS"),
        "{listeners}"
    );
    assert!(listeners.contains(&node.address("mqtt")));
}

#[test]
fn null_removes_secrets() {
    let node = Node::start(&[]);
    let shown = |kind: &str, id: &str| -> serde_json::Value {
        let text = ctl(&node, &["--json", kind, "show", id]).succeeded();
        serde_json::from_str(&text).unwrap()
    };
    ctl(&node, &["endpoints", "add", "workshop", "mode=direct"]).succeeded();
    for (value, is_there) in [("choose-a-long-one", true), ("null", false)] {
        let access_key = format!("access_key={value}");
        ctl(&node, &["endpoints", "set", "workshop", &access_key]).succeeded();
        let endpoint = shown("endpoints", "workshop");
        assert_eq!(endpoint["has_access_key"], is_there, "{endpoint}");
    }
    let redis = ["type=redis", "server=127.0.0.1:1", "password=pencil"];
    ctl(
        &node,
        &[&["connectors", "add", "cache"], &redis[..]].concat(),
    )
    .succeeded();
    assert_eq!(shown("connectors", "cache")["password"], "***");
    ctl(&node, &["connectors", "set", "cache", "password=null"]).succeeded();
    assert!(shown("connectors", "cache")["password"].is_null());
    // A new object needs no secret either.
    ctl(&node, &["endpoints", "add", "hall", "access_key=null"]).succeeded();
    assert_eq!(shown("endpoints", "hall")["has_access_key"], false);
}

/// A WebSocket client of an endpoint, which only reads.
fn open_relay_connection(node: &Node, endpoint: &str) -> TcpStream {
    let address = node.address("ws");
    let mut socket = TcpStream::connect(&address).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    let request = format!(
        "GET /ws/{endpoint} HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    );
    socket.write_all(request.as_bytes()).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        socket.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 101 "));
    socket
}

#[test]
fn an_operator_closes_a_connection_of_an_endpoint() {
    let node = Node::start(&[]);
    ctl(&node, &["endpoints", "add", "workshop", "mode=direct"]).succeeded();
    let mut closed = open_relay_connection(&node, "workshop");
    let shown = || -> serde_json::Value {
        let connections = ["--json", "endpoints", "connections", "workshop"];
        serde_json::from_str(&ctl(&node, &connections).succeeded()).unwrap()
    };
    let connections = shown();
    assert_eq!(connections.as_array().map(Vec::len), Some(1));
    let id = connections[0]["connection_id"].as_str().unwrap();
    let _other = open_relay_connection(&node, "workshop");
    let disconnect = ["endpoints", "disconnect", "workshop", id];
    let done = ctl(&node, &disconnect).succeeded();
    assert_eq!(done, format!("connection {id} of workshop was closed\n"));
    let mut frames = Vec::new();
    closed.read_to_end(&mut frames).unwrap();
    let frames = String::from_utf8_lossy(&frames);
    assert!(frames.contains("\"code\":\"DISCONNECTED\""), "{frames}");
    assert!(frames.ends_with("Disconnected by an operator"), "{frames}");
    // The other connection stays.
    let left = shown();
    assert_eq!(left.as_array().map(Vec::len), Some(1), "{left}");
    assert_ne!(left[0]["connection_id"], id);
    let error = ctl(&node, &disconnect).failed(4);
    let expected = format!("\"workshop\" has no connection \"{id}\"");
    assert!(error.contains(&expected), "{error}");
    let audit = ["--json", "audit", "--action", "endpoint.connection.close"];
    let entries: serde_json::Value = serde_json::from_str(&ctl(&node, &audit).succeeded()).unwrap();
    assert_eq!(entries.as_array().map(Vec::len), Some(1), "{entries}");
    assert_eq!(entries[0]["subject"], format!("workshop/{id}"), "{entries}");
    assert_eq!(entries[0]["actor"], "local", "{entries}");
}

#[test]
fn values_of_wrong_types_are_rejected_with_field_and_range() {
    let node = Node::start(&[]);
    for (arguments, expected) in [
        (
            &["products", "add", "t5", "inactivity_timeout_s=soon"][..],
            "inactivity_timeout_s: expected a whole number from 1 to 31536000, found a text",
        ),
        (
            &["users", "add", "x", "password=abcdefgh1", "is_superuser=x"],
            "is_superuser: expected true or false, found a text",
        ),
        (
            &["bans", "add", "username=ann", "until_ms=tomorrow"],
            "until_ms: expected a whole number from 0, found a text",
        ),
        (
            &["endpoints", "add", "e", "max_connections=-1"],
            "max_connections: expected a whole number from 1 to 1000000, found -1",
        ),
        (
            &[
                "campaigns",
                "add",
                "package=p",
                r#"waves=[{"percent":500}]"#,
            ],
            "waves[0].percent: expected a whole number from 1 to 100, found 500",
        ),
        (
            &["notifications", "add", "n", "severities=MAJOR"],
            "severities: expected an array, found a text",
        ),
        (
            &["dashboards", "add", "d", "cards=5"],
            "cards: expected an array, found 5",
        ),
        (
            &[
                "products",
                "add",
                "t6",
                r#"alarms=[{"id":"hot","raise":[{"severity":"MAJOR","when":{"key":"t","is":"gt","value":1}}]}]"#,
            ],
            "unknown value `gt`, expected one of `=`",
        ),
        (
            &["acl", "add", "x", "permission=alow"],
            "permission: expected \"allow\" or \"deny\", found \"alow\"; did you mean \"allow\"?",
        ),
        (
            &["products", "add", "t7", "mode=sunc"],
            "mode: unknown value `sunc`, expected `sync` or `actor`; did you mean `sync`?",
        ),
        (
            &["alarms", "list", "--severity", "critcal"],
            "expected one or several of CRITICAL, MAJOR, MINOR, WARNING, INDETERMINATE; did you mean CRITICAL?",
        ),
        (
            &["settings", "set", "limits.max_qoss", "1"],
            "There is no setting \"limits.max_qoss\"; did you mean limits.max_qos?",
        ),
        (
            &["settings", "set", "limits.queue_policy", "drop_oldst"],
            "found \"drop_oldst\"; did you mean \"drop_oldest\"?\n",
        ),
        (
            &["rules", "add", "b", "sqll=SELECT 1"],
            "sqll: unknown field; did you mean \"sql\"?",
        ),
    ] {
        let rejected = ctl(&node, arguments).failed(4);
        assert!(rejected.contains(expected), "{arguments:?}: {rejected}");
    }
}

#[test]
fn a_client_at_the_port_of_http_is_pointed_to_mqtt() {
    let node = Node::start(&[]);
    let port = node.address("http").rsplit_once(':').unwrap().1.to_owned();
    let wrong = run(&["sub", "-h", "127.0.0.1", "-p", &port, "-t", "a"]).failed(3);
    assert!(
        wrong.contains("this is an HTTP server; give the port of MQTT"),
        "{wrong}"
    );
}

#[test]
fn operators_and_keys_are_made_changed_and_used() {
    let node = Node::start(&[]);
    let password = file(&node, "password", "a long password\n");
    let add = [
        "operators",
        "add",
        "ann",
        "role=viewer",
        "must_change_password=false",
        "--password-file",
        &password,
    ];
    assert_eq!(ctl(&node, &add).succeeded(), "ann was created\n");
    let again = ctl(&node, &add).failed(4);
    assert!(
        again.contains("409") && again.contains("already"),
        "{again}"
    );
    let as_ann = ["--login", "ann", "--login-password-file", &password];
    let rejected = ctl(
        &node,
        &[&as_ann[..], &["clients", "disconnect", "x"]].concat(),
    )
    .failed(4);
    assert!(
        rejected.contains("403") && rejected.contains("operator"),
        "{rejected}"
    );
    ctl(
        &node,
        &[
            "operators",
            "set",
            "ann",
            "role=operator",
            "description=on call",
        ],
    )
    .succeeded();
    let shown = ctl(&node, &["operators", "show", "ann"]).succeeded();
    assert!(
        shown.contains("on call") && !shown.contains("argon2"),
        "{shown}"
    );
    let who = ctl(&node, &[&as_ann[..], &["whoami"]].concat()).succeeded();
    assert!(who.contains("operator"), "the password stayed: {who}");

    let made = ctl(&node, &["api-keys", "add", "role=viewer"]).succeeded();
    let pair = file(&node, "key", made.lines().last().unwrap());
    let url = format!("http://{}", node.address("http"));
    let by_key = run(&["ctl", "--url", &url, "--key-file", &pair, "whoami"]).succeeded();
    assert!(by_key.contains("api_key"), "{by_key}");
    let nobody = run(&["ctl", "--url", &url, "whoami"]).failed(4);
    assert!(
        nobody.contains("401") && nobody.contains("--login"),
        "{nobody}"
    );
    let audit = ctl(&node, &["audit"]).succeeded();
    assert!(
        audit.contains("operator.change") && audit.contains("api_key.create"),
        "{audit}"
    );
}

#[test]
fn a_ban_of_an_operator_shows_when_it_ends() {
    let node = Node::start(&[]);
    let password = file(&node, "password", "a long password\n");
    let add = ["people", "add", "ann", "role=viewer"];
    let add = [
        &add[..],
        &["must_change_password=false", "--password-file", &password],
    ]
    .concat();
    ctl(&node, &add).succeeded();
    let ban = |until_ms: &str| {
        let ban = [
            "people",
            "ban",
            "ann",
            "--reason",
            "cool down",
            "--until-ms",
            until_ms,
        ];
        ctl(&node, &ban)
    };
    let past = ban("1").failed(4);
    assert!(
        past.contains("until_ms: expected a time in the future"),
        "{past}"
    );
    // In the year 2100.
    assert_eq!(ban("4102444800000").succeeded(), "ann was banned\n");
    let shown = ctl(&node, &["--json", "people", "show", "ann"]).succeeded();
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["ban"]["until_ms"], 4_102_444_800_000_u64, "{shown}");
    assert_eq!(shown["ban"]["reason"], "cool down", "{shown}");
    let shown = ctl(&node, &["people", "show", "ann"]).succeeded();
    assert!(shown.contains("4102444800000"), "{shown}");
    let who = [
        "--login",
        "ann",
        "--login-password-file",
        &password,
        "whoami",
    ];
    let rejected = ctl(&node, &who).failed(4);
    assert!(
        rejected.contains("until 4102444800000") && rejected.contains("cool down"),
        "{rejected}"
    );
    let unbanned = ctl(&node, &["people", "unban", "ann"]).succeeded();
    assert_eq!(unbanned, "ann is no longer banned\n");
    ctl(&node, &who).succeeded();
}

/// Creates a package of the product `pump`, which has one device, and begins its campaign 1.
fn begin_campaign(node: &Node) {
    ctl(node, &["products", "add", "pump"]).succeeded();
    ctl(node, &["devices", "add", "pump-1", "--product", "pump"]).succeeded();
    let image = file(node, "pump.bin", "the image");
    let uploaded = ctl(node, &["--json", "files", "upload", &image]).succeeded();
    let uploaded: serde_json::Value = serde_json::from_str(&uploaded).unwrap();
    let uploaded = format!("file={}", uploaded["id"].as_str().unwrap());
    let package = ["firmware", "add", "pump-v2", "product=pump", "title=pump"];
    let package = [&package[..], &["firmware_version=v2", &uploaded]].concat();
    ctl(node, &package).succeeded();
    ctl(node, &["campaigns", "add", "package=pump-v2"]).succeeded();
}

#[test]
fn campaigns_are_paused_resumed_cancelled_and_deleted() {
    let node = Node::start(&[]);
    begin_campaign(&node);
    let status = |arguments: &[&str]| {
        let shown = ctl(&node, &[&["--json", "campaigns"], arguments].concat()).succeeded();
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        shown["status"].as_str().unwrap().to_owned()
    };
    let running = ctl(&node, &["campaigns", "resume", "1"]).failed(4);
    assert!(
        running.contains("expected one that is paused or halted"),
        "{running}"
    );
    for (action, expected) in [
        ("pause", "paused"),
        ("resume", "running"),
        ("pause", "paused"),
        ("cancel", "cancelled"),
    ] {
        assert_eq!(status(&[action, "1"]), expected);
        assert_eq!(status(&["show", "1"]), expected);
    }
    let devices = ctl(&node, &["campaigns", "devices", "1"]).succeeded();
    assert!(
        devices.contains("pump-1") && devices.contains("cancelled"),
        "{devices}"
    );
    for action in ["pause", "resume", "cancel"] {
        let ended = ctl(&node, &["campaigns", action, "1"]).failed(4);
        assert!(ended.contains("the campaign is cancelled"), "{ended}");
    }
    let deleted = ctl(&node, &["campaigns", "delete", "1"]).succeeded();
    assert_eq!(deleted, "the campaign 1 was deleted\n");
    for action in ["resume", "cancel"] {
        let unknown = ctl(&node, &["campaigns", action, "1"]).failed(4);
        assert!(unknown.contains("no firmware campaign 1"), "{unknown}");
    }
}

#[test]
fn messages_are_published_and_a_backup_is_restored() {
    let node = Node::start(&[]);
    let subscriber = node.subscriber(&["-t", "tide/#", "-C", "1"]);
    let published = ctl(
        &node,
        &["publish", "-t", "tide/now", "-m", "high", "-q", "1", "-r"],
    )
    .succeeded();
    assert_eq!(published, "published\n");
    assert_eq!(subscriber.end().succeeded(), "high\n");
    let retained = ctl(&node, &["retained", "list", "--filter", "tide/#"]).succeeded();
    assert!(retained.contains("tide/now"), "{retained}");

    ctl(
        &node,
        &["bans", "add", "b1", "client_id=rogue", "reason=test"],
    )
    .succeeded();
    let backup = node.folder.path().join("backup").display().to_string();
    ctl(&node, &["backup", &backup]).succeeded();
    ctl(&node, &["bans", "delete", "b1"]).succeeded();
    ctl(&node, &["restore", &backup]).succeeded();
    let bans = ctl(&node, &["bans", "list"]).succeeded();
    assert!(bans.contains("rogue"), "{bans}");
}

#[test]
fn failures_are_reported_with_an_exit_status() {
    let node = Node::start(&[]);
    let unknown = ctl(&node, &["clients", "show", "nobody"]).failed(4);
    assert!(
        unknown.contains("404") && unknown.contains("nobody"),
        "{unknown}"
    );
    let fixed = ctl(&node, &["settings", "set", "limits.max_qos", "1"]).failed(4);
    assert!(fixed.contains("restart the node"), "{fixed}");
    let wrong = ctl(&node, &["operators", "add", "x", "role"]).failed(2);
    assert!(wrong.contains("NAME=VALUE"), "{wrong}");
    let nowhere = node.folder.path().join("nowhere").display().to_string();
    let no_node = run(&["ctl", "--data-dir", &nowhere, "status"]).failed(2);
    assert!(no_node.contains("no node runs"), "{no_node}");
    let closed = run(&["ctl", "--url", "http://127.0.0.1:1", "status"]).failed(3);
    assert!(closed.contains("cannot reach"), "{closed}");
}

#[test]
fn wrong_numbers_are_rejected_with_what_is_expected() {
    for (arguments, wanted) in [
        (
            &["alarms", "ack", "x"][..],
            "`tidegate ctl alarms list` shows",
        ),
        (&["alarms", "show", "x"], "expected the number of an alarm"),
        (
            &["commands", "cancel", "x"],
            "`tidegate ctl commands list` shows",
        ),
        (
            &["sinks", "dead-letters", "replay", "s", "x"],
            "`tidegate ctl sinks dead-letters",
        ),
        (
            &["clients", "list", "--limit", "x"],
            "expected a whole number",
        ),
        (
            &["telemetry", "list", "d", "--from-ms", "1.5"],
            "'1.5' for '--from-ms <MS>': expected a whole number",
        ),
        (
            &["clients", "list", "--limit", "99999999999999999999999"],
            "expected a smaller whole number",
        ),
    ] {
        let error = run(&[&["ctl"], arguments].concat()).failed(2);
        assert!(error.contains(wanted), "{error}");
        assert!(!error.contains("digit"), "{error}");
    }
}

#[test]
fn a_person_changes_the_password_that_somebody_else_has_set() {
    let node = Node::start(&[]);
    let given = file(&node, "given", "a given password\n");
    let own = file(&node, "own", "a password of my own\n");
    let add = ["operators", "add", "ann", "role=viewer"];
    ctl(&node, &[&add[..], &["--password-file", &given]].concat()).succeeded();
    let log_in = |password: &str, words: &[&str]| {
        let as_ann = ["--login", "ann", "--login-password-file", password];
        ctl(&node, &[&as_ann[..], words].concat())
    };
    let rejected = log_in(&given, &["clients", "list"]).failed(4);
    assert!(
        rejected.contains("403") && rejected.contains("password"),
        "{rejected}"
    );
    let change = ["change-password", "--new-password-file", &own];
    assert_eq!(
        log_in(&given, &change).succeeded(),
        "the password was changed\n"
    );
    log_in(&own, &["clients", "list"]).succeeded();
    let nobody = ctl(&node, &change).failed(2);
    assert!(nobody.contains("--login"), "{nobody}");
}

#[test]
fn a_user_without_a_password_is_rejected_with_the_option_for_one() {
    let node = Node::start(&[]);
    for kind in ["users", "operators"] {
        let error = ctl(&node, &[kind, "add", "x", "role=viewer"]).failed(2);
        assert!(error.contains("--ask-password"), "{error}");
    }
}

#[test]
fn a_rule_of_a_node_that_is_not_named_is_no_panic() {
    for arguments in [
        &["rule", "trace", "r"][..],
        &["rule", "test", "--name", "r"],
    ] {
        let output = run(arguments);
        assert!(!output.stderr.contains("panicked"), "{}", output.stderr);
        assert_ne!(output.code, Some(0));
        assert_ne!(output.code, Some(101), "{}", output.stderr);
    }
}

#[test]
fn a_file_of_an_unknown_format_is_rejected() {
    let node = Node::start(&[]);
    for arguments in [
        &["telemetry", "export", "d", "/tmp/rows.xlsx"][..],
        &["devices", "export", "/tmp/devices.xlsx"],
    ] {
        let error = ctl(&node, arguments).failed(2);
        assert!(
            error.contains(".jsonl") && error.contains(".csv"),
            "{error}"
        );
    }
    assert!(!std::path::Path::new("/tmp/rows.xlsx").exists());
}

#[test]
fn alarms_are_listed_acknowledged_and_notified() {
    let node = Node::start(&["--set", "alarms.node_alarm_interval_s=1"]);
    let rules = r#"[{"id": "large", "raise": [
        {"severity": "MINOR", "when": {"key": "memory_mb", "is": ">", "value": 1}}]}]"#;
    let rules = file(&node, "rules.json", rules);
    ctl(&node, &["node-alarm-rules", "set", &rules]).succeeded();
    let deadline = Instant::now() + Duration::from_secs(60);
    let listed = loop {
        let listed = ctl(&node, &["alarms", "list", "--active"]).succeeded();
        if listed.contains("large") {
            break listed;
        }
        assert!(Instant::now() < deadline, "{listed}");
        std::thread::sleep(Duration::from_millis(100));
    };
    assert!(listed.starts_with("ALARM  SEVERITY"), "{listed}");
    assert!(listed.contains("MINOR") && listed.contains("ACTIVE_UNACK"));
    let seen = ctl(&node, &["alarms", "ack", "1"]).succeeded();
    assert_eq!(seen, "alarm 1 was acknowledged\n");
    let again = ctl(&node, &["alarms", "ack", "1"]).failed(4);
    assert!(again.contains("409"), "{again}");
    ctl(&node, &["node-alarm-rules", "reset"]).succeeded();
    let counts = ctl(&node, &["alarms", "count"]).succeeded();
    assert!(counts.contains("by_state"), "{counts}");
    let add = [
        "notifications",
        "add",
        "night",
        r#"to={"mqtt": {"topic": "night"}}"#,
    ];
    ctl(&node, &add).succeeded();
    let sent = ctl(&node, &["notifications", "test", "night"]).succeeded();
    assert_eq!(sent, "night was sent\n");
    let status = ctl(&node, &["notifications", "status"]).succeeded();
    assert!(status.contains("night"), "{status}");
}

#[test]
fn a_node_with_tls_is_reached_by_its_data_directory_and_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let authority = testkit::CertificateAuthority::new(folder.path().join("ours"));
    let strangers = testkit::CertificateAuthority::new(folder.path().join("theirs"));
    let identity = authority.issue_server("server");
    let certificate = format!("http.tls.certificate={}", identity.certificate.display());
    let key = format!("http.tls.private_key={}", identity.key.display());
    let node = Node::start(&["--set", &certificate, "--set", &key]);
    let (right, wrong) = (authority.certificate_path(), strangers.certificate_path());
    let (right, wrong) = (right.to_str().unwrap(), wrong.to_str().unwrap());
    let who = ctl(&node, &["--cafile", right, "whoami"]).succeeded();
    assert!(who.contains("admin"), "{who}");
    let rejected = ctl(&node, &["--cafile", wrong, "whoami"]).failed(3);
    assert!(
        rejected.contains(
            "the server's certificate is not signed by a trusted authority; name its authority with --cafile"
        ),
        "{rejected}"
    );
    let port = node.address("http").rsplit_once(':').unwrap().1.to_owned();
    let plain_url = format!("http://localhost:{port}");
    let plain = ctl(&node, &["--url", &plain_url, "whoami"]).failed(3);
    assert!(
        plain.contains("; check that the port serves HTTPS"),
        "{plain}"
    );
    let url = format!("https://localhost:{port}");
    let by_name = ctl(&node, &["--url", &url, "--cafile", right, "whoami"]).succeeded();
    assert!(by_name.contains("admin"), "{by_name}");
}

#[test]
fn devices_are_changed_get_new_tokens_and_their_commands_end_with_a_status() {
    let node = Node::start(&[]);
    ctl(&node, &["products", "add", "boilers", "name=Boilers"]).succeeded();
    let added = ctl(
        &node,
        &["--json", "devices", "add", "b1", "--product", "boilers"],
    );
    let added: serde_json::Value = serde_json::from_str(&added.succeeded()).unwrap();
    let first = added["issued"][0]["token"].as_str().unwrap().to_owned();

    let set = ["devices", "set", "b1", "name=Boiler 3", "group=east"];
    assert_eq!(ctl(&node, &set).succeeded(), "device b1 was changed\n");
    let shown = ctl(&node, &["devices", "show", "b1"]).succeeded();
    assert!(
        shown.contains("Boiler 3") && shown.contains("east"),
        "{shown}"
    );

    let renewed = ctl(&node, &["devices", "new-token", "b1"]).succeeded();
    let token = renewed.lines().last().unwrap();
    assert_ne!(token, first);
    let publish = |token: &str| {
        let telemetry = [
            "-t",
            "v1/devices/me/telemetry",
            "-m",
            r#"{"t":1}"#,
            "-q",
            "1",
        ];
        node.publish(&[&telemetry[..], &["-u", token]].concat())
    };
    publish(token).succeeded();

    ctl(&node, &["devices", "attributes", "b1", "server", "floor=2"]).succeeded();
    let attributes = ctl(&node, &["devices", "attributes", "b1"]).succeeded();
    assert!(
        attributes.contains("floor") && attributes.contains('T') && attributes.contains('Z'),
        "times are shown as dates: {attributes}"
    );

    // The device is away: nothing is kept for it, and nothing answers.
    let command = ["commands", "send", "b1", "restart", "{delay_s: 3}"];
    let not_json = ctl(&node, &command).failed(2);
    assert!(
        not_json.contains("params") && not_json.contains("not valid JSON"),
        "{not_json}"
    );
    let subscriber = node.subscriber(&["-t", "v1/devices/me/rpc/request/+", "-u", token]);
    let silent = ["commands", "send", "b1", "restart", "--timeout-ms", "100"];
    let timed_out = ctl(&node, &silent).failed(5);
    assert!(
        timed_out.contains("no response within 100 ms"),
        "{timed_out}"
    );
    drop(subscriber);

    ctl(
        &node,
        &[
            "devices",
            "set",
            "b1",
            r#"credentials=[{"type":"password","password":"a long password here"}]"#,
        ],
    )
    .succeeded();
    let mixed = ctl(&node, &["devices", "new-token", "b1"]).failed(2);
    assert!(
        mixed.contains("password") && mixed.contains("--replace-all"),
        "{mixed}"
    );
}

#[test]
fn a_node_with_another_data_directory_is_named_in_the_error() {
    let folder = tempfile::tempdir().unwrap();
    let elsewhere = folder.path().to_str().unwrap();
    let error = run(&["ctl", "--data-dir", elsewhere, "status"]).failed(2);
    for part in ["--data-dir", "TIDEGATE_DATA_DIR", "--url"] {
        assert!(error.contains(part), "{part}: {error}");
    }
}
