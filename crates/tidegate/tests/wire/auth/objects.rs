//! Users, authenticators, rules and bans written over the API take effect while clients are there, and outlive the node.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::{Value, json};

use super::{
    BANNED, SUCCESS, WRONG, as_user, hashed, log_in_as, login, may_publish, may_subscribe,
};
use crate::support::{Connect, Node, eventually, temporary_directory, unique};

/// Asks the API as the owner of the data folder; the status and the JSON.
fn api(node: &Node, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let token = std::fs::read_to_string(node.data_dir().join("api.token")).unwrap();
    let mut stream = TcpStream::connect(node.address("http")).unwrap();
    let body = match body {
        Value::Null => String::new(),
        body => body.to_string(),
    };
    let precondition = match method {
        "DELETE" => "if-match: *\r\n",
        _ => "",
    };
    write!(
        stream,
        "{method} /api/v1/{path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n{precondition}\
         content-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        token.trim(),
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    let body = answer.split_once("\r\n\r\n").unwrap().1;
    (status, serde_json::from_str(body).unwrap_or_default())
}

fn make(node: &Node, path: &str, body: Value) -> Value {
    let (status, answer) = api(node, "POST", path, &body);
    assert_eq!(status, 201, "{answer}");
    answer
}

fn delete(node: &Node, path: &str) {
    let (status, answer) = api(node, "DELETE", path, &Value::Null);
    assert_eq!(status, 204, "{answer}");
}

#[test]
fn users_come_and_go() {
    let node = Node::start(&["--set", "auth.max_failed_logins_per_address=0"]);
    let made = make(
        &node,
        "users",
        json!({"username": "ann", "password": "s3cret-pencil"}),
    );
    assert_eq!(made["has_password"], json!(true));
    assert!(!made.to_string().contains("s3cret") && !made.to_string().contains("argon2"));
    assert_eq!(login(&node, "ann", "s3cret-pencil"), SUCCESS);
    assert_eq!(login(&node, "ann", "pen"), WRONG);
    let (status, problem) = api(&node, "POST", "users", &json!({"username": "bob"}));
    assert_eq!(status, 422, "{problem}");
    delete(&node, "users/ann");
    // Nobody is asked any more, so it is as before: the loopback lets in whoever comes.
    assert_eq!(login(&node, "ann", "s3cret-pencil"), SUCCESS);
}

#[test]
fn rules_reach_clients_that_are_there() {
    let node = Node::start(&["--set", "auth.default_permission=deny"]);
    let (mut client, _) = log_in_as(&node, &Connect::new(5, "c1"));
    assert!(!may_publish(&mut client, "a/c1"));
    let rule = json!({"permission": "allow", "topics": ["a/${clientid}", "b/#"]});
    let made = make(&node, "acl-rules", rule);
    eventually("the rule holds", || may_publish(&mut client, "a/c1"));
    assert!(!may_publish(&mut client, "a/c2") && may_subscribe(&mut client, "b/#"));
    // One that comes first by its order.
    let denial = json!({"permission": "deny", "topics": "a/c1", "order": -1});
    make(&node, "acl-rules", denial);
    eventually("the denial holds", || !may_publish(&mut client, "a/c1"));
    delete(
        &node,
        &format!("acl-rules/{}", made["id"].as_str().unwrap()),
    );
    eventually("the rule is gone", || !may_subscribe(&mut client, "b/x"));
    let wrong = json!({"permission": "allow", "topics": "a/#/b"});
    let (status, problem) = api(&node, "POST", "acl-rules", &wrong);
    assert_eq!(status, 422, "{problem}");
    assert!(problem.to_string().contains("topics"), "{problem}");
}

#[test]
fn a_ban_ends_the_connection_and_keeps_its_client_out() {
    let node = Node::start(&[]);
    let client_id = unique("bad");
    let (mut client, _) = log_in_as(&node, &Connect::new(5, &client_id));
    let made = make(
        &node,
        "bans",
        json!({"client_id": client_id, "reason": "test"}),
    );
    client.expect_disconnect(0x98);
    assert_eq!(
        log_in_as(&node, &Connect::new(5, &client_id)).1.reason,
        BANNED
    );
    delete(&node, &format!("bans/{}", made["id"].as_str().unwrap()));
    eventually("the ban is lifted", || {
        log_in_as(&node, &Connect::new(5, &client_id)).1.reason == SUCCESS
    });
    make(&node, "bans", json!({"address": "127.0.0.0/8"}));
    eventually("the address is banned", || {
        log_in_as(&node, &Connect::new(5, unique("c"))).1.reason == BANNED
    });
}

#[test]
fn an_authenticator_joins_the_chain() {
    let node = Node::start(&["--set", "auth.max_failed_logins_per_address=0"]);
    let file = temporary_directory().join("passwords");
    std::fs::write(&file, format!("ann:{}\n", hashed("pencil"))).unwrap();
    assert_eq!(login(&node, "ann", "pen"), SUCCESS, "nobody is asked yet");
    let authenticator = json!({"id": "file", "type": "password_file", "path": file});
    make(&node, "authenticators", authenticator);
    eventually("it is asked", || login(&node, "ann", "pen") == WRONG);
    assert_eq!(login(&node, "ann", "pencil"), SUCCESS);
    let (status, problem) = api(
        &node,
        "POST",
        "authenticators",
        &json!({"id": "x", "type": "y"}),
    );
    assert_eq!(status, 422, "{problem}");
    let secret = json!({"id": "jwt", "type": "jwt", "secret": "s3cret"});
    let shown = make(&node, "authenticators", secret);
    assert!(!shown.to_string().contains("s3cret"), "{shown}");
    assert_ne!(log_in_as(&node, &as_user("bob", "x")).1.reason, SUCCESS);
}

#[test]
fn authenticators_count_their_answers() {
    let config = "[[auth.authenticator]]\ntype = \"http\"\nname = \"web\"\n\
                  url = \"http://127.0.0.1:9/\"\norder = 5\n";
    let node = Node::start_with_config(&["--set", "auth.max_failed_logins_per_address=0"], config);
    make(
        &node,
        "users",
        json!({"username": "ann", "password": "s3cret-pencil"}),
    );
    let status = |id: &str| {
        let (status, page) = api(&node, "GET", "authenticator-status", &Value::Null);
        assert_eq!(status, 200, "{page}");
        let rows = page["data"].as_array().unwrap();
        rows.iter().find(|row| row["id"] == id).unwrap().clone()
    };
    assert_eq!(login(&node, "ann", "s3cret-pencil"), SUCCESS);
    assert_eq!(login(&node, "ann", "wrong"), WRONG);
    let users = status("users");
    assert_eq!(
        (&users["accepted"], &users["rejected"], &users["state"]),
        (&json!(1), &json!(1), &json!("ok")),
        "{users}"
    );
    assert_eq!(users["last_error"], Value::Null);
    assert_ne!(login(&node, "bob", "s3cret-too"), SUCCESS);
    assert_eq!(status("users")["ignored"], 1);
    let web = status("web");
    assert_eq!(
        (&web["type"], &web["order"], &web["errors"], &web["state"]),
        (&json!("http"), &json!(5), &json!(1), &json!("failing")),
        "{web}"
    );
    assert!(web["last_error"]["at_ms"].as_u64() > Some(0), "{web}");
    assert!(web["last_error"]["text"].as_str() > Some(""), "{web}");
    assert!(!web.to_string().contains("s3cret"), "{web}");
}
