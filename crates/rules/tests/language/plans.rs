//! Index keys of rules, and explanations of rules.

use rules::{IndexKeys, TopicKey};

use super::rule;

fn keys(condition: &str) -> IndexKeys {
    rule(&format!(
        "SELECT topic as t FROM \"$EVENT.PUBLISH\" WHERE {condition}"
    ))
    .index_keys()
    .clone()
}

fn topics(condition: &str) -> Option<String> {
    let topics = keys(condition).topics?;
    let shown = topics.iter().map(|topic| match topic {
        TopicKey::Exact(text) => text.to_string(),
        TopicKey::Filter(text) => format!("~{text}"),
    });
    Some(shown.collect::<Vec<_>>().join(" "))
}

#[test]
fn topics_that_can_pass() {
    for (condition, expected) in [
        ("topic = 't/a'", Some("t/a")),
        ("'t/a' = topic and payload.x > 1", Some("t/a")),
        (
            "payload.x > 1 and (topic =~ 't/#' and qos = 1)",
            Some("~t/#"),
        ),
        ("topic =~ 't/#' and topic = 't/a'", Some("t/a")),
        ("topic = 'a' or topic =~ 'b/+'", Some("a ~b/+")),
        ("topic in ('a', 'b')", Some("a b")),
        ("t = 'a'", Some("a")),
        ("topic = 'a' or payload.x = 1", None),
        ("not topic = 'a'", None),
        ("topic != 'a'", None),
        ("topic not in ('a')", None),
        ("topic = payload.x", None),
        ("topic = 5", None),
        ("'a' =~ topic", None),
        ("topic || 'x' = 'A'", None),
        ("1 = 2", Some("")),
        ("1 = 2 or topic = 'a'", Some("a")),
        ("1 = 1 and topic = 'a'", Some("a")),
    ] {
        assert_eq!(topics(condition).as_deref(), expected, "{condition}");
    }
}

#[test]
fn clients_and_levels_that_can_pass() {
    let keys = keys("clientId = 'c' and qos >= 1 and (username = 'x' or qos = 0)");
    assert_eq!(keys.client_ids.as_deref(), Some(&["c".into()][..]));
    assert_eq!(keys.qos, Some(0b110));
    for (condition, expected) in [
        ("qos = 1", Some(0b010)),
        ("qos > 0 and qos < 2", Some(0b010)),
        ("qos = '2'", Some(0b100)),
        ("qos != 1", Some(0b101)),
        ("qos in (0, 2)", Some(0b101)),
        ("qos between 1 and 5", Some(0b110)),
        ("qos = 0 or qos = 1", Some(0b011)),
        ("qos = payload.q", None),
        ("2 > qos", Some(0b011)),
    ] {
        assert_eq!(super::plans::keys(condition).qos, expected, "{condition}");
    }
}

#[test]
fn explanations() {
    let mut text = String::new();
    for sql in [
        "SELECT *, payload.a.'odd key'[1] as k.l, 2 * 3 as six, -payload.x as n, n + 1 as m FROM \"$EVENT.PUBLISH\" WHERE topic =~ 't/+' and not (qos = 1 or clientId = 'it''s')",
        "FOREACH payload.list as e DO e.a as a, case e.b when 1 then 'x' else [e.c, 1] end as b INCASE e.a in (1, 2) FROM \"t/#\", \"$rule/x\"",
        "SELECT topic, count(*) as n, avg(payload.t) as t FROM \"t\" GROUP BY topic, hopping(1m, 10s) HAVING n > 3 and window_end() > 5",
    ] {
        let explained = rule(sql).explain();
        let (plan, memory) = explained.split_once("memory ").expect("the last line");
        assert!(memory.trim().ends_with(" bytes"));
        text.push_str(plan);
        text.push('\n');
    }
    insta::assert_snapshot!(text);
}
