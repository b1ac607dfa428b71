//! Connectors, sinks and sources as API objects: their schemas and secret fields.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use secret::SecretFields;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::connector::{BatchDefaults, ConnectorKind};
use crate::kinds::CONNECTOR_KINDS;
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
                "description": "Further fields depend on the type, see /api/v1/connector-types. Secrets are \
                    shown as `***`.",
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
    secret::written_and_shown_schemas(schema)
}

/// The secret fields of an object; `None` if its type is unknown to this program. Sinks and sources do not contain their type: a
/// field that is secret in any type is secret in all.
pub fn secret_fields(object: &str, value: &Value) -> Option<&'static SecretFields> {
    static CONNECTORS: LazyLock<BTreeMap<&str, SecretFields>> = LazyLock::new(|| {
        let kinds = CONNECTOR_KINDS.iter().map(|kind| {
            let fields = SecretFields::from_schemas([&connector_schema(kind)], &ADDRESS_FIELDS);
            (kind.name, fields)
        });
        kinds.collect()
    });
    static SINKS: LazyLock<SecretFields> = LazyLock::new(|| {
        let schemas: Vec<_> = CONNECTOR_KINDS
            .iter()
            .map(|kind| sink_schema(kind))
            .collect();
        SecretFields::from_schemas(&schemas, &ADDRESS_FIELDS)
    });
    static SOURCES: LazyLock<SecretFields> = LazyLock::new(|| {
        let schemas: Vec<_> = CONNECTOR_KINDS
            .iter()
            .filter_map(|kind| source_schema(kind))
            .collect();
        SecretFields::from_schemas(&schemas, &ADDRESS_FIELDS)
    });
    match object {
        CONNECTOR => CONNECTORS.get(value["type"].as_str()?),
        SOURCE => Some(&SOURCES),
        _ => Some(&SINKS),
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
    fn schemas_hold_no_references_and_reject_unknown_fields() {
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

    /// A secret in a list or in a map of objects would not be found.
    #[test]
    fn all_secrets_are_found() {
        let mut schemas = vec![common_sink_schema(), common_source_schema()];
        for kind in CONNECTOR_KINDS {
            schemas.extend([connector_schema(kind), sink_schema(kind)]);
            schemas.extend(source_schema(kind));
        }
        for schema in schemas {
            let expected = schema.to_string().matches("\"writeOnly\":true").count();
            let found = SecretFields::from_schemas([&schema], &[]).count();
            assert_eq!(found, expected, "{schema}");
        }
    }

    fn mask_and_restore(object: &str, stored: Value, expected: Value) {
        let fields = secret_fields(object, &stored).unwrap();
        let shown = fields.mask(stored.clone());
        assert_eq!(shown, expected);
        assert_eq!(fields.restore(shown, Some(&stored)), Ok(stored));
    }

    #[cfg(feature = "http")]
    #[test]
    fn secrets_are_kept_and_not_shown() {
        let stored = json!({
            "type": "http", "url": "http://h", "headers": {"authorization": "x"}, "password": "pencil", "username": "u"
        });
        let expected = json!({
            "type": "http", "url": "http://h", "headers": {"authorization": "***"}, "password": "***", "username": "u"
        });
        mask_and_restore(CONNECTOR, stored.clone(), expected);
        let fields = secret_fields(CONNECTOR, &stored).unwrap();
        let elsewhere = json!({"type": "http", "url": "http://other", "username": "u"});
        assert_eq!(
            fields.restore(elsewhere.clone(), Some(&stored)),
            Ok(elsewhere)
        );
        let stored = json!({"connector": "c", "signature": {"secret": "s", "header": "x-sign"}});
        let expected =
            json!({"connector": "c", "signature": {"secret": "***", "header": "x-sign"}});
        mask_and_restore(SINK, stored, expected);
    }

    #[cfg(feature = "http")]
    #[test]
    fn secrets_of_sources_are_kept_and_not_shown() {
        let signature = json!({"secret": "s", "header": "x-sign"});
        let stored = json!({"connector": "c", "token": "t", "topic": "x", "signature": signature});
        let mut expected = stored.clone();
        expected["token"] = "***".into();
        expected["signature"]["secret"] = "***".into();
        mask_and_restore(SOURCE, stored, expected);
    }

    #[test]
    fn secrets_of_an_unknown_type_are_unknown() {
        assert!(secret_fields(CONNECTOR, &json!({"type": "gone", "key": "secret"})).is_none());
    }
}
