//! `[[rule]]`: tables converted to the JSON that the crate `engine` also reads from the store.

use std::sync::Arc;

use engine::Engine;
use serde_json::Value;

use super::config_draft::ConfigDraft;
use crate::serve::NoopDevicePort;

/// Validates the rules of the file as the node will read them.
pub(super) fn finish_rules(draft: &mut ConfigDraft) -> Vec<(String, Value)> {
    let engine = Engine::new(draft.node.rules.clone(), 1);
    engine.set_device_port(Arc::new(NoopDevicePort));
    let mut rules: Vec<(String, Value)> = Vec::new();
    for mut table in std::mem::take(&mut draft.rules) {
        let name = table
            .value
            .as_object_mut()
            .and_then(|table| table.remove("name"));
        let Some(Value::String(name)) = name else {
            let message = "expected a text: rules are known by their names";
            draft.add_error(table.origin, "rule.name", message);
            continue;
        };
        if rules.iter().any(|(known, _)| *known == name) {
            let message = format!("there is a rule {name:?} already; names are unique");
            draft.add_error(table.origin, "rule.name", message);
            continue;
        }
        match engine.prepare_rule(&name, &table.value) {
            Ok(rule) => {
                let declared = (engine::RULE_KIND, name.clone());
                draft.declared_at.insert(declared, table.origin);
                rules.push((name, rule));
            }
            Err(problem) => {
                let key = format!("rule.{}", problem.field);
                draft.add_error(table.origin, key, format!("{name}: {}", problem.detail));
            }
        }
    }
    rules
}
