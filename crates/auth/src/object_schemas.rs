//! JSON schemas of the objects of authentication, for the description of the API. What a schema cannot say is said when
//! an object is stored.

use serde_json::{Value, json};

use crate::objects::{ACL_RULE, AUTHENTICATOR, BAN, USER};

/// The schemas of what is written and of what is shown.
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
        "is_superuser": {"type": "boolean", "description": "May do everything, whatever the rules."},
        "description": {"type": "string"}
    });
    match is_written {
        true => {
            properties["password"] = json!({"type": "string", "minLength": 1, "maxLength": 4096,
                "writeOnly": true, "description": "Kept as a hash; left out, it stays what it is."});
            properties["password_hash"] = json!({"type": "string", "writeOnly": true,
                "description": "Instead of the password: a hash of it made elsewhere."});
            properties["scram"] = json!({"type": "string", "writeOnly": true,
                "description": "What `tidegate password` prints; lets the user log in by SCRAM-SHA-256."});
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
        "description": "Its further fields depend on its type.",
        "required": ["type"],
        "properties": {
            "type": {"type": "string", "enum": ["users", "devices", "password_file", "jwt", "http", "mysql",
                "postgres", "redis", "certificate"]},
            "name": {"type": "string", "description": "For logs."},
            "order": {"type": "integer", "description": "Lower ones are asked first."},
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
            "topics": text_list_schema("Topic filters, with ${clientid} and the like; `eq ` in front of one that is meant literally. Left out: every topic."),
            "qos": {"description": "0, 1, 2 or a list of them.",
                "anyOf": [{"type": "integer", "minimum": 0, "maximum": 2},
                    {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 2}}]},
            "retain": {"type": "boolean", "description": "Of messages only."},
            "username": text_list_schema("Whom it is about; * stands for any characters."),
            "client_id": text_list_schema("Whom it is about; * stands for any characters."),
            "address": text_list_schema("Addresses or ranges such as 10.0.0.0/8."),
            "order": {"type": "integer", "description": "Lower ones are looked at first."},
            "enabled": {"type": "boolean"},
            "description": {"type": "string"}
        }
    })
}

fn ban_schema() -> Value {
    json!({
        "type": "object",
        "description": "Exactly one of client_id, username and address.",
        "properties": {
            "client_id": {"type": "string", "minLength": 1},
            "username": {"type": "string", "minLength": 1},
            "address": {"type": "string", "description": "An address or a range such as 10.0.0.0/8."},
            "until_ms": {"type": "integer", "minimum": 0,
                "description": "Milliseconds since 1970; left out: for good."},
            "reason": {"type": "string", "maxLength": 512}
        }
    })
}
