//! Validates a command against the thing model of the device's product.

use bumpalo::Bump;
use serde_json::{Map, Value};

use super::record::CommandKind;
use crate::model::{FunctionModel, ThingModel, UnknownKeys, ValueType};

/// Maximum length of a method name.
pub(crate) const MAX_METHOD_BYTES: usize = 255;
/// Maximum number of properties that one command reads or writes.
const MAX_KEYS: usize = 256;
/// Maximum number of names listed in an error.
const MAX_NAMED: usize = 10;

/// The action that a device should perform.
#[derive(Debug, Clone, PartialEq)]
pub enum CommandAction {
    /// Calls a method. If the model has a function of this name, its inputs are validated.
    Call {
        method: String,
        params: Value,
    },
    /// Calls a function of the model.
    Invoke {
        function: String,
        params: Value,
    },
    Read {
        keys: Vec<String>,
    },
    Write {
        values: Map<String, Value>,
    },
}

/// An invalid field of a command.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {detail}")]
pub struct CommandValidationError {
    /// Path of the field, such as `params.speed`.
    pub field: String,
    pub detail: String,
    /// Whether the function is not in the model.
    pub is_unknown_function: bool,
}

fn invalid(field: impl Into<String>, detail: impl Into<String>) -> CommandValidationError {
    CommandValidationError {
        field: field.into(),
        detail: detail.into(),
        is_unknown_function: false,
    }
}

/// The command to send.
#[derive(Debug)]
pub(super) struct ValidatedCommand {
    pub(super) kind: CommandKind,
    pub(super) method: String,
    pub(super) params: Value,
}

pub(super) fn check(
    wanted: CommandAction,
    model: &ThingModel,
    max_params_bytes: usize,
) -> Result<ValidatedCommand, CommandValidationError> {
    let checked = match wanted {
        CommandAction::Call { method, params } => {
            if method.is_empty() || method.len() > MAX_METHOD_BYTES || method.contains('\0') {
                let detail = format!("expected 1 to {MAX_METHOD_BYTES} bytes without NUL");
                return Err(invalid("method", detail));
            }
            match model.function(&method) {
                Some(function) => check_inputs(function, &params)?,
                None if model.unknown_keys == UnknownKeys::Reject => {
                    return Err(unknown_function("method", &method, model));
                }
                None => {}
            }
            ValidatedCommand {
                kind: CommandKind::Call,
                method,
                params,
            }
        }
        CommandAction::Invoke { function, params } => {
            let known = model.function(&function);
            let known = known.ok_or_else(|| CommandValidationError {
                is_unknown_function: true,
                ..unknown_function("function", &function, model)
            })?;
            check_inputs(known, &params)?;
            ValidatedCommand {
                kind: CommandKind::Call,
                method: function,
                params,
            }
        }
        CommandAction::Read { keys } => {
            if keys.is_empty() || keys.len() > MAX_KEYS {
                let detail = format!("expected 1 to {MAX_KEYS} keys");
                return Err(invalid("keys", detail));
            }
            for (at, key) in keys.iter().enumerate() {
                check_key(&format!("keys[{at}]"), key, model)?;
                if model.property(key).is_some_and(|found| !found.may_read) {
                    let detail = format!("the property {key:?} is not readable");
                    return Err(invalid(format!("keys[{at}]"), detail));
                }
            }
            ValidatedCommand {
                kind: CommandKind::Read,
                method: "readProperties".to_owned(),
                params: Value::from(keys),
            }
        }
        CommandAction::Write { values } => {
            if values.is_empty() || values.len() > MAX_KEYS {
                let detail = format!("expected 1 to {MAX_KEYS} keys with their values");
                return Err(invalid("values", detail));
            }
            for (key, value) in &values {
                let field = format!("values.{key}");
                check_key(&field, key, model)?;
                let Some(property) = model.property(key) else {
                    continue;
                };
                if !property.may_write {
                    let detail = format!("the property {key:?} is not writable");
                    return Err(invalid(field, detail));
                }
                check_value(&property.value_type, value, &field)?;
            }
            ValidatedCommand {
                kind: CommandKind::Write,
                method: "writeProperties".to_owned(),
                params: Value::Object(values),
            }
        }
    };
    let size = checked.params.to_string().len();
    if size > max_params_bytes {
        let detail = format!("expected at most {max_params_bytes} bytes of JSON, found {size}");
        return Err(invalid("params", detail));
    }
    Ok(checked)
}

fn check_key(field: &str, key: &str, model: &ThingModel) -> Result<(), CommandValidationError> {
    if key.is_empty() || key.len() > MAX_METHOD_BYTES || key.contains('\0') {
        let detail = format!("expected a key of 1 to {MAX_METHOD_BYTES} bytes without NUL");
        return Err(invalid(field, detail));
    }
    if model.property(key).is_none() && model.unknown_keys == UnknownKeys::Reject {
        let names = model.properties().iter().map(|property| &*property.id);
        let detail = format!(
            "the product's model has no property {key:?}; {}",
            name_list(names)
        );
        return Err(invalid(field, detail));
    }
    Ok(())
}

fn unknown_function(field: &str, name: &str, model: &ThingModel) -> CommandValidationError {
    let names = model.functions.iter().map(|function| &*function.id);
    let detail = format!(
        "the product's model has no function {name:?}; {}",
        name_list(names)
    );
    invalid(field, detail)
}

fn name_list<'a>(mut names: impl Iterator<Item = &'a str>) -> String {
    let first: Vec<_> = names.by_ref().take(MAX_NAMED).collect();
    match (first.is_empty(), names.count()) {
        (true, _) => "it has none".to_owned(),
        (false, 0) => format!("it has {}", first.join(", ")),
        (false, more) => format!("it has {} and {more} more", first.join(", ")),
    }
}

fn check_inputs(function: &FunctionModel, params: &Value) -> Result<(), CommandValidationError> {
    let none = Map::new();
    let given = match params {
        Value::Object(given) => given,
        Value::Null => &none,
        _ => return Err(invalid("params", "expected an object of inputs")),
    };
    let inputs = || function.inputs.iter().map(|input| &*input.id);
    if let Some(name) = given.keys().find(|name| !inputs().any(|id| id == **name)) {
        let detail = format!(
            "the function {:?} has no such input; {}",
            function.id,
            name_list(inputs())
        );
        return Err(invalid(format!("params.{name}"), detail));
    }
    for input in &function.inputs {
        let field = format!("params.{}", input.id);
        match given.get(&*input.id) {
            None | Some(Value::Null) if !input.is_required => {}
            None | Some(Value::Null) => {
                let detail = format!("the function {:?} requires this input", function.id);
                return Err(invalid(field, detail));
            }
            Some(value) => check_value(&input.value_type, value, &field)?,
        }
    }
    Ok(())
}

fn check_value(
    value_type: &ValueType,
    value: &Value,
    field: &str,
) -> Result<(), CommandValidationError> {
    let arena = Bump::new();
    let text;
    let read = match value {
        Value::Null => rules::Value::Null,
        Value::Bool(value) => rules::Value::Bool(*value),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => rules::Value::Int(whole),
            (None, Some(float)) => rules::Value::Float(float),
            (None, None) => rules::Value::Null,
        },
        Value::String(text) => rules::Value::Str(text),
        Value::Array(_) | Value::Object(_) => {
            text = value.to_string();
            rules::Value::Json(arena.alloc_str(&text))
        }
    };
    let checked = value_type.check(read, &arena);
    checked
        .map(drop)
        .map_err(|reason| invalid(field, reason.to_string()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn model(unknown_keys: UnknownKeys) -> ThingModel {
        let metadata = json!({
            "properties": [
                {"id": "speed", "name": "Speed", "valueType": {"type": "int", "min": 0, "max": 9}},
                {"id": "serial", "name": "Serial", "valueType": {"type": "string"},
                 "expands": {"type": ["read", "report"]}},
                {"id": "pin", "name": "Pin", "valueType": {"type": "string"},
                 "expands": {"type": ["write"]}},
            ],
            "functions": [
                {"id": "move", "name": "Move", "inputs": [
                    {"id": "to", "name": "To", "valueType": {"type": "double", "max": 100},
                     "expands": {"required": true}},
                    {"id": "slowly", "name": "Slowly", "valueType": {"type": "boolean"}},
                ]},
                {"id": "reboot", "name": "Reboot", "inputs": []},
            ],
        });
        ThingModel::read(&metadata, unknown_keys).unwrap()
    }

    fn outcome(wanted: CommandAction, unknown_keys: UnknownKeys) -> String {
        match check(wanted, &model(unknown_keys), 100) {
            Ok(checked) => format!("{} {}", checked.method, checked.params),
            Err(error) => error.to_string(),
        }
    }

    fn invoke(function: &str, params: Value) -> String {
        let function = function.to_owned();
        outcome(
            CommandAction::Invoke { function, params },
            UnknownKeys::Keep,
        )
    }

    #[test]
    fn function_inputs_are_validated_by_the_model() {
        let words = [
            invoke("move", json!({"to": 5})),
            invoke("move", json!({"to": "5.5", "slowly": true})),
            invoke("move", json!({"to": 500})),
            invoke("move", json!({"slowly": true})),
            invoke("move", json!({"to": 5, "too": 1})),
            invoke("move", json!([5])),
            invoke("reboot", Value::Null),
            invoke("fly", Value::Null),
        ];
        insta::assert_snapshot!(words.join("\n"), @r#"
        move {"to":5}
        move {"slowly":true,"to":"5.5"}
        params.to: above the greatest value, 100
        params.to: the function "move" requires this input
        params.too: the function "move" has no such input; it has to, slowly
        params: expected an object of inputs
        reboot null
        function: the product's model has no function "fly"; it has move, reboot
        "#);
    }

    #[test]
    fn unknown_methods_are_allowed_if_the_product_keeps_unknown_keys() {
        let call = |method: &str, unknown_keys| {
            let method = method.to_owned();
            let params = json!({"x": 1});
            outcome(CommandAction::Call { method, params }, unknown_keys)
        };
        assert_eq!(call("fly", UnknownKeys::Keep), "fly {\"x\":1}");
        assert!(call("fly", UnknownKeys::Reject).starts_with("method: the product's model has no"));
        assert!(call("reboot", UnknownKeys::Keep).starts_with("params.x: the function"));
        assert!(call("", UnknownKeys::Keep).starts_with("method: expected 1 to"));
    }

    #[test]
    fn properties_are_validated_by_the_model() {
        let read = |key: &str, unknown_keys| {
            let keys = vec![key.to_owned()];
            outcome(CommandAction::Read { keys }, unknown_keys)
        };
        let write = |values: Value| {
            let Value::Object(values) = values else {
                panic!("an object")
            };
            outcome(CommandAction::Write { values }, UnknownKeys::Reject)
        };
        let long = "x".repeat(100);
        let words = [
            read("speed", UnknownKeys::Reject),
            read("other", UnknownKeys::Keep),
            read("other", UnknownKeys::Reject),
            read("pin", UnknownKeys::Keep),
            write(json!({"speed": 3, "pin": "x"})),
            write(json!({"speed": 10})),
            write(json!({"serial": "x"})),
            write(json!({})),
            write(json!({"pin": long})),
        ];
        insta::assert_snapshot!(words.join("\n"), @r#"
        readProperties ["speed"]
        readProperties ["other"]
        keys[0]: the product's model has no property "other"; it has speed, serial, pin
        keys[0]: the property "pin" is not readable
        writeProperties {"pin":"x","speed":3}
        values.speed: above the greatest value, 9
        values.serial: the property "serial" is not writable
        values: expected 1 to 256 keys with their values
        params: expected at most 100 bytes of JSON, found 110
        "#);
    }
}
