//! Alarms: raised by what devices report over MQTT, by SQL rules and by silence, cleared, acknowledged, kept, and told.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use ring::hmac;
use serde_json::{Value, json};

use super::{api, ask, connect, get, if_match, product, with_token};
use crate::support::{Node, Raw, eventually};

fn report(raw: &mut Raw, values: Value) {
    raw.publish_qos1("v1/devices/me/telemetry", values.to_string(), 1);
}

/// The alarms of a question, without those of the node about itself.
fn alarms(node: &Node, query: &str) -> Vec<Value> {
    let answer = get(node, &format!("alarms?{query}"));
    let rows = answer["data"].as_array().unwrap().iter();
    rows.filter(|alarm| alarm["deviceId"] != "$node")
        .cloned()
        .collect()
}

/// State and severity of the alarms of a device, the newest first.
fn states(node: &Node, device: &str) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let rows = alarms(node, &format!("device={device}"));
    rows.iter()
        .map(|alarm| (text(&alarm["state"]), text(&alarm["severity"])))
        .collect()
}

fn until_states(node: &Node, device: &str, wanted: &[(&str, &str)]) {
    let mut last = Vec::new();
    let wanted: Vec<_> = wanted
        .iter()
        .map(|(state, severity)| ((*state).to_owned(), (*severity).to_owned()))
        .collect();
    eventually(&format!("alarms of {device} are {wanted:?}"), || {
        last = states(node, device);
        last == wanted
    });
}

fn overheated() -> Value {
    json!([{
        "id": "overheated",
        "raise": [
            {"severity": "MAJOR", "when": {"key": "t", "is": ">", "value": 60}},
            {"severity": "CRITICAL", "when": {"key": "t", "is": ">", "attribute": "limit", "value": 80}},
        ],
        "clear": {"when": {"key": "t", "is": "<", "value": 50}},
        "details": "${t} degrees at ${deviceName}",
        "propagate": true,
    }])
}

fn put(node: &Node, path: &str, body: &Value) -> Value {
    let (status, answer) = api(node, "PUT", path, body);
    assert!(status < 300, "{path}: {answer}");
    answer
}

fn post(node: &Node, path: &str) -> (u16, Value) {
    api(node, "POST", path, &Value::Null)
}

#[test]
fn a_threshold_raises_changes_and_clears_an_alarm_in_each_mode() {
    let mut node = Node::start(&[]);
    for mode in ["sync", "actor"] {
        let (id, hub) = (format!("d-{mode}"), format!("hub-{mode}"));
        product(
            &node,
            mode,
            json!({"mode": mode, "alarms": overheated(), "gateway": true}),
        );
        with_token(&node, &hub, mode, Value::Null);
        with_token(&node, &id, mode, json!({"parent": hub, "name": "Kitchen"}));
        let mut raw = connect(&node, &id);
        report(&mut raw, json!({"t": 55}));
        report(&mut raw, json!({"t": 61.5}));
        until_states(&node, &id, &[("ACTIVE_UNACK", "MAJOR")]);
        let alarm = &alarms(
            &node,
            &format!("device={id}&type=overheated&state=ACTIVE_UNACK"),
        )[0];
        assert_eq!(alarm["details"], "61.5 degrees at Kitchen");
        assert_eq!(alarm["values"], json!({"t": 61.5}));
        assert_eq!(alarm["productId"], mode);
        // It is one of the gateway, too.
        assert_eq!(alarms(&node, &format!("device={hub}")).len(), 1);
        // Back below the threshold it stays, until it is below that of clearing.
        report(&mut raw, json!({"t": 55}));
        report(&mut raw, json!({"t": 81}));
        until_states(&node, &id, &[("ACTIVE_UNACK", "CRITICAL")]);
        let number = alarm["id"].as_u64().unwrap();
        let (status, seen) = post(&node, &format!("alarms/{number}/acknowledge"));
        assert_eq!((status, &seen["state"]), (200, &json!("ACTIVE_ACK")));
        assert!(seen["acknowledged_by"].is_string());
        assert_eq!(post(&node, &format!("alarms/{number}/acknowledge")).0, 409);
        let comment = |text: &str| {
            let path = format!("alarms/{number}/comments");
            api(&node, "POST", &path, &json!({"text": text})).0
        };
        assert_eq!(comment("The valve was stuck."), 200);
        assert_eq!(comment(" "), 422);
        assert_eq!(comment(&"x".repeat(1001)), 422);
        // Dashboards can be shared with everybody, and show no comments.
        let board = json!({"id": format!("board-{mode}"), "name": "Board", "cards": [{
            "id": "alarms", "kind": "status", "x": 0, "y": 0, "w": 6, "h": 4,
            "sources": [{"type": "alarms", "device": id}],
        }]});
        let (status, answer) = api(&node, "POST", "dashboards", &board);
        assert_eq!(status, 201, "{answer}");
        let card = get(&node, &format!("dashboards/board-{mode}/cards/alarms/data"));
        let shown = &card["sources"][0]["alarms"][0];
        assert_eq!(shown["type"], "overheated", "{card}");
        assert!(shown["comments"].is_null(), "{card}");
        node.restart();
        until_states(&node, &id, &[("ACTIVE_ACK", "CRITICAL")]);
        let kept = &alarms(&node, &format!("device={id}"))[0]["comments"];
        assert_eq!(kept[0]["text"], "The valve was stuck.");
        assert_eq!(kept.as_array().unwrap().len(), 1);
        let mut raw = connect(&node, &id);
        report(&mut raw, json!({"t": 45}));
        until_states(&node, &id, &[("CLEARED_ACK", "CRITICAL")]);
        // The limit of this device is another one.
        put(
            &node,
            &format!("devices/{id}/attributes/server"),
            &json!({"limit": 62}),
        );
        report(&mut raw, json!({"t": 63}));
        let both = [("ACTIVE_UNACK", "CRITICAL"), ("CLEARED_ACK", "CRITICAL")];
        until_states(&node, &id, &both);
        // Cleared by hand while it is still too hot: the next message raises another.
        let newest = alarms(&node, &format!("device={id}"))[0]["id"].clone();
        let (status, cleared) = post(&node, &format!("alarms/{newest}/clear"));
        assert_eq!((status, &cleared["state"]), (200, &json!("CLEARED_UNACK")));
        report(&mut raw, json!({"t": 64}));
        eventually("there is another", || states(&node, &id).len() == 3);
        let newest = alarms(&node, &format!("device={id}"))[0]["id"].clone();
        assert_eq!(
            api(&node, "DELETE", &format!("alarms/{newest}"), &Value::Null).0,
            204
        );
        assert_eq!(
            api(&node, "GET", &format!("alarms/{newest}"), &Value::Null).0,
            404
        );
    }
    let counts = get(&node, "alarm-counts");
    assert!(counts["alarms"].as_u64() >= Some(4), "{counts}");
    // With the device its alarms go.
    assert_eq!(api(&node, "DELETE", "devices/d-sync", &Value::Null).0, 204);
    eventually("they are gone", || alarms(&node, "product=sync").is_empty());
}

#[test]
fn lasting_repeating_and_silent_conditions_raise_alarms() {
    let node = Node::start(&[]);
    let test = |is: &str, value: Value| json!({"key": "t", "is": is, "value": value});
    let raise = |rest: Value| {
        let mut raise = rest;
        raise["severity"] = "MINOR".into();
        raise
    };
    let rules = json!([
        {"id": "lasting", "raise": [raise(json!({"when": test(">", json!(10)), "for_s": 1}))]},
        {"id": "repeating", "raise": [raise(json!({"when": test(">", json!(10)), "times": 3, "within_s": 60}))]},
        {"id": "silent", "raise": [raise(json!({"when": test("silent_for", json!(1))}))],
            "clear": {"when": test(">=", json!(0))}},
        {"id": "gone", "raise": [raise(json!({"when": {"key": "$online", "is": "=", "value": false}}))],
            "clear": {"when": {"key": "$online", "is": "=", "value": true}}},
    ]);
    product(&node, "meter", json!({"alarms": rules}));
    with_token(&node, "d", "meter", Value::Null);
    let of_type = |kind: &str, state: &str| {
        alarms(&node, &format!("device=d&type={kind}&state={state}")).len()
    };
    let mut raw = connect(&node, "d");
    report(&mut raw, json!({"t": 11}));
    report(&mut raw, json!({"t": 12}));
    assert_eq!(of_type("repeating", "ACTIVE_UNACK"), 0);
    report(&mut raw, json!({"t": 13}));
    eventually("it was so three times", || {
        of_type("repeating", "ACTIVE_UNACK") == 1
    });
    // Without another message.
    eventually("it lasted", || of_type("lasting", "ACTIVE_UNACK") == 1);
    eventually("it was silent", || of_type("silent", "ACTIVE_UNACK") == 1);
    assert_eq!(of_type("gone", "ACTIVE_UNACK"), 0);
    report(&mut raw, json!({"t": 1}));
    eventually("it is no longer silent", || {
        of_type("silent", "CLEARED_UNACK") == 1
    });
    raw.disconnect();
    eventually("it is gone", || of_type("gone", "ACTIVE_UNACK") == 1);
    let _raw = connect(&node, "d");
    eventually("it is back", || of_type("gone", "CLEARED_UNACK") == 1);
}

/// Heads and bodies of requests.
type ReceivedRequests = Mutex<Vec<(String, String)>>;

/// Takes requests and answers 204.
fn web_hooks() -> (u16, Arc<ReceivedRequests>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let received = Arc::<ReceivedRequests>::default();
    let shared = received.clone();
    // Ends with the process.
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let shared = shared.clone();
            std::thread::spawn(move || take(stream, &shared));
        }
    });
    (port, received)
}

fn take(mut stream: TcpStream, received: &ReceivedRequests) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).unwrap_or(0) == 0 {
                return;
            }
        }
        let head = head.to_ascii_lowercase();
        let length = head.split("content-length: ").nth(1).unwrap();
        let length = length.split("\r\n").next().unwrap().parse().unwrap();
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let body = String::from_utf8(body).unwrap();
        received.lock().unwrap().push((head, body));
        if stream
            .write_all(b"HTTP/1.1 204 No Content\r\n\r\n")
            .is_err()
        {
            return;
        }
    }
}

#[test]
fn alarms_are_notified_by_a_web_hook_and_by_mqtt() {
    let (port, hooks) = web_hooks();
    let node = Node::start(&[]);
    product(&node, "meter", json!({"alarms": overheated()}));
    with_token(&node, "d", "meter", Value::Null);
    let connector = json!({"type": "http", "url": format!("http://127.0.0.1:{port}/hook")});
    put(&node, "connectors/web", &connector);
    let sink = json!({
        "connector": "web", "format": "single", "signature": {"secret": "pencil", "prefix": "sha256="},
        "body": "${severity}|${change}|${text}", "queue": {"disk": {}},
    });
    put(&node, "sinks/hook", &sink);
    let (status, answer) = api(
        &node,
        "PUT",
        "notifications/hook",
        &json!({"to": {"sink": "none"}}),
    );
    assert_eq!(status, 422, "{answer}");
    put(
        &node,
        "notifications/hook",
        &json!({"to": {"sink": "hook"}, "products": ["meter"], "severities": ["CRITICAL"]}),
    );
    let to = json!({"mqtt": {"topic": "notices/${deviceId}/${change}", "qos": 1}});
    put(
        &node,
        "notifications/mqtt",
        &json!({"to": to, "products": ["meter", "$node"], "types": ["overheated", "test"]}),
    );
    let mut listener = Raw::client(&node, 5);
    listener.subscribe("notices/#", 1);
    assert_eq!(post(&node, "notifications/mqtt/test").0, 204);
    let notice = listener.recv(3);
    assert_eq!(notice.topic, "notices/$node/raised");
    listener.acknowledge(&notice);
    assert_eq!(post(&node, "notifications/nobody/test").0, 404);
    let mut raw = connect(&node, "d");
    report(&mut raw, json!({"t": 61}));
    let notice = listener.recv(3);
    listener.acknowledge(&notice);
    assert_eq!(notice.topic, "notices/d/raised");
    let alarm: Value = serde_json::from_slice(&notice.payload).unwrap();
    assert_eq!(
        alarm["text"],
        "MAJOR overheated of d: raised 61 degrees at d"
    );
    report(&mut raw, json!({"t": 90}));
    let notice = listener.recv(3);
    assert_eq!(notice.topic, "notices/d/severity_changed");
    // The hook was not called for the major one.
    eventually("the hook is called", || !hooks.lock().unwrap().is_empty());
    let (head, body) = hooks.lock().unwrap()[0].clone();
    assert_eq!(
        body,
        "CRITICAL|severity_changed|CRITICAL overheated of d: severity_changed 90 degrees at d"
    );
    let key = hmac::Key::new(hmac::HMAC_SHA256, b"pencil");
    let tag = hmac::sign(&key, body.as_bytes());
    let digits: String = tag.as_ref().iter().map(|b| format!("{b:02x}")).collect();
    assert!(
        head.contains(&format!("x-signature: sha256={digits}")),
        "{head}"
    );
    let status = get(&node, "notification-status");
    let sent = |name: &str| {
        let rows = status["data"].as_array().unwrap();
        let row = rows.iter().find(|row| row["name"] == name).unwrap();
        row["sent"].as_u64().unwrap()
    };
    assert_eq!((sent("hook"), sent("mqtt")), (1, 3), "{status}");
}

#[test]
fn rules_raise_alarms_and_telemetry_and_hear_of_devices() {
    let node = Node::start(&[]);
    product(&node, "meter", json!({"alarms": overheated()}));
    with_token(&node, "d", "meter", Value::Null);
    let rule = |name: &str, sql: &str, actions: Value| {
        put(
            &node,
            &format!("rules/{name}"),
            &json!({"sql": sql, "actions": actions}),
        );
    };
    rule(
        "raise",
        "SELECT payload.level AS level, payload.done AS done FROM \"plain/alarm\"",
        json!([{"kind": "alarm", "device": "d", "name": "leaking", "severity": "${level}",
            "clear": "${done}", "details": "by a rule"}]),
    );
    rule(
        "store",
        "SELECT payload.x * 2 AS t FROM \"plain/telemetry\"",
        json!([{"kind": "telemetry", "device": "d"}]),
    );
    // It does not hear of what it has made itself.
    rule(
        "loop",
        "SELECT properties.t + 1 AS t FROM \"$EVENT.DEVICE\" WHERE kind = 'property' AND productId = 'meter'",
        json!([{"kind": "telemetry", "device": "${deviceId}"}]),
    );
    rule(
        "tell",
        "SELECT *, coalesce(key, 'none') AS about FROM \"$EVENT.DEVICE\" WHERE deviceId = 'd' AND kind <> 'property'",
        json!([{"kind": "republish", "topic": "heard/${kind}/${about}", "qos": 1}]),
    );
    let mut listener = Raw::client(&node, 5);
    listener.subscribe("heard/#", 1);
    let mut next = |topic: &str| {
        let notice = listener.recv(3);
        listener.acknowledge(&notice);
        assert_eq!(notice.topic, topic);
        let event: Value = serde_json::from_slice(&notice.payload).unwrap();
        event
    };
    let mut plain = Raw::client(&node, 5);
    plain.publish_qos1(
        "plain/alarm",
        json!({"level": "minor", "done": false}).to_string(),
        1,
    );
    let event = next("heard/alarm/leaking");
    assert_eq!(event["value"]["change"], "raised", "{event}");
    let alarm = &alarms(&node, "device=d")[0];
    assert_eq!(
        (&alarm["rule"], &alarm["severity"], &alarm["details"]),
        (&json!("raise"), &json!("MINOR"), &json!("by a rule"))
    );
    plain.publish_qos1(
        "plain/alarm",
        json!({"level": "minor", "done": true}).to_string(),
        2,
    );
    assert_eq!(next("heard/alarm/leaking")["value"]["change"], "cleared");
    let raw = connect(&node, "d");
    assert_eq!(next("heard/online/none")["productId"], "meter");
    raw.disconnect();
    next("heard/offline/none");
    put(&node, "devices/d/attributes/shared", &json!({"a": 1}));
    assert_eq!(
        next("heard/attributes/shared")["properties"],
        json!({"a": 1})
    );
    // Telemetry of a rule goes the way of the device's own: it is stored, and raises alarms.
    plain.publish_qos1("plain/telemetry", json!({"x": 35}).to_string(), 3);
    assert_eq!(next("heard/alarm/overheated")["value"]["severity"], "MAJOR");
    eventually("the other rule has added one", || {
        let latest = get(&node, "devices/d/telemetry/latest");
        latest["values"]["t"]["value"].as_f64() == Some(71.0)
    });
    let status = get(&node, "rules/loop/status");
    assert!(
        status["counters"]["matched"].as_u64() <= Some(20),
        "{status}"
    );
}

#[test]
fn the_node_raises_alarms_about_itself_by_rules_that_can_change() {
    let node = Node::start(&["--set", "alarms.node_alarm_interval_s=1"]);
    let shown = get(&node, "node-alarm-rules");
    assert_eq!(
        (&shown["is_changed"], &shown["enabled"]),
        (&json!(false), &json!(true))
    );
    let rules = shown["rules"].as_array().unwrap();
    assert!(
        rules.iter().any(|rule| rule["id"] == "damaged_telemetry"),
        "{shown}"
    );
    let rule = |key: &str| {
        json!({"rules": [{"id": "large", "raise": [
            {"severity": "MINOR", "when": {"key": key, "is": ">", "value": 1}}]}]})
    };
    let (status, answer) = api(&node, "PUT", "node-alarm-rules", &rule("temperature"));
    assert_eq!(status, 422, "{answer}");
    let (_, head, _) = ask(&node, ("GET", "node-alarm-rules"), "", "");
    let seen = if_match(&head);
    put(&node, "node-alarm-rules", &rule("memory_mb"));
    for (method, body) in [
        ("PUT", rule("latency_p95_ms").to_string()),
        ("DELETE", String::new()),
    ] {
        let (status, _, problem) = ask(&node, (method, "node-alarm-rules"), &seen, &body);
        assert_eq!(status, 412, "{problem}");
    }
    let of_node = |state: &str| {
        let answer = get(
            &node,
            &format!("alarms?device=$node&type=large&state={state}"),
        );
        answer["data"].as_array().unwrap().len()
    };
    eventually("the node is too large", || of_node("ACTIVE_UNACK") == 1);
    // The rules of the program do not know it.
    let (status, reset) = api(&node, "DELETE", "node-alarm-rules", &Value::Null);
    assert_eq!((status, &reset["is_changed"]), (200, &json!(false)));
    eventually("it is no matter any more", || of_node("CLEARED_UNACK") == 1);
}

#[test]
fn alarms_are_watched_as_they_come() {
    let node = Node::start(&[]);
    product(&node, "meter", json!({"alarms": overheated()}));
    with_token(&node, "d", "meter", Value::Null);
    with_token(&node, "other", "meter", Value::Null);
    let mut stream = TcpStream::connect(node.address("http")).unwrap();
    stream
        .write_all(b"GET /api/v1/alarm-events?device=d HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    lines.find(|line| line == ": connected").unwrap();
    for id in ["other", "d"] {
        let mut raw = connect(&node, id);
        report(&mut raw, json!({"t": 61}));
        until_states(&node, id, &[("ACTIVE_UNACK", "MAJOR")]);
    }
    let data = lines.find_map(|line| line.strip_prefix("data: ").map(str::to_owned));
    let event: Value = serde_json::from_str(&data.unwrap()).unwrap();
    assert_eq!(event["event"], "raised");
    assert_eq!(event["alarm"]["deviceId"], "d");
}

#[test]
fn no_notification_is_lost_when_the_node_is_killed() {
    let mut node = Node::start(&[]);
    put(&node, "connectors/disk", &json!({"type": "file"}));
    let sink = json!({
        "connector": "disk", "file": "alarms.jsonl", "queue": {"disk": {}}, "batch": {"max_wait_ms": 1},
    });
    put(&node, "sinks/alarm-file", &sink);
    put(
        &node,
        "notifications/n",
        &json!({"to": {"sink": "alarm-file"}, "types": ["overheated"]}),
    );
    product(
        &node,
        "meter",
        json!({"alarms": overheated(), "mode": "sync"}),
    );
    with_token(&node, "d", "meter", Value::Null);
    let rows = |node: &Node| {
        let path = node.data_dir().join("sinks/files/alarms.jsonl");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        // The last line may be half written.
        let rows = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        rows.collect::<Vec<Value>>()
    };
    for _ in 0..3 {
        let mut raw = connect(&node, "d");
        for t in [61, 40].into_iter().cycle().take(60) {
            report(&mut raw, json!({"t": t}));
        }
        // In the midst of it.
        drop(raw);
        node.crash();
    }
    let kept = alarms(&node, "limit=500");
    assert!(!kept.is_empty());
    let mut missing = Vec::new();
    eventually("everything that became of alarms was written", || {
        let rows = rows(&node);
        let is_written = |alarm: &Value, change: &str| {
            let mut rows = rows.iter();
            rows.any(|row| row["id"] == alarm["id"] && row["change"] == change)
        };
        missing.clear();
        for alarm in &kept {
            let is_cleared = !alarm["cleared_at_ms"].is_null();
            if !is_written(alarm, "raised") || (is_cleared && !is_written(alarm, "cleared")) {
                missing.push(alarm["id"].clone());
            }
        }
        missing.is_empty()
    });
    // What was written twice has the same number both times.
    let rows = rows(&node);
    for row in &rows {
        let same = |other: &&Value| other["notificationId"] == row["notificationId"];
        let mut others = rows.iter().filter(same);
        assert!(others.all(|other| other["id"] == row["id"] && other["change"] == row["change"]));
    }
}
