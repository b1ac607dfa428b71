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
        json!({"type": "string", "description": "The rule's name, in a rule object of EMQX."});
    written["properties"]["enable"] = json!({
        "type": ["boolean", "null"],
        "description": "The same as `enabled`, in a rule object of EMQX.",
    });
    for note in IGNORED_EMQX_FIELDS {
        written["properties"][note] =
            json!({"description": "A field of EMQX rule objects; accepted and ignored."});
    }
    shown["properties"]["warnings"] = json!({
        "type": "array",
        "items": {"type": "string"},
        "description": "Probable mistakes, such as placeholders that are always null; only in the response to a POST or PUT.",
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
            "enabled": {"type": "boolean", "description": "Whether the rule runs; default true."},
            "dialect": {
                "type": ["string", "null"],
                "enum": ["fluxmq", "emqx", null],
                "description": "Dialect of functions; default: derived from FROM.",
            },
            "timezone": nullable("string", "IANA name or offset, for functions that print local time and for windows of whole days, weeks and months; default UTC."),
            "actions": {
                "type": "array",
                "maxItems": 16,
                "description": "Actions for each output, run in this order.",
                "items": action_schema(true, has_devices),
            },
            "limits": {
                "type": "object",
                "description": "Limits of this rule, below the settings rules.*.",
                "additionalProperties": false,
                "properties": {
                    "max_steps": bound(1, "Maximum steps of one evaluation."),
                    "max_output_bytes": bound(1, "Maximum bytes that one evaluation creates."),
                    "max_republish_depth": bound(1, "Maximum length of a chain of messages published by rules because of each other."),
                },
            },
            "window": {
                "type": "object",
                "description": "Settings of a rule with GROUP BY.",
                "additionalProperties": false,
                "properties": {
                    "event_time": nullable("string", "Expression for an event's timestamp, such as payload.ts; default: time of arrival."),
                    "lateness_ms": bound(0, "Time in milliseconds that a window stays open for late events."),
                    "max_ahead_ms": bound(0, "Maximum time in milliseconds that a counted event may be ahead of the node's clock; requires event_time."),
                    "idle_ms": bound(1, "Time in milliseconds without events after which windows close; requires event_time."),
                    "max_groups": bound(1, "Maximum number of groups in all open windows."),
                    "max_bytes": bound(1024, "Maximum memory of all open windows in bytes."),
                },
            },
        },
    })
}

fn action_schema(has_fallback: bool, has_devices: bool) -> Value {
    let mut properties = json!({
        "kind": {"type": "string", "enum": ["republish", "relay", "console", "sink"]},
        "sink": {"type": "string", "description": "Name of the sink; kind sink only."},
        "endpoint": {"type": "string", "description": "Template for the id of a relay endpoint; kind relay only."},
        "topic": {"type": "string", "description": "Template such as alarms/${clientid}; kind republish only."},
        "payload": {
            "type": ["string", "null"],
            "description": "Template; default: the output as JSON; kinds republish and relay only.",
        },
        "qos": {
            "type": ["integer", "string"],
            "description": "0, 1, 2 or a template; default 0; kind republish only.",
        },
        "retain": {
            "type": ["boolean", "string"],
            "description": "true, false or a template; default false; kind republish only.",
        },
        "user_properties": {
            "type": ["object", "string"],
            "description": "Templates by name, or one placeholder that yields an object; kind republish only.",
            "additionalProperties": {"type": "string"},
        },
        "mqtt_properties": {
            "type": "object",
            "description": "Templates of MQTT 5 properties; a null omits the property; kind republish only.",
            "propertyNames": {"enum": MQTT_PROPERTIES},
            "additionalProperties": {"type": ["string", "number"]},
        },
        "direct_dispatch": {
            "type": "boolean",
            "description": "Whether rules ignore the message; default false; kind republish only.",
        },
    });
    if has_devices {
        properties["kind"]["enum"] = json!([
            "republish",
            "relay",
            "console",
            "sink",
            "telemetry",
            "alarm"
        ]);
        for (name, about) in [
            (
                "device",
                "Template; default: the event's device or client; kinds telemetry and alarm only.",
            ),
            (
                "name",
                "Template for the name of the alarm; kind alarm only.",
            ),
            (
                "severity",
                "CRITICAL, MAJOR, MINOR, WARNING, INDETERMINATE or a template; default MAJOR; kind alarm only.",
            ),
        ] {
            properties[name] = json!({"type": "string", "description": about});
        }
        for (name, about) in [
            (
                "timestamp",
                "Template for milliseconds since 1970; default: the event's timestamp; kind telemetry only.",
            ),
            (
                "details",
                "Template; default: the output as JSON; kind alarm only.",
            ),
        ] {
            properties[name] = json!({"type": ["string", "null"], "description": about});
        }
        properties["clear"] = json!({
            "type": ["boolean", "string"],
            "description": "Whether to clear the alarm: true, false or a template; default false; kind alarm only.",
        });
    }
    if has_fallback {
        properties["fallback"] = json!({
            "type": "array",
            "maxItems": 16,
            "description": "Actions that run if this action fails.",
            "items": action_schema(false, has_devices),
        });
    }
    json!({
        "type": "object",
        "required": ["kind"],
        "properties": properties,
    })
}
