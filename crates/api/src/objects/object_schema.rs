//! The schemas of a kind's requests and responses: the kind's own fields with id, version and
//! times.

use std::sync::Arc;

use schemars::SchemaGenerator;
use serde_json::{Map, Value, json};

use super::object_kind::ObjectKind;
use crate::endpoint::SchemaFn;
use crate::object_store::MAX_ID_BYTES;

/// The response of a GET.
pub(super) fn view_schema(kind: Arc<dyn ObjectKind>) -> SchemaFn {
    named_schema(kind, "", |kind, generator| {
        let mut schema = object_schema(kind.schemas(generator).1);
        add_id(&*kind, &mut schema, true);
        add_origin(&*kind, &mut schema);
        schema
    })
}

/// The response of a POST.
pub(super) fn created_schema(kind: Arc<dyn ObjectKind>) -> SchemaFn {
    if kind.shown_once().is_empty() {
        return view_schema(kind);
    }
    named_schema(kind, "Created", |kind, generator| {
        let mut schema = object_schema(kind.schemas(generator).1);
        add_id(&*kind, &mut schema, true);
        add_origin(&*kind, &mut schema);
        for (name, about) in kind.shown_once() {
            let property = json!({"type": "string", "description": about});
            add_property(&mut schema, name, property, true);
        }
        schema
    })
}

/// The body of a POST.
pub(super) fn create_input_schema(kind: Arc<dyn ObjectKind>) -> SchemaFn {
    named_schema(kind, "New", |kind, generator| {
        let mut schema = object_schema(kind.schemas(generator).0);
        let must_give = kind.names().id_prefix.is_none();
        add_id(&*kind, &mut schema, must_give);
        schema
    })
}

/// The body of a PUT.
pub(super) fn put_input_schema(kind: Arc<dyn ObjectKind>) -> SchemaFn {
    named_schema(kind, "Input", |kind, generator| {
        object_schema(kind.schemas(generator).0)
    })
}

/// Registers the schema under a name of its own in the document.
fn named_schema(
    kind: Arc<dyn ObjectKind>,
    suffix: &'static str,
    make: impl Fn(Arc<dyn ObjectKind>, &mut SchemaGenerator) -> Value + Send + Sync + 'static,
) -> SchemaFn {
    Arc::new(move |generator| {
        let name = format!("{}{suffix}", kind.names().type_name);
        if !generator.definitions().contains_key(&name) {
            let mut schema = make(kind.clone(), generator);
            move_definitions(&mut schema, generator);
            generator.definitions_mut().insert(name.clone(), schema);
        }
        json!({"$ref": format!("#/components/schemas/{name}")})
    })
}

/// Moves the definitions inside a schema to those of the document: `#/$defs/` means the root of the document there.
fn move_definitions(schema: &mut Value, generator: &mut SchemaGenerator) {
    let definitions = schema
        .as_object_mut()
        .and_then(|schema| schema.remove("$defs"));
    let Some(Value::Object(definitions)) = definitions else {
        return;
    };
    redirect_references(schema);
    for (name, mut definition) in definitions {
        redirect_references(&mut definition);
        generator
            .definitions_mut()
            .entry(name)
            .or_insert(definition);
    }
}

fn redirect_references(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            if let Some(Value::String(target)) = fields.get_mut("$ref")
                && let Some(name) = target.strip_prefix("#/$defs/")
            {
                *target = format!("#/components/schemas/{name}");
            }
            fields.values_mut().for_each(redirect_references);
        }
        Value::Array(items) => items.iter_mut().for_each(redirect_references),
        _ => {}
    }
}

fn object_schema(schema: Value) -> Value {
    match schema {
        Value::Object(mut fields) => {
            for unwanted in ["$schema", "title"] {
                fields.remove(unwanted);
            }
            Value::Object(fields)
        }
        _ => json!({"type": "object"}),
    }
}

fn add_property(schema: &mut Value, name: &str, property: Value, is_required: bool) {
    let Some(schema) = schema.as_object_mut() else {
        return;
    };
    let properties = schema
        .entry("properties")
        .or_insert_with(|| Value::Object(Map::new()));
    properties[name] = property;
    if is_required {
        let required = schema.entry("required").or_insert_with(|| json!([]));
        if let Some(required) = required.as_array_mut() {
            required.push(name.into());
        }
    }
}

fn add_id(kind: &dyn ObjectKind, schema: &mut Value, is_required: bool) {
    let property = json!({
        "type": "string", "minLength": 1, "maxLength": MAX_ID_BYTES,
        "pattern": "^[^\\u0000-\\u001f\\u007f-\\u009f]+$",
    });
    add_property(schema, kind.names().id_field, property, is_required);
}

/// Adds the origin fields, and the fields that only stored objects have.
fn add_origin(kind: &dyn ObjectKind, schema: &mut Value) {
    let can_be_declared = kind.declared().is_some();
    let origins: &[&str] = match can_be_declared {
        true => &["api", "file", "environment", "command_line"],
        false => &["api"],
    };
    let origin = json!({
        "type": "string", "enum": origins,
        "description": "`api`: a stored object. Declared objects are changed in the configuration.",
    });
    add_property(schema, "origin", origin, true);
    if can_be_declared {
        let place = json!({
            "type": "string",
            "description": "File and line of the declaration; absent for stored objects.",
        });
        add_property(schema, "declared_at", place, false);
    }
    for (name, about) in [
        (
            "version",
            "Version, which grows with every change: the ETag without quotes. Only stored objects have one.",
        ),
        (
            "created_at_ms",
            "Time of creation, in milliseconds since 1970.",
        ),
        (
            "updated_at_ms",
            "Time of the last change, in milliseconds since 1970.",
        ),
    ] {
        debug_assert!(
            schema["properties"].get(name).is_none(),
            "{}: its own field {name} is hidden by that of every object",
            kind.names().type_name
        );
        let property = json!({"type": "integer", "minimum": 0, "description": about});
        add_property(schema, name, property, !can_be_declared);
    }
}
