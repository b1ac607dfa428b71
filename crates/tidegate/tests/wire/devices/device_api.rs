//! What devices post over HTTP, and what programs read on ThingsBoard's paths.

use serde_json::{Value, json};

use super::{api, ask, device, product};
use crate::support::{Node, eventually};

fn latest(node: &Node) -> Value {
    api(node, "GET", "devices/d1/telemetry/latest", &Value::Null).1["values"].take()
}

#[test]
fn a_device_posts_and_asks_by_its_token() {
    let node = Node::start(&["--set", "http.max_failed_logins=5"]);
    product(&node, "meter", json!({"mode": "sync"}));
    device(
        &node,
        json!({"id": "d1", "product": "meter", "credentials": [{"type": "token", "token": "T1"}]}),
    );
    let post = |path: &str, body: &str| ask(&node, ("POST", path), "", body);
    assert_eq!(post("T1/telemetry", r#"{"t": 21.5}"#).0, 200);
    assert_eq!(latest(&node)["t"]["value"], 21.5);
    assert_eq!(super::state(&node, "d1"), "online");
    let (status, _, problem) = post("T1/telemetry", r#"{"t": "#);
    assert_eq!(status, 400, "{problem}");
    assert!(
        problem["detail"].as_str().unwrap().contains("at byte"),
        "{problem}"
    );
    assert_eq!(post("T1/attributes", r#"{"model": "x", "n": 1}"#).0, 200);
    let shared = json!({"rate": 5});
    assert_eq!(
        api(&node, "PUT", "devices/d1/attributes/shared", &shared).0,
        204
    );
    let attributes =
        |query: &str| api(&node, "GET", &format!("T1/attributes{query}"), &Value::Null).1;
    assert_eq!(
        attributes(""),
        json!({"client": {"model": "x", "n": 1}, "shared": {"rate": 5}})
    );
    assert_eq!(
        attributes("?clientKeys=n,none"),
        json!({"client": {"n": 1}})
    );
    assert_eq!(
        attributes("?sharedKeys=rate"),
        json!({"shared": {"rate": 5}})
    );
    // Guessing has an end, and those that are known go on.
    for _ in 0..5 {
        assert_eq!(post("T2/telemetry", "{}").0, 401);
    }
    assert_eq!(post("T3/telemetry", "{}").0, 429);
    assert_eq!(post("T1/telemetry", r#"{"t": 22}"#).0, 200);
    let disabled = json!({"product": "meter", "enabled": false});
    assert_eq!(api(&node, "PUT", "devices/d1", &disabled).0, 200);
    assert_ne!(post("T1/telemetry", r#"{"t": 23}"#).0, 200);
    assert_eq!(latest(&node)["t"]["value"], 22);
}

#[test]
fn a_device_waits_for_changes_of_its_shared_attributes() {
    let node = Node::start(&["--set", "http.max_long_polls_per_device=1"]);
    product(
        &node,
        "meter",
        json!({"mode": "sync", "storage": {"device_log": true}}),
    );
    for (id, token) in [("d1", "T1"), ("d2", "T2")] {
        let credentials = json!([{"type": "token", "token": token}]);
        device(
            &node,
            json!({"id": id, "product": "meter", "credentials": credentials}),
        );
    }
    let wait = |query: &str, retries: bool| {
        let path = format!("/api/v1/T1/attributes/updates{query}");
        let address = node.address("http").to_owned();
        std::thread::spawn(move || {
            loop {
                let (status, _, answer) = super::ask_at(&address, ("GET", &path), "", "");
                if status != 429 || !retries {
                    return (status, answer);
                }
            }
        })
    };
    // A probe may hold the only place for a moment.
    let wait_for_place = |query: &'static str| wait(query, true);
    let is_waiting = || {
        let second = wait("?timeout=1", false).join().unwrap().0;
        second == 429
    };
    assert_eq!(wait("?timeout=1", false).join().unwrap().0, 408);
    let first = wait_for_place("");
    eventually("the device waits", is_waiting);
    let set = |device: &str, scope: &str, values: Value| {
        let path = format!("devices/{device}/attributes/{scope}");
        let (status, answer) = api(&node, "PUT", &path, &values);
        assert_eq!(status, 204, "{answer}");
    };
    // What is for others, or not for devices, does not end it.
    set("d2", "shared", json!({"rate": 1}));
    set("d1", "server", json!({"floor": 2}));
    assert!(is_waiting() && !first.is_finished());
    set("d1", "shared", json!({"rate": 10}));
    assert_eq!(first.join().unwrap(), (200, json!({"rate": 10})));
    let second = wait_for_place("?timeout=60000");
    eventually("the device waits again", is_waiting);
    set("d1", "shared", json!({"rate": null}));
    assert_eq!(second.join().unwrap(), (200, json!({"deleted": ["rate"]})));
    let (status, answer) = wait("?timeout=1", false).join().unwrap();
    assert_eq!(status, 408, "{answer}");
    let path = "/api/v1/nobody/attributes/updates";
    assert_eq!(
        super::ask_at(node.address("http"), ("GET", path), "", "").0,
        401
    );
}

#[test]
fn programs_read_on_the_paths_of_thingsboard() {
    let node = Node::start(&[]);
    product(&node, "meter", json!({"mode": "sync"}));
    device(
        &node,
        json!({"id": "d1", "product": "meter", "credentials": [{"type": "token", "token": "T1"}]}),
    );
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let start = now.unwrap().as_millis() as u64 - 3_600_000;
    let rows: Vec<_> = (0..10)
        .map(|n| json!({"ts": start + n * 1000, "values": {"n": n, "on": n % 2 == 0}}))
        .collect();
    let rows = Value::from(rows).to_string();
    assert_eq!(ask(&node, ("POST", "T1/telemetry"), "", &rows).0, 200);
    assert_eq!(
        ask(&node, ("POST", "T1/attributes"), "", r#"{"model": "x"}"#).0,
        200
    );
    let get = |path: &str| {
        let path = format!("../plugins/telemetry/DEVICE/d1/{path}");
        let (status, _, answer) = ask_plainly(&node, &path);
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    };
    assert_eq!(get("keys/timeseries"), json!(["n", "on"]));
    assert_eq!(
        get("values/timeseries?keys=n,none")["n"],
        json!([{"ts": start + 9000, "value": "9"}])
    );
    assert_eq!(
        get("values/timeseries?keys=none")["none"][0]["value"],
        Value::Null
    );
    let end = start + 10_000;
    let times = format!("startTs={start}&endTs={end}");
    assert_eq!(
        get(&format!(
            "values/timeseries?{times}&limit=2&useStrictDataTypes=true"
        )),
        json!({"n": [{"ts": start + 9000, "value": 9}, {"ts": start + 8000, "value": 8}],
            "on": [{"ts": start + 9000, "value": false}, {"ts": start + 8000, "value": true}]})
    );
    assert_eq!(
        get(&format!(
            "values/timeseries?{times}&keys=n&agg=AVG&interval=5000&orderBy=ASC"
        )),
        json!({"n": [{"ts": start + 2500, "value": "2.0"}, {"ts": start + 7500, "value": "7.0"}]})
    );
    assert_eq!(
        get(&format!(
            "values/timeseries?{times}&keys=on&agg=COUNT&useStrictDataTypes=true"
        )),
        json!({"on": [{"ts": start + 5000, "value": 10}]})
    );
    assert_eq!(get("keys/attributes"), json!(["model"]));
    let attributes = get("values/attributes/CLIENT_SCOPE?keys=model");
    assert_eq!(
        (&attributes[0]["key"], &attributes[0]["value"]),
        (&json!("model"), &json!("x"))
    );
    assert_eq!(get("values/attributes/SERVER_SCOPE"), json!([]));
}

/// A path outside of `/api/v1`.
fn ask_plainly(node: &Node, path: &str) -> (u16, String, Value) {
    super::ask_at(
        node.address("http"),
        ("GET", &path.replace("../", "/api/")),
        "",
        "",
    )
}
