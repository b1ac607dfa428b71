//! Notification objects: validation and schemas. They contain no secrets, which belong to their
//! sinks.

use api::ObjectValidationError;
use devices::alarm::{Notification, check_notification};
use serde_json::{Value, json};

/// Validates a notification and returns its stored form.
pub(super) fn prepare(input: &Value) -> Result<Value, ObjectValidationError> {
    let notification = check_notification(input).map_err(|problem| ObjectValidationError {
        field: problem.field,
        detail: format!("{}.", problem.detail),
    })?;
    Ok(json!(notification))
}

/// JSON schemas of the written and the shown object.
pub(super) fn schemas() -> (Value, Value) {
    let schema = |settings: schemars::generate::SchemaSettings| {
        let mut settings = settings;
        settings.inline_subschemas = true;
        let generator = settings.into_generator();
        let mut schema = generator.into_root_schema_for::<Notification>().to_value();
        if let Some(fields) = schema.as_object_mut() {
            fields.remove("$schema");
            fields.remove("title");
        }
        schema
    };
    let settings = schemars::generate::SchemaSettings::draft2020_12;
    (schema(settings()), schema(settings().for_serialize()))
}
