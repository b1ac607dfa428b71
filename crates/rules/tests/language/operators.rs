//! Operators: null, numbers and text, and errors.

use super::{passes, publish, rule, run, try_run, value};

#[test]
fn precedence() {
    for (expression, expected) in [
        ("1 + 2 * 3", "7"),
        ("(1 + 2) * 3", "9"),
        ("-2 + 5", "3"),
        ("10 - 2 - 3", "5"),
        ("7 div 2", "3"),
        ("7 mod 4", "3"),
        ("7 % 4", "3"),
        ("div(7, 2) + mod(7, 4)", "6"),
        ("7 / 2 # a comment\n", "3.5"),
        ("6 / 2", "3.0"),
        ("2 * 1.5", "3.0"),
        ("1 < 2 and not 2 < 1", "true"),
        ("true or false and false", "true"),
        ("not true or true", "true"),
        ("'a' || 'b' || 1", r#""ab1""#),
        ("'a' + 1", r#""a1""#),
        ("1 = 1.0", "true"),
        ("2 between 1 and 3 and 1 = 1", "true"),
        ("4 not between 1 and 3", "true"),
        ("'a' in ('b', 'a')", "true"),
        ("'a' not in ('b', 'a')", "false"),
        ("3 in ([1, 2, 3])", "true"),
        ("'50%' like '50\\%'", "true"),
        ("'abc' not like 'b%'", "true"),
        ("'it''s'", r#""it's""#),
        ("[1..3]", "[1,2,3]"),
        ("[1, 'a', payload.x]", r#"[1,"a",null]"#),
        ("{'a': 1, b: [2]}", r#"{"a":1,"b":[2]}"#),
        (
            "case 2 when 1 then 'a' when 2 then 'b' else 'c' end",
            r#""b""#,
        ),
        ("case when false then 1 end", "null"),
        ("'a/b/c' =~ 'a/+/c'", "true"),
        ("'$SYS/a' =~ '#'", "false"),
        ("1.5e3", "1500.0"),
    ] {
        assert_eq!(value(expression, "{}"), expected, "{expression}");
    }
}

#[test]
fn null_propagates_through_operators_and_fails_comparisons() {
    let payload = r#"{"n": null, "x": 1}"#;
    for (condition, expected) in [
        ("payload.n = 1", false),
        ("payload.n != 1", false),
        ("payload.n < 1", false),
        ("payload.n = payload.none", false),
        ("payload.n is null", true),
        ("payload.none is null", true),
        ("payload.x is not null", true),
        ("payload.n = null", true),
        ("payload.x != null", true),
        ("null != payload.x", true),
        ("payload.n + 1 is null", true),
        ("-payload.n is null", true),
        ("payload.n || 'a' is null", true),
        ("not payload.n", false),
        ("payload.n or true", true),
        ("payload.n and true", false),
        ("(payload.n and false) = false", true),
        ("payload.n in (1, null)", false),
        ("payload.n like '%'", false),
        ("payload.n between 0 and 2", false),
        ("payload.n.deeper is null", true),
    ] {
        let sql = format!("SELECT 1 AS v FROM \"$EVENT.PUBLISH\" WHERE {condition}");
        let outputs = run(&sql, &publish("t/a", payload));
        assert_eq!(!outputs.is_empty(), expected, "{condition}");
    }
}

#[test]
fn numbers_and_numeric_text_compare_as_numbers() {
    let payload = r#"{"n": 9, "s": "10", "big": 9007199254740993, "w": "abc"}"#;
    for (condition, expected) in [
        ("payload.s > payload.n", true),
        ("payload.s = 10.0", true),
        ("payload.n < '10'", true),
        ("payload.big = 9007199254740993", true),
        ("payload.big = 9007199254740992", false),
        ("payload.s < '9'", true),
        ("qos = '1'", true),
    ] {
        assert_eq!(passes(condition, payload), expected, "{condition}");
    }
    // In EMQX's dialect a text that is no number makes the rule fail.
    for (condition, passed) in [("payload.w > 1", 0), ("payload.w != 1", 1)] {
        let sql = format!("SELECT 1 AS v FROM \"$EVENT.PUBLISH\" WHERE {condition}");
        assert_eq!(
            run(&sql, &publish("t", payload)).len(),
            passed,
            "{condition}"
        );
    }
}

#[test]
fn errors_end_the_evaluation() {
    for (expression, kind) in [
        ("payload.max + 1", "overflow"),
        ("payload.max * payload.max", "overflow"),
        ("payload.one / payload.zero", "not_a_number"),
        ("payload.one div payload.zero", "not_a_number"),
        ("payload.one mod payload.zero", "not_a_number"),
        ("payload.text - 1", "type"),
        ("-payload.text", "type"),
        ("[payload.one..payload.max]", "too_large"),
    ] {
        let rule = rule(&format!("SELECT {expression} AS v FROM \"#\""));
        let payload = r#"{"max": 9223372036854775807, "one": 1, "zero": 0, "text": "a"}"#;
        let fault = try_run(&rule, &publish("t", payload)).expect_err(expression);
        assert_eq!(fault.kind(), kind, "{expression}: {fault}");
    }
}
