//! Definitions of rules as JSON: round trips, EMQX's form, and errors that name the field.

use super::*;

#[test]
fn definitions_round_trip() {
    let value = json!({
        "sql": "SELECT * FROM \"t/#\"",
        "enabled": false,
        "dialect": "emqx",
        "timezone": "Europe/Berlin",
        "actions": [
            {"kind": "republish", "topic": "a/${clientid}", "qos": "${qos}", "retain": true,
             "user_properties": {"a": "${b}"}, "fallback": ["console", {"kind": "sink", "sink": "s"}]},
            {"function": "republish", "args": {"topic": "x", "payload": "${.}", "qos": 1}},
            "mysql:orders",
        ],
        "limits": {"max_steps": 10},
        "window": {"event_time": "payload.ts", "lateness_ms": 5, "max_ahead_ms": 6, "idle_ms": 7},
    });
    let definition = RuleDefinition::from_json(&value).expect("the definition is valid");
    assert_eq!(definition.actions.len(), 3);
    assert_eq!(
        definition.actions[2].kind,
        ActionKind::Sink("orders".into())
    );
    assert_eq!(
        RuleDefinition::from_json(&definition.to_json()),
        Ok(definition)
    );
}

#[test]
fn a_rule_object_of_emqx_is_read_as_it_is() {
    let value = json!({
        "id": "r1", "name": "My rule", "enable": false, "description": "", "metadata": {"created_at": 1},
        "created_at": "2024-01-01T00:00:00Z", "from": ["t/#"],
        "sql": "SELECT * FROM \"t/#\"",
        "actions": [
            {"function": "console"},
            {"function": "republish", "args": {"topic": "a", "payload": "", "qos": 1, "retain": false,
                "user_properties": "${user_properties}", "mqtt_properties": {"Message-Expiry-Interval": 60},
                "direct_dispatch": true}},
            {"function": "republish", "args": {"topic": "b"}},
            "mqtt:remote",
        ],
    });
    let definition = RuleDefinition::from_json(&value).expect("the definition is valid");
    assert!(!definition.enabled);
    assert_eq!(definition.description, "My rule");
    let ActionKind::Republish(whole) = &definition.actions[1].kind else {
        panic!("it republishes")
    };
    assert_eq!(whole.payload, None);
    assert_eq!(
        whole.user_property_map.as_deref(),
        Some("${user_properties}")
    );
    assert!(whole.direct_dispatch);
    let ActionKind::Republish(plain) = &definition.actions[2].kind else {
        panic!("it republishes")
    };
    assert_eq!(
        (plain.payload.as_deref(), plain.qos.as_str()),
        (Some("${payload}"), "${qos}")
    );
    assert_eq!(
        definition.actions[3].kind,
        ActionKind::Sink("remote".into())
    );
    assert_eq!(
        RuleDefinition::from_json(&definition.to_json()),
        Ok(definition)
    );
}

#[test]
fn errors_name_the_field() {
    let error = |value: Value| {
        let error = RuleDefinition::from_json(&value).expect_err("the definition is invalid");
        format!("{}: {}", error.field, error.detail)
    };
    assert!(error(json!({})).starts_with("sql: is missing"));
    assert_eq!(
        error(json!({"sql": "", "sqll": 1})).split('?').next(),
        Some("sqll: unknown field; did you mean \"sql\"")
    );
    assert_eq!(
        error(json!({"sqll": "x"})),
        "sqll: unknown field; did you mean \"sql\"?"
    );
    let action = |action: Value| error(json!({"sql": "", "actions": [action]}));
    assert_eq!(
        action(json!({"kind": "republish", "topc": "x"})),
        "actions[0].topc: unknown field; did you mean \"topic\"?"
    );
    assert!(action(json!({"kind": "republish"})).starts_with("actions[0].topic: is missing"));
    assert!(action(json!({"kind": "relay"})).starts_with("actions[0].endpoint: is missing"));
    for (wrong, near) in [
        (json!({"kind": "republsh"}), "republish"),
        (json!({"kind": "republish", "topic": "a", "qoss": 1}), "qos"),
        (json!({"function": "consle"}), "console"),
        (
            json!({"kind": "republish", "topic": "a", "mqtt_properties": {"Content-Typ": "x"}}),
            "Content-Type",
        ),
    ] {
        let text = action(wrong);
        assert!(text.contains(&format!("did you mean {near:?}?")), "{text}");
    }
    assert!(action(json!({"kind": "x"})).starts_with("actions[0].kind: unknown kind \"x\""));
    let deep = json!({"kind": "console", "fallback": [{"kind": "sink", "sink": 1}]});
    assert_eq!(action(deep), "actions[0].fallback[0].sink: expected a text");
    assert!(
        error(json!({"sql": "", "window": {"idle_ms": 1}}))
            .starts_with("window.idle_ms: applies only with event_time")
    );
    assert!(
        error(json!({"sql": "", "limits": {"max_steps": 0}}))
            .starts_with("limits.max_steps: expected")
    );
    assert!(check_name("a/b").is_err() && check_name("").is_err() && check_name("größe-1").is_ok());
}
