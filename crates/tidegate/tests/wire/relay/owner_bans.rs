//! Bans of owners: the endpoints of their namespaces are closed until an owner may log in again.

use serde_json::{Value, json};
use wall_clock::now_ms;

use super::{RelayClient, ask, new_endpoint, statistics};
use crate::api::own_node;
use crate::support::{Node, eventually};

/// A node with the namespace `acme` and an endpoint in it.
fn set_up() -> (Node, String) {
    let node = Node::start(&[]);
    let (status, answer) = ask(&node, "PUT", "namespaces/acme", json!({}));
    assert_eq!(status, 201, "{answer}");
    let room = new_endpoint(&node, json!({"namespace": "acme", "mode": "direct"}));
    (node, room)
}

fn set_operator(node: &Node, name: &str, fields: Value) {
    let mut operator = json!({
        "namespaces": [{"namespace": "acme", "role": "owner"}], "password": "Correct-horse-1",
    });
    for (field, value) in fields.as_object().unwrap() {
        operator[field] = value.clone();
    }
    let (status, answer) = ask(node, "PUT", &format!("operators/{name}"), operator);
    assert!(status < 300, "{answer}");
}

fn ban(node: &Node, name: &str, fields: Value) {
    let (status, answer) = ask(node, "POST", &format!("operators/{name}/ban"), fields);
    assert_eq!(status, 204, "{answer}");
}

fn unban(node: &Node, name: &str) {
    let (status, answer) = ask(
        node,
        "POST",
        &format!("operators/{name}/unban"),
        Value::Null,
    );
    assert_eq!(status, 204, "{answer}");
}

/// Whether a new client may use the endpoint; otherwise the refusal is the documented one, and it is returned.
fn refusal(node: &Node, room: &str) -> Option<Value> {
    let mut client = RelayClient::connect(node, room);
    // A client that is admitted gets nothing but the answer to its identification.
    client.send_text(r#"{"type":"identify"}"#);
    let answer = client.expect_json();
    if answer["code"] == "INVALID_MESSAGE" {
        return None;
    }
    assert_eq!(answer["code"], "USER_BANNED", "{answer}");
    assert_eq!(answer["type"], "system", "{answer}");
    assert_eq!(answer["level"], "error", "{answer}");
    assert_eq!(client.expect_close(), (1008, "User is banned".into()));
    Some(answer)
}

#[test]
fn a_ban_closes_the_endpoints_of_the_owner_and_its_end_opens_them() {
    if !own_node() {
        return;
    }
    let (mut node, room) = set_up();
    let elsewhere = new_endpoint(&node, json!({"mode": "direct"}));
    set_operator(&node, "ann", json!({}));
    set_operator(
        &node,
        "eve",
        json!({"namespaces": [{"namespace": "acme", "role": "operator"}]}),
    );
    let mut clients = [0; 2].map(|_| RelayClient::connect(&node, &room));
    let mut others = [0; 2].map(|_| RelayClient::connect(&node, &elsewhere));
    for pair in [&mut clients, &mut others] {
        pair[0].send_text("before");
        assert_eq!(pair[1].expect_text(), "before");
    }

    let before_ms = now_ms();
    ban(&node, "ann", json!({"reason": "resells the service"}));
    let expected = ("USER_BANNED".to_owned(), 1008, "User is banned".to_owned());
    for client in &mut clients {
        assert_eq!(client.expect_refusal(), expected);
    }
    let refused = refusal(&node, &room).expect("a refusal");
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("resells the service"), "{message}");
    let since_ms = message.split(' ').find_map(|word| word.parse::<u64>().ok());
    assert!(
        (before_ms..=now_ms()).contains(&since_ms.unwrap()),
        "{message}"
    );
    let shown = statistics(&node, &room);
    assert_eq!(
        (&shown["is_enabled"], &shown["current_connections"]),
        (&json!(false), &json!(0))
    );
    assert!(shown["rejected_connections"].as_u64() > Some(0), "{shown}");
    others[0].send_text("after");
    assert_eq!(others[1].expect_text(), "after");

    node.crash();
    node.restart();
    assert!(refusal(&node, &room).is_some(), "also after a restart");
    assert!(refusal(&node, &elsewhere).is_none());
    unban(&node, "ann");
    assert!(refusal(&node, &room).is_none());
    assert_eq!(statistics(&node, &room)["is_enabled"], true);
}

#[test]
fn endpoints_stay_open_while_one_of_several_owners_may_log_in() {
    if !own_node() {
        return;
    }
    let (node, room) = set_up();
    for name in ["ann", "bob"] {
        set_operator(&node, name, json!({}));
    }
    let mut client = RelayClient::connect(&node, &room);
    ban(&node, "ann", json!({"reason": "spam"}));
    assert!(refusal(&node, &room).is_none());
    client.send_text("still here");

    // Bob leaves: nobody who may log in owns the namespace any more.
    set_operator(&node, "bob", json!({"enabled": false}));
    assert_eq!(client.expect_refusal().0, "USER_BANNED");
    assert!(refusal(&node, &room).is_some());
    set_operator(&node, "bob", json!({}));
    assert!(refusal(&node, &room).is_none());

    let mut client = RelayClient::connect(&node, &room);
    ban(
        &node,
        "bob",
        json!({"reason": "spam", "until_ms": now_ms() + 1500}),
    );
    assert_eq!(client.expect_refusal().0, "USER_BANNED");
    let refused = refusal(&node, &room).expect("a refusal");
    assert!(
        refused["message"].as_str().unwrap().contains(" until "),
        "{refused}"
    );
    eventually("the ban of one owner ends by itself", || {
        refusal(&node, &room).is_none()
    });

    // The namespace belongs to nobody any more.
    ban(&node, "bob", json!({"reason": "spam"}));
    assert!(refusal(&node, &room).is_some());
    for name in ["ann", "bob"] {
        let (status, answer) = ask(&node, "DELETE", &format!("operators/{name}"), Value::Null);
        assert_eq!(status, 204, "{answer}");
    }
    assert!(refusal(&node, &room).is_none());
}
