//! Secrets in objects of the API: they are shown as `***`, and stay as they are when an object is written back.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::SecretError;

/// Shown in place of a secret. In a written object it stands for the stored secret.
pub const MASK: &str = "***";

/// The secret fields of one kind of objects, and the fields that tell which system receives the secrets.
#[derive(Debug, Default)]
pub struct SecretFields {
    /// Names of fields from the outermost object to the secret. A secret is a text, or an object of texts such as HTTP headers.
    paths: BTreeSet<Vec<String>>,
    /// Looked up in the object of the secret and in all objects around it.
    address_fields: &'static [&'static str],
}

impl SecretFields {
    /// The top-level fields with these names.
    pub fn from_names(names: &[&str], address_fields: &'static [&'static str]) -> Self {
        Self {
            paths: names.iter().map(|name| vec![(*name).to_owned()]).collect(),
            address_fields,
        }
    }

    /// The fields that are `writeOnly` in a schema without references.
    pub fn from_schemas<'s>(
        schemas: impl IntoIterator<Item = &'s Value>,
        address_fields: &'static [&'static str],
    ) -> Self {
        let mut paths = BTreeSet::new();
        for schema in schemas {
            collect_paths(schema, &mut Vec::new(), &mut paths);
        }
        Self {
            paths,
            address_fields,
        }
    }

    /// Number of secret fields; those of an object of secrets count as one.
    pub fn count(&self) -> usize {
        self.paths.len()
    }

    /// The object as shown: each secret is [`MASK`].
    #[must_use]
    pub fn mask(&self, mut object: Value) -> Value {
        for path in &self.paths {
            let field = path
                .iter()
                .try_fold(&mut object, |object, name| object.get_mut(name));
            match field {
                None | Some(Value::Null) => {}
                Some(Value::Object(secrets)) => {
                    secrets
                        .values_mut()
                        .for_each(|secret| *secret = json!(MASK));
                }
                Some(secret) => *secret = json!(MASK),
            }
        }
        object
    }

    /// Adds the stored secrets that a written object omits or gives as [`MASK`]; `null` removes a secret. A secret is not kept
    /// if an address field changes, because it would be sent to another system.
    ///
    /// # Errors
    /// Fails if a field is [`MASK`] and there is no secret to keep.
    pub fn restore(
        &self,
        mut written: Value,
        stored: Option<&Value>,
    ) -> Result<Value, SecretError> {
        for path in &self.paths {
            self.restore_field(path, &mut written, stored)?;
        }
        Ok(written)
    }

    fn restore_field(
        &self,
        path: &[String],
        written: &mut Value,
        stored: Option<&Value>,
    ) -> Result<(), SecretError> {
        let Some((name, parents)) = path.split_last() else {
            return Ok(());
        };
        let (mut object, mut stored) = (written, stored);
        let mut changed_address = self.find_changed_address(object, stored);
        for parent in parents {
            stored = stored.and_then(|stored| stored.get(parent));
            match object.get_mut(parent) {
                Some(inner) => object = inner,
                None => return Ok(()),
            }
            changed_address = changed_address.or_else(|| self.find_changed_address(object, stored));
        }
        let Some(fields) = object.as_object_mut() else {
            return Ok(());
        };
        let stored = stored.and_then(|stored| stored.get(name));
        let kept = stored.filter(|stored| changed_address.is_none() && !stored.is_null());
        match (fields.get_mut(name), kept) {
            (None, Some(kept)) => {
                // `password_file` replaces `password`.
                if !fields.contains_key(&format!("{name}_file")) {
                    fields.insert(name.clone(), kept.clone());
                }
            }
            (None, None) => {}
            (Some(Value::Null), _) => drop(fields.remove(name)),
            (Some(value), kept) => {
                replace_masks(value, kept).map_err(|inner| SecretError {
                    field: path.join(".") + &inner,
                    detail: match changed_address {
                        None => format!(
                            "{MASK:?} stands for the stored secret, and none is stored; give the secret"
                        ),
                        Some(address) => format!(
                            "{MASK:?} stands for the stored secret, which is not sent to another system; give the secret \
                             again, because {address} is changed"
                        ),
                    },
                })?;
            }
        }
        Ok(())
    }

    fn find_changed_address(&self, object: &Value, stored: Option<&Value>) -> Option<&'static str> {
        let stored = stored?;
        let is_changed = |name: &&&str| object.get(**name) != stored.get(**name);
        self.address_fields.iter().find(is_changed).copied()
    }
}

/// Replaces [`MASK`] by the stored secret. Fails with the path, below the field, of a mask for which none is stored.
fn replace_masks(value: &mut Value, stored: Option<&Value>) -> Result<(), String> {
    match value {
        Value::String(text) if text == MASK => match stored {
            Some(stored @ Value::String(_)) => *value = stored.clone(),
            _ => return Err(String::new()),
        },
        Value::Object(secrets) => {
            secrets.retain(|_, secret| !secret.is_null());
            for (name, secret) in secrets {
                let stored = stored.and_then(|stored| stored.get(name));
                replace_masks(secret, stored).map_err(|inner| format!(".{name}{inner}"))?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// The subschemas of which a value matches one or all.
fn alternatives(schema: &Value) -> impl Iterator<Item = &Value> {
    let lists = ["anyOf", "oneOf", "allOf"].map(|name| schema[name].as_array());
    lists.into_iter().flatten().flatten()
}

fn is_secret(schema: &Value) -> bool {
    schema["writeOnly"] == true || alternatives(schema).any(is_secret)
}

fn collect_paths(schema: &Value, path: &mut Vec<String>, found: &mut BTreeSet<Vec<String>>) {
    if is_secret(schema) || is_secret(&schema["additionalProperties"]) {
        found.insert(path.clone());
        return;
    }
    for alternative in alternatives(schema) {
        collect_paths(alternative, path, found);
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        path.push(name.clone());
        collect_paths(field, path, found);
        path.pop();
    }
}

/// The schemas of an object as written, where secrets are optional, and as shown, where they are [`MASK`].
#[must_use]
pub fn written_and_shown_schemas(schema: Value) -> (Value, Value) {
    let (mut written, mut shown) = (schema.clone(), schema);
    make_secrets_optional(&mut written);
    mask_secrets(&mut shown);
    (written, shown)
}

fn make_secrets_optional(schema: &mut Value) {
    let secrets: Vec<String> = (schema["properties"].as_object().into_iter().flatten())
        .filter(|(_, field)| is_secret(field))
        .map(|(name, _)| name.clone())
        .collect();
    if let Some(required) = schema.get_mut("required").and_then(Value::as_array_mut) {
        required.retain(|name| !secrets.iter().any(|secret| name == secret));
    }
    for_each_inner(schema, make_secrets_optional);
}

fn mask_secrets(schema: &mut Value) {
    if schema["writeOnly"] == true {
        let description = schema.get("description").cloned();
        *schema = json!({"type": "string", "const": MASK});
        if let Some(description) = description {
            schema["description"] = description;
        }
    }
    for_each_inner(schema, mask_secrets);
}

fn for_each_inner(value: &mut Value, mut change: impl FnMut(&mut Value)) {
    match value {
        Value::Object(fields) => fields.values_mut().for_each(change),
        Value::Array(items) => items.iter_mut().for_each(&mut change),
        _ => {}
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn schema() -> Value {
        let secret =
            json!({"type": "string", "writeOnly": true, "minLength": 8, "description": "Key."});
        json!({"type": "object", "required": ["key", "url"], "properties": {
            "url": {"type": "string"},
            "key": secret,
            "headers": {"type": "object", "additionalProperties": secret},
            "server": {"anyOf": [{"type": "null"}, {"type": "object", "properties": {
                "host": {"type": "string"},
                "password": {"anyOf": [secret, {"type": "null"}]},
            }}]},
        }})
    }

    fn fields() -> SecretFields {
        SecretFields::from_schemas([&schema()], &["url", "host"])
    }

    fn stored() -> Value {
        json!({"url": "a", "key": "k", "headers": {"x": "1", "y": "2"}, "server": {"host": "h", "password": "p"}})
    }

    #[test]
    fn a_masked_object_can_be_written_back() {
        let fields = fields();
        assert_eq!(fields.count(), 3);
        let shown = fields.mask(stored());
        assert_eq!(
            shown,
            json!({"url": "a", "key": "***", "headers": {"x": "***", "y": "***"}, "server": {"host": "h", "password": "***"}})
        );
        assert_eq!(fields.restore(shown, Some(&stored())), Ok(stored()));
        let nothing = json!({"key": null, "server": null});
        assert_eq!(fields.mask(nothing.clone()), nothing);
    }

    #[test]
    fn omitted_secrets_are_kept_and_null_removes_them() {
        let fields = fields();
        let restore = |written| fields.restore(written, Some(&stored())).unwrap();
        assert_eq!(
            restore(json!({"url": "a", "server": {"host": "h"}})),
            stored()
        );
        assert_eq!(
            restore(
                json!({"url": "a", "key": null, "headers": null, "server": {"host": "h", "password": null}})
            ),
            json!({"url": "a", "server": {"host": "h"}})
        );
        // An object of secrets is complete, as it is shown with all names.
        let changed =
            json!({"url": "a", "key": "new", "headers": {"x": "***", "z": "3", "y": null}});
        assert_eq!(
            restore(changed),
            json!({"url": "a", "key": "new", "headers": {"x": "1", "z": "3"}})
        );
        let by_file = json!({"url": "a", "key_file": "f", "headers": {}});
        assert_eq!(restore(by_file.clone()), by_file);
        for other in [
            json!(1),
            json!({"server": 1, "key": [1], "headers": {"x": 1}}),
        ] {
            assert_eq!(fields.restore(other.clone(), None), Ok(other));
        }
    }

    #[test]
    fn secrets_are_not_sent_to_another_system() {
        let fields = fields();
        let restore = |written| fields.restore(written, Some(&stored()));
        let elsewhere = json!({"url": "b", "server": {"host": "h"}});
        assert_eq!(restore(elsewhere.clone()), Ok(elsewhere));
        let error =
            restore(json!({"url": "a", "server": {"host": "i", "password": "***"}})).unwrap_err();
        assert_eq!(
            error.to_string(),
            "server.password: \"***\" stands for the stored secret, which is not sent to another system; give the secret \
             again, because host is changed"
        );
    }

    #[test]
    fn a_mask_needs_a_stored_secret() {
        let written = json!({"url": "a", "headers": {"x": "***", "w": "***"}});
        let error = fields().restore(written, Some(&stored())).unwrap_err();
        assert_eq!(
            error.to_string(),
            "headers.w: \"***\" stands for the stored secret, and none is stored; give the secret"
        );
        let error = fields().restore(json!({"key": "***"}), None).unwrap_err();
        assert_eq!(error.field, "key");
    }

    #[test]
    fn schemas_mark_optional_and_visible_fields() {
        let (written, shown) = written_and_shown_schemas(schema());
        assert_eq!(written["required"], json!(["url"]));
        assert_eq!(written["properties"], schema()["properties"]);
        assert_eq!(shown["required"], json!(["key", "url"]));
        let masked = json!({"type": "string", "const": "***", "description": "Key."});
        assert_eq!(shown["properties"]["key"], masked);
        assert_eq!(
            shown["properties"]["headers"]["additionalProperties"],
            masked
        );
        let server = &shown["properties"]["server"]["anyOf"][1];
        assert_eq!(server["properties"]["password"]["anyOf"][0], masked);
    }
}
