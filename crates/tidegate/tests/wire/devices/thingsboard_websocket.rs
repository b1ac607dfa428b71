//! ThingsBoard's WebSocket API: log in with the first message, subscribe, and get what changes.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use wall_clock::now_ms;

use super::{api, ask, ask_at, device, product, with_token};
use crate::support::{Node, Stream as _, WsStream, upgrade};

const TEXT: u8 = 0x81;
const CLOSE: u8 = 0x88;

/// A node with a device, and the token of a viewer's login.
fn node_and_token() -> (Node, String) {
    let node = Node::start(&[]);
    let operator = json!({"username": "reader", "role": "viewer", "password": "correct horse", "must_change_password": false});
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
    let start = now_ms() - 3_600_000;
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
        (5, json!({"type": "ALARM_DATA"}), "type: "),
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
    let rejected: Vec<_> = answers
        .iter()
        .filter(|answer| answer["errorCode"] != 0)
        .collect();
    assert_eq!(rejected.len(), 1, "{rejected:?}");
    assert_eq!(rejected[0]["subscriptionId"], 356);

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

/// A connection with a login.
fn connect_with(node: &Node, token: &str) -> WsStream {
    let mut socket = connect(node, "/api/ws");
    send(
        &mut socket,
        &json!({"authCmd": {"cmdId": 0, "token": token}, "cmds": []}),
    );
    socket
}

fn entity_data(id: u64, more: Value) -> Value {
    let mut command = json!({"type": "ENTITY_DATA", "cmdId": id});
    let more = more.as_object().unwrap().clone();
    command.as_object_mut().unwrap().extend(more);
    json!({"cmds": [command]})
}

fn query(filter: Value, page_link: Value) -> Value {
    let fields = [json!({"type": "ENTITY_FIELD", "key": "name"})];
    json!({"entityFilter": filter, "pageLink": page_link, "entityFields": fields,
        "latestValues": [{"type": "TIME_SERIES", "key": "t"}]})
}

fn all_devices() -> Value {
    json!({"type": "entityType", "entityType": "DEVICE"})
}

/// The ids of the devices on the page of an answer, in its order.
fn ids(answer: &Value) -> Vec<&str> {
    assert_eq!(answer["errorCode"], 0, "{answer}");
    let rows = answer["data"]["data"].as_array().unwrap().iter();
    rows.map(|row| row["entityId"]["id"].as_str().unwrap())
        .collect()
}

#[test]
fn a_page_of_devices_is_shown_and_then_followed() {
    let (node, token) = node_and_token();
    let start = now_ms() - 3_600_000;
    let ts = |n: u64| start + n * 1000;
    post(&node, &json!({"ts": ts(1), "values": {"t": 21.5, "u": 1}}));
    let mut socket = connect_with(&node, &token);
    let single =
        json!({"type": "singleEntity", "singleEntity": {"entityType": "DEVICE", "id": "d1"}});
    let link = json!({"pageSize": 1024, "page": 0, "textSearch": null, "dynamic": true,
        "sortOrder": {"key": {"type": "ENTITY_FIELD", "key": "createdTime"}, "direction": "DESC"}});
    send(
        &mut socket,
        &entity_data(1, json!({"query": query(single, link)})),
    );
    let first = next(&mut socket);
    assert_eq!(ids(&first), ["d1"]);
    let page = &first["data"];
    assert_eq!(
        (
            &page["totalElements"],
            &page["totalPages"],
            &page["hasNext"]
        ),
        (&json!(1), &json!(1), &json!(false))
    );
    let kinds = (&first["cmdId"], &first["cmdUpdateType"], &first["update"]);
    assert_eq!(kinds, (&json!(1), &json!("ENTITY_DATA"), &Value::Null));
    let latest = &page["data"][0]["latest"];
    assert_eq!(
        latest["TIME_SERIES"]["t"],
        json!({"ts": ts(1), "value": "21.5"})
    );
    assert_eq!(latest["ENTITY_FIELD"]["name"]["value"], "d1", "{latest}");

    // The second command of the subscription follows values of the same devices.
    let keys = json!([{"type": "TIME_SERIES", "key": "t"}, {"type": "SHARED_ATTRIBUTE", "key": "rate"},
        {"type": "ATTRIBUTE", "key": "rate"}]);
    let period = json!({"keys": ["u"], "startTs": ts(0), "timeWindow": 10_000, "interval": 1000,
        "limit": 100, "agg": "NONE"});
    send(
        &mut socket,
        &entity_data(1, json!({"latestCmd": {"keys": keys}, "tsCmd": period})),
    );
    let second = next(&mut socket);
    assert_eq!(second["data"], Value::Null, "{second}");
    let row = &second["update"][0];
    assert_eq!(
        row["timeseries"],
        json!({"u": [{"ts": ts(1), "value": "1"}]})
    );
    let none = json!({"ts": 0, "value": ""});
    assert_eq!(row["latest"]["SHARED_ATTRIBUTE"]["rate"], none, "{row}");
    // An older value belongs to the period and is not the latest one.
    post(
        &node,
        &json!({"ts": ts(3), "values": {"t": 22, "u": 3, "w": 1}}),
    );
    let row = &next(&mut socket)["update"][0];
    let changed = (&row["latest"]["TIME_SERIES"], &row["timeseries"]);
    let (latest, series) = (
        json!({"t": {"ts": ts(3), "value": "22"}}),
        json!({"u": [{"ts": ts(3), "value": "3"}]}),
    );
    assert_eq!(changed, (&latest, &series));
    post(&node, &json!({"ts": ts(2), "values": {"t": 20, "u": 2}}));
    let row = &next(&mut socket)["update"][0];
    let series = json!({"u": [{"ts": ts(2), "value": "2"}]});
    assert_eq!(
        (&row["latest"], &row["timeseries"]),
        (&Value::Null, &series)
    );
    share(&node, &json!({"rate": 10}));
    let row = &next(&mut socket)["update"][0];
    assert_eq!(
        row["latest"]["SHARED_ATTRIBUTE"]["rate"]["value"], "10",
        "{row}"
    );
    assert_eq!(row["latest"]["ATTRIBUTE"]["rate"]["value"], "10", "{row}");

    // The history replaces what was followed.
    let history = json!({"keys": ["u"], "startTs": ts(0), "endTs": ts(10), "interval": 10_000,
        "intervalType": "MILLISECONDS", "agg": "SUM", "limit": 10});
    send(&mut socket, &entity_data(1, json!({"historyCmd": history})));
    let row = &next(&mut socket)["update"][0];
    assert_eq!(row["timeseries"]["u"][0]["value"], "6", "{row}");
    post(&node, &json!({"ts": ts(4), "values": {"t": 23, "u": 4}}));
    send(
        &mut socket,
        &json!({"cmds": [{"type": "ENTITY_DATA_UNSUBSCRIBE", "cmdId": 1}]}),
    );
    send(
        &mut socket,
        &entity_data(1, json!({"latestCmd": {"keys": []}})),
    );
    let rejected = next(&mut socket);
    assert_eq!(rejected["errorCode"], 2, "{rejected}");
    assert!(
        rejected["errorMsg"]
            .as_str()
            .unwrap()
            .starts_with("query: expected"),
        "{rejected}"
    );
}

#[test]
fn entity_filters_select_sort_and_page_devices() {
    let (node, token) = node_and_token();
    product(&node, "pump", json!({"mode": "sync"}));
    for (id, kind, name) in [
        ("p1", "pump", "North pump"),
        ("p2", "pump", "south pump"),
        ("p3", "pump", "Northern Valve"),
    ] {
        device(&node, json!({"id": id, "product": kind, "name": name}));
    }
    let value = json!({"ts": now_ms(), "values": {"t": 5}}).to_string();
    for _ in 0..1 {
        assert_eq!(
            ask(&node, ("POST", "token-d1/telemetry"), "", &value).0,
            200
        );
    }
    let mut socket = connect_with(&node, &token);
    let by = |kind: &str, key: &str, direction: &str| json!({"key": {"type": kind, "key": key}, "direction": direction});
    let name = by("ENTITY_FIELD", "name", "ASC");
    for (filter, link, expected) in [
        (
            all_devices(),
            json!({"sortOrder": name}),
            &["d1", "p1", "p3", "p2"][..],
        ),
        (
            all_devices(),
            json!({"sortOrder": by("ENTITY_FIELD", "createdTime", "DESC"), "textSearch": "PUMP"}),
            &["p2", "p1"],
        ),
        (
            json!({"type": "entityList", "entityType": "DEVICE", "entityList": ["p2", "gone", "d1"]}),
            json!({"sortOrder": name}),
            &["d1", "p2"],
        ),
        (
            json!({"type": "entityName", "entityType": "DEVICE", "entityNameFilter": "north"}),
            json!({"sortOrder": name}),
            &["p1", "p3"],
        ),
        (
            json!({"type": "entityName", "entityType": "DEVICE", "entityNameFilter": "%pump"}),
            json!({"sortOrder": name}),
            &["p1", "p2"],
        ),
        (
            json!({"type": "deviceType", "deviceTypes": ["pump", "none"], "deviceNameFilter": "South"}),
            json!({}),
            &["p2"],
        ),
        (
            json!({"type": "deviceType", "deviceType": "meter"}),
            json!({}),
            &["d1"],
        ),
        (
            all_devices(),
            json!({"sortOrder": by("TIME_SERIES", "t", "DESC"), "pageSize": 1}),
            &["d1"],
        ),
        (
            json!({"type": "singleEntity", "singleEntity": {"entityType": "DEVICE", "id": "gone"}}),
            json!({}),
            &[],
        ),
    ] {
        let mut page_link = json!({"pageSize": 10, "page": 0});
        for (key, value) in link.as_object().unwrap() {
            page_link[key] = value.clone();
        }
        send(
            &mut socket,
            &entity_data(1, json!({"query": query(filter.clone(), page_link)})),
        );
        let answer = next(&mut socket);
        assert_eq!(ids(&answer), expected, "{filter} {link}");
    }
    let page = |page: u64| json!({"pageSize": 3, "page": page, "sortOrder": name});
    send(
        &mut socket,
        &entity_data(1, json!({"query": query(all_devices(), page(1))})),
    );
    let answer = next(&mut socket);
    assert_eq!(ids(&answer), ["p2"]);
    assert_eq!(
        (
            &answer["data"]["totalElements"],
            &answer["data"]["totalPages"]
        ),
        (&json!(4), &json!(2))
    );
    send(
        &mut socket,
        &entity_data(1, json!({"query": query(all_devices(), page(0))})),
    );
    assert_eq!(next(&mut socket)["data"]["hasNext"], true);

    // Errors have the form of the answers of their command.
    for (wrong, said) in [
        (json!({}), "query: expected"),
        (
            json!({"query": query(json!({"type": "assetType"}), page(0))}),
            "`deviceType`",
        ),
        (
            json!({"query": query(all_devices(), json!({"pageSize": 2000}))}),
            "pageSize: 2000; expected 1 to 1024",
        ),
        (
            json!({"query": query(all_devices(), page(0)), "tsCmd": {"keys": ["t"], "agg": "MEAN"}}),
            "tsCmd.agg: \"MEAN\"",
        ),
        (
            json!({"query": query(all_devices(), page(0)), "aggTsCmd": {"keys": []}}),
            "aggTsCmd: not supported",
        ),
    ] {
        send(&mut socket, &entity_data(7, wrong.clone()));
        let answer = next(&mut socket);
        assert_eq!(
            (&answer["cmdId"], &answer["errorCode"]),
            (&json!(7), &json!(2)),
            "{answer}"
        );
        assert_eq!(answer["cmdUpdateType"], "ENTITY_DATA");
        assert!(
            answer["errorMsg"].as_str().unwrap().contains(said),
            "{wrong} {answer}"
        );
    }
}

#[test]
fn the_devices_of_a_filter_are_counted_and_dynamic_pages_grow() {
    let (node, token) = node_and_token();
    let mut socket = connect_with(&node, &token);
    // A refresh takes longer than the usual deadline of a read.
    socket.set_timeouts(Duration::from_secs(30));
    let filter = json!({"type": "entityName", "entityType": "DEVICE", "entityNameFilter": "d"});
    let count = json!({"type": "ENTITY_COUNT", "cmdId": 1, "query": {"entityFilter": filter, "keyFilters": []}});
    send(&mut socket, &json!({"cmds": [count]}));
    let answer = next(&mut socket);
    let kind = (
        &answer["count"],
        &answer["cmdUpdateType"],
        &answer["errorCode"],
    );
    assert_eq!(kind, (&json!(1), &json!("COUNT_DATA"), &json!(0)));
    let link = json!({"pageSize": 10, "page": 0, "dynamic": true});
    send(
        &mut socket,
        &entity_data(2, json!({"query": query(filter, link)})),
    );
    assert_eq!(ids(&next(&mut socket)), ["d1"]);
    with_token(&node, "d2", "meter", Value::Null);
    let (one, other) = (next(&mut socket), next(&mut socket));
    let (counted, page) = match one["cmdId"] == 1 {
        true => (one, other),
        false => (other, one),
    };
    assert_eq!(counted["count"], 2, "{counted}");
    assert_eq!(ids(&page), ["d1", "d2"]);
}

/// A client that subscribes to texts and reads nothing: the node holds a bounded amount of them,
/// others are served, and the client is disconnected.
#[test]
fn a_client_that_does_not_read_is_bounded_and_then_disconnected() {
    const MIB: u64 = 1 << 20;
    let (node, token) = node_and_token();
    let subscribe = |id: u64| {
        let single =
            json!({"type": "singleEntity", "singleEntity": {"entityType": "DEVICE", "id": "d1"}});
        let latest = json!({"keys": [{"type": "TIME_SERIES", "key": "text"}]});
        let period = json!({"keys": ["text"], "startTs": 0, "timeWindow": 0});
        entity_data(
            id,
            json!({"query": query(single, json!({"pageSize": 1})), "latestCmd": latest, "tsCmd": period}),
        )
    };
    let mut reader = connect_with(&node, &token);
    send(&mut reader, &subscribe(1));
    ids(&next(&mut reader));
    let (tcp, _) = upgrade(node.address("http"), "/api/ws", None);
    let port = format!(":{:04X}", tcp.local_addr().unwrap().port());
    let mut sleeper = WsStream::over(tcp);
    let login = json!({"authCmd": {"cmdId": 0, "token": token}, "cmds": []});
    send(&mut sleeper, &login);
    for id in 1..=20 {
        send(&mut sleeper, &subscribe(id));
    }
    for _ in 0..20 {
        ids(&next(&mut sleeper));
    }
    // The node's end of the connection, which is established until the node closes it.
    let is_connected = || {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let mut sockets = table.lines().map(|line| line.split_whitespace());
        sockets.any(|mut fields| {
            let (remote, state) = (fields.nth(2), fields.next());
            remote.is_some_and(|remote| remote.ends_with(&port)) && state == Some("01")
        })
    };
    assert!(is_connected());
    let before = node.resident_bytes();
    let mut publisher = super::connect(&node, "d1");
    let text = "x".repeat(50_000);
    // 15 MB, for each of the 20 subscriptions.
    for number in 1..=300_u16 {
        let payload = json!({"text": format!("{number:06}{text}")}).to_string();
        publisher.publish_qos1("v1/devices/me/telemetry", payload, number);
        loop {
            let update = next(&mut reader);
            let value = update["update"][0]["timeseries"]["text"][0]["value"].as_str();
            if value.is_some_and(|value| value.starts_with(&format!("{number:06}"))) {
                break;
            }
        }
    }
    let growth = node.resident_bytes().saturating_sub(before);
    assert!(
        growth < 150 * MIB,
        "the node has grown by {} MiB for one client that does not read",
        growth / MIB
    );
    let until = Instant::now() + Duration::from_secs(60);
    while is_connected() {
        assert!(Instant::now() < until, "the client is still connected");
        std::thread::sleep(Duration::from_millis(100));
    }
    publisher.publish_qos1("v1/devices/me/telemetry", r#"{"text": "last"}"#, 301);
    let update = next(&mut reader);
    assert_eq!(
        update["update"][0]["latest"]["TIME_SERIES"]["text"]["value"],
        "last"
    );
}
