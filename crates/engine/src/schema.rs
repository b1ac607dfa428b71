//! JSON schemas (2020-12, without references) of rules.

use serde_json::{Value, json};

use crate::definition::{IGNORED_EMQX_FIELDS, MQTT_PROPERTIES};

/// The schemas of a rule as written and as returned.
pub(crate) fn schemas(has_devices: bool) -> (Value, Value) {
    let written = rule_schema(false, has_devices);
    let mut shown = rule_schema(true, has_devices);
    shown["required"] = json!(["sql", "enabled", "actions"]);
    let mut written = written;
    written["properties"]["id"] =
        json!({"type": "string", "description": "Of a rule object of EMQX: its name here."});
    written["properties"]["enable"] = json!({
        "type": ["boolean", "null"],
        "description": "Of a rule object of EMQX: as enabled.",
    });
    for note in IGNORED_EMQX_FIELDS {
        written["properties"][note] =
            json!({"description": "Of a rule object of EMQX; it is not kept."});
    }
    shown["properties"]["warnings"] = json!({
        "type": "array",
        "items": {"type": "string"},
        "description": "Only in the answer to a POST or PUT: probable mistakes, such as placeholders that are always null.",
    });
    (written, shown)
}

fn rule_schema(is_shown: bool, has_devices: bool) -> Value {
    let nullable = |kind: &str, about: &str| json!({"type": [kind, "null"], "description": about});
    let bound = |minimum: u64, about: &str| json!({"type": ["integer", "null"], "minimum": minimum, "description": about});
    json!({
        "type": "object",
        "required": ["sql"],
        "additionalProperties": is_shown,
        "properties": {
            "sql": {
                "type": "string",
                "description": "The statement: SELECT .. FROM .. WHERE .., or FOREACH ..",
            },
            "description": {"type": "string", "maxLength": 1000},
            "enabled": {"type": "boolean", "description": "Whether it runs; true if not said."},
            "dialect": {
                "type": ["string", "null"],
                "enum": ["fluxmq", "emqx", null],
                "description": "Whose meaning of functions; as FROM says, if not said.",
            },
            "timezone": nullable("string", "Of functions that print local time and of windows of whole days, weeks and months: an IANA name or an offset; UTC if not said."),
            "actions": {
                "type": "array",
                "maxItems": 16,
                "description": "What is done with each output, in this order.",
                "items": action_schema(true, has_devices),
            },
            "limits": {
                "type": "object",
                "description": "Where this rule needs less than the settings rules.* allow.",
                "additionalProperties": false,
                "properties": {
                    "max_steps": bound(1, "Steps of one evaluation."),
                    "max_output_bytes": bound(1, "Bytes of what one evaluation brings forth."),
                    "max_republish_depth": bound(1, "Messages that come of messages that come of rules: how deep."),
                },
            },
            "window": {
                "type": "object",
                "description": "Of a rule with GROUP BY.",
                "additionalProperties": false,
                "properties": {
                    "event_time": nullable("string", "An expression that says when an event happened, such as payload.ts; when it came in, if not said."),
                    "lateness_ms": bound(0, "How long a window stays open for events that come late."),
                    "max_ahead_ms": bound(0, "With event_time: how far an event may be ahead of the node's clock to be counted."),
                    "idle_ms": bound(1, "With event_time: how long nothing comes until windows close without events."),
                    "max_groups": bound(1, "Groups in all open windows."),
                    "max_bytes": bound(1024, "Memory of all open windows."),
                },
            },
        },
    })
}

fn action_schema(has_fallback: bool, has_devices: bool) -> Value {
    let mut properties = json!({
        "kind": {"type": "string", "enum": ["republish", "console", "sink"]},
        "sink": {"type": "string", "description": "Of kind sink: its name."},
        "topic": {"type": "string", "description": "Of kind republish: a template such as alarms/${clientid}."},
        "payload": {
            "type": ["string", "null"],
            "description": "Of kind republish: a template; the output as JSON if not said.",
        },
        "qos": {
            "type": ["integer", "string"],
            "description": "Of kind republish: 0, 1, 2 or a template; 0 if not said.",
        },
        "retain": {
            "type": ["boolean", "string"],
            "description": "Of kind republish: true, false or a template; false if not said.",
        },
        "user_properties": {
            "type": ["object", "string"],
            "description": "Of kind republish: templates by name, or one placeholder that yields an object.",
            "additionalProperties": {"type": "string"},
        },
        "mqtt_properties": {
            "type": "object",
            "description": "Of kind republish: templates of MQTT 5 properties, which are left out if null.",
            "propertyNames": {"enum": MQTT_PROPERTIES},
            "additionalProperties": {"type": ["string", "number"]},
        },
        "direct_dispatch": {
            "type": "boolean",
            "description": "Of kind republish: no rule hears of the message; false if not said.",
        },
    });
    if has_devices {
        properties["kind"]["enum"] = json!(["republish", "console", "sink", "telemetry", "alarm"]);
        for (name, about) in [
            (
                "device",
                "Of kinds telemetry and alarm: a template; the event's device or client if not said.",
            ),
            ("name", "Of kind alarm: a template."),
            (
                "severity",
                "Of kind alarm: CRITICAL, MAJOR, MINOR, WARNING, INDETERMINATE or a template; MAJOR if not said.",
            ),
        ] {
            properties[name] = json!({"type": "string", "description": about});
        }
        for (name, about) in [
            (
                "timestamp",
                "Of kind telemetry: a template of milliseconds since 1970; the event's if not said.",
            ),
            (
                "details",
                "Of kind alarm: a template; the output as JSON if not said.",
            ),
        ] {
            properties[name] = json!({"type": ["string", "null"], "description": about});
        }
        properties["clear"] = json!({
            "type": ["boolean", "string"],
            "description": "Of kind alarm: whether it is over; true, false or a template; false if not said.",
        });
    }
    if has_fallback {
        properties["fallback"] = json!({
            "type": "array",
            "maxItems": 16,
            "description": "What is done if this cannot be done.",
            "items": action_schema(false, has_devices),
        });
    }
    json!({
        "type": "object",
        "required": ["kind"],
        "properties": properties,
    })
}
