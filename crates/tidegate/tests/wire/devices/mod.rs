//! Registered devices: made over the API, connected by each kind of credentials, there and gone.

mod alarms;
mod backups;
mod commands;
mod damage;
mod device_api;
mod device_events;
mod device_log;
mod firmware;
mod fleet;
mod import_jobs;
mod intrusion;
mod jetlinks;
mod link;
mod link_publish;
mod link_subscriptions;
mod long_polls;
mod objects;
mod storage_full;
mod storm;
pub(crate) mod telemetry;
mod telemetry_files;
mod thingsboard;
mod thingsboard_rest;
mod thingsboard_websocket;
mod uses;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{SystemTime, UNIX_EPOCH};

use ring::hmac;
use serde_json::{Value, json};

use crate::support::{Connect, Node, Raw, Subscribe, eventually, unique};

const SUCCESS: u8 = 0;
const WRONG: u8 = 0x86;

/// Asks the API; the status, the fields of the answer, and the JSON or text.
fn ask(
    node: &Node,
    (method, path): (&str, &str),
    fields: &str,
    body: &str,
) -> (u16, String, Value) {
    let path = format!("/api/v1/{path}");
    ask_at(node.address("http"), (method, &path), fields, body)
}

/// The same of a node that is known by its address.
pub(crate) fn ask_at(
    address: &str,
    (method, path): (&str, &str),
    fields: &str,
    body: &str,
) -> (u16, String, Value) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\n{fields}content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let value = serde_json::from_str(body).unwrap_or_else(|_| body.into());
    (status, head.to_owned(), value)
}

/// Fields of a change of the version that a response has.
fn if_match(head: &str) -> String {
    let version = head.lines().find_map(|line| line.strip_prefix("etag: "));
    let version = version.unwrap_or_else(|| panic!("no ETag: {head}"));
    format!("content-type: application/json\r\nif-match: {version}\r\n")
}

fn api(node: &Node, method: &str, path: &str, body: &Value) -> (u16, Value) {
    api_at(node.address("http"), method, path, body)
}

/// A device with the token `token-` and its id; `more` are fields of it.
fn with_token(node: &Node, id: &str, product: &str, more: Value) -> Value {
    let mut wanted = json!({"id": id, "product": product,
        "credentials": [{"type": "token", "token": format!("token-{id}")}]});
    for (key, value) in more.as_object().into_iter().flatten() {
        wanted[key] = value.clone();
    }
    device(node, wanted)
}

/// Connects the device of [`with_token`].
fn connect(node: &Node, id: &str) -> Raw {
    let (raw, reason) = login(node, &by_token(&format!("token-{id}")));
    assert_eq!(reason, SUCCESS);
    raw
}

fn get(node: &Node, path: &str) -> Value {
    let (status, answer) = api(node, "GET", path, &Value::Null);
    assert_eq!(status, 200, "{path}: {answer}");
    answer
}

/// The latest values of a device, without their times.
fn latest(node: &Node, id: &str) -> Value {
    let answer = get(node, &format!("devices/{id}/telemetry/latest"));
    let values = answer["values"].as_object().unwrap();
    values
        .iter()
        .map(|(key, sample)| (key.clone(), sample["value"].clone()))
        .collect()
}

pub(crate) fn api_at(address: &str, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let body = match body {
        Value::Null => String::new(),
        body => body.to_string(),
    };
    let fields = "content-type: application/json\r\n";
    let path = format!("/api/v1/{path}");
    let (status, _, value) = ask_at(address, (method, &path), fields, &body);
    (status, value)
}

fn product(node: &Node, id: &str, mut product: Value) {
    product["id"] = id.into();
    let (status, answer) = api(node, "POST", "products", &product);
    assert_eq!(status, 201, "{answer}");
}

fn device(node: &Node, device: Value) -> Value {
    let (status, answer) = api(node, "POST", "devices", &device);
    assert_eq!(status, 201, "{answer}");
    answer
}

fn state(node: &Node, id: &str) -> String {
    let (status, answer) = api(node, "GET", &format!("devices/{id}"), &Value::Null);
    assert_eq!(status, 200, "{answer}");
    answer["state"].as_str().unwrap().to_owned()
}

fn login(node: &Node, connect: &Connect) -> (Raw, u8) {
    let mut raw = Raw::open(node, connect.version);
    let connack = raw.hand_shake(connect);
    (raw, connack.reason)
}

fn by_token(token: &str) -> Connect {
    Connect::new(5, unique("c")).username(token)
}

fn md5(text: &str) -> String {
    use md5::Digest as _;
    let digest: [u8; 16] = md5::Md5::digest(text).into();
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn jwt(claims: &Value, key: &[u8]) -> String {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    let head = URL_SAFE_NO_PAD.encode(b"{\"alg\":\"HS256\",\"typ\":\"JWT\"}");
    let signed = format!("{head}.{}", URL_SAFE_NO_PAD.encode(claims.to_string()));
    let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
}

#[test]
fn devices_come_in_by_each_kind_of_credentials_hot_and_cold() {
    let mut node = Node::start(&[]);
    product(&node, "meter", json!({}));
    let made = device(
        &node,
        json!({"id": "d1", "product": "meter", "credentials": [
            {"type": "token"}, {"type": "password", "username": "u1", "password": "pencil"},
            {"type": "secure", "secure_key": "sk"}, {"type": "jwt", "algorithm": "HS256", "key": "0123456789abcdef"}]}),
    );
    let token = made["issued"][0]["token"].as_str().unwrap().to_owned();
    let (_, shown) = api(&node, "GET", "devices/d1", &Value::Null);
    assert!(!shown.to_string().contains(&token) && !shown.to_string().contains("sk\""));
    for round in ["hot", "cold"] {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let secure = |at_ms: u128, key: &str| {
            let username = format!("d1|{at_ms}");
            let password = md5(&format!("{username}|{key}"));
            Connect::new(4, "d1").username(username).password(password)
        };
        let signed = jwt(&json!({"exp": now.as_secs() + 60}), b"0123456789abcdef");
        let late = jwt(&json!({"exp": now.as_secs() - 60}), b"0123456789abcdef");
        for (connect, wanted) in [
            (by_token(&token), SUCCESS),
            (
                Connect::new(5, unique("c"))
                    .username("u1")
                    .password("pencil"),
                SUCCESS,
            ),
            (
                Connect::new(5, unique("c"))
                    .username("u1")
                    .password("wrong"),
                WRONG,
            ),
            (secure(now.as_millis(), "sk"), SUCCESS),
            (secure(now.as_millis(), "other"), 4),
            (secure(now.as_millis() - 400_000, "sk"), 4),
            (
                Connect::new(5, "d1").username("x").password(signed),
                SUCCESS,
            ),
            (Connect::new(5, "d1").username("x").password(late), WRONG),
        ] {
            let (_raw, reason) = login(&node, &connect);
            assert_eq!(reason, wanted, "{round}: {connect:?}");
        }
        node.restart();
    }
}

#[test]
fn a_device_may_use_its_own_topics_and_what_rules_allow_and_nothing_else() {
    let config =
        "[[auth.rule]]\npermission = \"allow\"\ntopics = [\"own/${client_attrs.deviceId}/#\"]\n";
    let node = Node::start_with_config(&[], config);
    product(&node, "meter", json!({}));
    device(
        &node,
        json!({"id": "d1", "product": "meter", "credentials": [{"type": "token", "token": "T1"}]}),
    );
    let (mut raw, reason) = login(&node, &by_token("T1"));
    assert_eq!(reason, SUCCESS);
    let mut code = |filter: &str| raw.subscribe_for_codes(&Subscribe::new(1).filter(filter, 0))[0];
    for filter in [
        "v1/devices/me/rpc/request/+",
        "/meter/d1/#",
        "tg/d1/down/#",
        "own/d1/x",
    ] {
        assert_eq!(code(filter), 0, "{filter}");
    }
    for filter in [
        "/meter/d2/#",
        "#",
        "tg/+/down/#",
        "own/d2/x",
        "v1/devices/me/#",
    ] {
        assert_eq!(code(filter), 0x87, "{filter}");
    }
}

#[test]
fn a_device_is_shown_by_its_id_and_its_session_is_its_own() {
    let mut node = Node::start(&[]);
    product(&node, "meter", json!({}));
    for id in ["d1", "d2"] {
        with_token(&node, id, "meter", json!({}));
    }
    let fixed = |token: &str| Connect::new(4, "fixed").username(token).persistent();
    let (raw, reason) = login(&node, &fixed("token-d1"));
    assert_eq!(reason, SUCCESS);
    let clients = get(&node, "clients");
    let shown = &clients["data"][0];
    let names = ["username", "device", "product"].map(|name| shown[name].as_str().unwrap());
    assert_eq!(names, ["device:d1", "d1", "meter"]);
    assert!(!clients.to_string().contains("token-d1"), "{clients}");
    raw.disconnect();
    node.restart();
    let (_, reason) = login(&node, &fixed("token-d2"));
    assert_eq!(
        reason, 2,
        "the client id is that of another device's session"
    );
    let mut raw = Raw::open(&node, 4);
    assert!(raw.hand_shake(&fixed("token-d1")).session_present);
    // On the loopback, too, where a client that shows nothing comes in.
    let (_, reason) = login(&node, &by_token("token-d3"));
    assert_eq!(reason, WRONG);
    let (_, reason) = login(&node, &Connect::new(5, unique("c")));
    assert_eq!(reason, SUCCESS);
    assert!(!node.log().contains("token-d"), "{}", node.log());
}

#[test]
fn states_are_right_after_takeover_end_and_crash() {
    let mut node = Node::start(&[]);
    product(&node, "meter", json!({}));
    for (id, token) in [("d1", "T1"), ("d2", "T2"), ("d3", "T3")] {
        device(
            &node,
            json!({"id": id, "product": "meter", "credentials": [{"type": "token", "token": token}]}),
        );
    }
    assert_eq!(state(&node, "d1"), "notActive");
    let (first, reason) = login(&node, &Connect::new(5, "same").username("T1"));
    assert_eq!(reason, SUCCESS);
    assert_eq!(state(&node, "d1"), "online");
    let (second, _) = login(&node, &Connect::new(5, "same").username("T1"));
    drop(first);
    assert_eq!(state(&node, "d1"), "online");
    let (other, _) = login(&node, &by_token("T1"));
    second.disconnect();
    assert_eq!(state(&node, "d1"), "online");
    other.disconnect();
    eventually("the device is offline", || state(&node, "d1") == "offline");
    let (_d2, _) = login(&node, &by_token("T2"));
    let (_, listed) = api(&node, "GET", "devices?state=online", &Value::Null);
    assert_eq!(listed["data"][0]["id"], "d2");
    assert_eq!(listed["data"].as_array().unwrap().len(), 1);
    // One that is removed goes at once.
    let (mut gone, _) = login(&node, &by_token("T3"));
    assert_eq!(api(&node, "DELETE", "devices/d3", &Value::Null).0, 204);
    gone.packets_until_closed();
    device(&node, json!({"id": "d3", "product": "meter"}));
    eventually("what was seen is written", || {
        let (_, shown) = api(&node, "GET", "devices/d2", &Value::Null);
        shown["activated_at_ms"].is_u64()
    });
    node.crash();
    assert_eq!(
        [state(&node, "d1"), state(&node, "d2"), state(&node, "d3")],
        ["offline", "offline", "notActive"]
    );
    let (_d2, reason) = login(&node, &by_token("T2"));
    assert_eq!((reason, state(&node, "d2")), (SUCCESS, "online".to_owned()));
}

#[test]
fn the_api_stores_devices_and_reports_errors() {
    let node = Node::start(&[]);
    let model = json!({"properties": [{"id": "t", "valueType": {"type": "flaot"}}]});
    let (status, problem) = api(
        &node,
        "POST",
        "products",
        &json!({"id": "bad", "model": model}),
    );
    assert_eq!(status, 422, "{problem}");
    assert!(
        problem.to_string().contains("properties[0].valueType.type"),
        "{problem}"
    );
    product(
        &node,
        "gate",
        json!({"gateway": true, "secure": {"secure_id": "s", "secure_key": "hidden"}}),
    );
    let (_, shown) = api(&node, "GET", "products/gate", &Value::Null);
    assert!(!shown.to_string().contains("hidden"), "{shown}");
    // Put back as it was shown, it keeps its secret.
    let (status, answer) = api(&node, "PUT", "products/gate", &shown);
    assert_eq!(status, 200, "{answer}");
    product(&node, "meter", json!({}));
    let made = device(
        &node,
        json!({"id": "g1", "product": "gate", "tags": {"floor": "2"}}),
    );
    device(
        &node,
        json!({"id": "m1", "product": "meter", "parent": "g1", "name": "Kitchen"}),
    );
    let (status, _) = api(
        &node,
        "POST",
        "devices",
        &json!({"id": "g1", "product": "gate"}),
    );
    assert_eq!(status, 409);
    let (status, _) = api(
        &node,
        "POST",
        "devices",
        &json!({"id": "x", "product": "none"}),
    );
    assert_eq!(status, 422);
    for (query, ids) in [
        ("parent=g1", vec!["m1"]),
        ("tag=floor%3D2", vec!["g1"]),
        ("text=kitch", vec!["m1"]),
        ("product=meter&state=notActive", vec!["m1"]),
        ("limit=1", vec!["g1"]),
    ] {
        let (status, listed) = api(&node, "GET", &format!("devices?{query}"), &Value::Null);
        assert_eq!(status, 200, "{listed}");
        let found: Vec<_> = listed["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row["id"].as_str().unwrap())
            .collect();
        assert_eq!(found, ids, "{query}");
    }
    // Versions.
    let fields = "content-type: application/json\r\nif-match: \"99\"\r\n";
    let body = json!({"product": "gate"}).to_string();
    assert_eq!(ask(&node, ("PUT", "devices/g1"), fields, &body).0, 412);
    let fields = format!(
        "content-type: application/json\r\nif-match: \"{}\"\r\n",
        made["version"]
    );
    assert_eq!(ask(&node, ("PUT", "devices/g1"), &fields, &body).0, 200);
    assert_eq!(ask(&node, ("PUT", "devices/g1"), &fields, &body).0, 412);
    // What hangs together stays together.
    assert_eq!(api(&node, "DELETE", "products/gate", &Value::Null).0, 409);
    assert_eq!(api(&node, "DELETE", "devices/g1", &Value::Null).0, 409);
    // Attributes.
    let (status, _) = api(
        &node,
        "PUT",
        "devices/m1/attributes/shared",
        &json!({"rate": 5, "old": null}),
    );
    assert_eq!(status, 204);
    let (_, listed) = api(&node, "GET", "devices/m1/attributes/shared", &Value::Null);
    assert_eq!(listed["data"][0]["value"], 5);
    let path = "devices/m1/attributes/shared";
    let (_, head, _) = ask(&node, ("GET", path), "", "");
    let fields = if_match(&head);
    assert_eq!(ask(&node, ("PUT", path), &fields, r#"{"rate": 6}"#).0, 204);
    let (status, _, problem) = ask(&node, ("PUT", path), &fields, r#"{"rate": 7}"#);
    assert_eq!(status, 412, "{problem}");
    let (_, _, listed) = ask(&node, ("GET", path), "", "");
    assert_eq!(listed["data"][0]["value"], 6);
    assert_eq!(
        api(&node, "GET", "devices/m1/attributes/other", &Value::Null).0,
        404
    );
    assert_eq!(api(&node, "DELETE", "devices/m1", &Value::Null).0, 204);
    assert_eq!(api(&node, "DELETE", "devices/g1", &Value::Null).0, 204);
    assert_eq!(api(&node, "DELETE", "products/gate", &Value::Null).0, 204);
}

#[test]
fn devices_are_imported_exported_and_counted() {
    let node = Node::start(&[]);
    product(&node, "meter", json!({}));
    let lines: String = (0..3_000)
        .map(|n| format!("{{\"id\":\"d{n}\",\"product\":\"meter\",\"credentials\":[{{\"type\":\"token\",\"token\":\"t{n}\"}}]}}\n"))
        .collect();
    let jsonl = "content-type: application/x-ndjson\r\n";
    let wrong = format!("{lines}{{\"id\":\"x y\",\"product\":\"meter\"}}\n");
    let (status, _, imported) = ask(
        &node,
        ("POST", "device-import?first_line=11"),
        jsonl,
        &wrong,
    );
    assert_eq!(
        (status, &imported["created"], &imported["rejected"]),
        (200, &json!(3000), &json!(1))
    );
    assert_eq!(
        (
            &imported["rejections"][0]["line"],
            &imported["rejections"][0]["field"]
        ),
        (&json!(3011), &json!("id"))
    );
    let (_, _, again) = ask(&node, ("POST", "device-import"), jsonl, &lines);
    assert_eq!(
        (&again["created"], &again["updated"]),
        (&json!(0), &json!(3000))
    );
    let (_raw, reason) = login(&node, &by_token("t2999"));
    assert_eq!(reason, SUCCESS);
    let (_, counts) = api(&node, "GET", "device-counts", &Value::Null);
    assert_eq!(
        (&counts["devices"], &counts["online"]),
        (&json!(3000), &json!(1))
    );
    let csv = "accept: text/csv\r\n";
    let (_, head, text) = ask(&node, ("GET", "device-export?count=2000"), csv, "");
    assert!(
        head.to_lowercase().contains("tidegate-next: 2000"),
        "{head}"
    );
    assert_eq!(text.as_str().unwrap().lines().count(), 2001);
    let (_, head, text) = ask(
        &node,
        ("GET", "device-export?from=2000&count=2000"),
        csv,
        "",
    );
    assert!(!head.to_lowercase().contains("tidegate-next"), "{head}");
    assert!(
        text.as_str()
            .unwrap()
            .lines()
            .nth(1)
            .unwrap()
            .starts_with("d2000,meter,")
    );
}
