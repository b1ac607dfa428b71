//! Statements of FluxMQ 2.1, as in its manual.

use rules::{ConnectionDetails, EventKind, RuleEvent, WillDetails};

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
    let connection = ConnectionDetails {
        version: 4,
        keep_alive_s: 120,
        will: Some(WillDetails {
            topic: "willTest",
            payload: b"gone",
            qos: 1,
            retain: false,
        }),
        ..ConnectionDetails::default()
    };
    let event = RuleEvent {
        client_id: "c1",
        username: Some("fluxmq"),
        connection: Some(&connection),
        ..RuleEvent::new(EventKind::Connected, NOW_MS)
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

/// The rules of the manual's cases by their conditions, and the number of these messages for which each has
/// an output.
#[test]
fn the_cases_of_the_manual_have_the_expected_number_of_rows() {
    let messages = [
        (
            "sensor/s1/environment",
            r#"{"deviceId": "s1", "temperature": 25.5, "humidity": 65.2}"#,
        ),
        (
            "sensor/s1/environment",
            r#"{"deviceId": "s1", "temperature": 31, "humidity": 60}"#,
        ),
        ("sensor/s1/environment", "no json"),
        (
            "vehicle/v1/location",
            r#"{"gps": {"latitude": 39.9, "longitude": 116.4}, "speed": 80, "fuel": 45.5}"#,
        ),
        (
            "vehicle/v1/location",
            r#"{"gps": {"latitude": 39.9, "longitude": 116.4}, "speed": 121, "fuel": 19.9}"#,
        ),
        (
            "vehicle/v1/location",
            r#"{"gps": {"latitude": 0, "longitude": 0}, "speed": 10, "fuel": 5}"#,
        ),
        (
            "factory/m1/metrics",
            r#"{"workshop": "A", "metrics": {"temperature": 68.5, "vibration": 2.3, "power": 1500}}"#,
        ),
        (
            "factory/m1/metrics",
            r#"{"workshop": "A", "metrics": {"temperature": 20, "vibration": 5.1, "power": 2001}}"#,
        ),
        (
            "factory/m1/status",
            r#"{"workshop": "A", "running_hours": 8761}"#,
        ),
        (
            "aqi/station/a1/data",
            r#"{"location": {"district": "x"}, "aqi": {"pm25": 35, "pm10": 68, "so2": 12, "no2": 28, "co": 0.8, "o3": 45}, "weather": {"temperature": 25}}"#,
        ),
        (
            "aqi/station/a1/data",
            r#"{"location": {"district": "x"}, "aqi": {"pm25": 101, "pm10": 601}, "weather": {"temperature": 25}}"#,
        ),
        (
            "ecommerce/order/o1/events",
            r#"{"orderId": "o1", "event": "order_created", "products": [{"productId": "p1"}], "totalAmount": 10001}"#,
        ),
        (
            "ecommerce/order/o1/events",
            r#"{"orderId": "o1", "event": "order_paid", "products": [{"productId": "p1"}], "totalAmount": 5}"#,
        ),
        (
            "sensor/s1/data",
            r#"{"temperature": 41, "humidity": 7, "value": 50}"#,
        ),
        ("device/d1/heartbeat", "{}"),
    ];
    for (sql, count, first) in [
        (
            "uuid() as id, split(topic, '/').get(1) as building, payload.temperature as temperature, datetime(timestamp) as record_time FROM \"$EVENT.PUBLISH\" WHERE topic =~ 'sensor/+/environment' AND isJson(payload)",
            2,
            r#""building":"s1","temperature":25.5,"record_time":"2023-07-29 03:06:27""#,
        ),
        (
            "clientId as device_id, 'HIGH' as alert_type, payload.temperature as t FROM \"$EVENT.PUBLISH\" WHERE topic =~ 'sensor/+/environment' AND payload.temperature > 30",
            1,
            r#"{"device_id":"c1","alert_type":"HIGH","t":31}"#,
        ),
        (
            "payload.gps.latitude as latitude FROM \"$EVENT.PUBLISH\" WHERE topic =~ 'vehicle/+/location' AND payload.gps.latitude > 0 AND payload.gps.longitude > 0",
            2,
            r#"{"latitude":39.9}"#,
        ),
        (
            "payload.speed as s FROM \"$EVENT.PUBLISH\" WHERE topic =~ 'vehicle/+/location' AND payload.speed > 120  -- fast",
            1,
            r#"{"s":121}"#,
        ),
        (
            "payload.fuel as f FROM \"$EVENT.PUBLISH\" WHERE topic =~ 'vehicle/+/location' AND payload.fuel < 20",
            2,
            r#"{"f":19.9}"#,
        ),
        (
            "payload.metrics.pressure as p FROM \"$EVENT.PUBLISH\" WHERE topic =~ 'factory/+/metrics' AND isJson(payload)",
            2,
            r#"{"p":null}"#,
        ),
        (
            "CASE WHEN payload.metrics.temperature > 80 THEN 'T' WHEN payload.metrics.vibration > 5.0 THEN 'V' ELSE 'U' END as a, json(payload.metrics) as m FROM \"$EVENT.PUBLISH\" WHERE topic =~ 'factory/+/metrics' AND (payload.metrics.temperature > 80 OR payload.metrics.vibration > 5.0 OR payload.metrics.power > 2000)",
            1,
            r#"{"a":"V","m":"{\"temperature\": 20, \"vibration\": 5.1, \"power\": 2001}"}"#,
        ),
        (
            "payload.workshop as w FROM \"$EVENT.PUBLISH\" WHERE topic =~ 'factory/+/status' AND payload.running_hours > 8760",
            1,
            r#"{"w":"A"}"#,
        ),
        (
            "(payload.aqi.pm25 * 2 + payload.aqi.pm10 + payload.aqi.so2 + payload.aqi.no2 + payload.aqi.co * 10 + payload.aqi.o3) / 7 as i FROM \"$EVENT.PUBLISH\" WHERE topic =~ 'aqi/station/+/data'",
            2,
            r#"{"i":33.0}"#,
        ),
        (
            "payload.aqi.pm25 as v FROM \"$EVENT.PUBLISH\" WHERE topic =~ 'aqi/station/+/data' AND payload.aqi.pm25 > 75",
            1,
            r#"{"v":101}"#,
        ),
        (
            "json(payload) as raw FROM \"$EVENT.PUBLISH\" WHERE topic =~ 'aqi/station/+/data' AND (payload.aqi.pm25 < 0 OR payload.aqi.pm25 > 500 OR payload.aqi.pm10 > 600 OR payload.weather.temperature > 60)",
            1,
            "pm25",
        ),
        (
            "json(payload.products) as p FROM \"$EVENT.PUBLISH\" WHERE topic =~ 'ecommerce/order/+/events'",
            2,
            r#"{"p":"[{\"productId\": \"p1\"}]"}"#,
        ),
        (
            "payload.orderId as o FROM \"$EVENT.PUBLISH\" WHERE topic =~ 'ecommerce/order/+/events' AND payload.event = 'order_paid'",
            1,
            r#"{"o":"o1"}"#,
        ),
        (
            "payload.totalAmount as a FROM \"$EVENT.PUBLISH\" WHERE topic =~ 'ecommerce/order/+/events' AND payload.event = 'order_created' AND payload.totalAmount > 10000",
            1,
            r#"{"a":10001}"#,
        ),
        // The examples of the functions use a filter with LIKE.
        (
            "toDouble(jsonPath(msg, '$.temperature')) as temp FROM \"$EVENT.PUBLISH\" WHERE topic LIKE 'sensor/+/data'",
            1,
            r#"{"temp":41.0}"#,
        ),
        (
            "clientId FROM \"$EVENT.PUBLISH\" WHERE topic NOT LIKE 'sensor/+/#'",
            11,
            r#"{"clientId":"c1"}"#,
        ),
        (
            "CASE WHEN now() - timestamp < 300000 THEN 'ONLINE' ELSE 'OFFLINE' END as s FROM \"$EVENT.PUBLISH\" WHERE topic LIKE 'device/+/heartbeat'",
            1,
            r#"{"s":"ONLINE"}"#,
        ),
        (
            "CASE WHEN isNumber(jsonPath(msg, '$.value')) AND toDouble(jsonPath(msg, '$.value')) BETWEEN -40 AND 85 THEN 'VALID' ELSE 'INVALID' END as d, coalesce(jsonPath(msg, '$.deviceId'), clientId) as c FROM \"$EVENT.PUBLISH\" WHERE isJson(msg)",
            14,
            r#"{"d":"INVALID","c":"s1"}"#,
        ),
    ] {
        let sql = format!("SELECT {sql}");
        let rows: Vec<_> = messages
            .iter()
            .flat_map(|(topic, payload)| run(&sql, &publish(topic, payload)))
            .collect();
        assert_eq!(rows.len(), count, "{sql}: {rows:?}");
        assert!(rows[0].contains(first), "{sql}: {}", rows[0]);
    }
}
