//! The fields of an object kind, as the node's OpenAPI document describes them.

use serde_json::{Value, json};

/// How deep objects inside objects are listed.
const MAX_DEPTH: usize = 3;

/// The schema of the body with which an object at `path` is created.
pub(super) fn input_schema<'a>(document: &'a Value, path: &str) -> &'a Value {
    let body = &document["paths"][path]["post"]["requestBody"];
    &body["content"]["application/json"]["schema"]
}

/// One row for each field of a schema of `document`: `field` (with a dot between an object and its parts), `type`,
/// `required` and `description`.
pub(super) fn field_rows(document: &Value, schema: &Value) -> Vec<Value> {
    let mut rows = Vec::new();
    add_rows(document, resolve(document, schema), "", 0, &mut rows);
    rows
}

/// The schema that a reference names.
fn resolve<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    let target = schema["$ref"].as_str();
    match target.and_then(|target| target.strip_prefix('#')) {
        Some(pointer) => document.pointer(pointer).unwrap_or(&Value::Null),
        None => schema,
    }
}

fn add_rows(document: &Value, schema: &Value, prefix: &str, depth: usize, rows: &mut Vec<Value>) {
    let required = schema["required"].as_array();
    let is_required = |name: &str| required.is_some_and(|required| required.contains(&json!(name)));
    let properties = schema["properties"].as_object().into_iter().flatten();
    for (name, property) in properties {
        let field = format!("{prefix}{name}");
        let inner = non_null(document, property);
        let description = match first_sentence(property) {
            "" => first_sentence(inner),
            own => own,
        };
        rows.push(json!({
            "field": field,
            "type": type_name(document, inner),
            "required": is_required(name),
            "description": description,
        }));
        if depth < MAX_DEPTH {
            add_rows(document, inner, &format!("{field}."), depth + 1, rows);
            let items = non_null(document, &inner["items"]);
            add_rows(document, items, &format!("{field}[]."), depth + 1, rows);
        }
    }
}

/// The schema without the alternative `null` of optional fields.
fn non_null<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    let alternatives = schema["anyOf"].as_array().into_iter().flatten();
    let mut others = alternatives.filter(|alternative| alternative["type"] != "null");
    match (others.next(), others.next()) {
        (Some(only), None) => resolve(document, only),
        _ => resolve(document, schema),
    }
}

fn type_name(document: &Value, schema: &Value) -> String {
    let texts = |values: &Value| -> Vec<String> {
        let values = values.as_array().into_iter().flatten();
        values
            .filter_map(|value| value.as_str().map(str::to_owned))
            .collect()
    };
    let constants: Vec<_> = schema["oneOf"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|alternative| alternative["const"].as_str())
        .collect();
    if !constants.is_empty() {
        return constants.join(" | ");
    }
    if let Some(only) = schema["const"].as_str() {
        return only.to_owned();
    }
    let names = texts(&schema["enum"]);
    if !names.is_empty() {
        return names.join(" | ");
    }
    let mut kinds = texts(&schema["type"]);
    kinds.retain(|kind| kind != "null");
    let kind = match (schema["type"].as_str(), kinds.first()) {
        (Some(kind), _) => kind,
        (None, Some(kind)) => kind,
        (None, None) if schema["properties"].is_object() => "object",
        (None, None) => return "any".to_owned(),
    };
    match kind {
        "array" => format!(
            "array of {}",
            type_name(document, non_null(document, &schema["items"]))
        ),
        kind => kind.to_owned(),
    }
}

/// The first sentence of a description, on one line.
fn first_sentence(schema: &Value) -> &str {
    let text = schema["description"].as_str().unwrap_or_default();
    let line = text.split('\n').next().unwrap_or_default();
    match line.find(". ") {
        Some(end) => &line[..end],
        None => line.trim_end_matches('.'),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_types_and_descriptions() {
        let document = json!({
            "paths": {"/plain": {"post": {"requestBody": {"content": {"application/json": {
                "schema": {"$ref": "#/components/schemas/Plain"},
            }}}}}},
            "components": {"schemas": {"Plain": {
                "required": ["id"],
                "properties": {
                    "id": {"type": "string", "description": "Its id.\nUnique."},
                    "mode": {"anyOf": [{"$ref": "#/components/schemas/Mode"}, {"type": "null"}]},
                    "order": {"oneOf": [{"const": "none"}, {"const": "all"}], "description": "Order. Of rows."},
                    "tags": {"type": ["array", "null"], "items": {"type": "string"}},
                    "limits": {"type": "object", "properties": {"bytes": {"type": "integer"}}},
                    "rules": {"type": "array", "items": {"type": "object", "properties": {"name": {}}}},
                },
            }, "Mode": {"enum": ["fast", "safe"], "description": "How."}}},
        });
        let rows = field_rows(&document, input_schema(&document, "/plain"));
        let text = |row: &Value| {
            let field = |name: &str| row[name].as_str().unwrap().to_owned();
            let parts = [
                field("field"),
                field("type"),
                row["required"].to_string(),
                field("description"),
            ];
            parts.join(", ")
        };
        let shown: Vec<_> = rows.iter().map(text).collect();
        let expected = [
            "id, string, true, Its id",
            "limits, object, false, ",
            "limits.bytes, integer, false, ",
            "mode, fast | safe, false, How",
            "order, none | all, false, Order",
            "rules, array of object, false, ",
            "rules[].name, any, false, ",
            "tags, array of string, false, ",
        ];
        assert_eq!(shown, expected);
    }
}
