//! Connectors, sinks and sources as API objects: schemas, redaction of secrets, and storing of changes.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::connector::{BatchDefaults, ConnectorKind};
use crate::kinds::{self, CONNECTOR_KINDS};
use crate::service::SourceSettings;
use crate::settings::SinkSettings;

/// Kinds of objects in the store.
pub const CONNECTOR: &str = "connector";
pub const SINK: &str = "sink";
pub const SOURCE: &str = "source";

/// Settings that address a system: a stored secret is not kept when one of them changes.
const ADDRESS_FIELDS: [&str; 9] = [
    "type",
    "server",
    "servers",
    "url",
    "urls",
    "endpoint",
    "bucket",
    "connector",
    "path",
];

fn generator() -> SchemaGenerator {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    settings.into_generator()
}

/// The schema of the connector settings of a kind, without references.
pub fn connector_schema(kind: &ConnectorKind) -> Value {
    let own = (kind.connector_schema)(&mut generator()).to_value();
    let common = json!({
        "required": ["type"],
        "properties": {
            "type": {"const": kind.name},
            "description": {"type": "string", "maxLength": 1000}
        }
    });
    merge_schemas(common, own)
}

/// The schema of the sink settings of a kind, without references.
pub fn sink_schema(kind: &ConnectorKind) -> Value {
    let own = (kind.sink_schema)(&mut generator()).to_value();
    merge_schemas(common_sink_schema(), own)
}

/// The schema of the source settings of a kind, without references; `None` if the kind has no sources.
pub fn source_schema(kind: &ConnectorKind) -> Option<Value> {
    let own = (kind.source_schema?)(&mut generator()).to_value();
    Some(merge_schemas(common_source_schema(), own))
}

fn common_source_schema() -> Value {
    SourceSettings::json_schema(&mut generator()).to_value()
}

fn common_sink_schema() -> Value {
    SinkSettings::json_schema(&mut generator()).to_value()
}

/// Merges the common schema with that of a kind.
fn merge_schemas(mut common: Value, own: Value) -> Value {
    let Value::Object(mut schema) = own else {
        return common;
    };
    for (name, empty) in [("properties", json!({})), ("required", json!([]))] {
        let mut both = common[name].take();
        if both.is_null() {
            both = empty;
        }
        match (&mut both, schema.remove(name)) {
            (Value::Object(both), Some(Value::Object(own))) => both.extend(own),
            (Value::Array(both), Some(Value::Array(own))) => both.extend(own),
            _ => {}
        }
        schema.insert(name.to_owned(), both);
    }
    schema.into()
}

/// Schemas of all connectors, sinks or sources for the API description: as written, and as shown. Fields that depend on the type
/// are in [`connector_schema`] and [`sink_schema`].
pub fn schemas(object: &str) -> (Value, Value) {
    let schema = match object {
        CONNECTOR => {
            let names: Vec<_> = CONNECTOR_KINDS.iter().map(|kind| kind.name).collect();
            json!({
                "type": "object",
                "description": "Further fields depend on the type, see /api/v1/connector-types. Secrets are written and \
                    never shown.",
                "required": ["type"],
                "properties": {
                    "type": {"type": "string", "enum": names},
                    "description": {"type": "string", "maxLength": 1000}
                }
            })
        }
        of_connector => {
            let mut schema = match of_connector {
                SOURCE => common_source_schema(),
                _ => common_sink_schema(),
            };
            if let Some(schema) = schema.as_object_mut() {
                schema.remove("additionalProperties");
                let about = "Further fields depend on the type of the connector, see /api/v1/connector-types.";
                schema.insert("description".into(), about.into());
            }
            schema
        }
    };
    (schema.clone(), schema)
}

/// The schema that applies to a stored object; for sinks and sources those of all kinds, since their kind is not known here.
fn schemas_of(object: &str, value: &Value) -> Vec<Value> {
    match object {
        CONNECTOR => {
            let kind = value["type"].as_str().and_then(kinds::find_kind);
            kind.map(connector_schema).into_iter().collect()
        }
        // A field that is secret in any kind is redacted in all.
        SOURCE => {
            let of_kinds = CONNECTOR_KINDS
                .iter()
                .filter_map(|kind| source_schema(kind));
            [common_source_schema()]
                .into_iter()
                .chain(of_kinds)
                .collect()
        }
        _ => CONNECTOR_KINDS
            .iter()
            .map(|kind| sink_schema(kind))
            .collect(),
    }
}

/// The object without its secrets.
pub fn redact_secrets(object: &str, mut value: Value) -> Value {
    let schemas = schemas_of(object, &value);
    if schemas.is_empty() {
        // The type is unknown to this program, and therefore also which fields are secret.
        let kind = value["type"].take();
        return json!({"type": kind});
    }
    for schema in &schemas {
        remove_secrets(schema, &mut value);
    }
    value
}

fn is_secret(schema: &Value) -> bool {
    let alternatives = ["anyOf", "oneOf"]
        .iter()
        .filter_map(|name| schema[*name].as_array())
        .flatten();
    schema["writeOnly"] == true || alternatives.into_iter().any(is_secret)
}

/// The schemas of a value's fields in all alternatives.
fn field_schemas<'s>(schema: &'s Value, name: &str) -> Vec<&'s Value> {
    let mut found = Vec::new();
    found.extend(schema["properties"].get(name));
    if found.is_empty() {
        found.extend(Some(&schema["additionalProperties"]).filter(|more| more.is_object()));
    }
    for alternatives in ["anyOf", "oneOf", "allOf"] {
        for alternative in schema[alternatives].as_array().into_iter().flatten() {
            found.extend(field_schemas(alternative, name));
        }
    }
    found
}

fn remove_secrets(schema: &Value, value: &mut Value) {
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|name, value| {
            let schemas = field_schemas(schema, name);
            for schema in &schemas {
                remove_secrets(schema, value);
            }
            !schemas.iter().any(|schema| is_secret(schema))
        });
    }
}

/// Prepares a written object for storage: omitted secrets keep their stored value if the object still addresses the same system.
pub fn carry_over_secrets(object: &str, mut written: Value, current: Option<&Value>) -> Value {
    let Some(current) = current else {
        return written;
    };
    let is_for_the_same = ADDRESS_FIELDS
        .iter()
        .all(|name| written.get(name) == current.get(name));
    if is_for_the_same {
        for schema in schemas_of(object, current) {
            keep_secrets(&schema, &mut written, current);
        }
    }
    written
}

fn keep_secrets(schema: &Value, written: &mut Value, current: &Value) {
    let (Some(written), Some(current)) = (written.as_object_mut(), current.as_object()) else {
        return;
    };
    for (name, value) in current {
        for schema in field_schemas(schema, name) {
            // `password_file` replaces `password`.
            let is_replaced = written.contains_key(&format!("{name}_file"));
            match written.get_mut(name) {
                Some(inner) => keep_secrets(schema, inner, value),
                None if is_secret(schema) && !is_replaced => {
                    written.insert(name.clone(), value.clone());
                }
                None => {}
            }
        }
    }
}

/// A connector type.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ConnectorType {
    r#type: &'static str,
    /// Title for humans.
    title: &'static str,
    /// JSON schema of the settings of a connector.
    #[schemars(with = "Map<String, Value>")]
    connector_schema: Value,
    /// JSON schema of the settings of a sink.
    #[schemars(with = "Map<String, Value>")]
    sink_schema: Value,
    /// JSON schema of the settings of a source; `null`: the type has no sources.
    #[schemars(with = "Option<Map<String, Value>>")]
    source_schema: Option<Value>,
    /// Default batch sizes of its sinks.
    batch: BatchDefaults,
}

/// All kinds with their schemas, for generated forms.
pub fn describe_kinds() -> Vec<ConnectorType> {
    let described = CONNECTOR_KINDS.iter().map(|kind| ConnectorType {
        r#type: kind.name,
        title: kind.title,
        connector_schema: connector_schema(kind),
        sink_schema: sink_schema(kind),
        source_schema: source_schema(kind),
        batch: kind.batch,
    });
    described.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_belong_to_an_address() {
        for kind in CONNECTOR_KINDS {
            let schema = connector_schema(kind);
            let mut fields = schema["properties"].as_object().unwrap().keys();
            let has_secrets = schema.to_string().contains("writeOnly");
            let has_address = fields.any(|field| ADDRESS_FIELDS[1..].contains(&field.as_str()));
            assert!(!has_secrets || has_address, "{}", kind.name);
        }
    }

    #[test]
    fn schemas_hold_no_references_and_refuse_unknown_fields() {
        for kind in CONNECTOR_KINDS {
            let schemas = [connector_schema(kind), sink_schema(kind)];
            for schema in schemas.into_iter().chain(source_schema(kind)) {
                let text = schema.to_string();
                assert!(!text.contains("$ref"), "{}: {text}", kind.name);
                assert_eq!(schema["additionalProperties"], false, "{}", kind.name);
                assert_eq!(schema["type"], "object", "{}", kind.name);
            }
        }
    }

    /// A setting with one of these names would be lost, because each object has fields of these names.
    #[test]
    fn no_setting_has_the_name_of_a_field_of_every_object() {
        for kind in CONNECTOR_KINDS {
            let schemas = [connector_schema(kind), sink_schema(kind)];
            for schema in schemas.into_iter().chain(source_schema(kind)) {
                for field in [
                    "version",
                    "created_at_ms",
                    "updated_at_ms",
                    "origin",
                    "declared_at",
                ] {
                    let properties = schema["properties"].as_object().unwrap();
                    assert!(!properties.contains_key(field), "{}: {field}", kind.name);
                }
            }
        }
    }

    #[test]
    fn secrets_are_kept_and_not_shown() {
        let stored = json!({
            "type": "http", "url": "http://h", "headers": {"authorization": "x"}, "password": "pencil", "username": "u"
        });
        let seen = redact_secrets(CONNECTOR, stored.clone());
        assert_eq!(
            seen,
            json!({"type": "http", "url": "http://h", "headers": {}, "username": "u"})
        );
        assert_eq!(
            carry_over_secrets(CONNECTOR, seen.clone(), Some(&stored)),
            stored
        );
        let mut elsewhere = seen.clone();
        elsewhere["url"] = "http://other".into();
        assert_eq!(
            carry_over_secrets(CONNECTOR, elsewhere.clone(), Some(&stored)),
            elsewhere
        );
        let mut other = seen;
        other["headers"] = json!({"authorization": "y"});
        let kept = carry_over_secrets(CONNECTOR, other, Some(&stored));
        assert_eq!(
            (&kept["headers"]["authorization"], &kept["password"]),
            (&json!("y"), &json!("pencil"))
        );
        let sink = json!({"connector": "c", "signature": {"secret": "s", "header": "x-sign"}});
        let seen = redact_secrets(SINK, sink.clone());
        assert_eq!(
            seen,
            json!({"connector": "c", "signature": {"header": "x-sign"}})
        );
        assert_eq!(carry_over_secrets(SINK, seen, Some(&sink)), sink);
    }

    #[cfg(feature = "http")]
    #[test]
    fn secrets_of_sources_are_kept_and_not_shown() {
        let stored = json!({
            "connector": "c", "token": "t", "topic": "x", "signature": {"secret": "s", "header": "x-sign"}
        });
        let seen = redact_secrets(SOURCE, stored.clone());
        let expected = json!({"connector": "c", "topic": "x", "signature": {"header": "x-sign"}});
        assert_eq!(seen, expected);
        assert_eq!(carry_over_secrets(SOURCE, seen, Some(&stored)), stored);
    }

    #[test]
    fn an_object_of_an_unknown_type_shows_nothing() {
        let stored = json!({"type": "gone", "key": "secret"});
        assert_eq!(redact_secrets(CONNECTOR, stored), json!({"type": "gone"}));
    }
}
