//! Listeners and certificates that are created, changed and removed while the node runs.

use std::fs;

use serde_json::{Value, json};

use super::{ApiResponse, closed, local_token, own_node, send};
use crate::certificates::{Authority, TlsIdentity, server_certificate};
use crate::support::{Connect, Node, Raw, eventually, kind, temporary_directory, unique};

fn upload(node: &Node, id: &str, identity: &TlsIdentity) -> ApiResponse {
    let body = json!({
        "certificate": fs::read_to_string(&identity.certificate).unwrap(),
        "private_key": fs::read_to_string(&identity.key).unwrap(),
    });
    send(
        node,
        &local_token(node),
        "PUT",
        &format!("/api/v1/certificates/{id}"),
        &body,
    )
}

fn put_listener(node: &Node, name: &str, definition: &Value) -> ApiResponse {
    let path = format!("/api/v1/listeners/{name}");
    send(node, &local_token(node), "PUT", &path, definition)
}

fn get(node: &Node, path: &str) -> ApiResponse {
    send(node, &local_token(node), "GET", path, &Value::Null)
}

fn delete(node: &Node, path: &str) -> ApiResponse {
    send(node, &local_token(node), "DELETE", path, &Value::Null)
}

fn address_of(answer: &ApiResponse) -> String {
    answer.body["address"].as_str().unwrap().to_owned()
}

fn presented(authority: &Authority, address: &str) -> Vec<u8> {
    server_certificate(&authority.connect(address, None).unwrap()).to_vec()
}

#[test]
fn a_tls_listener_lives_from_its_creation_to_its_removal() {
    if !own_node() {
        return;
    }
    let mut node = closed();
    let authority = Authority::new(temporary_directory());
    let first = authority.issue_server("first");
    let uploaded = upload(&node, "web", &first);
    assert_eq!(uploaded.status, 201, "{}", uploaded.body);
    assert_eq!(uploaded.body["has_private_key"], true);
    assert_eq!(
        uploaded.body["names"],
        json!(["localhost", "127.0.0.1", "::1"])
    );

    let definition = json!({
        "protocol": "mqtts", "bind": "127.0.0.1:0", "tls": {"certificate": "web"}, "allow_anonymous": true,
    });
    let created = put_listener(&node, "added", &definition);
    assert_eq!(created.status, 201, "{}", created.body);
    assert_eq!(created.body["origin"], "api");
    assert_eq!(created.body["definition"], definition);
    let address = address_of(&created);
    let mut client = Raw::over(authority.connect(&address, None).unwrap(), 5);
    assert_eq!(
        client.hand_shake(&Connect::new(5, unique("added"))).reason,
        0
    );
    let before = presented(&authority, &address);

    // The next connections get the next certificate; this one stays.
    let replaced = upload(&node, "web", &authority.issue_server("second"));
    assert_eq!(replaced.status, 200, "{}", replaced.body);
    assert_ne!(presented(&authority, &address), before);
    client.ping();

    // It is used.
    let rejected = delete(&node, "/api/v1/certificates/web");
    assert_eq!(rejected.status, 409, "{}", rejected.body);
    assert!(rejected.body["detail"].as_str().unwrap().contains("added"));

    // It is there again after a restart, with the last certificate.
    drop(client);
    node.restart();
    let shown = get(&node, "/api/v1/listeners/added");
    assert_eq!(
        (shown.status, &shown.body["running"]),
        (200, &json!(true)),
        "{}",
        shown.body
    );
    let address = address_of(&shown);
    assert_ne!(presented(&authority, &address), before);

    let mut client = Raw::over(authority.connect(&address, None).unwrap(), 5);
    assert_eq!(
        client.hand_shake(&Connect::new(5, unique("added"))).reason,
        0
    );
    assert_eq!(delete(&node, "/api/v1/listeners/added").status, 204);
    assert_eq!(client.recv(kind::DISCONNECT).reason, 0x98);
    eventually("nobody listens", || {
        std::net::TcpStream::connect(&address).is_err()
    });
    assert_eq!(get(&node, "/api/v1/listeners/added").status, 404);
    assert_eq!(delete(&node, "/api/v1/certificates/web").status, 204);
    node.restart();
    assert_eq!(get(&node, "/api/v1/listeners/added").status, 404);
    assert_eq!(get(&node, "/api/v1/certificates").body["data"], json!([]));
}

#[test]
fn private_keys_are_never_returned() {
    if !own_node() {
        return;
    }
    let node = closed();
    let authority = Authority::new(temporary_directory());
    let identity = authority.issue_server("server");
    assert_eq!(upload(&node, "web", &identity).status, 201);
    let key = fs::read_to_string(&identity.key).unwrap();
    let line = key.lines().nth(1).unwrap();
    for path in [
        "/api/v1/certificates",
        "/api/v1/certificates/web",
        "/api/v1/audit-log",
    ] {
        let answer = get(&node, path);
        assert_eq!(answer.status, 200);
        let text = answer.body.to_string();
        assert!(
            !text.contains(line) && !text.contains("PRIVATE KEY"),
            "{path}: {text}"
        );
    }
    assert!(!node.log().contains(line));
    // A key in the wrong field would be shown.
    let swapped = json!({"certificate": key});
    let answer = send(
        &node,
        &local_token(&node),
        "PUT",
        "/api/v1/certificates/other",
        &swapped,
    );
    assert_eq!(answer.status, 422);
    assert!(!answer.body.to_string().contains(line), "{}", answer.body);
}

#[test]
fn invalid_listeners_and_certificates_are_rejected_with_the_remedy() {
    if !own_node() {
        return;
    }
    let node = closed();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let used = put_listener(&node, "second", &json!({"protocol": "mqtt", "bind": taken}));
    let detail = used.body["detail"].as_str().unwrap();
    assert_eq!(used.status, 409);
    assert!(
        detail.contains(&taken) && detail.contains("in use"),
        "{detail}"
    );
    assert_eq!(get(&node, "/api/v1/listeners/second").status, 404);

    let configured = put_listener(
        &node,
        "mqtt",
        &json!({"protocol": "mqtt", "bind": "127.0.0.1:0"}),
    );
    assert_eq!(configured.status, 409, "{}", configured.body);
    assert_eq!(delete(&node, "/api/v1/listeners/mqtt").status, 409);

    for (definition, field) in [
        (
            json!({"protocol": "mqtts", "bind": "127.0.0.1:0"}),
            "tls.certificate",
        ),
        (
            json!({"protocol": "mqtts", "bind": "127.0.0.1:0", "tls": {"certificate": "none"}}),
            "tls.certificate",
        ),
        (json!({"protocol": "mqtt", "bind": "nowhere"}), "bind"),
        (
            json!({"protocol": "link", "bind": "127.0.0.1:0"}),
            "protocol: a listener with the protocol link is declared in the configuration file",
        ),
        (
            json!({"protocol": "mqt", "bind": "127.0.0.1:0"}),
            "protocol: unknown value `mqt`, expected one of `mqtt`, `mqtts`, `ws`, `wss`, `unix`; did you mean `mqtt`?",
        ),
        (
            json!({"protocol": "mqtt", "bind": "127.0.0.1:0", "max_connections": 0}),
            "max_connections",
        ),
    ] {
        let answer = put_listener(&node, "second", &definition);
        assert_eq!(answer.status, 422, "{}", answer.body);
        assert!(
            answer.body["detail"].as_str().unwrap().starts_with(field),
            "{}",
            answer.body
        );
    }

    let authority = Authority::new(temporary_directory());
    let (one, other) = (
        authority.issue_server("one"),
        authority.issue_server("other"),
    );
    let mixed = TlsIdentity {
        certificate: one.certificate,
        key: other.key,
    };
    let answer = upload(&node, "mixed", &mixed);
    assert_eq!(answer.status, 422, "{}", answer.body);
    assert!(
        answer.body["detail"]
            .as_str()
            .unwrap()
            .starts_with("private_key"),
        "{}",
        answer.body
    );
    assert_eq!(get(&node, "/api/v1/certificates").body["data"], json!([]));
}

#[test]
fn a_replaced_listener_continues_if_the_new_one_cannot_be_opened() {
    if !own_node() {
        return;
    }
    let node = closed();
    let open = json!({"protocol": "mqtt", "bind": "127.0.0.1:0", "allow_anonymous": true});
    let created = put_listener(&node, "second", &open);
    assert_eq!(created.status, 201, "{}", created.body);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let rejected = put_listener(&node, "second", &json!({"protocol": "mqtt", "bind": taken}));
    assert_eq!(rejected.status, 409);
    let shown = get(&node, "/api/v1/listeners/second");
    assert_eq!(shown.body["definition"], open);
    assert!(std::net::TcpStream::connect(address_of(&shown)).is_ok());
    let changed = json!({"protocol": "mqtt", "bind": address_of(&shown), "max_connections": 7});
    let changed = put_listener(&node, "second", &changed);
    assert_eq!(
        (changed.status, &changed.body["max_connections"]),
        (200, &json!(7))
    );
}

#[test]
fn a_node_starts_without_a_listener_whose_port_is_taken() {
    if !own_node() {
        return;
    }
    let mut node = closed();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    let created = put_listener(
        &node,
        "second",
        &json!({"protocol": "mqtt", "bind": address}),
    );
    assert_eq!(created.status, 201, "{}", created.body);
    node.terminate(std::time::Duration::from_secs(15));
    let taken = std::net::TcpListener::bind(&address).unwrap();
    node.start_again();
    let shown = get(&node, "/api/v1/listeners/second");
    assert_eq!(shown.body["running"], false);
    assert!(
        shown.body["problem"].as_str().unwrap().contains("in use"),
        "{}",
        shown.body
    );
    let start = || {
        send(
            &node,
            &local_token(&node),
            "POST",
            "/api/v1/listeners/second/start",
            &Value::Null,
        )
    };
    assert_eq!(start().status, 409);
    drop(taken);
    let started = start();
    assert_eq!(
        (started.status, &started.body["running"]),
        (200, &json!(true)),
        "{}",
        started.body
    );
    assert_eq!(started.body["problem"], Value::Null);
}
