//! JSON schemas of the authentication objects for the OpenAPI document. Constraints that a schema cannot express are
//! checked when an object is stored.

use serde_json::{Value, json};

use crate::objects::{ACL_RULE, AUTHENTICATOR, BAN, USER};

/// The schemas of the request and the response of a kind.
pub fn schemas(kind: &str) -> (Value, Value) {
    let both = |schema: Value| (schema.clone(), schema);
    match kind {
        USER => (user_schema(true), user_schema(false)),
        AUTHENTICATOR => both(authenticator_schema()),
        ACL_RULE => both(rule_schema()),
        BAN => both(ban_schema()),
        _ => both(json!({"type": "object"})),
    }
}

fn text_list_schema(about: &str) -> Value {
    let text = json!({"type": "string"});
    json!({"description": about, "anyOf": [text, {"type": "array", "items": text}]})
}

fn user_schema(is_written: bool) -> Value {
    let mut properties = json!({
        "is_superuser": {"type": "boolean", "description": "Whether every action is allowed, regardless of rules."},
        "description": {"type": "string"}
    });
    match is_written {
        true => {
            properties["password"] = json!({"type": "string", "minLength": 1, "maxLength": 4096,
                "writeOnly": true, "description": "Password, stored as a hash; if omitted, the stored password is unchanged."});
            properties["password_hash"] = json!({"type": "string", "writeOnly": true,
                "description": "Existing password hash, instead of `password`."});
            properties["scram"] = json!({"type": "string", "writeOnly": true,
                "description": "SCRAM-SHA-256 verifier as printed by `tidegate password`."});
        }
        false => {
            properties["has_password"] = json!({"type": "boolean", "readOnly": true});
        }
    }
    json!({"type": "object", "properties": properties})
}

fn authenticator_schema() -> Value {
    json!({
        "type": "object",
        "description": "Authenticator settings; further fields depend on `type`.",
        "required": ["type"],
        "properties": {
            "type": {"type": "string", "enum": ["users", "devices", "password_file", "jwt", "http", "mysql",
                "postgres", "redis", "certificate"]},
            "name": {"type": "string", "description": "For logs."},
            "order": {"type": "integer", "description": "Position in the chain; lower values are evaluated first."},
            "enabled": {"type": "boolean"}
        }
    })
}

fn rule_schema() -> Value {
    json!({
        "type": "object",
        "required": ["permission"],
        "properties": {
            "permission": {"type": "string", "enum": ["allow", "deny"]},
            "action": {"type": "string", "enum": ["publish", "subscribe", "all"]},
            "topics": text_list_schema("Topic filters, which may contain placeholders such as ${clientid}; the prefix `eq ` matches the filter literally. If omitted, every topic."),
            "qos": {"description": "QoS 0, 1, 2 or a list of them.",
                "anyOf": [{"type": "integer", "minimum": 0, "maximum": 2},
                    {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 2}}]},
            "retain": {"type": "boolean", "description": "Retain flag of the message; publications only."},
            "username": text_list_schema("User names the rule applies to; `*` matches any characters."),
            "client_id": text_list_schema("Client ids the rule applies to; `*` matches any characters."),
            "address": text_list_schema("Client addresses or ranges such as 10.0.0.0/8."),
            "order": {"type": "integer", "description": "Position among the rules; lower values are evaluated first."},
            "enabled": {"type": "boolean"},
            "description": {"type": "string"}
        }
    })
}

fn ban_schema() -> Value {
    json!({
        "type": "object",
        "description": "Ban by exactly one of client_id, username and address.",
        "properties": {
            "client_id": {"type": "string", "minLength": 1},
            "username": {"type": "string", "minLength": 1},
            "address": {"type": "string", "description": "Client address or range such as 10.0.0.0/8."},
            "until_ms": {"type": "integer", "minimum": 0,
                "description": "End of the ban in milliseconds since 1970; if omitted, permanent."},
            "reason": {"type": "string", "maxLength": 512}
        }
    })
}
