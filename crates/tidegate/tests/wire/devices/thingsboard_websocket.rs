//! ThingsBoard's WebSocket API: log in with the first message, subscribe, and get what changes.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::{api, ask, ask_at, product, with_token};
use crate::support::{Node, WsStream, upgrade};

const TEXT: u8 = 0x81;
const CLOSE: u8 = 0x88;

/// A node with a device, and the token of a viewer's login.
fn node_and_token() -> (Node, String) {
    let node = Node::start(&[]);
    let operator = json!({"username": "reader", "role": "viewer", "password": "correct horse"});
    assert_eq!(api(&node, "POST", "operators", &operator).0, 201);
    product(&node, "meter", json!({"mode": "sync"}));
    with_token(&node, "d1", "meter", Value::Null);
    let login = json!({"username": "reader", "password": "correct horse"}).to_string();
    let fields = "content-type: application/json\r\n";
    let address = node.address("http");
    let (status, _, pair) = ask_at(address, ("POST", "/api/auth/login"), fields, &login);
    assert_eq!(status, 200, "{pair}");
    let token = pair["token"].as_str().unwrap().to_owned();
    (node, token)
}

fn connect(node: &Node, path: &str) -> WsStream {
    let (socket, head) = upgrade(node.address("http"), path, None);
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    WsStream::over(socket)
}

fn send(socket: &mut WsStream, message: &Value) {
    socket.send_frame(TEXT, message.to_string().as_bytes());
}

fn next(socket: &mut WsStream) -> Value {
    loop {
        match socket.recv_frame().unwrap() {
            Some((TEXT, text)) => return serde_json::from_slice(&text).unwrap(),
            Some((CLOSE, why)) => panic!("closed: {}", String::from_utf8_lossy(&why[2..])),
            Some(_) => {}
            None => panic!("the connection has ended"),
        }
    }
}

/// The code and the reason of the close frame.
fn closed(socket: &mut WsStream) -> (u16, String) {
    loop {
        match socket.recv_frame().unwrap() {
            Some((CLOSE, why)) => {
                let reason = String::from_utf8(why[2..].to_vec()).unwrap();
                return (u16::from_be_bytes([why[0], why[1]]), reason);
            }
            Some(_) => {}
            None => panic!("no close frame"),
        }
    }
}

fn post(node: &Node, body: &Value) {
    let (status, _, answer) = ask(node, ("POST", "token-d1/telemetry"), "", &body.to_string());
    assert_eq!(status, 200, "{answer}");
}

fn share(node: &Node, values: &Value) {
    let (status, answer) = api(node, "PUT", "devices/d1/attributes/shared", values);
    assert_eq!(status, 204, "{answer}");
}

#[test]
fn telemetry_and_attributes_are_followed() {
    let (node, token) = node_and_token();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let start = now.as_millis() as u64 - 3_600_000;
    let ts = |n: u64| start + n * 1000;
    post(&node, &json!({"ts": ts(1), "values": {"t": 21.5, "u": 1}}));
    let mut socket = connect(&node, "/api/ws");
    let command = |id: u64, fields: Value| {
        let mut command = json!({"cmdId": id, "entityType": "DEVICE", "entityId": "d1"});
        let fields = fields.as_object().unwrap().clone();
        command.as_object_mut().unwrap().extend(fields);
        command
    };
    let telemetry = command(
        1,
        json!({"type": "TIMESERIES", "scope": "LATEST_TELEMETRY", "keys": "t"}),
    );
    send(
        &mut socket,
        &json!({"authCmd": {"cmdId": 0, "token": token}, "cmds": [telemetry]}),
    );
    let first = next(&mut socket);
    assert_eq!(
        (
            &first["subscriptionId"],
            &first["errorCode"],
            &first["data"]
        ),
        (&json!(1), &json!(0), &json!({"t": [[ts(1), "21.5"]]})),
        "{first}"
    );
    // Of another key nothing comes, of this one the next value.
    post(&node, &json!({"ts": ts(2), "values": {"u": 2}}));
    post(&node, &json!({"ts": ts(3), "values": {"t": 22, "u": 3}}));
    let second = next(&mut socket);
    assert_eq!(second["data"], json!({"t": [[ts(3), "22"]]}), "{second}");
    assert_eq!(second["latestValues"], json!({"t": ts(3)}));

    let attributes = command(2, json!({"type": "ATTRIBUTES", "scope": "SHARED_SCOPE"}));
    send(&mut socket, &json!({"cmds": [attributes]}));
    assert_eq!(next(&mut socket)["data"], json!({}));
    share(&node, &json!({"rate": 10}));
    let change = next(&mut socket);
    assert_eq!(change["subscriptionId"], 2);
    assert_eq!(change["data"]["rate"][0][1], "10", "{change}");

    // What has ended is silent: the history is the next answer.
    let end = json!([{"cmdId": 1, "type": "TIMESERIES", "unsubscribe": true},
        {"cmdId": 2, "type": "ATTRIBUTES", "unsubscribe": true}]);
    send(&mut socket, &json!({"cmds": end}));
    let history =
        json!({"type": "TIMESERIES_HISTORY", "keys": "u", "startTs": ts(0), "endTs": ts(10)});
    send(&mut socket, &json!({"cmds": [command(3, history)]}));
    let answer = next(&mut socket);
    let values = json!({"u": [[ts(3), "3"], [ts(2), "2"], [ts(1), "1"]]});
    assert_eq!(
        (&answer["subscriptionId"], &answer["data"]),
        (&json!(3), &values)
    );
    post(&node, &json!({"ts": ts(4), "values": {"t": 23}}));
    share(&node, &json!({"rate": 11}));
    let sum = json!({"type": "TIMESERIES_HISTORY", "keys": "u", "startTs": ts(0), "endTs": ts(10), "agg": "SUM"});
    send(&mut socket, &json!({"cmds": [command(4, sum)]}));
    let answer = next(&mut socket);
    assert_eq!(
        (&answer["subscriptionId"], &answer["data"]["u"][0][1]),
        (&json!(4), &json!("6"))
    );

    // What cannot be answered says so and leaves the others alone.
    for (id, wrong, said) in [
        (5, json!({"type": "ENTITY_DATA"}), "type: "),
        (
            6,
            json!({"type": "TIMESERIES", "entityId": "nobody"}),
            "nobody",
        ),
        (7, json!({"type": "ATTRIBUTES", "scope": "X"}), "scope: "),
    ] {
        send(&mut socket, &json!({"cmds": [command(id, wrong)]}));
        let answer = next(&mut socket);
        assert_eq!(
            (&answer["subscriptionId"], &answer["errorCode"]),
            (&json!(id), &json!(2))
        );
        let detail = answer["errorMsg"].as_str().unwrap();
        assert!(detail.contains(said), "{answer}");
    }
    let many: Vec<_> = (100..357)
        .map(|id| command(id, json!({"type": "ATTRIBUTES"})))
        .collect();
    send(&mut socket, &json!({"cmds": many}));
    let answers: Vec<_> = (0..257).map(|_| next(&mut socket)).collect();
    let refused: Vec<_> = answers
        .iter()
        .filter(|answer| answer["errorCode"] != 0)
        .collect();
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert_eq!(refused[0]["subscriptionId"], 356);

    // The end of the login is the end of the connection.
    let fields = format!("X-Authorization: Bearer {token}\r\n");
    let logout = ask_at(
        node.address("http"),
        ("POST", "/api/auth/logout"),
        &fields,
        "",
    );
    assert_eq!(logout.0, 200);
    assert_eq!(
        closed(&mut socket),
        (1008, "the login has ended".to_owned())
    );
}

#[test]
fn older_clients_log_in_by_the_address() {
    let (node, token) = node_and_token();
    let mut socket = connect(&node, &format!("/api/ws/plugins/telemetry?token={token}"));
    let subscribe = json!({"tsSubCmds": [{"entityType": "DEVICE", "entityId": "d1", "cmdId": 1}],
        "historyCmds": [], "attrSubCmds": []});
    send(&mut socket, &subscribe);
    assert_eq!(next(&mut socket)["data"], json!({}));
    post(&node, &json!({"on": true}));
    assert_eq!(next(&mut socket)["data"]["on"][0][1], "true");
}

#[test]
fn nobody_subscribes_without_a_login() {
    let (node, _) = node_and_token();
    let commands = json!([{"type": "TIMESERIES", "entityId": "d1", "cmdId": 1}]);
    for first in [
        json!({"cmds": commands}),
        json!({"authCmd": {"cmdId": 0, "token": "wrong"}, "cmds": commands}),
    ] {
        let mut socket = connect(&node, "/api/ws");
        send(&mut socket, &first);
        assert_eq!(closed(&mut socket).0, 1008, "{first}");
    }
    let mut socket = connect(&node, "/api/ws");
    socket.send_frame(TEXT, b"{");
    assert_eq!(closed(&mut socket).0, 1008);
    let plain = ask_at(node.address("http"), ("GET", "/api/ws"), "", "");
    assert_eq!(plain.0, 400);
}
