//! What a change over the API does to those who connect over MQTT.

use serde_json::{Value, json};

use super::{closed, closed_with, local_token, own_node, send};
use crate::support::{Connect, Node, Raw, eventually, kind, unique};

fn connect(node: &Node, client_id: &str, login: Option<(&str, &str)>) -> (Raw, u8) {
    let mut raw = Raw::open(node, 5);
    let mut connect = Connect::new(5, client_id);
    if let Some((username, password)) = login {
        connect = connect.username(username).password(password);
    }
    let reason = raw.hand_shake(&connect).reason;
    (raw, reason)
}

#[test]
fn a_user_made_over_the_api_can_log_in_until_it_is_deleted() {
    if !own_node() {
        return;
    }
    let node = closed_with(&["--set", "listener.mqtt.allow_anonymous=false"]);
    let token = local_token(&node);
    let path = "/api/v1/users/ada";
    let user = json!({"password": "pencil"});
    let made = send(&node, &token, "PUT", path, &user);
    assert_eq!(made.status, 201, "{}", made.body);
    assert!(!made.body.to_string().contains("scram") && made.body["has_password"] == true);
    assert_eq!(connect(&node, &unique("api"), Some(("ada", "pencil"))).1, 0);
    assert_ne!(
        connect(&node, &unique("api"), Some(("ada", "pencils"))).1,
        0
    );
    // What is not said about the password leaves it as it is.
    let described = send(
        &node,
        &token,
        "PUT",
        path,
        &json!({"description": "countess"}),
    );
    assert_eq!(described.status, 200, "{}", described.body);
    assert_eq!(connect(&node, &unique("api"), Some(("ada", "pencil"))).1, 0);
    assert_eq!(
        send(&node, &token, "DELETE", path, &Value::Null).status,
        204
    );
    assert_ne!(connect(&node, &unique("api"), Some(("ada", "pencil"))).1, 0);
}

#[test]
fn a_message_published_over_the_api_arrives_and_a_retained_one_stays() {
    if !own_node() {
        return;
    }
    let node = closed();
    let token = local_token(&node);
    let topic = unique("api/");
    let (mut raw, _) = connect(&node, &unique("api"), None);
    raw.subscribe(&topic, 1);
    let message = json!({"topic": topic, "payload": "high tide", "qos": 1, "retain": true});
    let published = send(&node, &token, "POST", "/api/v1/publish", &message);
    assert_eq!(
        (published.status, &published.body["has_subscribers"]),
        (200, &json!(true))
    );
    let received = raw.recv(kind::PUBLISH);
    assert_eq!(received.payload, b"high tide");
    let path = format!("/api/v1/retained-messages/{}", topic.replace('/', "%2F"));
    let retained = send(&node, &token, "GET", &path, &Value::Null);
    assert_eq!(retained.body["payload"], "high tide");
    assert_eq!(
        send(&node, &token, "DELETE", &path, &Value::Null).status,
        204
    );
    assert_eq!(send(&node, &token, "GET", &path, &Value::Null).status, 404);
    let wildcard = send(
        &node,
        &token,
        "POST",
        "/api/v1/publish",
        &json!({"topic": "a/#"}),
    );
    assert_eq!(
        (wildcard.status, &wildcard.body["parameter"]),
        (422, &json!("topic"))
    );
}

#[test]
fn a_client_subscribed_over_the_api_gets_messages() {
    if !own_node() {
        return;
    }
    let node = closed();
    let token = local_token(&node);
    let (client_id, topic) = (unique("api"), unique("api/"));
    let (mut raw, _) = connect(&node, &client_id, None);
    let path = format!("/api/v1/sessions/{client_id}/subscriptions");
    let granted = send(
        &node,
        &token,
        "POST",
        &path,
        &json!({"topic_filter": topic, "qos": 1}),
    );
    assert_eq!(
        (granted.status, &granted.body["granted_qos"]),
        (200, &json!(1))
    );
    send(
        &node,
        &token,
        "POST",
        "/api/v1/publish",
        &json!({"topic": topic, "payload": "x"}),
    );
    assert_eq!(raw.recv(kind::PUBLISH).payload, b"x");
    let one = format!("{path}/{}", topic.replace('/', "%2F"));
    assert_eq!(
        send(&node, &token, "DELETE", &one, &Value::Null).status,
        204
    );
    assert_eq!(
        send(&node, &token, "DELETE", &one, &Value::Null).status,
        404
    );
}

#[test]
fn a_ban_keeps_a_client_out_until_it_is_lifted() {
    if !own_node() {
        return;
    }
    let node = closed();
    let token = local_token(&node);
    let client_id = unique("api");
    let ban = json!({"id": "b1", "client_id": client_id, "reason": "test"});
    assert_eq!(
        send(&node, &token, "POST", "/api/v1/bans", &ban).status,
        201
    );
    assert_eq!(connect(&node, &client_id, None).1, 0x8a);
    assert_eq!(
        send(&node, &token, "DELETE", "/api/v1/bans/b1", &Value::Null).status,
        204
    );
    assert_eq!(connect(&node, &client_id, None).1, 0);
    let wrong = send(
        &node,
        &token,
        "POST",
        "/api/v1/bans",
        &json!({"username": "a", "client_id": "b"}),
    );
    assert_eq!(wrong.status, 422, "{}", wrong.body);
}

#[test]
fn a_stopped_listener_takes_nobody_until_it_is_started() {
    if !own_node() {
        return;
    }
    let node = closed();
    let token = local_token(&node);
    let path = "/api/v1/listeners/ws";
    let stopped = send(&node, &token, "POST", &format!("{path}/stop"), &json!({}));
    assert_eq!(
        (stopped.status, &stopped.body["running"]),
        (200, &json!(false))
    );
    let address = node.address("ws").to_owned();
    eventually("nobody listens", || {
        std::net::TcpStream::connect(&address).is_err()
    });
    let started = send(&node, &token, "POST", &format!("{path}/start"), &json!({}));
    assert_eq!(
        (started.status, &started.body["running"]),
        (200, &json!(true))
    );
    let address = started.body["address"].as_str().unwrap().to_owned();
    eventually("it listens", || {
        std::net::TcpStream::connect(&address).is_ok()
    });
}
