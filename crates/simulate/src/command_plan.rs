//! Commands to devices, checked: what is requested of the API of the node.

use outbound::url_encoding::url_encode;
use serde_json::{Value, json};

use crate::definition::{CommandDefinition, DefinitionError};
use crate::suggestion::unknown_name;

const MAX_RATE: f64 = 100_000.0;
const MAX_CONCURRENCY: u16 = 256;
const MAX_TIMEOUT_NS: u64 = 25_000_000_000;

#[derive(Clone, Debug)]
pub(crate) struct CommandPlan {
    /// Number of the fleet.
    pub(crate) fleet: usize,
    /// End of the path of the request, after the device.
    pub(crate) resource: String,
    pub(crate) body: Value,
    /// Commands per second at a load of 1.
    pub(crate) rate: f64,
    pub(crate) concurrency: u16,
}

/// Checks the commands of a file.
pub(crate) fn compile(
    definitions: &[CommandDefinition],
    fleets: &[&str],
    errors: &mut Vec<DefinitionError>,
) -> Vec<CommandPlan> {
    let mut plans = Vec::new();
    for (number, definition) in definitions.iter().enumerate() {
        let mut error = |field: &str, message: String| {
            let path = format!("command[{number}]{field}");
            errors.push(DefinitionError::new(path, message));
        };
        let fleet = fleets.iter().position(|known| *known == definition.fleet);
        if fleet.is_none() {
            let message = unknown_name("fleet", &definition.fleet, fleets.iter().copied());
            error(".fleet", message);
        }
        if !(definition.rate > 0.0 && definition.rate <= MAX_RATE) {
            error(
                ".rate",
                format!("expected above 0, up to {MAX_RATE} per second"),
            );
        }
        if !(1..=MAX_CONCURRENCY).contains(&definition.concurrency) {
            error(".concurrency", format!("expected 1 to {MAX_CONCURRENCY}"));
        }
        let timeout_ms = definition.timeout.ns / 1_000_000;
        if timeout_ms == 0 || definition.timeout.ns > MAX_TIMEOUT_NS {
            error(".timeout", "expected 1ms to 25s".to_owned());
        }
        let has_params = definition.params.is_some();
        if has_params && definition.method.is_none() && definition.function.is_none() {
            error(".params", "is for `method` and `function`".to_owned());
        }
        let Some((resource, mut body)) = request(definition) else {
            let message = "expected one of `method`, `function`, `read` and `write`";
            error("", message.to_owned());
            continue;
        };
        body["timeout_ms"] = json!(timeout_ms);
        // A round trip needs a device that is connected.
        body["expires_in_s"] = json!(0);
        plans.push(CommandPlan {
            fleet: fleet.unwrap_or_default(),
            resource,
            body,
            rate: definition.rate,
            concurrency: definition.concurrency,
        });
    }
    plans
}

/// End of the path, and body; `None`: not exactly one action is given.
fn request(definition: &CommandDefinition) -> Option<(String, Value)> {
    let CommandDefinition {
        method,
        function,
        params,
        read,
        write,
        ..
    } = definition;
    let params = params.clone().unwrap_or_else(|| json!({}));
    match (method, function, read, write) {
        (Some(method), None, None, None) => Some((
            "commands".to_owned(),
            json!({"method": method, "params": params}),
        )),
        (None, Some(function), None, None) => Some((
            format!("functions/{}", url_encode(function)),
            json!({"params": params}),
        )),
        (None, None, Some(keys), None) => {
            Some(("properties/read".to_owned(), json!({"keys": keys})))
        }
        (None, None, None, Some(values)) => {
            Some(("properties/write".to_owned(), json!({"values": values})))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compiled(definition: Value) -> Result<CommandPlan, String> {
        let definition = serde_json::from_value(definition).expect("well-formed");
        let mut errors = Vec::new();
        let plans = compile(&[definition], &["meters"], &mut errors);
        match &errors[..] {
            [] => Ok(plans[0].clone()),
            errors => Err(format!("{errors:?}")),
        }
    }

    #[test]
    fn each_action_has_a_request() {
        let plan = |action: &str, value: Value| {
            let mut definition = json!({"fleet": "meters", "rate": 5, "timeout": "2s"});
            definition[action] = value;
            let plan = compiled(definition).expect("valid");
            assert_eq!(plan.body["timeout_ms"], 2000);
            assert_eq!(plan.body["expires_in_s"], 0);
            (plan.resource, plan.body)
        };
        let (resource, body) = plan("method", json!("reboot"));
        assert_eq!(
            (resource.as_str(), &body["method"]),
            ("commands", &json!("reboot"))
        );
        assert_eq!(plan("function", json!("a/b")).0, "functions/a%2Fb");
        let (resource, body) = plan("read", json!(["t"]));
        assert_eq!(
            (resource.as_str(), &body["keys"]),
            ("properties/read", &json!(["t"]))
        );
        let (resource, body) = plan("write", json!({"t": 1}));
        assert_eq!(
            (resource.as_str(), &body["values"]["t"]),
            ("properties/write", &json!(1))
        );
    }

    #[test]
    fn wrong_commands_are_errors() {
        let error = |definition: Value| compiled(definition).expect_err("it is wrong");
        let right = json!({"fleet": "meters", "rate": 1, "method": "m"});
        compiled(right.clone()).expect("valid");
        for (field, value, expected) in [
            ("fleet", json!("metres"), "command[0].fleet"),
            ("rate", json!(0), "command[0].rate"),
            ("concurrency", json!(0), "command[0].concurrency"),
            ("timeout", json!("30s"), "command[0].timeout"),
            ("read", json!(["t"]), "expected one of `method`"),
        ] {
            let mut wrong = right.clone();
            wrong[field] = value;
            assert!(error(wrong).contains(expected), "{field}");
        }
        let params = json!({"fleet": "meters", "rate": 1, "read": [], "params": {}});
        assert!(error(params).contains("command[0].params"));
    }
}
