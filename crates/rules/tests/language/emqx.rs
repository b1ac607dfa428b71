//! Statements of EMQX 5, as in its manual.

use rules::{RuleEvent, Value};

use super::{one, publish, run};

#[test]
fn all_fields_of_a_message() {
    assert_eq!(
        one("SELECT * FROM \"t/#\"", &publish("t/a", r#"{"x": 1}"#)),
        r#"{"event":"message.publish","timestamp":1690599987495,"node":"tidegate@10.0.0.1","clientid":"c1","username":"u1","peername":"192.168.0.100:21950","id":"8ace2bbab65b4fb1a0afc7c77419e6b5","peerhost":"192.168.0.100","topic":"t/a","qos":1,"flags":{"retain":false,"dup":false},"payload":"{\"x\": 1}","pub_props":{},"publish_received_at":1690599987494}"#
    );
}

#[test]
fn aliases_are_visible_in_where_and_later_columns() {
    let event = publish("t/1", r#"{"x": {"y": 1}, "n": 5}"#);
    for (sql, expected) in [
        (
            "SELECT payload.x as x FROM \"t/#\" WHERE x.y = 1",
            r#"{"x":{"y": 1}}"#,
        ),
        (
            "SELECT payload.n + 1 as n, n * 2 as m FROM \"t/#\" WHERE n = 6",
            r#"{"n":6,"m":12}"#,
        ),
        (
            "SELECT payload.n as a.b, a.b + 1 as a.c FROM \"t/#\"",
            r#"{"a":{"b":5,"c":6}}"#,
        ),
        (
            "SELECT payload.x.y FROM \"t/#\"",
            r#"{"payload":{"x":{"y":1}}}"#,
        ),
        (
            "SELECT payload.x.y y, topic FROM \"t/#\"",
            r#"{"y":1,"topic":"t/1"}"#,
        ),
        (
            "SELECT payload.n, 'v' as payload.x.z FROM \"t/#\"",
            r#"{"payload":{"n":5,"x":{"z":"v"}}}"#,
        ),
        (
            "SELECT payload, 7 as payload.x.y FROM \"t/#\"",
            r#"{"payload":{"x":{"y":7},"n":5}}"#,
        ),
        ("SELECT 1 + 1 FROM \"t/#\"", r#"{"1 + 1":2}"#),
        (
            "SELECT 2 as a[1], 3 as a[-0], 1 as a[0] FROM \"t/#\"",
            r#"{"a":[1,2,3]}"#,
        ),
    ] {
        assert_eq!(one(sql, &event), expected, "{sql}");
    }
    let sql = "SELECT *, 'a' as topic, clientid as x FROM \"t/#\" WHERE topic = 'a'";
    let json = one(sql, &event);
    assert!(
        json.contains(r#""topic":"a","qos""#) && json.ends_with(r#","x":"c1"}"#),
        "{json}"
    );
}

#[test]
fn foreach_creates_an_output_per_item() {
    let event = publish(
        "t/1",
        r#"{"date": "d", "sensors": [{"name": "a", "idx": 0}, {"name": "b", "idx": 1}, {"name": "c", "idx": 2}]}"#,
    );
    assert_eq!(
        run(
            "FOREACH payload.sensors as e DO clientid, e.name as name, e.idx as idx INCASE e.idx >= 1 FROM \"t/#\"",
            &event
        ),
        [
            r#"{"clientid":"c1","name":"b","idx":1}"#,
            r#"{"clientid":"c1","name":"c","idx":2}"#
        ]
    );
    assert_eq!(
        run(
            "FOREACH payload.sensors DO item.idx as i FROM \"t/#\" WHERE payload.date = 'd' LIMIT 2",
            &event
        ),
        [r#"{"i":0}"#, r#"{"i":1}"#]
    );
    assert_eq!(
        run(
            "FOREACH payload.date as d, payload.sensors as s DO d, s.name as n, n as m INCASE s.name != 'b' FROM \"t/#\"",
            &event
        ),
        [
            r#"{"d":"d","n":"a","m":"a"}"#,
            r#"{"d":"d","n":"c","m":"c"}"#
        ]
    );
    assert_eq!(
        run("FOREACH payload.none DO item FROM \"t/#\"", &event),
        Vec::<String>::new()
    );
    assert_eq!(
        run(
            "FOREACH payload DO item FROM \"t\"",
            &publish("t", "[1, [2]]")
        ),
        [r#"{"item":1}"#, r#"{"item":[2]}"#]
    );
    let whole = run("FOREACH payload.sensors as s FROM \"t/#\"", &event);
    assert_eq!(whole.len(), 3);
    assert!(
        whole[0].contains(r#""topic":"t/1""#)
            && whole[0].ends_with(r#","s":{"name": "a", "idx": 0}}"#),
        "{}",
        whole[0]
    );
}

#[test]
fn outputs_of_another_rule() {
    let columns = [
        ("a", Value::Json(r#"{"b":1}"#)),
        ("timestamp", Value::Int(5)),
    ];
    let event = RuleEvent {
        extra: Value::Map(&columns),
        ..publish("t", "")
    };
    assert_eq!(
        one("SELECT * FROM \"$rule/first\"", &event),
        r#"{"a":{"b":1},"timestamp":5}"#
    );
    assert_eq!(
        one(
            "SELECT a.b as b, timestamp as t, topic, nothing FROM \"$rule/first\" WHERE a.b = 1",
            &event
        ),
        r#"{"b":1,"t":5,"topic":"t","nothing":null}"#
    );
}
