//! Paths into payloads and values.

use rules::compile;

use super::{fluxmq, publish, rule, run, try_run, value};

const PAYLOAD: &str = r#"{"a": [10, {"b": [1, 2, 3]}, "x"], "odd key": {"2nd": true}, "from": 1, "1": {"2": "n"}, "text": "{\"in\": [5]}", "i": 2}"#;

#[test]
fn steps_of_every_kind() {
    for (path, expected) in [
        ("payload.a[1]", "10"),
        ("payload.a[-1]", r#""x""#),
        ("payload.a[-3]", "10"),
        ("payload.a[4]", "null"),
        ("payload.a[2].b[3]", "3"),
        ("payload.a[2].b[-1]", "3"),
        ("payload.a[2].b[2..3]", "[2,3]"),
        ("payload.a[2].b[-2..-1]", "[2,3]"),
        ("payload.a[payload.i].b[1]", "1"),
        ("payload['odd key'].'2nd'", "true"),
        ("payload.'odd key'.2nd", "true"),
        ("payload.from", "1"),
        ("payload.1.2", r#""n""#),
        ("payload.text.in[1]", "5"),
        ("payload.a.b", "null"),
        ("payload.none.none", "null"),
        ("payload.a.get(0)", "10"),
        ("payload.a.get(1).b.get(2)", "3"),
        ("payload.get('i')", "2"),
        ("[7, 8][2]", "8"),
        ("{'a': {'b': 1}}.a.b", "1"),
        ("flags.retain", "false"),
        ("`payload`.i", "2"),
    ] {
        assert_eq!(value(path, PAYLOAD), expected, "{path}");
    }
}

#[test]
fn paths_into_a_payload_that_is_not_json_are_null() {
    let rule = compile(
        "SELECT payload.a as v FROM \"$EVENT.PUBLISH\" WHERE payload.a > 0 or isNull(payload.a)",
        &fluxmq(),
    )
    .expect("a rule");
    for payload in ["", "hello", "{\"a\"", "5", "[", "{\"b\": 1, oops"] {
        assert_eq!(
            try_run(&rule, &publish("t", payload)),
            Ok(vec!["{\"v\":null}".to_owned()])
        );
    }
    // Read only as far as necessary: the rest is not checked.
    let event = publish("t", "{\"a\": 1, oops");
    assert_eq!(try_run(&rule, &event), Ok(vec!["{\"v\":1}".to_owned()]));
}

#[test]
fn emqx_paths_into_a_payload_that_is_not_json_fail() {
    for sql in [
        "SELECT payload.a as v FROM \"#\"",
        "SELECT topic FROM \"#\" WHERE payload.a = 1",
        "SELECT topic FROM \"#\" WHERE payload.none = 1 or qos = 1",
        "SELECT topic, is_null(payload.none) as n FROM \"#\"",
        "FOREACH payload.list FROM \"#\"",
        "FOREACH payload FROM \"#\"",
    ] {
        let rule = rule(sql);
        for payload in [
            "",
            "hello",
            "{\"a\"",
            "[",
            "{\"a\": 1, oops",
            "{\"a\": 1",
            "{\"a\": 1} x",
        ] {
            let fault = try_run(&rule, &publish("t", payload)).expect_err(sql);
            assert_eq!(fault.kind(), "payload", "{sql}: {payload}: {fault}");
        }
        // Valid JSON without the requested members is still valid JSON.
        for payload in ["5", "\"a\"", "[]", "{}", " {\"b\": {}} "] {
            assert!(
                try_run(&rule, &publish("t", payload)).is_ok(),
                "{sql}: {payload}"
            );
        }
    }
    // The contents of the payload are not used.
    for sql in [
        "SELECT payload FROM \"#\"",
        "SELECT * FROM \"#\" WHERE payload = 'hello'",
    ] {
        assert_eq!(run(sql, &publish("t", "hello")).len(), 1, "{sql}");
    }
    // WHERE is decided without the payload.
    let sql = "SELECT payload.a FROM \"#\" WHERE qos = 2 and payload.a = 1";
    assert_eq!(run(sql, &publish("t", "hello")), Vec::<String>::new());
}

#[test]
fn rules_of_one_event_share_what_was_read() {
    let event = publish("t", r#"{"a": {"b": 1}, "c": [1, {"d": 2}]}"#);
    assert_eq!(
        run(
            "SELECT payload.c[2].d as d, payload.a.b as b, payload.c[1] as c, payload.a as a FROM \"#\"",
            &event
        ),
        [r#"{"d":2,"b":1,"c":1,"a":{"b": 1}}"#]
    );
}
