//! Statements of FluxMQ 2.1, as its manual shows them.

use rules::{Connection, Event, EventKind, Will};

use super::{NOW_MS, one, publish, run};

#[test]
fn all_fields_of_a_publish_event() {
    assert_eq!(
        one(
            "SELECT * FROM \"$EVENT.PUBLISH\" WHERE topic = 't/a'",
            &publish("t/a", r#"{"x": 1}"#)
        ),
        r#"{"protocol":"MQTT","timestamp":1690599987495,"clientId":"c1","username":"u1","clientIp":"192.168.0.100","nodeIp":"10.0.0.1","id":"8ace2bbab65b4fb1a0afc7c77419e6b5","messageId":7,"topic":"t/a","qos":1,"retain":false,"payload":{"x": 1}}"#
    );
    assert!(
        run(
            "SELECT * FROM \"$EVENT.PUBLISH\" WHERE topic = 't/a'",
            &publish("t/b", "")
        )
        .is_empty()
    );
}

#[test]
fn conditions_of_the_manual() {
    let event = publish("t/a", r#"{"x": {"y": 1}}"#);
    for (sql, expected) in [
        (
            "SELECT clientId as cid FROM \"$EVENT.PUBLISH\" WHERE clientId = 'c1'",
            r#"{"cid":"c1"}"#,
        ),
        (
            "SELECT clientId as cid FROM \"$EVENT.PUBLISH\" WHERE qos = 1",
            r#"{"cid":"c1"}"#,
        ),
        (
            "SELECT qos, messageId, clientId FROM \"$EVENT.PUBLISH\" WHERE topic =~ \"t/#\"",
            r#"{"qos":1,"messageId":7,"clientId":"c1"}"#,
        ),
        (
            "SELECT topic FROM \"$EVENT.PUBLISH\" WHERE topic = 't/b' or topic = 't/a'",
            r#"{"topic":"t/a"}"#,
        ),
        (
            "SELECT payload FROM \"$EVENT.PUBLISH\" WHERE payload.x.y = 1",
            r#"{"payload":{"x": {"y": 1}}}"#,
        ),
        (
            "SELECT topic FROM \"$EVENT.PUBLISH\" WHERE topic like '%/a%'",
            r#"{"topic":"t/a"}"#,
        ),
        (
            "SELECT qos, \"test\" as event FROM \"$EVENT.PUBLISH\"",
            r#"{"qos":1,"event":"test"}"#,
        ),
        (
            "SELECT msg.x.y as y FROM '$EVENT.PUBLISH', \"$EVENT.DELIVERED\"",
            r#"{"y":1}"#,
        ),
        (
            "SELECT topic =~ 't/+' as m FROM \"$EVENT.PUBLISH\" LIMIT 10",
            r#"{"m":true}"#,
        ),
    ] {
        assert_eq!(one(sql, &event), expected, "{sql}");
    }
}

#[test]
fn case_and_methods() {
    let sql = "-- a comment\nSELECT clientId,\n  CASE\n    WHEN payload.temperature > 40 THEN 'HIGH'\n    WHEN payload.temperature > 20 THEN 'NORMAL'\n    ELSE 'LOW'\n  END as temp_level /* another */\nFROM \"$EVENT.PUBLISH\"";
    assert_eq!(
        one(sql, &publish("t", r#"{"temperature": 30}"#)),
        r#"{"clientId":"c1","temp_level":"NORMAL"}"#
    );
    assert_eq!(
        one(sql, &publish("t", r#"{"temperature": "41.5"}"#)),
        r#"{"clientId":"c1","temp_level":"HIGH"}"#
    );
    assert_eq!(
        one(sql, &publish("t", "no json")),
        r#"{"clientId":"c1","temp_level":"LOW"}"#
    );
}

#[test]
fn a_connection_shows_its_user_and_will_but_never_a_password() {
    let connection = Connection {
        version: 4,
        keep_alive_s: 120,
        will: Some(Will {
            topic: "willTest",
            payload: b"gone",
            qos: 1,
            retain: false,
        }),
        ..Connection::default()
    };
    let event = Event {
        client_id: "c1",
        username: Some("fluxmq"),
        connection: Some(&connection),
        ..Event::new(EventKind::Connected, NOW_MS)
    };
    assert_eq!(
        one(
            "SELECT * FROM \"$EVENT.CONNECT\" WHERE auth.username = 'fluxmq'",
            &event
        ),
        r#"{"protocol":"MQTT","timestamp":1690599987495,"clientId":"c1","username":"fluxmq","clientIp":null,"nodeIp":"","version":"MQTT_3_1_1","keepalive":120,"cleanSession":false,"auth":{"username":"fluxmq","password":null},"will":{"isRetain":false,"willTopic":"willTest","willQos":1,"willMessage":"gone"}}"#
    );
    assert_eq!(
        one(
            "select auth.username as username, will.willTopic as t from \"$EVENT.CONNECT\"",
            &event
        ),
        r#"{"username":"fluxmq","t":"willTest"}"#
    );
}

#[test]
fn methods_are_functions_with_the_value_in_front() {
    let event = publish(
        "sensor/room/data",
        r#"{"name": " Lamp ", "list": [1, 2], "n": "a.a"}"#,
    );
    for (expression, expected) in [
        ("split(topic, '/').get(1)", "\"room\""),
        ("topic.split('/').get(2)", "\"data\""),
        ("split(topic, '/')[1]", "\"sensor\""),
        ("topic.startsWith('sensor')", "true"),
        ("topic.endsWith('x')", "false"),
        ("payload.name.trim().toUpperCase()", "\"LAMP\""),
        ("payload.name.trim().toLowerCase().length()", "4"),
        ("payload.n.replace('a', 'b')", "\"b.b\""),
        ("replace(payload.n, 'a', 'b')", "\"b.a\""),
        ("clientId.equals('c1')", "true"),
        ("topic.contains('room')", "true"),
        ("topic.substring(7, 11)", "\"room\""),
        ("payload.list.size()", "2"),
        ("clientId =~ 'c[0-9]+'", "true"),
        ("clientId =~ 'd.*'", "false"),
        ("clientId =~ '.*x'", "false"),
        ("find(topic, 'alert') != null", "false"),
    ] {
        let sql = format!("SELECT {expression} as v FROM \"$EVENT.PUBLISH\"");
        assert_eq!(
            one(&sql, &event),
            format!("{{\"v\":{expected}}}"),
            "{expression}"
        );
    }
}

#[test]
fn the_statement_of_the_benchmark() {
    let sql = "SELECT uuid() as id, json(payload) as data, datetime(timestamp) as time, md5(clientId) as hash \
               FROM \"$EVENT.PUBLISH\" WHERE topic =~ 'sensor/+/data' AND payload.value > 30";
    let json = one(sql, &publish("sensor/1/data", r#"{"value": 31}"#));
    let rest = r#","data":"{\"value\": 31}","time":"2023-07-29 03:06:27","hash":"a9f7e97965d6cf799a529102a973b8b9"}"#;
    assert!(
        json.starts_with(r#"{"id":""#)
            && json.len() == 7 + 32 + 1 + rest.len()
            && json.ends_with(rest),
        "{json}"
    );
}
