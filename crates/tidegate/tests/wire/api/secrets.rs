//! A marker in each field that is a secret, and generated secrets: once they are used, they are in no answer, no list, no stream and
//! no log.

mod definitions;
mod uses;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::{local_token, own_node};
use crate::support::{Connect, DEADLINE, Node, Raw, eventually};
use definitions::config;
use uses::{use_authenticators, use_connectors, use_devices};

/// In all secrets of this test. A multiple of three bytes, so that it has three forms in base64.
const MARKER: &str = "s3cr3tM4rk3r";
/// What must be a valid NKey cannot contain it.
const NKEY_SEED: &str = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY";

/// Routes that answer with secrets on purpose, to admins only.
const BACKUP: &str = "/api/v1/backup";

fn secret(of: &str) -> String {
    format!("{MARKER}-{of}")
}

/// A server that reads a request and rejects it.
fn rejecting_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut buffer = [0; 16 << 10];
                let _ = stream.set_read_timeout(Some(DEADLINE));
                let _ = stream.read(&mut buffer);
                let _ = stream.write_all(
                    b"HTTP/1.1 403 Forbidden\r\nContent-Length: 6\r\nConnection: close\r\n\r\ndenied",
                );
            });
        }
    });
    address
}

/// A node and everything that it has answered.
struct RecordingNode {
    node: Node,
    admin: String,
    /// What was asked, and head and body of the answer.
    answers: Mutex<Vec<(String, String)>>,
    /// What the node has generated and shown once.
    generated: Mutex<BTreeSet<String>>,
}

impl RecordingNode {
    /// Status and body; the whole answer is kept. `authorization` may be empty.
    fn ask(
        &self,
        authorization: &str,
        method: &str,
        path: &str,
        content_type: &str,
        body: &str,
    ) -> (u16, Value) {
        let mut socket = TcpStream::connect(self.node.address("http")).unwrap();
        socket.set_read_timeout(Some(DEADLINE)).unwrap();
        let authorization = match authorization {
            "" => String::new(),
            value => format!("Authorization: {value}\r\n"),
        };
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{authorization}\
             Content-Type: {content_type}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        socket.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        let read = socket.read_to_end(&mut answer);
        read.unwrap_or_else(|error| panic!("{method} {path} is not answered: {error}"));
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let value = serde_json::from_str(body).unwrap_or_default();
        let target = format!("{method} {path}");
        self.answers.lock().unwrap().push((target, answer));
        (status, value)
    }

    fn api(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let body = match body {
            Value::Null => String::new(),
            body => body.to_string(),
        };
        let path = format!("/api/v1/{path}");
        self.ask(&self.admin, method, &path, "application/json", &body)
    }

    fn put(&self, path: &str, body: &Value) {
        let (status, answer) = self.api("PUT", path, body);
        assert!(matches!(status, 200 | 201), "{path}: {status} {answer}");
    }

    /// The answer to this request shows generated secrets: they are noted, and the answer is not looked at.
    fn issue(
        &self,
        (authorization, method, path): (&str, &str, &str),
        body: &Value,
        fields: &[&str],
    ) -> Vec<String> {
        let body = body.to_string();
        let (status, answer) = self.ask(authorization, method, path, "application/json", &body);
        assert!(matches!(status, 200 | 201), "{path}: {status} {answer}");
        self.answers.lock().unwrap().pop();
        let issued: Vec<_> = fields
            .iter()
            .map(|field| {
                let text = answer.pointer(field).and_then(Value::as_str);
                text.unwrap_or_else(|| panic!("no {field} in {answer}"))
                    .to_owned()
            })
            .collect();
        self.generated
            .lock()
            .unwrap()
            .extend(issued.iter().cloned());
        issued
    }

    fn login(&self, connect: &Connect) -> u8 {
        let mut raw = Raw::open(&self.node, connect.version);
        raw.hand_shake(connect).reason
    }

    /// Texts that must be nowhere.
    fn forbidden(&self) -> Vec<String> {
        let mut forbidden = vec![MARKER.to_owned(), NKEY_SEED.to_owned()];
        // As it is in base64, after zero, one or two other bytes.
        for before in 0..3 {
            let padded = [&b"???"[..before], MARKER.as_bytes()].concat();
            let encoded = STANDARD.encode(padded);
            let from = if before == 0 { 0 } else { 4 };
            let end = encoded.trim_end_matches('=').len();
            let until = if before == 0 { end } else { end - 2 };
            forbidden.push(encoded[from..until].to_owned());
        }
        forbidden.extend(self.generated.lock().unwrap().iter().cloned());
        forbidden
    }
}

#[test]
fn a_secret_is_found_in_base64() {
    let observed_forms = |text: &str| {
        let encoded = STANDARD.encode(text);
        (0..3).any(|before| {
            let padded = [&b"???"[..before], MARKER.as_bytes()].concat();
            let form = STANDARD.encode(padded);
            let from = if before == 0 { 0 } else { 4 };
            let end = form.trim_end_matches('=').len();
            let until = if before == 0 { end } else { end - 2 };
            encoded.contains(&form[from..until])
        })
    };
    for before in ["", "u", "us", "use", "user:", "user:x"] {
        assert!(
            observed_forms(&format!("{before}{MARKER}-more")),
            "{before}"
        );
    }
    assert!(!observed_forms("something else altogether"));
}

/// Objects that are rejected: the reason repeats no secret.
fn send_invalid_objects(observed: &RecordingNode) {
    let s = secret("invalid");
    for (path, body) in [
        ("users/x", json!({"password": [s]})),
        ("users/x", json!({"password_hash": s})),
        ("users/x", json!({"scram": s})),
        ("operators/x", json!({"role": "viewer", "password": [s]})),
        (
            "authenticators/x",
            json!({"type": "jwt", "secret": s, "other": 1}),
        ),
        ("authenticators/x", json!({"type": "jwt", "secret": [s]})),
        (
            "authenticators/x",
            json!({"type": "http", "url": "x", "headers": {"x-key": s}}),
        ),
        (
            "authenticators/x",
            json!({"type": "mysql", "password": s, "server": 1}),
        ),
        (
            "connectors/x",
            json!({"type": "http", "url": "x", "password": s}),
        ),
        ("connectors/x", json!({"type": "http", "password": [s]})),
        (
            "connectors/x",
            json!({"type": "http", "headers": {"x-key": [s]}}),
        ),
        ("connectors/x", json!({"type": "nats", "nkey_seed": s})),
        (
            "sources/x",
            json!({"connector": "http", "token": [s], "signature": s}),
        ),
        (
            "products/x",
            json!({"provisioning": {"mode": "allow_new", "key": "k", "secret": s}}),
        ),
        ("products/x", json!({"secure": s})),
        ("users/x", json!({"password": s, "is_superuser": s})),
        (
            "authenticators/x",
            json!({"type": "http", "url": "http://h/", "headers": s}),
        ),
        (
            "connectors/x",
            json!({"type": "http", "url": "http://h", "headers": s}),
        ),
        ("pull-sources/x", json!({"http": {"server": s}})),
        ("devices/x", json!({"product": "p", "credentials": s})),
        (
            "devices/x",
            json!({"product": "p", "credentials": [{"type": "token", "token": [s]}]}),
        ),
        (
            "devices/x",
            json!({"product": "p", "credentials": [{"type": "jwt", "algorithm": "ES256", "key": s}]}),
        ),
        (
            "devices/x",
            json!({"product": "p", "credentials": [{"type": "secure", "secure_id": "a|b", "secure_key": s}]}),
        ),
        (
            "pull-sources/x",
            json!({"http": {"server": {"url": "x", "token": s, "password": [s]}}}),
        ),
    ] {
        let (status, answer) = observed.api("PUT", path, &body);
        assert_eq!(status, 422, "{path} {body}: {answer}");
    }
}

/// The Authorization fields of a viewer, an operator and an admin, by password and by key.
fn create_operators(observed: &RecordingNode) -> Vec<(&'static str, String)> {
    let mut callers = Vec::new();
    for role in ["viewer", "operator", "admin"] {
        let password = secret(&format!("operator-{role}"));
        observed.put(
            &format!("operators/{role}"),
            &json!({"role": role, "password": password, "must_change_password": false}),
        );
        let login = json!({"username": role, "password": password});
        let target = ("", "POST", "/api/v1/login");
        let token = &observed.issue(target, &login, &["/token"])[0];
        callers.push((role, format!("Bearer {token}")));
        let target = ("", "POST", "/api/auth/login");
        observed.issue(target, &login, &["/token", "/refreshToken"]);
        let wrong = json!({"username": role, "password": secret("wrong")});
        assert_eq!(observed.api("POST", "login", &wrong).0, 401);
        let id = format!("key-{role}");
        let target = (observed.admin.as_str(), "POST", "/api/v1/api-keys");
        let key = &observed.issue(target, &json!({"id": id, "role": role}), &["/secret"])[0];
        let pair = STANDARD.encode(format!("{id}:{key}"));
        observed.generated.lock().unwrap().insert(pair.clone());
        callers.push((role, format!("Basic {pair}")));
        let wrong = STANDARD.encode(format!("{id}:{}", secret("wrong-key")));
        let (status, _) = observed.ask(&format!("Basic {wrong}"), "GET", "/api/v1/me", "", "");
        assert_eq!(status, 401);
    }
    let operator = callers[2].1.clone();
    let change =
        json!({"current_password": secret("operator-operator"), "password": secret("changed")});
    let (status, answer) = observed.ask(
        &operator,
        "PUT",
        "/api/v1/me/password",
        "application/json",
        &change.to_string(),
    );
    assert!(matches!(status, 200 | 204), "{answer}");
    // The change ended its logins.
    let login = json!({"username": "operator", "password": secret("changed")});
    let target = ("", "POST", "/api/v1/login");
    let token = &observed.issue(target, &login, &["/token"])[0];
    callers[2].1 = format!("Bearer {token}");
    callers
}

/// Collects what a stream of events says until the node ends.
fn follow_events(observed: &RecordingNode) -> Arc<Mutex<String>> {
    let mut socket = TcpStream::connect(observed.node.address("http")).unwrap();
    write!(
        socket,
        "GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: {}\r\n\r\n",
        observed.admin
    )
    .unwrap();
    let seen = Arc::new(Mutex::new(String::new()));
    let kept = seen.clone();
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(read @ 1..) = socket.read(&mut buffer) {
            let text = String::from_utf8_lossy(&buffer[..read]);
            kept.lock().unwrap().push_str(&text);
        }
    });
    let connected = seen.clone();
    eventually("the stream is open", || {
        connected.lock().unwrap().contains(": connected")
    });
    seen
}

/// All paths that are read with GET and end, with the ids of what there is in the place of their parameters.
fn paths_to_read(observed: &RecordingNode) -> Vec<String> {
    let (_, document) = observed.api("GET", "openapi.json", &Value::Null);
    let mut found = Vec::new();
    let mut lists: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        let Some(operation) = item.get("get") else {
            continue;
        };
        let answers = operation["responses"]["200"]["content"].as_object();
        let is_stream = answers.is_some_and(|content| content.contains_key("text/event-stream"));
        if is_stream {
            continue;
        }
        found.extend(fill_path(observed, path, &mut lists));
    }
    found
}

/// A path with a value for each parameter.
fn fill_path(
    observed: &RecordingNode,
    path: &str,
    lists: &mut BTreeMap<String, Vec<Value>>,
) -> Vec<String> {
    let Some((before, rest)) = path.split_once('{') else {
        return vec![path.to_owned()];
    };
    let (parameter, after) = rest.split_once('}').unwrap();
    let values: Vec<String> = match parameter {
        // Asked with the device's own token elsewhere.
        "token" => return Vec::new(),
        "scope" => ["client", "shared", "server"].map(str::to_owned).into(),
        _ => {
            let list = before.trim_end_matches('/').to_owned();
            let rows = lists.entry(list.clone()).or_insert_with(|| {
                let path = format!("{list}?limit=1000");
                let (_, answer) = observed.ask(&observed.admin, "GET", &path, "", "");
                match answer["data"].as_array() {
                    Some(rows) => rows.clone(),
                    None => {
                        let (_, mut answer) = observed.ask(&observed.admin, "GET", &list, "", "");
                        let rows = answer["data"].as_array_mut();
                        rows.map(std::mem::take).unwrap_or_default()
                    }
                }
            });
            let ids = rows.iter().filter_map(|row| match &row[parameter] {
                Value::String(id) => Some(id.clone()),
                Value::Number(id) => Some(id.to_string()),
                _ => None,
            });
            ids.map(|id| {
                id.replace('%', "%25")
                    .replace('/', "%2F")
                    .replace(' ', "%20")
            })
            .collect()
        }
    };
    let filled = values
        .into_iter()
        .map(|value| format!("{before}{value}{after}"));
    filled
        .collect::<Vec<_>>()
        .iter()
        .flat_map(|path| fill_path(observed, path, lists))
        .collect()
}

/// All stored objects of configuration with their secrets, without what each change sets.
fn stored_objects(observed: &RecordingNode) -> Vec<Value> {
    let mut socket = TcpStream::connect(observed.node.address("http")).unwrap();
    // Without chunks.
    let request = format!(
        "GET {BACKUP} HTTP/1.0\r\nHost: localhost\r\nAuthorization: {}\r\n\r\n",
        observed.admin
    );
    socket.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    let (head, lines) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(" 200 "), "{answer}");
    let lines = lines.lines().map(|line| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        for field in ["version", "created_ms", "updated_ms"] {
            line.as_object_mut().unwrap().remove(field);
        }
        line
    });
    lines.filter(|line| line["kind"].is_string()).collect()
}

/// An object that is written as it is shown stays as it is stored, with its secrets.
fn write_back_what_is_shown(observed: &RecordingNode, paths: &[String]) {
    let before = stored_objects(observed);
    assert!(before.iter().any(|line| line.to_string().contains(MARKER)));
    let mut masked = BTreeSet::new();
    for path in paths {
        let path = path.trim_start_matches("/api/v1/");
        let Some((kind, id)) = path.split_once('/') else {
            continue;
        };
        // Devices have routes of their own for credentials.
        if id.contains('/') || kind == "devices" {
            continue;
        }
        let (_, shown) = observed.api("GET", path, &Value::Null);
        if shown["origin"] != "api" {
            continue;
        }
        observed.put(path, &shown);
        if shown.to_string().contains("\"***\"") {
            masked.insert(kind);
        }
    }
    let expected = [
        "authenticators",
        "connectors",
        "products",
        "pull-sources",
        "sinks",
        "sources",
    ];
    assert_eq!(masked, BTreeSet::from(expected));
    let after = stored_objects(observed);
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(before, after);
    }
    assert_eq!(before.len(), after.len());
}

/// What is masked cannot be sent to another system, nor be a new secret.
fn misuse_masks(observed: &RecordingNode) {
    let elsewhere =
        json!({"type": "http", "url": "http://127.0.0.1:9/", "password": "***", "username": "u"});
    let elsewhere_pulled = json!({"interval_s": 1, "http": {
        "server": {"url": "http://127.0.0.1:9/", "headers": {"x-key": "***"}}, "device": "d", "values": {"t": "t"}}});
    for (method, path, body, parameter) in [
        ("PUT", "connectors/http", &elsewhere, "password"),
        ("PUT", "connectors/new", &elsewhere, "password"),
        ("POST", "connectors/test", &elsewhere, "password"),
        (
            "PUT",
            "authenticators/new",
            &json!({"type": "jwt", "secret": "***"}),
            "secret",
        ),
        (
            "PUT",
            "pull-sources/web",
            &elsewhere_pulled,
            "http.server.headers.x-key",
        ),
    ] {
        let (status, answer) = observed.api(method, path, body);
        assert_eq!(status, 422, "{path}: {answer}");
        assert_eq!(answer["parameter"], parameter, "{path}: {answer}");
    }
}

#[test]
fn no_secret_is_in_an_answer_a_list_a_stream_or_the_log() {
    if !own_node() {
        return;
    }
    let server = rejecting_server();
    let arguments = [
        "--set",
        "http.anonymous_role=none",
        "--set",
        "http.max_failed_logins=1000",
    ];
    let node = Node::start_with_config(&arguments, &config(server));
    let observed = RecordingNode {
        admin: format!("Bearer {}", local_token(&node)),
        node,
        answers: Mutex::default(),
        generated: Mutex::default(),
    };
    let local = observed.admin.trim_start_matches("Bearer ").to_owned();
    observed.generated.lock().unwrap().insert(local);
    let events = follow_events(&observed);
    let callers = create_operators(&observed);
    use_authenticators(&observed, server);
    use_connectors(&observed, server);
    use_devices(&observed);
    observed.put("notifications/night", &json!({"to": {"sink": "http"}}));
    send_invalid_objects(&observed);

    let paths = paths_to_read(&observed);
    write_back_what_is_shown(&observed, &paths);
    misuse_masks(&observed);
    for part in [
        "/api/v1/connectors/kafka",
        "/api/v1/sinks/http",
        "/api/v1/sources/declared",
        "/api/v1/authenticators/redis",
        "/api/v1/products/p",
        "/api/v1/devices/d",
        "/api/v1/pull-sources/ipmi",
        "/api/v1/operators/viewer",
        "/api/v1/api-keys/key-admin",
        "/api/v1/users/ann",
        "/api/v1/notifications/night",
        "/api/v1/audit-log",
        "/api/v1/settings",
        "/api/v1/device-export",
        "/api/v1/sinks/http/status",
    ] {
        assert!(paths.iter().any(|path| path == part), "{part}: {paths:?}");
    }
    let mut counts: BTreeMap<(&str, u16), usize> = BTreeMap::new();
    for (role, authorization) in [("nobody", String::new())].iter().chain(&callers) {
        for path in &paths {
            let (status, _) = observed.ask(authorization, "GET", path, "", "");
            *counts.entry((role, status)).or_default() += 1;
            if path == BACKUP && *role == "admin" {
                // It has what is needed to restore the node.
                observed.answers.lock().unwrap().pop();
                assert_eq!(status, 200);
            }
        }
        let audit = "/api/v1/audit-log?limit=1000";
        observed.ask(authorization, "GET", audit, "", "");
    }
    assert!(counts[&("admin", 200)] > counts[&("operator", 200)]);
    assert!(counts[&("operator", 200)] > counts[&("viewer", 200)]);
    assert!(counts[&("viewer", 200)] > 50, "{counts:?}");
    assert!(counts[&("nobody", 401)] > 50, "{counts:?}");

    let mut texts = std::mem::take(&mut *observed.answers.lock().unwrap());
    let events = events.lock().unwrap().clone();
    assert!(events.contains("authentication_failed"), "{events}");
    texts.push(("the stream of events".into(), events));
    for (number, line) in observed.node.log().lines().enumerate() {
        texts.push((format!("line {} of the log", number + 1), line.to_owned()));
    }
    let log = observed.node.log();
    assert!(log.contains("DEBUG") || log.contains("debug"), "{log}");
    let audited = texts.iter().any(|(target, text)| {
        target.contains("/audit-log?") && text.contains("authenticator.create")
    });
    assert!(audited, "the audit log has the changes");
    let forbidden = observed.forbidden();
    let found: Vec<_> = texts
        .iter()
        .filter(|(_, text)| forbidden.iter().any(|secret| text.contains(secret)))
        .map(|(target, text)| format!("{target}: {}", text.chars().take(1500).collect::<String>()))
        .collect();
    assert!(
        found.is_empty(),
        "{} of {} texts have secrets:\n{}",
        found.len(),
        texts.len(),
        found.join("\n")
    );
}
